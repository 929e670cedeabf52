"""How the start of every request moves with every service time: who of those ahead was waited for.

A request's start is built from maxima and sums of service times, so that its derivative is the sum of the derivatives
of what ran ahead of it since the worker was last idle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from latfix.queueing.queue_simulator import Floats, Ints, Policy, Replayed, replay
from latfix.queueing.replay_lanes import cycle_starts, lindley


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A replay, per request: when its batch was taken up and finished, with derivatives.

    :param open: ``(n,)`` nanoseconds; ``end`` the same.
    :param open_moves: ``(n, k)`` derivative of ``open`` by each column of extra service; ``end_moves`` too.
    """

    open: Floats
    end: Floats
    open_moves: Floats
    end_moves: Floats


def serve(
    policy: Policy,
    arrival: Floats,
    arrival_moves: Floats,
    extra: Floats,
    window_column: int,
    priority: Ints,
    alpha: float,
    length: Ints | None = None,
) -> Served:
    """Replay with service ``reference + alpha * extra`` and window ``alpha * window``.

    :param arrival: ``(n,)`` when requests reach the queue at this ``alpha``; ``arrival_moves`` ``(n, k)`` its
        derivative.
    :param extra: ``(n, k)`` service beyond the reference that a request brings to its batch, by column.
    :param window_column: the column that the window itself counts to, or -1.
    :param priority: ``(n,)`` 0 served first.
    :param length: ``(n,)`` of the inputs, for a policy by length.
    """
    load = alpha * extra.sum(axis=1)
    if policy.workers == 1 and policy.max_batch == 1 and (not len(priority) or priority.min() == priority.max()):
        return _one_by_one(float(policy.reference[1]), arrival, load, arrival_moves, extra)
    replayed = replay(replace(policy, window=alpha * policy.window), arrival, load, priority, length)
    return _differentiate(replayed, policy.window, arrival_moves, extra, window_column)


def _one_by_one(reference: float, arrival: Floats, load: Floats, arrival_moves: Floats, extra: Floats) -> Served:
    """One worker without batching: no event loop is needed."""
    order = np.argsort(arrival, kind="stable")
    service = reference + load[order]
    begin, slack = lindley(arrival[order], service)
    since = cycle_starts(slack)
    brought = extra[order]
    running = np.concatenate([np.zeros((1, extra.shape[1])), np.cumsum(brought, axis=0)])
    result = Served(
        open=np.empty_like(begin),
        end=np.empty_like(begin),
        open_moves=np.empty_like(brought),
        end_moves=np.empty_like(brought),
    )
    moves = running[:-1] - running[since] + arrival_moves[order][since]
    result.open[order], result.end[order] = begin, begin + service
    result.open_moves[order], result.end_moves[order] = moves, moves + brought
    return result


def _differentiate(
    batches: Replayed, window: float, arrival_moves: Floats, extra: Floats, window_column: int
) -> Served:
    m, columns = len(batches.first), extra.shape[1]
    if not m:
        return Served(
            open=np.zeros(0), end=np.zeros(0), open_moves=np.zeros((0, columns)), end_moves=np.zeros((0, columns))
        )
    brought = np.add.reduceat(extra[batches.member], batches.first, axis=0)
    # The worker was busy until it opened the batch: then what moved its last batch's end moves this one.
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
