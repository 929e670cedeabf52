"""``host.steal``: the hypervisor ran something else on the core."""

from __future__ import annotations

import numpy as np

from latfix.arrays import Ints
from latfix.formatting import from_ns, milliseconds
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, own_and_behind
from latfix.profilers.evidence.intervals import Intervals
from latfix.profilers.evidence.units import Evidence
from latfix.profilers.probes.gil_probe import STALL_SERIES

#: The counter moves in ticks of this size; a smaller growth says nothing about one request.
_TICK_NS = 10_000_000


def _claim(evidence: Evidence, left: Left) -> Claim:
    stalls = _stalls(evidence)
    units = {}
    for name in ("dispatch", "intake", "prepare", "lag", "collate", "compute", "finish"):
        unit = evidence.units[name]
        still = stalls.covered(unit.start, unit.end)
        held_up = np.minimum(still, np.maximum(left.blocked(name) - evidence.usually_blocked(name), 0))
        held_up = np.maximum(held_up, np.minimum(evidence.stood_still(name), left.blocked(name)))
        # A stopped core's clock of the thread that was on it goes on.
        on_core = np.maximum(_counted(evidence, name), still - held_up)
        units[name] = Parts(cpu=np.minimum(on_core, left.cpu_excess(name)), blocked=held_up)
    return Claim(units=units)


def _stalls(evidence: Evidence) -> Intervals:
    """When the whole machine stood still, as a thread that only sleeps has felt it."""
    times, late = evidence.series(STALL_SERIES)
    return Intervals.merged(times, late.astype(np.int64))


def _counted(evidence: Evidence, name: str) -> Ints:
    """What was stolen of each unit's time on a core.

    The kernel's counter is the sum over all cores, and grows only where something wants to run: of the time that all
    cores together were wanted for, stolen time included, each unit lost as much as everybody did.
    """
    unit = evidence.units[name]
    if name in ("dispatch", "intake", "lag"):
        return np.zeros(len(unit.start), np.int64)
    stolen, wanted = (
        evidence.grown_around(f"host.{what}_ns", unit.start, unit.end) for what in ("steal", "cpu_busy")
    )
    share = np.clip(np.where(stolen >= _TICK_NS, stolen, 0.0) / np.maximum(wanted, 1.0), 0.0, 1.0)
    return np.asarray(np.rint(share * unit.cpu), dtype=np.int64)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    times, values = evidence.series("host.steal_ns")
    total = float(values[-1] - values[0]) if len(times) else 0.0
    stalls = _stalls(evidence)
    longest = from_ns((stalls.end - stalls.start).max()) if len(stalls) else "0 ms"
    return (
        f"the hypervisor took {from_ns(total)} from this machine's cores by its own count, and the machine stood "
        f"still {len(stalls)} times, at most for {longest}; at most {milliseconds(figures.largest_ms)} "
        f"of one request, and {own_and_behind(figures)}."
    )


CAUSE = Cause(
    id="host.steal",
    fixes=("host.routing",),
    claim=_claim,
    sentence=_sentence,
)
