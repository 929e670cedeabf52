"""Measures unit costs of this machine: what a page fault, a mapping, a switch, a wake-up or a clock reading takes.

Each measurement is repeated in rounds. Its value is the rounds' median, its interval their central 80 %.
"""

from __future__ import annotations

import mmap
import os
import resource
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from latfix.profilers.probes.thread_counters import memory_cost_ns, snapshot_cost_ns

_PAGE = mmap.PAGESIZE
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCost:
    """What one event costs, in nanoseconds: the median, and the interval that eight tenths of the rounds lie in."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, rounds: list[float]) -> UnitCost:
        """From the cost that each round found; zero where none found any."""
        if not rounds:
            return cls(value=0.0, low=0.0, high=0.0)
        low, value, high = (float(q) for q in np.quantile(rounds, (0.1, 0.5, 0.9)))
        return cls(value=value, low=low, high=high)


def minor_fault(pages: int = 512, rounds: int = 9) -> UnitCost:
    """One minor page fault on anonymous memory of the usual page size, in CPU time of this thread."""
    return UnitCost.of(_fault_costs(lambda: mmap.mmap(-1, pages * _PAGE), pages, rounds))


def copy_fault(pages: int = 256, rounds: int = 7) -> UnitCost:
    """One minor page fault that copies a page of a private file mapping; zero where none can be mapped."""
    try:
        file = os.memfd_create("latfix-calibration")
    except (AttributeError, OSError):
        return UnitCost.of([])
    try:
        os.ftruncate(file, pages * _PAGE)
        os.pwrite(file, b"\1" * (pages * _PAGE), 0)
        return UnitCost.of(_fault_costs(lambda: mmap.mmap(file, pages * _PAGE, mmap.MAP_PRIVATE), pages, rounds))
    finally:
        os.close(file)


def _fault_costs(fresh: Callable[[], mmap.mmap], pages: int, rounds: int) -> list[float]:
    """Cost of a fault in each round: touching fresh pages against touching them again, by the kernel's count.

    Dividing by the faults that the kernel counted keeps huge pages and fault-around from reading as cheap faults.
    """
    touched = range(0, pages * _PAGE, _PAGE)
    costs = []
    for _ in range(rounds):
        with fresh() as memory:
            if hasattr(mmap, "MADV_NOHUGEPAGE"):
                memory.madvise(mmap.MADV_NOHUGEPAGE)
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
    return costs


def mapping(rounds: int = 30) -> UnitCost:
    """Mapping and unmapping a MiB that is not touched, in CPU time of this thread."""
    costs = []
    for _ in range(rounds):
        start = time.thread_time_ns()
        mmap.mmap(-1, _MIB).close()
        costs.append(float(time.thread_time_ns() - start))
    return UnitCost.of(costs)


def unmapping(mebibytes: int = 4, rounds: int = 5) -> UnitCost:
    """Giving a MiB of touched memory back to the kernel, in CPU time of this thread."""
    costs = []
    content = bytes(mebibytes * _MIB)
    for _ in range(rounds):
        memory = mmap.mmap(-1, len(content))
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        memory[:] = content
        start = time.thread_time_ns()
        memory.close()
        costs.append((time.thread_time_ns() - start) / mebibytes)
    return UnitCost.of(costs)


def switch(trips: int = 40, rounds: int = 5) -> UnitCost:
    """One switch between two threads that share a core, system calls that cause it included."""
    core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return UnitCost.of(_ping_pong(_PipePair, trips, rounds, core))


def wakeup(trips: int = 40, rounds: int = 5) -> UnitCost:
    """From notifying a condition variable until the waiting thread runs Python."""
    return UnitCost.of(_ping_pong(_EventPair, trips, rounds, None))


class _PipePair:
    """Hands a turn to and fro through two pipes."""

    def __init__(self) -> None:
        self._ends = (os.pipe(), os.pipe())

    def send(self, side: int) -> None:
        os.write(self._ends[side][1], b"x")

    def wait(self, side: int) -> None:
        os.read(self._ends[1 - side][0], 1)

    def close(self) -> None:
        for ends in self._ends:
            for end in ends:
                os.close(end)


class _EventPair:
    """Hands a turn to and fro through two condition variables."""

    def __init__(self) -> None:
        self._events = (threading.Event(), threading.Event())

    def send(self, side: int) -> None:
        self._events[side].set()

    def wait(self, side: int) -> None:
        event = self._events[1 - side]
        event.wait()
        event.clear()

    def close(self) -> None:
        return


def _ping_pong(kind: type[_PipePair] | type[_EventPair], trips: int, rounds: int, core: int | None) -> list[float]:
    """Nanoseconds a turn, for each round; both threads on ``core``, or where the kernel puts them."""
    costs: list[float] = []
    pair = kind()

    def settle() -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})

    def answer() -> None:
        settle()
        for _ in range(rounds * trips):
            pair.wait(1)
            pair.send(1)

    def ask() -> None:
        settle()
        for _ in range(rounds):
            start = time.perf_counter_ns()
            for _ in range(trips):
                pair.send(0)
                pair.wait(0)
            costs.append((time.perf_counter_ns() - start) / (2 * trips))

    threads = [threading.Thread(target=work, name="latfix-calibration", daemon=True) for work in (answer, ask)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pair.close()
    return costs


def timer_floor(rounds: int = 5, samples: int = 300) -> UnitCost:
    """What two adjacent readings of the clock lie apart at the 99th percentile."""
    return UnitCost.of([float(timer_floor_ns(samples)) for _ in range(rounds)])


def timer_floor_ns(samples: int = 1000) -> int:
    """The 99th percentile of the gap between two adjacent readings of the clock, in nanoseconds."""
    gaps = sorted(-time.perf_counter_ns() + time.perf_counter_ns() for _ in range(samples))
    return gaps[int(0.99 * (samples - 1))]


def thread_snapshot(rounds: int = 5) -> UnitCost:
    """One reading of a thread's counters."""
    return UnitCost.of([float(snapshot_cost_ns(60)) for _ in range(rounds)])


def memory_reading(rounds: int = 5) -> UnitCost:
    """One reading of the process's mapped and resident memory."""
    return UnitCost.of([float(memory_cost_ns(60)) for _ in range(rounds)])


#: What is measured, by name; each takes under 50 ms on a machine that is not busy.
MEASURES: dict[str, Callable[[], UnitCost]] = {
    "minor_fault": minor_fault,
    "copy_fault": copy_fault,
    "mapping": mapping,
    "unmapping_mib": unmapping,
    "switch": switch,
    "wakeup": wakeup,
    "timer_floor": timer_floor,
    "thread_snapshot": thread_snapshot,
    "memory_reading": memory_reading,
}


def measure() -> dict[str, UnitCost]:
    """All unit costs of this machine, now."""
    return {name: take() for name, take in MEASURES.items()}


def flat(costs: Mapping[str, UnitCost]) -> dict[str, float]:
    """Costs as ``calibration`` of ``run.json``."""
    values: dict[str, float] = {}
    for name, cost in costs.items():
        values |= {f"{name}_ns": cost.value, f"{name}_low_ns": cost.low, f"{name}_high_ns": cost.high}
    return values
