"""Evidence of a model behind captured graphs: its own layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.runners.calls.call_counters import Tally
from latfix.runners.gpu.cuda_graphs import GraphedModel
from latfix.runners.replay.runner_main import machine
from latfix.runners.service.loaded_service import Service
from latfix.traffic.schedule import Traffic
from tests.runners.engine.served import loaded_service
from tests.runners.gpu.test_cuda_graphs import FakeCapturer
from tests.runners.service.test_graph_capture import PlainAccelerator

ADAPTER = """
import torch
from latfix import Workload

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(2, 4)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.body(x))

class Plain(Workload):
    def load(self, device):
        return Net()

    def prepare(self, request):
        return torch.ones(2)
"""


@pytest.mark.parametrize(("keep", "weights", "kept"), [((), 2, 0), (("head",), 1, 1)])
def test_weights_are_those_of_the_model_behind_the_graphs(
    keep: tuple[str, ...], weights: int, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "adapter.py").write_text(ADAPTER)
    service = loaded_service(tmp_path, "adapter:Plain", cuda_graphs=True, keep_precision=keep)
    (instance,) = service.models.instances
    instance.model, instance.accelerator = GraphedModel(instance.model, FakeCapturer(), Tally()), PlainAccelerator()
    profile: dict[str, Any] = {"device_profile": []}
    monkeypatch.setattr(Service, "device_profile", lambda *_: profile)
    found = service.evidence(Traffic.plain(np.zeros(1, np.int64)))
    service.release()
    assert found["weights"] == {"float32": weights}
    assert found["kept_weights"] == ({"float32": kept} if kept else {})


def test_facts_take_no_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile is not used there, and a crashing profiler would end the search."""
    (tmp_path / "adapter.py").write_text(ADAPTER)
    service = loaded_service(tmp_path, "adapter:Plain")
    profiled: list[object] = []

    def profile(*arguments: object) -> dict[str, Any]:
        profiled.append(arguments)
        return {}

    monkeypatch.setattr(Service, "device_profile", profile)
    traffic = Traffic.plain(np.zeros(1, np.int64))
    assert "modules" in service.facts(traffic) and not profiled
    service.evidence(traffic)
    service.release()
    assert len(profiled) == 1


@pytest.mark.parametrize(("device", "index"), [("cpu", 0), ("cuda", 0), ("cuda:1", 1)])
def test_the_record_names_the_gpu_that_the_model_is_on(
    device: str, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda number: f"GPU {number}")
    assert machine(device)["gpu"] == f"GPU {index}"
