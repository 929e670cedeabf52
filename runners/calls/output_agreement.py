"""Answers of two models side by side: when they agree, and how far apart their numbers are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Single numbers agree within this share of the larger one's size.
_TOLERANCE = 0.02
#: The largest deviation that another order of summation in float32 explains.
MOST_DEVIATION = 1e-3


@dataclass(frozen=True, slots=True)
class Difference:
    """How two lists of answers differ.

    :param compared: answers of the first list that are not failures.
    :param agreeing: those with which the second list agrees.
    :param deviation: the largest difference of two numbers, as a share of the largest number at that place in all
        answers of the first list; ``None`` where there are no numbers to compare.
    :param broken: answers that failed in the second list alone, or hold NaN or infinity where the first has numbers.
    """

    compared: int
    agreeing: int
    deviation: float | None
    broken: int


def flatten(output: Any) -> list[Any]:
    """An output as a list of NumPy arrays (of tensors, numbers and texts) in a fixed order."""
    if isinstance(output, dict):
        return [leaf for key in sorted(output, key=str) for leaf in flatten(output[key])]
    if isinstance(output, tuple | list):
        return [leaf for item in output for leaf in flatten(item)]
    if hasattr(output, "detach"):
        tensor = output.detach().cpu()
        return [(tensor.float() if tensor.is_floating_point() else tensor).numpy()]
    if isinstance(output, bool | int | float | str | np.generic | np.ndarray):
        return [np.asarray(output)]
    return [np.asarray(repr(output))]


def agree(expected: Sequence[Any], got: Sequence[Any]) -> bool:
    """Whether two flattened outputs agree.

    Vectors of floats (scores over classes, logits) agree where their largest entry is at the same place, single
    floats where they differ by at most 2 %, everything else where it is equal.
    """
    return len(expected) == len(got) and all(_leaf_agrees(a, b) for a, b in zip(expected, got, strict=True))


def deviation_of(expected: Any, got: Any) -> float:
    """The largest difference of the floats of two outputs, as a share of the largest number in the same tensor.

    Infinite where the outputs differ in shape, in where they hold NaN or infinity, or in texts or integers: those
    are labels and counts, which are the same or are not.
    """
    first, second = flatten(expected), flatten(got)
    if len(first) != len(second):
        return math.inf
    return max((_strict_deviation(a, b) for a, b in zip(first, second, strict=True)), default=0.0)


def difference(first: Sequence[list[Any] | None], second: Sequence[list[Any] | None]) -> Difference:
    """Compare flattened answers in the same order; what failed in the first list is left out.

    :raises ValueError: the lists are not of one length.
    """
    # A request that the original itself fails says nothing about a fix.
    judged = [(a, b) for a, b in zip(first, second, strict=True) if a is not None]
    agreeing = sum(b is not None and agree(a, b) for a, b in judged)
    scales = _scales([a for a, _ in judged])
    far = [None if b is None else _scaled_deviation(a, b, scales) for a, b in judged]
    known = [value for value in far if value is not None and math.isfinite(value)]
    broken = sum(b is None for _, b in judged) + sum(value == math.inf for value in far)
    return Difference(len(judged), agreeing, max(known, default=None), broken)


def _leaf_agrees(a: Any, b: Any) -> bool:
    if a.shape != b.shape:
        return False
    if a.dtype.kind != "f" or b.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    if a.ndim and a.shape[-1] > 1:
        return bool(np.array_equal(a.argmax(-1), b.argmax(-1)))
    return bool(np.allclose(a, b, rtol=_TOLERANCE, atol=1e-6, equal_nan=True))


def _largest(leaf: Any) -> float:
    """The size of the largest finite number of an array; 0 where it has none."""
    return float(np.abs(leaf[np.isfinite(leaf)]).max(initial=0.0))


def _scales(answers: Sequence[Sequence[Any]]) -> list[float]:
    """The largest finite number at each place of the answers: one alone may happen to be next to zero."""
    scales = [0.0] * max((len(leaves) for leaves in answers), default=0)
    for leaves in answers:
        for place, leaf in enumerate(leaves):
            if leaf.dtype.kind == "f":
                scales[place] = max(scales[place], _largest(leaf))
    return scales


def _strict_deviation(a: Any, b: Any) -> float:
    if a.shape != b.shape:
        return math.inf
    if a.dtype.kind != "f" or b.dtype.kind != "f":
        return 0.0 if np.array_equal(a, b) else math.inf
    odd = ~np.isfinite(a)
    if not np.array_equal(a[odd], b[odd], equal_nan=True):
        return math.inf
    return _deviation(a, b, _largest(a)) or 0.0


def _scaled_deviation(expected: Sequence[Any], got: Sequence[Any], scales: Sequence[float]) -> float | None:
    if len(expected) != len(got):
        return None
    found = [
        _deviation(a, b, scale)
        for a, b, scale in zip(expected, got, scales, strict=False)
        if a.dtype.kind == "f" and b.dtype.kind == "f" and a.shape == b.shape
    ]
    return max((value for value in found if value is not None), default=None)


def _deviation(a: Any, b: Any, scale: float) -> float | None:
    """The largest difference where ``a`` is finite, over ``scale`` if that is not 0; infinite where ``b`` is not
    finite there, ``None`` where ``a`` is nowhere."""
    usable = np.isfinite(a)
    if not usable.any():
        return None
    if not np.isfinite(b[usable]).all():
        return math.inf
    return float(np.abs(a[usable].astype(np.float64) - b[usable]).max()) / (scale or 1.0)
