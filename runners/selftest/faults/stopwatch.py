"""Timing of a fault on the thread that suffers it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Done:
    """What an injector did: its ends on the performance counter's clock, and the nanoseconds that it added.

    Time in which its thread was ready to run and another had the core is not the fault's and not in ``ns``.
    """

    start_ns: int
    end_ns: int
    ns: int


class Stopwatch:
    """Times a fault on the thread that suffers it."""

    def __init__(self) -> None:
        self._delay_ns = run_delay_ns()
        self.start_ns = time.perf_counter_ns()

    def stop(self, ns: int | None = None) -> Done:
        """The fault ends now; it added ``ns``, or by default all the time less that of waiting for a core."""
        end = time.perf_counter_ns()
        if ns is None:
            ns = end - self.start_ns - (run_delay_ns() - self._delay_ns)
        return Done(self.start_ns, end, max(ns, 0))


def run_delay_ns() -> int:
    """How long this thread has waited for a core while ready to run; 0 where the kernel does not tell."""
    try:
        fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return int(os.read(fd, 64).split()[1])
    finally:
        os.close(fd)
