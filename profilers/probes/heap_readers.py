"""State of glibc's heap."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

Reading = dict[str, float]

_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
#: A reading walks all free chunks (0.15 µs each) and holds the arenas' locks. After one that takes longer than this,
#: the reader pauses for so many times its duration.
_LONG_NS = 200_000
_REST = 500
#: Most free chunks for a reading on the requests' path.
_FEW_CHUNKS = 256


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


class HostHeap:
    """glibc's heap, by ``mallinfo2``; not available before glibc 2.33 and in musl."""

    __slots__ = ("_chunks", "_releasing", "_rested_ns", "_short")

    def __init__(self) -> None:
        self._rested_ns = 0
        self._chunks = 0
        # A short reading keeps the interpreter lock, as another thread may hold it for milliseconds afterwards. A
        # reading of a fragmented heap releases it, so that it does not block all threads.
        self._short = _mallinfo2(ctypes.PyDLL)
        self._releasing = _mallinfo2(ctypes.CDLL)

    @property
    def reader(self) -> Callable[[], Reading] | None:
        """For the sampler; ``None`` if the C library does not report its heap.

        It reads a heap with many free chunks seldom, and returns nothing in between.
        """
        return self._poll if self._releasing is not None else None

    @property
    def quick(self) -> bool:
        """True if it may be read on the requests' path: it has few free chunks."""
        return self._short is not None and self._chunks <= _FEW_CHUNKS

    def sizes(self) -> tuple[int, int, int]:
        """Bytes in arenas, in separate mappings, and free within arenas; call it only if :attr:`quick`."""
        info = self._read(self._short)
        return (info.arena, info.hblkhd, info.fordblks)

    def _poll(self) -> Reading:
        if time.perf_counter_ns() < self._rested_ns:
            return {}
        start = time.thread_time_ns()
        info = self._read(self._releasing)
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
