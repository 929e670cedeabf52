"""The replayer's own process, and the shared memory through which a service receives its requests.

A request has arrived when its time is in the shared memory, no matter what the service is doing: the replayer shares
no interpreter with it, and therefore no lock. The memory has one int64 per request, zero until it arrived, so it
cannot overflow. A byte in a pipe wakes the thread that takes requests in. The time from then on counts as the
service's.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from latfix.errors import RunnerError
from latfix.runners.replay.open_loop import replay, take_priority
from latfix.runners.replay.pipe_protocol import die_with_parent

if TYPE_CHECKING:  # this process does not need numpy
    import numpy as np
    import numpy.typing as npt

#: Read before user code can change them: the process is started with these.
_ENVIRONMENT, _HOME = dict(os.environ), Path.cwd()
_WORD = 8
_PIPE_BYTES = 4096
#: If the intake thread wakes later than this after a request arrived, its wait for a core is recorded.
LATE_NS = 100_000


class ReplayerProcess:
    """Hands a schedule over on time. Use as a context manager, which ends the process.

    :param requests: number of requests.
    :ivar pid: of the process.
    :ivar arrived: when each request arrived, on the clock of ``time.perf_counter_ns``; 0 before that.
    :raises RunnerError: the process could not be started, or died.
    """

    def __init__(self, requests: int) -> None:
        with contextlib.ExitStack() as stack:
            fd = _shared_memory(stack, _WORD * (2 * requests + 1))
            shared = memoryview(mmap.mmap(fd, _WORD * (2 * requests + 1))).cast("q")
            module = [sys.executable, "-P", "-m", __name__]
            try:
                self._process = subprocess.Popen(
                    [*module, str(os.getpid()), str(fd), str(requests)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    bufsize=0,
                    env=_ENVIRONMENT,
                    cwd=_HOME,
                    pass_fds=(fd,),
                )
            except OSError as error:
                raise RunnerError(f"the replayer could not be started ({error.strerror})") from error
        self._scheduled, self.arrived, self._cpu = shared[:requests], shared[requests:-1], shared[-1:]
        self.pid = self._process.pid
        assert self._process.stdin is not None and self._process.stdout is not None
        self._start, self._wakes = self._process.stdin, self._process.stdout.fileno()

    def __enter__(self) -> ReplayerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def cpu_ns(self) -> int:
        """CPU time of the process since it was ready, as last reported: ten times a second, and at its end."""
        return self._cpu[0]

    def ready(self) -> str:
        """Wait until the process can begin; returns a line that reports its priority."""
        line = b""
        while not line.endswith(b"\n"):
            line += self._read_wakes()
        return line.decode().rstrip("\n")

    def begin(self, scheduled_ns: npt.NDArray[np.int64]) -> None:
        """Start the schedule; times are absolute, on the clock of ``time.perf_counter_ns``."""
        self._scheduled[:] = memoryview(scheduled_ns.tobytes()).cast("q")
        with contextlib.suppress(BrokenPipeError):  # take_in() reports that it died
            self._start.write(b"\n")

    def take_in(
        self, submit: Callable[[int, int, int], None], stop: threading.Event, runq_ns: Callable[[], int]
    ) -> int:
        """Submit each request once it has arrived, in order, until all have or ``stop`` is set.

        :param submit: called with the request's position in the schedule, its arrival, and for how much of the time
            since then this thread was runnable without a core.
        :param runq_ns: this thread's run-queue delay since the last call; called if it woke late.
        :returns: how many had arrived.
        """
        arrived, taken, clock = self.arrived, 0, time.perf_counter_ns
        while taken < len(arrived):
            self._read_wakes()
            delay = runq_ns() if arrived[taken] and clock() - arrived[taken] > LATE_NS else 0
            while taken < len(arrived) and arrived[taken] and not stop.is_set():
                at = arrived[taken]
                submit(taken, at, delay)
                taken += 1
            if stop.is_set():
                self.end()
                break
        else:
            while self._read_wakes():  # until it has reported its CPU time
                pass
        return next((k for k in range(taken, len(arrived)) if not arrived[k]), len(arrived))

    def end(self) -> None:
        """End the process if it still runs."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _read_wakes(self) -> bytes:
        data = os.read(self._wakes, _PIPE_BYTES)
        if not data and not (len(self.arrived) and self.arrived[-1]):
            code = self._process.wait()
            raise RunnerError(f"the replayer ended with code {code} before all requests were sent; see runner.log")
        return data


def _shared_memory(stack: contextlib.ExitStack, size: int) -> int:
    """A descriptor of memory that two processes can map; closed with the stack."""
    if sys.platform == "linux":
        fd = os.memfd_create("latfix-arrivals")
    else:
        fd, name = tempfile.mkstemp(prefix="latfix-")
        Path(name).unlink()
    stack.callback(os.close, fd)
    os.ftruncate(fd, size)
    return fd


def _wake() -> None:
    with contextlib.suppress(BlockingIOError):  # full: the reader has not read earlier wake-ups either
        os.write(1, b".")


def main() -> int:
    """``python -m … PARENT_PID DESCRIPTOR REQUESTS``; a byte on standard input starts the schedule."""
    parent_pid, fd, requests = (int(argument) for argument in sys.argv[1:])
    die_with_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    gc.disable()
    shared = memoryview(mmap.mmap(fd, _WORD * (2 * requests + 1))).cast("q")
    arrived, cpu, clock = shared[requests:-1], shared[-1:], time.perf_counter_ns

    def hand_over(k: int) -> None:
        arrived[k] = clock()
        _wake()

    def beat() -> None:
        """Wake the service, so that it can check if it is to stop."""
        cpu[0] = time.thread_time_ns()
        _wake()

    os.set_blocking(1, False)
    line = take_priority()
    os.write(1, f"{line}, a process of its own\n".encode())
    if not os.read(0, 1):
        return 0
    began = time.thread_time_ns()
    replay(shared[:requests].tolist(), hand_over, beat=beat)
    cpu[0] = time.thread_time_ns() - began
    return 0


if __name__ == "__main__":
    os._exit(main())  # skip the interpreter's cleanup: the service waits for the exit
