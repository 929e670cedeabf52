"""Deviation of two outputs, number by number, for a conversion that should change only rounding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from latfix.runners.answers.named_outputs import Array, outputs_of


def deviation_of(expected: Any, got: Any) -> float:
    """Largest difference of the floats of two outputs, as a share of the largest number in the same tensor.

    Infinite if the outputs differ in structure, shape, positions of NaN or infinity, texts or integers.
    """
    first, second = outputs_of(expected), outputs_of(got)
    if [output.name for output in first] != [output.name for output in second]:
        return math.inf
    return max((_deviation(a.values, b.values) for a, b in zip(first, second, strict=True)), default=0.0)


def _deviation(a: Array, b: Array) -> float:
    if a.shape != b.shape:
        return math.inf
    if a.dtype.kind != "f" or b.dtype.kind != "f":
        return 0.0 if np.array_equal(a, b) else math.inf
    finite = np.isfinite(a)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(b[finite]).all():
        return math.inf
    largest = float(np.abs(a[finite]).max(initial=0.0))
    apart = float(np.abs(a[finite].astype(np.float64) - b[finite]).max(initial=0.0))
    return apart / (largest or 1.0)
