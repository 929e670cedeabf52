"""What held a batch up beside its own thread: the cgroup's quota, and waits of the framework's threads for a core."""

from __future__ import annotations

from latfix.profilers.probes.control_groups import CgroupThrottle
from latfix.profilers.probes.thread_counters import PoolDelays

#: Run-queue delay of the thread from which on the cgroup's throttled time is worth a read.
_WORTH_NS = 1_000_000
#: The framework's threads appear with the first operators that use them: they are looked for after so many batches.
_REFRESH = (1, 2, 16, 256)


class Delays:
    """Of one worker's batches.

    :param pool: of the framework's threads; ``None`` where operators run on one.
    """

    def __init__(self, throttle: CgroupThrottle, pool: PoolDelays | None) -> None:
        self._throttle, self._pool = throttle, pool
        self._throttled = throttle.throttled_ns()
        self._before: dict[int, int] = {}
        self._batches = 0

    def begin(self) -> None:
        """A batch begins to compute."""
        if self._pool is not None:
            self._before = self._pool.read()

    def end(self, run_delay_ns: int) -> dict[str, int]:
        """It ended: values of the batch's row.

        :param run_delay_ns: for which the worker's own thread waited for a core meanwhile.
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
