"""The work that held threads while a request waited, back to when they were last idle."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from latfix.arrays import Ints
from latfix.profilers.drilldown.service_costs import Costs
from latfix.profilers.evidence.intervals import Intervals
from latfix.results.request_explanation import Holder, Others, Wait

#: Most holders that are listed individually.
MOST_LISTED = 8
#: A thread that is free so long after its last recorded work did something else: waking takes far less.
_UNRECORDED_NS = 1_000_000

Describe = Callable[[int, int], tuple[str, int, int, tuple[str, ...]]]


class Lanes:
    """All threads of one kind.

    :param ready: ``(m,)`` when work could have started.
    :param free: ``(m,)`` when its thread became free; the end of the previous work if ``None``.
    """

    def __init__(self, costs: Costs, ready: Ints, free: Ints | None = None) -> None:
        self.costs = costs
        #: By thread, its work in order of time: rows of the costs, start, end, and the position of the first work
        #: since the thread was last idle.
        self._lanes: list[tuple[Ints, Ints, Ints, Ints]] = []
        for thread in np.unique(costs.thread[costs.thread >= 0]):
            rows = np.flatnonzero((costs.thread == thread) & (costs.end > costs.start))
            rows = rows[np.argsort(costs.start[rows], kind="stable")]
            if not len(rows):
                continue
            ended = np.concatenate([costs.start[rows[:1]], costs.end[rows[:-1]]])
            released = ended if free is None else free[rows]
            # If the thread became free long after the last recorded work, unrecorded work ran between.
            fresh = (ready[rows] > released) | (released > ended + _UNRECORDED_NS)
            fresh[0] = True
            begun = np.maximum.accumulate(np.where(fresh, np.arange(len(rows)), 0))
            self._lanes.append((rows, costs.start[rows], costs.end[rows], begun))

    def wait(self, resource: str, arrival: int, begin: int, end: int, describe: Describe) -> Wait | None:
        """The wait from ``begin`` to ``end`` with its holders; ``None`` if it is empty.

        :param describe: by row and ``begin``: label, size, number of requests that overtook, facts.
        """
        if end <= begin:
            return None
        found, since = [], begin
        for lane, starts, ends, begun in self._lanes:
            first = int(np.searchsorted(ends, begin, side="right"))
            last = int(np.searchsorted(starts, end, side="left"))
            if last > first:
                start = int(begun[first])
                found.append(lane[start:last])
                since = min(since, int(starts[start]))
        rows = np.concatenate(found) if found else np.zeros(0, np.int64)
        costs = self.costs
        rows = rows[np.argsort(costs.start[rows], kind="stable")]
        low, high = np.maximum(costs.start[rows], begin), np.minimum(costs.end[rows], end)
        within = np.maximum(high - low, 0)
        covered = Intervals.merged(low, within).covered(np.array([begin]), np.array([end]))
        excess = costs.end[rows] - costs.start[rows] - costs.typical[rows]
        weight = within + np.maximum(excess, 0)
        listed = np.sort(np.argsort(-weight, kind="stable")[:MOST_LISTED])
        rest = np.setdiff1d(np.arange(len(rows)), listed)
        others = None
        if len(rest):
            others = Others(
                count=len(rest),
                held_ns=int((costs.end - costs.start)[rows[rest]].sum()),
                within_ns=int(within[rest].sum()),
                excess_ns=int(excess[rest].sum()),
                causes=costs.named(rows[rest]),
            )
        return Wait(
            resource=resource,
            at_ns=begin - arrival,
            duration_ns=end - begin,
            busy_since_ns=since - arrival,
            idle_ns=end - begin - int(covered[0]),
            holders=tuple(self._holder(int(rows[k]), int(within[k]), arrival, begin, describe) for k in listed),
            others=others,
        )

    def _holder(self, row: int, within: int, arrival: int, begin: int, describe: Describe) -> Holder:
        costs = self.costs
        label, size, overtook, facts = describe(row, begin)
        return Holder(
            label=label,
            thread=int(costs.thread[row]),
            size=size,
            at_ns=int(costs.start[row]) - arrival,
            held_ns=int(costs.end[row] - costs.start[row]),
            within_ns=within,
            typical_ns=int(costs.typical[row]),
            causes=costs.named(np.array([row])),
            overtook=overtook,
            facts=facts,
        )
