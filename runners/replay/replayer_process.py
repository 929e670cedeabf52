"""The replayer's own process, and the ring through which a service hears of its requests.

A request has arrived when its time stands in the ring, whatever the service is doing: the replayer shares no
interpreter with it, and so no lock. One int64 a request, zero until it arrived, in memory that both processes map,
and so never full; a byte in a pipe wakes whoever takes requests in. What passes until then is the service's own.
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
from types import TracebackType
from typing import TYPE_CHECKING

from latfix.errors import RunnerError
from latfix.runners.replay.open_loop import MachineClock, replay, take_priority
from latfix.runners.replay.pipe_protocol import die_with_parent

if TYPE_CHECKING:  # this process has no use for numpy
    import numpy as np
    import numpy.typing as npt

#: As they were before user code could change them: the process is found by these.
_ENVIRONMENT, _HOME = dict(os.environ), Path.cwd()
_WORD = 8
_PIPE_BYTES = 4096
#: Who is woken later than this after a request arrived says what it waited for a core meanwhile.
LATE_NS = 100_000


class ReplayerProcess:
    """Hands a schedule over at its times. Use as a context manager: the process is gone at the end.

    :param requests: how many.
    :ivar pid: of the process.
    :ivar arrived: when each arrived, on the clock of ``time.perf_counter_ns``; 0 where it has not.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def cpu_ns(self) -> int:
        """CPU time of the process since it was ready, as it last said: ten times a second, and at its end."""
        return self._cpu[0]

    def ready(self) -> str:
        """Wait until the process can begin; returns a line that says with which priority it runs."""
        line = b""
        while not line.endswith(b"\n"):
            line += self._heard()
        return line.decode().rstrip("\n")

    def begin(self, scheduled_ns: npt.NDArray[np.int64]) -> None:
        """Start the schedule; times are absolute, on the clock of ``time.perf_counter_ns``."""
        self._scheduled[:] = memoryview(scheduled_ns.tobytes()).cast("q")
        with contextlib.suppress(BrokenPipeError):  # who takes in will say that it died
            self._start.write(b"\n")

    def take_in(
        self, submit: Callable[[int, int, int], None], stop: threading.Event, runq_ns: Callable[[], int]
    ) -> int:
        """Submit each request once it has arrived, in order, until all have or ``stop`` is set.

        :param submit: with the request's place in the schedule, when it arrived, and what of the time since then
            this thread was runnable without a core.
        :param runq_ns: this thread's run-queue delay since the last call; called where it woke late.
        :returns: how many had arrived.
        """
        arrived, taken, clock = self.arrived, 0, time.perf_counter_ns
        while taken < len(arrived):
            self._heard()
            delay = runq_ns() if arrived[taken] and clock() - arrived[taken] > LATE_NS else 0
            while taken < len(arrived) and arrived[taken] and not stop.is_set():
                at = arrived[taken]
                submit(taken, at, delay)
                taken += 1
            if stop.is_set():
                self.end()
                break
        else:
            while self._heard():  # until it has said what it cost
                pass
        return next((k for k in range(taken, len(arrived)) if not arrived[k]), len(arrived))

    def end(self) -> None:
        """End the process, if it has not ended by itself."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _heard(self) -> bytes:
        heard = os.read(self._wakes, _PIPE_BYTES)
        if not heard and not (len(self.arrived) and self.arrived[-1]):
            code = self._process.wait()
            raise RunnerError(f"the replayer ended with code {code} before all requests were sent; see runner.log")
        return heard


def _shared_memory(stack: contextlib.ExitStack, size: int) -> int:
    """A descriptor of memory that two processes can map, closed with the stack."""
    if sys.platform == "linux":
        fd = os.memfd_create("latfix-arrivals")
    else:
        fd, name = tempfile.mkstemp(prefix="latfix-")
        Path(name).unlink()
    stack.callback(os.close, fd)
    os.ftruncate(fd, size)
    return fd


class _BeatingClock(MachineClock):
    """Wakes the service in long waits too, where it looks whether it is to stop."""

    def __init__(self, cpu: memoryview) -> None:
        self._cpu = cpu

    def wait(self, event: threading.Event, seconds: float, /) -> bool:  # type: ignore[override]
        """As the machine's, after a beat."""
        self._cpu[0] = time.thread_time_ns()
        _wake()
        return event.wait(seconds)


def _wake() -> None:
    with contextlib.suppress(BlockingIOError):  # full: whoever reads it has not seen earlier ones either
        os.write(1, b".")


def main() -> int:
    """``python -m … PARENT_PID DESCRIPTOR REQUESTS``; a byte on standard input begins the schedule."""
    parent_pid, fd, requests = (int(argument) for argument in sys.argv[1:])
    die_with_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    gc.disable()
    shared = memoryview(mmap.mmap(fd, _WORD * (2 * requests + 1))).cast("q")
    arrived, cpu, clock = shared[requests:-1], shared[-1:], time.perf_counter_ns

    def hand_over(k: int) -> None:
        arrived[k] = clock()
        _wake()

    os.set_blocking(1, False)
    line = take_priority()
    os.write(1, f"{line}, a process of its own\n".encode())
    if not os.read(0, 1):
        return 0
    began = time.thread_time_ns()
    replay(shared[:requests].tolist(), hand_over, threading.Event(), _BeatingClock(cpu))
    cpu[0] = time.thread_time_ns() - began
    return 0


if __name__ == "__main__":
    os._exit(main())  # at once: the service waits for it
