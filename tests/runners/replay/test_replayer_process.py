"""The replayer's own process keeps the schedule while this interpreter is busy, and never outlives it."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from latfix.errors import RunnerError
from latfix.runners.replay.replayer_process import ReplayerProcess

_MS = 1_000_000


def _due(*after_ms: float) -> npt.NDArray[np.int64]:
    """Times that start when the process is ready."""
    return time.perf_counter_ns() + np.array([round((100 + ms) * _MS) for ms in after_ms], dtype=np.int64)


def _taken(
    replayer: ReplayerProcess, stop: threading.Event, submit: Callable[[int], None] = lambda _: None
) -> tuple[int, list[tuple[int, int, int]]]:
    taken: list[tuple[int, int, int]] = []

    def note(k: int, arrived_ns: int, runq_ns: int) -> None:
        taken.append((k, arrived_ns, runq_ns))
        submit(k)

    return replayer.take_in(note, stop, lambda: 7), taken


def test_requests_arrive_in_order_never_early() -> None:
    with ReplayerProcess(60) as replayer:
        assert replayer.ready().startswith("replayer: ")
        due = _due(*range(60))
        replayer.begin(due)
        sent, taken = _taken(replayer, threading.Event())
    assert sent == 60 and [k for k, *_ in taken] == list(range(60))
    assert [at for _, at, _ in taken] == list(replayer.arrived)
    assert (np.array(replayer.arrived) >= due).all()
    assert 0 < replayer.cpu_ns < 60 * 1000 * _MS
    # The thread's wait for a core is read only for requests that were taken in late.
    assert {runq for *_, runq in taken} <= {0, 7}


@pytest.mark.alone
def test_requests_arrive_while_the_interpreter_lock_is_held() -> None:
    """This process cannot take them in for 300 ms, but each arrives on time."""
    hold = ctypes.PyDLL(None).usleep  # unlike CDLL, it keeps the lock
    with ReplayerProcess(10) as replayer:
        replayer.ready()
        due = _due(0, *range(20, 200, 20))
        replayer.begin(due)
        _, taken = _taken(replayer, threading.Event(), lambda k: hold(300_000) if k == 0 else None)
        late = np.array(replayer.arrived) - due
    assert late.max() < 50 * _MS
    assert [runq for *_, runq in taken][1] == taken[0][2], "one wake-up took in all of them"


def test_stop_ends_a_long_wait_and_the_process() -> None:
    stop = threading.Event()
    with ReplayerProcess(3) as replayer:
        replayer.ready()
        replayer.begin(_due(0, 3_600_000, 3_600_001))
        assert _taken(replayer, stop, lambda _: stop.set())[0] == 1


def test_requests_that_arrived_but_were_not_taken_in_count_as_sent() -> None:
    """A run that is cut short reports them as in flight."""
    stop = threading.Event()

    def hold_up(_: int) -> None:
        while not replayer.arrived[2]:
            time.sleep(0.001)
        stop.set()

    with ReplayerProcess(4) as replayer:
        replayer.ready()
        replayer.begin(_due(0, 1, 2, 3_600_000))
        sent, taken = _taken(replayer, stop, hold_up)
    assert (sent, len(taken)) == (3, 1)


def test_a_replayer_that_dies_ends_the_run_with_a_line() -> None:
    with ReplayerProcess(2) as replayer:
        replayer.ready()
        replayer.begin(_due(0, 3_600_000))
        with pytest.raises(RunnerError, match="the replayer ended with code -9 before all requests were sent"):
            _taken(replayer, threading.Event(), lambda _: os.kill(replayer.pid, signal.SIGKILL))


def test_the_process_ends_in_any_case() -> None:
    with pytest.raises(RuntimeError), ReplayerProcess(1) as replayer:
        raise RuntimeError
    with pytest.raises(ProcessLookupError):
        os.kill(replayer.pid, 0)
