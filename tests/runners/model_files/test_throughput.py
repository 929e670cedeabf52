"""``latfix backends``: rates with intervals, comparison of answers, and models that cannot be converted."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from latfix.config.workload_toml import load_spec
from latfix.errors import InputError, RunnerError
from latfix.runners.backend_comparison.candidates import BACKENDS, Candidate, candidates
from latfix.runners.backend_comparison.cold_load import first_load_s
from latfix.runners.backend_comparison.comparison import job_of, measure_backends, measure_here
from latfix.runners.backend_comparison.throughput import Work, one_pass_s, rate, serve, speedup
from latfix.runners.backends.onnx_export import example_of
from latfix.runners.service.adapter_file import load_adapter
from latfix.traffic.io.reader import read_traffic
from tests.conftest import write_workload

MS = 1_000_000

LINEAR = """
import torch
from latfix import Request, Workload

class Small(Workload):
    def load(self, device):
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to(device)

    def prepare(self, request):
        generator = torch.Generator().manual_seed(int(request.arrival_s * 1000))
        return torch.randn(8, generator=generator)
"""


def test_a_rate_is_requests_by_time_and_a_speedup_how_many_times_as_fast() -> None:
    steady = rate([100 * MS] * 10, 20)
    assert [steady.value, steady.lo, steady.hi] == pytest.approx([200, 200, 200])
    assert rate([100 * MS] * 4, 20).to_json()["ci95"] is None
    assert speedup([200 * MS] * 6, [100 * MS] * 6).value == pytest.approx(2)
    assert speedup([200 * MS] * 3, [100 * MS] * 3).to_json()["ci95"] is None


@pytest.mark.parametrize("correlated", [0.0, 0.7])
def test_intervals_hold_the_truth(correlated: float) -> None:
    """Also if round times drift; without groups of neighbors the interval would be far too narrow."""
    rng = np.random.default_rng(7)
    held = held_ratio = 0
    for _ in range(300):
        noise = np.zeros((2, 60))
        for k in range(1, 60):
            noise[:, k] = correlated * noise[:, k - 1] + rng.normal(0, 0.05, 2)
        base, new = np.exp(noise) * 100 * MS
        truth = math.exp(0.05**2 / (1 - correlated**2) / 2)
        estimate = rate(base.astype(int).tolist(), 10)
        held += estimate.lo <= 100 / truth <= estimate.hi
        compared = speedup(base.astype(int).tolist(), (new / 2).astype(int).tolist())
        held_ratio += compared.lo <= 2 <= compared.hi
    assert held >= 0.88 * 300 and held_ratio >= 0.88 * 300, (held, held_ratio)


def work(n: int = 4) -> Work:
    singles = [torch.full((1, 2), float(k)) for k in range(n)]
    return Work(singles, [torch.cat(singles)], [n])


@pytest.mark.alone
def test_backends_are_timed_in_turns_and_compared_with_the_first() -> None:
    order: list[str] = []

    def model(name: str, factor: float, wait_s: float) -> Candidate:
        def run(x: torch.Tensor) -> torch.Tensor:
            order.append(name)
            time.sleep(wait_s)
            return x * torch.tensor([1.0, factor])

        return Candidate(backend=name, model=run)

    def broken(_: torch.Tensor) -> torch.Tensor:
        raise ValueError("no\nkernel")

    found = [
        model("first", 2.0, 0.002),
        model("same", 2.00001, 0.0),
        model("wrong", -2.0, 0.0),
        Candidate(backend="broken", model=broken),
        Candidate(backend="missing", missing="not installed"),
    ]
    served, check = serve(found, work(), 0.3, seed=1)
    assert set(served) == {"first", "same", "wrong", "broken"}
    assert served["broken"].failure == "running it raised ValueError: no kernel" and not served["broken"].single_ns
    assert (served["same"].agreeing, served["same"].compared) == (8, 8)
    assert 0 < served["same"].deviation < 1e-4
    assert served["wrong"].agreeing == 2, "only the zeros, alone and in the batch"
    assert served["wrong"].deviation == 2.0
    assert served["same"].agreement == 1.0 > served["wrong"].agreement
    assert (check.compared, check.differing, check.faults()) == (4, 0, ())
    rounds = len(served["first"].single_ns)
    assert rounds >= 5 and len(served["wrong"].batched_ns) == rounds
    answered = order[: 3 * 3 * 5]
    assert answered == ["first"] * 15 + ["same"] * 15 + ["wrong"] * 15, "answers, then two rounds untimed"
    timed = order[len(answered) :]
    per_round = [tuple(dict.fromkeys(timed[k : k + 15])) for k in range(0, len(timed), 15)]
    assert all(sorted(names) == ["first", "same", "wrong"] for names in per_round), "each round has all"
    assert len(set(per_round)) > 1, "in random order"
    faster = speedup(served["first"].single_ns, served["same"].single_ns)
    assert faster.lo > 1


def test_a_model_that_changes_its_inputs_does_not_change_those_of_the_next() -> None:
    found = [Candidate(backend=name, model=lambda x: x.add_(1.0) * 1.0) for name in ("first", "second")]
    served, check = serve(found, work(), 0.01, seed=0)
    assert (served["second"].agreeing, served["second"].deviation, check.differing) == (8, 0.0, 0)


def test_the_first_backend_must_not_fail_as_it_is_the_reference() -> None:
    lost = Candidate(backend="lost", model=lambda x: x[:1])
    with pytest.raises(RunnerError, match=r"the model returned shape \(1, 2\) for a batch of 4"):
        serve([lost, Candidate(backend="second", model=lambda x: x)], work(), 0.01, seed=0)
    served, _ = serve([Candidate(backend="first", model=lambda x: x), lost], work(), 0.01, seed=0)
    assert "shape (1, 2) for a batch of 4" in served["lost"].failure
    with pytest.raises(RunnerError, match="the model raised TypeError"):
        one_pass_s(Candidate(backend="a", model=lambda: None), work().singles)


def test_an_example_has_no_one_where_sizes_vary() -> None:
    shapes = [(1, 9), (4, 1), (1, 3), (4, 7), (2, 30)]
    assert example_of([torch.zeros(shape) for shape in shapes]).shape == (4, 7)
    assert example_of([torch.zeros(1, 3), torch.zeros(1, 5)]).shape == (1, 3), "a size that never varies may be one"


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_workload(tmp_path_factory.mktemp("w") / "linear", adapter=LINEAR)


@pytest.mark.filterwarnings("ignore")
def test_an_adapter_s_model_is_converted_each_time(linear: Path, tmp_path: Path, quick_loads: list[str]) -> None:
    """With a cached file, a second run would show another time for the conversion."""
    adapter = load_adapter(linear, "adapter:Small")
    model = adapter.load("cpu").eval()
    batches = [torch.randn(size, 8) for size in (1, 2, 4)]
    own = Candidate(backend="eager torch", model=model)
    for _ in range(2):
        quick_loads.clear()
        found = {one.backend: one for one in candidates(adapter, own, batches, tmp_path)}
        assert list(found) == list(BACKENDS)
        run = [one for one in found.values() if one.backend != "eager torch" and not one.missing]
        assert {"torch.export", "TorchScript"} <= {one.backend for one in run}, found
        assert [one.backend for one in run] == quick_loads
        for one in run:
            assert one.convert_s is not None and one.convert_s > 0
            with torch.no_grad():
                for batch in (*batches, torch.randn(7, 8)):
                    assert torch.allclose(one.model(batch), model(batch), atol=1e-5), one.backend
        runtime, vino = found["ONNX Runtime"], found["OpenVINO"]
        if not runtime.missing:
            assert runtime.convert_s is not None and runtime.convert_s > 0.02, "exported, not cached"
            assert vino.missing or vino.convert_s == runtime.convert_s, "both read the same file"


@pytest.mark.slow
def test_the_first_load_is_measured_in_a_fresh_process(script_file: Path, tmp_path: Path) -> None:
    assert 0 < first_load_s(script_file, "TorchScript", (), 1) < 60
    (tmp_path / "gone.pt").write_bytes(b"PK")
    with pytest.raises(RunnerError, match=r"loading it ended with exit code 1; its last output: .*gone\.pt"):
        first_load_s(tmp_path / "gone.pt", "TorchScript", (), 1)


def test_reasons_why_backends_cannot_run_a_file(script_file: Path, tmp_path: Path) -> None:
    adapter = load_adapter(script_file.parent, script_file.name)
    model = adapter.load("cpu")
    own = Candidate(backend="TorchScript", model=model)
    found = {one.backend: one.missing for one in candidates(adapter, own, [], tmp_path)}
    assert found["eager torch"] == "the file holds no Python module"
    assert found["TensorRT"].startswith("runs on a GPU, but"), "no package would change that"
    assert all("not TorchScript" in found[name] for name in ("torch.export", "ONNX Runtime", "OpenVINO"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("quick_loads")
def test_the_table_of_a_workload(linear: Path) -> None:
    spec = load_spec(str(linear))
    job = job_of(spec, spec.settings, batch=4, explicit=False, seconds=0.3, seed=0)
    document = measure_here(job, read_traffic(spec.traffic)).to_json()
    assert document["schema"] == "latfix.backends/1"
    assert (document["batch_size"], document["threads"], document["device"]) == (4, 1, "cpu")
    rows = {row["backend"]: row for row in document["backends"]}
    assert list(rows) == list(BACKENDS)
    eager = rows["eager torch"]
    assert not eager["missing"] and eager["convert_s"] is None and "single_speedup" not in eager
    for name in ("torch.export", "TorchScript"):
        row = rows[name]
        assert row["agreeing"] == row["compared"] > 0 and row["deviation"] < 1e-4
        assert row["single_rps"]["value"] > 0 and row["load_s"] > 0 and row["convert_s"] > 0 and row["rounds"] >= 5
        assert row["batched_rps"]["ci95"][0] < row["batched_rps"]["ci95"][1]
        assert row["single_speedup"]["value"] > 0


@pytest.mark.slow
def test_a_process_that_dies_is_reported(tmp_path: Path) -> None:
    dying = LINEAR.replace("torch.manual_seed(1)", "import os; print('out of luck', flush=True); os._exit(3)")
    spec = load_spec(str(write_workload(tmp_path / "w", adapter=dying)))
    with pytest.raises(RunnerError, match=r"exit code 3, with no result; its last output: out of luck"):
        measure_backends(spec, read_traffic(spec.traffic), spec.settings, batch=4, explicit=False, seconds=1, seed=0)


def test_a_batch_that_the_file_does_not_take(save_exported: Callable[..., Path], linear: Path) -> None:
    file = save_exported(torch.nn.Linear(4, 2), (torch.ones(1, 4),), "fixed_for_table")
    spec = load_spec(str(file), traffic=linear / "traffic.jsonl")
    job = job_of(spec, spec.settings, batch=4, explicit=True, seconds=1, seed=0)
    with pytest.raises(InputError, match=r"--batch: found 4; .* takes batches of at most 1"):
        measure_here(job, read_traffic(spec.traffic))
