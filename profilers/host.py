"""What a thread did: on-CPU time, run-queue delay, switches and page faults, read from its own counters.

For a thread over an interval, wall = on-CPU + run-queue delay + blocked. On-CPU comes from
``CLOCK_THREAD_CPUTIME_ID``; run-queue delay from the second field of ``/proc/thread-self/schedstat`` (its
first field is up to a scheduler tick stale and not used). Run-queue delay includes time throttled by a
cgroup quota.
"""

from __future__ import annotations

import os
import resource
import statistics
import threading
import time
from pathlib import Path

from latfix.columns import THREAD_ACCOUNT

Account = tuple[int, ...]
NO_ACCOUNT: Account = (0,) * len(THREAD_ACCOUNT)

#: A snapshot whose two clock readings lie further apart than this was interrupted in the middle.
_TORN_NS = 60_000
_TRIES = 3


class ThreadCounters:
    """Counters of the thread that creates it; use it on that thread only, and close it there.

    Where the kernel keeps no scheduler statistics, run-queue delay reads as zero and
    :attr:`has_run_delay` is false.
    """

    __slots__ = ("_fd", "reads")

    def __init__(self) -> None:
        self.reads = 0
        try:
            self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    @property
    def has_run_delay(self) -> bool:
        """Whether the kernel reports how long the thread was runnable but not running."""
        return self._fd >= 0

    def snapshot(self) -> Account:
        """The thread's totals so far, in the order of :data:`latfix.columns.THREAD_ACCOUNT`.

        The readings are not atomic: a snapshot that was interrupted in the middle is taken again.
        """
        self.reads += 1
        for _ in range(_TRIES):
            start = time.perf_counter_ns()
            cpu = time.thread_time_ns()
            delay = int(os.pread(self._fd, 64, 0).split(b" ", 2)[1]) if self._fd >= 0 else 0
            if time.perf_counter_ns() - start < _TORN_NS:
                break
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        return (cpu, delay, usage.ru_nvcsw, usage.ru_nivcsw, usage.ru_minflt, usage.ru_majflt)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def difference(later: Account, earlier: Account) -> Account:
    """What happened between two snapshots."""
    return tuple(b - a for a, b in zip(earlier, later, strict=True))


class PoolDelays:
    """Run-queue delays of the framework's own pool threads (OpenMP), which no snapshot of ours can see.

    :meth:`refresh` finds threads of this process that Python did not start; :meth:`read` returns each
    one's run-queue delay so far. Used only where operators run on more than one thread.
    """

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}

    def refresh(self) -> None:
        """Look again for pool threads; call it after the first batches, when the pool exists."""
        python = {thread.native_id for thread in threading.enumerate()}
        for entry in os.listdir("/proc/self/task"):  # noqa: PTH208
            tid = int(entry)
            if tid in python or tid in self._fds:
                continue
            try:
                self._fds[tid] = os.open(f"/proc/self/task/{tid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # the thread ended meanwhile
                continue

    def read(self) -> dict[int, int]:
        """Run-queue delay in nanoseconds so far, by native thread id."""
        delays: dict[int, int] = {}
        for tid, fd in self._fds.items():
            try:
                delays[tid] = int(os.pread(fd, 64, 0).split(b" ", 2)[1])
            except (OSError, IndexError):  # the thread ended
                continue
        return delays

    @staticmethod
    def largest_growth(before: dict[int, int], after: dict[int, int]) -> int:
        """The largest growth of any one thread's delay, in nanoseconds."""
        return max((after[tid] - before.get(tid, after[tid]) for tid in after), default=0)


class CgroupThrottle:
    """Time that the cgroup's CPU quota kept this process's threads from running."""

    def __init__(self) -> None:
        self._path, self._unit_ns, self._key = _throttle_source()

    @property
    def available(self) -> bool:
        """Whether the cgroup reports throttling."""
        return self._path is not None

    def throttled_ns(self) -> int:
        """Throttled time so far, in nanoseconds; 0 where it cannot be read."""
        stat = self.read()
        return stat.get(self._key, 0) * self._unit_ns

    def read(self) -> dict[str, int]:
        """All counters of ``cpu.stat``; empty where it cannot be read."""
        if self._path is None:
            return {}
        try:
            lines = self._path.read_text().splitlines()
        except OSError:
            return {}
        return {key: int(value) for key, _, value in (line.partition(" ") for line in lines) if value.isdigit()}


def _throttle_source() -> tuple[Path | None, int, str]:
    """``cpu.stat`` of this process's cgroup: version 2 counts microseconds, version 1 nanoseconds."""
    try:
        entries = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None, 1, ""
    groups = {parts[1]: parts[2] for parts in (entry.split(":", 2) for entry in entries) if len(parts) == 3}
    candidates: list[tuple[Path, int, str]] = []
    for controllers, group in groups.items():
        if "cpu" in controllers.split(","):
            for mount in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"):
                candidates.append((Path(mount + group) / "cpu.stat", 1, "throttled_time"))
                candidates.append((Path(mount) / "cpu.stat", 1, "throttled_time"))
    if "" in groups:
        candidates.append((Path("/sys/fs/cgroup" + groups[""]) / "cpu.stat", 1000, "throttled_usec"))
        candidates.append((Path("/sys/fs/cgroup/cpu.stat"), 1000, "throttled_usec"))
    for path, unit, key in candidates:
        try:
            if key in path.read_text():
                return path, unit, key
        except OSError:
            continue
    return None, 1, ""


def snapshot_cost_ns(samples: int = 300) -> int:
    """Median cost of one :meth:`ThreadCounters.snapshot` on this machine, now, in nanoseconds."""
    counters = ThreadCounters()
    costs = []
    for _ in range(samples):
        start = time.perf_counter_ns()
        counters.snapshot()
        costs.append(time.perf_counter_ns() - start)
    counters.close()
    return int(statistics.median(costs))
