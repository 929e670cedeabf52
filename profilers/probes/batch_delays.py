"""Delays of a batch outside its own thread: the cgroup's quota, and run-queue delay of the framework's threads."""

from __future__ import annotations

import os
import threading

from latfix.profilers.probes.control_groups import CgroupThrottle
from latfix.profilers.probes.kept_files import KeptOpen

#: Minimum run-queue delay of the worker's thread for reading the cgroup's throttled time.
_WORTH_NS = 1_000_000
#: Batches after which to look for pool threads, which appear with the first operators that use them.
_REFRESH = (1, 2, 16, 256)


class PoolDelays:
    """Run-queue delays of the framework's own pool threads (OpenMP), which thread counters do not cover.

    :meth:`refresh` finds threads of this process that Python did not start; :meth:`read` returns the run-queue delay
    of each so far. Used only if operators run on more than one thread.
    """

    def __init__(self) -> None:
        self._files: dict[int, KeptOpen] = {}

    def refresh(self) -> None:
        """Find new pool threads; call it after the first batches, when the pool exists."""
        python = {thread.native_id for thread in threading.enumerate()}
        for entry in os.listdir("/proc/self/task"):  # noqa: PTH208
            tid = int(entry)
            if tid in python or tid in self._files:
                continue
            try:
                self._files[tid] = KeptOpen(f"/proc/self/task/{tid}/schedstat", size=64)
            except OSError:  # the thread ended
                continue

    def read(self) -> dict[int, int]:
        """Run-queue delay in nanoseconds so far, by native thread id."""
        delays: dict[int, int] = {}
        for tid, file in self._files.items():
            try:
                delays[tid] = int(file.read().split(b" ", 2)[1])
            except (OSError, IndexError):  # the thread ended
                continue
        return delays

    @staticmethod
    def largest_growth(before: dict[int, int], after: dict[int, int]) -> int:
        """The largest growth of any one thread's delay, in nanoseconds."""
        return max((after[tid] - before.get(tid, after[tid]) for tid in after), default=0)


class Delays:
    """Delays of one worker's batches.

    :param pool: delays of the framework's threads; ``None`` if operators run on one thread.
    """

    def __init__(self, throttle: CgroupThrottle, pool: PoolDelays | None) -> None:
        self._throttle, self._pool = throttle, pool
        self._throttled = throttle.throttled_ns()
        self._before: dict[int, int] = {}
        self._batches = 0

    def begin(self) -> None:
        """At the begin of a batch's compute."""
        if self._pool is not None:
            self._before = self._pool.read()

    def end(self, run_delay_ns: int) -> dict[str, int]:
        """At its end: values for the batch's row.

        :param run_delay_ns: run-queue delay of the worker's own thread meanwhile.
        """
        values = {"throttled_ns": self._throttle_growth(run_delay_ns)}
        if self._pool is not None:
            values["pool_runq_ns"] = PoolDelays.largest_growth(self._before, self._pool.read())
            self._batches += 1
            if self._batches in _REFRESH:
                self._pool.refresh()
        return values

    def _throttle_growth(self, run_delay_ns: int) -> int:
        if run_delay_ns < _WORTH_NS or not self._throttle.available:
            return 0
        now = self._throttle.throttled_ns()
        growth, self._throttled = now - self._throttled, now
        return growth
