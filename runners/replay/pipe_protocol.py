"""Messages between the parent and a replaying process: one JSON object per line, on two dedicated pipes."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from latfix.errors import EXIT_RUNNER, LatfixError

#: How long a runner with requests in flight may show no progress before the replay is given up.
STALL_S = 300.0
#: Makes a runner write the stacks of its threads to its log, without the interpreter lock.
STACKS_SIGNAL = signal.SIGUSR2
_PR_SET_PDEATHSIG = 1


class LineWriter:
    """Writes messages to a descriptor; writes to a closed pipe are dropped."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def send(self, message: dict[str, Any]) -> None:
        """Write one whole message."""
        data = memoryview(json.dumps(message).encode() + b"\n")
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except BrokenPipeError:
            return


class LineReader:
    """Splits the data of a descriptor into messages."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._held = b""
        self.ended = False

    def read(self) -> list[dict[str, Any]]:
        """The messages that are complete now; blocks until data arrives. ``ended`` is set at the end of the pipe."""
        data = os.read(self.fd, 1 << 16)
        if not data:
            self.ended = True
            return []
        *lines, self._held = (self._held + data).split(b"\n")
        return [json.loads(line) for line in lines if line]


def die_with_parent(parent_pid: int) -> None:
    """End this process with its parent: nothing else would read its record."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent_pid:  # the parent died while this process was starting
            os._exit(EXIT_RUNNER)


def commands_of(reader: LineReader, stop: threading.Event) -> Iterator[dict[str, Any]]:
    """Yield commands until ``exit`` or the parent's death, which sets ``stop``. An interrupt sets it at once."""
    waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def listen() -> None:
        while not reader.ended:
            for command in reader.read():
                if command["do"] == "interrupt":
                    stop.set()
                else:
                    stop.clear()  # here, so that an immediately following interrupt is not lost
                    waiting.put(command)
        stop.set()
        waiting.put({"do": "exit"})

    threading.Thread(target=listen, name="latfix-commands", daemon=True).start()
    return iter(waiting.get, {"do": "exit"})


def serve_parent(
    work: Callable[[dict[str, Any], LineReader, LineWriter], None], words: Callable[[OSError], str]
) -> NoReturn:
    """Run the process ``python -m … PARENT_PID COMMAND_FD EVENT_FD``, and end it: threads may still be busy.

    :param work: called with the job, which the parent sends before any command.
    :param words: describes a system error for the parent.
    """
    parent_pid, command_fd, event_fd = (int(argument) for argument in sys.argv[1:])
    die_with_parent(parent_pid)
    for fd in (command_fd, event_fd):  # programs started by user code must not keep the pipes open
        os.set_inheritable(fd, False)
    parent, commands = LineWriter(event_fd), LineReader(command_fd)
    code, message = 0, ""
    try:
        job: list[dict[str, Any]] = []
        while not (job or commands.ended):
            job = commands.read()
        if job:
            work(job[0], commands, parent)
    except LatfixError as error:
        code, message = error.exit_code, error.message
    except OSError as error:
        code, message = EXIT_RUNNER, words(error)
    if code:
        parent.send({"event": "failed", "message": message, "exit_code": code})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
