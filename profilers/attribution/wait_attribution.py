"""Blame through the queue: how much of each request's wait each cause of those ahead of it owns.

With service ``S(α) = reference + α · excess``, the wait of a request grows from what traffic alone makes it
wait (α = 0) to what it waited (α = 1). The growth is divided among causes as Aumann and Shapley do (Values of
Non-Atomic Games, 1974): additive, and independent of the causes' order.

Behind one worker that serves one request at a time, in order, a wait is piecewise linear in α. It is integrated
from its derivatives at both ends of cells of α, and exactly so where the derivative changes at most once within a
cell. A run of some thousand requests is given hundreds of cells; what two changes in one cell then misplace between
causes is microseconds where pauses are milliseconds.

A queue whose policy cannot be told afterwards is replayed as it was recorded
(:mod:`latfix.queueing.recorded_batches`); that is piecewise linear too. What its order did to a wait is then in the
part of traffic.

With batches, several workers or priorities the wait also jumps, where membership or order changes, and no
derivative tells whose doing that is. There the runner's policy is replayed with the stages scaled in small
steps, one cause after the other in turn, and what each step adds is that cause's. More than the cause adds to the
whole busy cycle is a jump, and goes to all causes of the cycle by how much each adds. The parts sum to the growth
from α = 0 to 1. What the replay at α = 1 misses of the measured wait is the closure error, left to
``unexplained``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.queueing.two_stage_queue import MINUTE_NS, Line, has_classes, in_lanes, moving_waits, waits_at

__all__ = ["MINUTE_NS", "Blame", "Line", "blame_waits", "capacity", "waits_at"]


#: Cells of α at least and at most, and the requests times causes that integrating over them may cost.
_CELLS, _CELL_BUDGET = (16, 512), 6_000_000
#: Requests times causes times cells at a time: as many as a core's cache holds.
_CELLS_AT_ONCE = 40_000
#: Replayed requests at a time, which bounds the memory of a replay.
_AT_ONCE = 2_000_000
#: Replayed requests that a division by steps may cost, in lanes and one by one; steps at least and at most.
_LANE_BUDGET, _SINGLE_BUDGET = 4_000_000, 600_000
_LANE_STEPS, _SINGLE_STEPS = (8, 48), (4, 48)
#: A backlog grew until the end if it was largest within this part of the requests before it.
_LAST = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """Waits in the prepare pool and the queue, divided. All nanoseconds.

    :param traffic: ``(n,)`` what remains with everything at reference and in order of arrival.
    :param priority: ``(n,)`` what priorities add to or take from that.
    :param propagated: ``(n, k)`` by cause of what was ahead.
    :param overload: ``(n,)`` whether the backlog that it met at reference was one that kept growing.
    """

    traffic: Floats
    priority: Floats
    propagated: Floats
    overload: Bools


def blame_waits(line: Line) -> Blame:
    """Divide every request's wait before service."""
    n, columns = line.prepare_extra.shape
    active = _active(line)
    small = _only(line, active)
    nothing = np.zeros((1, len(active)))
    at_rest = waits_at(small, nothing)[0]
    in_order = at_rest
    if has_classes(line) and line.recorded is None:
        in_order = waits_at(replace(small, priority=np.zeros_like(line.priority)), nothing)[0]
    divided = _integrated(small) if _smooth(line) else _stepped(small, at_rest)
    propagated = np.zeros((n, columns))
    propagated[:, active] = divided
    return Blame(
        traffic=in_order, priority=at_rest - in_order, propagated=propagated, overload=_overload(line, in_order)
    )


def _active(line: Line) -> Ints:
    some = np.asarray(line.prepare_extra.any(axis=0) | line.batch_extra.any(axis=0), dtype=bool)
    if line.window_column >= 0:
        some[line.window_column] |= _held(line)
    return np.flatnonzero(some)


def _held(line: Line) -> bool:
    """Whether a timer held batches open."""
    return line.workers.window > 0 if line.recorded is None else bool(line.recorded.hold.any())


def _only(line: Line, columns: Ints) -> Line:
    where = np.flatnonzero(columns == line.window_column)
    return replace(
        line,
        prepare_extra=np.ascontiguousarray(line.prepare_extra[:, columns]),
        batch_extra=np.ascontiguousarray(line.batch_extra[:, columns]),
        window_column=int(where[0]) if len(where) else -1,
    )


def _smooth(line: Line) -> bool:
    """Whether waits are piecewise linear: one by one behind one worker, or in batches that stay as they were."""
    single = line.workers.workers == 1 and line.workers.max_batch == 1
    pool = line.prepare.workers == 1 or not line.prepare_extra.any()
    return pool and (line.recorded is not None or (single and in_lanes(line)))


def _integrated(line: Line) -> Floats:
    """By derivatives, cell by cell."""
    divided = np.zeros(line.prepare_extra.shape)
    cells = int(np.clip(_CELL_BUDGET / max(divided.size, 1), *_CELLS))
    together = max(1, _CELLS_AT_ONCE // max(divided.size, 1))
    alphas = np.arange(1, cells + 1) / cells
    wait, moves = moving_waits(line, np.zeros(1))
    for first in range(0, cells, together):
        later_wait, later_moves = moving_waits(line, alphas[first : first + together])
        waits, all_moves = np.concatenate([wait, later_wait]), np.concatenate([moves, later_moves])
        for cell in _cells(np.diff(waits, axis=0), all_moves[:-1], all_moves[1:], 1.0 / cells):
            divided += cell
        wait, moves = later_wait[-1:], later_moves[-1:]
    return divided


def _cells(grown: Floats, before: Floats, after: Floats, width: float) -> Floats:
    """The integral of the derivative over each cell, mixing its two ends so that it meets the growth."""
    low, high = before.sum(axis=-1) * width, after.sum(axis=-1) * width
    gap = low - high
    share = np.where(np.abs(gap) > 1.0, (grown - high) / np.where(np.abs(gap) > 1.0, gap, 1.0), 0.5)
    share = np.clip(share, 0.0, 1.0)[..., None]
    return np.asarray(width * (share * before + (1.0 - share) * after), dtype=np.float64)


def _stepped(line: Line, at_rest: Floats) -> Floats:
    """By steps: one cause after the other is brought nearer to what it was, in an order that rotates and turns."""
    n, kinds = line.prepare_extra.shape
    divided = np.zeros((n, kinds))
    if not kinds or not n:
        return divided
    budget, bounds = (_LANE_BUDGET, _LANE_STEPS) if in_lanes(line) else (_SINGLE_BUDGET, _SINGLE_STEPS)
    steps = int(np.clip(budget / (n * kinds), *bounds))
    reach = _reach(line, steps)
    jumped: Floats = np.zeros(n)
    wait, together = at_rest, max(1, _AT_ONCE // (n * kinds))
    for first in range(0, steps, together):
        some = range(first, min(first + together, steps))
        turns = [_turn(step, kinds) for step in some]
        waits = waits_at(
            line, np.concatenate([_scales(step, steps, turn) for step, turn in zip(some, turns, strict=True)])
        )
        grown = np.diff(waits, axis=0, prepend=wait[None])
        for turn, of_turn in zip(turns, grown.reshape(len(turns), kinds, n), strict=True):
            smooth = np.clip(of_turn.T, -reach[:, turn], reach[:, turn])
            divided[:, turn] += smooth
            jumped += np.asarray(of_turn.sum(axis=0) - smooth.sum(axis=1), dtype=np.float64)
        wait = waits[-1]
    # Whichever cause's turn it was: a jump is brought about by all that moves what comes before what.
    total = reach.sum(axis=1)
    divided += reach * (jumped / np.where(total > 0, total, 1.0))[:, None]
    return divided


def _reach(line: Line, steps: int) -> Floats:
    """``(n, k)``: how far one step of a cause can move a wait without a jump: by all that it adds to a busy cycle."""
    n, kinds = line.prepare_extra.shape
    extra = np.abs(line.prepare_extra) + np.abs(line.batch_extra)
    cycle = np.zeros(n, np.int64)
    if line.ended is not None and n:
        order = np.argsort(line.handed, kind="stable")
        past = np.maximum.accumulate(line.ended[order])
        starts = np.concatenate([[False], past[:-1] <= line.handed[order][1:]])
        cycle[order] = np.cumsum(starts)
    total: Floats = np.stack([np.bincount(cycle, weights=extra[:, k]) for k in range(kinds)], axis=1)
    if line.window_column >= 0:
        held = line.workers.window if line.recorded is None else float(line.recorded.hold.max(initial=0.0))
        total[:, line.window_column] += held
    return np.asarray(total[cycle] / steps, dtype=np.float64)


def _turn(step: int, kinds: int) -> Ints:
    """The order of causes in a step."""
    turn = np.roll(np.arange(kinds), -step)
    return turn if step % 2 == 0 else turn[::-1]


def _scales(step: int, steps: int, turn: Ints) -> Floats:
    """``(k, k)``: the causes' factors, one cause after the other brought to the end of the step."""
    kinds = len(turn)
    rows = np.full((kinds, kinds), step / steps)
    for place, k in enumerate(turn):
        rows[place:, k] = (step + 1) / steps
    return rows


def _overload(line: Line, wait: Floats) -> Bools:
    """Whether the backlog in which each request waited at reference grew for good.

    A burst's backlog is there at once and is worked off. One that grows for as long as ``line.lasting`` is no
    moment's: load was at or above what reference service can do all the while. Of one that still grows where the
    record ends nobody saw the end: half as long tells.

    :param wait: ``(n,)`` with everything at reference and in order of arrival.
    """
    n = len(line.handed)
    if n < 2:
        return np.zeros(n, dtype=bool)
    order = np.argsort(line.handed, kind="stable")
    when, waited = line.handed[order], wait[order]
    starts = np.flatnonzero(np.concatenate([[True], waited[1:] <= 0.0]))
    cycle = np.cumsum(np.concatenate([[1], waited[1:] <= 0.0])) - 1
    peak = np.maximum.reduceat(waited, starts)
    at_peak = np.flatnonzero(waited >= peak[cycle])
    last = np.zeros(len(starts), np.int64)
    last[cycle[at_peak]] = at_peak
    tells = np.where(last >= n - 1 - n // _LAST, line.lasting / 2, line.lasting)
    grew = (when[last] - when[starts] >= tells) & (peak > 0)
    result = np.zeros(n, dtype=bool)
    result[order] = grew[cycle]
    return result


def capacity(line: Line) -> float:
    """Requests a nanosecond that prepare pool and workers can serve at reference."""
    size = np.arange(1, line.workers.max_batch + 1)
    rate = line.workers.workers * float(np.max(size / np.maximum(line.workers.reference[1:], 1.0)))
    return min(rate, line.prepare.workers / max(float(line.prepare.reference[1]), 1.0))
