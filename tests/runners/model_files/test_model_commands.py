"""The runner process's commands about its model."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.run_record.run_record import SCHEDULE
from latfix.runners.measure.accuracy_guard import judge
from latfix.runners.measure.layer_sensitivity import Sensitivity
from latfix.runners.replay.runner_main import Child
from latfix.settings import RunnerSettings
from latfix.traffic.io.stored_schedule import save_schedule
from latfix.traffic.schedule import Traffic
from tests.conftest import write_workload

SMALL = """
import torch
from latfix import Request, Workload

class Small(Workload):
    def load(self, device):
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 4))

    def prepare(self, request):
        return torch.randn(64, generator=torch.Generator().manual_seed(int(request.features["value"])))

    def evaluate(self, predict):
        outputs = predict([Request(id=str(k), arrival_s=0.0, features={"value": k}) for k in range(64)])
        return sum(int(output.float().argmax()) == k % 4 for k, output in enumerate(outputs)) / 64
"""


def loaded(folder: Path, **values: Any) -> Child:
    """The runner's side in this process, without pipes."""
    settings = RunnerSettings(device="cpu", intra_op_threads=1, **values)
    pipe: Any = None
    child = Child({"folder": str(folder), "entry": "adapter:Small", "settings": settings.to_json()}, pipe, pipe)
    child._service.load()
    return child


def test_facts_accuracy_and_layers(tmp_path: Path) -> None:
    folder = write_workload(tmp_path / "small", adapter=SMALL)
    n = 40
    traffic = Traffic.plain(np.arange(n) * 1_000_000, features={"value": np.arange(n)})
    save_schedule(traffic, tmp_path / SCHEDULE)
    at, reference = {"folder": str(tmp_path)}, {"reference": str(tmp_path / "original.npz"), "max_drop": 1.0}
    child = loaded(folder)
    facts = child.do_facts(at)["facts"]
    original = child.do_evaluate({**at, "save": reference["reference"]})
    layers = child.do_sensitivity({**at, "precision": "bf16", "max_drop": 1.0, "budget_s": 30.0})["sensitivity"]
    assert facts["modules"]["torch.nn.modules.linear.Linear"] == 2 and facts["linear_ms"]["default"] > 0
    assert original["loss"] is None and 0 <= original["lo"] <= original["score"] <= original["hi"]
    assert {name for layer in layers["layers"] for name in layer["names"]} == {"0", "2"}
    assert layers["keep"] == {} and layers["trials"][0]["allowed"] and "2 layers changed" in layers["reason"]
    changed = loaded(folder, precision="bf16").do_evaluate({**at, **reference})
    assert changed["loss"] == pytest.approx(original["score"] - changed["score"])
    assert changed["loss_lo"] < changed["loss"] < changed["loss_hi"] and 0 < changed["deviation"] < 0.05
    assert judge(changed, original["score"], 1.0)[0]


def test_layers_are_measured_without_the_service_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_workload(tmp_path / "small", adapter=SMALL)
    save_schedule(Traffic.plain(np.arange(4) * 1_000_000, features={"value": np.arange(4)}), tmp_path / SCHEDULE)
    child = loaded(folder)
    model, there = weakref.ref(child._service.models.instances[0].model), list[bool]()

    def measured(where: Path, entry: str, settings: RunnerSettings, *_: Any, **__: Any) -> Sensitivity:
        there.append(model() is not None)
        assert (where, entry, settings.device) == (folder, "adapter:Small", "cpu")
        return Sensitivity(precision="bf16")

    monkeypatch.setattr("latfix.runners.replay.runner_main.measure_sensitivity", measured)
    child.do_sensitivity({"folder": str(tmp_path), "precision": "bf16", "max_drop": 1.0, "budget_s": 1.0})
    assert there == [False]
