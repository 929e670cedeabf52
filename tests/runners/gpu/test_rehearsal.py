"""Warm-up on a device takes the same path as requests, so that the first ones pay nothing extra."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latfix.adapter_api import Workload
from latfix.errors import RunnerError
from latfix.request import Request
from latfix.runners.engine.worker import ModelInstance, Outcome
from latfix.runners.gpu.pinned_staging import Staging
from latfix.runners.service.warm_up import rehearsal
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic
from tests.runners.engine.served import Served, instance_of, loaded_service, requests_of
from tests.runners.gpu.simulated import SimulatedAccelerator, Speeds


class _Rows(Workload):
    def prepare(self, request: Request) -> Any:
        return torch.full((3, 4), float(request.id))


class _Doubling(torch.nn.Module):
    """Keeps its answers."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Any] = []

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.answers.append(rows * 2)
        answer: torch.Tensor = self.answers[-1]
        return answer


class _Read(Served):
    """Keeps numbers, not answers, which would hold their buffers."""

    def _done(self, slot: int, outcome: Outcome) -> None:
        super()._done(slot, replace(outcome, output=float(outcome.output[0, 0])))


def _instance(device: SimulatedAccelerator) -> ModelInstance:
    instance = instance_of(_Doubling(), device.device, _Rows())
    instance.place_on(device)
    instance.staging = Staging(device)
    instance.collate = instance.staging.collate
    return instance


@pytest.mark.parametrize("overlap", [False, True])
def test_no_buffer_is_used_again_before_its_copy_is_done(overlap: bool) -> None:
    """Copies read their memory when the device reaches them: memory freed too early has been reused by then."""
    instance = _instance(SimulatedAccelerator(speeds=Speeds(operator=0.002, byte=2e-5)))
    once = rehearsal(instance, RunnerSettings(overlap=overlap, pinned_staging=True))
    ran = [once(torch.full((3, 4), float(k)), 2) for k in range(6)]
    assert ran == [1 + overlap] * 6
    found = [float(answer.slot.value.mean()) for answer in instance.model.answers]
    assert found == [2.0 * k for k in range(6) for _ in range(1 + overlap)]


@pytest.mark.parametrize("overlap", [False, True])
def test_streams_and_buffers_exist_before_the_first_request(overlap: bool) -> None:
    device = SimulatedAccelerator(speeds=Speeds(operator=0.001))
    instance = _instance(device)
    settings: dict[str, Any] = {"max_batch_size": 4, "overlap": overlap, "pinned_staging": True}
    once = rehearsal(instance, RunnerSettings(**settings))
    for size in (1, 2, 4):
        once(torch.ones(3, 4), size)
    staging, streams = instance.staging, len(device.streams)
    assert staging is not None and staging.answer_misses
    before = (staging.misses, staging.answer_misses)
    for _ in range(3):  # each replay has its own engine
        served = _Read(requests_of(24), instances=[instance], **settings)
        served.send(*range(24))
        served.end()
        assert [served.outcomes[slot].output for slot in range(24)] == [2.0 * slot for slot in range(24)]
    assert len(device.streams) == streams, "memory that was warmed up belongs to the streams of then"
    # A request may hold its answer while the next batch lands.
    assert staging.misses == before[0] and staging.answer_misses <= before[1] + 1


def test_workers_that_share_a_model_are_warmed_up_each(tmp_path: Path) -> None:
    """Streams and their memory are per worker."""
    device = SimulatedAccelerator()
    (tmp_path / "adapter.py").write_text(
        "import torch\nfrom latfix import Workload\n"
        "class Plain(Workload):\n"
        "    def load(self, device):\n        return torch.nn.ReLU()\n"
        "    def prepare(self, request):\n        return torch.ones(3, 4)\n"
    )
    more: dict[str, Any] = {"workers": 2, "shared_model": True, "warmup_shapes": 2, "max_batch_size": 2}
    service = loaded_service(tmp_path, "adapter:Plain", **more)
    instances = service.models.instances
    assert len(instances) == 2 and len(service.models.distinct()) == 1
    stagings = [Staging(device) for _ in instances]
    for instance, staging in zip(instances, stagings, strict=True):
        instance.place_on(device)
        instance.staging, instance.collate = staging, staging.collate
    service.warm_shapes(Traffic.plain(np.zeros(3, np.int64)))
    assert [staging.misses > 0 and staging.answer_misses > 0 for staging in stagings] == [True, True]
    assert device.forgotten == 0
    service.predict([Request(id="0", arrival_s=0.0)])
    assert device.forgotten == 1, "threads that come later take other handles, with workspaces of their own"
    service.release()


def test_work_outside_requests_is_complete_when_its_context_ends() -> None:
    instance = _instance(SimulatedAccelerator(speeds=Speeds(operator=0.02)))
    with instance.working() as stream:
        instance.model(instance.on_device(torch.ones(2, 3, 4)))
        assert instance.lane is not None and stream is instance.lane.compute
        assert [answer.slot.value for answer in instance.model.answers] == [None], "the device is slow"
    (answer,) = instance.model.answers
    assert float(answer.slot.value.mean()) == 2.0


def test_a_failed_batch_is_reported() -> None:
    class Refuses(torch.nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            raise ValueError(f"no rows of {rows.shape[0]}")

    instance = _instance(SimulatedAccelerator())
    instance.model = Refuses()
    with pytest.raises(RunnerError, match="batch of 3 raised ValueError: no rows of 3"):
        rehearsal(instance, RunnerSettings())(torch.ones(3, 4), 3)
