"""The service's queue and batcher on simulated time: one event loop over a queue discipline.

A free worker opens a batch when a request waits, and closes it when it is full or when the window of the oldest
request ends. The discipline decides which request leaves first, what a batch may hold and how long it takes:

- :func:`replay`: in order of arrival, by class of service or with ageing, by length, for given service times;
- :class:`SimulatedQueue`: the service's own backlog, with admission, deadlines and changing limits.

Times are nanoseconds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.arrays import Bools, Floats, Ints
from latfix.queueing.length_buckets import alike
from latfix.queueing.replay_lanes import lindley
from latfix.queueing.serving_order import Backlog, FixedLimits, Limits, Waiting

#: Returns when the last of these requests finishes, given when their batch closes.
Finish = Callable[[Sequence[int], float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedBatch:
    """A served batch.

    :param free_ns: when its worker became free; ``open_ns`` when there also was a request.
    :param full: True if enough requests waited when it closed to fill it; ``left`` still wait.
    """

    members: tuple[int, ...]
    worker: int
    free_ns: int
    open_ns: int
    close_ns: int
    end_ns: int
    full: bool
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Discipline:
    """Which requests are served next, together, and for how long. Requests are positions in the order of arrival.

    :param entries: by request, its heap entry: a sort key and its position.
    :param waiting: the heap of waiting requests.
    :param limits: returns the most requests in a batch at a time, and how long the oldest waits for a full batch.
    :param finish: returns when a batch that closes at a time finishes.
    :param take: removes a batch of limited size from the heap at a time and returns it; empty if all requests whose
        turn it was were dropped.
    :param admits: returns True if an arriving request is admitted; ``None`` to admit all.
    :param begun: called with each batch when it begins.
    """

    entries: Sequence[tuple[Any, ...]]
    waiting: list[tuple[Any, ...]]
    limits: Callable[[float], tuple[int, float]]
    finish: Finish
    take: Callable[[int, float], list[int]]
    admits: Callable[[int], bool] | None = None
    begun: Callable[[SimulatedBatch], None] | None = None


#: A batch of a :class:`Log`: how many requests it has; the oldest that waited when it opened; the one that filled and
#: thereby closed it, else the opener.
_BATCH = np.dtype(
    [(name, np.int64) for name in ("size", "worker", "opener", "filler")]
    + [(name, np.float64) for name in ("opened", "closed", "end")]
)


@dataclass(frozen=True, slots=True)
class Log:
    """The batches, in the order in which workers opened them.

    :param members: requests, batch after batch.
    :param batches: by batch, the values of :data:`_BATCH`.
    """

    members: list[int] = field(default_factory=list)
    batches: list[tuple[int, int, int, int, float, float, float]] = field(default_factory=list)


def form_batches(when: Sequence[float], discipline: Discipline, workers: int) -> Log:
    """Serve all requests.

    :param when: arrivals, ascending.
    """
    entries, waiting, admits = discipline.entries, discipline.waiting, discipline.admits
    limits, take, finish = discipline.limits, discipline.take, discipline.finish
    free = [(-math.inf, worker) for worker in range(workers)]
    coming, when, log = 0, [*when, math.inf], Log()
    while True:
        idle, worker = free[0]
        opened = idle
        while not waiting or when[coming] <= opened:
            if when[coming] > opened:
                opened = when[coming]
                if opened == math.inf:
                    return log
            if admits is None or admits(coming):
                heappush(waiting, entries[coming])
            coming += 1
        most, window = limits(opened)
        # A full batch does not wait, so a long backlog need not be searched.
        opener = waiting[0][1] if len(waiting) >= most else min([entry[1] for entry in waiting])
        came = when[opener]
        opened = max(opened, came)  # another worker may have skipped it while this one was free
        closed, filler = opened, opener
        if came + window > opened and len(waiting) < most:
            closed = due = came + window
            while when[coming] <= due and len(waiting) < most:
                if admits is None or admits(coming):
                    heappush(waiting, entries[coming])
                coming += 1
            if len(waiting) >= most:
                filler = coming - 1
                closed = when[filler]
        full = len(waiting) >= most
        members = take(most, closed)
        end = finish(members, closed) if members else closed
        heapreplace(free, (end, worker))
        if members:
            log.members.extend(members)
            log.batches.append((len(members), worker, opener, filler, opened, closed, end))
            if discipline.begun is not None:
                batch = SimulatedBatch(
                    members=tuple(members),
                    worker=worker,
                    free_ns=int(opened if math.isinf(idle) else idle),
                    open_ns=int(opened),
                    close_ns=int(closed),
                    end_ns=int(end),
                    full=full,
                    left=len(waiting),
                )
                discipline.begun(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a queue of known discipline is served.

    :param window: nanoseconds that a batch is held open after the oldest request arrived.
    :param reference: ``(max_batch + 1,)`` service at reference by batch size; zero by default.
    :param by_length: members are the waiting requests closest to the head in length, within bounds.
    :param ageing: nanoseconds in which a waiting request gains a class on new ones; 0 for never.
    """

    workers: int
    max_batch: int
    window: float = 0.0
    reference: Floats = field(default_factory=lambda: np.zeros(2))
    by_length: bool = False
    ageing: float = 0.0


def discipline_of(
    policy: Policy, when: Floats, classes: Ints | Floats, lengths: Ints | None, finish: Finish
) -> Discipline:
    """The discipline of a policy for requests in order of arrival.

    :param classes: classes of service, 0 first; ``lengths`` of the inputs, for a policy by length.
    """
    keys = when + policy.ageing * classes if policy.ageing else classes
    entries, waiting = list(zip(keys.tolist(), range(len(when)), strict=True)), list[tuple[Any, ...]]()
    fixed = policy.max_batch, policy.window
    take: Callable[[int, float], list[int]] = partial(_take_first, waiting)
    if policy.by_length and policy.max_batch > 1 and lengths is not None:
        take = partial(_take_alike, waiting, lengths.tolist(), not policy.ageing)
    return Discipline(entries=entries, waiting=waiting, limits=lambda _: fixed, finish=finish, take=take)


def steered(queue: Discipline, limits: Limits, observe: Callable[[SimulatedBatch], None]) -> Discipline:
    """The discipline with limits that a controller moves.

    :param observe: called with each batch when it has ended, in the order of the ends.
    """
    running = _Running()

    def current(now: float) -> tuple[int, float]:
        for batch in running.ended(now):
            observe(batch)
        return limits.size, limits.window_ns

    return replace(queue, limits=current, begun=running.add)


class _Running:
    """Batches that have begun, until they are known to have ended."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, SimulatedBatch]] = []
        self._begun = count()

    def add(self, batch: SimulatedBatch) -> None:
        heappush(self._heap, (batch.end_ns, next(self._begun), batch))

    def ended(self, now: float) -> Iterator[SimulatedBatch]:
        """Those that have ended since it was last asked, in the order of the ends."""
        while self._heap and self._heap[0][0] <= now:
            yield heappop(self._heap)[2]


def _take_first(waiting: list[tuple[Any, ...]], most: int, now: float) -> list[int]:
    del now
    return [heappop(waiting)[1] for _ in range(min(most, len(waiting)))]


def _take_alike(
    waiting: list[tuple[Any, ...]], length: Sequence[int], strict: bool, most: int, now: float
) -> list[int]:
    """The head and the requests nearest to it in length, higher classes first.

    :param strict: False if classes age; then they are ignored here.
    """
    del now
    head = heappop(waiting)[1]

    def nearness(entry: tuple[float, int]) -> tuple[float, int, int]:
        return entry[0] if strict else 0.0, abs(length[entry[1]] - length[head]), entry[1]

    near = sorted((entry for entry in waiting if alike(length[entry[1]], length[head])), key=nearness)[: most - 1]
    if near:
        taken = {request for _, request in near}
        waiting[:] = [entry for entry in waiting if entry[1] not in taken]
        heapify(waiting)
    return [head, *(request for _, request in near)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """``m`` batches of ``n`` requests as columns, in the order in which workers opened them.

    :param member: ``(n,)`` requests, batch after batch, and the ``batch`` of each.
    :param first: ``(m,)`` where each batch begins.
    :param opener: ``(m,)`` the oldest request that waited then; ``filler`` the request that filled and thereby closed
        the batch, else the opener.
    :param timed: ``(m,)`` True if the end of the window closed it.
    """

    member: Ints
    batch: Ints
    first: Ints
    worker: Ints
    previous: Ints
    opener: Ints
    filler: Ints
    opened: Floats
    closed: Floats
    end: Floats
    timed: Bools

    @classmethod
    def of(cls, log: Log, order: Ints) -> Replayed:
        """Convert a log.

        :param order: requests by position of arrival.
        """
        columns = np.array(log.batches, _BATCH)
        size, worker, opener, filler, opened, closed, end = (columns[name].copy() for name in _BATCH.names or ())
        turn = np.argsort(worker, kind="stable")
        previous = np.full(len(size), -1)
        same = worker[turn[1:]] == worker[turn[:-1]]
        previous[turn[1:][same]] = turn[:-1][same]
        return cls(
            member=order[np.array(log.members, np.int64)],
            batch=np.repeat(np.arange(len(size)), size),
            first=np.cumsum(size) - size,
            worker=worker,
            previous=previous,
            opener=order[opener],
            filler=order[filler],
            opened=opened,
            closed=closed,
            end=end,
            timed=(closed > opened) & (filler == opener),
        )

    def by_request(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """``(n, …)`` of ``(m, …)``: the value of each request's batch."""
        result = np.empty((len(self.member), *values.shape[1:]), dtype=values.dtype)
        result[self.member] = values[self.batch]
        return result


def replay(policy: Policy, arrival: Floats, load: Floats, classes: Ints, lengths: Ints | None = None) -> Replayed:
    """Serve requests, each of which adds some service to its batch beyond the reference.

    :param arrival: ``(n,)`` in any order, ``load`` and ``classes`` of service likewise.
    :param lengths: ``(n,)`` of the inputs, for a policy by length.
    """
    order = np.argsort(arrival, kind="stable")
    reference: list[float] = policy.reference.tolist()
    by_length = policy.by_length and policy.max_batch > 1 and lengths is not None
    if not by_length and len(classes) and classes.min() == classes.max():
        return Replayed.of(_form_in_order(policy, arrival[order].tolist(), load[order], reference), order)
    brought: list[float] = load[order].tolist()

    def finish(members: Sequence[int], closed: float) -> float:
        return closed + reference[len(members)] + sum(map(brought.__getitem__, members))

    when = arrival[order]
    queue = discipline_of(policy, when, classes[order], None if lengths is None else lengths[order], finish)
    return Replayed.of(form_batches(when.tolist(), queue, policy.workers), order)


def _form_in_order(policy: Policy, when: list[float], load: Floats, reference: list[float]) -> Log:
    """As :func:`form_batches`, for requests that leave in order of arrival.

    The waiting requests are then contiguous, and no heap is needed: 2 to 3 times as fast, for most replays.
    """
    free = [(-math.inf, worker) for worker in range(policy.workers)]
    running = np.concatenate([[0.0], np.cumsum(load)]).tolist()
    most, n, log, head = policy.max_batch, len(when), Log(members=list(range(len(when)))), 0
    while head < n:
        idle, worker = free[0]
        came = when[head]
        opened = closed = max(came, idle)
        last = min(head + most, n)
        behind = bisect_right(when, opened, head, last)
        filler, due = head, came + policy.window
        if due > opened and behind < head + most:
            behind = bisect_right(when, due, behind, last)
            full = behind - head == most
            filler, closed = (behind - 1, when[behind - 1]) if full else (head, due)
        end = closed + reference[behind - head] + running[behind] - running[head]
        heapreplace(free, (end, worker))
        log.batches.append((behind - head, worker, head, filler, opened, closed, end))
        head = behind
    return log


def begun_in_order(arrival: Floats, work: Floats, workers: int) -> Floats:
    """``(n,)`` start of each request at workers that serve one request at a time, first come, first served."""
    if workers > 1:
        replayed = replay(Policy(workers=workers, max_batch=1), arrival, work, np.zeros(len(arrival), np.int64))
        return replayed.by_request(replayed.opened)
    order = np.argsort(arrival, kind="stable")
    begun = np.empty(len(arrival))
    begun[order], _ = lindley(arrival[order], work[order])
    return begun


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """One request of simulated traffic; times in nanoseconds."""

    arrival_ns: int
    rank: int = 1
    length: int = 1
    share: float = 1.0
    memory: int = 0
    expires_ns: int = 0


#: Returns True if a request is admitted: the time, the request, and how many are in the service.
Admission = Callable[[int, Offered, int], bool]


@dataclass(slots=True)
class Simulated:
    """The outcome of the requests.

    :param taken_ns: ``(n,)`` when each was taken up, ``end_ns`` when it was answered; -1 if it was not.
    :param refused: requests that were not admitted; ``dropped`` those dropped from the queue.
    """

    arrival_ns: Ints
    taken_ns: Ints
    end_ns: Ints
    batches: list[SimulatedBatch] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)

    def latency_ns(self) -> Ints:
        """Latencies of the answered requests, in order of arrival."""
        served = self.end_ns >= 0
        return np.asarray(self.end_ns[served] - self.arrival_ns[served], dtype=np.int64)


@dataclass(slots=True, kw_only=True)
class SimulatedQueue:
    """Workers that take batches from the service's backlog.

    :param service: returns how long a batch of these requests occupies a worker, nanoseconds.
    :param observe: called with each batch when it ends, in the order of the ends, and with how many requests were
        in the service.
    :param doomed: as in :class:`latfix.runners.scheduling.batch_queue.BatchQueue`.
    """

    service: Callable[[Sequence[Offered]], int]
    limits: Limits = field(default_factory=lambda: FixedLimits(1, 0))
    workers: int = 1
    backlog: Backlog = field(default_factory=Backlog)
    admission: Admission | None = None
    observe: Callable[[SimulatedBatch, int], None] | None = None
    doomed: Callable[[Waiting, int], bool] | None = None

    def run(self, traffic: Sequence[Offered]) -> Simulated:
        """Serve requests, given in order of arrival."""
        inside = _Inside(self, traffic)
        key, waiting = self.backlog.ordering.key, self.backlog.heap
        discipline = Discipline(
            entries=[
                (
                    key(one.rank, one.arrival_ns, one.share),
                    slot,
                    Waiting(one.rank, slot, slot, one.arrival_ns, one.expires_ns, one.length, None, one.memory),
                )
                for slot, one in enumerate(traffic)
            ],
            waiting=waiting,
            limits=inside.limits,
            finish=lambda members, closed: closed + self.service([traffic[slot] for slot in members]),
            take=inside.take,
            admits=inside.admits,
            begun=inside.begun,
        )
        form_batches([one.arrival_ns for one in traffic], discipline, self.workers)
        inside.settle(math.inf)
        return inside.result


class _Inside:
    """The requests of a :class:`SimulatedQueue` that are in the service."""

    def __init__(self, queue: SimulatedQueue, traffic: Sequence[Offered]) -> None:
        n = len(traffic)
        self._queue, self._traffic = queue, traffic
        self._count = 0
        self._running = _Running()
        arrival = np.array([one.arrival_ns for one in traffic], dtype=np.int64)
        self.result = Simulated(arrival, np.full(n, -1, np.int64), np.full(n, -1, np.int64))

    def admits(self, slot: int) -> bool:
        one, admission = self._traffic[slot], self._queue.admission
        self.settle(one.arrival_ns)
        if admission is not None and not admission(one.arrival_ns, one, self._count):
            self.result.refused.append(slot)
            return False
        self._count += 1
        return True

    def limits(self, now: float) -> tuple[int, float]:
        self.settle(now)  # a controller of the limits knows which batches have ended
        return self._queue.limits.size, self._queue.limits.window_ns

    def take(self, most: int, now: float) -> list[int]:
        doomed, closed = self._queue.doomed, int(now)
        hopeless = None if doomed is None else (lambda item: doomed(item, closed))
        members, dropped = self._queue.backlog.pop(most, hopeless)
        self.result.dropped += [item.slot for item in dropped]
        self._count -= len(dropped)
        return [item.slot for item in members]

    def begun(self, batch: SimulatedBatch) -> None:
        members, result = list(batch.members), self.result
        result.taken_ns[members] = np.maximum(result.arrival_ns[members], batch.open_ns)
        result.end_ns[members] = batch.end_ns
        result.batches.append(batch)
        self._running.add(batch)

    def settle(self, now: float) -> None:
        """Report the batches that have ended."""
        for batch in self._running.ended(now):
            if self._queue.observe is not None:
                self._queue.observe(batch, self._count)
            self._count -= len(batch.members)
