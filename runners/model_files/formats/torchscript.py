"""``.pt`` and ``.ts``: a module saved by ``torch.jit.save``.

Loading it runs no Python: the archive holds TorchScript code and tensors. Files written by ``torch.save`` are refused
earlier (:mod:`latfix.config.model_file_kind`).
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from latfix.errors import InputError, input_error
from latfix.runners.calls.model_call import USER_ERRORS, describe
from latfix.runners.model_files.opened_model import Axis, OpenedModel, TensorInput

BACKEND = "TorchScript"


def open_file(file: Path) -> OpenedModel:
    """Read a TorchScript module.

    The file seldom states more than the names of inputs; shapes and dtypes come from ``[inputs]`` or the payload.

    :raises InputError: this version of torch cannot read it, or an input is no tensor.
    """
    module = _read(file, "cpu")
    return OpenedModel(
        file=file,
        backend=BACKEND,
        inputs=_inputs(module, file),
        load=lambda device: ScriptModule(module if device == "cpu" else _read(file, device)),
    )


def _read(file: Path, device: str) -> Any:
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):  # torch recommends torch.export; files remain
            warnings.simplefilter("ignore", category)
        try:
            return torch.jit.load(file, map_location=device)  # type: ignore[no-untyped-call]
        except USER_ERRORS as error:
            found = f"a module that does not load ({describe(error)})"
            expected = f"one that torch {torch.__version__} can load"
            raise input_error(file, None, found, expected, "save it again with this version") from error


def _inputs(module: Any, file: Path) -> tuple[TensorInput, ...]:
    forward = getattr(module, "forward", None)
    if forward is None:
        raise InputError(f"{file}: found a module without forward; expected one that can be called")
    arguments = forward.schema.arguments[1:]  # the first one is the module itself
    values = list(forward.graph.inputs())[1:]
    inputs = []
    for argument, value in zip(arguments, values, strict=True):
        if str(argument.type) == "Tensor":
            inputs.append(_input(argument.name, value.type()))
        elif not argument.has_default_value():
            found = f"forward with {argument.name}: {argument.type}"
            raise input_error(file, None, found, "tensors", "wrap it in a module that takes tensors only")
        else:
            break  # inputs are positional, so all further arguments keep their defaults
    if not inputs:
        raise InputError(f"{file}: found forward without a tensor; expected at least one")
    return tuple(inputs)


def _input(name: str, kind: Any) -> TensorInput:
    dtype, sizes = kind.dtype(), kind.varyingSizes()
    return TensorInput(
        name=name,
        dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        axes=None
        if sizes is None
        else tuple(Axis(symbol=f"{name}[{k}]") if size is None else Axis(size=size) for k, size in enumerate(sizes)),
    )


class ScriptModule(torch.nn.Module):
    """A TorchScript module that takes its tensors in order."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, *tensors: torch.Tensor) -> Any:
        try:
            return self.module(*tensors)
        except RuntimeError as error:
            # The text begins with pages of serialized code; the reason is in the last line.
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise RuntimeError(lines[-1].removeprefix("RuntimeError: ") if lines else repr(error)) from error
