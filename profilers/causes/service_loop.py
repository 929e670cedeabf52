"""``service.loop``: a call blocked the event loop of a service behind an address, which answered no request."""

from __future__ import annotations

import numpy as np

from latfix.formatting import from_ns
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, own_and_propagated
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
        return f"{own_and_propagated(figures)}."
    longest = from_ns(int((held.end - held.start).max()))
    return (
        f"{len(held)} times the service answered no request, for up to {longest}, because its event loop did not "
        f"return to waiting for events; {evidence.locks.caller}; {own_and_propagated(figures)}."
    )


CAUSE = Cause(id="service.loop", sentence=_sentence, outside=_outside)
