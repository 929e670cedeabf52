"""Any percentile: its key, its value, and an interval that agrees with the summary's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latfix.statistics.censored import Outcomes
from latfix.statistics.latency_summary import QUANTILES, summarize_ms, summary_intervals_ms
from latfix.statistics.percentiles import (
    GRID,
    beyond_summary,
    percentile_figures,
    percentile_grid,
    percentile_key,
    percentile_of,
)


@given(st.integers(10_000, 999_999).map(lambda k: k / 10_000))
def test_a_key_names_its_percentile(percentile: float) -> None:
    key = percentile_key(percentile)
    assert percentile_of(key) == percentile
    assert percentile_of(key.replace("_", ".")) == percentile


@pytest.mark.parametrize(
    "text", ["", "p", "p0", "p0.99", "p100", "p00", "p1e1", "p99.", "p99_99999", "mean", "p٣", "p9 9"]
)
def test_invalid_percentiles(text: str) -> None:
    assert percentile_of(text) is None


def test_keys_are_those_of_the_summary() -> None:
    assert [percentile_key(100 * q) for q in QUANTILES.values()] == list(QUANTILES)
    assert beyond_summary(["p99", "p97.5", "mean", "throughput", "p999", "p10", "p97.5"]) == (97.5, 10.0)


@pytest.mark.parametrize("n", [1, 2, 5, 40, 1000])
def test_values_and_intervals_are_the_summary_s_where_both_have_them(n: int) -> None:
    latencies = np.random.default_rng(n).lognormal(16, 0.8, n)
    wanted = tuple(100 * q for q in QUANTILES.values())
    values, intervals = percentile_figures(Outcomes.answers(latencies), wanted)
    summary, known = summarize_ms(latencies), summary_intervals_ms(latencies, seed=0)
    for key in QUANTILES:
        assert values[key] == pytest.approx(summary[key])
        assert intervals[key][0] <= values[key] * (1 + 1e-12) and values[key] <= intervals[key][1] * (1 + 1e-12)
        if n >= 40:
            assert intervals[key] == pytest.approx(known[key], rel=1e-9)


def test_intervals_of_low_percentiles_hold_the_truth() -> None:
    held = 0
    for seed in range(200):
        sample = np.random.default_rng(seed).exponential(1e7, 400)
        low, high = percentile_figures(Outcomes.answers(sample), [20.0])[1]["p20"]
        held += low <= -10 * np.log(0.8) <= high
    assert held >= 180


def test_nothing_has_no_percentiles() -> None:
    assert math.isnan(percentile_figures(Outcomes.answers([]), [97.0])[0]["p97"])
    assert percentile_grid(Outcomes.answers([])) == {}


def test_the_grid_holds_percentiles_that_gates_often_use() -> None:
    grid = percentile_grid(Outcomes.answers(np.arange(1, 100_001) * 1e6))
    assert len(grid) == len(GRID)
    assert {"p1", "p50", "p90_5", "p97", "p99", "p99_5", "p99_9", "p99_99"} <= set(grid)
    assert grid["p97"] == pytest.approx(97_000, rel=1e-4)
    assert list(grid.values()) == sorted(grid.values())
