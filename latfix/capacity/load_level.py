"""Cells of a sweep: one setting at one load, with all of its replays together, and how much replays differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from latfix.capacity.load_point import LoadPoint
from latfix.capacity.objective import Decision, Percentile, Target, decide, percentile_of
from latfix.statistics.distributions import normal_quantile, student_t

#: Before any repeat, replays of one point are taken to differ by as much, and this counts as so many repeats:
#: otherwise a service that was replayed once would seem to be known exactly, and one wild pair not at all.
USUAL_SPREAD, _USUAL_FREEDOM = 1.1, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One setting at one load.

    :param load: multiple of the recorded rate.
    :param offered: arrivals a second, and ``achieved`` requests that ended ``ok`` a second; means over the replays.
    :param percentile: the objective's, in seconds, over all replays together, lost requests slower than any.
    :param runs: the same of each replay alone.
    :param decision: whether the objective is met; ``None`` where there is none.
    :param saturated: the backlog grew for good in at least half of the replays.
    :param enough: the replays together hold enough slow requests for the percentile.
    """

    load: float
    offered: float
    achieved: float
    percentile: Percentile
    runs: tuple[float, ...]
    decision: Decision | None
    saturated: bool
    enough: bool

    @property
    def power(self) -> float:
        """Throughput over latency (Kleinrock, 1979), with the objective's percentile; 0 where that is infinite."""
        value = self.percentile.value
        return self.achieved / value if math.isfinite(value) and value > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How much replays of the same cell differ beyond what their requests explain.

    :param ratio: one standard deviation of a replay's percentile as a factor: 1.1 is ten percent up or down.
        It begins at :data:`USUAL_SPREAD`, which counts as much as four repeats.
    :param freedom: repeats beyond the first, over all cells.
    :param largest: the largest ratio of two replays of one cell.
    """

    ratio: float
    freedom: int
    largest: float | None

    def factor(self, repeats: int) -> float:
        """By how much the mean of so many replays may be off, at 95 %."""
        quantile = student_t(0.95, self.freedom + _USUAL_FREEDOM)
        return math.exp(quantile * math.log(self.ratio) / math.sqrt(max(repeats, 1)))

    def to_json(self) -> dict[str, Any]:
        """``{"run_to_run_ratio": …, "repeats": …, "largest_ratio": …}``."""
        return {"run_to_run_ratio": self.ratio, "repeats": self.freedom, "largest_ratio": self.largest}


def cell_of(load: float, points: Sequence[LoadPoint], target: Target) -> Cell:
    """All replays of one setting at one load; at least one."""
    series = [point.latency for point in points]
    saturated = 2 * sum(point.grew for point in points) >= len(points)
    return Cell(
        load=load,
        offered=float(np.mean([point.offered for point in points])),
        achieved=float(np.mean([point.achieved for point in points])),
        percentile=_followed(points, target),
        runs=tuple(_followed([point], target).value for point in points),
        decision=_decision(points, target, saturated=saturated),
        saturated=saturated,
        enough=target.enough(sum(len(part) for part in series)),
    )


def _decision(points: Sequence[LoadPoint], target: Target, *, saturated: bool) -> Decision | None:
    """A backlog that grows for good only gets further past the limit, and gets there if it is not yet.

    Where the limit is not yet passed, the load is missed if more work came than could be done; if not, the growth
    is the recording's own (it ends with a burst), and nothing is decided. A saturated load never meets.
    """
    if target.limit is None:
        return None
    decision = decide([point.latency for point in points], [point.age for point in points], target)
    if not saturated:
        return decision
    hopeless = decision.share > target.allowed or min(point.demand for point in points) > 1
    return replace(decision, meets=False if hopeless else None)


def _followed(points: Sequence[LoadPoint], target: Target) -> Percentile:
    """The percentile; of a replay that was ended early, at least, from the ages of what was in flight."""
    if not any(point.cut for point in points):
        return percentile_of([point.latency for point in points], target.percentile)
    parts = [np.where(np.isfinite(p.latency), p.latency, np.where(p.age >= 0, p.age, math.inf)) for p in points]
    least = percentile_of(parts, target.percentile)
    return replace(least, hi=math.inf)


def run_spread(cells: Sequence[Cell]) -> Spread:
    """Variance of the logarithm between replays of a cell, pooled, less what their requests explain.

    Saturated cells are left out: how far a backlog got says nothing of a steady service.
    """
    total, explained, freedom, largest = 0.0, 0.0, 0, None
    z = normal_quantile(0.95)
    for cell in cells:
        values = [value for value in cell.runs if math.isfinite(value) and value > 0]
        if cell.saturated or len(values) < 2:
            continue
        logs = np.log(values)
        total += float(((logs - logs.mean()) ** 2).sum())
        freedom += len(values) - 1
        largest = max(largest or 1.0, max(values) / min(values))
        lo, hi = cell.percentile.lo, cell.percentile.hi
        half = math.log(hi / lo) / 2 if 0 < lo <= hi < math.inf else math.inf
        explained += (len(values) - 1) * min((half / z) ** 2 * len(values), float(logs.var(ddof=1)))
    beyond = max(0.0, total - explained) + _USUAL_FREEDOM * math.log(USUAL_SPREAD) ** 2
    ratio = math.exp(math.sqrt(beyond / (freedom + _USUAL_FREEDOM)))
    return Spread(ratio=ratio, freedom=freedom, largest=largest)


def with_spread(cells: Sequence[Cell], spread: Spread, target: Target) -> list[Cell]:
    """Cells whose intervals and decisions allow for the spread between replays as well."""
    return [_with_spread(cell, spread, target) for cell in cells]


def _with_spread(cell: Cell, spread: Spread, target: Target) -> Cell:
    factor = math.log(spread.factor(len(cell.runs)))
    value, lo, hi = cell.percentile.value, cell.percentile.lo, cell.percentile.hi
    if factor <= 0 or not (math.isfinite(value) and value > 0 and lo > 0):
        return cell
    wider = Percentile(
        value=value,
        lo=value * math.exp(-math.hypot(math.log(value / lo), factor)),
        hi=value * math.exp(math.hypot(math.log(hi / value), factor)) if math.isfinite(hi) else hi,
    )
    decision = cell.decision
    if decision is not None and target.limit is not None:
        unsure = (decision.meets is True and math.isfinite(wider.hi) and wider.hi > target.limit) or (
            decision.meets is False and not cell.saturated and wider.lo <= target.limit
        )
        decision = replace(decision, meets=None) if unsure else decision
    return replace(cell, percentile=wider, decision=decision)
