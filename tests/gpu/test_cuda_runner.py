"""The runner on a CUDA device. Skipped, saying so, where there is none."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from latfix import Request, Workload
from latfix.profilers.gpu.allocator_counters import cuda_reader
from latfix.profilers.gpu.nvml import Nvml
from latfix.profilers.probes.stage_recorder import EventLog, StageRecorder
from latfix.runners.engine.engine import Engine
from latfix.runners.engine.worker import ModelInstance, Outcome
from latfix.runners.gpu.accelerator import accelerator_of
from latfix.settings import RunnerSettings
from latfix.stages import STAGES, Status

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")

_WIDTH = 512


class _Linear(Workload):
    def prepare(self, request: Request) -> torch.Tensor:
        generator = torch.Generator().manual_seed(int(request.id))
        return torch.randn(_WIDTH, generator=generator)


def _serve(device: str, count: int) -> tuple[StageRecorder, dict[int, Outcome]]:
    torch.manual_seed(0)
    model = torch.nn.Linear(_WIDTH, _WIDTH).to(device).eval()
    adapter = _Linear()
    recorder = StageRecorder(count)
    outcomes: dict[int, Outcome] = {}
    instance = ModelInstance(adapter, model, device, None, adapter.collate, set())
    instance.place_on(accelerator_of(device))
    engine = Engine(
        adapter=adapter,
        instances=[instance],
        settings=RunnerSettings(max_batch_size=4, device=device),
        recorder=recorder,
        events=EventLog(),
        request_of=lambda slot: Request(id=str(slot), arrival_s=0.0),
        on_done=outcomes.__setitem__,
    )
    engine.start()
    for slot in range(count):
        recorder.scheduled_ns[slot] = time.perf_counter_ns()
        engine.submit(slot)
    engine.drain()
    engine.shutdown()
    return recorder, outcomes


def test_answers_are_those_of_the_cpu() -> None:
    _, expected = _serve("cpu", 16)
    _, got = _serve("cuda:0", 16)
    for slot in range(16):
        assert got[slot].status == Status.OK
        assert got[slot].output.device.type == "cpu"
        torch.testing.assert_close(got[slot].output, expected[slot].output, rtol=1e-3, atol=1e-3)


def test_every_device_stage_takes_time_and_the_stages_add_up() -> None:
    recorder, _ = _serve("cuda:0", 64)
    rows = recorder.drain_requests()
    assert len(rows) == 64
    for stage in ("h2d", "compute", "d2h"):
        assert (rows[f"{stage}_ns"] > 0).all(), stage
    total = np.sum([rows[f"{stage}_ns"] for stage in STAGES], axis=0)
    assert np.array_equal(total, rows["latency_ns"])


def test_the_caching_allocator_and_nvml_are_read() -> None:
    read = cuda_reader("cuda:0")
    assert read is not None and read()["cuda.reserved_bytes"] >= 0
    nvml, line = Nvml.open()
    assert nvml is not None, line
    assert nvml.read()["nvml.memory_used_bytes"] > 0
    nvml.close()
