"""Unit costs of this machine: a page fault, and returning memory to the kernel.

Each measurement is repeated in rounds. Its value is their median; its interval holds one more round in 80 % of cases.
"""

from __future__ import annotations

import mmap
import resource
import time
from collections.abc import Mapping, Sequence

import numpy as np

_PAGE = mmap.PAGESIZE
_MIB = 1 << 20
#: Pages that are touched, and MiB that are returned, in a round; rounds of each.
_PAGES, _RETURNED, _FAULT_ROUNDS, _RETURN_ROUNDS = 512, 4, 9, 5


def minor_fault() -> list[float]:
    """By round, nanoseconds of one minor page fault on anonymous memory, in CPU time of this thread.

    The difference between touching fresh pages and touching them again, divided by the faults that the kernel
    counted, so that huge pages and fault-around do not look like cheap faults.
    """
    touched = range(0, _PAGES * _PAGE, _PAGE)
    costs = []
    for _ in range(_FAULT_ROUNDS):
        with mmap.mmap(-1, _PAGES * _PAGE) as memory:
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


def unmapping() -> list[float]:
    """By round, nanoseconds of returning one MiB of touched memory to the kernel, in CPU time of this thread."""
    costs = []
    content = bytes(_RETURNED * _MIB)
    for _ in range(_RETURN_ROUNDS):
        memory = mmap.mmap(-1, len(content))
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        memory[:] = content
        start = time.thread_time_ns()
        memory.close()
        costs.append((time.thread_time_ns() - start) / _RETURNED)
    return costs


def unit_costs() -> dict[str, float]:
    """This machine's unit costs as in :func:`flat`, and the page size in bytes; about ten milliseconds each."""
    return flat({"minor_fault": minor_fault(), "unmapping_mib": unmapping()}) | {"page_bytes": mmap.PAGESIZE}


def flat(costs: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Costs as in ``calibration`` of ``run.json``: ``<name>_ns``, ``<name>_low_ns``, ``<name>_high_ns``.

    Zeros without rounds. The interval holds one more round whatever the distribution: it lies below the ``k``-th
    smallest of ``n`` in ``k / (n + 1)`` of cases (Weibull's plotting positions). With fewer than nine it ends at the
    extremes.

    :param costs: by name, nanoseconds in each round.
    """
    values: dict[str, float] = {}
    for name, rounds in costs.items():
        low, value, high = np.quantile(rounds or [0.0], (0.1, 0.5, 0.9), method="weibull").tolist()
        values |= {f"{name}_ns": value, f"{name}_low_ns": low, f"{name}_high_ns": high}
    return values
