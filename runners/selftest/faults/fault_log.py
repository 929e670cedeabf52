"""Times faults and logs them: which request was struck, when and for how long.

Each fault is one JSON line, written by a single ``write`` to a file opened for appending, so that lines of several
threads and processes never mix. Times are from ``time.perf_counter_ns``, on Linux a clock of the whole machine, so
that lines of different processes can be compared.

The diagnosis never reads this file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from latfix.errors import InputError

#: Environment variable with the file's path; without it nothing is logged.
LOG_VARIABLE = "LATFIX_SELFTEST_LOG"
LOG_FILE = "faults.jsonl"


@dataclass(frozen=True, slots=True)
class Done:
    """Begin and end of an injection, and the nanoseconds that it added.

    ``ns`` does not include time in which its thread was ready to run but had no core.
    """

    start_ns: int
    end_ns: int
    ns: int


class Stopwatch:
    """Times a fault on the thread that suffers it."""

    def __init__(self) -> None:
        self._delay_ns = run_delay_ns()
        self._cpu_ns = time.thread_time_ns()
        self.start_ns = time.perf_counter_ns()

    def ran_ms(self) -> float:
        """The thread's processor time so far."""
        return (time.thread_time_ns() - self._cpu_ns) / 1e6

    def stop(self, ns: int | None = None) -> Done:
        """End the fault. It added ``ns``; by default the elapsed time minus waits for a core."""
        end = time.perf_counter_ns()
        if ns is None:
            # The kernel counts stolen time as a wait for a core, sometimes more than elapsed; a lower bound is the
            # thread's own processor time.
            ran_ns = min(time.thread_time_ns() - self._cpu_ns, end - self.start_ns)
            ns = max(end - self.start_ns - (run_delay_ns() - self._delay_ns), ran_ns)
        return Done(self.start_ns, end, max(ns, 0))


def fastest_ns(work: Callable[[], object]) -> int:
    """Processor time of the thread for the fastest of seven tries, at least 1."""

    def once() -> int:
        start = time.thread_time_ns()
        work()
        return time.thread_time_ns() - start

    return max(min(once() for _ in range(7)), 1)


def run_delay_ns() -> int:
    """How long this thread has waited for a core while ready to run; 0 if the kernel does not report it."""
    try:
        fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return int(os.read(fd, 64).split()[1])
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, timed by its injector.

    :param cause: id of its cause; ``unexplained`` if no listed cause fits.
    :param kind: the injector.
    :param where: ``prepare``, ``model`` or ``finish`` on a request's path, else ``outside``.
    :param request: id of the request that carried it; empty if it was on no request's path.
    :param ns: nanoseconds that it added, which may be less than ``end_ns - start_ns``.
    """

    cause: str
    kind: str
    where: str
    request: str
    start_ns: int
    end_ns: int
    ns: int


class FaultLog:
    """Appends faults to a file.

    :param path: ``None`` logs nothing.
    """

    def __init__(self, path: Path | None) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = -1 if path is None else os.open(path, flags, 0o644)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> FaultLog:
        """The log at the path in :data:`LOG_VARIABLE`."""
        name = environment.get(LOG_VARIABLE, "")
        return cls(Path(name) if name else None)

    def add(self, fault: Fault) -> None:
        if self._fd >= 0:
            row = asdict(fault)
            row["ms"] = row.pop("ns") / 1e6
            os.write(self._fd, (json.dumps(row) + "\n").encode())

    def note(self, cause: str, kind: str, done: Done, *, where: str = "outside", request: str = "") -> None:
        self.add(Fault(cause=cause, kind=kind, where=where, request=request, **asdict(done)))

    def close(self) -> None:
        """Close the file; later faults are not logged."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_faults(path: Path) -> list[Fault]:
    """The faults in a log, in order of their start, without a last line cut short by a kill.

    :raises InputError: it cannot be read, or a line is no fault.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); expected the log of a self-test") from error
    faults = []
    for number, line in enumerate(lines, start=1):
        if not line.endswith("\n") and number == len(lines):
            break
        faults.append(_parse(line, f"{path}:{number}"))
    return sorted(faults, key=lambda fault: fault.start_ns)


def _parse(line: str, where: str) -> Fault:
    try:
        row = json.loads(line)
        texts = {name: str(row[name]) for name in ("cause", "kind", "where", "request")}
        start, end, ns = int(row["start_ns"]), int(row["end_ns"]), round(float(row["ms"]) * 1e6)
        return Fault(**texts, start_ns=start, end_ns=end, ns=ns)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{where}: found no fault ({error}); expected a line written by an injector") from error
