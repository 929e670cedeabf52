"""An answer as named arrays in a fixed order, for any structure that ``finish`` or a model returns."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sys
from collections.abc import Sequence
from enum import Enum
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
#: In the ``repr`` of an object that does not show its content.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
#: Types whose content is not their attributes.
_VALUES = (list, tuple, set, frozenset, str, bytes, int, float, complex, Enum)


class Output(NamedTuple):
    """One output of an answer.

    :param name: keys and positions that lead to it, joined by dots; empty if the answer has only one output.
    """

    name: str
    values: Array


#: ``None`` stands for a request that failed.
Answer = list[Output]
Answers = Sequence[Answer | None]


def says_nothing(values: Array) -> bool:
    """True if all values are NaN."""
    return values.dtype.kind == "f" and values.size > 0 and bool(np.isnan(values).all())


def outputs_of(answer: Any, names: Sequence[str] = ()) -> Answer:
    """An answer as arrays of its tensors, numbers and texts.

    A list of numbers, or of texts, is one output; the items of other lists share one name. For complex numbers the
    real parts come first, then the imaginary ones. A JSON object or list in a text is its content. An object of
    another type is its attributes, or its ``repr`` if it has none; a set is in the order of its items' ``repr``.
    ``None`` is no output, nor is an object that shows no content, such as a generator: nothing to compare.

    :param names: names of the outputs in order, if a model file has them.
    """
    if names and isinstance(answer, tuple) and len(answer) == len(names):
        return [output for name, item in zip(names, answer, strict=True) for output in _walked(item, name)]
    alone = len(names) == 1 and not isinstance(answer, dict | tuple | list)
    return list(_walked(answer, names[0] if alone else ""))


def _walked(value: Any, name: str, inside: tuple[int, ...] = ()) -> list[Output]:
    """The outputs in a value; ``inside`` are the objects that hold it, which may refer to themselves."""
    if isinstance(value, str | bytes) and value[:1] in ("{", "[", b"{", b"["):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
    if (fields := _attributes(value)) is not None and id(value) not in inside:
        value, inside = fields, (*inside, id(value))
    elif isinstance(value, set | frozenset):
        value = sorted(value, key=repr)
    if isinstance(value, dict):
        parts = [(str(key), value[key]) for key in sorted(value, key=str)]
    elif isinstance(value, tuple | list) and not _is_row(value):
        parts = [("*" if isinstance(value, list) else str(k), item) for k, item in enumerate(value)]
    else:
        values = None if value is None else _array_of(value)
        return [] if values is None else [Output(name, values)]
    return [output for key, item in parts for output in _walked(item, f"{name}.{key}" if name else key, inside)]


def _attributes(value: Any) -> dict[str, Any] | None:
    """The attributes of an object with content of its own; ``None`` for any other value."""
    if isinstance(value, dict | type):
        return None
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    import torch

    kind: Any = type(value)
    if isinstance(value, (*_VALUES, torch.nn.Module)) or hasattr(kind, "__array__"):
        return None
    standard = kind.__module__.partition(".")[0] in sys.stdlib_module_names and kind is not SimpleNamespace
    if hasattr(kind, "__array_interface__") or (standard and kind.__repr__ is not object.__repr__):
        return None  # a logger, a module: what they refer to is no content
    slots = getattr(kind, "__match_args__", ())  # of attrs and msgspec
    return getattr(value, "__dict__", None) or {each: getattr(value, each) for each in slots} or None


def _array_of(value: Any) -> Array | None:
    import torch

    if isinstance(value, torch.Tensor):
        value = _dense(value.detach().cpu().resolve_conj().resolve_neg())
    elif not isinstance(value, type) and (hasattr(value, "__array__") or hasattr(value, "__array_interface__")):
        value = np.asarray(value)  # also an image of Pillow, or a column of pandas
    if isinstance(value, bool | int | float | complex | str | np.generic | np.ndarray | tuple | list):
        return _elements(np.asarray(value))
    if isinstance(value, torch.nn.Module):  # what answered is no answer: a fix may change it
        return None
    text = repr(value)
    return None if _ADDRESS.search(text) else np.asarray(text)


def _dense(tensor: Any) -> Array:
    """A tensor on the host of any layout; NumPy has no quantized numbers, and no floats of 16 bits in all formats."""
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    tensor = tensor if str(tensor.layout) == "torch.strided" else tensor.to_dense()
    narrow = tensor.is_floating_point() and tensor.element_size() < 4
    return np.asarray((tensor.float() if narrow else tensor).numpy())


def _elements(values: Array) -> Array:
    """Complex numbers in two parts; objects, such as integers beyond 64 bits, as texts."""
    if values.dtype.kind == "c":
        return np.stack([values.real, values.imag])
    if not values.dtype.hasobject:
        return values
    return np.array([str(each) for each in values.ravel()], dtype=np.str_).reshape(values.shape)


def _is_row(items: Sequence[Any]) -> bool:
    """True if the items are all numbers or all texts, so that they form one array."""
    return all(isinstance(item, bool | int | float) for item in items) or all(isinstance(item, str) for item in items)
