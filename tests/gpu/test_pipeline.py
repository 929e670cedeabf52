"""Batches on their way to a CUDA device and back. Skipped without one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from latfix import Request, Workload
from latfix.runners.engine.worker import ModelInstance
from latfix.runners.gpu.accelerator import Accelerator
from latfix.runners.gpu.copy_costs import copy_costs
from latfix.runners.gpu.kernel_profile import profile_batch, waits_in
from latfix.runners.gpu.pinned_staging import Staging
from latfix.runners.service.graph_capture import capture_graphs
from latfix.runners.service.load import LoadedModels
from latfix.settings import RunnerSettings
from latfix.stages import Status
from latfix.traffic.schedule import Traffic
from tests.gpu.marks import ON_CUDA
from tests.runners.engine.served import Served, requests_of, serve

pytestmark = ON_CUDA

_WIDTH = 1024
_COUNT = 120


class _Rows(Workload):
    """Requests of different lengths, each from its own seed."""

    def prepare(self, request: Request) -> torch.Tensor:
        generator = torch.Generator().manual_seed(int(request.id))
        return torch.randn(8 + int(request.id) % 25, _WIDTH, generator=generator)


#: Clock ticks, about a millisecond.
_SPIN = 2_000_000


class _Net(torch.nn.Module):
    """Work for longer than its operators take to issue, on any device; padding does not change answers."""

    def __init__(self, *, peeks: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(12))
        for weights in self.layers.parameters():  # otherwise answers would hardly depend on inputs
            if weights.dim() == 2:
                torch.nn.init.kaiming_normal_(weights, nonlinearity="relu")
        self.peeks = peeks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_cuda:
            torch.cuda._sleep(_SPIN)  # type: ignore[no-untyped-call]
        there = x.ne(0).any(dim=-1, keepdim=True)
        for layer in self.layers:
            x = torch.relu(layer(x))
            if self.peeks and float(x[0, 0, 0].item()) < 0:
                x = x * 2
        return (x * there).sum(1)


def _traffic(count: int) -> Traffic:
    return Traffic.plain(np.arange(count) * 1_000_000, ids=[str(k) for k in range(count)])


def _instance(device: str, settings: RunnerSettings, **options: Any) -> ModelInstance:
    adapter = _Rows()
    instance = ModelInstance(adapter, _Net(**options).eval().to(device), device, None, adapter.collate, set())
    if device != "cpu":
        instance.place_on(Accelerator(device))
        if settings.pinned_staging:
            instance.staging = Staging(Accelerator(device))
            instance.collate = instance.staging.collate
    return instance


def _served(device: str, **values: Any) -> Served:
    """Requests sent at once."""
    values = {"max_batch_size": 4, **values}
    settings = RunnerSettings(**values)
    models = LoadedModels(_Rows(), [_instance(device, settings) for _ in range(settings.workers)], device)
    if settings.captures and device != "cpu":
        capture_graphs(models, _traffic(_COUNT), settings, pads=True)
    return serve(requests_of(_COUNT), instances=models.instances, **values)


@pytest.fixture(scope="module")
def on_the_cpu() -> dict[int, Any]:
    return {slot: outcome.output for slot, outcome in _served("cpu").outcomes.items()}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"pinned_staging": True},
        {"pinned_staging": True, "overlap": True},
        {"pinned_staging": True, "overlap": True, "workers": 2},
        {"cuda_graphs": True},
        {"cuda_graphs": True, "pinned_staging": True, "overlap": True},
    ],
    ids=lambda settings: "+".join(settings) or "plain",
)
def test_answers_are_those_of_the_cpu(on_the_cpu: dict[int, Any], settings: dict[str, Any]) -> None:
    served = _served("cuda:0", **settings)
    for slot in range(_COUNT):
        assert served.outcomes[slot].status == Status.OK, served.outcomes[slot].error
        torch.testing.assert_close(served.outcomes[slot].output, on_the_cpu[slot], rtol=1e-2, atol=1e-2)
    if settings.get("pinned_staging"):
        assert not served.batches["pageable_bytes"].any()
    if settings.get("cuda_graphs"):
        assert (served.batches["graph"] == 1).mean() > 0.95
    if settings.get("overlap") and settings.get("workers", 1) == 1:
        assert (served.batches["ahead_ns"] > 0).any()
        for before, after in pairwise(range(len(served.batches))):
            assert served.batches["compute_end_ns"][before] <= served.batches["h2d_end_ns"][after]


def test_stages_match_their_device_events() -> None:
    served = _served("cuda:0", pinned_staging=True, max_batch_size=4)
    batches = served.batches
    compute = batches["compute_end_ns"] - batches["h2d_end_ns"]
    assert (abs(compute - batches["device_ns"]) <= batches["clock_slack_ns"] + 2_000).mean() > 0.95
    # After some batches, the clocks are synchronized to a fraction of a millisecond.
    assert np.median(batches["clock_slack_ns"][20:]) < 300_000
    assert (batches["copy_in_ns"] > 0).all() and (batches["copy_out_ns"] > 0).all()


def test_a_profile_shows_kernels_and_waits() -> None:
    settings = RunnerSettings(max_batch_size=4, device="cuda:0")
    batch = torch.randn(4, 32, _WIDTH)
    quiet, peeking = (_instance("cuda:0", settings, peeks=peeks) for peeks in (False, True))
    for instance in (quiet, peeking):
        with instance.guard():
            instance.model(instance.on_device(batch))
    work = profile_batch(quiet, batch, size=4, elements=batch.numel())
    assert work is not None and work.waits == 0 and work.sync_ns == 0
    assert 0 < work.busy_ns <= work.span_ns and sum(work.kernels.values()) >= 24
    waiting = profile_batch(peeking, batch, size=4, elements=batch.numel())
    assert waiting is not None and waiting.waits >= 12 and waiting.sync_ns > 0
    assert waits_in(quiet, batch) == []
    assert any(place.startswith("test_pipeline.py:") for place in waits_in(peeking, batch))


def test_the_cost_of_pinned_copies_is_measured() -> None:
    result = copy_costs(Accelerator("cuda:0"))
    # From 1 GB/s to 200 GB/s: any link.
    assert 5_000 < result["copy_in_mib_ns"] < 1_100_000 and 5_000 < result["copy_out_mib_ns"] < 1_100_000
    assert 0 < result["copy_in_ns"] < 1_000_000
