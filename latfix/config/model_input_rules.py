"""``[inputs]`` of ``workload.toml``: how a model file's inputs are made if its signature leaves that open."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from latfix.errors import InputError
from latfix.files.toml_reader import TomlFile
from latfix.traffic.feature_expressions import Expression

#: The name of the dimension that latfix fills with the requests of a batch.
BATCH = "batch"
FLOATS = ("float32", "float16", "bfloat16", "float64")
#: Integer types: the least value, and the exclusive upper bound.
WHOLE: Mapping[str, tuple[int, int]] = {
    "int64": (-(2**63), 2**63),
    "int32": (-(2**31), 2**31),
    "int16": (-(2**15), 2**15),
    "int8": (-128, 128),
    "uint8": (0, 256),
    "bool": (0, 2),
}
DTYPES = (*FLOATS, *WHOLE)
_KEYS = ("shape", "dtype", "low", "high", "pad")
_EXAMPLE = 'a list like ["batch", "length", 64]: whole numbers, features or expressions over them'


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRule:
    """How one input is made; ``None`` leaves it to the model's signature.

    :param shape: for each dimension its size, or an expression over a request's features; ``"batch"`` at most once.
    :param dtype: one of :data:`DTYPES`.
    :param low: inclusive lower bound of uniform values.
    :param high: exclusive upper bound.
    :param pad: the value that pads inputs of one batch to equal size; zero by default.
    :param where: file and line, for messages.
    """

    shape: tuple[int | Expression, ...] | None = None
    dtype: str | None = None
    low: float | None = None
    high: float | None = None
    pad: float | None = None
    where: str = ""


def is_batch(size: int | Expression) -> bool:
    """True if a dimension is the batch."""
    return isinstance(size, Expression) and size.source.strip() == BATCH


def parse_inputs(table: Any, file: TomlFile) -> dict[str, InputRule]:
    """``[inputs]`` by the name of the input.

    :raises InputError: an unknown key, a wrong type or a value out of range.
    """
    if not isinstance(table, dict):
        raise file.error("", "inputs", f"inputs = {table!r}", "a table [inputs]")
    return {name: _rule(name, entry, file) for name, entry in table.items()}


def _rule(name: str, entry: Any, file: TomlFile) -> InputRule:
    if not isinstance(entry, dict):
        raise file.error("inputs", name, f"{name} = {entry!r}", 'a table like { shape = ["batch", "length"] }')
    file.check_keys(entry, _KEYS, f"inputs.{name}")
    where = file.place("inputs", name)
    dtype = entry.get("dtype")
    if dtype is not None and dtype not in DTYPES:
        raise file.error("inputs", name, f"{name} with dtype = {dtype!r}", f"one of {', '.join(DTYPES)}")
    low, high = (_number(entry, key, name, file) for key in ("low", "high"))
    if low is not None and high is None:
        raise file.error("inputs", name, f"{name} with low = {low:g} and no high", "both")
    if high is not None and not (low or 0.0) < high:
        raise file.error(
            "inputs", name, f"{name} with low = {low or 0:g} and high = {high:g}", "a low below the high"
        )
    return InputRule(
        shape=parse_shape(name, entry["shape"], file, "inputs") if "shape" in entry else None,
        dtype=dtype,
        low=low,
        high=high,
        pad=_number(entry, "pad", name, file),
        where=where,
    )


def _number(entry: Mapping[str, Any], key: str, name: str, file: TomlFile) -> float | None:
    value = entry.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise file.error("inputs", name, f"{name} with {key} = {value!r}", "a finite number")
    if abs(value) >= 2**63:
        raise file.error("inputs", name, f"{name} with {key} = {value!r}", "a number that fits into 64 bits")
    return float(value)


def parse_shape(name: str, value: Any, file: TomlFile, table: str) -> tuple[int | Expression, ...]:
    """The shape of one input or output, as written in the file.

    :param table: ``inputs`` or ``outputs``.
    :raises InputError: it is not a list of sizes, or names the batch more than once.
    """
    where = file.place(table, name)
    if not isinstance(value, list):
        raise file.error(table, name, f"{name} with shape = {value!r}", _EXAMPLE)
    shape: list[int | Expression] = []
    for size in value:
        if isinstance(size, str):
            shape.append(Expression.parse(size, f"{where}: {name}"))
        elif isinstance(size, int) and not isinstance(size, bool) and 1 <= size < 2**31:
            shape.append(size)
        else:
            raise file.error(table, name, f"{name} with the size {size!r}", _EXAMPLE)
    batches = sum(is_batch(size) for size in shape)
    if batches > 1:
        raise file.error(table, name, f'{name} with "{BATCH}" twice', _EXAMPLE)
    for size in shape:
        if isinstance(size, Expression) and BATCH in size.names and not is_batch(size):
            raise InputError(
                f'{where}: {name}: found "{BATCH}" in {size.source!r}; expected it alone, as a dimension'
            )
    return tuple(shape)
