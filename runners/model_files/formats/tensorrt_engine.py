"""A TensorRT engine through the package ``tensorrt``: its inputs, and runs on the current CUDA stream."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from latfix.errors import InputError, RunnerError, input_error
from latfix.runners.calls.model_call import USER_ERRORS, describe

Shape = tuple[int, ...]

#: torch's types by TensorRT's names.
_DTYPES = {
    "FLOAT": torch.float32,
    "HALF": torch.float16,
    "BF16": torch.bfloat16,
    "INT64": torch.int64,
    "INT32": torch.int32,
    "INT8": torch.int8,
    "UINT8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTensor:
    """An input or output of an engine.

    :param shape: -1 where a dimension varies.
    """

    name: str
    dtype: torch.dtype
    shape: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """The smallest and largest shape of each input in one optimization profile."""

    least: tuple[Shape, ...]
    most: tuple[Shape, ...]

    def holds(self, shapes: Sequence[Shape]) -> bool:
        """True if inputs of these shapes fit the profile."""
        return all(
            len(shape) == len(least) and all(a <= size <= b for a, size, b in zip(least, shape, most, strict=True))
            for shape, least, most in zip(shapes, self.least, self.most, strict=True)
        )

    def words(self, names: Sequence[str]) -> str:
        """The profile as text: ``tokens (1..8, 4..512)`` for each input."""
        return ", ".join(
            f"{name} ({', '.join(str(b) if a == b else f'{a}..{b}' for a, b in zip(least, most, strict=True))})"
            for name, least, most in zip(names, self.least, self.most, strict=True)
        )


class Engine:
    """An engine file on one device. Any number of threads may run it; each has its own execution context.

    :param device: a torch device string.
    :raises InputError: TensorRT rejects the file, or an input is of an unsupported kind.
    """

    def __init__(self, package: ModuleType, file: Path, device: str) -> None:
        self.file = file
        self.device = device
        self._package = package
        self._logger = _logger(package)
        with _on(device):
            self._engine = _read(package, self._logger, file)
        names = [self._engine.get_tensor_name(k) for k in range(self._engine.num_io_tensors)]
        modes = {name: self._engine.get_tensor_mode(name) for name in names}
        self.inputs = tuple(self._tensor(name) for name in names if modes[name] == package.TensorIOMode.INPUT)
        self.outputs = tuple(self._tensor(name) for name in names if modes[name] == package.TensorIOMode.OUTPUT)
        if not self.inputs:
            raise InputError(f"{file}: found an engine without inputs; expected at least one tensor")
        self.profiles = tuple(self._profile(k) for k in range(max(self._engine.num_optimization_profiles, 1)))
        self._own = threading.local()

    def _tensor(self, name: str) -> EngineTensor:
        kind = self._engine.get_tensor_dtype(name)
        if self._engine.get_tensor_location(name) == self._package.TensorLocation.HOST:
            found = f"{name!r}, whose values are sizes that TensorRT reads on the host"
            todo = "build the engine so that sizes follow from input shapes"
            raise input_error(self.file, None, found, "tensors on the GPU", todo)
        dtype = next((_DTYPES[word] for word in _DTYPES if kind == getattr(self._package, word, None)), None)
        if dtype is None:
            raise input_error(self.file, None, f"{name!r} of type {kind}", f"one of {', '.join(_DTYPES)}")
        shape = tuple(int(size) for size in self._engine.get_tensor_shape(name))
        return EngineTensor(name=name, dtype=dtype, shape=shape)

    def _profile(self, number: int) -> EngineProfile:
        shapes = []
        for tensor in self.inputs:
            if -1 in tensor.shape:
                least, _, most = self._engine.get_tensor_profile_shape(tensor.name, number)
                shapes.append((tuple(map(int, least)), tuple(map(int, most))))
            else:
                shapes.append((tensor.shape, tensor.shape))
        return EngineProfile(least=tuple(a for a, _ in shapes), most=tuple(b for _, b in shapes))

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The outputs. The run is enqueued on the thread's current stream, like any operator of torch.

        :raises ValueError: an input has a dtype or shape that no profile takes.
        :raises RuntimeError: TensorRT refused.
        """
        number = self._fitting(tensors)
        context, cuda = self._context(), self.device.startswith("cuda")
        stream = int(torch.cuda.current_stream(self.device).cuda_stream) if cuda else 0
        if context.active_optimization_profile != number and not context.set_optimization_profile_async(
            number, stream
        ):
            raise RuntimeError(self._refused(f"to take optimization profile {number}"))
        tensors = [tensor.contiguous() for tensor in tensors]
        for given, tensor in zip(self.inputs, tensors, strict=True):
            if not context.set_input_shape(given.name, tuple(tensor.shape)):
                raise RuntimeError(self._refused(f"{given.name} of {tuple(tensor.shape)}"))
            context.set_tensor_address(given.name, tensor.data_ptr())
        unknown = context.infer_shapes()
        if unknown:
            raise RuntimeError(f"{self.file.name}: the shapes of {', '.join(unknown)} do not follow from the inputs'")
        outputs = [self._output(context, given) for given in self.outputs]
        if not context.execute_async_v3(stream):
            raise RuntimeError(self._refused("to run"))
        return outputs

    def _output(self, context: Any, given: EngineTensor) -> torch.Tensor:
        shape = tuple(int(size) for size in context.get_tensor_shape(given.name))
        if any(size < 0 for size in shape):
            raise RuntimeError(f"{self.file.name}: the size of output {given.name!r} depends on values: {shape}")
        # torch's caching allocator reuses this memory only after the work enqueued on the current stream.
        tensor = torch.empty(shape, dtype=given.dtype, device=self.device)
        context.set_tensor_address(given.name, tensor.data_ptr())
        return tensor

    def _fitting(self, tensors: Sequence[torch.Tensor]) -> int:
        for given, tensor in zip(self.inputs, tensors, strict=True):
            if tensor.dtype != given.dtype:
                raise ValueError(f"{self.file.name}: found {given.name} of {tensor.dtype}; expected {given.dtype}")
        shapes = [tuple(tensor.shape) for tensor in tensors]
        fitting = next((k for k, profile in enumerate(self.profiles) if profile.holds(shapes)), None)
        if fitting is None:
            names = [given.name for given in self.inputs]
            found = ", ".join(f"{name} {shape}" for name, shape in zip(names, shapes, strict=True))
            expected = " or ".join(profile.words(names) for profile in self.profiles)
            raise ValueError(
                f"{self.file.name}: found {found}; expected shapes that the engine was built for: {expected}"
            )
        return fitting

    def _context(self) -> Any:
        context = getattr(self._own, "context", None)
        if context is None:
            with _on(self.device):
                context = self._engine.create_execution_context()
            if context is None:
                raise RuntimeError(self._refused("an execution context; it may need more memory than is free"))
            self._own.context = context
        return context

    def _refused(self, what: str) -> str:
        return f"{self.file.name}: TensorRT refused {what}{self._logger.reason()}"


def _read(package: ModuleType, logger: Any, file: Path) -> Any:
    version = package.__version__
    try:
        package.init_libnvinfer_plugins(logger, "")
        engine = package.Runtime(logger).deserialize_cuda_engine(file.read_bytes())
    except USER_ERRORS as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise RunnerError(f"{file}: TensorRT {version} cannot be started ({describe(error)})") from error
    if engine is None:
        raise input_error(
            file,
            None,
            f"an engine that does not load{logger.reason()}",
            f"one built by TensorRT {version} on a GPU like this one",
            "build the engine again on this machine",
        )
    return engine


def _logger(package: ModuleType) -> Any:
    """A logger for TensorRT that keeps its last error: TensorRT's calls return ``None`` or false without a reason."""

    class Errors(package.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            package.ILogger.__init__(self)
            self._last = ""

        def log(self, severity: Any, message: str) -> None:
            if severity in (package.ILogger.ERROR, package.ILogger.INTERNAL_ERROR):
                self._last = " ".join(str(message).split())[:240]

        def reason(self) -> str:
            last, self._last = self._last, ""
            return f" ({last})" if last else ""

    return Errors()


def _on(device: str) -> Any:
    """A context in which objects are created on ``device``."""
    return torch.cuda.device(device) if device.startswith("cuda") else contextlib.nullcontext()
