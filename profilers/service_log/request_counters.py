"""What one request of a user's own service did, by the counters of its thread and of the process.

For the thread of a request, wall = on-CPU + run-queue delay + off the CPU. In an event loop the thread is the loop's:
its on-CPU time is then that of all tasks that ran meanwhile.
"""

from __future__ import annotations

import gc
import threading
from dataclasses import dataclass
from threading import get_ident
from time import perf_counter_ns, process_time_ns, thread_time_ns
from typing import Any

from latfix.profilers.probes.kept_files import LockHeldFile

#: Wall clock, the thread's CPU time, its ``schedstat`` (empty: not kept), the process's CPU time, the time in
#: collections, the thread.
Reading = tuple[int, int, bytes, int, int, int]


class _Thread(threading.local):
    """The thread's own file of counters, closed with the thread."""

    def __init__(self) -> None:
        self.read = LockHeldFile("/proc/thread-self/schedstat").read
        self.latest: tuple[bytes, int] = (b"", 0)  # reading, and when


class _Collections:
    """Nanoseconds that the process has spent in Python's collector since it was first asked."""

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


#: A reading of ``schedstat`` takes as long as all else together: at a begin the last one will do that is no older
#: than this. At an end neither it nor the process is read where the thread was off the CPU no longer than this.
_RECENT_NS, _NO_TIME_NS = 20_000_000, 50_000

_thread = _Thread()
_collections = _Collections()


def counters_at_begin() -> Reading:
    """The counters of the thread that calls, where a request begins; some microseconds."""
    now = perf_counter_ns()
    text, at_ns = _thread.latest
    if now - at_ns > _RECENT_NS:
        text, at_ns = _thread.latest = _thread.read(), now
    return (now, thread_time_ns(), text, process_time_ns(), _collections.total_ns, get_ident())


def counters_at_end(before: Reading) -> Reading:
    """The counters where it ends, on whatever thread."""
    now, cpu = perf_counter_ns(), thread_time_ns()
    own = cpu - before[1]
    if before[5] == get_ident() and now - before[0] - own <= _NO_TIME_NS:
        return (now, cpu, before[2], before[3] + own, _collections.total_ns, before[5])
    text, _ = _thread.latest = _thread.read(), now
    return (now, cpu, text, process_time_ns(), _collections.total_ns, get_ident())


@dataclass(frozen=True, slots=True)
class Spent:
    """What lies between two readings; nanoseconds, ``None`` where this process cannot know.

    :param cpu_ns: of its thread; in an event loop with what other tasks computed meanwhile.
    :param runq_ns: its thread had work and no core.
    :param waited_ns: off the CPU of its own will, while the process had nothing to compute.
    :param gc_ns: collections that ran meanwhile, in whatever thread.
    """

    latency_ns: int
    cpu_ns: int | None
    runq_ns: int | None
    waited_ns: int | None
    gc_ns: int


def spent(before: Reading, after: Reading) -> Spent:
    """The difference of two readings."""
    latency = after[0] - before[0]
    cpu = queued = waited = None
    if before[5] == after[5]:
        cpu = min(after[1] - before[1], latency)
        if before[2] and after[2]:
            delay = int(after[2].split(b" ", 2)[1]) - int(before[2].split(b" ", 2)[1])
            queued = min(delay, latency - cpu)
            off = latency - cpu - queued
            # Where the process had something to compute, the interpreter's lock may be what it waited for.
            idle = off - (after[3] - before[3] - cpu)
            waited = off if 2 * idle >= off else max(idle, 0)
    return Spent(latency, cpu, queued, waited, min(after[4] - before[4], latency))
