"""``host.steal``: the hypervisor ran something else on the core."""

from __future__ import annotations

import numpy as np

from latfix.arrays import Ints
from latfix.formatting import from_ns
from latfix.profilers.causes.cause import Cause, Left, Parts, TailFigures, in_units
from latfix.profilers.evidence.intervals import Intervals
from latfix.profilers.evidence.units import Evidence
from latfix.profilers.probes.gil_probe import STALL_SERIES
from latfix.profilers.probes.sampler import BUSY_SERIES, STOLEN_SERIES

#: The counter's tick; a smaller growth is not attributable to one request.
_TICK_NS = 10_000_000
_UNITS = ("dispatch", "intake", "prepare", "lag", "collate", "compute", "finish")


@in_units(*_UNITS)
def _claim(evidence: Evidence, left: Left, name: str) -> Parts:
    still = _stalls(evidence).covered(*evidence.units[name].span)
    held_up = np.minimum(still, np.maximum(left.blocked[name] - evidence.usually_blocked(name), 0))
    held_up = np.maximum(held_up, np.minimum(evidence.stood_still(name), left.blocked[name]))
    # The CPU clock of a thread on a stopped core goes on.
    return Parts(excess=np.maximum(_counted(evidence, name), still - held_up), blocked=held_up)


def _stalls(evidence: Evidence) -> Intervals:
    """When the whole machine stood still, as measured by a thread that only sleeps."""
    times, late = evidence.series(STALL_SERIES)
    return Intervals.merged(times, late.astype(np.int64))


def _counted(evidence: Evidence, name: str) -> Ints:
    """Stolen time of each unit while it was on a core.

    The kernel's counter is the sum over all cores and grows only while something wants to run. Each unit lost the
    same share as all runnable time together.
    """
    unit = evidence.units[name]
    if name in ("dispatch", "intake", "lag"):
        return np.zeros(len(unit.start), np.int64)
    stolen, wanted = (evidence.grown_around(name, *unit.span) for name in (STOLEN_SERIES, BUSY_SERIES))
    share = np.clip(np.where(stolen >= _TICK_NS, stolen, 0.0) / np.maximum(wanted, 1.0), 0.0, 1.0)
    return np.asarray(np.rint(share * unit.cpu), dtype=np.int64)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    times, values = evidence.series(STOLEN_SERIES)
    total = float(values[-1] - values[0]) if len(times) else 0.0
    stalls = _stalls(evidence)
    longest = from_ns(stalls.longest_ns) if len(stalls) else "0 ms"
    stopped = np.concatenate([evidence.stood_still(name) for name in _UNITS])
    alone = f"; {(stopped > 0).sum()} times a thread that waited for nothing stood still, for up to "
    return (
        f"the kernel counted {from_ns(total)} that the hypervisor took from this machine's cores, and the machine "
        f"stood still {len(stalls)} times, for up to {longest}"
        f"{alone + from_ns(stopped.max()) if stopped.any() else ''}; {figures.parts_and_largest}."
    )


CAUSE = Cause(id="host.steal", fixes=("host.routing",), claim=_claim, sentence=_sentence)
