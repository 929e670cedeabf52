"""Shifts of medians in resamples."""

from __future__ import annotations

import numpy as np
import pytest

from latfix.profilers.attribution.tail import Median


@pytest.mark.parametrize("size", [0, 1, 2, 5, 777])
def test_medians_of_resamples(size: int) -> None:
    rng = np.random.default_rng(size)
    values, chosen = rng.integers(0, 40, size), rng.random(size) < 0.7
    counts = rng.integers(0, 3, (6, size))
    counts[:1] = 0
    drawn = [np.repeat(values[chosen], row[chosen]) for row in counts]
    wanted = [np.median(each) - np.median(values[chosen]) if len(each) else 0.0 for each in drawn]
    assert Median(values, chosen).moved(counts).tolist() == wanted
