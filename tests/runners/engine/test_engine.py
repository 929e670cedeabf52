"""The engine in this process: isolation of failures, shedding, deadlines, priorities, and stages that tile."""

from __future__ import annotations

import json
import re
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from latfix import span
from latfix.errors import RunnerError
from latfix.profilers.probes.thread_counters import Account, ThreadCounters
from latfix.request import Priority, Request
from latfix.stages import Status
from tests.runners.engine.served import Gate, Numbers, Served, engine_threads, instance_of, requests_of, serve

pytestmark = pytest.mark.alone

Hook = Callable[[Any], Any]


class Panic(BaseException):
    """Like the errors of native libraries: not an ``Exception``."""


class Adapter(Numbers):
    """Requests fail in the hooks that a test passes."""

    def __init__(
        self, *, prepare: Hook | None = None, finish: Hook | None = None, collate: Hook = lambda _: None
    ) -> None:
        self._prepare = prepare
        self._finish = finish
        self._collate = collate

    def prepare(self, request: Request) -> Any:
        if self._prepare is not None:
            return self._prepare(request)
        return super().prepare(request)

    def collate(self, inputs: Sequence[Any]) -> Any:
        self._collate(inputs)
        return super().collate(inputs)

    def finish(self, output: Any, request: Request) -> Any:
        if self._finish is not None:
            self._finish(request)
        return output


def _served(requests: Sequence[Request], *, together: bool = True, **more: Any) -> Served:
    return serve(requests, **{"max_batch_size": 8, "batch_window_ms": 20.0 if together else 0.0, **more})


@pytest.mark.parametrize("error", [OSError("no such library"), Panic("no device")], ids=["error", "panic"])
def test_a_worker_that_cannot_be_set_up_raises_and_leaves_no_thread(error: BaseException) -> None:
    """Otherwise the engine's requests would wait forever."""

    def fail() -> None:
        raise error

    before, instances = set(threading.enumerate()), [instance_of(len), instance_of(len, set_up=fail)]
    with pytest.raises(RunnerError, match=f"worker 1 could not be set up: .*{error}"):
        Served(requests_of(1), instances=instances, workers=2)
    for instance in instances:
        instance.thread.end()
    assert not {*threading.enumerate()} - before


def _fail(request: Request, bad: str, error: BaseException) -> None:
    if request.id == bad:
        raise error


def _numbers(hook: Hook) -> Hook:
    """Prepares as :class:`Numbers`, after ``hook``."""

    def prepare(request: Request) -> torch.Tensor:
        hook(request)
        return torch.tensor([float(request.id)])

    return prepare


ERRORS = [ValueError("bad one"), SystemExit(3), KeyboardInterrupt(), Panic("panic"), MemoryError()]


@pytest.mark.parametrize("model", [lambda x: x * 2, lambda x: x.numpy() * 2], ids=["tensor", "array"])
def test_outputs_come_back_to_their_requests(model: Hook) -> None:
    served = _served(requests_of(20), model=model)
    assert served.statuses() == ["ok"] * 20
    assert [served.outcomes[k].output.item() for k in range(20)] == [2.0 * k for k in range(20)]
    assert (served.rows["batch_id"] >= 0).all()
    assert served.batches["size"].sum() == 20
    for part in ("prepare", "finish"):
        assert (served.rows[f"{part}_wait_ns"] <= served.rows[f"{part}_ns"]).all()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["prepare", "collate", "model", "finish"])
def test_one_failure_is_one_requests_error(where: str, error: BaseException) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        if where == "model" and (x == 2).any():
            raise error
        return x

    def collate(inputs: list[torch.Tensor]) -> None:
        if where == "collate" and 2 in inputs:
            raise error

    adapter = Adapter(
        prepare=_numbers(lambda r: _fail(r, "2" if where == "prepare" else "", error)),
        collate=collate,
        finish=lambda r: _fail(r, "2" if where == "finish" else "", error),
    )
    served = _served(requests_of(6), adapter=adapter, model=model)

    assert served.statuses() == ["ok", "ok", "error", "ok", "ok", "ok"]
    message = served.outcomes[2].error
    assert message.startswith(f"{'the model' if where == 'model' else where} raised {type(error).__name__}")
    assert [served.outcomes[k].output.item() for k in (0, 1, 3, 4, 5)] == [0, 1, 3, 4, 5]


def test_a_failed_batch_is_marked_and_its_members_run_one_by_one() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        if (x == 2).any():
            raise ValueError("bad one")
        return x

    served = _served(requests_of(4), model=model)

    rows = served.batches
    assert rows["retried"].tolist() == [1] * 5
    assert sorted(rows["size"].tolist()) == [1, 1, 1, 1, 4]
    assert len(set(served.rows["batch_id"].tolist())) == 4, "each request's row names the batch that served it"
    (reason,) = [row[6] for row in map(json.loads, served.events.drain(0).splitlines()) if row[2] == "note"]
    assert reason["retried"] and "the model raised ValueError: bad one" in reason["message"]


def test_the_memory_of_a_failed_batch_is_free_when_its_members_run() -> None:
    """After an out-of-memory error, a retry would otherwise find as little memory as before."""
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        activations = x * 2
        if len(x) > 1:
            made.append(weakref.ref(activations))
            raise MemoryError("out of memory")
        alive.append(made[0]() is not None)
        return activations

    served = _served(requests_of(4), model=model)
    assert served.statuses() == ["ok"] * 4 and alive == [False] * 4


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x[:0],
        lambda x: torch.cat([x, x]),
        lambda x: (x, x[:1]),
        lambda x: {"a": x, "b": 3},
        lambda x: [x] * 9,
    ],
)
def test_a_model_that_returns_nonsense_for_a_batch(wrong: Hook) -> None:
    # It fails for every batch with request 1.
    def model(x: torch.Tensor) -> Any:
        return wrong(torch.cat([x, x, x])) if (x == 1).any() else x

    served = _served(requests_of(3), model=model)
    assert served.statuses() == ["ok", "error", "ok"]
    assert "the model returned" in served.outcomes[1].error


@pytest.mark.parametrize(
    "nonsense",
    [None, 3, "text", pytest.param(object(), id="object"), [], torch.ones(2, 2), {"x": torch.ones(1)}],
    ids=repr,
)
def test_a_prepare_that_returns_nonsense_affects_no_other_request(nonsense: object) -> None:
    def prepare(request: Request) -> Any:
        return nonsense if request.id == "1" else torch.tensor([float(request.id)])

    served = _served(requests_of(4), adapter=Adapter(prepare=prepare))
    assert [served.statuses()[k] for k in (0, 2, 3)] == ["ok"] * 3
    assert [served.outcomes[k].output.item() for k in (0, 2, 3)] == [0, 2, 3]


def test_the_limit_of_the_queue_sheds() -> None:
    gate = Gate()
    threading.Timer(0.1, gate.go.set).start()
    served = _served(requests_of(10), model=gate, max_queue=3)
    assert served.statuses() == ["ok"] * 3 + ["shed"] * 7
    shed = served.rows[3:]
    assert (shed["latency_ns"] == shed["dispatch_ns"]).all()
    assert (shed["batch_id"] == -1).all()


def test_deadlines_end_in_timeouts_and_the_settings_timeout_is_for_requests_without_one() -> None:
    deadlines = [5.0, None, 5.0, None]
    requests = [Request(id=str(k), arrival_s=0.0, deadline_ms=deadline) for k, deadline in enumerate(deadlines)]
    alone: dict[str, Any] = {"model": Gate(-1, lambda _: 40), "max_batch_size": 1, "together": False}
    served = _served(requests, **alone)
    assert served.statuses() == ["timeout", "ok"] * 2
    assert "deadline" in served.outcomes[0].error
    requests = [Request(id=str(k), arrival_s=0.0, deadline_ms=60_000.0 if k else None) for k in range(3)]
    assert _served(requests, timeout_ms=5.0, **alone).statuses() == ["timeout", "ok", "ok"]


def test_a_deadline_may_pass_before_prepare_and_in_the_queue() -> None:
    requests = requests_of(4, deadline_ms=45.0)
    served = _served(requests, adapter=Adapter(prepare=_numbers(lambda _: time.sleep(0.03))), together=False)
    assert "timeout" in served.statuses()
    assert served.outcomes[3].error == "deadline passed before prepare"
    assert served.rows["batch_id"][3] == -1


def test_high_priority_overtakes() -> None:
    ranks: list[Priority] = ["high", "low", "low", "normal", "high"]
    gate = Gate()
    served = Served([Request(id=str(k), arrival_s=0.0, priority=rank) for k, rank in enumerate(ranks)], gate)
    gate.served_behind(served, 1, 2, 3, 4, wait_s=0.02)
    assert served.order == [0, 4, 3, 1, 2]


def test_workers_and_prepare_threads_run_side_by_side() -> None:
    meeting = threading.Barrier(3, timeout=10)

    def model(x: torch.Tensor) -> torch.Tensor:
        meeting.wait()
        return x

    served = _served(requests_of(3), model=model, max_batch_size=1, together=False, workers=3)
    assert served.statuses() == ["ok"] * 3
    assert sorted(served.batches["worker"].tolist()) == [0, 1, 2]
    served = _served(requests_of(3), adapter=Adapter(prepare=_numbers(lambda _: meeting.wait())), prepare_threads=3)
    assert served.statuses() == ["ok"] * 3
    assert sorted(served.rows["prepare_thread"].tolist()) == [0, 1, 2]


def test_spans_belong_to_their_request_and_stage() -> None:
    def nap(request: Request, whose: str) -> None:
        if request.id == whose:
            with span("store"):
                time.sleep(0.004)

    def model(x: torch.Tensor) -> torch.Tensor:
        with span("inside the model"):  # not of a stage with spans: it must not count for any request's finish
            time.sleep(0.004)
        return x

    adapter = Adapter(prepare=_numbers(lambda r: nap(r, "1")), finish=lambda r: nap(r, "2"))
    rows = _served(requests_of(4), adapter=adapter, model=model).rows
    assert [span_ns >= 4_000_000 for span_ns in rows["prepare_span_ns"]] == [False, True, False, False]
    assert [span_ns > 0 for span_ns in rows["finish_span_ns"]] == [False, False, True, False]
    assert (rows["finish_span_ns"] <= rows["finish_ns"]).all()
    assert (rows["prepare_span_ns"] <= rows["prepare_ns"]).all()


@pytest.mark.parametrize("ones", [torch.ones, np.ones], ids=["tensors", "arrays"])
def test_padding_is_counted(ones: Callable[[tuple[int, int]], Any]) -> None:
    adapter = Adapter(prepare=lambda request: ones((2 + int(request.id), 3)))
    served = _served(requests_of(4), adapter=adapter, max_batch_size=4)
    assert served.rows["input_elements"].tolist() == [6, 9, 12, 15]
    assert served.rows["input_length"].tolist() == [2, 3, 4, 5]
    assert served.rows["input_width"].tolist() == [3, 3, 3, 3]
    (batch,) = served.batches
    assert (batch["real_elements"], batch["padded_elements"], batch["padded_length"]) == (42, 60, 5)
    assert batch["first_shape"] == 1


def test_the_rest_of_the_process_is_recorded_with_each_unit() -> None:
    """Another thread runs while prepare, the model and finish sleep: its time counts for the process only."""
    stop = threading.Event()

    def nap(_: Any) -> torch.Tensor:
        time.sleep(0.03)
        return torch.ones(1)

    def spin() -> None:
        while not stop.is_set():
            sum(range(1000))

    other = threading.Thread(target=spin)
    other.start()
    try:
        served = _served(requests_of(3), adapter=Adapter(prepare=nap, finish=nap), model=nap, together=False)
    finally:
        stop.set()
        other.join()
    rows, batches = served.rows, served.batches
    for part in ("prepare", "finish"):
        assert rows[f"{part}_process_cpu_ns"].sum() > 5 * rows[f"{part}_cpu_ns"].sum(), part
        assert (rows[f"{part}_vcsw"] >= 1).all()
    assert batches["process_cpu_ns"].sum() > 5 * batches["compute_cpu_ns"].sum()
    assert (batches["collate_process_cpu_ns"] >= 0).all()


def test_the_wait_for_a_core_at_wake_up_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = {"latfix-prepare-0": 12_345, "latfix-worker-0": 67_890}

    def wake(counters: ThreadCounters) -> tuple[Account, int]:
        return counters.snapshot(), waited[threading.current_thread().name]

    monkeypatch.setattr(ThreadCounters, "wake", wake)
    served = _served(requests_of(3), together=False)
    assert set(served.rows["prepare_wake_runq_ns"]) == {12_345}
    assert set(served.batches["wake_runq_ns"]) == {67_890}


def test_memory_that_a_unit_maps_is_in_its_own_columns() -> None:
    held = []

    def prepare(request: Request) -> torch.Tensor:
        if request.id == "2":
            held.append(torch.ones(16 << 20))
        return torch.ones(1)

    def finish(request: Request) -> None:
        if request.id == "3":
            held.append(torch.ones(8 << 20))

    served = _served(
        requests_of(5), adapter=Adapter(prepare=prepare, finish=finish), together=False, max_batch_size=1
    )
    mapped = {part: served.rows[f"{part}_mapped_bytes"] >> 20 for part in ("prepare", "finish")}
    assert mapped["prepare"].argmax() == 2 and mapped["prepare"][2] >= 60
    assert mapped["finish"].argmax() == 3 and mapped["finish"][3] >= 30
    assert served.rows["prepare_resident_bytes"][2] >= 0.5 * 4 * (16 << 20)
    assert not served.rows["prepare_mapped_bytes"][:2].any(), "without faults the counters are not read"
    assert sum(tensor.numel() for tensor in held) == 24 << 20


@pytest.mark.parametrize("finish", [pytest.param(None, id="inherited"), pytest.param(lambda _: None, id="own")])
def test_the_account_of_finish_starts_where_compute_ends(finish: Callable[[Any], None] | None) -> None:
    """Splitting the batch's output belongs to the first member's finish, in its time and its counters."""

    class Slow(torch.Tensor):
        def unbind(self, dim: int = 0) -> Any:
            end = time.thread_time_ns() + 20_000_000
            while time.thread_time_ns() < end:
                pass
            return super().unbind(dim)

    def model(x: torch.Tensor) -> torch.Tensor:
        return x.as_subclass(Slow)

    served = _served(requests_of(1), model=model, adapter=Numbers() if finish is None else Adapter(finish=finish))
    assert served.statuses() == ["ok"]
    assert served.rows["finish_ns"][0] >= 20_000_000
    assert served.rows["finish_cpu_ns"][0] >= 20_000_000
    assert served.batches["compute_cpu_ns"][0] < 20_000_000


def test_requests_end_and_no_thread_is_left() -> None:
    served = _served([], workers=2, prepare_threads=2)
    assert len(served.rows) == len(served.batches) == 0
    assert not engine_threads()


def test_events_name_the_failed_request() -> None:
    error = ValueError("no such user")
    served = _served(requests_of(3), adapter=Adapter(prepare=_numbers(lambda r: _fail(r, "1", error))))
    (event,) = [json.loads(line) for line in served.events.drain(0).splitlines()]
    assert event[2] == "error" and event[4] == 1
    assert re.fullmatch(r"prepare raised ValueError: no such user \(test_engine\.py:\d+\)", event[6]["message"])
    assert Status(int(served.rows["status"][1])) is Status.ERROR


def test_an_output_that_latfix_refuses_has_no_line_of_latfix() -> None:
    outcome = _served(requests_of(1), model=lambda _: torch.ones(3)).outcomes[0]
    assert outcome.error.startswith("the model returned shape (3,)") and ".py:" not in outcome.error
