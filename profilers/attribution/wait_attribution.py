"""Queue waits attributed to the causes that slowed the requests ahead.

With service ``S(α) = reference + α · excess``, a request's wait grows from the wait that traffic alone causes (α = 0)
to the measured wait (α = 1). The growth is divided among causes by the Aumann–Shapley value (Values of Non-Atomic
Games, 1974): additive, and independent of the causes' order.

With one worker that serves one request at a time, in order, a wait is piecewise linear in α. It is integrated from
its derivatives at both ends of cells of α, which is exact if the derivative changes at most once within a cell. A run
of some thousand requests has hundreds of cells, so two changes in one cell misplace only microseconds between causes.

A queue whose policy cannot be reconstructed is replayed as recorded (:mod:`latfix.queueing.recorded_batches`). That
is piecewise linear too; the effect of its order on waits is part of traffic.

With batches, several workers or priorities, a wait also jumps when membership or order changes, and no derivative
attributes a jump. The runner's policy is then replayed with the causes scaled in small steps, one cause after
another, and each step's growth belongs to its cause. Growth beyond what the cause adds to the whole busy cycle is a
jump, which all causes of the cycle share in proportion to their additions. The parts sum to the growth from α = 0 to
1. The difference between the replay at α = 1 and the measured wait is the closure error, part of ``unexplained``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.queueing.two_stage_queue import MINUTE_NS, Line, has_classes, in_lanes, moving_waits, waits_at

__all__ = ["MINUTE_NS", "Blame", "Line", "blame_waits", "capacity", "grew_for_good", "waits_at"]


#: Bounds on the cells of α, and the budget of requests × causes × cells.
_CELLS, _CELL_BUDGET = (16, 512), 6_000_000
#: Requests × causes × cells at a time; fits a core's cache.
_CELLS_AT_ONCE = 40_000
#: Requests replayed at a time. Bounds the memory.
_AT_ONCE = 2_000_000
#: Budget of replayed requests for a division by steps, vectorized in lanes and one by one; bounds on the steps.
_LANE_BUDGET, _SINGLE_BUDGET = 4_000_000, 600_000
_LANE_STEPS, _SINGLE_STEPS = (8, 48), (4, 48)
#: A backlog counts as growing until the end if its peak is within the last 1/50 of the requests.
_LAST = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """Waits in the prepare pool and the queue, divided. All nanoseconds.

    :param traffic: ``(n,)`` wait with all work at reference, in order of arrival.
    :param priority: ``(n,)`` change of that wait by priorities.
    :param propagated: ``(n, k)`` wait by the causes of the work ahead.
    :param overload: ``(n,)`` true if the backlog at reference kept growing.
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
    """True if a timer held batches open."""
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
    """True if waits are piecewise linear: one worker without batches, or batches as recorded."""
    single = line.workers.workers == 1 and line.workers.max_batch == 1
    pool = line.prepare.workers == 1 or not line.prepare_extra.any()
    return pool and (line.recorded is not None or (single and in_lanes(line)))


def _integrated(line: Line) -> Floats:
    """The division by derivatives, cell by cell."""
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
    """The integral of the derivative over each cell, its two ends mixed so that it equals the growth."""
    low, high = before.sum(axis=-1) * width, after.sum(axis=-1) * width
    gap = low - high
    share = np.where(np.abs(gap) > 1.0, (grown - high) / np.where(np.abs(gap) > 1.0, gap, 1.0), 0.5)
    share = np.clip(share, 0.0, 1.0)[..., None]
    return np.asarray(width * (share * before + (1.0 - share) * after), dtype=np.float64)


def _stepped(line: Line, at_rest: Floats) -> Floats:
    """The division by steps: causes are scaled up one after another, in an order that rotates and reverses."""
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
    # A jump is not due to the cause whose turn it was, but to all causes that shift the order of events.
    total = reach.sum(axis=1)
    divided += reach * (jumped / np.where(total > 0, total, 1.0))[:, None]
    return divided


def _reach(line: Line, steps: int) -> Floats:
    """``(n, k)``: the largest change of a wait by one step of a cause without a jump: its total in the busy cycle."""
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
    """``(k, k)``: the causes' factors, with one more cause at the end of the step in each row."""
    kinds = len(turn)
    rows = np.full((kinds, kinds), step / steps)
    for place, k in enumerate(turn):
        rows[place:, k] = (step + 1) / steps
    return rows


def _overload(line: Line, wait: Floats) -> Bools:
    """:func:`grew_for_good`, in order of the requests.

    :param wait: ``(n,)`` wait with all work at reference, in order of arrival.
    """
    # Who comes during a batch waits for its end: that alone is no backlog.
    wait = np.maximum(wait - line.workers.reference[-1], 0.0) if line.workers.max_batch > 1 else wait
    order = np.argsort(line.handed, kind="stable")
    result = np.zeros(len(order), dtype=bool)
    result[order] = grew_for_good(line.handed[order], wait[order], line.lasting)
    return result


def grew_for_good(when: Floats | Ints, waited: Floats | Ints, lasting: float) -> Bools:
    """``(n,)`` true for requests that waited, at reference, in a backlog that kept growing.

    A burst's backlog arises at once and is worked off. If a backlog grows for ``lasting``, the load was at or above
    capacity all that time. Half as long suffices if the backlog still grows when the record ends.

    :param when: ``(n,)`` ascending, when each request came to the queue; ``waited``: in it. Both in nanoseconds.
    """
    n = len(when)
    if n < 2:
        return np.zeros(n, dtype=bool)
    begins = waited <= 0
    begins[0] = True
    starts, cycle = np.flatnonzero(begins), np.cumsum(begins) - 1
    peak = np.maximum.reduceat(waited, starts)
    at_peak = np.flatnonzero(waited >= peak[cycle])
    last = np.zeros(len(starts), np.int64)
    last[cycle[at_peak]] = at_peak
    limit = np.where(last >= n - 1 - n // _LAST, lasting / 2, lasting)
    grew = (when[last] - when[starts] >= limit) & (peak > 0)
    return np.asarray(grew[cycle])


def capacity(line: Line) -> float:
    """Requests per nanosecond that prepare pool and workers can serve at reference."""
    size = np.arange(1, line.workers.max_batch + 1)
    rate = line.workers.workers * float(np.max(size / np.maximum(line.workers.reference[1:], 1.0)))
    return min(rate, line.prepare.workers / max(float(line.prepare.reference[1]), 1.0))
