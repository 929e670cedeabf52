"""The tensors of one request: from its payload, or drawn from a seed that depends on the request."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from latfix.config.model_input_rules import BATCH, FLOATS
from latfix.request import Request
from latfix.runners.model_files.input_layout import InputLayout, marks_padding, out_of_range
from latfix.traffic.feature_expressions import Expression

if TYPE_CHECKING:
    import torch

_MASK = re.compile(r"mask", re.IGNORECASE)
_SEGMENTS = re.compile(r"token_type|segment", re.IGNORECASE)
#: An integer input with such a name and one value per request is the length of the other inputs.
_LENGTHS = re.compile(r"len(gth)?s?$", re.IGNORECASE)
_POSITIONS = re.compile(r"position", re.IGNORECASE)
#: Range of the values drawn for integers of unknown meaning, the upper end excluded.
_RANGES: Mapping[str, tuple[int, int]] = {"uint8": (0, 256), "int8": (-128, 128)}


def seed_of(request: Request) -> int:
    """A seed that is the same for the same request in every run."""
    content = repr((request.id, sorted(request.features.items()), request.payload))
    return int.from_bytes(hashlib.blake2b(content.encode("utf-8", "replace"), digest_size=7).digest(), "big")


def draw(
    given: InputLayout, shape: Sequence[int], generator: torch.Generator, length: int | None = None
) -> torch.Tensor:
    """A tensor for one input of one request.

    Masks are ones (padding masks zeros), lengths the request's length, segments zeros, positions count up. Integers
    that index a table are drawn from all rows but row 0, which is padding; floating-point numbers are normal. ``low``
    and ``high`` of ``[inputs]`` take precedence.

    :param length: the size of the request's only variable dimension; ``None`` if there are several.
    """
    import torch

    assert given.dtype is not None, "check_shape comes first"
    dtype, shape, (low, high) = getattr(torch, given.dtype), tuple(shape), value_range(given)
    match _kind(given, has_length=length is not None):
        case "uniform":
            return (torch.rand(shape, generator=generator) * (high - low) + low).to(dtype)
        case "integers":
            return torch.randint(int(low), int(high), shape, generator=generator).to(dtype)
        case "normal":
            return torch.randn(shape, generator=generator).to(dtype)
        case "positions":
            return torch.arange(shape[-1]).expand(*shape).to(dtype).contiguous()
        case kind:
            return torch.full(shape, {"zeros": 0, "ones": 1, "length": length or 0}[kind], dtype=dtype)


def _kind(given: InputLayout, *, has_length: bool) -> str:
    """How an input's values are drawn.

    :param has_length: a request has a single length.
    """
    if given.dtype in FLOATS:
        if given.high is None and _MASK.search(given.name):
            return "ones"
        return "normal" if given.high is None else "uniform"
    if given.high is not None:
        return "integers"
    if _MASK.search(given.name):
        return "zeros" if marks_padding(given.name, given.dtype) else "ones"
    if has_length and all(axis.size == 1 for axis in given.axes or ()) and _LENGTHS.search(given.name):
        return "length"
    if _SEGMENTS.search(given.name):
        return "zeros"
    return "positions" if given.axes and _POSITIONS.search(given.name) else "integers"


def value_range(given: InputLayout) -> tuple[float, float]:
    """The lower end and the excluded upper end of the values that are drawn."""
    if given.high is not None:
        return given.low or 0.0, given.high
    if given.rows:
        return min(1, given.rows - 1), given.rows
    return _RANGES.get(given.dtype or "", (0, 2))


def describe(given: InputLayout, bound: Mapping[str, Expression], fixed_batch: int) -> str:
    """An input in one line: its type, its shape in a batch, and how its values are drawn.

    :param bound: expressions for the sizes of its dimensions, by symbol.
    """
    if given.dtype is None or given.axes is None:
        return f"{given.name}: from the payload"
    words = []
    for axis in given.axes:
        expression = bound.get(axis.symbol)
        words.append(str(axis.size) if axis.size is not None else expression.source if expression else axis.symbol)
    if given.batch_axis is not None:
        words.insert(given.batch_axis, str(fixed_batch) if fixed_batch else BATCH)
    (low, high), kind = value_range(given), _kind(given, has_length=len(bound) == 1)
    if kind == "integers" and given.high is None:
        drawn = f"values from {low} to {high - 1}"
    elif kind in ("integers", "uniform"):
        drawn = f"values from {low:g} to below {high:g}"
    else:
        drawn = {"length": "the length", "positions": "0, 1, 2, …", "normal": "normal values"}.get(kind, kind)
    return f"{given.name}: {given.dtype} ({', '.join(words)}), {drawn}"


def from_payload(given: InputLayout, value: Any) -> torch.Tensor:
    """A payload's lists of numbers as a tensor.

    :raises ValueError: they are ragged, not numbers, or not of the input's shape.
    """
    import torch

    dtype = None if given.dtype is None else getattr(torch, given.dtype)
    try:
        tensor = torch.tensor(value, dtype=dtype)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        expected = f"lists of {given.dtype}" if given.dtype else "lists of numbers"
        raise ValueError(f"payload {given.name!r}: {error}; expected {expected}") from error
    check_shape(given, tensor.shape)
    return tensor


def list_shape(value: Any) -> tuple[int, ...]:
    """The shape of nested lists, by their first items."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        value = value[0] if value else None
    return tuple(shape)


def check_shape(given: InputLayout, shape: Sequence[int]) -> None:
    """Check that the model takes a shape.

    :raises ValueError: the number of dimensions is wrong, or a size is out of range.
    """
    if given.axes is None:
        return
    if len(shape) != len(given.axes):
        raise ValueError(
            f"payload {given.name!r} has {len(shape)} dimensions; expected {len(given.axes)}, without the batch's"
        )
    for k, (found, axis) in enumerate(zip(shape, given.axes, strict=True)):
        if limits := out_of_range(found, axis):
            raise ValueError(f"payload {given.name!r} is {found} long in dimension {k}; the model takes {limits}")
