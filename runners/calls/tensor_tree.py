"""Inputs and outputs of a model as flat lists of tensors, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: A tensor's place in a structure.
_LEAF = "tensor"


def flatten(value: Any) -> tuple[list[torch.Tensor], Any]:
    """Tensors of nested tuples, lists and dicts in a fixed order, and what :func:`unflatten` needs to go back.

    :raises TypeError: something else is in it.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return [value], _LEAF
    if isinstance(value, dict):
        parts = [flatten(item) for item in value.values()]
        return _joined(parts), {key: shape for key, (_, shape) in zip(value, parts, strict=True)}
    if type(value) in (tuple, list):
        parts = [flatten(item) for item in value]
        return _joined(parts), type(value)(shape for _, shape in parts)
    raise TypeError(f"found a {type(value).__name__} where tensors, tuples, lists or dicts of them were expected")


def unflatten(shape: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The structure that :func:`flatten` took apart, with other tensors."""
    return _built(shape, iter(tensors))


def _built(shape: Any, tensors: Iterator[torch.Tensor]) -> Any:
    if isinstance(shape, dict):
        return {key: _built(part, tensors) for key, part in shape.items()}
    if isinstance(shape, tuple | list):
        return type(shape)(_built(part, tensors) for part in shape)
    return next(tensors)


def _joined(parts: Sequence[tuple[list[torch.Tensor], Any]]) -> list[torch.Tensor]:
    return [tensor for tensors, _ in parts for tensor in tensors]


def as_called(batch: Any) -> Any:
    """A batch as the model's ``forward`` gets it (:func:`latfix.runners.calls.model_call.call_model`)."""
    if isinstance(batch, dict):
        return batch
    return tuple(batch) if isinstance(batch, tuple | list) else (batch,)


def in_order(names: Any) -> str:
    """A structure with the order of its names, which a comparison of dicts leaves out."""
    return repr(names)
