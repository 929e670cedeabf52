"""Blame through the queue: how much of each request's wait each cause of those ahead of it owns.

With service ``S(α) = reference + α · excess``, the wait of a request grows from what traffic alone makes it
wait (α = 0) to what it waited (α = 1). The integral of its derivative over α (Aumann and Shapley, Values of
Non-Atomic Games, 1974) divides the growth among causes: additive, and independent of their order.

In each cell of α the derivative at both ends is known exactly, and so is the growth. Where the derivative
changes once within the cell, the two fix where, and the integral is exact; for one first-come-first-served
worker without batching that is all there is, up to several changes in one cell.

With batches, several workers or priorities the wait also jumps where membership or order changes, and the
integral misses the jumps. Its entries are then scaled to the growth from α = 0 to 1, within a limit: what
made a request wait longer is also what let others be batched before it or overtake it. What is left after
that, and what the replay at α = 1 misses of the measured wait, is the closure error, left to ``unexplained``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from latfix.profilers.queue_replay import Policy, Served, serve

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_CELLS = 16
_CELLS_LARGE = 8
_LARGE = 30_000
_MINUTE_NS = 60e9
_MOST_SCALED = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Two queues in series: the prepare pool, then the workers.

    :param handed: ``(n,)`` when each request was handed over; ``prepared`` which were prepared at all.
    :param queued: which reached a batch; a subset of ``prepared``.
    :param prepare_extra: ``(n, k)`` prepare beyond the reference, by cause.
    :param batch_extra: ``(n, k)`` service of its batch beyond the reference, at the batch's head; else zero.
    :param window_column: the cause that the batch window counts to.
    :param length: ``(n,)`` of the inputs, for a policy by length.
    """

    handed: Floats
    prepared: Bools
    queued: Bools
    priority: Ints
    prepare: Policy
    workers: Policy
    prepare_extra: Floats
    batch_extra: Floats
    window_column: int
    length: Ints | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """Waits in the prepare pool and the queue, divided. All nanoseconds.

    :param traffic: ``(n,)`` what remains with everything at reference and in order of arrival.
    :param priority: ``(n,)`` what priorities add to or take from that.
    :param propagated: ``(n, k)`` by cause of what was ahead.
    :param overload: ``(n,)`` whether load over the surrounding minute reached capacity.
    """

    traffic: Floats
    priority: Floats
    propagated: Floats
    overload: Bools


def blame_waits(line: Line) -> Blame:
    """Divide every request's wait before service."""
    n, columns = line.prepare_extra.shape
    cells = _CELLS if n <= _LARGE else _CELLS_LARGE
    propagated = np.zeros((n, columns))
    wait, moves = _waits(line, 0.0)
    at_rest = wait
    in_order = _waits(replace(line, priority=np.zeros_like(line.priority)), 0.0)[0] if _classes(line) else wait
    for k in range(cells):
        later_wait, later_moves = _waits(line, (k + 1) / cells)
        propagated += _cell(later_wait - wait, moves, later_moves, 1.0 / cells)
        wait, moves = later_wait, later_moves
    propagated *= _scale(wait - at_rest, propagated.sum(axis=1))[:, None]
    return Blame(traffic=in_order, priority=at_rest - in_order, propagated=propagated, overload=_overload(line))


def _scale(grown: Floats, integral: Floats) -> Floats:
    """Per request, the factor that takes its entries' sum to the growth of its wait."""
    small = np.abs(integral) < 1_000.0  # under a microsecond the sum of large opposites decides nothing
    ratio = grown / np.where(small, 1.0, integral)
    return np.where(small, 1.0, np.clip(ratio, 0.0, _MOST_SCALED))


def _classes(line: Line) -> bool:
    return bool(line.queued.any()) and len(np.unique(line.priority[line.queued])) > 1


def _waits(line: Line, alpha: float) -> tuple[Floats, Floats]:
    """Every request's wait before prepare and in the queue, and its derivative by cause."""
    n, columns = line.prepare_extra.shape
    wait, moves = np.zeros(n), np.zeros((n, columns))
    ready, ready_moves = line.handed.copy(), np.zeros((n, columns))
    some = np.flatnonzero(line.prepared)
    pool = _serve(line.prepare, line, some, ready, ready_moves, line.prepare_extra, alpha, -1)
    wait[some] += pool.open - ready[some]
    moves[some] += pool.open_moves
    ready[some], ready_moves[some] = pool.end, pool.end_moves
    some = np.flatnonzero(line.queued)
    queue = _serve(line.workers, line, some, ready, ready_moves, line.batch_extra, alpha, line.window_column)
    waited = queue.open > ready[some]
    wait[some] += np.where(waited, queue.open - ready[some], 0.0)
    moves[some] += np.where(waited[:, None], queue.open_moves - ready_moves[some], 0.0)
    return wait, moves


def _serve(
    policy: Policy,
    line: Line,
    some: Ints,
    ready: Floats,
    ready_moves: Floats,
    extra: Floats,
    alpha: float,
    window_column: int,
) -> Served:
    # The prepare pool knows no priorities; only the workers' queue does.
    priority = line.priority[some] if policy is line.workers else np.zeros(len(some), np.int64)
    length = line.length[some] if line.length is not None else None
    return serve(policy, ready[some], ready_moves[some], extra[some], window_column, priority, alpha, length)


def _cell(grown: Floats, before: Floats, after: Floats, width: float) -> Floats:
    """The integral of the derivative over one cell, mixing its two ends so that it meets the growth."""
    low, high = before.sum(axis=1) * width, after.sum(axis=1) * width
    gap = low - high
    share = np.where(np.abs(gap) > 1.0, (grown - high) / np.where(np.abs(gap) > 1.0, gap, 1.0), 0.5)
    share = np.clip(share, 0.0, 1.0)[:, None]
    return np.asarray(width * (share * before + (1.0 - share) * after), dtype=np.float64)


def _overload(line: Line) -> Bools:
    """Whether arrivals over the minute around each request reached what reference service can do."""
    n = len(line.handed)
    if n < 2:
        return np.zeros(n, dtype=bool)
    size = np.arange(1, line.workers.max_batch + 1)
    rate = line.workers.workers * float(np.max(size / np.maximum(line.workers.reference[1:], 1.0)))
    pool = line.prepare.workers / max(float(line.prepare.reference[1]), 1.0)
    when = np.sort(line.handed)
    span = float(when[-1] - when[0])
    width = min(_MINUTE_NS, max(span, 1.0))
    center = np.clip(line.handed, when[0] + width / 2, max(when[-1] - width / 2, when[0] + width / 2))
    count = np.searchsorted(when, center + width / 2, "right") - np.searchsorted(when, center - width / 2, "left")
    return np.asarray(count / width >= min(rate, pool))
