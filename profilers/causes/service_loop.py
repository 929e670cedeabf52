"""``service.loop``: a call held the event loop of a service behind an address, and nobody was answered meanwhile."""

from __future__ import annotations

import numpy as np

from latfix.formatting import from_ns
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, no_claim, own_and_behind
from latfix.profilers.evidence.units import Evidence


def _outside(evidence: Evidence, left: Left) -> Claim:
    if evidence.locks is None:
        return Claim()
    units = {}
    for name in ("compute", "finish"):
        unit = evidence.units[name]
        stood = np.maximum(
            evidence.locks.held.covered(unit.start, unit.end)
            - evidence.standstills.prefill.covered(unit.start, unit.end),
            0,
        )
        units[name] = Parts(cpu=np.minimum(stood, left.cpu_excess(name)))
    return Claim(units=units)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    if evidence.locks is None or not len(held := evidence.locks.held):
        return f"{own_and_behind(figures)}."
    longest = from_ns(int((held.end - held.start).max()))
    return (
        f"{len(held)} times nobody was answered, at most for {longest}, while the service's event loop did not wait "
        f"for events, and {evidence.locks.caller}; {own_and_behind(figures)}."
    )


CAUSE = Cause(id="service.loop", fixes=(), claim=no_claim, sentence=_sentence, outside=_outside)
