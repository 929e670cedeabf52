"""Calling a model, splitting its output, and describing its errors."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from latfix.formatting import clipped, counted
from latfix.runners.calls.tensor_tree import fields_of, map_tensors, replaced_fields, replaced_items

#: What user code may raise and a thread must survive: everything. ``sys.exit()`` in an adapter or a panic in a native
#: library, which is not an ``Exception`` either, fails one request only.
USER_ERRORS = (BaseException,)

#: A replay ends after this many requests over this time, all failed.
_REQUESTS, _SPAN_NS = 50, 1_000_000_000
#: The parts of a message that vary between requests: numbers, and what looks like an id.
_VARYING = re.compile(r"[0-9a-fA-F-]*\d[0-9a-fA-F-]*")

#: What to do about a model's error, by a pattern of its description.
_HINTS = {
    "TypeError.*keyword argument": "; a dict from prepare or collate is passed to the model as keyword arguments",
    "TypeError.*numpy.ndarray": "; return tensors from prepare (torch.from_numpy), this model takes no NumPy arrays",
    "does not require grad": "; latfix calls models in torch.no_grad: compute derivatives in torch.enable_grad",
}

#: Where a native library (OpenVINO, ONNX Runtime) raised an error, before what it says.
_NATIVE_PLACE = re.compile(
    r"(?:Exception from|Check '[^']*' failed at) \S+:\d+: ?"
    r"|(?:Load model from .* failed:)?/onnxruntime_src/\S+:\d+ .*?\)>? "
)
#: Parts of the paths of installed libraries and of code without a file.
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<")


def describe(error: BaseException) -> str:
    """An exception as one line: type and message, clipped to fit a table."""
    name = type(error).__name__
    try:
        text = str(error)
    except USER_ERRORS:  # a user-defined exception whose text cannot be read
        return name
    text = _NATIVE_PLACE.sub("", " ".join(text.encode("utf-8", "replace").decode().split()))
    return f"{name}: {clipped(text, 300)}" if text else name


def raised_by(what: str, error: BaseException) -> str:
    """An exception of the user's code as one line, with the innermost line of the user's own files.

    :param what: raised it: ``prepare``, ``the model``, …
    """
    return f"{what} raised {describe(error)}{own_line(error)}"


def own_line(error: BaseException) -> str:
    """The innermost line of the user's own files that an exception passed: `` (ranker.py:12)``, or empty."""
    line = ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename.replace("\\", "/")
        own = not str(frame.f_globals.get("__name__")).startswith("latfix.")
        if own and not any(part in file for part in _LIBRARIES):
            line = f" ({Path(file).name}:{number})"
    return line


class OutputError(ValueError):
    """A model's output that cannot be split by request."""


def model_error(error: BaseException) -> str:
    """The model's exception as one line, with a hint for common mistakes in the adapter."""
    if isinstance(error, OutputError):  # raised here, not by the model
        return str(error)
    text = describe(error)
    hint = next((hint for pattern, hint in _HINTS.items() if re.search(pattern, text)), "")
    return f"{raised_by('the model', error)}{hint}"


def call_model(model: Any, inputs: Any) -> Any:
    """``model(**x)`` for a dict, ``model(*x)`` for a tuple or list, else ``model(x)``."""
    if isinstance(inputs, dict):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


def on_copy(batch: Any) -> Any:
    """A batch whose tensors are copies: a model may change its inputs in place, and others run on them, too."""
    return map_tensors(batch, lambda tensor, _: tensor.clone())


def call_on_copy(model: Any, batch: Any) -> Any:
    """The model's answer to a batch, which stays as it is."""
    return call_model(model, on_copy(batch))


def split_output(output: Any, size: int) -> list[Any]:
    """Split a batch's output by request: tensors and arrays along dimension 0, lists item by item.

    Dicts, tuples and dataclasses are split field by field; a number, text or ``None`` in a field is each request's.
    ``None`` alone is the answer to each request, a number or text alone that of a batch of one.

    :raises OutputError: the output does not have the batch's size.
    """
    if output is None or (size == 1 and _is_single(output)):
        return [output] * size
    return _split(output, size)


def _is_single(value: Any) -> bool:
    """True for one number or text."""
    import torch

    array = isinstance(value, torch.Tensor | np.ndarray) and value.ndim == 0
    return array or isinstance(value, bool | int | float | complex | str | np.generic)


def _part(value: Any, size: int, name: str) -> list[Any]:
    """A field's value by request."""
    return [value] * size if value is None or _is_single(value) else _split(value, size, name)


def _split(output: Any, size: int, name: str = "") -> list[Any]:
    """See :func:`split_output`; ``name`` is that of the field, joined by dots."""
    import torch

    inside = f"{name}." if name else ""
    whole = f"in {name!r} for a batch of {size}" if name else f"for a batch of {size}"
    if isinstance(output, torch.Tensor | np.ndarray):
        if output.ndim == 0 or output.shape[0] != size:
            raise OutputError(
                f"the model returned shape {tuple(output.shape)} {whole}; expected {size} in the first "
                "dimension: move the batch dimension first in the model or its adapter (the items of a list or tuple "
                "from collate are the model's arguments); for a model file, declare "
                'where it is: [outputs] output = { shape = [64, "batch", 10] }; or, if it has none (boxes), that the '
                "file takes one request: [inputs] image = { shape = [1, 3, 64, 64] }"
            )
        return list(output.unbind(0) if isinstance(output, torch.Tensor) else output)
    if isinstance(output, dict):
        columns = {key: _part(item, size, f"{inside}{key}") for key, item in output.items()}
        return [replaced_items(output, {key: column[k] for key, column in columns.items()}) for k in range(size)]
    if isinstance(output, tuple):
        parts = [_part(item, size, f"{inside}{k}") for k, item in enumerate(output)]
        make = getattr(type(output), "_make", tuple)  # a named tuple keeps its names
        return [make(part[k] for part in parts) for k in range(size)]
    if fields := fields_of(output):
        columns = {key: _part(item, size, f"{inside}{key}") for key, item in fields.items()}
        return [replaced_fields(output, {key: column[k] for key, column in columns.items()}) for k in range(size)]
    if isinstance(output, list):
        if len(output) != size:
            raise OutputError(f"the model returned a list of {len(output)} {whole}; expected {size}")
        return output
    raise OutputError(
        f"the model returned {type(output).__name__} {whole}; expected tensors or arrays with {size} "
        "in the first dimension, tuples, dicts or dataclasses of them, or a list with one item per request"
    )


def as_called(batch: Any) -> Any:
    """A batch as the arguments of the model's ``forward`` (see :func:`call_model`)."""
    if isinstance(batch, dict):
        return batch
    return tuple(batch) if isinstance(batch, tuple | list) else (batch,)


class SameFailure:
    """Collects the messages of failed requests as long as they are alike.

    :ivar first: the first message.
    """

    def __init__(self) -> None:
        self.first = ""
        self._key, self._count, self._since_ns = "", 0, 0
        self._alike = True

    def add(self, message: str, now_ns: int) -> None:
        """Add a failed request."""
        key = _VARYING.sub("0", message)
        if not self._count:
            self.first, self._key, self._since_ns = message, key, now_ns
        self._alike = self._alike and key == self._key
        self._count += 1

    def given_up(self, ended: int, now_ns: int) -> str:
        """Why to end the replay; empty if it should go on. ``ended`` requests have ended, failed or not."""
        if not self._alike or self._count < max(ended, _REQUESTS) or now_ns - self._since_ns < _SPAN_NS:
            return ""
        return f"given up after {counted(ended, 'request')}, all of which failed in the same way: {self.first}"
