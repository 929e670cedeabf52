"""Requests that wait, in the order in which they leave: classes, ageing, expected work, and what fits into memory.

An order that depends on how long everybody has waited need not be sorted again as time goes on. Where every class
gains on the others at the same pace, who of two requests comes first is settled when the second one is enqueued: a
request of class ``r`` counts as if it had been enqueued ``r`` ageing intervals later (dynamic priorities with equal
slopes; J. R. Jackson, Some problems in queueing with dynamic priorities, Naval Research Logistics Quarterly 7, 1960).
A heap by that moment is all it takes, and nobody is overtaken by a request that came later than that.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from latfix.queueing.length_buckets import alike
from latfix.settings import Schedule

#: A request that is expected to work longer than so many typical ones waits as one of that many: the bound on how
#: long it can be overtaken.
MOST_SHARES = 4.0
#: Between the keys of two classes where a class always comes first; no share of work is as large.
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
    :param memory: bytes that it is predicted to need in a batch alone; 0 where nothing is predicted.
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
    """Who leaves first.

    :param schedule: by arrival, the least expected work first, or the most work per byte first.
    :param ageing_ns: the ageing interval; 0 for none: then a class always comes before the next one, and less work
        before more within a class.
    """

    schedule: Schedule = "arrival"
    ageing_ns: int = 0

    def key(self, rank: int, enqueued_ns: int, share: float) -> float:
        """What the queue is sorted by, smallest first; ties leave in the order in which they came.

        With ageing it is a moment in nanoseconds: a request counts as if it had come one interval later for each
        class below the highest, and one for each typical request that its work is worth, :data:`MOST_SHARES` at
        most.

        :param share: its expected work in typical requests (``shortest``), or how many times less work than a
            typical one it does with a byte of memory (``work_per_byte``); not looked at by arrival.
        """
        if self.schedule == "arrival":
            return enqueued_ns + rank * self.ageing_ns if self.ageing_ns else rank
        if self.ageing_ns:
            return enqueued_ns + self.ageing_ns * (rank + min(share, MOST_SHARES))
        return rank * _CLASS + min(share, _CLASS / 2)


class Backlog:
    """What waits, and who of it makes up the next batch. Adding and taking one are O(log n) in its length.

    :param by_length: members are chosen among those waiting by closeness in length to the head; this looks at all
        of them.
    :param memory_limit: bytes that a batch may be predicted to need; 0 for no limit. A request that needs more
        leaves alone.
    :ivar heap: who waits, behind what it is sorted by: a key and its sequence.
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

        :param share: of expected work; see :meth:`Ordering.key`.
        """
        sequence = self._sequence
        self._sequence = sequence + 1
        item = Waiting(rank, sequence, slot, enqueued_ns, expires_ns, length, inputs, memory)
        key = rank if self._plain else self.ordering.key(rank, enqueued_ns, share)
        heapq.heappush(self.heap, (key, sequence, item))

    def oldest_ns(self) -> int:
        """When the one who waits longest was enqueued; looks at all."""
        return min(entry[2].enqueued_ns for entry in self.heap)

    def head_ns(self) -> int:
        """When the one who leaves first was enqueued."""
        return self.heap[0][2].enqueued_ns

    def pop(self, most: int, doomed: Callable[[Waiting], bool] | None = None) -> tuple[list[Waiting], list[Waiting]]:
        """Take the next batch of at most ``most`` requests.

        :param doomed: says of a request whose turn has come whether there is no point in serving it any more.
        :returns: the members, head first, and those that were dropped on the way; there may be no members.
        """
        heap = self.heap
        if doomed is None and not self._limit and not (self._by_length and most > 1):
            return [heapq.heappop(heap)[2] for _ in range(min(most, len(heap)))], []
        dropped: list[Waiting] = []
        head = self._next(doomed, dropped)
        if head is None:
            return [], dropped
        if self._by_length and most > 1:
            return [head, *self._alike(head, most - 1, doomed)], dropped
        return self._fill(head, most, doomed, dropped), dropped

    def pop_behind(
        self, skip: int, most: int, doomed: Callable[[Waiting], bool] | None = None
    ) -> tuple[list[Waiting], list[Waiting]]:
        """As :meth:`pop`, of those behind the first ``skip``, which keep their places."""
        ahead = [heapq.heappop(self.heap) for _ in range(min(skip, len(self.heap)))]
        try:
            return self.pop(most, doomed) if self.heap else ([], [])
        finally:
            for entry in ahead:
                heapq.heappush(self.heap, entry)

    def last(self) -> Waiting:
        """The one who leaves last; looks at all."""
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
        """The head and those after it that fit; one that does not fit keeps its place and heads a batch soon."""
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

    def _alike(self, head: Waiting, most: int, doomed: Callable[[Waiting], bool] | None) -> list[Waiting]:
        """Those nearest to the head in length, within the bounds of :func:`latfix.queueing.length_buckets.alike`."""
        strict = not self.ordering.ageing_ns
        near = sorted(
            (
                entry[2]
                for entry in self.heap
                if alike(entry[2].length, head.length) and not (doomed is not None and doomed(entry[2]))
            ),
            key=lambda item: (item.rank if strict else 0, abs(item.length - head.length), item.sequence),
        )
        members, largest = list[Waiting](), head.memory
        for item in near[:most]:
            if self._fits(len(members) + 2, max(largest, item.memory)):
                members.append(item)
                largest = max(largest, item.memory)
        taken = {item.sequence for item in members}
        if taken:
            self.heap[:] = [entry for entry in self.heap if entry[1] not in taken]
            heapq.heapify(self.heap)
        return members

    def _fits(self, size: int, largest: int) -> bool:
        """Whether a batch padded to its largest member stays within the limit."""
        return not self._limit or size * largest <= self._limit


class Limits(Protocol):
    """When a batch closes; read anew for each batch, because a controller may move it."""

    @property
    def size(self) -> int:
        """Most requests in a batch."""

    @property
    def window_ns(self) -> int:
        """How long the oldest request waits for company."""


@dataclass(frozen=True, slots=True)
class FixedLimits:
    """The limits of the settings."""

    size: int
    window_ns: int
