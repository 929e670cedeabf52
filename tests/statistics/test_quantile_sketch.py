"""Percentiles of values that pass by."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latfix.statistics.latency_summary import percentile_ns
from latfix.statistics.quantile_sketch import ExactPercentiles, LogHistogram

_WANTED = (0.0, 1.0, 50.0, 90.0, 99.0, 99.9, 100.0)


def _exact(values: np.ndarray[tuple[int], np.dtype[np.int64]], parts: int) -> dict[float, float]:
    histogram = LogHistogram()
    for part in np.array_split(values, parts):
        histogram.add(part)
    exact = ExactPercentiles(histogram, _WANTED)
    for part in np.array_split(values, parts):
        exact.add(part)
    return exact.values()


@given(st.lists(st.integers(0, 2**28), min_size=1, max_size=200), st.integers(1, 5))
def test_the_second_pass_is_exact(values: list[int], parts: int) -> None:
    array = np.array(values, np.int64)
    found = _exact(array, parts)
    for q in _WANTED:
        assert found[q] == pytest.approx(percentile_ns(array, q), rel=1e-12, abs=1e-6)


def test_large_values_are_exact_to_a_billionth() -> None:
    array = np.random.default_rng(1).integers(10**9, 4 * 10**11, 20_000)
    found = _exact(array, 7)
    for q in _WANTED:
        assert found[q] == pytest.approx(percentile_ns(array, q), rel=1e-8)


def test_one_pass_is_within_a_tenth_of_a_percent() -> None:
    array = (np.random.default_rng(2).lognormal(16, 1.0, 100_000)).astype(np.int64)
    histogram = LogHistogram()
    histogram.add(array)
    assert len(histogram) == len(array)
    for q in (1, 25, 50, 90, 99, 99.9):
        assert histogram.percentile(q) == pytest.approx(percentile_ns(array, q), rel=1e-3)


def test_histograms_add_up_and_negative_values_count_as_nothing() -> None:
    first, second, both = LogHistogram(), LogHistogram(), LogHistogram()
    first.add(np.array([5, 10, -3], np.int64))
    second.add(np.array([0, 7_000_000], np.int64))
    both.add(np.array([5, 10, -3, 0, 7_000_000], np.int64))
    first += second
    np.testing.assert_array_equal(first.counts, both.counts)
    assert both.percentile(0) == 0.0
    assert both.percentile(100) == pytest.approx(7_000_000, rel=1e-3)


def test_nothing_has_no_percentiles() -> None:
    assert LogHistogram().percentile(99) == 0.0
    assert ExactPercentiles(LogHistogram(), (50.0,)).values() == {}
