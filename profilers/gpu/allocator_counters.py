"""What torch's caching allocator did to the device, read at the end of batches: counters, and what it holds.

One call copies all counters (``torch.cuda.memory_stats_as_nested_dict``; flattening them, as ``memory_stats`` does,
takes several times as long). It takes the allocator's lock while it holds the interpreter's: a thread that is inside
a call of the device's driver would stop the whole process with it. It is therefore made only where no other worker
is at a batch, and seldom enough to take at most half a per cent of the time; a reading covers what happened since the
one before, whichever batches that was in. Samplers keep to the same rule (:class:`Inside`).
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

#: A reading is followed by a rest of so many times its length.
_REST = 200
#: torch's own allocator, and the driver's in its place: these count. A program's own (``pluggable``) raises where
#: it is asked for counters; only the first lists its blocks.
NATIVE, COUNTING = "native", ("native", "cudaMallocAsync")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorCounters:
    """One reading. Counts and bytes taken or given are since the process began, the rest is what it holds now.

    :param retries: all cached memory was given back because the device had no more (``num_alloc_retries``).
    :param ooms: that was not enough (``num_ooms``).
    :param allocs: segments taken from the device, or pages mapped; ``frees`` given back.
    :param syncs: times that the allocator waited for all streams (``num_sync_all_streams``).
    :param taken_bytes: of those segments; ``given_bytes`` likewise.
    :param reserved_bytes: held from the device; ``allocated_bytes`` of it in use.
    :param pieces_bytes: free in segments that something else lies in (``inactive_split_bytes``).
    """

    retries: int
    ooms: int
    allocs: int
    frees: int
    syncs: int
    taken_bytes: int
    given_bytes: int
    reserved_bytes: int
    allocated_bytes: int
    pieces_bytes: int


ReadCounters = Callable[[], AllocatorCounters | None]


def from_nested(stats: Mapping[str, Any]) -> AllocatorCounters | None:
    """A reading from what torch's allocator tells; ``None`` where it tells nothing, as before its first use."""
    if "num_alloc_retries" not in stats or "reserved_bytes" not in stats:
        return None
    reserved = stats["reserved_bytes"]["all"]
    return AllocatorCounters(
        retries=stats["num_alloc_retries"],
        ooms=stats.get("num_ooms", 0),
        allocs=stats.get("num_device_alloc", 0),
        frees=stats.get("num_device_free", 0),
        syncs=stats.get("num_sync_all_streams", 0),
        taken_bytes=reserved["allocated"],
        given_bytes=reserved["freed"],
        reserved_bytes=reserved["current"],
        allocated_bytes=stats["allocated_bytes"]["all"]["current"],
        pieces_bytes=stats["inactive_split_bytes"]["all"]["current"],
    )


def allocator_backend(device: str) -> str:
    """The allocator that torch takes the memory of ``device`` from; empty where torch uses no CUDA device."""
    torch = sys.modules.get("torch")
    if torch is None or not device.startswith("cuda") or not torch.cuda.is_initialized():
        return ""
    return str(torch.cuda.get_allocator_backend())


def cuda_counters(device: str) -> ReadCounters | None:
    """Reads the counters of ``device``; ``None`` where torch uses no CUDA device, or its allocator counts nothing."""
    if allocator_backend(device) not in COUNTING:
        return None
    import torch

    def read() -> AllocatorCounters | None:
        return from_nested(torch.cuda.memory_stats_as_nested_dict(device))

    return read


class Inside:
    """Who is at a batch, and with it in calls of the device's driver; on several devices nothing else is counted.

    :ivar reads: how many readings were made for batches; ``cost_ns`` what they took.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self.reads = 0
        self.cost_ns = 0

    def enter(self) -> None:
        """A worker takes up a batch."""
        with self._lock:
            self._inside += 1

    def leave(self) -> None:
        """A worker is done with its batch."""
        with self._lock:
            self._inside -= 1

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Calls of the driver for no batch: nobody reads meanwhile, and what they did is not the next batch's."""
        self.enter()
        try:
            yield
        finally:
            if self._inside == 1:  # a batch beside it keeps what it has done
                self.skip()
            self.leave()

    def note(self, columns: Mapping[str, memoryview[int]], batch_id: int) -> None:
        """At the end of a batch: nothing is known of one alone."""

    def skip(self) -> None:
        """Memory was reserved ahead."""

    def idle(self, read: Callable[[], T]) -> T | None:
        """What ``read`` returns where nobody is at a batch, and nobody begins one meanwhile; ``None`` elsewhere."""
        with self._lock:
            return None if self._inside else read()

    def sample(self, read: ReadCounters) -> AllocatorCounters | None:
        """Counters for a series over time; ``None`` where they cannot be had without waiting for a batch."""
        return self.idle(read)


class BatchCounters(Inside):
    """Writes what happened since the last reading into the row of the batch that has just ended.

    :param read: one reading.
    :ivar first: the reading before the first batch.
    """

    def __init__(
        self, read: ReadCounters, first: AllocatorCounters, clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        super().__init__()
        self._read = read
        self._clock = clock
        self._last = self.first = first
        # Batches that have ended since the last reading; the one that it was made for has yet to end.
        self._unread = 0
        self._rested_ns = 0

    @classmethod
    def of(cls, read: ReadCounters | None, clock: Callable[[], int] = time.perf_counter_ns) -> BatchCounters | None:
        """For a reader; ``None`` where there is none, or where it has nothing to tell."""
        first = None if read is None else read()
        return None if read is None or first is None else cls(read, first, clock)

    @property
    def latest(self) -> AllocatorCounters:
        """The last reading that was made."""
        return self._last

    def skip(self) -> None:
        """What happened since the last reading is of no batch: memory that was reserved ahead."""
        self._last = self._read() or self._last

    def leave(self) -> None:
        """:meth:`Inside.leave`."""
        with self._lock:
            self._inside -= 1
            self._unread += 1

    def sample(self, read: ReadCounters) -> AllocatorCounters | None:
        """:meth:`Inside.sample`; the last reading where it holds what all batches did that have ended."""
        return self._last if self._unread <= 0 else self.idle(read)

    def note(self, columns: Mapping[str, memoryview[int]], batch_id: int) -> None:
        """At the end of a batch, when its members have their answers: read, if it is time, and write the changes."""
        start = self._clock()
        if start < self._rested_ns or self._inside > 1:
            self._unread = max(self._unread, 0) + 1
            return
        now = self._read()
        took = self._clock() - start
        self._rested_ns = start + took + _REST * took
        self.reads += 1
        self.cost_ns += took
        if now is None:
            return
        last, self._last = self._last, now
        self._unread = -self._inside
        columns["device_read"][batch_id] = 1
        columns["alloc_retries"][batch_id] = now.retries - last.retries
        columns["alloc_syncs"][batch_id] = now.syncs - last.syncs
        columns["device_allocs"][batch_id] = now.allocs - last.allocs
        columns["device_frees"][batch_id] = now.frees - last.frees
        columns["device_taken_bytes"][batch_id] = now.taken_bytes - last.taken_bytes
        columns["device_given_bytes"][batch_id] = now.given_bytes - last.given_bytes
        columns["device_reserved_bytes"][batch_id] = now.reserved_bytes
        columns["device_allocated_bytes"][batch_id] = now.allocated_bytes
        columns["device_pieces_bytes"][batch_id] = now.pieces_bytes


def cuda_series(now: AllocatorCounters) -> dict[str, float]:
    """A reading of the device's counters by the names of its series."""
    return {
        "cuda.allocated_bytes": float(now.allocated_bytes),
        "cuda.reserved_bytes": float(now.reserved_bytes),
        "cuda.inactive_split_bytes": float(now.pieces_bytes),
        "cuda.alloc_retries": float(now.retries),
        "cuda.ooms": float(now.ooms),
        "cuda.device_allocs": float(now.allocs),
        "cuda.device_frees": float(now.frees),
        "cuda.sync_all_streams": float(now.syncs),
    }


def cuda_reader(device: str, inside: Inside | None = None) -> Callable[[], dict[str, float]] | None:
    """A reader of the allocator's counters for the sampler; ``None`` where there is nobody to tell them.

    :param inside: who is at a batch on the device: meanwhile nothing is read.
    """
    counters = cuda_counters(device)
    if counters is None:
        return None

    def read() -> dict[str, float]:
        now = counters() if inside is None else inside.sample(counters)
        return {} if now is None else cuda_series(now)

    return read
