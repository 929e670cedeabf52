"""The runner's queue on simulated time: the same backlog, limits and admission as the service, with given costs.

What a policy would do to traffic is tried here before it is tried on the service, and its tests need no clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from latfix.queueing.backlog import Backlog, FixedLimits, Limits, Waiting

Ints = npt.NDArray[np.int64]
NEVER = -(1 << 62)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """One request of simulated traffic; times in nanoseconds."""

    arrival_ns: int
    rank: int = 1
    length: int = 1
    share: float = 1.0
    memory: int = 0
    expires_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedBatch:
    """A batch that was served: who was in it, and when."""

    members: tuple[int, ...]
    worker: int
    free_ns: int
    open_ns: int
    close_ns: int
    end_ns: int
    full: bool
    left: int


#: Whether a request is let in: the moment, the request, and how many are inside.
Admission = Callable[[int, Offered, int], bool]


@dataclass(slots=True)
class Simulated:
    """What became of the requests.

    :param taken_ns: ``(n,)`` when each was taken up, ``end_ns`` when it was answered; -1 where it was not.
    :param refused: those that were not let in; ``dropped`` those given up in the queue.
    """

    arrival_ns: Ints
    taken_ns: Ints
    end_ns: Ints
    batches: list[SimulatedBatch] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)

    def latency_ns(self) -> Ints:
        """Of those that were answered, in order of arrival."""
        served = self.end_ns >= 0
        return np.asarray(self.end_ns[served] - self.arrival_ns[served], dtype=np.int64)


@dataclass(slots=True, kw_only=True)
class SimulatedQueue:
    """Workers that take batches from one backlog.

    :param service: how long a batch of these requests holds a worker, nanoseconds.
    :param observe: told of each batch when it ends, in the order of the ends, and how many requests were inside.
    :param doomed: as of :class:`latfix.runners.scheduling.batch_queue.BatchQueue`.
    """

    service: Callable[[Sequence[Offered]], int]
    limits: Limits = field(default_factory=lambda: FixedLimits(1, 0))
    workers: int = 1
    backlog: Backlog = field(default_factory=Backlog)
    admission: Admission | None = None
    observe: Callable[[SimulatedBatch, int], None] | None = None
    doomed: Callable[[Waiting, int], bool] | None = None

    def run(self, traffic: Sequence[Offered]) -> Simulated:
        """Serve requests, which are in order of arrival."""
        return _Run(self, traffic).all()


class _Run:
    def __init__(self, queue: SimulatedQueue, traffic: Sequence[Offered]) -> None:
        n = len(traffic)
        self._queue, self._traffic = queue, traffic
        self._backlog = queue.backlog
        self._coming = self._inside = 0
        self._running: list[tuple[int, int, SimulatedBatch]] = []
        arrival = np.array([one.arrival_ns for one in traffic], dtype=np.int64)
        self._result = Simulated(arrival, np.full(n, -1, np.int64), np.full(n, -1, np.int64))

    def all(self) -> Simulated:
        """Serve everybody."""
        free = [(NEVER, worker) for worker in range(self._queue.workers)]
        while True:
            idle, worker = heapq.heappop(free)
            opened = self._opened(idle)
            if opened is None:
                break
            heapq.heappush(free, (self._serve(worker, idle if idle > NEVER else opened, opened), worker))
        self._settle(-NEVER)
        return self._result

    def _opened(self, idle: int) -> int | None:
        """When a worker that is free since ``idle`` finds a request; ``None`` where none comes any more."""
        opened = idle
        self._arrive(opened)
        while not len(self._backlog):
            if self._coming >= len(self._traffic):
                return None
            opened = self._traffic[self._coming].arrival_ns
            self._arrive(opened)
        self._settle(opened)  # whoever moves the limits knows what has ended by now
        return opened

    def _serve(self, worker: int, idle: int, opened: int) -> int:
        """Form and run a batch; returns when the worker is free again."""
        queue, backlog, result = self._queue, self._backlog, self._result
        most = queue.limits.size
        oldest = backlog.oldest_ns() if len(backlog) < most else backlog.head_ns()
        closed = self._hold(opened, oldest + queue.limits.window_ns, most)
        full = len(backlog) >= most
        doomed = None if queue.doomed is None else partial(_at, queue.doomed, closed)
        members, dropped = backlog.pop(most, doomed)
        result.dropped += [item.slot for item in dropped]
        self._inside -= len(dropped)
        if not members:
            return closed
        slots = tuple(item.slot for item in members)
        end = closed + queue.service([self._traffic[slot] for slot in slots])
        chosen = list(slots)
        result.taken_ns[chosen] = np.maximum(result.arrival_ns[chosen], opened)
        result.end_ns[chosen] = end
        batch = SimulatedBatch(
            members=slots,
            worker=worker,
            free_ns=idle,
            open_ns=opened,
            close_ns=closed,
            end_ns=end,
            full=full,
            left=len(backlog),
        )
        result.batches.append(batch)
        heapq.heappush(self._running, (end, len(result.batches), batch))
        return end

    def _hold(self, opened: int, due: int, most: int) -> int:
        """Let requests join until the batch is full or due; returns when it closed."""
        closed = opened
        while len(self._backlog) < most and due > closed:
            if self._coming >= len(self._traffic) or self._traffic[self._coming].arrival_ns > due:
                return due
            closed = max(closed, self._traffic[self._coming].arrival_ns)
            self._arrive(closed)
        return closed

    def _arrive(self, until_ns: int) -> None:
        """Let in those that arrive until a moment."""
        queue = self._queue
        while self._coming < len(self._traffic) and self._traffic[self._coming].arrival_ns <= until_ns:
            slot, one = self._coming, self._traffic[self._coming]
            self._coming += 1
            self._settle(one.arrival_ns)
            if queue.admission is not None and not queue.admission(one.arrival_ns, one, self._inside):
                self._result.refused.append(slot)
                continue
            self._inside += 1
            self._backlog.push(
                rank=one.rank,
                slot=slot,
                enqueued_ns=one.arrival_ns,
                expires_ns=one.expires_ns,
                length=one.length,
                share=one.share,
                memory=one.memory,
            )

    def _settle(self, now_ns: int) -> None:
        """Tell of the batches that have ended."""
        while self._running and self._running[0][0] <= now_ns:
            batch = heapq.heappop(self._running)[2]
            if self._queue.observe is not None:
                self._queue.observe(batch, self._inside)
            self._inside -= len(batch.members)


def _at(doomed: Callable[[Waiting, int], bool], now_ns: int, item: Waiting) -> bool:
    return doomed(item, now_ns)
