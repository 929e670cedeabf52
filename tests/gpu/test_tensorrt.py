"""TensorRT on a CUDA device. Skipped if something is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latfix.runners.backends.requirements import backend_missing
from latfix.runners.model_files import open_model
from latfix.runners.service.loaded_service import Service
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic
from tests.conftest import write_workload
from tests.gpu.marks import ON_CUDA

pytestmark = [
    *ON_CUDA,
    pytest.mark.skipif(bool(backend_missing("tensorrt")), reason=backend_missing("tensorrt") or "installed"),
]


ENCODER = """
import torch
from latfix import Workload

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(64, 64)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(64, 64) for _ in range(6)])
        self.out = torch.nn.Linear(64, 3)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + torch.nn.functional.gelu(layer(x))
        return self.out(x.mean(1))

class Encoder(Workload):
    def load(self, device):
        torch.manual_seed(0)
        return Net().to(device)

    def prepare(self, request):
        generator = torch.Generator().manual_seed(int(request.id))
        return torch.randint(1, 64, (int(request.features["length"]),), generator=generator)
"""


def traffic(n: int = 24) -> Traffic:
    return Traffic.plain(
        np.arange(n) * 1_000_000, ids=[str(k) for k in range(n)], features={"length": 4 + np.arange(n) * 3}
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_workload(tmp_path / "encoder", adapter=ENCODER, runner={"device": "cuda"})


def service_of(folder: Path, **values: Any) -> Service:
    service = Service(folder, "adapter:Encoder", RunnerSettings(device="cuda", max_batch_size=4, **values))
    service.load()
    service.warm_shapes(traffic())
    return service


@pytest.mark.parametrize(("precision", "tolerance"), [("default", 2e-3), ("bf16", 5e-2), ("fp16", 5e-2)])
def test_engines_give_the_same_answers(folder: Path, precision: Any, tolerance: float) -> None:
    requests = [traffic().request(1)] * 3  # of one length: padding would change the mean
    plain = service_of(folder).predict(requests)
    service = service_of(folder, backend="tensorrt", precision=precision)
    for a, b in zip(plain, service.predict(requests), strict=True):
        assert b.error == ""
        torch.testing.assert_close(b.output, a.output, rtol=tolerance, atol=tolerance)
    evidence = service.evidence(traffic())
    assert evidence["batches_replaced"] == evidence["batches_run"] > 0
    partition = evidence["conversions"][0]["partition"]
    assert partition["engines"] >= 1 and partition["inside"], partition


def test_a_saved_program_is_found_by_the_next_service(folder: Path) -> None:
    first = service_of(folder, backend="tensorrt").evidence(traffic())["conversions"][0]
    assert first["kept"] == "" and not first["cached"]
    again = service_of(folder, backend="tensorrt")
    assert again.evidence(traffic())["conversions"][0]["cached"]
    assert [outcome.error for outcome in again.predict([traffic().request(k) for k in range(8)])] == [""] * 8


def test_workers_that_share_a_model_answer_alike(folder: Path) -> None:
    service = service_of(folder, backend="tensorrt", workers=3, shared_model=True)
    requests = [traffic().request(5)] * 40
    outputs = [outcome.output for outcome in service.predict(requests)]
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0], rtol=1e-3, atol=1e-3)


@pytest.fixture
def engine_file(tmp_path: Path) -> Path:
    """An engine for twice its input plus one, for 1 to 4 requests of 1 to 6 numbers."""
    trt = pytest.importorskip("tensorrt")
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    x = network.add_input("x", trt.float32, (-1, -1))
    two = network.add_constant((1, 1), np.full((1, 1), 2.0, dtype=np.float32)).get_output(0)
    one = network.add_constant((1, 1), np.full((1, 1), 1.0, dtype=np.float32)).get_output(0)
    twice = network.add_elementwise(x, two, trt.ElementWiseOperation.PROD).get_output(0)
    y = network.add_elementwise(twice, one, trt.ElementWiseOperation.SUM).get_output(0)
    y.name = "y"
    network.mark_output(y)
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    profile.set_shape("x", (1, 1), (4, 4), (4, 6))
    config.add_optimization_profile(profile)
    file = tmp_path / "model.engine"
    file.write_bytes(bytes(builder.build_serialized_network(network, config)))
    return file


def test_an_engine_file_runs(engine_file: Path) -> None:
    module = open_model(engine_file).load("cuda:0")
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for size, length in ((1, 1), (4, 6), (2, 3)):
            x = torch.rand(size, length, device="cuda:0")
            torch.testing.assert_close(module(x), x * 2 + 1)
    with pytest.raises(ValueError, match="expected shapes that the engine was built for"):
        module(torch.rand(5, 2, device="cuda:0"))
