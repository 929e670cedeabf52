"""Expressions of whole columns give what they give for each request."""

from __future__ import annotations

import math

import numpy as np
import pytest

from latfix.traffic.feature_expressions import Expression

VALUES = [0.0, 1.0, -2.5, 7.0, 1e300, 4.5]


@pytest.mark.parametrize(
    "source",
    ["a", "-a + 2 * b", "a / b", "a // b", "a % b", "min(a, b, 3)", "max(a, b)", "round(a / 3)", "a * b * 1e300",
     "a * 1" + 400 * "0", "a + 1 / 0"],
)  # fmt: skip
def test_columns_give_what_single_values_give(source: str) -> None:
    expression = Expression.parse(source, "test")
    a, b = (grid.ravel() for grid in np.meshgrid(VALUES, VALUES))
    expected = []
    for pair in zip(a.tolist(), b.tolist(), strict=True):
        try:
            expected.append(float(expression.evaluate(dict(zip("ab", pair, strict=True)))))
        except ValueError:
            expected.append(math.nan)
    assert expression.of_columns({"a": a, "b": b}).tolist() == pytest.approx(expected, nan_ok=True)
