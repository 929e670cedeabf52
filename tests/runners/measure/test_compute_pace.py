"""How fast a loaded service computes, and what a change of it does to a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.arrays import Floats
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import BATCH_DTYPE, REQUEST_DTYPE
from latfix.runners.measure.compute_pace import (
    blend,
    measure_pace,
    offered,
    passes_s,
    preparing_share,
    typical_batches,
)
from latfix.runners.service.loaded_service import Service
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic
from tests.records import build_record, zeros
from tests.runners.gpu.simulated import SimulatedAccelerator, Speeds

pytestmark = pytest.mark.alone

MS = 1_000_000

ADAPTER = """
import threading
import time

import torch

from latfix import Workload


class Sleeping(torch.nn.Module):
    def forward(self, x):
        if bool((x < 0).any()):
            raise RuntimeError("below zero")
        time.sleep(float(x.max()) / 1e3)
        return x


class Holding(torch.nn.Module):
    def forward(self, x):
        until = time.thread_time() + float(x.max()) / 1e3
        while time.thread_time() < until:
            pass
        return x


class Sleeper(Workload):
    def load(self, device):
        return Sleeping()

    def prepare(self, request):
        return torch.tensor([float(request.features["ms"])])


class Doubling(torch.nn.Module):
    def forward(self, x):
        return x * 2


class Doubler(Workload):
    def load(self, device):
        return Doubling()

    def prepare(self, request):
        return torch.ones(1000)


class Busy(Sleeper):
    def __init__(self):
        self.preparing = set()

    def load(self, device):
        return Holding()

    def prepare(self, request):
        self.preparing.add(threading.current_thread().name)
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        return super().prepare(request)


class Planning(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.planned = set()

    def forward(self, x):
        time.sleep(0.002 if x.shape in self.planned else 0.03)
        self.planned.add(x.shape)
        return x


class Planner(Sleeper):
    def load(self, device):
        return Planning()


class Holder(Sleeper):
    def load(self, device):
        return Holding()
"""


def schedule(values: Sequence[float]) -> Traffic:
    n = len(values)
    return Traffic.plain(np.arange(n) * 10 * MS, features={"ms": np.asarray(values, dtype=np.float64)})


def record(sizes: Sequence[int], compute_ms: Sequence[float], spacing_ms: float = 100.0) -> RunRecord:
    """Batches one after the other, each with so many requests that arrived as it closed."""
    n = sum(sizes)
    rows = zeros(REQUEST_DTYPE, n)
    batches = zeros(BATCH_DTYPE, len(sizes))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    rows["index"], rows["batch_id"] = np.arange(n), owner
    rows["arrival_ns"] = (owner * spacing_ms * MS).astype(np.int64)
    batches["batch_id"] = np.arange(len(sizes))
    batches["size"] = np.asarray(sizes, dtype=np.int64)
    batches["close_ns"] = batches["h2d_end_ns"] = (np.arange(len(sizes)) * spacing_ms * MS).astype(np.int64)
    batches["compute_end_ns"] = batches["d2h_end_ns"] = batches["close_ns"] + (np.asarray(compute_ms) * MS).astype(
        int
    )
    return build_record(rows, batches, traffic=schedule([0.0] * n))


@pytest.fixture
def serve(tmp_path: Path) -> Any:
    (tmp_path / "adapter.py").write_text(ADAPTER)

    def service(entry: str, **settings: Any) -> Service:
        made = Service(tmp_path, f"adapter:{entry}", RunnerSettings(device="cpu", **settings))
        made.load()
        return made

    return service


def test_typical_batches_cover_a_run_from_its_fastest_to_its_slowest() -> None:
    run = record([1, 2] * 20, np.linspace(1, 40, 40).tolist())
    picked = typical_batches(run)
    assert len(picked) == 10 and picked[0] == [0] and len(picked[-1]) == 2
    assert [min(batch) for batch in picked] == sorted(min(batch) for batch in picked)
    assert typical_batches(record([], [])) == []


def test_the_pace_is_the_time_of_each_batch(serve: Any) -> None:
    service = serve("Sleeper", max_batch_size=2)
    found = measure_pace(service, schedule([2.0, 20.0, -1.0]), [[0], [0, 1], [2]], 0.2, workers=1)
    assert 2 * MS <= found[0] < found[1] and found[1] >= 20 * MS
    assert np.isnan(found[2]), "it fails, as its request does"


@pytest.mark.parametrize(("ms", "once", "estimate_s"), [(150.0, True, 0.3), (5.0, False, 0.04)])
def test_one_pass_is_enough_if_it_takes_longer_than_all_may(
    serve: Any, ms: float, once: bool, estimate_s: float
) -> None:
    """A neighbor on the cores may make a pass take many seconds; otherwise the first one is a warm-up."""
    service, called = serve("Sleeper", max_batch_size=1), list[int]()
    (instance,) = service.models.instances
    instance.model.register_forward_hook(lambda *_: called.append(1))
    found = measure_pace(service, schedule([ms, ms]), [[0], [1]], 0.02, workers=1)
    assert min(found) >= ms * MS and (len(called) == 2) is once
    assert passes_s(0.02, 2 * ms / 1e3) == estimate_s


def test_what_new_shapes_take_longer_is_told_apart_from_the_pace(serve: Any) -> None:
    """A library may make a plan for each shape; the first batch of all may also be slow for other reasons."""
    service, work, new = serve("Planner", max_batch_size=4), schedule([1.0] * 4), list[float]()
    batches = [list(range(size)) for size in (1, 2, 3, 4)]
    found = measure_pace(service, work, batches, 0.05, workers=1, new_shapes=new)
    assert max(found) < 28 * MS and len(new) == 3 and min(new) > 0.8 * 28 * MS
    measure_pace(service, work, batches, 0.05, workers=1, new_shapes=new)
    assert len(new) == 3, "they are not new any more"


def test_copies_to_a_device_do_not_count(serve: Any) -> None:
    """A ratio of two paces is used as one of compute, which copies do not follow."""
    service = serve("Doubler", max_batch_size=2)
    for instance in service.models.instances:
        instance.place_on(SimulatedAccelerator(speeds=Speeds(operator=0.01, byte=1e-5, pageable=1.0)))
    (pace,) = measure_pace(service, schedule([0.0, 0.0]), [[0, 1]], 0.1, workers=1)
    assert 10 * MS <= pace < 80 * MS, "the copy of 8,000 bytes takes 80 ms"


def test_workers_that_hold_the_interpreter_are_slower_together(serve: Any) -> None:
    """Each computes for 10 ms of its own CPU time with the interpreter's lock; neighbors add to both."""
    service, work = serve("Holder", workers=2), schedule([10.0])
    alone, together = (measure_pace(service, work, [[0]], 0.3, workers=count)[0] for count in (1, 2))
    assert together > 1.3 * alone


def test_offered_work_is_batches_over_time() -> None:
    run = record([1] * 50, [40.0] * 50)
    assert offered(run) == pytest.approx(0.4, rel=0.05)
    assert offered(record([], [])) == 0.0


def test_requests_that_share_the_steps_of_a_worker_keep_one_worker_busy() -> None:
    run = record([1] * 50, [400.0] * 50)
    run.batches["worker"] = np.arange(50) % 8
    settings = RunnerSettings(batching="continuous", max_batch_size=8)
    assert offered(replace(run, meta=replace(run.meta, settings=settings))) == pytest.approx(1.0, rel=0.1)
    assert offered(run) == pytest.approx(4.0, rel=0.1), "eight workers"


@pytest.mark.parametrize(("load", "wanted"), [(0.0, 10.0), (1.0, 15.0), (2.0, 20.0), (9.0, 20.0)])
def test_the_pace_lies_between_alone_and_together_by_the_load(load: float, wanted: float) -> None:
    assert blend(paces(10.0, 20.0, 30.0), load, 2, 0.0) == [wanted]


def test_the_pace_is_longer_by_the_share_of_time_in_which_requests_are_prepared() -> None:
    assert blend(paces(10.0, 10.0, 30.0), 0.0, 1, 0.25) == [15.0]
    assert blend(paces(10.0, 20.0, 30.0), 2.0, 2, 0.5) == [40.0]


def paces(alone: float, together: float, beside: float) -> dict[str, Floats]:
    return {"alone": np.array([alone]), "together": np.array([together]), "beside": np.array([beside])}


def test_concurrent_preparation_is_counted_once() -> None:
    run = record([1] * 4, [40.0] * 4)
    rows = run.requests
    rows["prepare_wait_ns"][:], rows["prepare_ns"][:] = 10 * MS, 30 * MS
    assert preparing_share(run) == pytest.approx(0.5)
    rows["arrival_ns"][:] = 0
    assert preparing_share(run) == pytest.approx(0.125), "all at once"
    assert preparing_share(record([], [])) == 0.0


def test_python_code_is_slower_while_requests_are_prepared(serve: Any) -> None:
    service, work = serve("Busy"), schedule([10.0])
    (alone,) = measure_pace(service, work, [[0]], 0.3, workers=1)
    assert "latfix-pace-prepare" not in service.models.adapter.preparing
    (beside,) = measure_pace(service, work, [[0]], 0.3, workers=1, preparing=True)
    assert "latfix-pace-prepare" in service.models.adapter.preparing
    assert beside > 1.3 * alone
