"""Calling a model, splitting its output, and describing the errors that it raises."""

from __future__ import annotations

from typing import Any

import numpy as np

from latfix.formatting import clipped

#: What user code may raise and a thread must survive: everything. ``sys.exit()`` in an adapter or a panic in a native
#: library, which is not an ``Exception`` either, fails one request only.
USER_ERRORS = (BaseException,)


def describe(error: BaseException) -> str:
    """An exception as one line: type and message, clipped to fit a table."""
    name = type(error).__name__
    try:
        text = str(error)
    except USER_ERRORS:  # a user-defined exception whose text cannot be read
        return name
    text = " ".join(text.encode("utf-8", "replace").decode().split())
    return f"{name}: {clipped(text, 300)}" if text else name


def call_model(model: Any, inputs: Any) -> Any:
    """``model(**x)`` for a dict, ``model(*x)`` for a tuple or list, else ``model(x)``."""
    if isinstance(inputs, dict):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


def split_output(output: Any, size: int) -> list[Any]:
    """Split a batch's output by request: tensors and arrays along dimension 0, lists item by item.

    :raises ValueError: the output does not have the batch's size.
    """
    import torch

    if isinstance(output, torch.Tensor | np.ndarray):
        if output.ndim == 0 or output.shape[0] != size:
            raise ValueError(
                f"the model returned shape {tuple(output.shape)} for a batch of {size}; expected {size} in the first "
                "dimension: move the batch dimension first in the model or its adapter; for a model file, declare "
                'where it is: [outputs] output = { shape = [64, "batch", 10] }'
            )
        return list(output.unbind(0) if isinstance(output, torch.Tensor) else output)
    if isinstance(output, dict):
        columns = {key: split_output(item, size) for key, item in output.items()}
        return [{key: column[k] for key, column in columns.items()} for k in range(size)]
    if isinstance(output, tuple):
        parts = [split_output(item, size) for item in output]
        return [tuple(part[k] for part in parts) for k in range(size)]
    if isinstance(output, list):
        if len(output) != size:
            raise ValueError(f"the model returned a list of {len(output)} for a batch of {size}; expected {size}")
        return output
    raise ValueError(f"the model returned a {type(output).__name__}; expected tensors with the batch in dimension 0")


def as_called(batch: Any) -> Any:
    """A batch as the arguments of the model's ``forward`` (see :func:`call_model`)."""
    if isinstance(batch, dict):
        return batch
    return tuple(batch) if isinstance(batch, tuple | list) else (batch,)


def in_order(names: Any) -> str:
    """A structure as text that includes the order of its names, which comparing dicts ignores."""
    return repr(names)
