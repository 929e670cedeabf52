"""Workers of different speed with the service's queue and router, in simulated time.

Only time is simulated. Waking workers, taking or leaving requests and routing use the code that serves.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.queueing.queue_simulator import Offered
from latfix.runners.scheduling.batch_queue import Formed
from latfix.runners.scheduling.replica_router import Router
from latfix.runners.scheduling.routed_queue import RoutedQueue

#: How long a batch occupies a worker, by worker, members and start; nanoseconds.
Service = Callable[[int, Sequence[Offered], int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedBatch:
    """A served batch: worker, members and times; ``free_ns`` is when its worker became free."""

    worker: int
    members: tuple[int, ...]
    formed: Formed
    free_ns: int
    end_ns: int


@dataclass(slots=True, kw_only=True)
class Routed:
    """The result by request; -1 if it was not answered.

    :param weights: of all workers at the end of each batch.
    """

    arrival_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    worker: npt.NDArray[np.int64]
    batches: list[RoutedBatch] = field(default_factory=list)
    weights: list[tuple[float, ...]] = field(default_factory=list)

    def latency_ns(self) -> npt.NDArray[np.int64]:
        """Latencies of answered requests, in order of arrival."""
        served = self.end_ns >= 0
        return np.asarray(self.end_ns[served] - self.arrival_ns[served], dtype=np.int64)

    def shares(self, workers: int) -> list[float]:
        """The share of the requests that each worker served."""
        counts = np.bincount(self.worker[self.worker >= 0], minlength=workers)
        return [float(count) for count in counts / max(counts.sum(), 1)]


class _Bell:
    """Wakes in simulated time: the worker checks at once."""

    def __init__(self) -> None:
        self.rung = False

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        raise AssertionError("a simulation does not sleep")

    def notify(self) -> None:
        self.rung = True


class SimulatedRouting:
    """Serves traffic with ``workers`` of given speeds.

    :param weighted: route by weight; otherwise every free worker takes what waits (``routing = "pull"``).
    :param dead: by worker, the time from which it never answers again.
    """

    def __init__(
        self,
        *,
        workers: int,
        service: Service,
        weighted: bool,
        max_batch_size: int = 1,
        window_ns: int = 0,
        dead: dict[int, int] | None = None,
        **queue: Any,
    ) -> None:
        self._now = 0
        self._service = service
        self._dead = dead or {}
        self.router = Router(workers, learns=weighted)
        self._bells = [_Bell() for _ in range(workers)]
        self._queue = RoutedQueue(
            router=self.router,
            workers=workers,
            max_batch_size=max_batch_size,
            window_ns=window_ns,
            clock=lambda: self._now,
            **queue,
        )
        self._queue.bells = list(self._bells)
        self._free: dict[int, int] = {}
        self._events: list[tuple[int, int, str, int]] = []
        self._order = 0

    def run(self, traffic: Sequence[Offered]) -> Routed:
        """Serve requests, given in order of arrival."""
        n = len(traffic)
        arrival = np.array([one.arrival_ns for one in traffic], dtype=np.int64)
        result = Routed(arrival_ns=arrival, end_ns=np.full(n, -1, np.int64), worker=np.full(n, -1, np.int64))
        for slot, one in enumerate(traffic):
            self._at(one.arrival_ns, "arrival", slot)
        for worker in range(len(self._bells)):
            self._come(worker)
        while self._events:
            self._now, _, what, which = heapq.heappop(self._events)
            if what == "arrival":
                one = traffic[which]
                self._queue.put(
                    rank=one.rank,
                    slot=which,
                    enqueued_ns=one.arrival_ns,
                    expires_ns=one.expires_ns,
                    length=one.length,
                    share=one.share,
                    memory=one.memory,
                )
            elif what == "end":
                self._come(which)
                result.weights.append(tuple(self.router.pace.weights))
                self._look(which, traffic, result)
            elif which in self._free:  # its time to check again
                self._look(which, traffic, result)
            self._answer_bells(traffic, result)
        return result

    def _at(self, when_ns: int, what: str, which: int) -> None:
        self._order += 1
        heapq.heappush(self._events, (when_ns, self._order, what, which))

    def _come(self, worker: int) -> None:
        self._free[worker] = self._now
        self._queue.arrive(worker, self._now, self._now)

    def _answer_bells(self, traffic: Sequence[Offered], result: Routed) -> None:
        again = True
        while again:
            again = False
            for worker, bell in enumerate(self._bells):
                if bell.rung:
                    bell.rung = False
                    if worker in self._free:
                        again = True
                        self._look(worker, traffic, result)

    def _look(self, worker: int, traffic: Sequence[Offered], result: Routed) -> None:
        if self._dead.get(worker, self._now + 1) <= self._now:
            return
        got = self._queue.attempt(worker, self._free[worker], self._now)
        if isinstance(got, int):
            self._at(self._now + got, "look", worker)
        if not isinstance(got, Formed):
            return
        free = self._free.pop(worker)
        self._queue.depart(worker, self._now)
        slots = [member.slot for member in got.members]
        if not slots:  # all of them were dropped
            self._at(self._now, "end", worker)
            return
        end = self._now + self._service(worker, [traffic[slot] for slot in slots], self._now)
        if self._dead.get(worker, end + 1) <= end:
            return
        self._at(end, "end", worker)
        result.end_ns[slots], result.worker[slots] = end, worker
        result.batches.append(RoutedBatch(worker=worker, members=tuple(slots), formed=got, free_ns=free, end_ns=end))
