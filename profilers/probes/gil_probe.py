"""Waits for the interpreter lock, measured by a thread that sleeps for a fixed time again and again.

The delay from its due time until it runs Python, less its own run-queue delay, is the wait for the lock. A thread
that waits for the lock sleeps for at most the switch interval at a time, and each sleep is a voluntary switch, so
these switches bound the wait. Any further delay is a stall of the whole machine, such as a hypervisor that takes all
its cores. On an idle machine timer and wake-up take some tens of microseconds.
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
#: Upper bound of timer and wake-up on an idle machine; shorter delays do not indicate the lock.
USUAL_NS = 200_000
WAIT_SERIES = "gil.wait_ns"
#: The machine stood still if a wake-up is later than this, without a wait for a core or the lock.
STALL_SERIES = "host.stall_ns"
STALL_NS = 1_000_000
INTERVAL_SERIES = "gil.switch_interval_ns"
_RUNQ, _VCSW = THREAD_ACCOUNT.index("runq_ns"), THREAD_ACCOUNT.index("vcsw")
#: Upper bound of one sleep while waiting for the lock, in switch intervals: the interval and a wake-up.
SLACK = 1.5


class LockProbe(OwnThread):
    """Logs ``gil.wait_ns`` every 20 ms, at the time when the thread should have run.

    :param period_s: seconds asleep between two readings.
    :param look: called with the time at each reading, while the thread has the lock.
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
            # Not Event.wait: its Python code waits for locks itself.
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
    """Divide the delay of a wake-up into the wait for the lock and a stall of the machine; nanoseconds.

    :param late_ns: the delay after the due time, less the run-queue delay.
    :param switches: voluntary switches besides the sleep itself.
    :param interval_ns: Python's switch interval.
    """
    late = max(late_ns, 0.0)
    locked = late if late <= USUAL_NS else min(late, switches * SLACK * interval_ns)
    return locked, late - locked
