"""``external.dependency``: waited for something outside, in a declared span or blocked in prepare or finish."""

from __future__ import annotations

import numpy as np

from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, own_and_behind, typical_and_p99
from latfix.profilers.evidence.units import Evidence, span_cpu


def _claim(evidence: Evidence, left: Left) -> Claim:
    units = {}
    for name in ("prepare", "finish"):
        unit = evidence.units[name]
        waited = np.maximum(left.blocked(name) - evidence.stood_still(name), 0)
        # Everything blocked in the adapter's own code is a wait for something outside it. Blocked time in
        # compute is not: nothing there is known to wait, so it stays unexplained.
        units[name] = Parts(cpu=span_cpu(unit, evidence.rows[f"{name}_span_ns"]), blocked=waited)
    return Claim(units=units, disturbance=False, expected=True)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    rows, ok = evidence.rows, evidence.ok
    span = (rows["prepare_span_ns"] + rows["finish_span_ns"])[ok]
    waited = (evidence.units["prepare"].blocked + evidence.units["finish"].blocked)[ok]
    shown, name = (span, "declared spans") if span.any() else (waited, "blocked time in prepare and finish")
    return f"{name} took {typical_and_p99(shown)}; {own_and_behind(figures)}."


CAUSE = Cause(
    id="external.dependency",
    fixes=(),
    claim=_claim,
    sentence=_sentence,
)
