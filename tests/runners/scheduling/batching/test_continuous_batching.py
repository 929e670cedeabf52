"""Continuous batching: when requests join and leave, what is recorded, and what happens if a step fails."""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from latfix.errors import RunnerError
from latfix.request import Request
from latfix.run_record.schema import EVENT_FIELDS
from latfix.runners.engine.continuous_batching import Steps
from latfix.runners.engine.idle_gc import IdleCollector
from latfix.runners.fixes.batch.continuous import FIX, joined, works_in_steps
from latfix.runners.fixes.fix import Applied
from latfix.runners.replay.batch_watchdog import BatchWatchdog
from tests.records import build_record
from tests.runners.engine.served import Served
from tests.runners.scheduling.counting_model import Counter, Row, Stepping


def _served(steps: Sequence[int], model: Any, collector: IdleCollector | None = None, **settings: Any) -> Served:
    requests = [Request(id=str(k), arrival_s=0.0, features={"steps": n}) for k, n in enumerate(steps)]
    settings = {"max_batch_size": 4, "batching": "continuous", **settings}
    return Served(requests, model, adapter=Stepping(), more={"collector": collector}, **settings)


def _answers(served: Served) -> None:
    for slot, request in enumerate(served.requests):
        assert served.outcomes[slot].output == slot * int(request.features["steps"]), slot


def test_a_short_answer_does_not_wait_for_a_long_one() -> None:
    model, first = Counter(), threading.Event()
    go = threading.Event()

    def gate(numbers: Sequence[float]) -> None:
        if list(numbers) == [0.0]:
            first.set()
            assert go.wait(20)

    model.gate = gate
    served = _served([40, 2, 3, 1, 0], model)
    served.send(0)
    assert first.wait(20)
    served.send(1, 2, 3, 4)
    while served.engine.load()["runner.queue_depth"] < 4:
        time.sleep(0.001)
    go.set()
    rows, batches = served.end()
    _answers(served)
    assert served.order[-1] == 0, "the long one ends last"
    # THEN the others joined it in service, at most four at once, each in its own row
    assert [0.0, 1.0, 2.0, 3.0] in model.together and max(map(len, model.together)) == 4
    assert len(set(rows["batch_id"].tolist())) == 5
    assert batches["size"].max() <= 4 and (batches["retried"] == 0).all()


def test_places_serve_one_request_at_a_time() -> None:
    served = _served([5, 3, 8, 1, 2, 6, 4, 7] * 4, Counter(ms=0.2), max_batch_size=3, workers=2, shared_model=True)
    served.send(*range(32))
    rows, batches = served.end()
    _answers(served)
    assert set(batches["worker"].tolist()) <= set(range(6))
    assert len(np.unique(batches["worker"])) == 6
    for place in np.unique(batches["worker"]):
        own = np.sort(batches[batches["worker"] == place], order="close_ns")
        assert (own["free_ns"][1:] == own["finish_end_ns"][:-1]).all()
        moments = ("free_ns", "open_ns", "close_ns", "collated_ns", "d2h_end_ns", "finish_end_ns")
        assert (np.diff([own[name] for name in moments], axis=0) >= 0).all()
    assert (rows["compute_ns"] > 0).all()


ERRORS = [ValueError("bad one"), SystemExit(3)]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["start", "step", "done", "leave", "join"])
def test_only_the_guilty_one_fails(where: str, error: BaseException) -> None:
    model = Counter(ms=0.2)

    def fails(now: str, numbers: Sequence[float]) -> None:
        if 5.0 in numbers and now in (where, "forward"):
            raise error

    model.fails = fails
    served = _served([6, 3, 8, 2, 5, 4, 3, 2], model)
    served.send(*range(8))
    served.end()
    statuses = [served.outcomes[slot].status.name for slot in range(8)]
    assert statuses == ["OK"] * 5 + ["ERROR"] + ["OK"] * 2
    assert type(error).__name__ in served.outcomes[5].error
    assert [served.outcomes[k].output for k in (0, 4, 6)] == [0.0, 20.0, 18.0]


@pytest.mark.parametrize("where", ["join", "done", "step", "leave"])
def test_the_state_of_rows_that_failed_is_free_when_they_run_alone(where: str) -> None:
    model = Counter()
    states: list[list[weakref.ref[Row]]] = []
    alive: list[bool] = []
    start = model.start

    def started(x: torch.Tensor) -> list[Row]:
        state = start(x)
        states.append([weakref.ref(row) for row in state])
        return state

    def fails(now: str, _numbers: Sequence[float]) -> None:
        if now == where:
            raise MemoryError("out of memory")
        if now == "forward":
            mine = states[-1:] if where == "join" else states  # earlier states continue
            alive.append(any(row() is not None for rows in mine for row in rows))

    model.start, model.fails = started, fails  # type: ignore[method-assign]
    served = _served([3, 2, 1, 2, 3], model)
    served.send(*range(5))
    served.end()
    _answers(served)
    assert alive and not any(alive)


def no_steps_today(where: str, _numbers: Sequence[float]) -> None:
    if where == "step":
        raise RuntimeError("no steps today")


def one_too_many(state: Sequence[object]) -> list[bool]:
    return [True] * (len(state) + 1)


@pytest.mark.parametrize(("hook", "does"), [("fails", no_steps_today), ("done", one_too_many)])
def test_steps_that_fail_or_answer_nonsense_leave_whole_batches(hook: str, does: Any) -> None:
    model = Counter()
    setattr(model, hook, does)
    served = _served([3, 2, 1], model)
    served.send(0, 1, 2)
    _, batches = served.end()
    _answers(served)
    assert batches["retried"].any()


def test_garbage_is_seen_to_while_requests_keep_coming() -> None:
    """With the automatic collector off, a worker that always has requests must still collect garbage."""
    times: list[tuple[bool, int]] = []

    class Watching(IdleCollector):
        def between_batches(self, *, idle: bool) -> None:
            times.append((idle, len(served.outcomes)))

    served = _served([30] + [2] * 6, Counter(ms=0.2), collector=Watching())
    served.send(*range(7))
    served.end()
    # Before the first answer, between two of them, and after the last: not only at the end.
    assert (False, 0) in times and times[-1] == (True, 7)
    assert sum(not idle for idle, _ in times) >= 25


def test_a_step_that_hangs_is_noticed_after_the_limit_of_a_batch() -> None:
    model, hung, go = Counter(), threading.Event(), threading.Event()

    def gate(numbers: Sequence[float]) -> None:
        if numbers[0]:
            hung.set()
            assert go.wait(60)

    model.gate = gate
    served = _served([1, 40, 40], model)
    served.send(0, wait=True)
    served.send(1, 2)
    assert hung.wait(20)
    watchdog, until = BatchWatchdog(served.engine, served.recorder, 0.2), time.monotonic() + 20
    while (beyond := watchdog.look()[1]) is None and time.monotonic() < until:
        time.sleep(0.01)
    go.set()
    served.end()
    assert beyond is not None and beyond.words.startswith("worker 0 has been in a step of ")
    assert any("in gate" in line for line in beyond.stack)


def test_a_model_without_steps_is_refused() -> None:
    assert not isinstance(torch.nn.Identity(), Steps)
    with pytest.raises(RunnerError, match="works in steps"):
        _served([1], lambda x: x)


def test_the_fix_sees_the_protocol_and_joined_requests() -> None:
    records = []
    for batching in ("continuous", "fixed"):
        served = _served([12, 3, 8, 1, 2, 6] * 5, Counter(ms=0.5), batching=batching)
        served.send(*range(30))
        rows, batches = served.end()
        lines = [json.loads(line) for line in served.events.drain(0).splitlines()]
        records.append(
            build_record(
                {name: rows[name] for name in rows.dtype.names},
                {name: batches[name] for name in batches.dtype.names},
                events={name: np.array([line[k] for line in lines], object) for k, name in enumerate(EVENT_FIELDS)},
                settings=served.settings,
            )
        )
    continuous, static = records
    assert works_in_steps(continuous) and works_in_steps(static)
    assert joined(continuous)[0] > 10 and joined(static)[0] == 0
    verified = FIX.verify(Applied(evidence={}, record=continuous, without=static))
    assert verified.effective and "joined others" in verified.evidence
    claimed = replace(static, meta=continuous.meta)
    assert not FIX.verify(Applied(evidence={}, record=claimed, without=static)).effective
