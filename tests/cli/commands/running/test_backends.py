"""Model files on the command line: the table of backends, and files that are wrong, in one line each."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from latfix.runners.backend_comparison import candidates
from latfix.runners.backend_comparison import cold_load as loading
from latfix.runners.backend_comparison import comparison as table
from latfix.settings import RunnerSettings
from latfix.traffic.io.reader import read_traffic
from tests.cli.conftest import refused
from tests.conftest import cli, succeeded, write_workload


@pytest.fixture
def traffic(tmp_path: Path) -> Path:
    rows = [{"arrival_s": k * 0.01, "length": 2 + k % 7} for k in range(20)]
    (tmp_path / "traffic.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "traffic.jsonl"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Scores of sequences of vectors, of any number and any length up to 6."""

    class Scores(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.score = torch.nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.score(x).sum(1)
            return scores

    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=6)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(Scores().eval(), (torch.ones(2, 3, 4),), dynamic_shapes=(sizes,))
        torch.export.save(exported, tmp_path / "model.pt2")
    return tmp_path / "model.pt2"


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command does in a process of its own, done in this one: torch is loaded already."""

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        assert command[-2] == table.__name__
        monkeypatch.setattr(sys, "argv", command[-2:])
        return subprocess.CompletedProcess(command, table.main())

    monkeypatch.setattr(table, "run_process", run)
    for module in (candidates, loading):
        monkeypatch.setattr(module, "first_load_s", lambda *_: 0.5)


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_the_table(program: Path, traffic: Path, tmp_path: Path) -> None:
    kept, target = tmp_path / "kept", tmp_path / "table.json"
    how = ("--map", "length=min(length, 6)", "--seconds", "0.5", "--out", kept, "--json", target)
    out = succeeded(cli("backends", program, "--traffic", traffic, *how))
    document = json.loads(target.read_text())
    assert document["inputs"][0].startswith("x: float32 (batch, ")
    rows = {row["backend"]: row for row in document["backends"]}
    assert next(iter(rows)) == "torch.export" and not rows["torch.export"]["missing"]
    assert rows["eager torch"]["missing"] == "the file holds no Python module"
    script = rows["TorchScript"]
    assert script["missing"] or script["agreeing"] == script["compared"] > 0
    for word in ("torch.export", "in batches of 8", "fastest is", "holds no Python module"):
        assert word in " ".join(out.split()), out
    assert json.loads((kept / "backends.json").read_text()) == document
    assert cli("report", kept)[1] == out
    refused(cli("backends", program, "--traffic", traffic, *how), "kept: found a folder that is not empty")


def test_a_model_that_takes_one_request_at_a_time(traffic: Path, tmp_path: Path) -> None:
    """A batch of 8 is the command's own idea: that the model refuses it is no failure."""
    adapter = """
import torch
from latfix import Workload

class Small(Workload):
    def load(self, device):
        return lambda x: x.sum().item() if len(x) == 1 else x.item()

    def prepare(self, request):
        return torch.full((1,), float(request.features["length"]))
"""
    folder, settings = write_workload(tmp_path / "w", adapter=adapter), RunnerSettings(device="cpu")
    spec = SimpleNamespace(name="w", folder=folder, entry="adapter:Small")
    job = table.job_of(spec, settings, batch=8, explicit=False, seconds=0.1, seed=0)  # type: ignore[arg-type]
    found = table.measure_here(job, read_traffic(traffic))
    assert found.batch_size == 1 and found.backends[0].agreement == 1.0


@pytest.mark.usefixtures("in_process")
def test_traffic_that_the_model_does_not_take(program: Path, traffic: Path) -> None:
    answer = cli("backends", program, "--traffic", traffic, "--seconds", "0.2")
    refused(answer, 'write "min(length, 6)" in [inputs]')


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--batch", "0"), "--batch"),
        (("--batch", "5000"), "--batch"),
        (("--seconds", "0"), "--seconds"),
        (("--seconds", "nan"), "--seconds"),
        (("--seed", "-1"), "--seed"),
        (("--device", "gpu"), "--device"),
        (("--json", "no/such/folder/a.json"), "--json"),
        (("--map", "x"), "--map"),
    ],
)
def test_options(tmp_path: Path, traffic: Path, options: tuple[str, ...], message: str) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\x08\x08\x3a\x00")
    refused(cli("backends", tmp_path / "model.onnx", "--traffic", traffic, *options), message)


@pytest.mark.usefixtures("no_runner")
@pytest.mark.parametrize("command", ["diagnose", "optimize", "backends"])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.onnx", b"", "an empty file"),
        ("model.onnx", b"\x08\x08\x3a\x09", "truncated ONNX"),
        ("model.pt2", b"\x08\x08\x3a\x00", "name it .onnx"),
        ("model.pt2", b"PK\x03\x04", "truncated archive"),
        ("model.pt", b"\x80\x02}q\x00.", "a Python pickle"),
        ("model.onnx", None, "found a link"),
    ],
)
def test_wrong_files(
    tmp_path: Path,
    traffic: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    name: str,
    content: bytes | None,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is None:
        (tmp_path / name).symlink_to("gone")
    else:
        (tmp_path / name).write_bytes(content)
    refused(cli(command, tmp_path / name, "--traffic", traffic), message)
    assert not (tmp_path / "latfix-runs").exists()


def test_a_model_without_traffic(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\x08\x08\x3a\x00")
    for command in ("diagnose", "backends"):
        refused(cli(command, tmp_path / "model.onnx"), "without traffic")


@pytest.mark.usefixtures("no_runner")
@pytest.mark.parametrize("command", ["diagnose", "optimize", "sweep", "backends"])
def test_an_engine_reports_what_it_needs(
    tmp_path: Path, traffic: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("latfix.config.tensorrt_requirements.installed", lambda _: False)
    (tmp_path / "model.engine").write_bytes(b"ftrt" + bytes(64))
    answer = cli(command, tmp_path / "model.engine", "--traffic", traffic)
    refused(answer, "TensorRT engine, which needs the package tensorrt", "pip install tensorrt")


@pytest.mark.slow
def test_a_model_file_is_diagnosed(program: Path, traffic: Path, tmp_path: Path) -> None:
    out_dir, target = tmp_path / "run", tmp_path / "diagnosis.json"
    (tmp_path / "workload.toml").write_text(
        '[workload]\nmodel = "model.pt2"\ntraffic = "traffic.jsonl"\n[runner]\ndevice = "cpu"\nmax_batch_size = 4\n'
        'batch_window_ms = 1\nintra_op_threads = 1\n[inputs]\nx = { shape = ["batch", "min(length, 6)", 4] }\n'
    )
    assert program.is_file() and traffic.is_file()
    succeeded(cli("diagnose", tmp_path, "--out", out_dir, "--json", target))
    document = json.loads(target.read_text())
    assert document["requests"] == {"ok": 20, "error": 0, "timeout": 0, "shed": 0}
    meta = json.loads((out_dir / "run.json").read_text())
    assert meta["entry"] == "model.pt2"
