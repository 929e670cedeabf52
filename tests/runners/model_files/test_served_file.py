"""``backend`` for an ONNX file: another runtime runs the file itself, never an export."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latfix.errors import InputError, RunnerError
from latfix.runners.backends.onnx_runtimes import OpenVinoGraph
from latfix.runners.fixes import Applied
from latfix.runners.fixes.fuse import onnxruntime as fuse_onnxruntime
from latfix.runners.fixes.fuse import openvino as fuse_openvino
from latfix.runners.model_files.file_module import FileModule
from latfix.runners.service.loaded_service import Service
from latfix.settings import RunnerSettings
from latfix.stages import Status
from latfix.traffic.schedule import Traffic
from tests.records import build_record
from tests.runners.engine.served import loaded_service
from tests.runners.model_files.conftest import written

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
needs_openvino = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="needs openvino")

WIDTH = 4
Build = Callable[..., Path]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Writes ``relu(x @ w)`` over a variable number of rows."""

    def make(batch: Any = "batch") -> Path:
        float32 = onnx.TensorProto.FLOAT
        weight = np.arange(WIDTH * 3, dtype=np.float32) - 5
        rules = f'[inputs]\nx = {{ shape = ["batch", "length", {WIDTH}] }}\n'
        (tmp_path / "workload.toml").write_text(f'[workload]\nmodel = "rows.onnx"\n{rules}')
        return written(
            tmp_path / "rows.onnx",
            [(("MatMul", ["x", "w"], ["product"]), {}), (("Relu", ["product"], ["y"]), {})],
            {"x": (float32, [batch, "length", WIDTH])},
            {"y": (float32, [batch, "length", 3])},
            [onnx.helper.make_tensor("w", float32, [WIDTH, 3], weight.tobytes(), raw=True)],
        )

    return make


@pytest.fixture(autouse=True)
def no_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exporting fails the test: the file is ONNX already."""

    def export(*_: Any, **__: Any) -> None:
        raise AssertionError("the file was exported")

    monkeypatch.setattr("latfix.runners.backends.converted_model.export", export)


def traffic() -> Traffic:
    return Traffic.plain(np.arange(8) * 1_000_000, features={"length": np.array([1, 5, 2, 7, 3, 4, 9, 6])})


def loaded(file: Path, **values: Any) -> Service:
    return loaded_service(file.parent, file.name, warm=traffic(), **{"max_batch_size": 4, **values})


def answers(service: Service) -> list[torch.Tensor]:
    outcomes = service.predict([traffic().request(k) for k in range(8)], in_flight=1)
    assert [outcome.status for outcome in outcomes] == [Status.OK] * 8, [outcome.error for outcome in outcomes]
    return [outcome.output for outcome in outcomes]


def verified(fix: Any, service: Service) -> Any:
    record = build_record(traffic=traffic(), settings=service.settings)
    return fix.verify(Applied(evidence=service.evidence(traffic()), record=record, without=record))


@pytest.mark.parametrize("backend", [pytest.param("openvino", marks=needs_openvino), "onnxruntime"])
@pytest.mark.parametrize("batch", ["batch", 4], ids=["any batch", "a fixed batch, which is filled up"])
def test_the_backend_runs_the_file_itself_and_the_fix_verifies_it(build: Build, backend: str, batch: Any) -> None:
    file = build(batch)
    other = loaded(file, backend=backend, workers=2)
    for found, wanted in zip(answers(other), answers(loaded(file)), strict=True):
        assert found.shape == wanted.shape and torch.allclose(found, wanted, atol=1e-5)
    evidence = other.evidence(traffic())
    assert [one["file"] for one in evidence["conversions"]] == ["rows.onnx"] * 2, "one for each worker"
    assert {one["threads"] for one in evidence["conversions"]} == {1}
    assert evidence["batches_replaced"] == evidence["batches_run"] == 8
    first, second = other.models.distinct()
    assert first.model.model is not second.model.model
    right, wrong = fuse_openvino.FIX, fuse_onnxruntime.FIX
    if backend == "onnxruntime":
        right, wrong = wrong, right
    assert verified(right, other).effective and "rows.onnx itself" in verified(right, other).evidence
    assert not verified(wrong, other).effective


@needs_openvino
@pytest.mark.parametrize("threads", [1, 2])
def test_openvino_has_the_threads_of_the_settings(build: Build, threads: int) -> None:
    compiled = loaded(build(), backend="openvino", intra_op_threads=threads).models.instances[0].model.model
    assert compiled.runtime._compiled.get_property("INFERENCE_NUM_THREADS") == threads


def test_onnx_runtime_goes_on_with_the_session_that_the_file_was_opened_with(build: Build) -> None:
    service = Service(build().parent, "rows.onnx", RunnerSettings(device="cpu", backend="onnxruntime"))
    service.load()
    opened = service.models.instances[0].model
    service.warm_shapes(traffic())
    assert service.models.instances[0].model is opened


@needs_openvino
def test_answers_that_differ_are_refused(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    run = OpenVinoGraph.run
    monkeypatch.setattr(OpenVinoGraph, "run", lambda self, arrays: [1.02 * array for array in run(self, arrays)])
    with pytest.raises(RunnerError, match=r"rows\.onnx: openvino gives other answers .* 0\.02 of the largest"):
        loaded(build(), backend="openvino")


@needs_openvino
def test_a_file_that_openvino_does_not_take(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("OpenVINO does not support the operation Odd\nin line 3")

    monkeypatch.setattr(OpenVinoGraph, "__init__", refuse)
    with pytest.raises(RunnerError, match=r"rows\.onnx: openvino does not run the file: .*Odd") as raised:
        loaded(build(), backend="openvino")
    assert "\n" not in raised.value.message


def test_openvino_alone_is_needed(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages that export ONNX files are not needed."""
    monkeypatch.setattr("latfix.runners.backends.requirements.installed", lambda name: "o" not in name[:1])
    with pytest.raises(InputError, match=r"backend = 'openvino': needs openvino, not installed here \(.*x0\.63\); "):
        loaded(build(), backend="openvino")


def test_a_file_that_its_own_runtime_runs_is_not_compiled(build: Build) -> None:
    service = loaded_service(build().parent, "rows.onnx", compile="dynamic")
    assert service.models.notes == ["compile = 'dynamic' is not in effect: ONNX Runtime runs the file"]
    assert type(service.models.instances[0].model) is FileModule
