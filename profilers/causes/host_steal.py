"""``host.steal``: the hypervisor ran something else on the core."""

from __future__ import annotations

import numpy as np

from latfix.figures import from_ns, milliseconds
from latfix.profilers.cause import Cause, Claim, Left, Parts, TailFigures, own_and_behind
from latfix.profilers.evidence import Evidence

#: The counter moves in ticks of this size; a smaller growth says nothing about one request.
_TICK_NS = 10_000_000


def _claim(evidence: Evidence, left: Left) -> Claim:
    times, values = evidence.series("host.steal_ns")
    if len(times) < 2:
        return Claim()
    units = {}
    for name in ("prepare", "collate", "compute", "finish"):
        unit = evidence.units[name]
        before = np.maximum(np.searchsorted(times, unit.start, side="right") - 1, 0)
        after = np.minimum(np.searchsorted(times, unit.end, side="left"), len(times) - 1)
        grown = np.where(values[after] - values[before] >= _TICK_NS, values[after] - values[before], 0)
        # Its share of the samples' step, and no more than the unit took beyond what its inputs need.
        share = (unit.end - unit.start) / np.maximum(times[after] - times[before], 1)
        stolen = np.rint(grown * np.minimum(share, 1.0)).astype(np.int64)
        units[name] = Parts(cpu=np.minimum(stolen, left.cpu_excess(name)))
    return Claim(units=units)


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    times, values = evidence.series("host.steal_ns")
    total = float(values[-1] - values[0]) if len(times) else 0.0
    return (
        f"the hypervisor took {from_ns(total)} from this machine's cores; at most {milliseconds(figures.largest_ms)} "
        f"of one request, and {own_and_behind(figures)}."
    )


CAUSE = Cause(
    id="host.steal",
    evidence_class="counted",
    fixes=(),
    happened="the hypervisor taking the core",
    behind="one whose core the hypervisor took",
    claim=_claim,
    sentence=_sentence,
)
