"""``.onnx``: a model that ONNX Runtime runs, or OpenVINO on request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from latfix.errors import InputError, LatfixError, RunnerError, input_error
from latfix.runners.backends.onnx_runtimes import OnnxGraph, OnnxRuntimeGraph, OpenVinoGraph, onnxruntime_session
from latfix.runners.backends.requirements import backend_missing, import_package
from latfix.runners.calls.call_counters import Tally
from latfix.runners.calls.model_call import USER_ERRORS, describe
from latfix.runners.model_files.embedding_lookups import looked_up_rows
from latfix.runners.model_files.file_module import SealedModule, alone_or_tuple
from latfix.runners.model_files.opened_model import Axis, OpenedModel, TensorInput

BACKEND = "ONNX Runtime"
#: torch's type names by ONNX Runtime's.
_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int16)": "int16",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}
_NO_NAME = re.compile(r"[\W\d_]*|none|unknown", re.IGNORECASE)


def open_file(file: Path) -> OpenedModel:
    """Read an ONNX model.

    :raises RunnerError: ONNX Runtime is not installed.
    :raises InputError: it rejects the model (a newer opset, a damaged file, missing external weights), or an input is
        no tensor.
    """
    session = session_of(file)
    rows = looked_up_rows(file)
    inputs = tuple(_input(given, file, rows) for given in session.get_inputs())
    if not inputs:
        raise InputError(f"{file}: found a model without inputs; expected at least one tensor")
    return OpenedModel(
        file=file,
        backend=BACKEND,
        inputs=inputs,
        load=lambda device: _module(session, file, device),
        outputs=tuple(output.name for output in session.get_outputs()),
        output_axes={
            output.name: tuple(_axis(size, k, output.name) for k, size in enumerate(output.shape or ()))
            for output in session.get_outputs()
        },
    )


def session_of(file: Path) -> Any:
    """A session on the CPU with torch's current number of threads.

    :raises RunnerError: ONNX Runtime is not installed, or does not import.
    :raises InputError: it rejects the model.
    """
    try:
        return onnxruntime_session(file, torch.get_num_threads())
    except LatfixError:
        raise
    except USER_ERRORS as error:
        version = import_package("onnxruntime", user="ONNX files need").__version__
        found = f"a model that does not load ({describe(error)})"
        todo = "check that the file is complete, or convert the model for this version"
        raise input_error(file, None, found, f"one that ONNX Runtime {version} can load", todo) from error


def _input(given: Any, file: Path, rows: dict[str, int]) -> TensorInput:
    if given.type not in _DTYPES:
        found = f"input {given.name!r} of type {given.type}"
        todo = "give the model such an input; a Cast inside it converts numbers"
        raise input_error(file, None, found, f"one of {', '.join(_DTYPES)}", todo)
    axes = tuple(_axis(size, k, given.name) for k, size in enumerate(given.shape))
    return TensorInput(name=given.name, dtype=_DTYPES[given.type], axes=axes, rows=rows.get(given.name))


def _axis(size: Any, place: int, name: str) -> Axis:
    if isinstance(size, int) and size > 0:
        return Axis(size=size)
    return Axis(symbol=size if isinstance(size, str) and _is_name(size, name) else f"{name}[{place}]")


def _is_name(symbol: str, tensor: str) -> bool:
    """False for an exporter's placeholder: ``?``, ``None``, ``x_dynamic_axes_1`` of ``x``.

    Dimensions with the same placeholder need not be equally long.
    """
    return not (_NO_NAME.fullmatch(symbol) or symbol.startswith(f"{tensor}_dynamic_axes_"))


def _module(session: Any, file: Path, device: str) -> torch.nn.Module:
    if device != "cpu":
        raise RunnerError(f'{file}: ONNX Runtime runs on the CPU only in this version; use device = "cpu"')
    names = [given.name for given in session.get_inputs()]
    return GraphModule(OnnxRuntimeGraph(session, names), file, names)


def load_graph(
    file: Path, inputs: Sequence[str], *, openvino: bool = False, threads: int = 0, half: bool = False
) -> GraphModule:
    """A module that runs an ONNX file on the CPU.

    :param inputs: names of the tensors in order; names that the file lacks are skipped.
    :param openvino: use OpenVINO, not ONNX Runtime.
    :param threads: OpenVINO's threads; by default torch's current number.
    :param half: OpenVINO computes in bfloat16.
    :raises RunnerError: the runtime is not installed.
    """
    if not openvino:
        return GraphModule(OnnxRuntimeGraph(session_of(file), inputs), file, inputs)
    if missing := backend_missing("openvino", exports=False):
        raise RunnerError(missing)
    graph = OpenVinoGraph(file, inputs, threads=threads or torch.get_num_threads(), half=half)
    return GraphModule(graph, file, inputs)


class GraphModule(SealedModule):
    """An ONNX file that takes its tensors in the order of the names in ``inputs``."""

    def __init__(self, graph: OnnxGraph, file: Path, inputs: Sequence[str]) -> None:
        super().__init__(file.name, "cpu", "convert the file")
        self.file, self.inputs = file, tuple(inputs)
        self.runtime = graph
        self._run = graph.run

    def count_in(self, tally: Tally) -> None:
        """Count and time all further runs of the file in ``tally``."""
        self._run = tally.counting(self.runtime.run)

    def forward(self, *tensors: torch.Tensor) -> Any:
        # Not by ascontiguousarray, which makes a vector of a scalar.
        arrays = [np.asarray(tensor.detach().numpy(), order="C") for tensor in tensors]
        return alone_or_tuple([_value(output) for output in self._run(arrays)])


def _value(output: Any) -> Any:
    """An output as a tensor; texts and maps as Python objects."""
    if not isinstance(output, np.ndarray):
        return output
    return torch.from_numpy(output) if output.dtype.kind in "fiubc" else output.tolist()
