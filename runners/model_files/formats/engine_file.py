"""``.engine``: a TensorRT engine, run on the GPU that it was built for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from latfix.config.tensorrt_requirements import check_engine_runs
from latfix.errors import InputError
from latfix.runners.backends.requirements import tensorrt
from latfix.runners.model_files.file_module import SealedModule, alone_or_tuple
from latfix.runners.model_files.formats.tensorrt_engine import Engine
from latfix.runners.model_files.opened_model import Axis, OpenedModel, TensorInput

BACKEND = "TensorRT"
#: The kind of device that an engine runs on.
DEVICE_KIND = "cuda"


def open_file(file: Path) -> OpenedModel:
    """Read an engine on the first GPU.

    :raises InputError: the package or the driver is missing, there is no GPU, or TensorRT rejects the file.
    :raises RunnerError: the package does not import.
    """
    check_engine_runs(file)
    package = tensorrt()
    engine = Engine(package, file, first_device(file))
    return OpenedModel(
        file=file,
        backend=BACKEND,
        inputs=tuple(_input(engine, k) for k in range(len(engine.inputs))),
        load=lambda device: _module(engine, package, device),
        outputs=tuple(output.name for output in engine.outputs),
    )


def first_device(file: Path) -> str:
    """The device on which an engine is opened to read its inputs.

    :raises InputError: torch finds no device.
    """
    if not torch.cuda.is_available():
        raise InputError(
            f"{file}: found a TensorRT engine, but torch {torch.__version__} finds no CUDA device; install torch for "
            "CUDA, or use the .onnx or .pt2 file that the engine was built from"
        )
    return "cuda:0"


def _input(engine: Engine, place: int) -> TensorInput:
    given = engine.inputs[place]
    axes = tuple(_axis(engine, place, k, size) for k, size in enumerate(given.shape))
    return TensorInput(name=given.name, dtype=str(given.dtype).removeprefix("torch."), axes=axes)


def _axis(engine: Engine, place: int, dimension: int, size: int) -> Axis:
    if size >= 0:
        return Axis(size=size)
    return Axis(
        symbol=f"{engine.inputs[place].name}[{dimension}]",
        least=min(profile.least[place][dimension] for profile in engine.profiles),
        most=max(profile.most[place][dimension] for profile in engine.profiles),
    )


def _module(engine: Engine, package: Any, device: str) -> torch.nn.Module:
    if device.partition(":")[0] != DEVICE_KIND:
        raise InputError(
            f'{engine.file}: a TensorRT engine runs on a GPU; found device {device}; use device = "cuda"'
        )
    # An engine is in the memory of the device on which it was opened.
    return EngineModule(engine if device == engine.device else Engine(package, engine.file, device))


class EngineModule(SealedModule):
    """An engine that takes its tensors in order; each thread has its own execution context."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.file.name, engine.device, "build another engine")
        self._engine = engine

    def forward(self, *tensors: torch.Tensor) -> Any:
        return alone_or_tuple(self._engine.run(tensors))
