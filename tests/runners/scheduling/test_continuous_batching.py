"""Continuous batching: who joins and leaves when, what is recorded of it, and what happens when a step fails."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from latfix.adapter_api import Workload
from latfix.errors import RunnerError
from latfix.request import Request
from latfix.run_record.run_record import RunRecord
from latfix.runners.engine.continuous_batching import steps_of
from latfix.runners.engine.idle_gc import IdleCollector
from latfix.runners.fixes.batch.continuous import FIX, joined, works_in_steps
from latfix.runners.fixes.fix import Applied
from tests.records import build_record
from tests.runners.engine.served import Served


class Adapter(Workload):
    """Each request's tensor is its number and how many steps it takes."""

    def prepare(self, request: Request) -> torch.Tensor:
        return torch.tensor([float(request.id), float(request.features["steps"])])

    def finish(self, output: Any, request: Request) -> float:
        del request
        return float(output)


@dataclass
class Counting:
    """A state: numbers, steps left, and what was added up."""

    number: list[float]
    left: list[int]
    sums: list[float]


class Counter:
    """Adds a request's number to its sum once a step; ``forward`` does the same at once."""

    def __init__(self, ms: float = 0.0) -> None:
        self.ms = ms
        self.together: list[list[float]] = []
        self.gate: Callable[[Sequence[float]], None] = lambda _: None
        self.fails: Callable[[str, Sequence[float]], None] = lambda _where, _numbers: None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.fails("forward", x[:, 0].tolist())
        return x[:, :1] * x[:, 1:]

    def start(self, x: torch.Tensor) -> Counting:
        self.fails("start", x[:, 0].tolist())
        return Counting(x[:, 0].tolist(), [int(n) for n in x[:, 1].tolist()], [0.0] * len(x))

    def done(self, state: Counting) -> list[bool]:
        self.fails("done", state.number)
        return [left <= 0 for left in state.left]

    def step(self, state: Counting) -> None:
        self.fails("step", state.number)
        self.together.append(list(state.number))
        self.gate(state.number)
        time.sleep(self.ms / 1000)
        state.sums = [total + number for total, number in zip(state.sums, state.number, strict=True)]
        state.left = [left - 1 for left in state.left]

    def join(self, state: Counting, other: Counting) -> Counting:
        self.fails("join", state.number + other.number)
        return Counting(state.number + other.number, state.left + other.left, state.sums + other.sums)

    def leave(self, state: Counting, rows: Sequence[int]) -> tuple[list[torch.Tensor], Counting | None]:
        self.fails("leave", state.number)
        outputs = [torch.tensor([state.sums[row]]) for row in rows]
        stay = [k for k in range(len(state.number)) if k not in set(rows)]
        if not stay:
            return outputs, None
        return outputs, Counting(
            [state.number[k] for k in stay], [state.left[k] for k in stay], [state.sums[k] for k in stay]
        )


def _served(steps: Sequence[int], model: Any, collector: IdleCollector | None = None, **settings: Any) -> Served:
    requests = [Request(id=str(k), arrival_s=0.0, features={"steps": n}) for k, n in enumerate(steps)]
    settings = {"max_batch_size": 4, "batching": "continuous", **settings}
    return Served(requests, model, adapter=Adapter(), more={"collector": collector}, **settings)


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
    time.sleep(0.05)
    go.set()
    rows, batches = served.end()
    _answers(served)
    assert served.order[-1] == 0, "the long one ends last"
    # THEN the others joined it while it was under way, at most four at once, and each in a row of its own
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
        own = batches[batches["worker"] == place]
        own.sort(order="close_ns")
        assert (own["free_ns"][1:] == own["finish_end_ns"][:-1]).all()
        assert (own["open_ns"] >= own["free_ns"]).all() and (own["close_ns"] >= own["open_ns"]).all()
        assert (own["collated_ns"] >= own["close_ns"]).all() and (own["finish_end_ns"] >= own["d2h_end_ns"]).all()
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
    states: list[weakref.ref[Counting]] = []
    alive: list[bool] = []
    start = model.start

    def started(x: torch.Tensor) -> Counting:
        state = start(x)
        states.append(weakref.ref(state))
        return state

    def fails(now: str, _numbers: Sequence[float]) -> None:
        if now == where:
            raise MemoryError("all of it is taken")
        if now == "forward":
            mine = states[-1:] if where == "join" else states  # those of before go on
            alive.append(any(state() is not None for state in mine))

    model.start, model.fails = started, fails  # type: ignore[method-assign]
    served = _served([3, 2, 1, 2, 3], model)
    served.send(*range(5))
    served.end()
    _answers(served)
    assert alive and not any(alive)


def test_steps_that_always_fail_leave_whole_batches() -> None:
    model = Counter()

    def fails(where: str, _numbers: Sequence[float]) -> None:
        if where == "step":
            raise RuntimeError("no steps today")

    model.fails = fails
    served = _served([3, 2, 1], model)
    served.send(0, 1, 2)
    _, batches = served.end()
    _answers(served)
    assert batches["retried"].any()


def test_nonsense_from_the_model_is_an_error_of_its_own() -> None:
    model = Counter()
    model.done = lambda _: [True]  # type: ignore[method-assign, assignment]
    served = _served([3, 2, 1], model)
    served.send(0, 1, 2)
    served.end()
    _answers(served)


def test_garbage_is_seen_to_while_requests_keep_coming() -> None:
    """With the automatic collector off, a worker that is never without requests must let the other one have a go."""
    times: list[tuple[bool, int]] = []

    class Watching(IdleCollector):
        def between_batches(self, *, idle: bool) -> None:
            times.append((idle, len(served.outcomes)))

    served = _served([30] + [2] * 6, Counter(ms=0.2), collector=Watching())
    served.send(*range(7))
    served.end()
    # Before the first answer, between two of them, and after the last: not only when nobody was left.
    assert (False, 0) in times and times[-1] == (True, 7)
    assert sum(not idle for idle, _ in times) >= 25


def test_a_model_without_steps_is_refused() -> None:
    assert steps_of(torch.nn.Identity()) is None
    with pytest.raises(RunnerError, match="works in steps"):
        _served([1], lambda x: x)


def _record(rows: Any, batches: Any, served: Served) -> RunRecord:
    import json

    from latfix.run_record.schema import EVENT_FIELDS
    from latfix.traffic.schedule import Traffic

    lines = [json.loads(line) for line in served.events.drain(0).splitlines()]
    events = {name: np.array([line[k] for line in lines], dtype=object) for k, name in enumerate(EVENT_FIELDS)}
    return build_record(
        settings=served.settings,
        requests={name: rows[name] for name in rows.dtype.names},
        batches={name: batches[name] for name in batches.dtype.names},
        events=events,
        traffic=Traffic.plain(np.sort(rows["arrival_ns"])),
    )


def test_the_fix_sees_the_protocol_and_who_joined() -> None:
    records = []
    for batching in ("continuous", "fixed"):
        served = _served([12, 3, 8, 1, 2, 6] * 5, Counter(ms=0.5), batching=batching)
        served.send(*range(30))
        records.append(_record(*served.end(), served))
    continuous, static = records
    assert works_in_steps(continuous) and works_in_steps(static)
    assert joined(continuous)[0] > 10 and joined(static)[0] == 0
    verified = FIX.verify(Applied(evidence={}, record=continuous, without=static))
    assert verified.effective and "joined others" in verified.evidence
    claimed = replace(static, meta=continuous.meta)
    assert not FIX.verify(Applied(evidence={}, record=claimed, without=static)).effective
