"""Waits in the queue with each cause's part of service scaled: one replay for each row of factors.

Policies that lanes support (:mod:`latfix.queueing.replay_lanes`) are replayed many at once; recorded batches
(:mod:`latfix.queueing.recorded_batches`) and other policies (:mod:`latfix.queueing.start_derivatives`) one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.queueing.queue_simulator import Policy
from latfix.queueing.recorded_batches import Recorded
from latfix.queueing.replay_lanes import Lanes, service_starts
from latfix.queueing.start_derivatives import Served, serve_each

MINUTE_NS = 60e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Two queues in series: the prepare pool, then the workers.

    :param handed: ``(n,)`` when each request was handed over; ``prepared`` which were prepared at all.
    :param queued: which reached a batch; a subset of ``prepared``.
    :param prepare_extra: ``(n, k)`` prepare beyond the reference, by cause.
    :param batch_extra: ``(n, k)`` service of its batch beyond the reference, at the batch's head; else zero.
    :param window_column: the cause to which the batch window counts.
    :param ended: ``(n,)`` when the request's batch released its worker, as measured, which shows where the queue ran
        empty; ``None`` if unknown.
    :param length: ``(n,)`` lengths of the inputs, for a policy by length.
    :param lasting: nanoseconds from which on a growing backlog is an overload instead of a burst.
    :param recorded: recorded batches to replay, in place of the workers' policy.
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
    ended: Floats | None = None
    length: Ints | None = None
    lasting: float = MINUTE_NS
    recorded: Recorded | None = None


def waits_at(line: Line, scale: Floats, handed: Floats | None = None) -> Floats:
    """Every request's wait before prepare and in the queue, with each cause's part of service scaled.

    :param scale: ``(p, k)`` factors of the causes' columns, one row per replay.
    :param handed: ``(p, n)`` when each replay hands requests over; ``None`` for ``line.handed``.
    :returns: ``(p, n)`` nanoseconds.
    """
    if handed is None:
        handed = np.broadcast_to(line.handed, (len(scale), len(line.handed)))
    if in_lanes(line):
        return _lane_waits(line, scale, handed)
    return np.stack([_single_waits(line, row, when) for row, when in zip(scale, handed, strict=True)])


def has_classes(line: Line) -> bool:
    """True if requests of several priorities reached the queue."""
    return bool(line.queued.any()) and len(np.unique(line.priority[line.queued])) > 1


def in_lanes(line: Line) -> bool:
    """True if replays run side by side."""
    if line.recorded is not None:
        return True
    by_length = line.workers.by_length and line.workers.max_batch > 1 and line.length is not None
    return not by_length and not has_classes(line)


def _lane_waits(line: Line, scale: Floats, ready: Floats) -> Floats:
    p, n = ready.shape
    wait = np.zeros((p, n))
    some = _chosen(line.prepared)
    if line.prepare_extra.any() or isinstance(some, np.ndarray) or line.prepare.reference[1] > 0:
        pool = Lanes(workers=line.prepare.workers, max_batch=1, window=np.zeros(p), reference=line.prepare.reference)
        handed, ready = ready[:, some], np.array(ready)
        opened, ended = _in_order(pool, handed, scale @ line.prepare_extra[some].T, None)
        wait[:, some] += opened - handed
        ready[:, some] = ended
    if line.recorded is not None:
        for row, at, factors in zip(wait, ready, scale, strict=True):
            held = factors[line.window_column] if line.window_column >= 0 else 1.0
            batches = replace(line.recorded, hold=held * line.recorded.hold)
            extra = (line.batch_extra @ factors)[:, None]
            row += np.maximum(batches.serve(line.workers, at, np.zeros((n, 1)), extra, -1, 1.0).open - at, 0.0)
        return wait
    some = _chosen(line.queued)
    window = np.full(p, line.workers.window)
    if line.window_column >= 0:
        window = line.workers.window * scale[:, line.window_column]
    queue = Lanes(
        workers=line.workers.workers,
        max_batch=line.workers.max_batch,
        window=window,
        reference=line.workers.reference,
    )
    over = None if line.ended is None else line.ended[some]
    enqueued = ready[:, some]
    opened, _ = _in_order(queue, enqueued, scale @ line.batch_extra[some].T, over)
    wait[:, some] += np.maximum(opened - enqueued, 0.0)
    return wait


def _chosen(which: Bools) -> Ints | slice:
    """Positions of some requests; a slice for all of them, which copies nothing."""
    return slice(None) if which.all() else np.flatnonzero(which)


def _in_order(lanes: Lanes, ready: Floats, load: Floats, over: Floats | None) -> tuple[Floats, Floats]:
    """Serve each row in its own order of readiness."""
    p, n = ready.shape
    if n and bool((ready[:, 1:] >= ready[:, :-1]).all()):
        return service_starts(lanes, ready, load, _run_empty(ready[-1], over))
    order = np.argsort(ready, axis=1, kind="stable")
    row = np.arange(p)[:, None]
    sorted_ready = ready[row, order]
    starts = _run_empty(sorted_ready[-1], None if over is None else over[order[-1]])
    opened, ended = service_starts(lanes, sorted_ready, load[row, order], starts)
    result = np.empty((p, n)), np.empty((p, n))
    result[0][row, order], result[1][row, order] = opened, ended
    return result


def _run_empty(ready: Floats, over: Floats | None) -> Ints:
    """Positions before which the measured queue was empty."""
    if over is None or not len(ready):
        return np.zeros(1, np.int64)
    past = np.maximum.accumulate(over)
    return np.flatnonzero(np.concatenate([[True], past[:-1] <= ready[1:]]))


def _single_waits(line: Line, scale: Floats, handed: Floats) -> Floats:
    window = line.workers.window * (scale[line.window_column] if line.window_column >= 0 else 1.0)
    scaled = replace(
        line,
        handed=handed,
        prepare_extra=(line.prepare_extra @ scale)[:, None],
        batch_extra=(line.batch_extra @ scale)[:, None],
        workers=replace(line.workers, window=window),
        window_column=-1,
    )
    waits, _ = moving_waits(scaled, np.ones(1))
    return np.asarray(waits[0], dtype=np.float64)


def moving_waits(line: Line, alphas: Floats) -> tuple[Floats, Floats]:
    """Every request's wait before prepare and in the queue, and its derivative by cause.

    :param alphas: ``(q,)`` factors of all service beyond the reference, one per replay.
    :returns: ``(q, n)`` nanoseconds and ``(q, n, k)``.
    """
    q, (n, columns) = len(alphas), line.prepare_extra.shape
    wait, moves = np.zeros((q, n)), np.zeros((q, n, columns))
    ready, ready_moves = np.tile(line.handed, (q, 1)), np.zeros((q, n, columns))
    some = _chosen(line.prepared)
    pool = _serve(line.prepare, line, some, ready, ready_moves, line.prepare_extra, alphas, -1)
    wait[:, some] += pool.open - ready[:, some]
    moves[:, some] += pool.open_moves
    ready[:, some], ready_moves[:, some] = pool.end, pool.end_moves
    some, known = _chosen(line.queued), line.recorded
    if known is None:
        queue = _serve(line.workers, line, some, ready, ready_moves, line.batch_extra, alphas, line.window_column)
    else:
        some, each = slice(None), zip(ready, ready_moves, alphas.tolist(), strict=True)
        queue = Served.stacked(
            [known.serve(line.workers, at, by, line.batch_extra, line.window_column, alpha) for at, by, alpha in each]
        )
    waited = queue.open > ready[:, some]
    wait[:, some] += np.where(waited, queue.open - ready[:, some], 0.0)
    moves[:, some] += np.where(waited[..., None], queue.open_moves - ready_moves[:, some], 0.0)
    return wait, moves


def _serve(
    policy: Policy,
    line: Line,
    some: Ints | slice,
    ready: Floats,
    ready_moves: Floats,
    extra: Floats,
    alphas: Floats,
    window_column: int,
) -> Served:
    # Only the workers' queue has priorities; the prepare pool has none.
    priority = line.priority[some] if policy is line.workers else np.zeros(len(line.priority[some]), np.int64)
    length = line.length[some] if line.length is not None else None
    return serve_each(
        policy, ready[:, some], ready_moves[:, some], extra[some], window_column, priority, alphas, length
    )
