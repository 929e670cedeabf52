"""The summary of pretrained models: computed from the committed results, and as the document shows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.optimize import real_models
from benchmarks.result_file import RESULTS, ROOT


def _arm(p99: float, accuracy: float = 0.9) -> dict[str, Any]:
    return {"accuracy": accuracy, "ratio": {key: {"value": p99} for key in real_models.KEYS}}


def _found(**arms: Any) -> dict[str, Any]:
    named = {name.replace("_", " "): arm for name, arm in arms.items()}
    return {"arms": {"as it is": {"accuracy": 0.9}, **named}}


@pytest.mark.parametrize(
    ("arms", "best"),
    [
        ({"int8": _arm(0.5), "bfloat16": _arm(0.4)}, 0.4),
        ({"int8": _arm(0.2, accuracy=0.88), "bfloat16": _arm(0.4, accuracy=0.891)}, 0.4),
        ({"int8": _arm(1.2), "two_workers": {"failed": "no"}}, 1.0),
        ({"latfix": _arm(0.1), "no_window": _arm(0.7)}, 0.7),
    ],
)
def test_the_best_single_change_keeps_the_score_and_is_better_than_none(arms: Any, best: float) -> None:
    assert real_models.best_alone(_found(**arms))["p99"] == best


def test_means_are_geometric_and_earlier_measurements_do_not_count() -> None:
    found = {
        "a": _found(int8=_arm(0.5), latfix=_arm(0.1)),
        "b": _found(int8=_arm(0.4), latfix=_arm(0.4)),
        "b@1234567": _found(latfix=_arm(0.001)),
        "plans only": {"arms": {}},
    }
    last = real_models.summary(found).splitlines()[-1]
    assert last == "| geometric mean of 2 | x0.200 | x0.200 | x0.200 | x0.447 |"


def test_the_document_shows_the_summary_of_the_committed_results() -> None:
    workloads = json.loads((RESULTS / "real_models.json").read_text(encoding="utf-8"))["workloads"]
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert real_models.summary(workloads) in page


def test_every_model_is_measured() -> None:
    names = {file.parent.name for file in real_models.MODELS.glob("*/workload.toml")}
    assert names == {*real_models.DEVELOPMENT, *real_models.HELD_OUT}


PACKAGE = "raise ImportError('no audio library')\n"
MODEL = """
import torch
import torchcrepe


class Crepe(torch.nn.Module):
    def __init__(self, model="full"):
        super().__init__()
        self.out = torch.nn.Linear(1024, torchcrepe.PITCH_BINS)

    def forward(self, x):
        return self.out(x)
"""
COMPILE = """
import importlib, sys
import torch
import workload

crepe = workload._published_network()("tiny")
assert importlib.import_module("torchcrepe.model").Crepe is type(crepe)
windows = torch.zeros(2, 3, 1024)
network = workload.PitchNetwork(crepe).eval()
assert torch.compile(network, backend="eager")(windows).shape == (2, 3, workload.BINS)
"""


@pytest.mark.slow
def test_the_pitch_network_can_be_compiled_without_its_package(tmp_path: Path) -> None:
    """``torch.compile`` imports a model's module by its name, which needs a package around it."""
    package = tmp_path / "packages" / "torchcrepe"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(PACKAGE)
    (package / "model.py").write_text(MODEL)
    path = f"{ROOT}{os.pathsep}{ROOT / 'benchmarks' / 'models' / 'pitch'}"
    environment = {**os.environ, "LATFIX_MODELS": str(tmp_path), "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-P", "-c", COMPILE], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
