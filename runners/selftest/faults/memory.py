"""Faults of memory: dropped pages, a heap that grows and shrinks, a fragmented heap."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence

from latfix.runners.selftest.faults.fault_log import Done, Stopwatch

PAGE = mmap.PAGESIZE
_MADV_DONTNEED = 4
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
#: Delay before memory is given back, so that the request's batch has ended.
_LATER_S = 0.02
#: The same for a fragmented heap, which is sampled rarely: long enough for a sample to see the growth.
_SEEN_S = 1.2
#: Called with the interpreter lock held.
_memset = ctypes.PyDLL(None).memset
_memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
#: Number of pages for measuring the time per page, and the largest mapping.
_PRICE_PAGES = 4096
_LARGEST_MAPPING = 512 << 20


class Heap:
    """The C library's allocator, called directly.

    :raises OSError: this is not a GNU C library.
    """

    def __init__(self) -> None:
        self._c = ctypes.CDLL(None, use_errno=True)
        if not all(hasattr(self._c, name) for name in ("malloc_trim", "mallopt", "mallinfo2")):
            raise OSError("no GNU C library: malloc_trim, mallopt and mallinfo2 are missing")
        self._c.malloc.restype = ctypes.c_void_p
        self._c.malloc.argtypes = [ctypes.c_size_t]
        self._c.free.argtypes = [ctypes.c_void_p]
        self._c.malloc_trim.argtypes = [ctypes.c_size_t]
        self._c.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def one_arena(self, *, trim_bytes: int) -> None:
        """Use one heap for all threads and blocks up to 32 MiB, which shrinks if ``trim_bytes`` are free at its top.

        Call it before other threads allocate.
        """
        self._c.mallopt(_M_ARENA_MAX, 1)
        self._c.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        self._c.mallopt(_M_TRIM_THRESHOLD, trim_bytes)
        self._c.mallopt(_M_TOP_PAD, 1 << 20)

    def malloc(self, size: int) -> int:
        """Allocate a block; the kernel provides its pages when they are touched."""
        address: int | None = self._c.malloc(size)
        if not address:
            raise MemoryError(f"malloc({size})")
        return address

    def free(self, address: int) -> None:
        self._c.free(address)

    def trim(self) -> None:
        """Return all free pages to the kernel."""
        self._c.malloc_trim(0)

    def drop(self, address: int, size: int) -> None:
        """Drop the pages of a mapping, outside the interpreter lock."""
        self._c.madvise(address, size, _MADV_DONTNEED)


def touch(address: int, size: int) -> int:
    """Write one byte to each page, outside the interpreter lock; returns CPU nanoseconds."""
    import numpy as np

    pages = np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(address))[::PAGE]
    start = time.thread_time_ns()
    pages += 1
    return time.thread_time_ns() - start


def touch_held(address: int, size: int) -> int:
    """Like :func:`touch` but holding the interpreter lock, like the allocation of a ``bytearray``."""
    start = time.thread_time_ns()
    _memset(address, 1, size)
    return time.thread_time_ns() - start


class PageFaults:
    """Touches a mapping whose pages were dropped with ``madvise(MADV_DONTNEED)``.

    Another thread drops the pages again after the request, so that only page faults are on its path. The added time
    is that of the first touch minus that of a second one.

    :param reach: touches memory at an address; returns CPU nanoseconds.
    """

    def __init__(self, reach: Callable[[int, int], int] = touch) -> None:
        self._heap, self._touch = Heap(), reach
        self._free: queue.SimpleQueue[mmap.mmap] = queue.SimpleQueue()
        self._used: queue.SimpleQueue[mmap.mmap] = queue.SimpleQueue()
        self._size = _PRICE_PAGES * PAGE
        prices = []
        for _ in range(5):
            mapping = self._mapping()
            first, again = (self._touch(_address(mapping), self._size) for _ in range(2))
            prices.append(max(first - again, 1) / _PRICE_PAGES)
            mapping.close()
        self.page_ns = sorted(prices)[len(prices) // 2]
        threading.Thread(target=self._drop, name="page-reaper", daemon=True).start()

    def reserve(self, ms: float, mappings: int = 3) -> None:
        """Make mappings large enough for faults of ``ms``."""
        self._size = min(int(ms * 1e6 / self.page_ns) * PAGE * 5 // 4, _LARGEST_MAPPING)
        for _ in range(mappings):
            self._free.put(self._mapping())

    def __call__(self, ms: float) -> Done:
        """Fault pages in for about ``ms``."""
        watch = Stopwatch()
        try:
            mapping = self._free.get_nowait()
        except queue.Empty:
            mapping = self._mapping()
        size = min(max(int(ms * 1e6 / self.page_ns), 1) * PAGE, len(mapping))
        first = self._touch(_address(mapping), size)
        again = self._touch(_address(mapping), size)
        self._used.put(mapping)
        return watch.stop(first - again)

    def _mapping(self) -> mmap.mmap:
        mapping = mmap.mmap(-1, self._size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError, AttributeError):  # a kernel without huge pages
            mapping.madvise(mmap.MADV_NOHUGEPAGE)
        return mapping

    def _drop(self) -> None:
        while True:
            mapping = self._used.get()
            self._heap.drop(_address(mapping), len(mapping))
            self._free.put(mapping)


def _address(mapping: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))


class HeapBlocks:
    """Makes a heap grow by blocks and touches them; another thread frees them after the request."""

    _SIZE: int
    #: Number of blocks for measuring the time per block, and the minimum and maximum of one fault.
    _MEASURED, _LEAST, _MOST = 0, 0, 0
    _KEPT_S: float
    _TRIMMED = False

    def __init__(self, heap: Heap | None = None) -> None:
        self._heap = heap or Heap()
        self._used: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        rounds = []
        for _ in range(5):
            held: list[int] = []
            rounds.append(self._grow(self._MEASURED, held).ns / self._MEASURED)
            self._give_back(held)
        self._block_ns = sorted(rounds)[2]
        threading.Thread(target=self._give_back_later, name="heap-trimmer", daemon=True).start()

    def __call__(self, ms: float) -> Done:
        """Grow the heap for about ``ms``."""
        held: list[int] = []
        done = self._grow(min(max(self._LEAST, round(ms * 1e6 / self._block_ns)), self._MOST), held)
        self._used.put(held)
        return done

    def _grow(self, blocks: int, held: list[int]) -> Done:
        watch = Stopwatch()
        for _ in range(blocks):
            held.append(self._heap.malloc(self._SIZE))
            touch(held[-1], self._SIZE)
        return watch.stop()

    def _give_back(self, held: list[int]) -> None:
        for address in reversed(held):  # from the top down, so that the heap shrinks
            self._heap.free(address)
        if self._TRIMMED:
            self._heap.trim()

    def _give_back_later(self) -> None:
        while True:
            held = self._used.get()
            time.sleep(self._KEPT_S)
            self._give_back(held)


class HeapGrowth(HeapBlocks):
    """Allocates blocks from a heap without free memory; frees and trims them after the request.

    Growth and trimming within one unit of work would cancel out in the process's memory counters.
    """

    _SIZE, _MEASURED, _LEAST, _MOST = 4 << 20, 4, 1, 128
    _KEPT_S, _TRIMMED = _LATER_S, True


class Fragments(HeapBlocks):
    """A heap with much free memory in pieces too small to use, so that larger blocks make it grow.

    :param holes_bytes: free memory in these pieces.
    """

    _PIECE = 48 << 10
    _SIZE, _MEASURED, _LEAST, _MOST = 192 << 10, 256, 64, sys.maxsize
    _KEPT_S = _SEEN_S

    def __init__(self, holes_bytes: int = 96 << 20) -> None:
        heap = Heap()
        pieces = [heap.malloc(self._PIECE) for _ in range(2 * holes_bytes // self._PIECE)]
        for address in pieces:
            touch(address, self._PIECE)
        for address in pieces[::2]:
            heap.free(address)
        self.kept: Sequence[int] = pieces[1::2]
        super().__init__(heap)
