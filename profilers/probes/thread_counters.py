"""A thread's own counters: on-CPU time, run-queue delay, switches and page faults.

For a thread over an interval, wall = on-CPU + run-queue delay + blocked. On-CPU comes from
``CLOCK_THREAD_CPUTIME_ID``; run-queue delay from the second field of ``/proc/thread-self/schedstat`` (its
first field is up to a scheduler tick stale and not used). Run-queue delay includes throttling by a cgroup quota.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable

from latfix.profilers.probes.heap_readers import HostHeap
from latfix.profilers.probes.kept_files import LockHeldFile
from latfix.run_record.schema import PROCESS_ACCOUNT, THREAD_ACCOUNT

Account = tuple[int, ...]
NO_ACCOUNT: Account = (0,) * len(THREAD_ACCOUNT)

#: A snapshot that takes longer was interrupted.
_TORN_NS = 60_000
_TRIES = 3
_PAGE = os.sysconf("SC_PAGE_SIZE")
_RUNQ = THREAD_ACCOUNT.index("runq_ns")
_MINFLT = THREAD_ACCOUNT.index("minflt")
#: Minor faults of a unit from which its memory is read; fewer cost at most 0.1 ms.
WORTH_READING = 64
#: Units after one with page faults whose memory is read too: they show memory that is given back.
_WATCHED_UNITS = 100
_NO_HEAP = (0, 0, 0)
_ARENA, _FREE = 2, 4  # in a reading of ProcessMemory
NO_GROWTH: Account = (0,) * (len(PROCESS_ACCOUNT) - 1)
#: ``fenv_t`` of glibc and musl on x86-64: the x87 environment of 28 bytes, then MXCSR.
_BYTES, _MXCSR = 32, 7
_DENORMAL = 1 << 1
_X86 = ("x86_64", "AMD64")


class DenormalFlag:
    """Whether the calling thread computed with denormal numbers: a sticky flag that costs nothing until it is read.

    Numbers too small for a full mantissa (float32: below 1.2e-38) take a slow path in some or all instructions,
    depending on the processor: some hundred cycles instead of one. The flag is bit 1 of MXCSR, "denormal operand"
    (Intel SDM, volume 1, 10.2.3): set by the first SSE or AVX instruction that reads one, per thread. It is never set
    if denormals are treated as zero (DAZ), nor on other processors. ``fetestexcept`` does not cover it.
    """

    __slots__ = ("_arguments", "_get", "_set", "_words")

    def __init__(self) -> None:
        buffer = ctypes.create_string_buffer(_BYTES)
        self._words = memoryview(buffer).cast("B").cast("I")
        self._arguments = (ctypes.byref(buffer),)
        self._get = self._set = None
        if sys.platform == "linux" and platform.machine() in _X86:
            library = ctypes.PyDLL(None)  # keeps the interpreter lock, like the other counters
            self._get, self._set = getattr(library, "fegetenv", None), getattr(library, "fesetenv", None)

    def met(self) -> bool:
        """True if the calling thread computed with a denormal number since its last call."""
        if self._get is None or self._set is None:
            return False
        self._get(*self._arguments)
        if not self._words[_MXCSR] & _DENORMAL:
            return False
        self._words[_MXCSR] &= ~_DENORMAL
        self._set(*self._arguments)
        return True


class ThreadCounters:
    """Counters of the thread that creates it; use it on that thread only, and close it there.

    Without scheduler statistics in the kernel, run-queue delay reads as zero and :attr:`has_run_delay` is False.
    """

    __slots__ = ("_denormals", "_file", "_flag", "_queued_ns", "reads")

    def __init__(self) -> None:
        self.reads = self._queued_ns = self._denormals = 0
        self._flag = DenormalFlag()
        self._file = LockHeldFile("/proc/thread-self/schedstat")
        self.snapshot()
        self.reads = 0  # counts only snapshots on the requests' path

    @property
    def has_run_delay(self) -> bool:
        """True if the kernel reports run-queue delay."""
        return self._file.open

    def snapshot(self) -> Account:
        """The thread's totals so far, in the order of :data:`latfix.run_record.schema.THREAD_ACCOUNT`.

        The readings are not atomic: a snapshot that was interrupted is repeated.
        """
        self.reads += 1
        for _ in range(_TRIES):
            start = time.perf_counter_ns()
            cpu = time.thread_time_ns()
            delay = int(self._file.read().split(b" ", 2)[1]) if self._file.open else 0
            if time.perf_counter_ns() - start < _TORN_NS:
                break
        self._queued_ns = delay
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        self._denormals += self._flag.met()
        switches, faults = (usage.ru_nvcsw, usage.ru_nivcsw), (usage.ru_minflt, usage.ru_majflt)
        return (cpu, delay, *switches, *faults, self._denormals)

    def wake(self) -> tuple[Account, int]:
        """A snapshot at the begin of work, and the run-queue delay since the last one: the delay of waking up.

        No unit's account contains that delay, as a thread reads its counters only once it runs.
        """
        before = self._queued_ns
        now = self.snapshot()
        return now, now[_RUNQ] - before

    def close(self) -> None:
        self._file.close()


def difference(later: Account, earlier: Account) -> Account:
    """The change between two snapshots."""
    return tuple(b - a for a, b in zip(earlier, later, strict=True))


class ProcessMemory:
    """Memory of this process, shared by the threads on the requests' path: mappings, resident pages, the heap.

    A reading is mapped, resident, arena, block and free bytes, as in :data:`schema.PROCESS_ACCOUNT`. Mapped are
    private writable mappings. The kernel batches the count of resident pages by core, so small changes mean nothing.
    Unreadable values are zero, and the heap's while reading it is slow.

    :ivar heap: the C library's heap.
    :ivar latest: the last reading of any thread.
    :ivar reads: number of readings, for their cost.
    """

    __slots__ = ("_file", "_watched", "heap", "latest", "reads")

    def __init__(self) -> None:
        self.heap = HostHeap()
        self.reads = 0
        self._watched = 0  # further units that begin with a reading
        self._file = LockHeldFile("/proc/self/statm")
        self.latest = self.read()

    def read(self) -> Account:
        self.reads += 1
        heap = self.heap.sizes() if self.heap.quick else _NO_HEAP
        if not self._file.open:
            return (0, 0, *heap)
        fields = self._file.read().split(b" ", 6)
        self.latest = (int(fields[5]) * _PAGE, int(fields[1]) * _PAGE, *heap)
        return self.latest

    def begin(self) -> Account:
        """The memory before a unit: read if units had page faults recently, else the last reading of any thread."""
        return self.read() if self._watched > 0 else self.latest

    def growth(self, before: Account, spent: Account) -> Account:
        """The change in a unit, and the free bytes before it; read only after page faults in this or recent units.

        :param before: from :meth:`begin`; the growth includes that of other threads.
        :param spent: the thread's account of the unit.
        """
        if spent[_MINFLT] >= WORTH_READING:
            self._watched = _WATCHED_UNITS
        elif self._watched > 0:
            self._watched -= 1
        else:
            return NO_GROWTH
        return self.change(before, self.read())

    @staticmethod
    def change(before: Account, after: Account) -> Account:
        """Growth between two readings, and the free bytes at the first."""
        mapped, resident, arena, blocks, free = difference(after, before)
        if not (before[_ARENA] and after[_ARENA]):  # one reading lacks the heap
            return (mapped, resident, 0, 0, 0, 0)
        return (mapped, resident, arena, blocks, arena + blocks - free, before[_FREE])

    def close(self) -> None:
        self._file.close()


def median_cost_ns(read: Callable[[], object], samples: int = 300) -> int:
    """Median nanoseconds of a reading, measured now."""
    costs = []
    for _ in range(samples):
        start = time.perf_counter_ns()
        read()
        costs.append(time.perf_counter_ns() - start)
    return int(statistics.median(costs))
