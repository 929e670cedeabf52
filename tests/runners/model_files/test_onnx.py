"""ONNX files: their inputs, threads, and files that ONNX Runtime rejects."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latfix.errors import InputError, RunnerError
from latfix.runners.backend_comparison.candidates import Candidate, candidates
from latfix.runners.model_files import open_model
from latfix.runners.model_files.embedding_lookups import looked_up_rows
from latfix.runners.model_files.formats.onnx import _value, load_graph
from latfix.runners.model_files.input_layout import lay_out
from latfix.runners.service.adapter_file import load_adapter
from latfix.runners.service.load import load_models
from latfix.settings import RunnerSettings
from tests.runners.model_files.conftest import request_of, served, written

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

Build = Callable[..., Path]
ROWS, WIDTH = 40, 4


def weights() -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Writes a model that averages embeddings over real tokens, with the given dimensions and opset."""

    def make(batch: Any = "batch", length: Any = "length", *, opset: int = 17) -> Path:
        make_tensor, kinds = onnx.helper.make_tensor, onnx.TensorProto
        return written(
            tmp_path / "model.onnx",
            [
                (("Cast", ["tokens"], ["ids"]), {"to": kinds.INT64}),
                (("Gather", ["table", "ids"], ["rows"]), {}),
                (("Unsqueeze", ["mask", "last"], ["weight"]), {}),
                (("Mul", ["rows", "weight"], ["weighted"]), {}),
                (("ReduceSum", ["weighted", "one"], ["total"]), {"keepdims": 0}),
                (("ReduceSum", ["weight", "one"], ["count"]), {"keepdims": 0}),
                (("Div", ["total", "count"], ["mean"]), {}),
            ],
            {"tokens": (kinds.INT32, [batch, length]), "mask": (kinds.FLOAT, [batch, length])},
            {"mean": (kinds.FLOAT, [batch, WIDTH])},
            [
                make_tensor("table", kinds.FLOAT, [ROWS, WIDTH], weights().numpy().tobytes(), raw=True),
                make_tensor("one", kinds.INT64, [1], [1]),
                make_tensor("last", kinds.INT64, [1], [-1]),
            ],
            opset,
        )

    return make


def settings(**values: Any) -> RunnerSettings:
    return RunnerSettings(device="cpu", intra_op_threads=1, **values)


def test_inputs_of_a_file(build: Build) -> None:
    tokens, mask = open_model(build()).inputs
    assert (tokens.name, tokens.dtype, tokens.rows) == ("tokens", "int32", ROWS)
    assert (mask.name, mask.dtype, mask.rows) == ("mask", "float32", None)
    assert tokens.axes is not None and [axis.symbol for axis in tokens.axes] == ["batch", "length"]
    fixed = open_model(build(1, 16)).inputs[0].axes
    assert fixed is not None and [axis.size for axis in fixed] == [1, 16]
    unnamed = open_model(build(None, None)).inputs[1].axes
    assert unnamed is not None and [axis.symbol for axis in unnamed] == ["mask[0]", "mask[1]"]


def test_placeholders_of_exporters_are_no_names(tmp_path: Path) -> None:
    """By exporters; dimensions that are written alike are not equally long then, and no length of anything."""
    float32 = onnx.TensorProto.FLOAT
    shapes = {"x": ("?", 3, "?", "?"), "tokens": ("tokens_dynamic_axes_1", "tokens_dynamic_axes_2"), "y": ("None", 4)}
    inputs = {name: (float32, shape) for name, shape in shapes.items()}
    nodes: list[Any] = [(("Identity", [name], [f"same_{name}"]), {}) for name in shapes]
    file = written(tmp_path / "m.onnx", nodes, inputs, {f"same_{name}": inputs[name] for name in inputs})
    model = open_model(file)
    assert [[axis.symbol for axis in given.axes or () if axis.size is None] for given in model.inputs] == [
        ["x[0]", "x[2]", "x[3]"],
        ["tokens[0]", "tokens[1]"],
        ["y[0]"],
    ]
    assert [given.batch_axis for given in lay_out(model, {}).inputs] == [0, 0, 0]


def test_outputs_are_split_along_the_batch_that_the_file_names(tmp_path: Path) -> None:
    """Steps first, and as many as there are requests: only the name distinguishes them."""
    float32 = onnx.TensorProto.FLOAT
    file = written(
        tmp_path / "m.onnx",
        [(("Transpose", ["x"], ["steps"]), {"perm": [1, 0, 2]})],
        {"x": (float32, ["batch", "length", 2])},
        {"steps": (float32, ["length", "batch", 2])},
    )
    requests = [request_of(str(k), length=3) for k in range(3)]
    own = [load_adapter(file.parent, file.name).prepare(request) for request in requests]
    for batch in (1, 3):
        assert all(map(torch.equal, served(file, requests, max_batch_size=batch), own))


def test_of_a_file_for_one_request_an_output_may_have_no_batch(tmp_path: Path) -> None:
    """Such as a variable number of boxes."""
    float32, int64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    file = written(
        tmp_path / "m.onnx",
        [(("NonZero", ["x"], ["places"]), {}), (("Transpose", ["places"], ["found"]), {"perm": [1, 0]})],
        {"x": (float32, [1, 2, 3])},
        {"found": (int64, ["boxes", 3])},
    )
    assert [answer.shape for answer in served(file, [request_of(), request_of("b")])] == [(6, 3), (6, 3)]


def test_of_a_file_for_one_request_an_output_is_that_requests_in_any_shape(tmp_path: Path) -> None:
    """Steps first, although the file states the batch there."""
    float32 = onnx.TensorProto.FLOAT
    file = written(
        tmp_path / "m.onnx",
        [(("Transpose", ["x"], ["steps"]), {"perm": [1, 0, 2]})],
        {"x": (float32, [1, 3, 2])},
        {"steps": (float32, [1, "length", 2])},
    )
    request = request_of()
    own = load_adapter(file.parent, file.name).prepare(request)
    (answer,) = served(file, [request])
    assert torch.equal(answer, own.unsqueeze(1))


def test_it_serves_alone_and_in_batches(build: Build) -> None:
    file = build()
    requests = [request_of(str(k), length=length) for k, length in enumerate((3, 30, 1, 9, 14))]
    outputs = [torch.stack(served(file, requests, max_batch_size=batch)) for batch in (1, 4)]
    assert torch.allclose(outputs[0], outputs[1], atol=1e-6), "padding does not change the answers"
    tokens, mask = load_adapter(file.parent, file.name).prepare(requests[1])
    assert mask.tolist() == [1.0] * 30 and int(tokens.min()) >= 1 and int(tokens.max()) < ROWS
    assert torch.allclose(outputs[0][1], weights()[tokens.long()].mean(0), atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_those_of_the_settings(build: Build, threads: int) -> None:
    file = build()
    loaded = load_models(file.parent, file.name, RunnerSettings(device="cpu", intra_op_threads=threads))
    options = loaded.instances[0].model.model.runtime._session.get_session_options()
    assert options.intra_op_num_threads == threads


def test_a_fixed_batch_dimension(build: Build) -> None:
    file = build(1, "length")
    load_models(file.parent, file.name, settings())
    with pytest.raises(InputError, match="the file's batch dimension is fixed at 1"):
        load_models(file.parent, file.name, settings(max_batch_size=2))


def test_precision_and_device_are_fixed_in_the_file(build: Build) -> None:
    file = build()
    with pytest.raises(RunnerError, match="fixes its precision and device"):
        load_models(file.parent, file.name, settings(precision="bf16"))
    model = load_models(file.parent, file.name, settings()).instances[0].model
    copied = copy.deepcopy(model)
    assert copied is not model and copied.model is model.model
    with pytest.raises(RunnerError, match="on the CPU only"):
        load_adapter(file.parent, file.name).load("cuda:0")


def test_files_that_do_not_load(build: Build, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a model that does not load .*[oO]pset.*; expected one that ONNX Runtime"):
        open_model(build(opset=9999))
    (tmp_path / "none.onnx").write_bytes(b"\x08\x08\x3a\x00")
    with pytest.raises(InputError) as caught:
        open_model(tmp_path / "none.onnx")
    assert "\n" not in caught.value.message
    model, weights = onnx.load(str(build())), {"location": "weights.bin", "size_threshold": 0}
    onnx.save_model(model, str(tmp_path / "apart.onnx"), save_as_external_data=True, **weights)
    open_model(tmp_path / "apart.onnx")
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(InputError, match="a model that does not load"):
        open_model(tmp_path / "apart.onnx")


def test_complex_outputs_are_tensors() -> None:
    assert _value(np.array([1 + 2j], dtype=np.complex64)).dtype is torch.complex64
    assert _value(np.array(["a"])) == ["a"]


@pytest.mark.parametrize("openvino", [False, True])
def test_a_scalar_input_stays_a_scalar(tmp_path: Path, openvino: bool) -> None:
    if openvino:
        pytest.importorskip("openvino")
    given: dict[str, Any] = {"x": (onnx.TensorProto.FLOAT, ["n", 3]), "k": (onnx.TensorProto.INT64, [])}
    nodes = [(("Gather", ["x", "k"], ["y"]), {"axis": 1})]
    file = written(tmp_path / "m.onnx", nodes, given, {"y": (onnx.TensorProto.FLOAT, None)})
    output = load_graph(file, ["x", "k"], openvino=openvino)(torch.arange(6.0).reshape(2, 3), torch.tensor(1))
    assert output.tolist() == [1.0, 4.0]


@pytest.mark.parametrize("kind", ["string", "bfloat16"])
def test_inputs_that_are_no_numbers_here(tmp_path: Path, kind: str) -> None:
    given = (getattr(onnx.TensorProto, kind.upper()), ["batch"])
    file = written(tmp_path / "m.onnx", [(("Identity", ["x"], ["same"]), {})], {"x": given}, {"same": given})
    with pytest.raises(InputError, match=rf"input 'x' of type tensor\({kind}\); expected .*; a Cast inside"):
        open_model(file)


def test_a_table_is_seen_through_a_conversion_only(build: Build, tmp_path: Path) -> None:
    assert looked_up_rows(build()) == {"tokens": ROWS}
    (tmp_path / "none.onnx").write_bytes(b"\x08\x08\x3a\x00")
    assert looked_up_rows(tmp_path / "none.onnx") == {}
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x08\x3a\x05\x0a")
    assert looked_up_rows(tmp_path / "broken.onnx") == {}


def test_the_smallest_table_limits_an_index(tmp_path: Path) -> None:
    float32, int64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    sizes = {"small": (9, 4), "large": (ROWS, 4), "wide": (4, 30)}
    file = written(
        tmp_path / "m.onnx",
        [
            (("Gather", ["small", "ids"], ["a"]), {}),
            (("Gather", ["large", "ids"], ["b"]), {"axis": 0}),
            (("Gather", ["wide", "columns"], ["c"]), {"axis": 1}),
        ],
        {"ids": (int64, ["batch"]), "columns": (int64, ["batch"])},
        dict.fromkeys("abc", (float32, None)),
        [onnx.helper.make_tensor(name, float32, size, [0.0] * (size[0] * size[1])) for name, size in sizes.items()],
    )
    assert looked_up_rows(file) == {"ids": 9}


@pytest.mark.usefixtures("quick_loads")
def test_openvino_runs_the_file_itself(build: Build, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    adapter = load_adapter(build().parent, "model.onnx")
    model = adapter.load("cpu")
    own = Candidate(backend="ONNX Runtime", model=model)
    found = {one.backend: one for one in candidates(adapter, own, [], tmp_path)}
    assert not found["OpenVINO"].missing and found["OpenVINO"].convert_s is None
    assert found["torch.export"].missing.startswith("an ONNX file cannot be converted to torch")
    batch = adapter.collate([adapter.prepare(request_of(str(k), length=length)) for k, length in enumerate((3, 9))])
    first = found["OpenVINO"].model(*batch)
    assert torch.allclose(first, model(*batch), atol=1e-5)
    kept = first.clone()
    found["OpenVINO"].model(*(tensor[:1] for tensor in batch))
    assert torch.equal(first, kept), "a later answer does not overwrite an earlier one"


def test_outputs_are_called_as_the_file_calls_them(build: Build) -> None:
    file = build()
    assert open_model(file).outputs == ("mean",)
    (file.parent / "workload.toml").write_text(
        '[workload]\nname = "w"\nmodel = "model.onnx"\ntraffic = "t.jsonl"\n[outputs]\nmeen = { kind = "vectors" }\n'
    )
    message = r"workload.toml:6: found output 'meen'; expected one of model.onnx's: mean; did you mean 'mean'"
    with pytest.raises(InputError, match=message):
        load_adapter(file.parent, file.name)
