"""Counters of one request of a user's own service: of its thread and of the process.

For the thread of a request, wall = on-CPU + run-queue delay + off-CPU. In an event loop the thread is the loop's, and
its on-CPU time is that of all tasks that ran meanwhile.
"""

from __future__ import annotations

import gc
import threading
from time import perf_counter_ns
from typing import Any

from latfix.profilers.probes.kept_files import LockHeldFile

#: Wall clock, the thread's CPU time, its ``schedstat`` (empty if not available), the process's CPU time, the time in
#: garbage collections, the thread.
Reading = tuple[int, int, bytes, int, int, int]


class _Thread(threading.local):
    """The thread's own file of counters, closed with the thread, and its latest reading with its time."""

    def __init__(self) -> None:
        self.open()

    def open(self) -> None:
        """Open the file; again in a forked process, where the one that was open is still the parent thread's."""
        self.read = LockHeldFile("/proc/thread-self/schedstat").read
        self.latest: tuple[bytes, int] = (b"", 0)


class _Collections:
    """Nanoseconds that the process has spent in Python's garbage collector since this object was created."""

    def __init__(self) -> None:
        self.total_ns = self._start = 0
        gc.callbacks.append(self._callback)

    def _callback(self, phase: str, info: dict[str, Any]) -> None:
        del info
        now = perf_counter_ns()
        if phase == "start":
            self._start = now
        elif self._start:
            self.total_ns += now - self._start


#: A reading of ``schedstat`` takes as long as all others together. A begin reuses the last one up to the first age;
#: an end reads neither it nor the process's CPU time if the thread was off-CPU for at most the second time.
RECENT_NS, NO_TIME_NS = 20_000_000, 50_000

#: Read where a request begins and ends (:mod:`latfix.profilers.service_log.recorder`): after a pause, each further
#: function costs some microseconds, as its code is in no cache.
OF_THREAD = _Thread()
COLLECTIONS = _Collections()


def spent(before: Reading, after: Reading) -> tuple[int | None, int | None, int | None, int]:
    """Time between two readings; nanoseconds, ``None`` if unknown.

    :returns: on-CPU time of its thread, in an event loop including other tasks; run-queue delay of its thread;
        voluntary off-CPU time while the process had nothing to compute; garbage collections meanwhile, in any thread.
    """
    latency = after[0] - before[0]
    cpu = queued = waited = None
    if before[5] == after[5]:
        cpu = min(after[1] - before[1], latency)
        if before[2] and after[2]:
            delay = int(after[2].split(b" ", 2)[1]) - int(before[2].split(b" ", 2)[1])
            queued = min(delay, latency - cpu)
            off = latency - cpu - queued
            # While another thread computed, this one may have waited for the interpreter's lock.
            idle = off - (after[3] - before[3] - cpu)
            waited = off if 2 * idle >= off else max(idle, 0)
    return cpu, queued, waited, min(after[4] - before[4], latency)
