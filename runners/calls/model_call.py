"""Calling a model, splitting what it returns, and the errors that it may raise."""

from __future__ import annotations

from typing import Any

import numpy as np

from latfix.formatting import clipped

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
    return f"{name}: {clipped(text, 300)}" if text else name


def call_model(model: Any, inputs: Any) -> Any:
    """``model(x)``, ``model(*x)`` for a tuple, ``model(**x)`` for a dict."""
    if isinstance(inputs, dict):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


def split_output(output: Any, size: int) -> list[Any]:
    """One output a request from a batch's: along dimension 0 of tensors and arrays, or item by item of a list.

    :raises ValueError: where the batch's size is not found in the output.
    """
    import torch

    if isinstance(output, torch.Tensor | np.ndarray):
        if output.ndim == 0 or output.shape[0] != size:
            raise ValueError(
                f"the model returned shape {tuple(output.shape)} for a batch of {size}; expected {size} in the first "
                "dimension: put the batch first, in the model or an adapter around it, or say of a model file where "
                'it is: [outputs] output = { shape = [64, "batch", 10] }'
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
            raise ValueError(f"the model returned a list of {len(output)} for a batch of {size}")
        return output
    raise ValueError(f"the model returned a {type(output).__name__}; expected tensors with the batch in dimension 0")


def as_called(batch: Any) -> Any:
    """A batch as the model's ``forward`` gets it (:func:`latfix.runners.calls.model_call.call_model`)."""
    if isinstance(batch, dict):
        return batch
    return tuple(batch) if isinstance(batch, tuple | list) else (batch,)


def in_order(names: Any) -> str:
    """A structure with the order of its names, which a comparison of dicts leaves out."""
    return repr(names)
