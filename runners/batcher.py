"""The priority queue between prepare threads and workers, and the batcher that empties it."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from latfix.buckets import alike
from latfix.request import Request


@dataclass(order=True, slots=True)
class Waiting:
    """One prepared request in the queue, ordered by priority, then by order of arrival.

    :param rank: 0 high, 1 normal, 2 low.
    :param sequence: order of enqueueing.
    :param slot: the recorder's slot.
    :param enqueued_ns: when it was enqueued.
    :param expires_ns: when its caller gives up; 0 for never.
    :param length: its bucket length (:func:`bucket_length`).
    :param inputs: what ``prepare`` returned.
    """

    rank: int
    sequence: int
    slot: int = field(compare=False)
    enqueued_ns: int = field(compare=False)
    expires_ns: int = field(compare=False)
    length: int = field(compare=False)
    inputs: Any = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Formed:
    """A batch whose membership is fixed.

    :param open_ns: the worker was free and the first member there.
    :param close_ns: full, or the window of the oldest member ended.
    """

    members: list[Waiting]
    open_ns: int
    close_ns: int


class BatchQueue:
    """Requests wait here for a worker.

    A free worker opens a batch as soon as one request waits and closes it when ``max_batch_size`` requests
    wait or the window of the oldest has ended, whichever is first; ``window_ns`` counts from the oldest
    one's enqueueing, so a request that has waited longer than the window leaves at once.

    :param by_length: members are chosen among those waiting by closeness in length to the head.
    :param clock: for tests on simulated time.
    """

    def __init__(
        self,
        *,
        max_batch_size: int,
        window_ns: int,
        by_length: bool = False,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._max = max_batch_size
        self._window_ns = window_ns
        self._by_length = by_length
        self._clock = clock
        self._heap: list[Waiting] = []
        self._sequence = 0
        self._closed = False
        self._changed = threading.Condition(threading.Lock())
        # One worker forms a batch at a time; the others wait for their turn here, not for requests.
        self._forming = threading.Lock()

    def __len__(self) -> int:
        return len(self._heap)

    def put(
        self, *, rank: int, slot: int, enqueued_ns: int, expires_ns: int = 0, length: int = 0, inputs: Any = None
    ) -> None:
        """Enqueue a prepared request."""
        with self._changed:
            item = Waiting(rank, self._sequence, slot, enqueued_ns, expires_ns, length, inputs)
            self._sequence += 1
            heapq.heappush(self._heap, item)
            self._changed.notify()

    def close(self) -> None:
        """No more requests: :meth:`take` returns what waits, then ``None``."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take(self, free_ns: int) -> Formed | None:
        """Form the next batch for a worker that has been free since ``free_ns``; ``None`` when closed."""
        with self._forming, self._changed:
            while not self._heap:
                if self._closed:
                    return None
                self._changed.wait()
            # With a full batch waiting nothing is decided by the window, and a long backlog is not searched.
            waiting = self._heap if len(self._heap) < self._max else self._heap[:1]
            oldest = min(item.enqueued_ns for item in waiting)
            open_ns = max(free_ns, oldest)
            leaves_ns = oldest + self._window_ns
            while len(self._heap) < self._max and not self._closed:
                left = leaves_ns - self._clock()
                if left <= 0:
                    break
                self._changed.wait(left / 1e9)
            members = self._pop()
            return Formed(members=members, open_ns=open_ns, close_ns=self._clock())

    def _pop(self) -> list[Waiting]:
        if not self._by_length or len(self._heap) <= 1 or self._max == 1:
            return [heapq.heappop(self._heap) for _ in range(min(self._max, len(self._heap)))]
        head = heapq.heappop(self._heap)
        near = sorted(
            (item for item in self._heap if alike(item.length, head.length)),
            key=lambda item: (item.rank, abs(item.length - head.length), item.sequence),
        )[: self._max - 1]
        taken = {item.sequence for item in near}
        self._heap = [item for item in self._heap if item.sequence not in taken]
        heapq.heapify(self._heap)
        return [head, *near]


def bucket_length(request: Request, key: str, elements: int) -> int:
    """What a request goes by where batches are ordered by length.

    :param key: a numeric feature; the elements of its inputs where that is empty or the request lacks it.
    """
    value = request.features.get(key) if key else None
    return round(value) if isinstance(value, int | float) else elements
