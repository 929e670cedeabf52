"""Derivatives of every request's start by every service time: which earlier work it waited for.

A request's start is built from maxima and sums of service times, so its derivative is the sum of the derivatives
of what ran ahead of it since the worker was last idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.queueing.queue_simulator import Policy, Replayed, replay
from latfix.queueing.replay_lanes import cycle_starts, lindley


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A replay, per request: when its batch was taken up and finished, with derivatives.

    For several replays, each array has a leading axis of replays.

    :param open: ``(n,)`` nanoseconds; ``end`` the same.
    :param open_moves: ``(n, k)`` derivative of ``open`` by each column of extra service; ``end_moves`` likewise.
    """

    open: Floats
    end: Floats
    open_moves: Floats
    end_moves: Floats

    @classmethod
    def stacked(cls, replays: Sequence[Served]) -> Served:
        """Several replays as one value."""
        return cls(
            open=np.stack([one.open for one in replays]),
            end=np.stack([one.end for one in replays]),
            open_moves=np.stack([one.open_moves for one in replays]),
            end_moves=np.stack([one.end_moves for one in replays]),
        )


def serve_each(
    policy: Policy,
    arrival: Floats,
    arrival_moves: Floats,
    extra: Floats,
    window_column: int,
    priority: Ints,
    alphas: Floats,
    length: Ints | None = None,
) -> Served:
    """A replay for each of ``q`` alphas, with service ``reference + alpha * extra`` and window ``alpha * window``.

    :param arrival: ``(q, n)`` when requests reach the queue at each alpha; ``arrival_moves`` ``(q, n, k)`` its
        derivative.
    :param extra: ``(n, k)`` service beyond the reference that a request adds to its batch, by column.
    :param window_column: the column to which the window itself counts, or -1.
    :param priority: ``(n,)`` 0 served first.
    :param length: ``(n,)`` lengths of the inputs, for a policy by length.
    """
    one_class = not len(priority) or priority.min() == priority.max()
    if policy.workers == 1 and policy.max_batch == 1 and one_class:  # no event loop is needed
        return _one_by_one(policy, arrival, arrival_moves, extra, alphas)
    served = []
    for at, moves, alpha in zip(arrival, arrival_moves, alphas.tolist(), strict=True):
        scaled = replace(policy, window=alpha * policy.window)
        replayed = replay(scaled, at, alpha * extra.sum(axis=1), priority, length)
        served.append(_differentiate(replayed, policy.window, moves, extra, window_column))
    return Served.stacked(served)


def _one_by_one(policy: Policy, arrival: Floats, arrival_moves: Floats, extra: Floats, alphas: Floats) -> Served:
    load = alphas[:, None] * extra.sum(axis=1)
    if (arrival[:, 1:] >= arrival[:, :-1]).all():
        return _in_order(policy, arrival, load, arrival_moves, extra[None])
    order = np.argsort(arrival, axis=1, kind="stable")
    row = np.arange(len(arrival))[:, None]
    served = _in_order(policy, arrival[row, order], load[row, order], arrival_moves[row, order], extra[order])
    back = np.argsort(order, axis=1)
    return Served(
        open=served.open[row, back],
        end=served.end[row, back],
        open_moves=served.open_moves[row, back],
        end_moves=served.end_moves[row, back],
    )


def _in_order(policy: Policy, arrival: Floats, load: Floats, arrival_moves: Floats, brought: Floats) -> Served:
    """Serve requests in order; ``brought`` is ``(q, n, k)``, or ``(1, n, k)`` if all replays share it."""
    n, columns = brought.shape[1:]
    service = float(policy.reference[1]) + load
    begin, slack = lindley(arrival, service)
    since = cycle_starts(slack)
    running = np.zeros((len(brought), n + 1, columns))
    np.cumsum(brought, axis=1, out=running[:, 1:])
    moves = running[:, :-1] - _rows(running, since)
    if arrival_moves.any():
        moves += _rows(arrival_moves, since)
    return Served(open=begin, end=begin + service, open_moves=moves, end_moves=moves + brought)


def _rows(values: Floats, at: Ints) -> Floats:
    """Rows of each replay's values, ``(q, m, k)``, or of shared values, ``(1, m, k)``."""
    replays, m, columns = values.shape
    flat = at + np.arange(replays)[:, None] * m
    return np.asarray(np.take(values.reshape(replays * m, columns), flat, axis=0), dtype=np.float64)


def _differentiate(
    batches: Replayed, window: float, arrival_moves: Floats, extra: Floats, window_column: int
) -> Served:
    m, columns = len(batches.first), extra.shape[1]
    if not m:
        return Served(
            open=np.zeros(0), end=np.zeros(0), open_moves=np.zeros((0, columns)), end_moves=np.zeros((0, columns))
        )
    brought = np.add.reduceat(extra[batches.member], batches.first, axis=0)
    # If the worker was busy until it opened the batch, the derivative of its last batch's end applies to this one.
    before = np.maximum(batches.previous, 0)
    chained = (batches.previous >= 0) & (batches.opened == batches.end[before])
    base = arrival_moves[batches.filler]
    if window_column >= 0:
        base[batches.timed, window_column] += window
    rank = np.argsort(batches.worker, kind="stable")
    linked = (chained & (batches.closed == batches.opened))[rank]
    start = np.maximum.accumulate(np.where(linked, 0, np.arange(m)))
    running = np.concatenate([np.zeros((1, columns)), np.cumsum(brought[rank], axis=0)])
    end_moves = np.empty((m, columns))
    end_moves[rank] = running[1:] - running[start] + base[rank][start]
    open_moves = np.where(chained[:, None], end_moves[before], arrival_moves[batches.opener])
    return Served(
        open=batches.by_request(batches.opened),
        end=batches.by_request(batches.end),
        open_moves=batches.by_request(open_moves),
        end_moves=batches.by_request(end_moves),
    )
