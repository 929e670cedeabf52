"""Processes that compete for the runner's cores in phases, and log them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from latfix.runners.host.cpu_topology import Cores, allowed_cores
from latfix.runners.selftest.faults.background import Phases, spin
from latfix.runners.selftest.faults.fault_log import Done, FaultLog


def cores() -> Cores:
    """The cores that this process, and so the runner, may use."""
    return allowed_cores() or tuple(range(os.cpu_count() or 1))


class Hogs:
    """Processes that start when the replay runs and are killed at the end of the context.

    :param phases: one entry per process; they are pinned to the cores in turn.
    :param log: file for their intervals.
    """

    def __init__(self, phases: Sequence[Phases], log: Path) -> None:
        self._phases, self._log = phases, log
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Hogs:
        return self

    def start(self) -> None:
        """Start them; further calls do nothing."""
        if self._processes:
            return
        usable = cores()
        for number, phases in enumerate(self._phases):
            core = usable[number % len(usable)]
            command = [sys.executable, "-P", "-m", "latfix.runners.selftest.faults.cpu_hogs"]
            arguments = [phases.text(), str(core), str(self._log), str(os.getpid())]
            # In a new session, so that Ctrl-C reaches only the parent, which then kills them.
            process = subprocess.Popen(command + arguments, stdin=subprocess.DEVNULL, start_new_session=True)
            self._processes.append(process)

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()


def main(arguments: Sequence[str]) -> None:
    """``python -m … PHASES CORE LOG PARENT``: runs until it is killed or the parent has ended."""
    phases, core, parent = Phases.parse(arguments[0]), int(arguments[1]), int(arguments[3])
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    log = FaultLog(Path(arguments[2]))
    for _ in phases.waited(threading.Event()):
        if os.getppid() != parent:
            return
        start = time.perf_counter_ns()
        end = start + int(phases.on_s * 1e9)
        spin(end)
        log.note("host.contention", "hog", Done(start, end, end - start))


if __name__ == "__main__":
    main(sys.argv[1:])
