"""Fixes that cannot apply to what a model is made of, as a loaded service sees it, are not begun."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.runners.fixes import FIXES
from latfix.runners.service.loaded_service import Service
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic
from tests.conftest import write_workload
from tests.runners.engine.served import loaded_service
from tests.runners.fixes.conftest import make_context, make_record, verified
from tests.runners.model_files.conftest import written

SESSION = """
import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper
from latfix import Workload

def session():
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

SHARED = session()

class Runtime:
    def __init__(self):
        self.inner = session()

class Held(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.runtime = {"cpu": Runtime()}

    def forward(self, x):
        return torch.from_numpy(self.runtime["cpu"].inner.run(None, {"x": x.numpy()})[0])

class Named(torch.nn.Module):
    def forward(self, x):
        return torch.from_numpy(SHARED.run(None, {"x": x.numpy()})[0])

def closed(own):
    class Closed(torch.nn.Module):
        def forward(self, x):
            return torch.from_numpy(own.run(None, {"x": x.numpy()})[0])
    return Closed()

class Small(Workload):
    def load(self, device):
        return MODEL

    def prepare(self, request):
        return torch.full((4,), float(request.features["value"]))
"""
TORCH = """
import warnings
import torch
from latfix import Workload

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3)
        self.out = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.out(torch.relu(self.conv(x)).mean((2, 3)))

def exported():
    batch = torch.export.Dim("batch")
    return torch.export.export(Net().eval(), (torch.ones(2, 1, 5, 5),), dynamic_shapes=({0: batch},)).module()

def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(Net().eval())

def quantized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(Net().eval(), {torch.nn.Linear})

class Fixed(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.training = False

    def forward(self, x):
        return self.inner(x)

    def train(self, mode=True):
        return self

class Small(Workload):
    def load(self, device):
        return MODEL

    def prepare(self, request):
        return torch.full((1, 5, 5), float(request.features["value"]))
"""

PLAIN = """
import numpy as np
import torch
from latfix import Workload

class Small(Workload):
    def load(self, device):
        return MODEL

    def prepare(self, request):
        return np.full(4, request.features["value"], dtype=np.float32)
"""

OF_TORCH = ("quantize.", "fuse.")


def traffic() -> Traffic:
    return Traffic.plain(np.arange(4) * 1_000_000, features={"value": np.arange(4)})


def loaded(folder: Path, **values: Any) -> Service:
    return loaded_service(folder, "adapter:Small", warm=traffic(), **values)


def obstacles(facts: Mapping[str, Any]) -> dict[str, str]:
    """Why fixes of the model do not apply, by a service's own facts."""
    now = make_context(make_record(model=facts))
    return {fix.id: fix.obstacle(now) for fix in FIXES if fix.id.startswith(OF_TORCH)}


@pytest.mark.parametrize("model", ["Held()", "Named()", "closed(session())"])
def test_no_fix_of_torch_applies_to_an_adapter_over_a_session(tmp_path: Path, model: str) -> None:
    for package in ("onnx", "onnxruntime"):
        pytest.importorskip(package)
    facts = loaded(write_workload(tmp_path / "w", adapter=SESSION.replace("MODEL", model))).facts(traffic())
    assert facts["made_of"] == {
        "kind": "modules",
        "parameters": 0,
        "runtime": "ONNX Runtime",
        "file": "",
        "largest_batch": 0,
    }
    found = obstacles(facts)
    assert all(found.values()), found
    for fix in ("quantize.bf16", "quantize.int8_weight_only", "fuse.compile", "fuse.onnxruntime", "fuse.openvino"):
        assert found[fix] == "the model has no torch parameters: its operators run in ONNX Runtime"


def test_no_fix_of_torch_applies_to_a_function_of_arrays(tmp_path: Path) -> None:
    facts = loaded(write_workload(tmp_path / "w", adapter=PLAIN.replace("MODEL", "lambda x: x @ np.ones(4)"))).facts(
        traffic()
    )
    found = obstacles(facts)
    assert all(found.values()), found
    for fix in ("fuse.attention", "fuse.compile", "fuse.openvino", "fuse.onnxruntime"):
        assert found[fix] == "the model is no torch module: no operator of torch ran in a forward pass"


def test_a_function_of_tensors_runs_on_torch(tmp_path: Path) -> None:
    adapter = TORCH.replace("MODEL", "lambda x: torch.relu(x).mean((1, 2, 3))")
    facts = loaded(write_workload(tmp_path / "w", adapter=adapter)).facts(traffic())
    assert facts["made_of"]["parameters"] == 0 and not obstacles(facts)["fuse.compile"]


def test_int8_of_layers_that_are_not_in_float32_is_not_begun(tmp_path: Path) -> None:
    """The kernel of the CPU takes float32 only, and failed in the trial."""
    adapter = TORCH.replace("return MODEL", "return Net().bfloat16()").replace(
        'request.features["value"]))', 'request.features["value"]), dtype=torch.bfloat16)'
    )
    facts = loaded(write_workload(tmp_path / "w", adapter=adapter)).facts(traffic())
    found = obstacles(facts)["quantize.int8_dynamic"]
    assert found == "its kernel on the CPU takes float32, and the linear layers are in bfloat16"


def test_layers_that_are_quantized_already_are_neither_cast_nor_exported_nor_compiled(tmp_path: Path) -> None:
    facts = loaded(write_workload(tmp_path / "w", adapter=TORCH.replace("MODEL", "quantized()"))).facts(traffic())
    found = obstacles(facts)
    for fix in ("quantize.bf16", "quantize.int8_weight_only"):
        assert found[fix] == "its quantized layers, 1 of which ran, take only float32"
    for fix in ("fuse.openvino", "fuse.onnxruntime"):
        assert found[fix] == "its quantized layers, 1 of which ran, cannot be exported"
    assert found["fuse.compile"] == "its quantized layers, 1 of which ran, cannot be compiled"


def test_only_openvino_applies_to_an_onnx_file(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    given = (onnx.TensorProto.FLOAT, ["batch", 4])
    written(tmp_path / "m.onnx", [(("Relu", ["x"], ["y"]), {})], {"x": given}, {"y": given})
    service = Service(tmp_path, "m.onnx", RunnerSettings(device="cpu"))
    service.load()
    facts = service.facts(traffic())
    made = {"kind": "modules", "parameters": 0, "runtime": "ONNX Runtime", "file": "m.onnx", "largest_batch": 0}
    assert facts["made_of"] == made
    found = obstacles(facts)
    assert [fix for fix, reason in found.items() if not reason] == ["fuse.openvino"]
    assert found["fuse.onnxruntime"] == "ONNX Runtime runs the file already"


def test_fixes_of_single_layers_do_not_apply_to_torchscript(tmp_path: Path) -> None:
    folder = write_workload(tmp_path / "w", adapter=TORCH.replace("MODEL", "Fixed(scripted())"))
    facts = loaded(folder).facts(traffic())
    assert facts["made_of"]["kind"] == "TorchScript" and facts["made_of"]["parameters"] == 4 * 9 + 4 + 8 + 2
    assert facts["kernels"]["aten::conv2d"] == 1, "its kernels are still seen"
    found = obstacles(facts)
    assert [fix for fix, reason in found.items() if not reason] == ["quantize.bf16"]
    assert "it has no linear layers that could be replaced" in found["quantize.int8_dynamic"]
    assert found["fuse.compile"] == "the model is TorchScript: the compiler does not see into it"
    assert "give the model that it was made from" in found["fuse.openvino"]
    assert found["fuse.attention"] == "no scaled_dot_product_attention ran in a forward pass"


def test_an_exported_program_can_be_compiled_and_converted(tmp_path: Path) -> None:
    folder = write_workload(tmp_path / "w", adapter=TORCH.replace("MODEL", "Fixed(exported())"))
    facts = loaded(folder).facts(traffic())
    assert facts["made_of"]["kind"] == "torch.export"
    found = obstacles(facts)
    begun = [fix for fix, reason in found.items() if not reason]
    assert begun == ["quantize.bf16", "fuse.compile", "fuse.openvino", "fuse.onnxruntime"]
    assert "could not be verified" in found["fuse.channels_last"]


@pytest.mark.parametrize("model", ["Fixed(scripted())", "Fixed(exported())"])
def test_bfloat16_of_a_graph_is_verified_by_its_answers(tmp_path: Path, model: str) -> None:
    folder = write_workload(tmp_path / "w", adapter=TORCH.replace("MODEL", model))
    for precision, effective in (("bf16", True), ("default", False)):
        evidence = loaded(folder, precision=precision).evidence(traffic())
        found = verified("quantize.bf16", make_record(settings={"precision": precision}), **evidence)
        assert found.effective is effective, found.evidence
        assert found.evidence.startswith(f"{int(effective)} of 1 outputs of the model")


def test_modules_can_be_changed_in_every_way(tmp_path: Path) -> None:
    facts = loaded(write_workload(tmp_path / "w", adapter=TORCH.replace("MODEL", "Net()"))).facts(traffic())
    assert facts["made_of"] == {
        "kind": "modules",
        "parameters": 4 * 9 + 4 + 8 + 2,
        "runtime": "",
        "file": "",
        "largest_batch": 0,
    }
    del facts["linear_ms"], facts["few_row_products"]  # whether a precision pays is measured, here on two numbers
    begun = {fix for fix, reason in obstacles(facts).items() if not reason}
    assert begun >= {"quantize.bf16", "quantize.int8_dynamic", "fuse.compile", "fuse.openvino", "fuse.channels_last"}
