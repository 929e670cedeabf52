"""A process in a control group with a small quota, which requests wait for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from latfix.runners.selftest.faults.fault_log import Done, Stopwatch

#: Environment variable with the folder of its group.
GROUP_VARIABLE = "LATFIX_SELFTEST_NEIGHBOR"
#: The group's quota in cores, and its period: short, so that waits of a few milliseconds can be asked for.
QUOTA_CORES, PERIOD_US = 0.2, 5_000


class Neighbor:
    """Calls the process, which its quota throttles for most of a call.

    :param group: folder of its control group.
    """

    def __init__(self, group: Path) -> None:
        command = [sys.executable, "-P", "-m", "latfix.runners.selftest.faults.neighbor", str(group)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._one_call = threading.Lock()
        self._answered()  # it is in its group

    def __call__(self, ms: float) -> Done:
        """Ask for work that takes about ``ms`` with its quota."""
        watch = Stopwatch()
        with self._one_call:
            if self._process.stdin is not None:
                self._process.stdin.write(f"{ms * QUOTA_CORES:.6f}\n".encode())
                self._process.stdin.flush()
            self._answered()
        return watch.stop()

    def _answered(self) -> None:
        if self._process.stdout is None or not self._process.stdout.readline():
            raise RuntimeError("the neighbor process has ended")

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def main(arguments: Sequence[str]) -> None:
    """``python -m … GROUP``: for each line on standard input, use that many milliseconds of a core."""
    (Path(arguments[0]) / "cgroup.procs").write_text(str(os.getpid()))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        end = time.thread_time_ns() + int(float(line) * 1e6)
        while time.thread_time_ns() < end:
            pass
        sys.stdout.write("done\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
