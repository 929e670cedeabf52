"""A cgroup with a quota of processor time, in phases."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from latfix.profilers.probes.control_groups import ControlGroups, counters, throttled_ns
from latfix.runners.selftest.faults.background import Phases
from latfix.runners.selftest.faults.fault_log import Done, FaultLog
from latfix.runners.selftest.faults.neighbor import PERIOD_US, QUOTA_CORES

_PERIOD_US = 20_000


@dataclass(frozen=True, slots=True)
class Group:
    """A control group made for one run.

    :param unified: it is of cgroup version 2.
    """

    path: Path
    parent: Path
    unified: bool

    @classmethod
    def make(cls, name: str) -> Group:
        """A new group below this process's own.

        :raises OSError: no permission, or no CPU controller.
        """
        parent, unified = next(
            ((folder, unified) for folder, unified in ControlGroups().folders("cpu") if folder.is_dir()),
            (None, False),
        )
        if parent is None:
            raise OSError("this process is in no control group with a CPU controller")
        path = parent / name
        path.mkdir()
        group = cls(path, parent, unified)
        if not group._limit.exists():
            group.remove()
            raise OSError(f"{parent} provides no CPU controller for its children")
        return group

    @property
    def _limit(self) -> Path:
        return self.path / ("cpu.max" if self.unified else "cpu.cfs_quota_us")

    def limit(self, cores: float | None, period_us: int = _PERIOD_US) -> None:
        """Set the quota in cores; ``None`` for no limit."""
        allowed = None if cores is None else max(int(cores * period_us), 1000)
        if self.unified:
            self._limit.write_text(f"{'max' if allowed is None else allowed} {period_us}")
            return
        if allowed is not None:
            (self.path / "cpu.cfs_period_us").write_text(str(period_us))
        self._limit.write_text(str(-1 if allowed is None else allowed))

    def throttled_ns(self) -> int:
        """Total time for which the quota has throttled the group's threads."""
        return throttled_ns(counters((self.path / "cpu.stat").read_text()))

    def enter(self) -> None:
        """Move this process into the group; processes that it starts later are in it too."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def leave(self) -> None:
        """Move this process back to its former group."""
        (self.parent / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self) -> None:
        """Remove the group, which is empty shortly after its last process has ended."""
        for _ in range(50):
            with contextlib.suppress(OSError):
                self.path.rmdir()
                return
            time.sleep(0.02)


@functools.cache
def unavailable() -> str:
    """Why no quota can be set here; empty if one can."""
    try:
        group = Group.make(f"latfix-selftest-{os.getpid()}-probe")
    except OSError as error:
        return f"no control group can be made ({error.strerror or error})"
    try:
        group.limit(1.0)
        group.enter()
        group.leave()
    except OSError as error:
        return f"a control group's quota cannot be set ({error.strerror or error})"
    finally:
        group.remove()
    return ""


class Quota:
    """Starts the runner in a group whose quota a thread of this process switches on and off.

    Use it as a context around the start of the runner; :meth:`start` moves this process out again and begins.

    :param cores: the quota in cores while it is on.
    """

    def __init__(self, phases: Phases, cores: float, log: Path) -> None:
        self._phases, self._cores = phases, cores
        self._log = FaultLog(log)
        self._group = Group.make(f"latfix-selftest-{os.getpid()}")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Quota:
        self._group.enter()
        return self

    def start(self) -> None:
        """Leave the group, now that the runner is replaying, and start to switch the quota."""
        if self._thread is None:
            self._group.leave()
            self._thread = threading.Thread(target=self._run, name="quota", daemon=True)
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is None:
            self._group.leave()
        else:
            self._thread.join()
        self._group.limit(None)
        self._group.remove()
        self._log.close()

    def _run(self) -> None:
        for _ in self._phases.waited(self._stop):
            before, start = self._group.throttled_ns(), time.perf_counter_ns()
            self._group.limit(self._cores)
            self._stop.wait(self._phases.on_s)
            self._group.limit(None)
            end = time.perf_counter_ns()
            self._log.note("host.throttle", "quota", Done(start, end, self._group.throttled_ns() - before))


class ThrottledNeighbor:
    """Two groups side by side: one for the runner, and one with a small quota for the process that requests call.

    Use it as a context around the start of the runner; :meth:`start` moves this process out again.
    """

    def __init__(self) -> None:
        name = f"latfix-selftest-{os.getpid()}"
        with contextlib.ExitStack() as undo:
            self._own, self._limited = self._made(name, undo), self._made(f"{name}-neighbor", undo)
            self._limited.limit(QUOTA_CORES, PERIOD_US)
            self._own.enter()
            undo.callback(self.start)
            self._undo = undo.pop_all()
        self._inside = True

    @staticmethod
    def _made(name: str, undo: contextlib.ExitStack) -> Group:
        group = Group.make(name)
        undo.callback(group.remove)
        return group

    @property
    def folder(self) -> Path:
        """The folder of the group with the quota."""
        return self._limited.path

    def __enter__(self) -> ThrottledNeighbor:
        return self

    def start(self) -> None:
        """Leave the runner's group; further calls do nothing."""
        if self._inside:
            self._own.leave()
            self._inside = False

    def __exit__(self, *_: object) -> None:
        self._undo.close()
