"""What an unmodified model consists of: torch modules, a graph of torch operators, or another runtime."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

from latfix.adapter_api import Workload
from latfix.runners.model_files.file_workload import FileWorkload

#: Runtimes by the package of their objects.
_RUNTIMES = {
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "tensorrt": "TensorRT",
    "tensorflow": "TensorFlow",
    "tflite_runtime": "LiteRT",
    "ai_edge_litert": "LiteRT",
    "ctranslate2": "CTranslate2",
    "llama_cpp": "llama.cpp",
    "sklearn": "scikit-learn",
    "xgboost": "XGBoost",
    "lightgbm": "LightGBM",
}
#: How far from a module to look for a runtime (an attribute is one step away), and how many objects to visit.
_STEPS, _OBJECTS = 4, 2000


def makeup(model: Any, adapter: Workload) -> dict[str, Any]:
    """What a model consists of; ``adapter`` loaded it. Runs nothing.

    :returns: ``kind``: torch ``modules`` in Python, or a graph of their operators. ``parameters``: total elements of
        the parameters and buffers that torch holds. ``runtime`` of a model without any; empty if torch or unknown.
        ``file``: name of the model file that is the workload; empty for an adapter. ``largest_batch``: maximum
        requests per call of the file; 0 for any number, and for an adapter.
    """
    parameters = sum(int(tensor.numel()) for tensor in (*model.parameters(), *model.buffers()))
    runtime = "" if parameters else _runtime(model)
    file, largest = "", 0
    if isinstance(adapter, FileWorkload):
        from latfix.runners.model_files.file_module import SealedModule  # it imports torch

        file, largest = adapter.layout.file.name, adapter.layout.largest_batch or 0
        if any(isinstance(module, SealedModule) for module in model.modules()):
            runtime = runtime or adapter.model.backend
    found = {"kind": _kind(model), "parameters": parameters, "runtime": runtime}
    return {**found, "file": file, "largest_batch": largest}


def _kind(model: Any) -> str:
    import torch

    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            return "TorchScript"
        if isinstance(module, torch.fx.GraphModule) and any(
            isinstance(node.target, torch._ops.OpOverload) for node in module.graph.nodes
        ):
            return "torch.export"
    return "modules"


def _runtime(model: Any) -> str:
    """The runtime whose objects the model's modules hold or their ``forward`` refers to."""
    objects = list(model.modules())
    seen = {id(value) for value in objects}
    for _ in range(_STEPS):
        reached = [child for value in objects for child in _held(value)]
        objects = []
        for child in reached:
            if id(child) in seen or len(seen) > _OBJECTS:
                continue
            if name := _RUNTIMES.get(type(child).__module__.partition(".")[0]):
                return name
            seen.add(id(child))
            objects.append(child)
    return ""


def _held(value: Any) -> Iterator[Any]:
    """Objects one step away: attributes, items, and names in a function."""
    import torch

    if isinstance(value, torch.nn.Module):
        yield from vars(value).values()
        if not type(value).__module__.startswith("torch."):
            yield type(value).forward
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args)
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, types.FunctionType):
        yield from (value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__)
        yield from (cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType())
    elif not isinstance(value, type | types.ModuleType | torch.Tensor):
        yield from getattr(value, "__dict__", {}).values()
