"""An answer as named arrays in a fixed order, for any structure that ``finish`` or a model returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Output(NamedTuple):
    """One output of an answer.

    :param name: keys and positions that lead to it, joined by dots; empty if the answer has only one output.
    """

    name: str
    values: Array


#: ``None`` stands for a request that failed.
Answer = list[Output]
Answers = Sequence[Answer | None]


def outputs_of(answer: Any, names: Sequence[str] = ()) -> Answer:
    """An answer as arrays of its tensors, numbers and texts.

    A list of numbers, or of texts, is one output; the items of other lists share one name. For complex numbers the
    real parts come first, then the imaginary ones.

    :param names: names of the outputs in order, if a model file has them.
    """
    if names and isinstance(answer, tuple) and len(answer) == len(names):
        return [output for name, item in zip(names, answer, strict=True) for output in _walked(item, name)]
    alone = len(names) == 1 and not isinstance(answer, dict | tuple | list)
    return list(_walked(answer, names[0] if alone else ""))


def _walked(value: Any, name: str) -> list[Output]:
    if not isinstance(value, dict | type) and dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return [output for key in sorted(value, key=str) for output in _walked(value[key], _under(name, str(key)))]
    if isinstance(value, tuple | list) and not _is_row(value):
        places = ["*"] * len(value) if isinstance(value, list) else [str(k) for k in range(len(value))]
        return [output for k, item in zip(places, value, strict=True) for output in _walked(item, _under(name, k))]
    if hasattr(value, "detach"):
        tensor = value.detach().cpu().resolve_conj().resolve_neg()
        value = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    if isinstance(value, bool | int | float | complex | str | np.generic | np.ndarray | tuple | list):
        return [Output(name, _elements(np.asarray(value)))]
    return [Output(name, np.asarray(repr(value)))]


def _elements(values: Array) -> Array:
    """Complex numbers in two parts; objects, such as integers beyond 64 bits, as texts."""
    if values.dtype.kind == "c":
        return np.stack([values.real, values.imag])
    if not values.dtype.hasobject:
        return values
    return np.array([str(each) for each in values.ravel()], dtype=np.str_).reshape(values.shape)


def _under(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _is_row(items: Sequence[Any]) -> bool:
    """True if the items are all numbers or all texts, so that they form one array."""
    return all(isinstance(item, bool | int | float) for item in items) or all(isinstance(item, str) for item in items)
