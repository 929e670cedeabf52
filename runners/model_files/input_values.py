"""The tensors of one request: what its payload carries, and otherwise values drawn from a seed of its own."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from latfix.config.model_input_rules import BATCH, FLOATS
from latfix.request import Request
from latfix.runners.model_files.input_layout import InputLayout, Size, marks_padding
from latfix.traffic.feature_expressions import Expression

if TYPE_CHECKING:
    import torch

_MASK = re.compile(r"mask", re.IGNORECASE)
_SEGMENTS = re.compile(r"token_type|segment", re.IGNORECASE)
#: Of whole numbers, one a request: how long its other inputs are.
_LENGTHS = re.compile(r"len(gth)?s?$", re.IGNORECASE)
_POSITIONS = re.compile(r"position", re.IGNORECASE)
#: Ends of the values that are drawn for whole numbers of unknown meaning.
_RANGES: Mapping[str, tuple[int, int]] = {"uint8": (0, 256), "int8": (-128, 128)}


def seed_of(request: Request) -> int:
    """A seed that is the same for the same request in every run."""
    content = repr((request.id, sorted(request.features.items()), request.payload))
    return int.from_bytes(hashlib.blake2b(content.encode("utf-8", "replace"), digest_size=7).digest(), "big")


def draw(
    given: InputLayout, shape: Sequence[int], generator: torch.Generator, length: int | None = None
) -> torch.Tensor:
    """A tensor for one input of one request.

    Masks are ones (those of padding zeros), lengths that of the request, segments zeros, positions count up. Whole
    numbers that look up a table are drawn from all of it but row 0, which is padding; floating-point numbers are
    normal. ``low`` and ``high`` of ``[inputs]`` go before all of this.

    :param length: of the request's inputs, where one dimension of theirs varies.
    """
    import torch

    assert given.dtype is not None, "check_shape comes first"
    dtype = getattr(torch, given.dtype)
    floating = given.dtype in FLOATS
    if given.high is not None:
        return _even(given, shape, dtype, floating, generator)
    if _MASK.search(given.name):
        return torch.full(tuple(shape), not marks_padding(given.name, given.dtype), dtype=dtype)
    if length is not None and _is_length(given):
        return torch.full(tuple(shape), length, dtype=dtype)
    if _SEGMENTS.search(given.name) and not floating:
        return torch.zeros(shape, dtype=dtype)
    if _POSITIONS.search(given.name) and not floating and shape:
        return torch.arange(shape[-1]).expand(*shape).to(dtype).contiguous()
    if floating:
        return torch.randn(shape, generator=generator).to(dtype)
    low, high = value_range(given)
    return torch.randint(low, high, tuple(shape), generator=generator).to(dtype)


def _is_length(given: InputLayout) -> bool:
    one = all(size.fixed == 1 for size in given.sizes or ())
    return one and given.dtype not in FLOATS and _LENGTHS.search(given.name) is not None


def value_range(given: InputLayout) -> tuple[int, int]:
    """Ends of the whole numbers that are drawn where ``[inputs]`` gives none; the upper one is left out."""
    if given.rows is not None and given.rows > 1:
        return 1, given.rows
    return _RANGES.get(given.dtype or "", (0, 2))


def describe(given: InputLayout, bound: Mapping[str, Expression], fixed_batch: int) -> str:
    """An input in one line: its type, its shape in a batch, and what is drawn for it.

    :param bound: the expressions that give the sizes of its dimensions.
    """
    if given.dtype is None or given.sizes is None:
        return f"{given.name}: as the payload brings it"
    return f"{given.name}: {given.dtype} {_shape(given, given.sizes, bound, fixed_batch)}, {_drawn(given, bound)}"


def _shape(given: InputLayout, sizes: Sequence[Size], bound: Mapping[str, Expression], fixed_batch: int) -> str:
    words = []
    for size in sizes:
        expression = bound.get(size.symbol)
        words.append(str(size.fixed) if size.fixed is not None else expression.source if expression else size.symbol)
    if given.batch_axis is not None:
        words.insert(given.batch_axis, str(fixed_batch) if fixed_batch else BATCH)
    return f"({', '.join(words)})"


def _drawn(given: InputLayout, bound: Mapping[str, Expression]) -> str:
    """What :func:`draw` draws."""
    floating = given.dtype in FLOATS
    if given.high is not None:
        return f"values from {given.low or 0:g} to below {given.high:g}"
    if _MASK.search(given.name):
        return "zeros" if marks_padding(given.name, given.dtype) else "ones"
    if len(bound) == 1 and _is_length(given):
        return "the length"
    if not floating and _SEGMENTS.search(given.name):
        return "zeros"
    if not floating and _POSITIONS.search(given.name):
        return "0, 1, 2, …"
    low, high = value_range(given)
    return "normal values" if floating else f"values from {low} to {high - 1}"


def _even(
    given: InputLayout, shape: Sequence[int], dtype: torch.dtype, floating: bool, generator: torch.Generator
) -> torch.Tensor:
    import torch

    low, high = given.low or 0.0, given.high or 0.0
    if floating:
        return (torch.rand(tuple(shape), generator=generator) * (high - low) + low).to(dtype)
    return torch.randint(int(low), int(high), tuple(shape), generator=generator).to(dtype)


def from_payload(given: InputLayout, value: Any) -> torch.Tensor:
    """The tensor that a payload's lists of numbers are.

    :raises ValueError: they are ragged, no numbers, or not of the input's shape.
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
    """The shape of lists of numbers, nested or not, by their first items."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        value = value[0] if value else None
    return tuple(shape)


def check_shape(given: InputLayout, shape: Sequence[int]) -> None:
    """See that the model takes a shape.

    :raises ValueError: it has other dimensions, or a size that the file fixes otherwise.
    """
    if given.sizes is None:
        return
    if len(shape) != len(given.sizes):
        raise ValueError(
            f"payload {given.name!r} has {len(shape)} dimensions; expected {len(given.sizes)}, without the batch's"
        )
    for k, (found, size) in enumerate(zip(shape, given.sizes, strict=True)):
        least, most = (size.fixed, size.fixed) if size.fixed is not None else (size.least, size.most)
        if found < least or (most is not None and found > most):
            limits = f"{least}" if least == most else f"{least} to {'any' if most is None else most}"
            raise ValueError(f"payload {given.name!r} is {found} long in dimension {k}; the model takes {limits}")
