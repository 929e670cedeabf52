"""How much load a service bears: the largest load that meets an objective, the knee, and the front over settings.

All of it is computed from *cells* (:mod:`latfix.capacity.measured_load`). Nothing here knows of clocks or processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from latfix.capacity.measured_load import Cell
from latfix.capacity.objective import Target
from latfix.files.json_documents import Document
from latfix.statistics.change_points import rising_level
from latfix.statistics.distributions import normal_quantile

Floats = npt.NDArray[np.float64]
Status = Literal["found", "above", "below", "undecided"]
#: An interval; an end that was not measured is ``None``.
OpenInterval = tuple[float | None, float | None]

#: The largest load is found where its interval's ends are within this factor.
FOUND_RATIO = 1.25
#: A load is far beyond the objective where its percentile surely exceeds the limit this many times.
FAR = 4.0
_REPLICATES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestLoad(Document):
    """The largest load that meets the objective, in requests a second.

    :param status: which side of the loads it lies on.
    :param rps: where the percentile crosses the limit, interpolated; ``None`` where it does not.
    :param ci95_rps: the largest load that surely meets it, with none below that surely misses it, and the smallest
        that surely misses it; ``None``: none does.
    :param reason: one sentence.
    """

    status: Status
    rps: float | None
    ci95_rps: OpenInterval
    reason: str = ""

    @property
    def lo(self) -> float | None:
        """The largest load that surely meets the objective."""
        return self.ci95_rps[0]

    @property
    def hi(self) -> float | None:
        """The smallest load that surely misses it."""
        return self.ci95_rps[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee(Document):
    """The load beyond which the percentile grows faster than the load, in requests a second.

    :param bracketed: ``True`` where lower and higher loads were measured; otherwise it may lie beyond them.
    """

    rps: float
    ci95_rps: tuple[float, float]
    bracketed: bool


def largest_load(cells: Sequence[Cell], target: Target) -> LargestLoad | None:
    """The largest load that meets the objective; ``None`` where there is no objective.

    The interval runs from the largest load that surely meets it to the smallest that surely misses it: what lies
    between was not measured, or is undecided. It is *found* where these are within a factor of 1.25.

    :param cells: of one setting.
    """
    if target.limit is None or not cells:
        return None
    ordered = sorted(cells, key=lambda cell: cell.load)
    meets = [cell.decision.meets if cell.decision is not None else None for cell in ordered]
    missed = next((k for k, answer in enumerate(meets) if answer is False), None)
    before = meets if missed is None else meets[:missed]
    sure = next((k for k in reversed(range(len(before))) if before[k]), None)
    lo = ordered[sure].offered if sure is not None else None
    hi = ordered[missed].offered if missed is not None else None
    crossing = _crossing(ordered, target.limit, lo, hi)
    status, reason = _told(ordered, meets, sure, missed)
    rps = crossing if lo is not None else None
    return LargestLoad(status=status, rps=rps, ci95_rps=(lo, hi), reason=reason)


def _told(
    cells: Sequence[Cell], meets: Sequence[bool | None], sure: int | None, missed: int | None
) -> tuple[Status, str]:
    above = missed is not None and any(meets[missed + 1 :])
    if above:
        assert missed is not None
        return "undecided", (
            f"{_rate(cells[missed])} misses it, though a higher load meets it: the replays contradict each other"
        )
    if missed is None and sure == len(cells) - 1:
        return "above", f"the highest load that was replayed, {_rate(cells[-1])}, meets it; the limit lies above"
    if sure is None and missed == 0:
        return "below", f"the lowest load that was replayed, {_rate(cells[0])}, misses it"
    first = 0 if sure is None else sure + 1
    between = list(range(first, len(cells) if missed is None else missed))
    unsure = [cells[k] for k in between if meets[k] is None]
    if sure is None:
        return "undecided", f"no load surely meets it; {_unsure(cells[first])}"
    if missed is None:
        return "undecided", f"{_rate(cells[sure])} meets it, none misses it; {_unsure(unsure[0])}"
    if cells[missed].offered <= FOUND_RATIO * cells[sure].offered:
        return "found", f"{_rate(cells[sure])} meets it and {_rate(cells[missed])} misses it"
    why = _unsure(unsure[0]) if unsure else "nothing was replayed between them"
    return "undecided", f"{_rate(cells[sure])} meets it and {_rate(cells[missed])} misses it; {why}"


def _unsure(cell: Cell) -> str:
    if cell.saturated:
        return f"at {_rate(cell)} the backlog grew to the end of the replay, and the limit was not reached yet"
    return f"at {_rate(cell)} the data cannot tell"


def _rate(cell: Cell) -> str:
    return f"{cell.offered:.3g}/s"


def _crossing(cells: Sequence[Cell], limit: float, lo: float | None, hi: float | None) -> float | None:
    """Where the percentile, made to grow with load, crosses the limit: straight between cells, on logarithms."""
    value = np.array([min(cell.percentile.value, 1e6 * limit) for cell in cells])
    rate = np.log([cell.offered for cell in cells])
    level = rising_level(np.log(np.maximum(value, 1e-12)))
    goal = math.log(limit)
    if level[0] > goal:
        crossing = float(rate[0])
    elif level[-1] <= goal:
        crossing = float(rate[-1])
    else:
        k = int(np.argmax(level > goal))
        open_end = cells[k].saturated or not math.isfinite(cells[k].percentile.value)
        share = 0.5 if open_end else (goal - level[k - 1]) / (level[k] - level[k - 1])
        crossing = float(rate[k - 1] + share * (rate[k] - rate[k - 1]))
    found = math.exp(crossing)
    return min(max(found, lo if lo is not None else found), hi if hi is not None else found)


def knee(cells: Sequence[Cell], *, seed: int) -> Knee | None:
    """The load at which throughput over the percentile is largest: from there on the percentile grows faster.

    Kleinrock's power (1979), with the objective's percentile as the latency. Where power is largest, one percent
    more load brings one percent more latency; beyond, more than that. The interval is by resampling: every cell's
    percentile is drawn from its own interval, and the knee taken anew; it reaches to the middle (on a logarithm)
    between the outermost of these cells and their neighbors, because a knee can lie between two measured loads.

    :param cells: of one setting; ``None`` comes back for fewer than three, or where no latency is finite.
    """
    ordered = sorted(cells, key=lambda cell: cell.load)
    usable = [cell for cell in ordered if cell.power > 0]
    if len(usable) < 3:
        return None
    rng = np.random.default_rng(seed)
    power = np.log([cell.power for cell in usable])
    best = int(np.argmax(power))
    drawn = np.stack([_drawn(cell, rng) for cell in usable], axis=1)
    picks = np.argmax(np.log([cell.achieved for cell in usable]) - drawn, axis=1)
    low, high = (int(pick) for pick in np.quantile(picks, [0.025, 0.975], method="nearest"))
    low, high = min(low, best), max(high, best)
    rate = [cell.offered for cell in usable]
    return Knee(
        rps=rate[best],
        ci95_rps=(
            math.sqrt(rate[low] * rate[low - 1]) if low > 0 else rate[0],
            math.sqrt(rate[high] * rate[high + 1]) if high + 1 < len(rate) else rate[-1],
        ),
        bracketed=0 < best < len(usable) - 1,
    )


def _drawn(cell: Cell, rng: np.random.Generator) -> Floats:
    """Logarithms of the percentile, drawn from its interval: normal on either side of the value."""
    value, lo, hi = cell.percentile.value, cell.percentile.lo, cell.percentile.hi
    z = rng.standard_normal(_REPLICATES) / normal_quantile(0.95)
    down = math.log(value / lo) if lo > 0 else math.log(2.0)
    up = math.log(hi / value) if math.isfinite(hi) else max(2 * down, math.log(1.5))
    return np.asarray(math.log(value) + np.where(z < 0, z * down, z * up), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint(Document):
    """A point than which no other has both more throughput and a lower percentile.

    :param certain: no other one is as good in both, given the intervals.
    """

    setting: int
    load: float
    achieved_rps: float
    percentile_ms: float | None
    certain: bool


def pareto(cells: Sequence[tuple[int, Cell]]) -> list[ParetoPoint]:
    """Cells that no other one beats in both throughput and percentile, by rising throughput.

    Saturated cells are left out: their latency depends on how long the replay lasted.

    :param cells: with the number of their setting.
    """
    there = [
        (setting, cell) for setting, cell in cells if not cell.saturated and math.isfinite(cell.percentile.value)
    ]
    front = []
    for setting, cell in there:
        others = [other for _, other in there if other is not cell]
        if any(_beats(other, cell) for other in others):
            continue
        rivals = (o for o in others if o.achieved >= cell.achieved * 0.98)
        certain = all(rival.percentile.lo > cell.percentile.hi for rival in rivals)
        front.append(
            ParetoPoint(
                setting=setting,
                load=cell.load,
                achieved_rps=cell.achieved,
                percentile_ms=cell.percentile.value * 1e3,
                certain=certain,
            )
        )
    return sorted(front, key=lambda point: point.achieved_rps)


def _beats(one: Cell, other: Cell) -> bool:
    no_worse = one.achieved >= other.achieved and one.percentile.value <= other.percentile.value
    return no_worse and (one.achieved > other.achieved or one.percentile.value < other.percentile.value)


def at_least(largest: Sequence[LargestLoad], rps: float) -> bool | None:
    """True if some setting bears so many requests a second; ``None`` where undecided."""
    if any(one.lo is not None and one.lo >= rps * (1 - 1e-3) for one in largest):
        return True
    below = [one.hi is not None and one.hi <= rps * (1 + 1e-3) for one in largest]
    return False if below and all(below) else None
