"""The interpreter lock, felt from outside: how long a thread that has woken waits until Python lets it run.

A thread of its own sleeps for a fixed time again and again. How much later than its wake-up it runs Python,
less what it waited for a core (its own run-queue delay), is the wait for the interpreter lock where the thread slept
again after it had woken: who waits for the lock sleeps for at most the switch interval at a time, and each time is a
voluntary switch. Whether the holder ran meanwhile or had no core makes no difference to the one who waits. Timer
and wake-up take some tens of microseconds of it on an idle machine. What is later than these switches explain is a
stall of the whole machine: a hypervisor that took all its cores.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Self

from latfix.profilers.probes.own_thread import OwnThread
from latfix.profilers.probes.stage_recorder import SampleLog
from latfix.profilers.probes.thread_counters import ThreadCounters
from latfix.run_record.schema import THREAD_ACCOUNT

PERIOD_S = 0.02
#: What timer and wake-up take on an idle machine; shorter waits say nothing about the lock.
USUAL_NS = 200_000
WAIT_SERIES = "gil.wait_ns"
#: A wake-up that is later than this, though neither a core nor the lock was waited for: the machine stood still.
STALL_SERIES = "host.stall_ns"
STALL_NS = 1_000_000
INTERVAL_SERIES = "gil.switch_interval_ns"
_RUNQ, _VCSW = THREAD_ACCOUNT.index("runq_ns"), THREAD_ACCOUNT.index("vcsw")
#: Each voluntary switch of a thread that waits for the lock lasts for the switch interval and a wake-up at most.
SLACK = 1.5


class LockProbe(OwnThread):
    """Logs ``gil.wait_ns`` every 20 ms, at the time when the thread should have run.

    :param period_s: seconds asleep between two readings.
    :param look: called with the time at each, while the thread has the lock.
    """

    def __init__(
        self, samples: SampleLog, *, period_s: float = PERIOD_S, look: Callable[[int], None] | None = None
    ) -> None:
        super().__init__("gil")
        self._samples, self._look = samples, look
        self._period_s = period_s
        self.readings = 0

    def __enter__(self) -> Self:
        self._samples.add(time.perf_counter_ns(), INTERVAL_SERIES, sys.getswitchinterval() * 1e9)
        return super().__enter__()

    def _run(self) -> None:
        counters = ThreadCounters()
        period_ns, interval_ns = int(self._period_s * 1e9), sys.getswitchinterval() * 1e9
        before = counters.snapshot()
        while not self._stop.is_set():
            due = time.perf_counter_ns() + period_ns
            # Not Event.wait: its lock and condition are Python code of their own, with waits of their own.
            time.sleep(self._period_s)
            now = time.perf_counter_ns()
            late = now - due
            after = counters.snapshot()
            late -= after[_RUNQ] - before[_RUNQ]
            locked, stood_still = divided(late, after[_VCSW] - before[_VCSW] - 1, interval_ns)
            before = after
            self._samples.add(due, WAIT_SERIES, locked)
            if stood_still > STALL_NS:
                self._samples.add(due, STALL_SERIES, stood_still)
            if self._look is not None:
                self._look(now)
            self.readings += 1
            self.cpu_ns = time.thread_time_ns()
        counters.close()


def divided(late_ns: float, switches: int, interval_ns: float) -> tuple[float, float]:
    """What of a late wake-up was a wait for the lock, and what the machine stood still for; nanoseconds.

    :param late_ns: how much later than due the thread ran, less its run-queue delay.
    :param switches: voluntary switches beyond the one that is the sleep itself.
    :param interval_ns: after which Python asks the holder to let go.
    """
    late = max(late_ns, 0.0)
    locked = late if late <= USUAL_NS else min(late, switches * SLACK * interval_ns)
    return locked, late - locked
