"""Collections and compilations are logged with the thread that they delayed."""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import pytest

from latfix.profilers.probes.pause_probes import LIMIT_SERIES, CompileEvents, GcPauses
from latfix.profilers.probes.stage_recorder import EventLog


class Handler:
    """A fake of dynamo's callback handler: holds registered callbacks for the test to call."""

    def __init__(self) -> None:
        self.start: list[Callable[[Any], None]] = []
        self.end: list[Callable[[Any], None]] = []
        self.register_start_callback = self.start.append
        self.register_end_callback = self.end.append
        self.remove_start_callback = self.start.remove
        self.remove_end_callback = self.end.remove


@pytest.fixture
def handler(monkeypatch: pytest.MonkeyPatch) -> Handler:
    made = Handler()
    monkeypatch.setitem(sys.modules, "torch._dynamo.callback", types.SimpleNamespace(callback_handler=made))
    return made


def _rows(log: EventLog) -> list[list[Any]]:
    return [json.loads(line) for line in log.drain(0).splitlines()]


def test_without_dynamo_there_is_nothing_to_attach_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.callback", raising=False)
    events = CompileEvents(EventLog())
    assert not events.attach()
    assert "torch._dynamo.callback" not in sys.modules, "attaching does not import it"
    events.detach()


def test_a_compilation_is_an_event(handler: Handler) -> None:
    log = EventLog()
    events = CompileEvents(log)
    assert events.attach() and events.attach()
    assert len(handler.start) == len(handler.end) == 1

    handler.start[0](types.SimpleNamespace(callback_trigger="CallbackTrigger.DYNAMO"))
    handler.end[0](None)

    ((start, duration, kind, thread, *_, detail),) = _rows(log)
    assert (kind, thread, detail) == ("compile", threading.get_native_id(), {"trigger": "dynamo"})
    assert start > 0 and events.total_ns == duration >= 0 and events.count == 1
    events.detach()
    assert handler.start == handler.end == []


def test_a_compilation_that_began_before_attaching_is_ignored(handler: Handler) -> None:
    log = EventLog()
    CompileEvents(log).attach()
    handler.end[0](None)
    assert not _rows(log)


def test_reached_recompile_limits_are_counted() -> None:
    """With a function that the real framework compiles for each length, and its own limit."""
    import torch
    import torch._dynamo

    events = CompileEvents(EventLog())
    calls = torch.compile(lambda values: values + 1, backend="eager", dynamic=False)
    try:
        with torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=False):
            calls(torch.zeros(3))
            before = events.read()[LIMIT_SERIES]
            for length in (4, 5, 6):
                calls(torch.zeros(length))
        assert events.read()[LIMIT_SERIES] > before
    finally:
        events.detach()
        torch._dynamo.reset()


def test_a_forced_collection_is_logged_in_its_thread() -> None:
    log = EventLog()
    thread_ids: list[int] = []

    def collect() -> None:
        thread_ids.append(threading.get_native_id())
        for _ in range(100):
            cycle: list[Any] = []
            cycle.append(cycle)
        del cycle
        gc.collect()

    with GcPauses(log) as pauses:
        before = time.perf_counter_ns()
        thread = threading.Thread(target=collect)
        thread.start()
        thread.join()
        after = time.perf_counter_ns()

    full = [row for row in _rows(log) if row[6]["generation"] == 2 and row[3] == thread_ids[0]]
    assert len(full) == 1 and full[0][6]["collected"] > 0
    start, duration, kind, *_ = full[0]
    assert kind == "gc"
    assert before <= start <= start + duration <= after
    assert pauses.cost_ns > 0


def test_collections_that_began_before_or_after_are_not_logged() -> None:
    log = EventLog()
    with GcPauses(log) as pauses:
        pauses._callback("stop", {"generation": 0, "collected": 0})
    gc.collect()
    assert not _rows(log)
    assert not any(getattr(callback, "__self__", None).__class__ is GcPauses for callback in gc.callbacks)
