"""Unit costs of this machine, measured at the start of a run: what a page fault and a clock reading take."""

from __future__ import annotations

import mmap
import resource
import statistics
import time


def minor_fault_ns(pages: int = 512, rounds: int = 9) -> float:
    """Median cost of one minor page fault on anonymous memory, in nanoseconds of this thread's CPU time.

    Touches fresh pages one by one and divides by the faults that the kernel counted, so that huge pages
    or fault-around are not taken for cheap faults.
    """
    costs = []
    page = mmap.PAGESIZE
    for _ in range(rounds):
        with mmap.mmap(-1, pages * page) as memory:
            if hasattr(mmap, "MADV_NOHUGEPAGE"):
                memory.madvise(mmap.MADV_NOHUGEPAGE)
            touched = range(0, pages * page, page)
            faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
            start = time.thread_time_ns()
            for offset in touched:
                memory[offset] = 1
            first = time.thread_time_ns() - start
            faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - faults
            start = time.thread_time_ns()
            for offset in touched:
                memory[offset] = 1
            again = time.thread_time_ns() - start
        if faults:
            costs.append(max(first - again, 0) / faults)
    return float(statistics.median(costs)) if costs else 0.0


def timer_floor_ns(samples: int = 1000) -> int:
    """The 99th percentile of the gap between two adjacent readings of the clock, in nanoseconds."""
    gaps = sorted(-time.perf_counter_ns() + time.perf_counter_ns() for _ in range(samples))
    return gaps[int(0.99 * (samples - 1))]
