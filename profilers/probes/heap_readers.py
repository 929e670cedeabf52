"""State of the allocators: glibc's heap on the host, PyTorch's caching allocator on CUDA."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

Reading = dict[str, float]

_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


#: A reading walks all free chunks and holds the arenas' locks meanwhile: 0.15 µs a chunk.
#: One that took longer than this is followed by a rest of so many times its length.
_LONG_NS = 200_000
_REST = 500
#: On the requests' path the heap is read only while it has at most so many free chunks.
_FEW_CHUNKS = 256


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


class HostHeap:
    """glibc's heap, by ``mallinfo2``; absent where the C library has none (glibc before 2.33, musl)."""

    __slots__ = ("_chunks", "_letting_go", "_rested_ns", "_short")

    def __init__(self) -> None:
        self._rested_ns = 0
        self._chunks = 0
        # A short reading keeps the interpreter lock, which another thread might not give back for milliseconds;
        # one of a heap in many pieces must not hold every thread up.
        self._short = _mallinfo2(ctypes.PyDLL)
        self._letting_go = _mallinfo2(ctypes.CDLL)

    @property
    def available(self) -> bool:
        """Whether it can be read at all."""
        return self._letting_go is not None

    @property
    def quick(self) -> bool:
        """Whether it may be read on the requests' path: there is one, of few free chunks."""
        return self._short is not None and self._chunks <= _FEW_CHUNKS

    def sizes(self) -> tuple[int, int, int]:
        """Bytes in arenas, in mappings of their own, and free within arenas; for where it is :attr:`quick`."""
        info = self._read(self._short)
        return (info.arena, info.hblkhd, info.fordblks)

    def poll(self) -> Reading:
        """A reading for the sampler; nothing while it rests from one that took long."""
        if time.perf_counter_ns() < self._rested_ns:
            return {}
        start = time.thread_time_ns()
        info = self._read(self._letting_go)
        took = time.thread_time_ns() - start
        if took > _LONG_NS:
            self._rested_ns = time.perf_counter_ns() + _REST * took
        return {
            "malloc.arena_bytes": info.arena,
            "malloc.used_bytes": info.uordblks,
            "malloc.free_bytes": info.fordblks,
            "malloc.mmapped_bytes": info.hblkhd,
            "malloc.trimmable_bytes": info.keepcost,
            "malloc.free_chunks": info.ordblks,
        }

    def _read(self, function: Any) -> Any:
        info = function()
        self._chunks = info.ordblks + info.smblks
        return info


def _mallinfo2(kind: type[ctypes.CDLL]) -> Any:
    try:
        function = kind(None).mallinfo2
    except (OSError, AttributeError):
        return None
    function.restype = _Mallinfo2
    function.argtypes = ()
    return function


def host_heap_reader(heap: HostHeap | None = None) -> Callable[[], Reading] | None:
    """A reader of glibc's heap for the sampler; ``None`` where the C library does not report it.

    In a heap of many free chunks it reads seldom, and returns nothing in between.
    """
    heap = heap or HostHeap()
    return heap.poll if heap.available else None
