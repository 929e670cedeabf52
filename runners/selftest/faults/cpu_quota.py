"""A cgroup of the self-test's own with a quota of processor time, on in phases."""

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

_PERIOD_US = 20_000


@dataclass(frozen=True, slots=True)
class Group:
    """A control group made for one run.

    :param unified: of version 2.
    """

    path: Path
    parent: Path
    unified: bool

    @classmethod
    def make(cls, name: str) -> Group:
        """A new group under this process's own.

        :raises OSError: this process may not, or there is no processor controller.
        """
        parent, unified = next(
            ((folder, unified) for folder, unified in ControlGroups().folders("cpu") if folder.is_dir()),
            (None, False),
        )
        if parent is None:
            raise OSError("this process is in no control group with a processor controller")
        path = parent / name
        path.mkdir()
        group = cls(path, parent, unified)
        if not group._limit.exists():
            group.remove()
            raise OSError(f"{parent} offers no processor controller to its children")
        return group

    @property
    def _limit(self) -> Path:
        return self.path / ("cpu.max" if self.unified else "cpu.cfs_quota_us")

    def limit(self, cores: float | None) -> None:
        """Allow so many cores from now on; ``None`` for all."""
        allowed = None if cores is None else max(int(cores * _PERIOD_US), 1000)
        if self.unified:
            self._limit.write_text(f"{'max' if allowed is None else allowed} {_PERIOD_US}")
            return
        if allowed is not None:
            (self.path / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        self._limit.write_text(str(-1 if allowed is None else allowed))

    def throttled_ns(self) -> int:
        """Time that the quota has taken from its threads so far."""
        return throttled_ns(counters((self.path / "cpu.stat").read_text()))

    def enter(self) -> None:
        """Move this process in; what it starts from now on is in it too."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def leave(self) -> None:
        """Move this process back to where it came from."""
        (self.parent / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self) -> None:
        """Remove the group; it must be empty, which it is shortly after its last process ended."""
        for _ in range(50):
            with contextlib.suppress(OSError):
                self.path.rmdir()
                return
            time.sleep(0.02)


@functools.cache
def unavailable() -> str:
    """Why no quota can be set here; empty where it can."""
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
    """The runner is started inside a group whose quota a thread of this process switches on and off.

    Use as a context around the start of the runner; :meth:`start` takes this process out again and begins.

    :param cores: what the quota leaves while it is on.
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
        """Leave the group, whose runner is replaying by now, and switch the quota from here on."""
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
