"""``.onnx``: a model that ONNX Runtime runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from latfix.errors import InputError, RunnerError, input_error
from latfix.runners.calls.model_call import USER_ERRORS, describe
from latfix.runners.model_files.embedding_lookups import looked_up_rows
from latfix.runners.model_files.opened_model import Axis, OpenedModel, TensorInput

BACKEND = "ONNX Runtime"
_MISSING = "pip install 'latfix[onnx]'"
#: ONNX Runtime's names of types by torch's.
_DTYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int16)": "int16",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}
_ONLY_ERRORS = 3


def open_file(file: Path) -> OpenedModel:
    """Read an ONNX model.

    :raises RunnerError: ONNX Runtime is not installed.
    :raises InputError: it does not take the model (a newer opset, a damaged file, weights that are not beside it),
        or the model takes inputs that are no tensors.
    """
    session = session_of(file)
    rows = looked_up_rows(file)
    inputs = tuple(_input(given, file, rows) for given in session.get_inputs())
    if not inputs:
        raise InputError(f"{file}: found a model without inputs; expected at least one tensor")
    return OpenedModel(file=file, backend=BACKEND, inputs=inputs, load=lambda device: _module(session, file, device))


def runtime() -> Any:
    """The package ``onnxruntime``.

    :raises RunnerError: it is not installed, or does not import.
    """
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise RunnerError(f"ONNX files need the package onnxruntime, which is not installed; {_MISSING}") from error
    except USER_ERRORS as error:
        raise RunnerError(f"the package onnxruntime does not import ({describe(error)}); {_MISSING}") from error
    return onnxruntime


def session_of(file: Path) -> Any:
    """A session on the CPU with as many threads as an operator of torch has now.

    They sleep while there is nothing to do: spinning, they would take the core from whatever runs beside them.
    """
    package = runtime()
    options = package.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.log_severity_level = _ONLY_ERRORS
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return package.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except USER_ERRORS as error:
        found = f"a model that does not load ({describe(error)})"
        expected = f"one that ONNX Runtime {package.__version__} takes"
        raise input_error(
            file, None, found, expected, "check that it is whole, or convert it for this version"
        ) from error


def _input(given: Any, file: Path, rows: dict[str, int]) -> TensorInput:
    if given.type not in _DTYPES:
        found = f"input {given.name!r} of type {given.type}"
        raise input_error(file, None, found, f"one of {', '.join(_DTYPES)}", "put what makes a tensor of it before")
    axes = tuple(_axis(size, k, given.name) for k, size in enumerate(given.shape))
    return TensorInput(name=given.name, dtype=_DTYPES[given.type], axes=axes, rows=rows.get(given.name))


def _axis(size: Any, place: int, name: str) -> Axis:
    if isinstance(size, int) and size > 0:
        return Axis(size=size)
    return Axis(symbol=size if isinstance(size, str) and size else f"{name}[{place}]")


def _module(session: Any, file: Path, device: str) -> torch.nn.Module:
    if device != "cpu":
        raise RunnerError(f'{file}: ONNX Runtime runs on the CPU only in this version; use device = "cpu"')
    return SessionModule(session, file.name, [given.name for given in session.get_inputs()])


class SessionModule(torch.nn.Module):
    """A session that takes its tensors in order.

    It has no parameters that torch could see: what changes those cannot apply, and is refused.

    :param inputs: names of the tensors; those that the model does not have are left out.
    """

    def __init__(self, session: Any, name: str, inputs: Sequence[str]) -> None:
        super().__init__()
        self._session = session
        self._name = name
        self._inputs = tuple(inputs)
        self._taken = frozenset(given.name for given in session.get_inputs())

    def forward(self, *tensors: torch.Tensor) -> Any:
        feed = {
            name: np.ascontiguousarray(tensor.detach().numpy())
            for name, tensor in zip(self._inputs, tensors, strict=True)
            if name in self._taken
        }
        outputs = self._session.run(None, feed)
        values = tuple(_value(output) for output in outputs)
        return values[0] if len(values) == 1 else values

    def _apply(self, fn: Any, recurse: bool = True) -> SessionModule:
        """Refuse another precision or device, which torch would give to parameters."""
        del recurse
        probe = torch.zeros(1)
        changed = fn(probe)
        if (changed.dtype, changed.device) != (probe.dtype, probe.device):
            raise ValueError(f"{self._name} holds its precision in the file; convert the file instead")
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SessionModule:
        del memo
        return self  # a session cannot be copied, and nothing can be changed in it


def _value(output: Any) -> Any:
    """An output as torch has it; what is no array of numbers (texts, maps) as Python has it."""
    if not isinstance(output, np.ndarray):
        return output
    return torch.from_numpy(output) if output.dtype.kind in "fiub" else output.tolist()
