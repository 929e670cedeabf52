"""Batches through a simulated asynchronous device: answers, stages, overlap, failures."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from latfix.adapter_api import Workload
from latfix.request import Request
from latfix.runners.engine.worker import ModelInstance
from latfix.runners.gpu.async_batches import Flights
from latfix.runners.gpu.device_clock import DeviceClock
from latfix.runners.gpu.pinned_staging import Staging
from latfix.stages import Status
from tests.runners.engine.served import Served, requests_of
from tests.runners.gpu.simulated import SimulatedAccelerator, SimulatedEvent, Speeds

pytestmark = pytest.mark.alone

_WIDTH = 6


class Adapter(Workload):
    """Rows of different lengths, filled with the request's number."""

    def __init__(self, longest: int = 9) -> None:
        self._longest = longest

    def prepare(self, request: Request) -> Any:
        number = int(request.id)
        return {"rows": torch.full((1 + number % self._longest, _WIDTH), float(number))}


class Model(torch.nn.Module):
    """A few operators; returns the request's number times the length of its rows. ``fail`` may raise."""

    facts = ("A model may have facts of its own, as a captured one has.",)

    def __init__(self, fail: Callable[[torch.Tensor], None] | None = None) -> None:
        super().__init__()
        self._fail = fail

    def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        if self._fail is not None:
            self._fail(rows)
        doubled = rows * 2
        return {"sum": doubled.sum(dim=(1, 2)) / (2 * _WIDTH), "rows": doubled}


class Flown(Served):
    """Requests sent through a device, at once or some time apart, and their outcomes."""

    def __init__(
        self,
        count: int = 40,
        *,
        model: torch.nn.Module | None = None,
        speeds: Speeds | None = None,
        staged: bool = True,
        adapter: Workload | None = None,
        apart_s: float = 0.0,
        **settings: Any,
    ) -> None:
        self.device = device = SimulatedAccelerator(speeds=speeds or Speeds())

        def place(instance: ModelInstance) -> None:
            instance.place_on(device)
            if staged:
                instance.staging = Staging(device)
                instance.collate = instance.staging.collate

        settings = {"max_batch_size": 4, "overlap": True, **settings}
        super().__init__(
            requests_of(count),
            model or Model(),
            adapter=adapter or Adapter(),
            device=device.device,
            place=place,
            **settings,
        )
        self.staging = self.instances[0].staging
        self.send(*range(count), gap_s=apart_s)
        self.end()

    def wrong(self) -> list[int]:
        """Requests with a wrong answer."""

        def right(slot: int, answer: Any) -> bool:
            length = 1 + slot % 9
            rows = torch.full((length, _WIDTH), 2.0 * slot)
            return float(answer["sum"]) == slot * length and torch.equal(answer["rows"][:length], rows)

        return [k for k, one in self.outcomes.items() if one.status != Status.OK or not right(k, one.output)]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_every_request_gets_its_own_answer(overlap: bool, staged: bool, workers: int) -> None:
    """Copies read their memory when the device reaches them: a buffer that is reused too early shows here."""
    speeds = Speeds(operator=0.001, byte=1e-5)
    served = Flown(60, speeds=speeds, staged=staged, overlap=overlap, workers=workers)
    assert len(served.outcomes) == 60 and served.wrong() == []
    assert set(served.device.uploads) == {staged}
    ((name, clock),) = served.engine.clocks.items()
    assert name == "simulated:0" and isinstance(clock, DeviceClock)
    assert clock.observed == len(served.batches), "shared by the workers of a device"


def test_the_next_batch_is_copied_in_while_this_one_computes() -> None:
    for overlap in (True, False):
        busy = Flown(32, speeds=Speeds(operator=0.004, byte=4e-6), overlap=overlap).device.busy
        computing = [(begin, end) for what, begin, end in busy if what == "compute"]
        copying = [(begin, end) for what, begin, end in busy if what == "in"]
        overlapping = sum(any(a < end and begin < b for a, b in computing) for begin, end in copying)
        assert overlapping >= len(copying) // 2 if overlap else overlapping == 0


def test_a_batch_that_is_not_full_stays_open_until_the_device_is_free() -> None:
    """A request that arrives while a batch computes would otherwise be served alone."""
    served = Flown(24, speeds=Speeds(operator=0.01), apart_s=0.006, max_batch_size=16)
    assert (served.batches["ahead_ns"] == 0).all() and len(served.batches) < 20
    assert served.wrong() == []


def test_stages_are_those_of_the_device() -> None:
    speeds = Speeds(operator=0.01, byte=1e-5, issue=0.0002)
    served = Flown(12, speeds=speeds, overlap=False, max_batch_size=2, adapter=Adapter(longest=1))
    for batch in served.batches:
        of_batch = served.rows[served.rows["batch_id"] == batch["batch_id"]]
        assert (of_batch["compute_ns"] >= batch["device_ns"] - batch["clock_slack_ns"]).all()
        assert (of_batch["compute_ns"] <= batch["device_ns"] + batch["clock_slack_ns"]).all()
    # Three operators of 10 ms, as logged by the device; a batch's copies have exactly its bytes.
    work = [(begin, end) for what, begin, end in served.device.busy if what == "compute"]
    spans = [last[1] - first[0] for first, last in zip(work[::3], work[2::3], strict=True)]
    assert min(spans) >= 30e6
    late = served.batches["device_ns"] - spans
    # The device begins when the host has issued the first operator.
    assert (late >= -1_000).all() and (late <= served.batches["issue_ns"] + served.batches["clock_slack_ns"]).all()
    size = served.batches["size"]
    assert (served.batches["copy_in_bytes"] == size * _WIDTH * 4).all()
    assert (served.batches["copy_out_bytes"] == size * (_WIDTH * 4 + 4)).all()
    assert (served.batches["pageable_bytes"] == 0).all()
    assert (served.batches["copy_in_ns"] >= served.batches["copy_in_bytes"] * 1e4).all()


def test_unstaged_bytes_are_counted_as_pageable() -> None:
    served = Flown(8, staged=False, adapter=Adapter(longest=1), overlap=False)
    batches = served.batches
    assert (batches["pageable_bytes"] == batches["copy_in_bytes"] + batches["copy_out_bytes"]).all()
    assert (batches["pageable_bytes"] > 0).all()


def test_batches_of_a_worker_follow_each_other_in_the_record() -> None:
    """Work done while another batch computed is hidden: the requests only waited for the device."""
    served = Flown(40, speeds=Speeds(operator=0.004, byte=4e-6))
    batches = served.batches
    assert (batches["ahead_ns"] > 0).sum() >= 5
    assert (batches["open_ns"][1:] >= batches["compute_end_ns"][:-1]).all()
    order = ("free_ns", "close_ns", "collated_ns", "h2d_end_ns", "compute_end_ns", "d2h_end_ns", "finish_end_ns")
    assert (np.diff([batches[name] for name in order], axis=0) >= 0).all()
    ahead = batches[batches["ahead_ns"] > 0]
    hidden = served.rows[np.isin(served.rows["batch_id"], ahead["batch_id"])]
    # Collating took time, but while the previous batch computed.
    assert np.median(hidden["batch_ns"]) < 1e6 and np.median(hidden["queue_ns"]) > 4e6


def test_a_request_that_the_model_cannot_take_fails_alone() -> None:
    def refuse(rows: torch.Tensor) -> None:
        if rows.shape[1] == 9:  # requests 8, 17 and 26
            raise ValueError("too long")

    served = Flown(32, model=Model(refuse), speeds=Speeds(operator=0.003))
    failed = {slot for slot, outcome in served.outcomes.items() if outcome.status == Status.ERROR}
    assert failed == {8, 17, 26}
    assert set(served.wrong()) == failed
    assert "too long" in served.outcomes[8].error


@pytest.mark.parametrize("overlap", [False, True])
def test_the_memory_of_a_batch_that_failed_is_free_when_its_members_run(overlap: bool) -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[bool] = []

    def refuse(rows: torch.Tensor) -> None:
        if len(rows) > 1:
            activations = rows + 1
            made.append(weakref.ref(activations))
            raise MemoryError(f"no room for {tuple(activations.shape)}")
        alive.append(any(each() is not None for each in made))

    served = Flown(12, model=Model(refuse), overlap=overlap)
    assert served.wrong() == [] and made and not any(alive)


def test_an_engine_takes_over_the_events_of_the_one_before_it() -> None:
    """Otherwise the garbage collector would free thousands of events in the middle of a request."""
    served = Flown(40, speeds=Speeds(operator=0.0005))
    (instance,) = served.instances
    assert instance.lane is not None
    pool = instance.lane.events(blocking=False)
    flights = served.engine.workers[0].flights
    assert flights is not None and flights._events is pool
    assert len(pool._free) == 256, "what its last batches had is back, too"
    assert instance.lane.events(blocking=True) is not pool


def test_a_failed_device_is_reported_for_every_request() -> None:
    class Faulty(torch.nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return rows.reshape(-1, _WIDTH)[torch.tensor([10**6])]

    served = Flown(6, model=Faulty())
    assert {outcome.status for outcome in served.outcomes.values()} == {Status.ERROR}
    assert "device" in served.outcomes[0].error


def test_a_record_is_written_though_an_event_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a device fails after its last batch, the host's stamps remain and no row is lost."""

    def failing(_event: SimulatedEvent, _end: SimulatedEvent) -> float:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(SimulatedEvent, "elapsed_time", failing)
    served = Flown(12)
    assert not served.wrong()
    rows = served.batches
    assert rows["size"].sum() == 12 and not rows["device_ns"].any()
    assert (rows["compute_end_ns"] > rows["h2d_end_ns"]).all()


def test_buffers_and_events_are_made_in_advance_and_reused() -> None:
    served = Flown(200, adapter=Adapter(longest=1), speeds=Speeds(operator=0.0005))
    assert served.staging is not None
    # At most two batches are in flight; answers are held until they are finished.
    assert served.staging.misses <= 3 and served.staging.hits >= 40
    flights = served.engine.workers[0].flights
    assert flights is not None and flights.events_added == 0


def test_events_are_reused_without_a_record_writer() -> None:
    """As in the measurement of accuracy: more batches than events, and rows are read only at the end."""
    served = Flown(300, adapter=Adapter(longest=1), max_batch_size=1, overlap=False)
    flights = served.engine.workers[0].flights
    assert flights is not None and flights.events_added == 0 and len(served.batches) == 300
    assert flights.longest_read_ns > 0
    assert (served.batches["device_ns"] > 0).all()


def test_a_batch_that_lands_has_few_others_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading all of them would delay the answers of one batch in a hundred."""
    counts: list[int] = []
    reading = Flights._read

    def read(flights: Flights, count: int) -> None:
        counts.append(count)
        reading(flights, count)

    monkeypatch.setattr(Flights, "_read", read)
    Flown(200, adapter=Adapter(longest=1), max_batch_size=1, overlap=False)
    # The remaining flights are read when the thread has ended; the record's writer finds none.
    assert sum(counts) == 200 and counts[-2:] == [0, 0] and max(counts[:-3]) == 2 and len(counts) > 20


def test_a_model_that_waits_for_the_device_is_not_ahead_of_it() -> None:
    """It was taken early, but its operators were issued only after the previous batch: nothing was hidden."""

    class Peeks(torch.nn.Module):
        def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
            total = rows.sum(dim=(1, 2))
            assert float(total[0].item()) >= 0
            return {"sum": total / _WIDTH, "rows": rows * 2}

    served = Flown(24, model=Peeks(), speeds=Speeds(operator=0.004))
    assert served.wrong() == [] and (served.batches["ahead_ns"] < 1_000_000).all()


def test_a_pinned_batch_of_one_is_not_copied_on_the_host() -> None:
    device = SimulatedAccelerator()
    inputs = [device.pinned(3 * _WIDTH, torch.float32).view(3, _WIDTH).fill_(value) for value in (4.0, 5.0)]
    staging = Staging(device)
    batch = staging.collate(inputs[:1])
    assert batch.shape == (1, 3, _WIDTH) and staging.hits + staging.misses == 0
    assert device.is_pinned(batch)
    two = staging.collate(inputs)
    assert two.shape == (2, 3, _WIDTH) and staging.misses == 1


def test_the_result_of_a_custom_collate_is_staged() -> None:
    device = SimulatedAccelerator()
    staging, tensor = Staging(device), torch.ones(2, 3)
    staged = staging.stage(tensor, ("rows",))
    assert device.is_pinned(staged) and torch.equal(staged, tensor) and staging.misses == 1
    assert staging.stage(staged, ("rows",)) is staged and staging.misses == 1
