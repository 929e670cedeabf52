"""Consecutive replays with the same loaded models. Skipped without a CUDA device."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from latfix.profilers.gpu.allocator_counters import cuda_counters
from latfix.profilers.probes.stage_recorder import StageRecorder
from latfix.runners.engine.worker import Outcome
from latfix.runners.service.loaded_service import Service
from latfix.settings import RunnerSettings
from latfix.stages import Status
from latfix.traffic.schedule import Traffic
from tests.conftest import write_workload
from tests.gpu.marks import ON_CUDA

pytestmark = ON_CUDA

_DEVICE = "cuda:0"
_COUNT = 160
_ADAPTER = """
import torch
from latfix import Workload

WIDTH = 1024

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(24))
        for layer in self.layers:  # otherwise answers would hardly depend on inputs
            torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    def forward(self, x):
        there = x.ne(0).any(dim=-1, keepdim=True)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return (x * there).sum(1) / 16

class Rows(Workload):
    def load(self, device):
        torch.manual_seed(0)
        return Net().eval().to(device)

    def prepare(self, request):
        generator = torch.Generator().manual_seed(int(request.id))
        return torch.randn(int(request.features["length"]), WIDTH, generator=generator)
"""


def _traffic(*, alike: bool) -> Traffic:
    lengths = np.full(_COUNT, 16) if alike else 8 + np.arange(_COUNT) % 25
    return Traffic.plain(
        np.arange(_COUNT) * 1_000_000, ids=[str(k) for k in range(_COUNT)], features={"length": lengths}
    )


class _Served:
    """A warmed service whose requests are sent at once, in any number of replays."""

    def __init__(self, folder: Path, *, device: str = _DEVICE, alike: bool = False, **values: Any) -> None:
        self.traffic = _traffic(alike=alike)
        write_workload(folder, adapter=_ADAPTER)
        settings = RunnerSettings(**{"max_batch_size": 4, "device": device, **values})
        self.service = Service(folder, "adapter:Rows", settings)
        self.service.load()
        self.service.warm_shapes(self.traffic)

    def replay(self) -> tuple[dict[int, Outcome], npt.NDArray[Any]]:
        """Answers by slot, and the batches in their order."""
        recorder, outcomes = StageRecorder(_COUNT), dict[int, Outcome]()
        engine = self.service.engine(recorder, self.traffic.request, outcomes.__setitem__)
        engine.start()
        for slot in range(_COUNT):
            recorder.scheduled_ns[slot] = time.perf_counter_ns()
            engine.submit(slot)
        engine.drain(timeout_s=60)
        engine.shutdown()
        batches = recorder.drain_batches()
        batches.sort(order="batch_id")
        return outcomes, batches


@pytest.fixture(scope="module")
def on_the_cpu(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    outcomes, _ = _Served(tmp_path_factory.mktemp("cpu") / "rows", device="cpu").replay()
    return {slot: outcome.output for slot, outcome in outcomes.items()}


def _check(outcomes: dict[int, Outcome], expected: dict[int, Any]) -> None:
    for slot in range(_COUNT):
        assert outcomes[slot].status == Status.OK, outcomes[slot].error
        torch.testing.assert_close(outcomes[slot].output, expected[slot], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    "settings", [{}, {"pinned_staging": True, "overlap": True}], ids=lambda settings: "+".join(settings) or "plain"
)
def test_graphs_of_two_workers_run_concurrently(
    tmp_path: Path, on_the_cpu: dict[int, Any], settings: dict[str, Any]
) -> None:
    served = _Served(tmp_path / "rows", workers=2, cuda_graphs=True, **settings)
    concurrent = 0
    for _ in range(4):
        outcomes, batches = served.replay()
        _check(outcomes, on_the_cpu)
        assert set(batches["worker"].tolist()) == {0, 1}
        assert (batches["graph"] == 1).mean() > 0.95
        concurrent += _at_once(batches)
    assert concurrent > 5, "the workers hardly computed at the same time"


def _at_once(batches: npt.NDArray[Any]) -> int:
    """Batches of the first worker that computed while one of the second did."""
    first, second = (batches[batches["worker"] == worker] for worker in (0, 1))
    begins_before = first["h2d_end_ns"][:, None] < second["compute_end_ns"][None, :]
    ends_after = first["compute_end_ns"][:, None] > second["h2d_end_ns"][None, :]
    return int((begins_before & ends_after).any(axis=1).sum())


@pytest.mark.parametrize(
    "settings",
    [{}, {"overlap": True}, {"workers": 2}, {"workers": 2, "shared_model": True}],
    ids=lambda settings: "+".join(settings) or "plain",
)
def test_answers_are_right_after_a_warm_up_through_pinned_memory(
    tmp_path: Path, on_the_cpu: dict[int, Any], settings: dict[str, Any]
) -> None:
    served = _Served(tmp_path / "rows", pinned_staging=True, warmup_shapes=6, **settings)
    for _ in range(2):
        outcomes, batches = served.replay()
        _check(outcomes, on_the_cpu)
        assert not batches["pageable_bytes"].any()


@pytest.mark.parametrize(
    "settings",
    [{}, {"pinned_staging": True, "overlap": True}, {"workers": 2}, {"cuda_graphs": True}, {"warmup_shapes": 2}],
    ids=lambda settings: "+".join(settings) or "plain",
)
def test_another_engine_needs_no_more_device_memory(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Requests are equal, one per batch, so that each replay needs the same memory."""
    served = _Served(tmp_path / "rows", alike=True, max_batch_size=1, **settings)
    read = cuda_counters(_DEVICE)
    assert read is not None
    reserved, taken = [], []
    for _ in range(3):
        outcomes, _batches = served.replay()
        assert {outcome.status for outcome in outcomes.values()} == {Status.OK}
        torch.cuda.synchronize()
        counters = read()
        assert counters is not None
        reserved.append(counters.reserved_bytes)
        taken.append(counters.allocs)
    assert reserved[0] == reserved[2] and taken[0] == taken[2], (reserved, taken)
