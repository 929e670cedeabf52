"""Backends for a workload's model: its own, and those for which it can be converted."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from latfix.adapter_api import Workload
from latfix.errors import LatfixError, RunnerError
from latfix.runners.backend_comparison.cold_load import OPENVINO, first_load_s, load_file
from latfix.runners.backends.onnx_export import Exported, dynamic_of, example_of, export, sizes_of
from latfix.runners.backends.replaced_model import FlatModel, answers_to, export_program
from latfix.runners.backends.requirements import SCRIPTED, backend_missing
from latfix.runners.calls.model_call import USER_ERRORS, describe
from latfix.runners.calls.tensor_tree import flatten, unflatten
from latfix.runners.model_files.file_module import FileModule
from latfix.runners.model_files.file_workload import FileWorkload
from latfix.runners.model_files.formats import onnx as onnx_runtime
from latfix.runners.model_files.formats import pt2 as exported
from latfix.runners.model_files.formats import torchscript

EAGER = "eager torch"
TENSORRT = "TensorRT"
#: Every backend, in the order of the table.
BACKENDS = (EAGER, exported.BACKEND, torchscript.BACKEND, onnx_runtime.BACKEND, OPENVINO, TENSORRT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One backend with the model loaded, or the reason why it cannot serve it.

    :param load_s: duration of the first load in a process in seconds, including the backend's imports.
    :param convert_s: duration of the conversion in seconds; ``None`` if there was none.
    :param missing: why it cannot serve this model here; empty if it can.
    """

    backend: str
    model: Any = None
    load_s: float = 0.0
    convert_s: float | None = None
    missing: str = ""


def own_backend(adapter: Workload) -> str:
    """The backend that runs the unmodified model of the workload."""
    return adapter.model.backend if isinstance(adapter, FileWorkload) else EAGER


def candidates(adapter: Workload, own: Candidate, batches: Sequence[Any], folder: Path) -> list[Candidate]:
    """The model in every backend: its own first, then the others in the order of the table.

    :param own: the workload's unmodified model.
    :param batches: the model's arguments, in several sizes.
    :param folder: folder for converted files.
    """
    converter = Converter(own.model, batches, adapter.folder, folder)
    return [own, *(_candidate(backend, adapter, converter) for backend in BACKENDS if backend != own.backend)]


def _obstacle(adapter: Workload, backend: str) -> str:
    """Why the workload's model cannot run in a backend; empty if it may."""
    own = own_backend(adapter)
    if backend == TENSORRT:
        return "runs on a GPU, but this table compares backends on the CPU; latfix optimize tries fuse.tensorrt"
    if backend == EAGER:
        return "the file holds no Python module"
    if own == onnx_runtime.BACKEND and backend != OPENVINO:
        return "an ONNX file cannot be converted to torch; use the model that it was converted from"
    if own == torchscript.BACKEND and backend != torchscript.BACKEND:
        return SCRIPTED
    return ""


def _candidate(backend: str, adapter: Workload, converter: Converter) -> Candidate:
    obstacle = _obstacle(adapter, backend)
    if obstacle:
        return Candidate(backend=backend, missing=obstacle)
    step = "loading"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations, and constants fixed by tracing: answers are compared
            if isinstance(adapter, FileWorkload) and adapter.model.backend == onnx_runtime.BACKEND:
                file, names, wrap, convert_s = _unmodified(adapter)
            else:
                step = "converting"
                file, names, wrap, convert_s = converter.make(backend)
                step = "loading"
            load_s = first_load_s(file, backend, names, torch.get_num_threads())
            model = wrap(load_file(file, backend, names))
    except LatfixError as error:
        return Candidate(backend=backend, missing=error.message)
    except USER_ERRORS as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return Candidate(backend=backend, missing=f"{step} it raised {describe(error)}")
    return Candidate(backend=backend, model=model, load_s=load_s, convert_s=convert_s)


#: A file for a backend; names of its inputs, in the order of the tensors; what wraps the module that runs the file,
#: so that it takes the arguments of the workload's model; seconds of the conversion, ``None`` for the own file.
_Made = tuple[Path, tuple[str, ...], Callable[[Any], Any], float | None]


def _unmodified(adapter: FileWorkload) -> _Made:
    layout, names = adapter.layout, tuple(given.name for given in adapter.layout.inputs)
    wrap = functools.partial(FileModule, layout=layout, names=adapter.output_names, output_axes=adapter.output_axes)
    return layout.file, names, wrap, None


class Converter:
    """Converts one model to files for the backends.

    :param batches: the model's arguments, in several sizes.
    :param sources: the folder of the code that built the model.
    :param folder: folder for converted files.
    """

    def __init__(self, model: Any, batches: Sequence[Any], sources: Path, folder: Path) -> None:
        self._model = model
        self._batches = batches
        self._sources = sources
        self._folder = folder
        self._onnx: Exported | None = None

    def make(self, backend: str) -> _Made:
        """Convert the model for a backend.

        :raises LatfixError: the backend is not installed, or an exporter failed; with its reason.
        """
        inputs: tuple[str, ...] = ()
        with torch.no_grad():
            outputs = self._outputs
            started = time.perf_counter()
            if backend == exported.BACKEND:
                file, sizes = self._folder / "model.pt2", sizes_of([flatten(batch)[0] for batch in self._batches])
                torch.export.save(export_program(self._model, self._example, dynamic_of(sizes)), file)
            elif backend == torchscript.BACKEND:
                file, (tensors, shape) = self._folder / "model.pt", flatten(self._example)
                traced = torch.jit.trace(  # type: ignore[no-untyped-call]
                    FlatModel(self._model, shape), tuple(tensors), check_trace=False, strict=False
                )
                torch.jit.save(traced, file)
            seconds = time.perf_counter() - started
            if backend not in (exported.BACKEND, torchscript.BACKEND):
                onnx = self._exported_onnx("openvino" if backend == OPENVINO else "onnxruntime")
                file, inputs, seconds = onnx.file, onnx.inputs, onnx.seconds
        return file, inputs, lambda model: Unpacked(model, outputs), seconds

    def _exported_onnx(self, package: str) -> Exported:
        if missing := backend_missing(package):
            raise RunnerError(missing)
        if self._onnx is None:  # both backends read the same file; not cached, so that its export is timed
            self._onnx = export(self._model, self._batches, self._sources, fresh=True)
        return self._onnx

    @functools.cached_property
    def _outputs(self) -> Any:
        return answers_to(self._model, self._batches)[1]

    @functools.cached_property
    def _example(self) -> Any:
        return example_of(self._batches)


class Unpacked(torch.nn.Module):
    """Takes the adapter's inputs and calls a model with flat inputs and outputs.

    :param outputs: the structure of the answers.
    """

    def __init__(self, model: Any, outputs: Any) -> None:
        super().__init__()
        self._model = model
        self._outputs = outputs

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        tensors, _ = flatten(kwargs if kwargs else args)
        output = self._model(*tensors)
        return unflatten(self._outputs, output if isinstance(output, tuple) else (output,))
