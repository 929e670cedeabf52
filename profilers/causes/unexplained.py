"""``unexplained``: what no cause claims. Never clipped, always shown."""

from __future__ import annotations

import numpy as np

from latfix.formatting import from_ns
from latfix.profilers.causes.cause import Cause, TailFigures, no_claim, own_and_behind, typical_and_p99
from latfix.profilers.causes.repeated_sleeps import sleeps_in
from latfix.profilers.evidence.outside.outside_view import CPU, Counter, divided
from latfix.profilers.evidence.units import Evidence


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    blocked = {name: evidence.of_batch(evidence.units[name].blocked)[evidence.ok] for name in ("compute", "collate")}
    where = max(blocked, key=lambda name: float(np.quantile(blocked[name], 0.99)))
    return (
        f"no probe accounts for it: {own_and_behind(figures)}; blocked time within {where} was "
        f"{typical_and_p99(blocked[where])}{sleeps_in(evidence, where)}."
    )


def _outside_sentence(evidence: Evidence, figures: TailFigures) -> str:
    still, ok = evidence.standstills, evidence.ok
    stood = (
        f"the service answered nobody {len(still.everyone)} times, at most for {from_ns(still.longest_ns)}, "
        "and all in flight went on together; "
        if len(still.everyone)
        else ""
    )
    watched = Counter.of(evidence.samples, CPU).known
    idle = sum(
        evidence.of_batch(divided(evidence.samples, unit.start, unit.end)[1])
        if name == "compute"
        else divided(evidence.samples, unit.start, unit.end)[1]
        for name, unit in evidence.units.items()
        if name in ("compute", "finish")
    )
    inside = (
        f"while a request was there, the process was idle for {typical_and_p99(np.asarray(idle)[ok])}"
        if watched
        else "what the service did meanwhile is not known (--pid watches its process)"
    )
    return f"{stood}{inside}; {own_and_behind(figures)}."


CAUSE = Cause(
    id="unexplained",
    fixes=(),
    claim=no_claim,
    sentence=_sentence,
    outside_sentence=_outside_sentence,
)
