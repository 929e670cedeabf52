"""Counters of torch's caching allocator on the device, read at the end of batches.

One call copies all counters (``torch.cuda.memory_stats_as_nested_dict``; ``memory_stats`` flattens them, which takes
several times as long). The call takes the allocator's lock while it holds the interpreter's: if another thread is in
a driver call with that lock, the whole process stops. So it is made only while no other worker runs a batch, and
seldom enough to take at most 0.5 % of the time. A reading covers everything since the one before, in any batch.
Samplers follow the same rule (:class:`RunningBatches`).
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

#: The pause after a reading, in multiples of its duration.
_REST = 200
#: Allocators with counters: torch's own and the driver's. A pluggable one raises on a request for counters. Only the
#: first lists its blocks.
NATIVE, COUNTING = "native", ("native", "cudaMallocAsync")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorCounters:
    """One reading. Counts, and bytes taken and given, are since the process began; the other bytes are current.

    :param retries: how often all cached memory was given back because the device had no more
        (``num_alloc_retries``).
    :param ooms: how often that was not enough (``num_ooms``).
    :param allocs: segments taken from the device, or pages mapped; ``frees`` given back.
    :param syncs: waits of the allocator for all streams (``num_sync_all_streams``).
    :param taken_bytes: of those segments; ``given_bytes`` likewise.
    :param reserved_bytes: held from the device; ``allocated_bytes`` of them in use.
    :param pieces_bytes: free in segments that are partly in use (``inactive_split_bytes``).
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
    """A reading from the stats of torch's allocator; ``None`` if they are empty, as before its first use."""
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
    """Name of torch's allocator on ``device``; empty if torch uses no CUDA device."""
    torch = sys.modules.get("torch")
    if torch is None or not device.startswith("cuda") or not torch.cuda.is_initialized():
        return ""
    return str(torch.cuda.get_allocator_backend())


def cuda_counters(device: str) -> ReadCounters | None:
    """A reader of the counters of ``device``; ``None`` without a CUDA device or an allocator with counters."""
    if allocator_backend(device) not in COUNTING:
        return None
    import torch

    def read() -> AllocatorCounters | None:
        return from_nested(torch.cuda.memory_stats_as_nested_dict(device))

    return read


class RunningBatches:
    """Counts the workers that run a batch, and so may be in driver calls. With several devices, nothing is read.

    :ivar reads: number of readings for batches; ``cost_ns`` their total duration.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self.reads = 0
        self.cost_ns = 0

    def enter(self) -> None:
        """A worker begins a batch."""
        with self._lock:
            self._inside += 1

    def leave(self) -> None:
        """A worker ends its batch."""
        with self._lock:
            self._inside -= 1

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Driver calls outside batches: blocks readings meanwhile, and keeps their changes out of the next batch."""
        self.enter()
        try:
            yield
        finally:
            if self._inside == 1:  # a concurrent batch keeps its changes
                self.skip()
            self.leave()

    def note(self, columns: Mapping[str, memoryview[int]], batch_id: int) -> None:
        """At the end of a batch: does nothing here."""

    def skip(self) -> None:
        """Discard the changes since the last reading: does nothing here."""

    def idle(self, read: Callable[[], T]) -> T | None:
        """Call ``read`` while no worker runs a batch, and return its result; ``None`` if a worker does."""
        with self._lock:
            return None if self._inside else read()

    def sample(self, read: ReadCounters) -> AllocatorCounters | None:
        """Counters for a series over time; ``None`` if reading them would wait for a batch."""
        return self.idle(read)


class BatchCounters(RunningBatches):
    """Writes the changes since the last reading to the row of the batch that has just ended.

    :param read: makes one reading.
    :ivar first: the reading before the first batch; ``latest`` the last one.
    """

    def __init__(
        self, read: ReadCounters, first: AllocatorCounters, clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        super().__init__()
        self._read = read
        self._clock = clock
        self.latest = self.first = first
        # Batches that have ended since the last reading, minus those that were running then.
        self._unread = 0
        self._rested_ns = 0

    @classmethod
    def of(cls, read: ReadCounters | None, clock: Callable[[], int] = time.perf_counter_ns) -> BatchCounters | None:
        """Counters for a reader; ``None`` without a reader, or if it returns nothing."""
        first = None if read is None else read()
        return None if read is None or first is None else cls(read, first, clock)

    def skip(self) -> None:
        """Discard the changes since the last reading: memory was reserved ahead, for no batch."""
        self.latest = self._read() or self.latest

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            self._unread += 1

    def sample(self, read: ReadCounters) -> AllocatorCounters | None:
        """:meth:`RunningBatches.sample`, or the last reading if no batch has ended since."""
        return self.latest if self._unread <= 0 else self.idle(read)

    def note(self, columns: Mapping[str, memoryview[int]], batch_id: int) -> None:
        """At the end of a batch, after its answers are sent: read if due, and write the changes."""
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
        last, self.latest = self.latest, now
        self._unread = -self._inside
        columns["device_read"][batch_id] = 1
        for name in ("retries", "syncs"):
            columns[f"alloc_{name}"][batch_id] = getattr(now, name) - getattr(last, name)
        for name in ("allocs", "frees", "taken_bytes", "given_bytes"):
            columns[f"device_{name}"][batch_id] = getattr(now, name) - getattr(last, name)
        for name in ("reserved_bytes", "allocated_bytes", "pieces_bytes"):
            columns[f"device_{name}"][batch_id] = getattr(now, name)


def cuda_series(now: AllocatorCounters) -> dict[str, float]:
    """A reading of the device's counters by series."""
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


def cuda_reader(device: str, inside: RunningBatches | None = None) -> Callable[[], dict[str, float]] | None:
    """A reader of the allocator's counters for the sampler; ``None`` if there are none.

    :param inside: counts running batches on the device, during which nothing is read.
    """
    counters = cuda_counters(device)
    if counters is None:
        return None

    def read() -> dict[str, float]:
        now = counters() if inside is None else inside.sample(counters)
        return {} if now is None else cuda_series(now)

    return read
