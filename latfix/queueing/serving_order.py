"""Waiting requests in the order in which they leave: classes, ageing, expected work, and limits of memory.

An order that depends on waiting times need not be recomputed as time goes on. If every class ages at the same rate,
the order of two requests is settled when the second is enqueued: a request of class ``r`` counts as if it had been
enqueued ``r`` ageing intervals later (dynamic priorities with equal slopes; J. R. Jackson, Some problems in queueing
with dynamic priorities, Naval Research Logistics Quarterly 7, 1960). So a heap by that time is enough, and no request
is overtaken by one that arrives after it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from latfix.queueing.length_buckets import alike
from latfix.settings import Schedule

#: Expected work beyond this many typical requests does not count: the bound on how long a request can be overtaken.
MOST_SHARES = 4.0
#: Distance between the keys of two classes without ageing; larger than any share of work.
_CLASS = 1e9


@dataclass(slots=True, eq=False)
class Waiting:
    """One prepared request in the queue.

    :param rank: 0 high, 1 normal, 2 low.
    :param sequence: order of enqueueing.
    :param slot: the recorder's slot.
    :param enqueued_ns: when it was enqueued.
    :param expires_ns: when its caller gives up; 0 for never.
    :param length: its bucket length (:func:`latfix.runners.scheduling.batch_queue.bucket_length`).
    :param inputs: what ``prepare`` returned.
    :param memory: predicted bytes in a batch of its own; 0 without a prediction.
    """

    rank: int
    sequence: int
    slot: int
    enqueued_ns: int
    expires_ns: int
    length: int
    inputs: Any
    memory: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """The order in which requests leave.

    :param schedule: by arrival, least expected work first, or most work per byte first.
    :param ageing_ns: the ageing interval; 0 for none: then a class always precedes the next one, and less work
        precedes more within a class.
    """

    schedule: Schedule = "arrival"
    ageing_ns: int = 0

    def key(self, rank: int, enqueued_ns: int, share: float) -> float:
        """The sort key, smallest first; ties leave in order of arrival.

        With ageing it is a time in nanoseconds: a request counts as if it had arrived one interval later for each
        class below the highest, and for each typical request that its work is worth, at most :data:`MOST_SHARES`.

        :param share: its expected work in typical requests (``shortest``), or how many times less work than a
            typical one it does per byte of memory (``work_per_byte``); ignored by ``arrival``.
        """
        if self.schedule == "arrival":
            return enqueued_ns + rank * self.ageing_ns if self.ageing_ns else rank
        if self.ageing_ns:
            return enqueued_ns + self.ageing_ns * (rank + min(share, MOST_SHARES))
        return rank * _CLASS + min(share, _CLASS / 2)


class Backlog:
    """Waiting requests, and the choice of the next batch. Adding and taking one are O(log n).

    :param by_length: members are chosen by closeness in length to the head, among all waiting requests.
    :param memory_limit: predicted bytes that a batch may need; 0 for no limit. A request that needs more is served
        alone.
    :ivar heap: waiting requests, each after its sort key and sequence.
    """

    __slots__ = ("_by_length", "_limit", "_plain", "_sequence", "heap", "ordering")

    def __init__(self, *, ordering: Ordering | None = None, by_length: bool = False, memory_limit: int = 0) -> None:
        self.ordering = ordering or Ordering()
        self._by_length = by_length
        self._limit = memory_limit
        self._plain = self.ordering == Ordering()
        self.heap: list[tuple[float, int, Waiting]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self.heap)

    def push(
        self,
        *,
        rank: int,
        slot: int,
        enqueued_ns: int,
        expires_ns: int = 0,
        length: int = 0,
        inputs: Any = None,
        share: float = 1.0,
        memory: int = 0,
    ) -> None:
        """Add a request.

        :param share: expected work; see :meth:`Ordering.key`.
        """
        sequence = self._sequence
        self._sequence = sequence + 1
        item = Waiting(rank, sequence, slot, enqueued_ns, expires_ns, length, inputs, memory)
        key = rank if self._plain else self.ordering.key(rank, enqueued_ns, share)
        heapq.heappush(self.heap, (key, sequence, item))

    def oldest_ns(self) -> int:
        """When the request that has waited longest was enqueued; O(n)."""
        return min(entry[2].enqueued_ns for entry in self.heap)

    def head_ns(self) -> int:
        """When the request that leaves first was enqueued."""
        return self.heap[0][2].enqueued_ns

    def pop(self, most: int, doomed: Callable[[Waiting], bool] | None = None) -> tuple[list[Waiting], list[Waiting]]:
        """Take the next batch of at most ``most`` requests.

        :param doomed: returns True for a request that is not worth serving any more when its turn comes.
        :returns: the members, head first, and the requests dropped on the way; there may be no members.
        """
        heap = self.heap
        if doomed is None and not self._limit and not (self._by_length and most > 1):
            return [heapq.heappop(heap)[2] for _ in range(min(most, len(heap)))], []
        dropped: list[Waiting] = []
        head = self._next(doomed, dropped)
        if head is None:
            return [], dropped
        if self._by_length and most > 1:
            return [head, *self._alike(head, most - 1, doomed, dropped)], dropped
        return self._fill(head, most, doomed, dropped), dropped

    def pop_behind(
        self, skip: int, most: int, doomed: Callable[[Waiting], bool] | None = None
    ) -> tuple[list[Waiting], list[Waiting]]:
        """As :meth:`pop`, among the requests behind the first ``skip``, which keep their places."""
        ahead = [heapq.heappop(self.heap) for _ in range(min(skip, len(self.heap)))]
        try:
            return self.pop(most, doomed) if self.heap else ([], [])
        finally:
            for entry in ahead:
                heapq.heappush(self.heap, entry)

    def last(self) -> Waiting:
        """The request that leaves last; O(n)."""
        return max(self.heap, key=lambda entry: entry[:2])[2]

    def _next(self, doomed: Callable[[Waiting], bool] | None, dropped: list[Waiting]) -> Waiting | None:
        while self.heap:
            item = heapq.heappop(self.heap)[2]
            if doomed is None or not doomed(item):
                return item
            dropped.append(item)
        return None

    def _fill(
        self, head: Waiting, most: int, doomed: Callable[[Waiting], bool] | None, dropped: list[Waiting]
    ) -> list[Waiting]:
        """The head and the following requests that fit; one that does not fit keeps its place."""
        members, misfits, largest = [head], list[tuple[float, int, Waiting]](), head.memory
        while self.heap and len(members) < most and len(misfits) < most:
            entry = heapq.heappop(self.heap)
            item = entry[2]
            if doomed is not None and doomed(item):
                dropped.append(item)
            elif self._fits(len(members) + 1, max(largest, item.memory)):
                members.append(item)
                largest = max(largest, item.memory)
            else:
                misfits.append(entry)
        for entry in misfits:
            heapq.heappush(self.heap, entry)
        return members

    def _alike(
        self, head: Waiting, most: int, doomed: Callable[[Waiting], bool] | None, dropped: list[Waiting]
    ) -> list[Waiting]:
        """The requests nearest to the head in length, within the bounds of :func:`length_buckets.alike`."""
        strict = not self.ordering.ageing_ns
        near = sorted(
            (entry[2] for entry in self.heap if alike(entry[2].length, head.length)),
            key=lambda item: (item.rank if strict else 0, abs(item.length - head.length), item.sequence),
        )
        members, misfits, largest = list[Waiting](), 0, head.memory
        for item in near:
            if len(members) + misfits == most:
                break
            if doomed is not None and doomed(item):  # asked only when its turn comes: the answer is counted
                dropped.append(item)
            elif self._fits(len(members) + 2, max(largest, item.memory)):
                members.append(item)
                largest = max(largest, item.memory)
            else:
                misfits += 1
        taken = {item.sequence for item in (*members, *dropped)}
        if taken:
            self.heap[:] = [entry for entry in self.heap if entry[1] not in taken]
            heapq.heapify(self.heap)
        return members

    def _fits(self, size: int, largest: int) -> bool:
        """True if a batch padded to its largest member stays within the limit."""
        return not self._limit or size * largest <= self._limit


class Limits(Protocol):
    """When a batch closes; read for each batch, because a controller may change it."""

    @property
    def size(self) -> int:
        """Most requests in a batch."""

    @property
    def window_ns(self) -> int:
        """How long the oldest request waits for more requests to fill the batch."""


@dataclass(frozen=True, slots=True)
class FixedLimits:
    """The limits of the settings."""

    size: int
    window_ns: int
