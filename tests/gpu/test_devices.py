"""Workers on two CUDA devices. Skipped with fewer; these tests have not run on such a machine yet."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from latfix import Request, Workload
from latfix.profilers.gpu.device_probes import allocator_probes, nvml_probes, open_devices
from latfix.profilers.probes.sampler import Sampler
from latfix.profilers.probes.stage_recorder import EventLog, SampleLog
from latfix.runners.service.load import LoadedModels, load_models
from latfix.settings import RunnerSettings
from latfix.stages import Status
from tests.runners.engine.served import Served, requests_of, serve

_DEVICES = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(_DEVICES < 2, reason=f"two CUDA devices are needed, this machine has {_DEVICES}"),
]

_ADAPTER = """
import torch
from latfix import Workload

class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(256, 256, generator=generator))

    def forward(self, x):
        here = torch.zeros(1, device="cuda")       # on the current device, as in careless models
        assert here.device == self.weight.device, (here.device, self.weight.device)
        return x @ self.weight + here

class Square(Workload):
    def load(self, device):
        return Linear().to(device)

    def prepare(self, request):
        generator = torch.Generator().manual_seed(int(request.id))
        return torch.randn(256, generator=generator)
"""


def _load(folder: Path, **settings: object) -> LoadedModels:
    (folder / "adapter.py").write_text(_ADAPTER)
    return load_models(folder, "adapter:Square", RunnerSettings(**settings))  # type: ignore[arg-type]


def _serve(models: LoadedModels, count: int, **settings: Any) -> Served:
    return serve(requests_of(count), instances=models.instances, gap_s=0.001, workers=2, devices=2, **settings)


@pytest.mark.parametrize("routing", ["pull", "weighted"])
def test_both_devices_serve_and_answer_alike(tmp_path: Path, routing: str) -> None:
    models = _load(tmp_path, workers=2, devices=2, device="cuda", max_batch_size=4)
    assert [instance.device for instance in models.instances] == ["cuda:0", "cuda:1"]
    assert [next(instance.model.parameters()).device.index for instance in models.instances] == [0, 1]
    served = _serve(models, 300, max_batch_size=4, routing=routing)
    outcomes = served.outcomes
    assert {outcome.status for outcome in outcomes.values()} == {Status.OK}
    assert set(served.batches["worker"].tolist()) == {0, 1}
    assert [worker.device for worker in served.engine.workers] == ["cuda:0", "cuda:1"]
    weight = models.instances[0].model.weight.detach().cpu()
    for slot in (0, 1, 150, 299):
        expected = (
            Workload.collate(models.adapter, [models.adapter.prepare(Request(id=str(slot), arrival_s=0.0))]) @ weight
        )
        torch.testing.assert_close(outcomes[slot].output, expected[0], rtol=1e-2, atol=1e-2)


def test_a_shared_model_is_loaded_once_per_device(tmp_path: Path) -> None:
    models = _load(tmp_path, workers=4, devices=2, device="cuda", shared_model=True)
    assert len(models.distinct()) == 2
    assert models.instances[0].model is models.instances[2].model is not models.instances[1].model


def test_a_device_with_other_load_gets_fewer_requests(tmp_path: Path) -> None:
    """Other work keeps the second device busy; its replica must serve less than half."""
    models = _load(tmp_path, workers=2, devices=2, device="cuda")
    busy = torch.randn(8192, 8192, device="cuda:1")
    for _ in range(400):  # queued: seconds of work
        busy = busy @ busy * 1e-4
    served = _serve(models, 600, routing="weighted")
    torch.cuda.synchronize("cuda:1")
    share = float((served.batches["worker"] == 1).mean())
    assert share < 0.4, (share, served.series)


def test_series_of_both_devices_are_read() -> None:
    probes = open_devices(["cuda:0", "cuda:1"])
    samples = SampleLog()
    polled = [*nvml_probes(probes, lambda *_: None), *allocator_probes(probes)]
    try:
        with Sampler(polled, samples, EventLog(), name="test"):
            time.sleep(0.1)
    finally:
        for probe in probes:
            if probe.nvml is not None:
                probe.nvml.close()
    text = samples.drain(0)
    for series in ("nvml.sm_clock_mhz", "nvml.1.sm_clock_mhz", "nvml.1.memory_used_bytes", "cuda.1.allocated_bytes"):
        assert f'"{series}"' in text, series
