"""What one request of a user's own service did, by the counters of its thread and of the process.

For the thread of a request, wall = on-CPU + run-queue delay + off the CPU. In an event loop the thread is the loop's:
its on-CPU time is then that of all tasks that ran meanwhile.
"""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

from latfix.profilers.probes.kept_files import LockHeldFile

#: Wall clock, the thread's CPU time and run-queue delay (-1: not kept), the process's CPU time, time in collections,
#: the thread.
Reading = tuple[int, int, int, int, int, int]


class _Thread(threading.local):
    """The thread's own file of counters, closed with the thread."""

    file: LockHeldFile | None = None


_thread = _Thread()


class _Collections:
    """Nanoseconds that the process has spent in Python's collector since it was first asked."""

    def __init__(self) -> None:
        self.total_ns = self._start = 0
        gc.callbacks.append(self._callback)

    def _callback(self, phase: str, info: dict[str, Any]) -> None:
        del info
        now = time.perf_counter_ns()
        if phase == "start":
            self._start = now
        elif self._start:
            self.total_ns += now - self._start


_collections: _Collections | None = None


def watch_collections() -> None:
    """Count collections of this process from now on; twice is once."""
    global _collections
    _collections = _collections or _Collections()


def read_counters() -> Reading:
    """The counters, now, of the thread that calls; some 3 microseconds.

    Only after :func:`watch_collections` is the time in collections more than zero.
    """
    file = _thread.file
    if file is None:
        file = _thread.file = LockHeldFile("/proc/thread-self/schedstat")
    queued = int(file.read().split(b" ", 2)[1]) if file.open else -1
    return (
        time.perf_counter_ns(),
        time.thread_time_ns(),
        queued,
        time.process_time_ns(),
        0 if _collections is None else _collections.total_ns,
        threading.get_ident(),
    )
