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
#: Below this, torch.export states no limit: it takes 0 and 1 for sizes of a kind of their own.
_LEAST = 3
#: Operators between an input and the table that it looks up.
_CONVERSIONS = ("_to_copy", "to", "clone", "view", "reshape", "_assert_tensor_metadata")


def open_file(file: Path) -> OpenedModel:
    """Read an exported program.

    :raises InputError: this version of torch cannot read it, it holds pickled objects, or it takes inputs that
        are no tensors.
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
    """Pickles that restore anything but tensors and plain values are refused; torch.export.load runs them."""
    try:
        with zipfile.ZipFile(file) as archive:
            pickles = {name: archive.read(name) for name in archive.namelist() if name.endswith(".pt")}
    except DAMAGES as error:
        found = f"a damaged or truncated archive ({describe(error)})"
        raise input_error(file, None, found, "a whole one", "copy it again") from error
    for name, data in pickles.items():
        if not data:
            continue
        try:
            torch.load(io.BytesIO(data), weights_only=True)
        except USER_ERRORS as error:
            # Its advice is to load it all the same, which is what must not be done here.
            found = f"{name.rpartition('/')[2]} in it, which restores more than tensors ({type(error).__name__})"
            todo = "save it with example inputs that are tensors and plain values"
            raise input_error(file, None, found, "tensors and plain values", todo) from error


def _read(file: Path) -> ExportedProgram:
    with _reasons() as reasons:
        try:
            program = torch.export.load(file)
        except USER_ERRORS as error:
            reason = reasons[-1] if reasons else describe(error)
            todo = "save it again with this version"
            expected = f"a program that torch {torch.__version__} can load"
            raise input_error(file, None, f"a program that does not load ({reason})", expected, todo) from error
    return program


@contextlib.contextmanager
def _reasons() -> Iterator[list[str]]:
    """Errors that torch.export.load logs, with a traceback, and then replaces by one that does not tell."""
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
            raise input_error(file, None, found, "tensors only", "export it with that as a constant")
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
    """What the program is called with, flattened: tensors, and constants of the call that was exported."""
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
    """A limit as a number; ``None`` for infinity."""
    return int(limit) if getattr(limit, "is_Integer", False) else None


def _rows(node: Any) -> int | None:
    """Rows of the embedding that an input's values look up directly."""
    for user in node.users:
        name = getattr(user.target, "__name__", "").partition(".")[0]
        if name == "embedding" and user.args[1] is node:
            rows = user.args[0].meta["val"].shape[0]
            return rows if isinstance(rows, int) else None
        if name in _CONVERSIONS and (rows := _rows(user)) is not None:
            return rows
    return None


def module_of(program: ExportedProgram, device: str) -> torch.nn.Module:
    """A module that runs the program on a device, and takes its tensors in order."""
    if device != "cpu":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    return ProgramModule(program)


class ProgramModule(torch.nn.Module):
    """An exported program that takes its tensors in order, whatever structure it was exported with.

    Its mode was fixed when it was exported: ``train`` and ``eval`` change nothing.
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
    """Whether the tensors in order are the positional arguments, and all there is."""
    positional, named = _pytree.tree_unflatten(list(range(arguments)), structure)
    return not named and list(positional) == places
