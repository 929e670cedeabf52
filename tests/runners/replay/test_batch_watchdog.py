"""Hanging work is reported with its thread, batch and stack, and requests in flight are recorded."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from latfix.profilers.probes.stage_recorder import EventLog, StageRecorder
from latfix.run_record.schema import REQUEST_DTYPE
from latfix.runners.replay.batch_watchdog import BatchWatchdog
from latfix.settings import RunnerSettings
from latfix.stages import STAGES, Status


@pytest.fixture
def hanging() -> Iterator[threading.Thread]:
    """A thread that waits in a function of this file."""
    release = threading.Event()

    def forward_that_hangs() -> None:
        release.wait()

    thread = threading.Thread(target=forward_that_hangs)
    thread.start()
    yield thread
    release.set()
    thread.join()


def _open_batch(recorder: StageRecorder, since_ns: int, *, first_shape: int = 0, size: int = 3) -> int:
    batch = recorder.new_batch()
    recorder.batch_values(batch, {"worker": 0, "size": size, "close_ns": since_ns, "first_shape": first_shape})
    return batch


def _watchdog(recorder: StageRecorder, thread: threading.Thread, limit_s: float) -> tuple[BatchWatchdog, EventLog]:
    events = EventLog()
    ids = {"worker": [thread.native_id], "prepare": [thread.native_id]}
    workers = [SimpleNamespace(step_ns=0)]
    engine: Any = SimpleNamespace(thread_ids=lambda: ids, settings=RunnerSettings(), events=events, workers=workers)
    return BatchWatchdog(engine, recorder, limit_s), events


def _ago(seconds: float) -> int:
    return time.perf_counter_ns() - int(seconds * 1e9)


def test_a_hanging_batch_is_reported_once_and_exceeds_its_limit(hanging: threading.Thread) -> None:
    recorder = StageRecorder(8)
    recorder.batch_done(_open_batch(recorder, _ago(400)), _ago(390))
    stuck = _open_batch(recorder, _ago(20))
    watchdog, events = _watchdog(recorder, hanging, 60.0)
    fresh, beyond = watchdog.look()
    assert fresh is not None and not beyond
    assert f"worker 0 has been in batch {stuck} of 3 requests for 20" in fresh.words
    assert any("forward_that_hangs" in line for line in fresh.stack)
    assert watchdog.look() == (None, None)
    assert _watchdog(recorder, hanging, 10.0)[0].look()[1]
    watchdog.log()
    assert '"hang"' in events.drain(0)
    recorder.batch_done(stuck, _ago(0))
    assert _watchdog(recorder, hanging, 10.0)[0].look() == (None, None)


@pytest.mark.parametrize("case", ["first of its shape", "first of its worker", "no limit"])
def test_a_slow_first_batch_is_no_hang(hanging: threading.Thread, case: str) -> None:
    recorder = StageRecorder(8)
    if case != "first of its worker":
        recorder.batch_done(_open_batch(recorder, _ago(400)), _ago(390))
    _open_batch(recorder, _ago(100), first_shape=int(case == "first of its shape"))
    assert not _watchdog(recorder, hanging, 0.0 if case == "no limit" else 60.0)[0].look()[1]


@pytest.mark.parametrize(
    ("ended_s", "beyond"),
    [
        ([0.01] * 40, True),  # a limit of 4 s; new shapes have never taken long
        ([0.01] * 7, False),  # few shapes so far: the next may be slow
        ([0.01] * 39 + [3.0], False),  # one took 3 s, so that 20 s are no surprise
        ([0.01] * 39 + [1.5], True),
    ],
)
def test_a_hang_in_a_new_shape_when_nearly_every_shape_is_new(
    hanging: threading.Thread, ended_s: list[float], beyond: bool
) -> None:
    recorder = StageRecorder(64)
    for seconds in ended_s:
        recorder.batch_done(_open_batch(recorder, _ago(400), first_shape=1), _ago(400 - seconds))
    stuck = _open_batch(recorder, _ago(20), first_shape=1)
    watchdog, _ = _watchdog(recorder, hanging, 4.0)
    fresh, ended = watchdog.look()
    assert (ended is not None) is beyond
    if beyond:
        assert fresh is not None and f"worker 0 has been in batch {stuck} of 3 requests" in fresh.words


def test_what_hangs_is_named_not_what_took_long_before(hanging: threading.Thread) -> None:
    recorder = StageRecorder(8)
    recorder.batch_done(_open_batch(recorder, _ago(400)), _ago(390))
    slow = _open_batch(recorder, _ago(200), first_shape=1)
    watchdog, events = _watchdog(recorder, hanging, 60.0)
    assert watchdog.look()[0] is not None and watchdog.worst is not None
    recorder.batch_done(slow, _ago(70))
    stuck = _open_batch(recorder, _ago(65))
    _, beyond = watchdog.look()
    assert beyond is not None and beyond == watchdog.worst and f"batch {stuck} of 3 requests" in beyond.words
    watchdog.log()
    assert events.drain(0).count('"hang"') == 1


@pytest.mark.parametrize(("ended_s", "beyond"), [(None, False), (1.0, False), (70.0, True)])
def test_a_batch_that_waits_behind_a_slow_one_is_no_hang(
    hanging: threading.Thread, ended_s: float | None, beyond: bool
) -> None:
    """Batches that overlap share their worker's thread."""
    recorder = StageRecorder(8)
    recorder.batch_done(_open_batch(recorder, _ago(400)), _ago(390))
    slow = _open_batch(recorder, _ago(100), first_shape=1)
    _open_batch(recorder, _ago(90))
    if ended_s is not None:
        recorder.batch_done(slow, _ago(ended_s))
    watchdog, _ = _watchdog(recorder, hanging, 60.0)
    assert (watchdog.look()[1] is not None) is beyond


@pytest.mark.parametrize(
    ("step_s", "beyond"),
    [(1.0, False), (5.0, True), (9.0, False)],
    ids=["a quick step", "hangs", "a new shape joins"],
)
def test_the_limit_of_continuous_batching_is_that_of_a_step(
    hanging: threading.Thread, step_s: float, beyond: bool
) -> None:
    """Answers take as long as they have tokens; the place 6 is one of the second worker."""
    recorder = StageRecorder(8)
    for ended in (True, False, False):
        batch, since_ns = recorder.new_batch(), _ago(400.0 if ended else 8.0)
        recorder.batch_values(batch, {"worker": 6, "size": 1, "close_ns": since_ns, "first_shape": 1})
        if ended:
            recorder.batch_done(batch, _ago(399.9))
    ids = {"worker": [threading.get_native_id(), hanging.native_id], "prepare": []}
    settings = RunnerSettings(batching="continuous", max_batch_size=4, workers=2)
    workers = [SimpleNamespace(step_ns=_ago(0)), SimpleNamespace(step_ns=_ago(step_s))]
    engine: Any = SimpleNamespace(thread_ids=lambda: ids, settings=settings, events=EventLog(), workers=workers)
    fresh, ended_by = BatchWatchdog(engine, recorder, 4.0).look()
    assert (ended_by is not None) is beyond
    if beyond:
        assert fresh is not None and (fresh.thread, fresh.native_id) == ("worker 1", hanging.native_id)
        assert "worker 1 has been in a step of 2 requests for 5" in fresh.words
        assert any("forward_that_hangs" in line for line in fresh.stack)


def test_a_prepare_that_hangs(hanging: threading.Thread) -> None:
    recorder = StageRecorder(8)
    recorder.handed[5] = recorder.prepare_start[5] = _ago(90)
    recorder.prepare_thread[5] = 0
    watchdog, _ = _watchdog(recorder, hanging, 60.0)
    fresh, beyond = watchdog.look()
    assert beyond and fresh is not None and "prepare thread 0 has been in prepare of request 5" in fresh.words


def test_requests_in_flight_at_the_end_are_recorded_once() -> None:
    recorder = StageRecorder(4)
    recorder.scheduled_ns[:] = [100, 200, 300, 400]
    for slot in range(3):
        recorder.handed[slot] = int(recorder.scheduled_ns[slot]) + 1
    recorder.enqueued[1] = 250
    recorder.request_done(0, Status.OK, 180)
    assert recorder.cut(1000) == 2
    recorder.request_done(1, Status.OK, 2000)  # its worker woke too late
    rows = recorder.drain_requests()
    assert rows.dtype == REQUEST_DTYPE and sorted(rows["index"].tolist()) == [0, 1, 2]
    cut = rows[rows["status"] == Status.UNFINISHED]
    assert dict(zip(cut["index"].tolist(), cut["latency_ns"].tolist(), strict=True)) == {1: 800, 2: 700}
    assert np.array_equal(sum(rows[f"{stage}_ns"] for stage in STAGES), rows["latency_ns"])
    assert cut["queue_ns"][cut["index"] == 1] == 750 and recorder.completed == 1
