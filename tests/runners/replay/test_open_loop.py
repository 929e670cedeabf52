"""The open-loop replayer: never early, late calls at once, and an unshifted schedule."""

from __future__ import annotations

import contextlib
import os
import sys
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

    :param late_ns: how much a sleep oversleeps.
    """

    def __init__(self, late_ns: int = 0) -> None:
        self.now, self.late_ns = 0, late_ns

    def ns(self) -> int:
        self.now += 50  # cost of a reading
        return self.now

    def sleep(self, seconds: float, /) -> None:
        self.now += round(seconds * 1e9) + self.late_ns


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

    replay(scheduled, hand_over, clock=clock.ns, sleep=clock.sleep)
    returned = 0
    for began, due in zip(at, scheduled, strict=True):
        ready = max(due, returned)
        # Spinning absorbs oversleeping within its bounds.
        assert due <= began and ready <= began <= ready + max(late_ns - LEAST_SPIN_NS, 0) + 1_000
        returned = began + takes


def test_the_machines_clock_is_never_early_either() -> None:
    scheduled = (time.perf_counter_ns() + np.arange(1, 60, dtype=np.int64) * 500_000).tolist()
    calls: list[tuple[int, int]] = []
    replay(scheduled, lambda k: calls.append((k, time.perf_counter_ns())))
    assert [k for k, _ in calls] == list(range(59))
    assert all(at >= due for (_, at), due in zip(calls, scheduled, strict=True))


def test_a_long_wait_beats() -> None:
    clock, beats = SimulatedClock(), list[int]()
    replay([0, 10**9], lambda _: None, beat=lambda: beats.append(clock.now), clock=clock.ns, sleep=clock.sleep)
    assert len(beats) > 9 and max(np.diff(beats)) <= 10**8


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
        replay([0], hand_over)
    assert during == [1] and slack() == before != 1


def test_priority_is_given_back() -> None:
    line = replay_module.take_priority()
    replay_module.give_priority_back()
    assert line.startswith("replayer: ")
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
