"""A queue replayed with other service times: who starts when, and how that moves with every service time.

The policy is the runner's: first come, first served within a priority, or by the moment from which a request counts
where classes gain on each other as they wait; a free worker takes the head, holds the batch open until it is full or
the head's window is past, and is busy until the batch is finished. A
request's start is then built from maxima and sums of service times, so that its derivative is the sum of the
derivatives of what ran ahead of it since the worker was last idle.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from latfix.queueing.length_buckets import alike

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: How a batch's closing moment came about: at once, by the member that filled it, by its timer.
_AT_ONCE, _FILLED, _TIMED = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How the queue is served.

    :param reference: ``(max_batch + 1,)`` service of a batch of so many requests at reference, nanoseconds.
    :param window: nanoseconds that a batch is held open after its head came.
    :param by_length: members are those waiting whose length is closest to the head's, within bounds.
    :param ageing: nanoseconds in which a waiting request gains a class on those that come; 0 for never.
    """

    workers: int
    max_batch: int
    window: float
    reference: Floats
    by_length: bool = False
    ageing: float = 0.0


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


@dataclass(slots=True)
class _Log:
    """Batches in the order in which they were taken up."""

    member: list[int]  # requests in the order served
    first: list[int]
    worker: list[int]
    previous: list[int]
    opener: list[int]
    open: list[float]
    close_kind: list[int]
    closer: list[int]
    end: list[float]


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
    order = np.argsort(arrival, kind="stable")
    when, load = arrival[order], alpha * extra.sum(axis=1)[order]
    window = alpha * policy.window
    classes = priority[order]
    if policy.by_length and policy.max_batch > 1 and length is not None:
        log = _by_length(policy, when.tolist(), load.tolist(), classes.tolist(), length[order].tolist(), window)
    elif len(classes) and classes.min() != classes.max():
        log = _by_priority(policy, when.tolist(), load.tolist(), classes.tolist(), window)
    elif policy.workers == 1 and policy.max_batch == 1:
        return _one_by_one(policy, order, when, load, arrival_moves, extra)
    else:
        log = _in_order(policy, when.tolist(), load, window)
    return _differentiate(policy, log, order, arrival_moves, extra, window_column)


def _one_by_one(
    policy: Policy, order: Ints, when: Floats, load: Floats, arrival_moves: Floats, extra: Floats
) -> Served:
    """One worker without batching: Lindley's recursion as a running maximum."""
    n = len(order)
    service = policy.reference[min(1, len(policy.reference) - 1)] + load
    before = np.concatenate([[0.0], np.cumsum(service)[:-1]]) if n else np.zeros(0)
    slack = when - before
    begin = np.maximum.accumulate(slack) + before if n else slack
    fresh = np.concatenate([[True], slack[1:] >= np.maximum.accumulate(slack)[:-1]]) if n else np.zeros(0, bool)
    start = np.maximum.accumulate(np.where(fresh, np.arange(n), 0)) if n else np.zeros(0, np.int64)
    brought = extra[order]
    running = np.concatenate([np.zeros((1, extra.shape[1])), np.cumsum(brought, axis=0)])
    open_moves = running[:-1] - running[start] + arrival_moves[order][start]
    return _unsorted(order, begin, begin + service, open_moves, open_moves + brought)


def _in_order(policy: Policy, when: list[float], load: Floats, window: float) -> _Log:
    log = _Log([], [], [], [], [], [], [], [], [])
    free = [(float("-inf"), w, -1) for w in range(policy.workers)]
    running = np.concatenate([[0.0], np.cumsum(load)]).tolist()
    reference = policy.reference.tolist()
    most, n, i = policy.max_batch, len(when), 0
    log.member = list(range(n))
    while i < n:
        idle, worker, previous = free[0]
        opened = when[i] if when[i] > idle else idle
        top = min(i + most, n)
        j = bisect_right(when, opened, i, top)
        close, kind, closer = opened, _AT_ONCE, i
        if window > 0 and j < i + most:
            due = when[i] + window
            if due > opened:
                j = bisect_right(when, due, j, top)
                full = j - i == most
                close, kind, closer = (when[j - 1], _FILLED, j - 1) if full else (due, _TIMED, i)
        end = close + reference[j - i] + running[j] - running[i]
        heapq.heapreplace(free, (end, worker, len(log.first)))
        _append(log, i, worker, previous, i, opened, kind, closer, end)
        i = j
    return log


def _by_priority(policy: Policy, when: list[float], load: list[float], classes: list[int], window: float) -> _Log:
    log = _Log([], [], [], [], [], [], [], [], [])
    free = [(float("-inf"), w, -1) for w in range(policy.workers)]
    reference, key = policy.reference.tolist(), _keys(policy, when, classes)
    waiting: list[tuple[float, int]] = []
    most, n, i = policy.max_batch, len(when), 0
    while i < n or waiting:
        idle, worker, previous = free[0]
        opened = idle if waiting or when[i] <= idle else when[i]
        while i < n and when[i] <= opened:
            heapq.heappush(waiting, (key[i], i))
            i += 1
        head = heapq.heappop(waiting)[1]
        members = [head]
        while waiting and len(members) < most:
            members.append(heapq.heappop(waiting)[1])
        close, kind, closer = opened, _AT_ONCE, head
        due = when[head] + window
        if window > 0 and len(members) < most and due > opened:
            while i < n and when[i] <= due and len(members) < most:
                members.append(i)
                i += 1
            full = len(members) == most
            close, kind, closer = (when[members[-1]], _FILLED, members[-1]) if full else (due, _TIMED, head)
        end = close + reference[len(members)] + sum(load[k] for k in members)
        heapq.heapreplace(free, (end, worker, len(log.first)))
        first = len(log.member)
        log.member.extend(members)
        _append(log, first, worker, previous, head, opened, kind, closer, end)
    return log


def _by_length(
    policy: Policy, when: list[float], load: list[float], classes: list[int], length: list[int], window: float
) -> _Log:
    """As by priority, but a batch waits until enough requests are there, then takes those like its head."""
    strict = not policy.ageing
    log = _Log([], [], [], [], [], [], [], [], [])
    free = [(float("-inf"), w, -1) for w in range(policy.workers)]
    reference, key = policy.reference.tolist(), _keys(policy, when, classes)
    waiting: list[tuple[float, int]] = []
    most, n, i = policy.max_batch, len(when), 0
    while i < n or waiting:
        idle, worker, previous = free[0]
        opened = idle if waiting or when[i] <= idle else when[i]
        while i < n and when[i] <= opened:
            heapq.heappush(waiting, (key[i], i))
            i += 1
        oldest = min(k for _, k in waiting)
        close, kind, closer = opened, _AT_ONCE, oldest
        due = when[oldest] + window
        if window > 0 and len(waiting) < most and due > opened:
            close, kind = due, _TIMED
            while i < n and when[i] <= due and len(waiting) < most:
                heapq.heappush(waiting, (key[i], i))
                i += 1
            if len(waiting) >= most:
                close, kind, closer = when[i - 1], _FILLED, i - 1
        head = heapq.heappop(waiting)[1]
        mates = (item for item in waiting if alike(length[item[1]], length[head]))
        near = sorted(mates, key=partial(_nearness, length, head, strict))[: most - 1]
        if near:
            taken = {k for _, k in near}
            waiting = [item for item in waiting if item[1] not in taken]
            heapq.heapify(waiting)
        members = [head, *(k for _, k in near)]
        end = close + reference[len(members)] + sum(load[k] for k in members)
        heapq.heapreplace(free, (end, worker, len(log.first)))
        first = len(log.member)
        log.member.extend(members)
        _append(log, first, worker, previous, oldest, opened, kind, closer, end)
    return log


def _keys(policy: Policy, when: list[float], classes: list[int]) -> list[float]:
    """What requests leave by, the smallest first: their class, or the moment from which they count."""
    if not policy.ageing:
        return [float(rank) for rank in classes]
    return [at + rank * policy.ageing for at, rank in zip(when, classes, strict=True)]


def _nearness(length: list[int], head: int, strict: bool, item: tuple[float, int]) -> tuple[float, int, int]:
    """What members of a batch by length are chosen by; with ageing, classes play no part in it."""
    key, k = item
    return key if strict else 0.0, abs(length[k] - length[head]), k


def _append(
    log: _Log,
    first: int,
    worker: int,
    previous: int,
    opener: int,
    opened: float,
    kind: int,
    closer: int,
    end: float,
) -> None:
    log.first.append(first)
    log.worker.append(worker)
    log.previous.append(previous)
    log.opener.append(opener)
    log.open.append(opened)
    log.close_kind.append(kind)
    log.closer.append(closer)
    log.end.append(end)


def _differentiate(
    policy: Policy, log: _Log, order: Ints, arrival_moves: Floats, extra: Floats, window_column: int
) -> Served:
    n, columns = extra.shape
    m = len(log.first)
    if not m:
        empty = np.zeros((0, columns))
        return Served(open=np.zeros(0), end=np.zeros(0), open_moves=empty, end_moves=empty)
    member, first = np.array(log.member, np.int64), np.array(log.first, np.int64)
    opened, end = np.array(log.open), np.array(log.end)
    kind, previous = np.array(log.close_kind), np.array(log.previous, np.int64)
    opener, closer = (order[np.array(which, np.int64)] for which in (log.opener, log.closer))
    brought = np.add.reduceat(extra[order[member]], first, axis=0)
    # The worker was busy until it opened the batch: then what moved its last batch's end moves this one.
    chained = (previous >= 0) & (opened == end[np.maximum(previous, 0)])
    base = arrival_moves[closer]
    if window_column >= 0:
        base[kind == _TIMED, window_column] += policy.window
    rank = np.argsort(np.array(log.worker), kind="stable")
    linked = (chained & (kind == _AT_ONCE))[rank]
    start = np.maximum.accumulate(np.where(linked, 0, np.arange(m)))
    running = np.concatenate([np.zeros((1, columns)), np.cumsum(brought[rank], axis=0)])
    end_moves = np.empty((m, columns))
    end_moves[rank] = running[1:] - running[start] + base[rank][start]
    open_moves = np.where(chained[:, None], end_moves[np.maximum(previous, 0)], arrival_moves[opener])
    batch = np.repeat(np.arange(m), np.diff(np.append(first, n)))
    return _unsorted(order[member], opened[batch], end[batch], open_moves[batch], end_moves[batch])


def _unsorted(order: Ints, opened: Floats, end: Floats, open_moves: Floats, end_moves: Floats) -> Served:
    result = Served(
        open=np.empty_like(opened),
        end=np.empty_like(end),
        open_moves=np.empty_like(open_moves),
        end_moves=np.empty_like(end_moves),
    )
    result.open[order], result.end[order] = opened, end
    result.open_moves[order], result.end_moves[order] = open_moves, end_moves
    return result
