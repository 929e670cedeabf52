"""Fakes of torch-tensorrt and TensorRT that refuse, partition, round and run like the real ones, on the CPU.

Written after the sources of torch-tensorrt 2.11 and 2.13 and the documentation of TensorRT 10 and 11: shapes come
from the exported program and not from ``inputs``; unknown options are swallowed; engines are kept only where weights
may be given again; a saved program is inlined around an operator that runs an engine; TensorRT returns ``None`` or
false and logs the reason.
"""

from __future__ import annotations

import copy
import ctypes
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.fx.passes.split_module import split_module

from latfix.runners.model_files.formats import engine_file as engine_files
from latfix.runners.service import load as model

TRACKER = "torch_tensorrt.dynamo._DryRunTracker"


def _extent(size: Any) -> tuple[int, int, int]:
    """A dimension as the compiler sees it in the program's placeholders."""
    if isinstance(size, int):
        return size, size, size
    node = size.node
    values = node.shape_env.var_to_range[node.expr]
    least = int(values.lower)
    return 1 if least == 2 else least, int(node.shape_env.backed_var_to_val[node.expr]), int(values.upper)


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


class FakeEngine(torch.nn.Module):
    """An engine: refuses shapes outside its profile, and fails if two threads run it at once."""

    def __init__(self, part: torch.nn.Module, low: torch.dtype | None, wrong: float) -> None:
        super().__init__()
        self.part, self.low, self.wrong = part, low, wrong
        self.limits: list[list[tuple[int, int, int]]] = []
        self._busy = threading.Lock()

    def forward(self, *tensors: Any) -> Any:
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("two threads in one execution context")
        try:
            time.sleep(0.001)  # long enough for another thread to enter
            for tensor, limits in zip(tensors, self.limits, strict=True):
                for size, (least, _, most) in zip(getattr(tensor, "shape", ()), limits, strict=False):
                    if not least <= size <= most:
                        raise RuntimeError(f"[Error] shape {tuple(tensor.shape)} is outside of the profile")
            # Casts are at the borders of the low-precision part: all inputs are cast, and the last output.
            found = self.part(*(_wide(tensor) for tensor in tensors) if self.low is not None else tensors)
            return found if self.low is None and not self.wrong else self._changed(found)
        finally:
            self._busy.release()

    def twin(self) -> FakeEngine:
        """The same engine, read from a file, with its own execution context."""
        twin = FakeEngine(self.part, self.low, self.wrong)
        twin.limits = self.limits
        return twin

    def _changed(self, found: Any) -> Any:
        if isinstance(found, tuple | list):
            return type(found)(self._changed(one) for one in found)
        if not isinstance(found, torch.Tensor) or not found.is_floating_point():
            return found
        return (found + self.wrong) if self.low is None else found.to(self.low)


class FakeInput:
    """``torch_tensorrt.Input``: three shapes or one."""

    def __init__(self, **given: Any) -> None:
        three = {"min_shape", "opt_shape", "max_shape"}
        if not (three <= set(given) or "shape" in given) or (three & set(given) and "shape" in given):
            raise ValueError("Missing required arguments for class Input")
        self.given = given


class FakeTorchTensorRt:
    """The package and its calls.

    :ivar stays: operators without a converter, by a part of their name.
    :ivar wrong: added to what engines answer.
    :ivar refittable: whether engines can be built whose weights are given again.
    :ivar unsaved: what saving a program raises.
    :ivar options: the compiler's options, by call.
    :ivar files: programs by the content of their files.
    """

    def __init__(self) -> None:
        self.stays: tuple[str, ...] = ("cumsum",)
        self.wrong = 0.0
        self.refittable = True
        self.unsaved: Exception | None = None
        self.options: list[dict[str, Any]] = []
        self.inputs: list[Any] = []
        self.built = self.reused = self.loaded = 0
        self.files: dict[str, Callable[[], Any]] = {}
        self.module = ModuleType("torch_tensorrt")
        self.module.__spec__ = ModuleSpec("torch_tensorrt", None)
        self.module.__dict__.update(
            __version__="2.13.0",
            Input=FakeInput,
            dynamo=SimpleNamespace(compile=self.compile),
            save=self.save,
            load=self.load,
        )

    def compile(
        self,
        exported_program: Any,
        inputs: Any = None,
        *,
        device: Any = None,
        disable_tf32: bool = False,
        immutable_weights: bool = True,
        refit_identical_engine_weights: bool = False,
        cache_built_engines: bool = False,
        reuse_cached_engines: bool = False,
        engine_cache_dir: str = "/nowhere",
        enable_autocast: bool = False,
        autocast_low_precision_type: Any = None,
        **kwargs: Any,
    ) -> Any:
        print("WARNING: a line of the compiler's own")
        self.options.append({k: v for k, v in locals().items() if k not in ("self", "exported_program", "inputs")})
        self.inputs.append(inputs)
        assert isinstance(device, torch.device), kwargs
        if immutable_weights and refit_identical_engine_weights:
            raise ValueError("`immutable_weights` must be False when `refit_identical_engine_weights` is True.")
        if not immutable_weights and not self.refittable:
            raise RuntimeError("layer is not refittable")
        low = autocast_low_precision_type if enable_autocast else None
        graph = _divided(exported_program, self._takes, low, self.wrong)
        if graph is None:
            return exported_program.module()
        for name, engine in graph.named_children():
            if isinstance(engine, FakeEngine) and cache_built_engines and not immutable_weights:
                self._keep(Path(engine_cache_dir) / name, reuse=reuse_cached_engines)
            elif isinstance(engine, FakeEngine):
                self.built += 1
        _tell(graph)
        return graph

    def _takes(self, node: torch.fx.Node) -> bool:
        return not any(name in str(node.target) for name in self.stays)

    def _keep(self, folder: Path, *, reuse: bool) -> None:
        blob = folder / "blob.bin"
        if reuse and blob.exists():
            if blob.read_bytes() != b"engine":
                raise EOFError("Ran out of input")  # it unpickles the file
            self.reused += 1
            return
        self.built += 1
        folder.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(b"engine")

    def save(
        self, module: Any, file_path: str = "", *, output_format: str = "exported_program", retrace: bool = True
    ) -> None:
        assert output_format == "exported_program"
        if retrace:
            raise ValueError("retrace is True, however no inputs specs were provided")
        if self.unsaved is not None:
            raise self.unsaved
        token = f"program {len(self.files)}"
        self.files[token] = lambda: _inlined(module)
        Path(file_path).write_text(token, encoding="utf-8")

    def load(self, file_path: str = "") -> Any:
        token = Path(file_path).read_bytes().decode("utf-8", "replace")
        if token not in self.files:
            print("Traceback …", file=sys.stderr)
            raise ValueError(
                f"The file {file_path} doesn't correspond to a valid Torchscript module or ExportedProgram."
            )
        self.loaded += 1
        return SimpleNamespace(module=self.files[token])


def _divided(program: Any, takes: Callable[[Any], bool], low: Any, wrong: float) -> Any:
    """The program with each run of operators as a submodule: those for an engine and those that stay."""
    whole = program.module()
    for node in list(whole.graph.nodes):
        if node.op == "call_module":  # the guards, which lowering removes
            whole.graph.erase_node(node)
    whole.recompile()
    kinds: dict[str, int] = {}
    last: bool | None = None
    part = -1
    for node in whole.graph.nodes:
        if node.op != "call_function":
            continue
        taken = takes(node)
        part, last = part + (taken != last), taken
        kinds[node.name] = part if taken else -part - 1
    if all(kind < 0 for kind in kinds.values()):
        return None
    numbers = {name: kind if kind >= 0 else -kind - 1 for name, kind in kinds.items()}
    inside = {kind for kind in kinds.values() if kind >= 0}
    graph = split_module(whole, whole, lambda node: numbers.get(node.name, 0), keep_original_order=True)
    for node in graph.graph.nodes:
        if node.op != "call_module":
            continue
        number = int(str(node.target).rpartition("_")[2])
        found = getattr(graph, str(node.target))
        graph.delete_submodule(str(node.target))
        name = f"_run_on_{'acc' if number in inside else 'gpu'}_{number}"
        if number in inside:
            engine = FakeEngine(found, low, wrong)
            engine.limits = [
                [_extent(size) for size in getattr(arg.meta.get("val"), "shape", ())] for arg in node.args
            ]
            found = engine
        graph.add_module(name, found)
        node.target = name
    graph.recompile()
    return graph


def _tell(graph: Any) -> None:
    """Writes the partitioner's log."""
    lines = []
    for name, part in graph.named_children():
        if isinstance(part, FakeEngine):
            count = sum(node.op == "call_function" for node in cast(Any, part.part).graph.nodes)
            lines += [f"    TRT Engine #1 - Submodule name: {name}", f"     Number of Operators in Engine: {count}"]
    logging.getLogger(TRACKER).debug("\n".join(lines))


def _inlined(graph: Any) -> Any:
    """A saved program: each engine is a call of the operator that runs one."""
    made = copy.deepcopy(graph.graph)
    root = torch.nn.Module()
    for name, part in graph.named_children():
        root.add_module(name, part)
    for name, value in (*graph.named_parameters(recurse=False), *graph.named_buffers(recurse=False)):
        root.register_buffer(name, value)
    for node in list(made.nodes):
        if node.op != "call_module" or "_run_on_acc" not in str(node.target):
            continue
        engine = getattr(graph, str(node.target)).twin()

        def execute_engine(*tensors: Any, engine: Any = engine) -> Any:
            return engine(*tensors)

        with made.inserting_before(node):
            call = made.call_function(execute_engine, node.args)
        node.replace_all_uses_with(call)
        made.erase_node(node)
    for name, child in graph.named_children():
        if not hasattr(root, name):
            root.add_module(name, child)
    for node in made.nodes:
        if node.op == "get_attr" and not hasattr(root, str(node.target).split(".")[0]):
            holder = str(node.target).split(".")[0]
            setattr(root, holder, getattr(graph, holder))
    return torch.fx.GraphModule(root, made)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> FakeTorchTensorRt:
    """torch-tensorrt on this test's CPU."""
    fake = FakeTorchTensorRt()
    other = ModuleType("tensorrt")
    other.__spec__ = ModuleSpec("tensorrt", None)
    other.__dict__["__version__"] = "11.0.0"
    monkeypatch.setitem(sys.modules, "torch_tensorrt", fake.module)
    monkeypatch.setitem(sys.modules, "tensorrt", other)
    monkeypatch.setitem(model.BACKEND_DEVICES, "tensorrt", "cpu")
    return fake


_NUMPY = {"FLOAT": torch.float32, "INT64": torch.int64}


class FakeContext:
    """An execution context: returns false for a shape outside its profile, and reads memory by address."""

    def __init__(self, engine: FakeCudaEngine) -> None:
        self._engine = engine
        self.active_optimization_profile = 0
        self.thread = threading.get_ident()
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._at: dict[str, int] = {}

    def set_optimization_profile_async(self, number: int, stream: int) -> bool:
        assert isinstance(stream, int)
        self.active_optimization_profile = number
        self._shapes.clear()
        return number < self._engine.num_optimization_profiles

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        profile = self._engine.document["profiles"][self.active_optimization_profile]
        if name in profile and not all(
            a <= size <= b for a, size, b in zip(profile[name][0], shape, profile[name][2], strict=True)
        ):
            self._engine.logger.log(FakeTensorRt.ILogger.ERROR, f"IExecutionContext::setInputShape: {name} {shape}")
            return False
        self._shapes[name] = shape
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._at[name] = address
        return True

    def infer_shapes(self) -> list[str]:
        return [name for name in self._engine.names("inputs") if name not in self._shapes]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        if self._engine.document.get("by_value"):
            return (-1,)
        shape = self._shapes[self._engine.names("inputs")[0]]
        return shape[:1] if name == "total" else shape

    def execute_async_v3(self, stream: int) -> bool:
        assert isinstance(stream, int) and threading.get_ident() == self.thread, "a context of another thread"
        if self._engine.document.get("fails"):
            self._engine.logger.log(FakeTensorRt.ILogger.ERROR, "Error Code 1: Cuda Runtime (out of memory)")
            return False
        given = self._engine.document["inputs"][0]
        x = self._memory(given["name"], _NUMPY[given["dtype"]])
        y = x.to(torch.float32) * 2 + 1
        for name in self._engine.names("outputs"):
            self._memory(name, torch.float32).copy_(y.flatten(1).sum(1) if name == "total" else y)
        return True

    def _memory(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        shape = self._shapes[name] if name in self._shapes else self.get_tensor_shape(name)
        count = int(torch.tensor(shape).prod())
        raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(self._at[name])
        return torch.frombuffer(raw, dtype=dtype, count=count).reshape(shape)


class FakeCudaEngine:
    """An engine described by JSON: returns twice the first input plus one, and the sum of that."""

    def __init__(self, document: dict[str, Any], logger: Any) -> None:
        self.document, self.logger = document, logger
        self.num_io_tensors = len(document["inputs"]) + len(document["outputs"])
        self.num_optimization_profiles = len(document["profiles"])
        self.contexts: list[FakeContext] = []

    def names(self, kind: str) -> list[str]:
        return [one["name"] for one in self.document[kind]]

    def _one(self, name: str) -> dict[str, Any]:
        every: list[dict[str, Any]] = [*self.document["inputs"], *self.document["outputs"]]
        return next(one for one in every if one["name"] == name)

    def get_tensor_name(self, index: int) -> str:
        return [*self.names("inputs"), *self.names("outputs")][index]

    def get_tensor_mode(self, name: str) -> str:
        return "INPUT" if name in self.names("inputs") else "OUTPUT"

    def get_tensor_location(self, name: str) -> str:
        return str(self._one(name).get("location", "DEVICE"))

    def get_tensor_dtype(self, name: str) -> str:
        return str(self._one(name)["dtype"])

    def get_tensor_shape(self, name: str) -> Sequence[int]:
        return list(self._one(name)["shape"])

    def get_tensor_profile_shape(self, name: str, number: int) -> list[Any]:
        return list(self.document["profiles"][number][name])

    def create_execution_context(self) -> FakeContext | None:
        if self.document.get("memory") == 0:
            return None
        self.contexts.append(FakeContext(self))
        return self.contexts[-1]


class FakeTensorRt:
    """The package ``tensorrt``."""

    __version__ = "10.15.1"
    __spec__ = ModuleSpec("tensorrt", None)
    TensorIOMode = SimpleNamespace(INPUT="INPUT", OUTPUT="OUTPUT")
    TensorLocation = SimpleNamespace(HOST="HOST", DEVICE="DEVICE")
    FLOAT, INT64, HALF, FP8 = "FLOAT", "INT64", "HALF", "FP8"

    class ILogger:
        """The receiver of errors."""

        INTERNAL_ERROR, ERROR, WARNING = 0, 1, 2

        def log(self, severity: int, message: str) -> None:
            raise NotImplementedError('Tried to call pure virtual function "ILogger::log"')

    def __init__(self) -> None:
        self.engines: list[FakeCudaEngine] = []

    def init_libnvinfer_plugins(self, logger: Any, namespace: str) -> bool:
        return isinstance(logger, self.ILogger) and namespace == ""

    def Runtime(self, logger: Any) -> Any:
        return SimpleNamespace(deserialize_cuda_engine=lambda data: self._read(data, logger))

    def _read(self, data: bytes, logger: Any) -> FakeCudaEngine | None:
        try:
            document = json.loads(data.removeprefix(b"ftrt"))
        except ValueError:
            logger.log(self.ILogger.WARNING, "a warning that is not the reason")
            logger.log(self.ILogger.ERROR, "deserializeCudaEngine: Error Code 1:\nversion tag does not match")
            return None
        self.engines.append(FakeCudaEngine(document, logger))
        return self.engines[-1]


@pytest.fixture
def engine_package(monkeypatch: pytest.MonkeyPatch) -> FakeTensorRt:
    """TensorRT with a driver, and this test's CPU as the GPU."""
    fake = FakeTensorRt()
    monkeypatch.setitem(sys.modules, "tensorrt", fake)
    monkeypatch.setattr("latfix.config.tensorrt_requirements.driver_missing", lambda: "")
    monkeypatch.setattr(engine_files, "first_device", lambda _: "cpu")
    monkeypatch.setattr(engine_files, "DEVICE_KIND", "cpu")
    return fake


WriteEngine = Callable[..., Path]


@pytest.fixture
def write_engine(tmp_path: Path) -> WriteEngine:
    """Writes an engine file; by default for up to 4 requests of 1 to 6 numbers."""

    def write(**more: Any) -> Path:
        document = {
            "inputs": [{"name": "x", "dtype": "FLOAT", "shape": [-1, -1]}],
            "outputs": [
                {"name": "y", "dtype": "FLOAT", "shape": [-1, -1]},
                {"name": "total", "dtype": "FLOAT", "shape": [-1]},
            ],
            "profiles": [{"x": [[1, 1], [4, 4], [4, 6]]}],
            **more,
        }
        file = tmp_path / "model.engine"
        file.write_bytes(b"ftrt" + json.dumps(document).encode())
        return file

    return write
