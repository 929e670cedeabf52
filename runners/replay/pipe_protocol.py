"""Messages between parent and runner process: one JSON object a line, on two pipes of their own."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from latfix.errors import EXIT_RUNNER

#: How long a runner may show no sign of progress with requests in flight before it is given up.
STALL_S = 300.0
#: Has a runner write the stacks of its threads to its log, without the interpreter lock.
STACKS_SIGNAL = signal.SIGUSR2
_PR_SET_PDEATHSIG = 1


class LineWriter:
    """Writes messages to a descriptor; writes to a closed pipe are dropped."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def send(self, message: dict[str, Any]) -> None:
        """Write one message whole."""
        data = memoryview(json.dumps(message).encode() + b"\n")
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except BrokenPipeError:
            return


class LineReader:
    """Splits what arrives on a descriptor into messages."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._held = b""
        self.ended = False

    def read(self) -> list[dict[str, Any]]:
        """Messages that are complete now; blocks where nothing has arrived. ``ended`` is set at the end."""
        data = os.read(self.fd, 1 << 16)
        if not data:
            self.ended = True
            return []
        *lines, self._held = (self._held + data).split(b"\n")
        return [json.loads(line) for line in lines if line]


def die_with_parent(parent_pid: int) -> None:
    """A runner must not outlive the program that would read its record."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent_pid:  # it died while this process was starting
            os._exit(EXIT_RUNNER)


def first_message(commands: LineReader) -> dict[str, Any] | None:
    """The job, which the parent sends before any command; ``None`` where the parent is gone."""
    while not commands.ended:
        for message in commands.read():
            return message
    return None
