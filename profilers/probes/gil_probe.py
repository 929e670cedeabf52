"""The interpreter lock, felt from outside: how long a thread that has woken waits until Python lets it run.

A thread of its own sleeps for a fixed time again and again. How much later than its wake-up it runs Python,
less what it waited for a core (its own run-queue delay) and at most the CPU time that this process used since it
fell asleep, is the wait for the interpreter lock. Timer and wake-up take some tens of microseconds of it on an
idle machine. What is later than both explain is a stall of the whole machine: a hypervisor that took all its cores.
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

from latfix.profilers.probes.stage_recorder import SampleLog
from latfix.profilers.probes.thread_counters import ThreadCounters

PERIOD_S = 0.02
#: What timer and wake-up take on an idle machine; shorter waits say nothing about the lock.
USUAL_NS = 200_000
WAIT_SERIES = "gil.wait_ns"
#: A wake-up that is later than this, though neither a core nor the lock was waited for: the machine stood still.
STALL_SERIES = "host.stall_ns"
STALL_NS = 1_000_000
INTERVAL_SERIES = "gil.switch_interval_ns"
_RUNQ = 1


class LockProbe:
    """Logs ``gil.wait_ns`` every 20 ms, at the time when the thread should have run.

    :param period_s: seconds asleep between two readings.
    """

    def __init__(self, samples: SampleLog, *, period_s: float = PERIOD_S) -> None:
        self._samples = samples
        self._period_s = period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="latfix-gil", daemon=True)
        self.cpu_ns = 0
        self.readings = 0

    def __enter__(self) -> LockProbe:
        self._samples.add(time.perf_counter_ns(), INTERVAL_SERIES, sys.getswitchinterval() * 1e9)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        counters = ThreadCounters()
        period_ns = int(self._period_s * 1e9)
        queued, used = counters.snapshot()[_RUNQ], time.process_time_ns()
        while not self._stop.is_set():
            due = time.perf_counter_ns() + period_ns
            # Not Event.wait: its lock and condition are Python code of their own, with waits of their own.
            time.sleep(self._period_s)
            wait = time.perf_counter_ns() - due
            if wait > USUAL_NS:  # of a shorter one nobody asks which part was a wait for a core
                before, queued = queued, counters.snapshot()[_RUNQ]
                wait -= queued - before
            before, used = used, time.process_time_ns()
            # While the lock is waited for, some thread of this process has it: who holds it without a core is
            # kept from running, by others than this process.
            locked = min(wait, used - before)
            self._samples.add(due, WAIT_SERIES, float(max(locked, 0)))
            if wait - locked > STALL_NS:
                self._samples.add(due, STALL_SERIES, float(wait - locked))
            self.readings += 1
            self.cpu_ns = time.thread_time_ns()
        counters.close()
