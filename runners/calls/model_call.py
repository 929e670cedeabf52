"""Loading a workload's adapter from its file, and calling its model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


#: What user code may raise and a thread must survive: everything. ``sys.exit()`` in an adapter fails one request
#: only, and so does a panic in a native library, which is no ``Exception`` either.
USER_ERRORS = (BaseException,)


def describe(error: BaseException) -> str:
    """An exception as one line: its type and message, cut to a length that a table can hold."""
    name = type(error).__name__
    try:
        text = str(error)
    except USER_ERRORS:  # an exception of the user's own, whose text cannot be had
        return name
    text = " ".join(text.encode("utf-8", "replace").decode().split())
    return f"{name}: {text[:300]}" if text else name


def tensors_of(value: Any) -> list[torch.Tensor]:
    """All tensors in a tensor, tuple, list or dict of them, nested or not."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in tensors_of(item)]
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensors_of(item)]
    return []


def map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """``value`` with ``change`` of each of its tensors in their places; lists become tuples, as a model is called."""
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return tuple(map_tensors(item, change) for item in value)
    return value


def move(value: Any, device: str, dtype: torch.dtype | None = None) -> Any:
    """``value`` with its tensors on ``device`` and its floating-point ones in ``dtype``."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        cast = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        return tensor.to(device=device, dtype=cast, non_blocking=True)

    return map_tensors(value, moved)


def call_model(model: Any, inputs: Any) -> Any:
    """``model(x)``, ``model(*x)`` for a tuple, ``model(**x)`` for a dict."""
    if isinstance(inputs, dict):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


def split_output(output: Any, size: int) -> list[Any]:
    """One output a request from a batch's: along dimension 0 of tensors, or item by item of a list.

    :raises ValueError: where the batch's size is not found in the output.
    """
    import torch

    if isinstance(output, torch.Tensor):
        if output.dim() == 0 or output.shape[0] != size:
            raise ValueError(f"the model returned shape {tuple(output.shape)} for a batch of {size}")
        return list(output.unbind(0))
    if isinstance(output, dict):
        columns = {key: split_output(item, size) for key, item in output.items()}
        return [{key: column[k] for key, column in columns.items()} for k in range(size)]
    if isinstance(output, tuple):
        parts = [split_output(item, size) for item in output]
        return [tuple(part[k] for part in parts) for k in range(size)]
    if isinstance(output, list):
        if len(output) != size:
            raise ValueError(f"the model returned a list of {len(output)} for a batch of {size}")
        return output
    raise ValueError(f"the model returned a {type(output).__name__}; expected tensors with the batch in dimension 0")


def elements_and_length(tensors: Sequence[torch.Tensor], dimension: int) -> tuple[int, int]:
    """Elements in all tensors, and the largest size of ``dimension`` among them (0 where none has it)."""
    elements = 0
    length = 0
    for tensor in tensors:
        elements += tensor.numel()
        if tensor.dim() > dimension:
            length = max(length, tensor.shape[dimension])
    return elements, length
