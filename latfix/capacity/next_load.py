"""Which load to replay next: the loads asked for, then bisection around the largest load and around the knee."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from latfix.capacity.max_load import FAR
from latfix.capacity.measured_load import Cell
from latfix.capacity.objective import Target

Kind = Literal["grid", "largest", "knee", "repeat"]

#: Neighbors of the largest load, and of the knee, are brought this near to each other.
LARGEST_RATIO, KNEE_RATIO = 1.06, 1.2
#: Replays of one cell at most, while they are to decide it and while they are to show the spread.
_TO_DECIDE, _TO_SHOW = 4, 2
#: How far beyond the loads asked for the search goes.
_RAISE, _LOWEST, _HIGHEST = 1.5, 1 / 16, 64.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A load to replay.

    :param load: multiple of the recorded rate.
    :param urgency: smaller comes first.
    """

    load: float
    kind: Kind
    urgency: float


def is_far(cell: Cell, target: Target) -> bool:
    """True if a load is saturated, or surely several times beyond the limit."""
    return cell.saturated or (target.limit is not None and cell.percentile.lo > FAR * target.limit)


def ceiling(cells: Sequence[Cell], target: Target) -> float:
    """The lowest load of a setting that is past saturation; infinite where none is."""
    return min((cell.load for cell in cells if is_far(cell, target)), default=math.inf)


def propose(cells: Sequence[Cell], target: Target, *, grid: Sequence[float]) -> Proposal | None:
    """The next load of one setting after those of the grid; ``None`` when nothing is left to find out.

    First the objective's crossing is closed in: lower loads where none meets it, higher ones where none misses it,
    otherwise the middle (on a logarithm) of the nearest loads on either side; a load that the data cannot decide is
    replayed again. Then the knee, in the same way. In the end the loads that decide are repeated.

    :param cells: what was measured of it, at least one.
    :param grid: the loads asked for; the search stays within 1/16 of the lowest and 64 times the highest.
        For the knee, within half of the lowest and 4 times the highest.
    """
    ordered = sorted(cells, key=lambda cell: cell.load)
    low, high = min(grid) * _LOWEST, max(grid) * _HIGHEST
    found = _largest(ordered, target.limit, low, high) if target.limit is not None else None
    return found or _knee(ordered, target, min(grid) / 2, max(grid) * 4) or _repeat(ordered, target)


def _meets(cell: Cell) -> bool | None:
    return cell.decision.meets if cell.decision is not None else None


def _largest(cells: Sequence[Cell], limit: float, low: float, high: float) -> Proposal | None:
    met = [cell for cell in cells if _meets(cell)]
    top = met[-1] if met else None
    below = [cell for cell in cells if _meets(cell) is False and top is not None and cell.load < top.load]
    contradicting = [cell for cell in below if len(cell.runs) < _TO_DECIDE]
    if contradicting:
        return Proposal(load=contradicting[0].load, kind="largest", urgency=0.0)
    over = [cell for cell in cells if _meets(cell) is False and (top is None or cell.load > top.load)]
    unsure = [cell for cell in cells if _meets(cell) is None]
    between = [
        cell for cell in unsure if (top is None or cell.load > top.load) and (not over or cell.load < over[0].load)
    ]
    if top is None and not between:
        lower = cells[0].load / 2
        return Proposal(load=lower, kind="largest", urgency=0.5) if lower >= low else None
    if not over and not between:
        assert top is not None
        higher = top.load * _RAISE
        return Proposal(load=higher, kind="largest", urgency=0.5) if higher <= high else None
    lowest = low if top is not None or between[0].percentile.value > limit else math.inf
    return _narrowed(top, over[0] if over else None, between, lowest, high)


def _narrowed(
    top: Cell | None, over: Cell | None, between: Sequence[Cell], low: float, high: float
) -> Proposal | None:
    """Close in on the crossing between ``top``, which meets the objective, and ``over``, which misses it.

    :param low: the lowest load to try; infinite where a lower one than those that are undecided would not help.
    """
    again = [cell for cell in between if len(cell.runs) < _TO_DECIDE]
    first = between[0] if between else over
    last = between[-1] if between else top
    assert first is not None and last is not None
    # The sides of what is undecided come first: they narrow the interval, where a repeat may only confirm it.
    sides: list[tuple[float, float]] = []
    if top is None:
        if first.load / 2 >= low:
            sides.append((2.0, first.load / 2))
    elif first.load > LARGEST_RATIO * top.load:
        sides.append((first.load / top.load, math.sqrt(first.load * top.load)))
    if over is None:
        if last.load * _RAISE <= high:
            sides.append((_RAISE, last.load * _RAISE))
    elif between and over.load > LARGEST_RATIO * last.load:
        sides.append((over.load / last.load, math.sqrt(over.load * last.load)))
    if sides and (not again or max(sides)[0] > _RAISE * 0.999 or len(again[0].runs) >= 2):
        ratio, load = max(sides)
        return Proposal(load=load, kind="largest", urgency=1.0 / ratio)
    if again:
        fewest = min(again, key=lambda cell: len(cell.runs))
        return Proposal(load=fewest.load, kind="largest", urgency=0.8)
    return None


def _knee(cells: Sequence[Cell], target: Target, low: float, high: float) -> Proposal | None:
    usable = [cell for cell in cells if cell.power > 0]
    if not usable:
        return None
    best = max(range(len(usable)), key=lambda k: usable[k].power)
    if best == len(usable) - 1 and not is_far(usable[best], target) and usable[best] is cells[-1]:
        higher = usable[best].load * _RAISE
        return Proposal(load=higher, kind="knee", urgency=0.5) if higher <= high else None
    if best == 0:
        lower = usable[0].load / 2
        return Proposal(load=lower, kind="knee", urgency=0.5) if lower >= low else None
    gaps = [(usable[k + 1].load / usable[k].load, k) for k in (best - 1, best) if k + 1 < len(usable)]
    ratio, k = max(gaps)
    if ratio <= KNEE_RATIO:
        return None
    return Proposal(load=math.sqrt(usable[k].load * usable[k + 1].load), kind="knee", urgency=1.0 / ratio)


def _repeat(cells: Sequence[Cell], target: Target) -> Proposal | None:
    """A second replay of the loads that the answers rest on, those replayed least first."""
    resting = [cell for cell in cells if not is_far(cell, target)] or list(cells)
    best = max(resting, key=lambda cell: cell.power)
    met = [cell for cell in resting if _meets(cell)]
    missed = [cell for cell in resting if _meets(cell) is False]
    chosen = {id(cell): cell for cell in (*met[-1:], *missed[:1], best)}.values()
    fewest = min(chosen, key=lambda cell: len(cell.runs))
    if len(fewest.runs) >= _TO_SHOW:
        return None
    return Proposal(load=fewest.load, kind="repeat", urgency=float(len(fewest.runs)))
