"""The open-loop replayer: never early, late calls at once, and an unshifted schedule."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latfix.runners.replay import open_loop as replay_module
from latfix.runners.replay.open_loop import LEAST_SPIN_NS, replay


class SimulatedClock:
    """Moves only by readings and sleeps.

    :param late_ns: how much a sleep oversleeps; ``stop_ns`` when the awaited event is set.
    """

    def __init__(self, late_ns: int = 0, stop_ns: int = 1 << 62) -> None:
        self.now, self.late_ns, self.stop_ns = 0, late_ns, stop_ns

    def ns(self) -> int:
        self.now += 50  # cost of a reading
        return self.now

    def sleep(self, seconds: float, /) -> None:
        self.now += round(seconds * 1e9) + self.late_ns

    def wait(self, event: threading.Event, seconds: float, /) -> bool:
        self.sleep(seconds)
        if self.now >= self.stop_ns:
            event.set()
        return event.is_set()


@given(
    gaps=st.lists(st.integers(0, 3_000_000_000) | st.integers(0, 2_000_000), max_size=40),
    takes=st.integers(0, 3_000_000),
    late_ns=st.integers(0, 400_000),
)
def test_calls_are_in_order_never_early_and_late_ones_immediate(gaps: list[int], takes: int, late_ns: int) -> None:
    """The schedule does not shift: a call is due at its own time, or when the previous one has returned."""
    clock, scheduled = SimulatedClock(late_ns), np.cumsum(np.array(gaps, dtype=np.int64)).tolist()
    at: list[int] = []

    def hand_over(_: int) -> None:
        at.append(clock.now)
        clock.now += takes

    assert replay(scheduled, hand_over, threading.Event(), clock) == len(gaps)
    returned = 0
    for began, due in zip(at, scheduled, strict=True):
        ready = max(due, returned)
        # Spinning absorbs oversleeping within its bounds.
        assert due <= began and ready <= began <= ready + max(late_ns - LEAST_SPIN_NS, 0) + 1_000
        returned = began + takes


def test_the_machines_clock_is_never_early_either() -> None:
    scheduled = (time.perf_counter_ns() + np.arange(1, 60, dtype=np.int64) * 500_000).tolist()
    calls: list[tuple[int, int]] = []
    assert replay(scheduled, lambda k: calls.append((k, time.perf_counter_ns())), threading.Event()) == 59
    assert [k for k, _ in calls] == list(range(59))
    assert all(at >= due for (_, at), due in zip(calls, scheduled, strict=True))


def test_stop_ends_a_long_wait() -> None:
    clock = SimulatedClock(stop_ns=5 * 10**9)
    assert replay([0, 3600 * 10**9], lambda _: None, threading.Event(), clock) == 1
    assert 5 * 10**9 <= clock.now < 5.2 * 10**9
    stop = threading.Event()
    threading.Timer(0.05, stop.set).start()
    assert replay([0, 1 << 62], lambda _: None, stop) == 1, "also on the machine's clock"
    assert replay([0] * 5, lambda _: pytest.fail("sent"), stop) == 0, "nothing is sent after the stop"


@pytest.mark.skipif(sys.platform != "linux", reason="timer slack is Linux's")
@pytest.mark.parametrize("fails", [False, True])
def test_the_timers_slack_is_given_back(fails: bool) -> None:
    def slack() -> int:
        return int(Path("/proc/self/timerslack_ns").read_text())

    during: list[int] = []

    def hand_over(_: int) -> None:
        during.append(slack())
        if fails:
            raise RuntimeError

    before = slack()
    with contextlib.suppress(RuntimeError):
        replay([0], hand_over, threading.Event())
    assert during == [1] and slack() == before != 1


def test_priority_is_given_back() -> None:
    line = replay_module.take_priority()
    replay_module.give_priority_back()
    assert line.startswith("replayer: ")
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
