"""``.pt2``: a program saved by ``torch.export.save``."""

from __future__ import annotations

import contextlib
import io
import logging
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree

from latfix.config.model_file_kind import DAMAGES
from latfix.errors import InputError, input_error
from latfix.runners.calls.model_call import USER_ERRORS, describe
from latfix.runners.model_files.opened_model import Axis, OpenedModel, TensorInput

if TYPE_CHECKING:
    from torch.export import ExportedProgram

BACKEND = "torch.export"
#: A lower bound below this is torch.export's default, not a limit of the model: it treats sizes 0 and 1 specially.
_LEAST = 3
#: Operators that may stand between an input and the table that it indexes.
_CONVERSIONS = ("_to_copy", "to", "clone", "view", "reshape", "_assert_tensor_metadata")


def open_file(file: Path) -> OpenedModel:
    """Read an exported program.

    :raises InputError: this version of torch cannot read it, it contains pickled objects, or an input is no tensor.
    """
    _refuse_pickles(file)
    program = _read(file)
    return OpenedModel(
        file=file,
        backend=BACKEND,
        inputs=inputs_of(program, file),
        load=lambda device: module_of(program, device),
    )


def _refuse_pickles(file: Path) -> None:
    """Refuse pickles that restore more than tensors and plain values, because torch.export.load would run them."""
    try:
        with zipfile.ZipFile(file) as archive:
            pickles = {name: archive.read(name) for name in archive.namelist() if name.endswith(".pt")}
    except DAMAGES as error:
        found = f"a damaged or truncated archive ({describe(error)})"
        raise input_error(file, None, found, "a complete one", "copy the file again") from error
    for name, data in pickles.items():
        if not data:
            continue
        try:
            torch.load(io.BytesIO(data), weights_only=True)
        except USER_ERRORS as error:
            # torch's own message advises to load the pickle anyway, so it is not quoted.
            found = f"{name.rpartition('/')[2]} in it, which restores more than tensors ({type(error).__name__})"
            todo = "save the program with example inputs that are tensors and plain values"
            raise input_error(file, None, found, "tensors and plain values", todo) from error


def _read(file: Path) -> ExportedProgram:
    with _reasons() as reasons:
        try:
            program = torch.export.load(file)
        except USER_ERRORS as error:
            reason = reasons[-1] if reasons else describe(error)
            todo = "export and save it again with this version"
            expected = f"a program that torch {torch.__version__} can load"
            raise input_error(file, None, f"a program that does not load ({reason})", expected, todo) from error
    return program


@contextlib.contextmanager
def _reasons() -> Iterator[list[str]]:
    """Collect the errors that torch.export.load logs before it raises one without the reason."""
    found: list[str] = []

    def take(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            found.append(describe(error))
        return error is None

    logger = logging.getLogger("torch.export")
    logger.addFilter(take)
    try:
        yield found
    finally:
        logger.removeFilter(take)


def inputs_of(program: ExportedProgram, file: Path) -> tuple[TensorInput, ...]:
    """The tensors that an exported program takes, in order."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    inputs = []
    for argument in _arguments(program):
        if isinstance(argument, ConstantArgument):
            continue
        name, node = argument.name, nodes[argument.name]
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            found = f"input {name!r}, which is no tensor but {type(value).__name__}"
            raise input_error(file, None, found, "tensors only", "export the program with a constant in its place")
        inputs.append(
            TensorInput(
                name=name,
                dtype=str(value.dtype).removeprefix("torch."),
                axes=tuple(_axis(size, program) for size in value.shape),
                rows=_rows(node),
            )
        )
    if not inputs:
        raise InputError(f"{file}: found a program without inputs; expected at least one tensor")
    return tuple(inputs)


def _arguments(program: ExportedProgram) -> list[Any]:
    """The flattened arguments of the program: tensors, and constants of the exported call."""
    specs = program.graph_signature.input_specs
    return [spec.arg for spec in specs if spec.kind == InputKind.USER_INPUT]


def _axis(size: Any, program: ExportedProgram) -> Axis:
    if isinstance(size, int):
        return Axis(size=size)
    symbol = size.node.expr
    limits = program.range_constraints.get(symbol)
    least = _bound(limits.lower) if limits is not None else None
    return Axis(
        symbol=str(symbol),
        least=least if least is not None and least >= _LEAST else 1,
        most=_bound(limits.upper) if limits is not None else None,
    )


def _bound(limit: Any) -> int | None:
    """A bound as a number; ``None`` for infinity."""
    return int(limit) if getattr(limit, "is_Integer", False) else None


def _rows(node: Any) -> int | None:
    """Rows of the embedding table that an input's values index."""
    for user in node.users:
        name = getattr(user.target, "__name__", "").partition(".")[0]
        if name == "embedding" and user.args[1] is node:
            rows = user.args[0].meta["val"].shape[0]
            return rows if isinstance(rows, int) else None
        if name in _CONVERSIONS and (rows := _rows(user)) is not None:
            return rows
    return None


def module_of(program: ExportedProgram, device: str) -> torch.nn.Module:
    """A module that runs the program on a device and takes its tensors in order."""
    if device != "cpu":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    return ProgramModule(program)


class ProgramModule(torch.nn.Module):
    """An exported program that takes its tensors in order, regardless of the structure it was exported with.

    The export fixed its mode: ``train`` and ``eval`` change nothing.
    """

    def __init__(self, program: ExportedProgram) -> None:
        super().__init__()
        self.program = program.module()
        self.training = False
        arguments = _arguments(program)
        self._structure = program.call_spec.in_spec
        self._constants = [getattr(argument, "value", None) for argument in arguments]
        self._places = [k for k, argument in enumerate(arguments) if not isinstance(argument, ConstantArgument)]
        self._in_order = self._structure is None or _is_plain(self._structure, len(arguments), self._places)

    def forward(self, *tensors: torch.Tensor) -> Any:
        if self._in_order:
            return self.program(*tensors)
        flat: list[Any] = list(self._constants)
        for place, tensor in zip(self._places, tensors, strict=True):
            flat[place] = tensor
        positional, named = _pytree.tree_unflatten(flat, self._structure)
        return self.program(*positional, **named)

    def train(self, mode: bool = True) -> ProgramModule:
        del mode
        return self


def _is_plain(structure: Any, arguments: int, places: list[int]) -> bool:
    """True if the tensors in order are exactly the positional arguments, and there are no others."""
    positional, named = _pytree.tree_unflatten(list(range(arguments)), structure)
    return not named and list(positional) == places
