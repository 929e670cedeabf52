"""No caller can end the service for the others."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import pytest

from latfix import Request, Runner
from latfix.errors import InputError
from tests.runners.live.conftest import MakeRunner

Ask = Callable[[Runner, Any], Any]


def submitted(runner: Runner, request: Any) -> Any:
    return runner.submit(request).result(10)


def in_a_thread(runner: Runner, request: Any) -> Any:
    return runner.infer_sync(request)


def in_a_loop(runner: Runner, request: Any) -> Any:
    async def call() -> Any:
        return await runner.infer(request)

    return asyncio.run(call())


@pytest.mark.parametrize("batch_key", ["", "n"])
@pytest.mark.parametrize(
    ("hostile", "served"),
    [
        ({"value": 1, "deadline_ms": 1e305}, True),
        ({"value": 1, "deadline_ms": 1e13}, True),
        ({"value": 1, "n": 1e300}, True),
        (Request(id="x", arrival_s=0.0, features={"value": 1, "n": float("nan")}), True),
        ([("value", 1)], False),
        (Request(id="x", arrival_s=0.0, priority="urgent"), False),  # type: ignore[arg-type]
        (Request(id="x", arrival_s=0.0, deadline_ms=float("inf")), False),
        (Request(id="x", arrival_s=0.0, deadline_ms="soon"), False),  # type: ignore[arg-type]
        (Request(id="x", arrival_s=0.0, features=None), False),  # type: ignore[arg-type]
    ],
)
def test_no_request_ends_the_engine(make_runner: MakeRunner, hostile: Any, served: bool, batch_key: str) -> None:
    """A deadline or length that no clock or column can hold would kill a thread that used it unchecked."""
    traffic = [{"arrival_s": 0.01 * k, "value": k, "n": k} for k in range(4)]
    runner = make_runner(traffic=traffic, batch_key=batch_key)
    ways: tuple[Ask, ...] = (submitted, in_a_thread, in_a_loop)
    for call in ways:
        if served:
            assert call(runner, hostile) == 2.0
        else:
            with pytest.raises(InputError, match=r"^request: "):
                call(runner, hostile)
    assert runner.infer_sync({"value": 2}) == 4.0
    assert runner.serving and not runner._engine.ended_threads() and runner.stats().in_flight == 0


@pytest.mark.parametrize("value", [1, -1])
def test_a_callback_that_exits_ends_no_thread(make_runner: MakeRunner, hold: Any, value: int) -> None:
    """Callbacks of a future run on the answering thread; the model raises for -1."""
    runner = make_runner()
    first = runner.submit({"value": value, "payload": {"prepare": hold}})
    assert hold.entered.wait(10)
    called = threading.Event()

    def leave(_: concurrent.futures.Future[Any]) -> None:
        called.set()
        raise SystemExit("the caller's own")

    first.add_done_callback(leave)
    hold.let_go()
    assert called.wait(10)
    assert runner.infer_sync({"value": 2}) == 4.0
    assert runner.serving and not runner._engine.ended_threads()


def test_a_callback_that_exits_does_not_keep_other_callers_waiting(make_runner: MakeRunner, hold: Any) -> None:
    runner = make_runner()
    futures = [runner.submit({"value": k, "payload": {"finish": hold}}) for k in range(3)]
    assert hold.entered.wait(10)

    def leave(_: concurrent.futures.Future[Any]) -> None:
        raise SystemExit("the caller's own")

    futures[0].add_done_callback(leave)
    threading.Timer(0.5, hold.let_go).start()
    runner.close(timeout_s=0.05)
    assert all(future.done() for future in futures)
