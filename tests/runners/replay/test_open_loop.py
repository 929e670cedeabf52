"""The open-loop replayer: never early, late at once, and the schedule stays."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latfix.runners.replay import open_loop as replay_module
from latfix.runners.replay.open_loop import replay, wait_until


@settings(max_examples=30, deadline=None)
@given(st.integers(-1_000_000, 6_000_000))
def test_a_wait_never_returns_early(ahead_ns: int) -> None:
    due = time.perf_counter_ns() + ahead_ns
    returned = wait_until(due)
    assert due <= returned <= time.perf_counter_ns()


def test_calls_are_never_early_and_in_order() -> None:
    scheduled = time.perf_counter_ns() + np.arange(1, 60, dtype=np.int64) * 500_000
    calls: list[tuple[int, int]] = []

    sent = replay(scheduled, lambda k: calls.append((k, time.perf_counter_ns())), threading.Event())

    assert sent == 59
    assert [k for k, _ in calls] == list(range(59))
    assert all(at >= due for (_, at), due in zip(calls, scheduled.tolist(), strict=True))


def test_late_calls_are_made_at_once_and_the_schedule_is_not_moved() -> None:
    # GIVEN a first call that takes as long as the next nine are apart in all
    step = 2_000_000
    start = time.perf_counter_ns() + 1_000_000
    scheduled = start + np.arange(20, dtype=np.int64) * step
    at: list[int] = []

    def hand_over(k: int) -> None:
        if k == 0:
            time.sleep(10 * step / 1e9)
        at.append(time.perf_counter_ns())

    replay(scheduled, hand_over, threading.Event())

    # THEN the calls that were due meanwhile follow together, not two milliseconds apart each …
    late = [t for t, due in zip(at[1:10], scheduled[1:10].tolist(), strict=True) if t > due]
    assert len(late) == 9
    assert at[9] - at[1] < 8 * step
    # … and a later one still waits for its own time.
    assert at[-1] >= scheduled[-1]


def test_due_times_that_have_passed_are_called_without_a_wait() -> None:
    # A schedule of an hour that ended long ago: waiting for any of its gaps would hang the test.
    scheduled = time.perf_counter_ns() - 10**15 + np.arange(1_000, dtype=np.int64) * 3_600_000_000
    calls: list[int] = []
    assert replay(scheduled, calls.append, threading.Event()) == 1_000
    assert calls == list(range(1_000))


def test_stop_ends_a_long_wait() -> None:
    stop = threading.Event()
    scheduled = np.array([time.perf_counter_ns(), time.perf_counter_ns() + 3600 * 10**9], dtype=np.int64)
    result: list[int] = []
    thread = threading.Thread(target=lambda: result.append(replay(scheduled, lambda _: None, stop)))
    thread.start()
    time.sleep(0.05)
    stop.set()
    thread.join(5)
    assert result == [1]


def test_stop_before_the_start_sends_nothing() -> None:
    stop = threading.Event()
    stop.set()
    calls: list[int] = []
    assert replay(np.zeros(5, dtype=np.int64), calls.append, stop) == 0
    assert not calls


def test_an_empty_schedule_ends_at_once() -> None:
    assert replay(np.zeros(0, dtype=np.int64), lambda _: None, threading.Event()) == 0


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
        replay(np.zeros(1, dtype=np.int64), hand_over, threading.Event())
    assert during == [1] and slack() == before != 1


def test_priority_is_given_back() -> None:
    import os

    line = replay_module.take_priority()
    replay_module.give_priority_back()
    assert line.startswith("replayer: ")
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
