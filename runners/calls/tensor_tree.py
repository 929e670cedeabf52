"""Tensors in nested tuples, lists, dicts and dataclasses: a model's inputs and outputs."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

#: Marks a tensor in a structure.
_LEAF = "tensor"


@dataclasses.dataclass(frozen=True, slots=True)
class _Constant:
    """A number, text or ``None`` in a structure."""

    value: Any


def flatten(value: Any) -> tuple[list[torch.Tensor], Any]:
    """The tensors of nested tuples, lists, dicts and dataclasses in a fixed order, and the structure for
    :func:`unflatten`, which holds numbers, texts and ``None`` as they are (:func:`constants_of`).

    :raises TypeError: the structure holds something else.
    """
    tensors: list[torch.Tensor] = []
    return tensors, _structure(value, tensors)


def _structure(value: Any, into: list[torch.Tensor], name: str = "") -> Any:
    """The structure of a value, whose tensors are appended to ``into``; ``name`` is its key or field, if any."""
    import torch

    if isinstance(value, torch.Tensor):
        into.append(value)
        return _LEAF
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return _Constant(value)
    if isinstance(value, dict):
        return replaced_items(value, {key: _structure(item, into, str(key)) for key, item in value.items()})
    if type(value) in (tuple, list):
        return type(value)(_structure(item, into, name) for item in value)
    if fields := fields_of(value):
        return replaced_fields(value, {key: _structure(item, into, key) for key, item in fields.items()})
    found = f"{type(value).__name__} in {name!r}" if name else type(value).__name__
    raise TypeError(f"found {found} where tensors, numbers, texts, tuples, lists or dicts of them were expected")


def constants_of(shape: Any, name: str = "") -> dict[str, Any]:
    """The numbers, texts and ``None`` in a structure of :func:`flatten`, by their keys, joined by dots."""
    if isinstance(shape, _Constant):
        return {name: shape.value}
    parts = shape if isinstance(shape, dict) else fields_of(shape)
    if isinstance(shape, tuple | list):
        parts = dict(enumerate(shape))
    inner = (constants_of(part, f"{name}.{key}" if name else str(key)) for key, part in parts.items())
    return {key: value for found in inner for key, value in found.items()}


def unflatten(shape: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """Inverse of :func:`flatten`: the structure with the given tensors."""
    return _built(shape, iter(tensors))


def _built(shape: Any, tensors: Iterator[torch.Tensor]) -> Any:
    if isinstance(shape, _Constant):
        return shape.value
    if isinstance(shape, dict):
        return replaced_items(shape, {key: _built(part, tensors) for key, part in shape.items()})
    if isinstance(shape, tuple | list):
        return type(shape)(_built(part, tensors) for part in shape)
    if fields := fields_of(shape):
        return replaced_fields(shape, {key: _built(part, tensors) for key, part in fields.items()})
    return next(tensors)


def tensors_of(value: Any) -> list[torch.Tensor]:
    """All tensors in a tensor or in nested tuples, lists, dicts and dataclasses."""
    import torch

    return _leaves(value, torch.Tensor)


def arrays_of(value: Any) -> list[Any]:
    """As :func:`tensors_of`, with NumPy arrays, which models that are no torch modules take."""
    import torch

    return _leaves(value, torch.Tensor | np.ndarray)


def _leaves(value: Any, kinds: Any) -> list[Any]:
    if isinstance(value, kinds):
        return [value]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item, kinds)]
    if isinstance(value, tuple | list):
        return [leaf for item in value for leaf in _leaves(item, kinds)]
    return [leaf for item in fields_of(value).values() for leaf in _leaves(item, kinds)]


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass; empty for any other value."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return {}
    return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}


def replaced_fields(value: Any, fields: Mapping[str, Any]) -> Any:
    """A copy of a dataclass with other values, without calling its ``__init__``; it may be frozen."""
    made = copy.copy(value)
    for name, each in fields.items():
        object.__setattr__(made, name, each)
    return made


def replaced_items(value: dict[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    """A dict with other values. One of a subclass keeps its class: the items of some are attributes, too."""
    if type(value) is dict:
        return items
    made = copy.copy(value)
    for key, item in items.items():
        made[key] = item
    return made


def map_tensors(
    value: Any, change: Callable[[torch.Tensor, tuple[Any, ...]], Any], path: tuple[Any, ...] = ()
) -> Any:
    """The same structure of tuples, lists, dicts and dataclasses with changed tensors.

    :param change: called with each tensor and the keys and indices that lead to it.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return change(value, path)
    if isinstance(value, dict):
        return replaced_items(value, {key: map_tensors(item, change, (*path, key)) for key, item in value.items()})
    if isinstance(value, tuple):
        make = getattr(type(value), "_make", tuple)  # a named tuple keeps its names
        return make(map_tensors(item, change, (*path, k)) for k, item in enumerate(value))
    if isinstance(value, list):
        return [map_tensors(item, change, (*path, k)) for k, item in enumerate(value)]
    if fields := fields_of(value):
        return replaced_fields(value, {key: map_tensors(item, change, (*path, key)) for key, item in fields.items()})
    return value


def map_plain(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """``value`` with the tensors in plain tuples, lists and dicts changed; subclasses of these stay unmodified."""
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(map_plain(item, change) for item in value)
    if type(value) is dict:
        return {key: map_plain(item, change) for key, item in value.items()}
    return value


def move(value: Any, device: str, dtype: torch.dtype | None = None) -> Any:
    """``value`` with its tensors on ``device`` and its floating-point ones in ``dtype``."""

    def moved(tensor: torch.Tensor, _: tuple[Any, ...]) -> torch.Tensor:
        cast = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        return tensor.to(device=device, dtype=cast, non_blocking=True)

    return map_tensors(value, moved)


def shapes_of(arrays: Iterable[Any]) -> tuple[tuple[int, ...], ...]:
    """The shapes of tensors or arrays, in order."""
    return tuple(tuple(array.shape) for array in arrays)


def elements_of(value: Any) -> int:
    """Elements in all tensors and arrays of a structure."""
    return elements_and_length(arrays_of(value), 0)[0]


def elements_and_length(arrays: Sequence[Any], dimension: int) -> tuple[int, int]:
    """Total elements of tensors or arrays, and the largest size of ``dimension`` among them (0 if none has it)."""
    elements = 0
    length = 0
    for array in arrays:
        elements += math.prod(array.shape)
        if array.ndim > dimension:
            length = max(length, array.shape[dimension])
    return elements, length


def width_of(arrays: Sequence[Any]) -> int:
    """Size of the last dimension of the largest tensor or array; 1 if it has no dimension, 0 without any."""
    largest = max(arrays, key=lambda array: math.prod(array.shape), default=None)
    if largest is None:
        return 0
    return largest.shape[-1] if largest.ndim else 1
