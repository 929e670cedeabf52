"""A runner in a user's own program: answers, errors, capacity, cancellation, deadlines, and every way to end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import math
import os
import signal
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import latfix
from latfix import Request, Runner
from latfix.errors import EXIT_RUNNER, InputError, LatfixError, RunnerError
from latfix.runners.engine.engine import Engine
from latfix.runners.engine.worker import Outcome, Worker
from latfix.runners.live import load as live_load
from latfix.runners.live import runner as live
from latfix.stages import STAGES, Status
from tests.runners.engine.served import engine_threads
from tests.runners.live.conftest import MakeRunner

ENDED = {"ok", "error", "timeout", "shed", "cancelled"}


def settle(what: Callable[[], bool]) -> None:
    """Wait until a condition set by other threads holds."""
    end = time.monotonic() + 10
    while not what():
        assert time.monotonic() < end, "the condition never held"
        time.sleep(0.002)


def test_answers_come_back_to_their_callers(make_runner: MakeRunner) -> None:
    runner = make_runner(max_batch_size=4)
    assert runner.infer_sync({"value": 4}) == 8.0
    assert runner.infer_sync({"features": {"value": 5}}) == 10.0
    assert runner.infer_sync(Request(id="x", arrival_s=0.0, features={"value": 6})) == 12.0

    async def many() -> list[Any]:
        return await asyncio.gather(*(runner.infer({"value": k}) for k in range(200)))

    assert asyncio.run(many()) == [2.0 * k for k in range(200)]
    assert runner.submit({"value": 7}).result(10) == 14.0
    assert runner.stats().requests == {**dict.fromkeys(ENDED, 0), "ok": 204}


def test_requests_that_come_together_are_batched(make_runner: MakeRunner) -> None:
    """The same engine as in a replay: eight requests within the window form one batch."""
    runner = make_runner(max_batch_size=8, batch_window_ms=500.0)
    futures = [runner.submit({"value": k}) for k in range(8)]

    assert [future.result(10) for future in futures] == [2.0 * k for k in range(8)]
    rows = runner.recent()
    assert len(rows) == 8 and len(set(rows["batch_id"])) == 1
    assert isinstance(runner._engine, Engine)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"value": 1, "payload": {"prepare": lambda: 1 / 0}}, "prepare raised ZeroDivisionError"),
        ({"value": -1}, "the model raised ValueError: negative"),
        ({"value": 1, "payload": {"finish": lambda: [].pop()}}, "finish raised IndexError"),
    ],
)
def test_a_failed_request_names_its_stage(make_runner: MakeRunner, request_: dict[str, Any], expected: str) -> None:
    runner = make_runner(max_batch_size=4)
    with pytest.raises(latfix.RequestFailed, match=expected) as caught:
        runner.infer_sync({**request_, "id": "mine"})
    assert caught.value.request_id == "mine" and "mine" in caught.value.message
    with pytest.raises(latfix.RequestFailed, match=expected):
        asyncio.run(runner.infer(request_))

    assert runner.infer_sync({"value": 1}) == 2.0, "no other request is affected"
    assert runner.stats().requests["error"] == 2


def test_errors_are_one_tree() -> None:
    for kind in (latfix.RequestFailed, latfix.RequestTimedOut, latfix.RequestShed, latfix.RunnerClosed):
        assert issubclass(kind, latfix.RequestError)
    assert issubclass(latfix.RequestError, RunnerError) and issubclass(RunnerError, LatfixError)
    assert latfix.RequestShed("x").exit_code == EXIT_RUNNER
    assert not issubclass(InputError, latfix.RequestError)


def test_many_more_requests_than_rows_from_threads_and_event_loops_at_once(
    make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "WINDOW", 32)
    runner = make_runner(load={"slots": 8, "when_full": "wait"}, max_batch_size=4, workers=2, prepare_threads=2)
    recorder = runner._recorder
    columns = {name: id(column) for name, column in recorder._columns.items()}

    def thread(start: int) -> list[Any]:
        return [runner.infer_sync({"value": k}) for k in range(start, start + 150)]

    def loop(start: int) -> list[Any]:
        async def all_of_them() -> list[Any]:
            return await asyncio.gather(*(runner.infer({"value": k}) for k in range(start, start + 200)))

        return asyncio.run(all_of_them())

    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        futures = {1000 * k: pool.submit(thread if k < 3 else loop, 1000 * k) for k in range(5)}
    for start, answers in futures.items():
        assert answers.result() == [2.0 * (start + k) for k in range(len(answers.result()))]
    stats = runner.stats()
    assert stats.requests["ok"] == 3 * 150 + 2 * 200 == sum(stats.requests.values())
    assert (stats.in_flight, stats.queued, stats.waiting) == (0, 0, 0)
    assert {name: id(column) for name, column in recorder._columns.items()} == columns
    assert recorder.slots == 32 + 2 * 8 == len(recorder._free) == len(set(recorder._free))
    assert len(set(recorder._free_batches)) == len(recorder._free_batches) == 2 * recorder.slots + 16
    assert stats.window == 32 and len(runner.recent()) == 32


@pytest.mark.slow
def test_memory_does_not_grow(make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "WINDOW", 64)
    monkeypatch.setattr(live_load, "_EVENTS", 20)
    runner = make_runner(load={"slots": 4}, max_batch_size=2)

    def infer(n: int) -> None:
        for k in range(n):
            if k % 10:
                runner.infer_sync({"value": k, "id": f"a request of {k}"})
            else:
                with pytest.raises(latfix.RequestFailed):
                    runner.infer_sync({"value": -1})

    tracemalloc.start()
    try:
        infer(1000)  # fills every row of the rings, and Python's free lists
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        infer(1000)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    # Less than the smallest object per request and its place in a container, so no request leaves anything.
    assert grown < 1000 * 32, f"{grown} bytes stayed of 1000 requests"


def test_shapes_that_are_remembered_are_bounded(make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_load, "_SHAPES", 3)
    runner = make_runner(
        adapter="""
        import torch
        from latfix import Request, Workload

        class Long(Workload):
            def load(self, device):
                return torch.nn.Identity()

            def prepare(self, request):
                return torch.zeros(int(request.features["n"]))

            def finish(self, output, request):
                return output.numel()
        """,
        load={"warm": False},
    )
    assert [runner.infer_sync({"n": k}) for k in range(1, 9)] == list(range(1, 9))
    assert len(runner._service.models.instances[0].seen) == 3


def test_where_all_rows_are_in_use_the_next_is_shed(make_runner: MakeRunner, hold: Any) -> None:
    runner = make_runner(load={"slots": 2})
    first = runner.submit({"value": 1, "payload": {"finish": hold}})
    assert hold.entered.wait(10)
    second = runner.submit({"value": 2})

    with pytest.raises(latfix.RequestShed, match="2 requests are inside"):
        runner.submit({"value": 3})
    with pytest.raises(latfix.RequestShed):
        asyncio.run(runner.infer({"value": 3}))
    hold.let_go()

    assert (first.result(10), second.result(10)) == (2.0, 4.0)
    assert runner.infer_sync({"value": 3}) == 6.0, "capacity is free again"
    assert runner.stats().requests == {**dict.fromkeys(ENDED, 0), "ok": 3, "shed": 2}


def test_where_all_rows_are_in_use_the_next_waits_in_line_if_it_may(make_runner: MakeRunner, hold: Any) -> None:
    runner = make_runner(load={"slots": 1, "when_full": "wait"})
    order: list[int] = []
    first = runner.submit({"value": 0, "payload": {"finish": hold}})
    assert hold.entered.wait(10)
    rest = [runner.submit({"value": k, "payload": {"prepare": lambda k=k: order.append(k)}}) for k in range(1, 300)]

    assert (runner.stats().in_flight, runner.stats().waiting) == (1, 299)
    hold.let_go()
    assert [future.result(10) for future in [first, *rest]] == [2.0 * k for k in range(300)]
    assert order == list(range(1, 300)), "first come, first served"


def test_a_line_whose_requests_all_end_at_once_does_not_pile_up_calls(
    make_runner: MakeRunner, hold: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Admission refuses two thousand in line, each from within the previous end: the stack must not grow."""
    runner = make_runner(load={"slots": 1, "when_full": "wait"})
    first = runner.submit({"value": 0, "payload": {"finish": hold}})
    assert hold.entered.wait(10)
    rest = [runner.submit({"value": k}) for k in range(2000)]
    engine = runner._engine
    admit = engine.submit

    def refuse(row: int) -> None:
        runner._recorder.handed[row] = now = time.perf_counter_ns()
        runner._recorder.request_done(row, Status.SHED, now)
        runner._on_done(row, Outcome(Status.SHED, None, "shed: as a policy would"))

    monkeypatch.setattr(engine, "submit", refuse)
    hold.let_go()
    assert first.result(10) == 0.0
    assert all(isinstance(future.exception(20), latfix.RequestShed) for future in rest)
    monkeypatch.setattr(engine, "submit", admit)
    assert runner.infer_sync({"value": 1}) == 2.0


def test_the_services_own_limit_decides_before_the_rows_do(make_runner: MakeRunner, hold: Any) -> None:
    runner = make_runner(load={"slots": 1}, max_queue=3)
    held = [runner.submit({"value": k, "payload": {"finish": hold}}) for k in range(3)]

    with pytest.raises(latfix.RequestShed, match="the queue was full"):
        runner.infer_sync({"value": 9})
    hold.let_go()
    assert [future.result(10) for future in held] == [0.0, 2.0, 4.0]


def test_a_request_cancelled_in_the_queue_never_reaches_the_model(make_runner: MakeRunner, hold: Any) -> None:
    runner = make_runner()
    served: list[str] = []

    async def infer(name: str, **hooks: Any) -> Any:
        return await runner.infer({"value": 1, "payload": {"finish": lambda: served.append(name), **hooks}})

    async def scenario() -> None:
        first = asyncio.create_task(infer("first", finish=hold))
        await asyncio.to_thread(hold.entered.wait, 10)
        second, third = asyncio.create_task(infer("second")), asyncio.create_task(infer("third"))
        while runner.stats().queued < 2:
            await asyncio.sleep(0.002)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        hold.let_go()
        assert await first == await third == 2.0

    asyncio.run(scenario())
    assert served == ["third"]
    settle(lambda: runner.stats().in_flight == 0)
    assert runner.stats().requests == {**dict.fromkeys(ENDED, 0), "ok": 2, "cancelled": 1}


def test_a_request_cancelled_before_prepare_is_not_prepared(make_runner: MakeRunner, hold: Any) -> None:
    runner = make_runner()
    prepared: list[int] = []
    first = runner.submit({"value": 1, "payload": {"prepare": hold}})
    assert hold.entered.wait(10)
    second = runner.submit({"value": 2, "payload": {"prepare": lambda: prepared.append(2)}})
    assert second.cancel()
    third = runner.submit({"value": 3, "payload": {"prepare": lambda: prepared.append(3)}})
    hold.let_go()

    assert (first.result(10), third.result(10)) == (2.0, 6.0)
    assert prepared == [3]
    assert runner.stats().requests["cancelled"] == 1


def test_a_request_cancelled_in_line_leaves_it(make_runner: MakeRunner, hold: Any) -> None:
    runner = make_runner(load={"slots": 1, "when_full": "wait"})
    first = runner.submit({"value": 1, "payload": {"finish": hold}})
    waiting = [runner.submit({"value": k}) for k in range(5)]
    assert waiting[1].cancel() and waiting[3].cancel()

    assert runner.stats().waiting == 3, "otherwise a line of cancelled requests would grow without end"
    hold.let_go()
    assert [waiting[k].result(10) for k in (0, 2, 4)] == [0.0, 4.0, 8.0]
    assert first.result(10) == 2.0
    assert runner.stats().requests == {**dict.fromkeys(ENDED, 0), "ok": 4, "cancelled": 2}


@pytest.mark.parametrize("own", [True, False])
def test_no_caller_waits_beyond_its_deadline_for_a_stuck_engine(
    make_runner: MakeRunner, hold: Any, own: bool
) -> None:
    runner = make_runner(load={"settings": {} if own else {"timeout_ms": 30.0}})
    deadline = {"deadline_ms": 30.0} if own else {}
    stuck = runner.submit({"value": 1, "deadline_ms": 60_000.0, "payload": {"finish": hold}})
    assert hold.entered.wait(10)

    with pytest.raises(latfix.RequestTimedOut, match="deadline"):
        runner.infer_sync({"value": 2, **deadline})
    with pytest.raises(latfix.RequestTimedOut, match="deadline"):
        asyncio.run(runner.infer({"value": 2, **deadline}))
    assert not stuck.done(), "the engine was still stuck"
    hold.let_go()

    assert stuck.result(10) == 2.0
    settle(lambda: runner.stats().in_flight == 0)
    assert runner.stats().requests == {**dict.fromkeys(ENDED, 0), "ok": 1, "timeout": 2}


def test_closing_lets_requests_inside_finish_and_admits_none(make_runner: MakeRunner, hold: Any) -> None:
    runner = make_runner(load={"slots": 2, "when_full": "wait"}, workers=2, prepare_threads=2)
    futures = [runner.submit({"value": k, "payload": {"finish": hold}}) for k in range(5)]
    assert hold.entered.wait(10) and runner.serving
    closing = threading.Thread(target=runner.close)
    closing.start()
    settle(lambda: not runner.serving)

    with pytest.raises(latfix.RunnerClosed, match="was closed"):
        runner.infer_sync({"value": 1})
    hold.let_go()
    closing.join(10)
    assert [future.result(0) for future in futures] == [2.0 * k for k in range(5)]
    assert not engine_threads()
    runner.close()


def test_closing_does_not_wait_forever(make_runner: MakeRunner, hold: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_THREADS_S", 0.05)
    runner = make_runner()
    stuck = runner.submit({"payload": {"finish": hold}})
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        behind = pool.submit(runner.infer_sync, {"value": 1})
        settle(lambda: runner.stats().in_flight == 2)
        runner.close(timeout_s=0.05)
        assert isinstance(stuck.exception(0), latfix.RunnerClosed)
        assert isinstance(behind.exception(10), latfix.RunnerClosed)
    hold.let_go()
    settle(lambda: not engine_threads())


def test_it_is_a_context_manager_of_both_kinds(make_runner: MakeRunner) -> None:
    with make_runner() as runner:
        assert runner.infer_sync({"value": 1}) == 2.0
    assert not runner.serving and not engine_threads()

    async def scenario() -> Runner:
        async with make_runner() as other:
            assert await other.infer({"value": 1}) == 2.0
            return other

    other = asyncio.run(scenario())
    with pytest.raises(latfix.RunnerClosed):
        other.submit({"value": 1})
    assert not engine_threads()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("role", ["worker", "prepare"])
def test_callers_of_a_dead_thread_get_an_error(
    make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    kind, method = (Worker, "_serve") if role == "worker" else (Engine, "_prepare")

    def die(*_: Any) -> None:
        raise AssertionError("a mistake in latfix itself")

    runner = make_runner(load={"slots": 2, "when_full": "wait"})
    assert runner.infer_sync({"value": 1}) == 2.0
    monkeypatch.setattr(kind, method, die)
    futures = [runner.submit({"value": k}) for k in range(5)]

    for future in futures:
        assert isinstance(future.exception(10), latfix.RunnerClosed)
    with pytest.raises(latfix.RunnerClosed, match=f"latfix-{role}-0 of the runner died"):
        runner.infer_sync({"value": 1})
    assert not runner.serving
    runner.close()
    assert not engine_threads()


def test_a_fork_gets_an_error(make_runner: MakeRunner) -> None:
    runner = make_runner()
    child = os.fork()
    if not child:
        signal.alarm(10)  # a wait for missing threads would never end
        code = 1
        try:
            if runner.serving:  # as a health check would
                os._exit(3)
            runner.infer_sync({"value": 1})
        except latfix.RunnerClosed as error:
            runner.close()
            code = 0 if "fork" in error.message else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert runner.infer_sync({"value": 1}) == 2.0


def test_stats_cover_the_latest_requests_and_add_up(make_runner: MakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "WINDOW", 16)
    runner = make_runner(max_batch_size=2)
    empty = runner.stats()
    assert empty.window == 0 and math.isnan(empty.latency_ms["p99"]) and empty.throughput_rps == 0.0
    for _ in range(40):
        runner.infer_sync({"value": 1, "payload": {"finish": lambda: time.sleep(0.002)}})

    stats = runner.stats()
    assert (stats.window, stats.requests["ok"]) == (16, 40)
    assert stats.latency_ms["p50"] >= 2.0 and stats.stages_ms["finish"]["p50"] >= 2.0
    assert sum(stats.stages_ms[stage]["mean"] for stage in STAGES) == pytest.approx(stats.latency_ms["mean"])
    assert 0 < stats.throughput_rps <= 1000 / stats.latency_ms["mean"]
    assert set(stats.as_dict()) == set(type(stats).__dataclass_fields__)
    rows = runner.recent()
    assert (np.diff(rows["arrival_ns"]) > 0).all() and (rows["batch_id"] >= 0).all()


def test_a_frozen_collector_still_collects_without_requests_and_is_restored(make_runner: MakeRunner) -> None:
    assert gc.isenabled()
    runner = make_runner(gc="freeze")
    try:
        assert not gc.isenabled() and runner.evidence()["gc_frozen"] > 0

        class Node:
            def __init__(self) -> None:
                self.me = self

        nodes = [Node() for _ in range(3000)]
        last = weakref.ref(nodes[-1])
        del nodes
        settle(lambda: last() is None)
    finally:
        runner.close()
    assert gc.isenabled() and gc.get_freeze_count() == 0


def test_a_caller_in_an_ended_loop_affects_no_other(make_runner: MakeRunner, hold: Any) -> None:
    runner = make_runner()

    async def leave() -> None:
        asyncio.get_running_loop().call_later(0.05, hold.let_go)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(runner.infer({"value": 1, "payload": {"finish": hold}}), 0.02)

    asyncio.run(leave())
    hold.let_go()
    assert runner.infer_sync({"value": 2}) == 4.0


def test_a_name_that_does_not_exist_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'load_runer'"):
        _ = latfix.load_runer  # type: ignore[attr-defined]
