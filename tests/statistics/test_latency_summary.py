"""Percentiles, blocks and intervals of one run, on numbers whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from latfix.formatting import LATENCY_KEYS
from latfix.statistics.block_bootstrap import (
    SortedSample,
    block_counts,
    block_length,
    block_sums,
    default_block,
    evidence,
    iter_block_starts,
    sliding_sums,
)
from latfix.statistics.distributions import normal_quantile, student_t, wilson_interval
from latfix.statistics.latency_summary import QUANTILES, percentile_ns, summarize_ms, summary_intervals_ms

Floats = npt.NDArray[np.float64]


def _served(gaps: Floats, service: Floats) -> Floats:
    """Latencies of a first-come-first-served queue with one worker."""
    wait, out = 0.0, np.empty(len(service))
    for i, (gap, work) in enumerate(zip(gaps.tolist(), service.tolist(), strict=True)):
        wait = max(0.0, wait - gap)
        out[i] = wait = wait + work
    return out


def _latencies(rng: np.random.Generator, n: int) -> Floats:
    """Autocorrelated: a queue at half load, log-normal work."""
    work = np.exp(rng.normal(0, 0.6, n))
    gaps = rng.exponential(work.mean() / 0.5, n)
    return _served(gaps, work * np.exp(rng.normal(0, 0.1, n)))


# --- summaries ---------------------------------------------------------------------------------------------


def test_nothing_is_zero() -> None:
    assert summarize_ms([]) == dict.fromkeys(LATENCY_KEYS, 0.0)
    assert summary_intervals_ms([], seed=0) == dict.fromkeys(LATENCY_KEYS, (0.0, 0.0))
    assert percentile_ns([], 99) == 0.0


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=60))
def test_summary_agrees_with_numpy(values: list[int]) -> None:
    summary = summarize_ms(values)
    assert tuple(summary) == LATENCY_KEYS and summary["max"] == max(values) / 1e6
    for key, q in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99), ("p99_9", 99.9)):
        assert summary[key] == pytest.approx(np.percentile(values, q) / 1e6, rel=1e-9, abs=1e-12)
        assert percentile_ns(values, q) == pytest.approx(np.percentile(values, q))
    assert summary["mean"] == pytest.approx(np.mean(values) / 1e6)


@example([2.2250738585e-313, 180144000000.0], 0)  # so small a latency that a ratio to it is no number
@settings(max_examples=60)
@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=60), st.integers(0, 99))
def test_intervals_hold_the_value(values: list[float], seed: int) -> None:
    summary, intervals = summarize_ms(values), summary_intervals_ms(values, seed=seed, replicates=50)
    for key in LATENCY_KEYS:
        lo, hi = intervals[key]
        assert math.isfinite(lo) and (math.isfinite(hi) or key in QUANTILES or len(values) < 6)
        assert math.isinf(hi) or hi <= 2 * max(values) / 1e6 * (1 + 1e-9)
        assert lo <= summary[key] * (1 + 1e-9) and summary[key] <= hi * (1 + 1e-9) + 1e-12


def test_intervals_of_one_run_hold_the_truth() -> None:
    """At half load; the coverage that the docstring states, with room for chance."""
    rng = np.random.default_rng(1)
    long = _latencies(rng, 200_000) * 1e6
    truth = summarize_ms(long)
    held = dict.fromkeys(("mean", "p50", "p90", "p99"), 0)
    for k in range(100):
        part = long[k * 2000 : (k + 1) * 2000]
        intervals = summary_intervals_ms(part, seed=k, replicates=200)
        for key in held:
            held[key] += intervals[key][0] <= truth[key] <= intervals[key][1]
    assert held["mean"] >= 85 and held["p50"] >= 85 and held["p90"] >= 85, held
    assert held["p99"] >= 78, held


def test_more_requests_give_narrower_intervals() -> None:
    latencies = np.random.default_rng(2).lognormal(size=8000) * 1e6
    few, many = summary_intervals_ms(latencies[:500], seed=0), summary_intervals_ms(latencies, seed=0)
    for key in ("mean", "p50", "p99"):
        assert many[key][1] / many[key][0] < few[key][1] / few[key][0]


def test_p99_of_a_hundred_requests_does_not_end_at_their_maximum() -> None:
    latencies = np.random.default_rng(3).lognormal(size=100) * 1e6
    assert summary_intervals_ms(latencies, seed=0)["p99"][1] > latencies.max() / 1e6


def test_a_single_request_bounds_neither_mean_nor_percentile() -> None:
    """A gate on its mean would pass as if the figure were exact."""
    found = summary_intervals_ms([5e6], seed=0)
    assert {found[key] for key in ("mean", "p50", "p99")} == {(0.0, math.inf)}
    assert found["max"] == (5.0, 5.0)


def test_equal_latencies_claim_no_more_than_their_number_supports() -> None:
    """If p99 were higher, 300 requests would all stay below it with a chance of 5 %, 1,000 with none."""
    few, some, many = (summary_intervals_ms([5e6] * n, seed=0) for n in (2, 300, 1000))
    assert few["p99"] == (5.0, math.inf) and few["p50"] == few["mean"] == (0.0, math.inf)
    assert some["p99"] == (5.0, math.inf) and some["p50"] == some["mean"] == (5.0, 5.0)
    assert many["p99"] == (5.0, 5.0) and many["p99_9"] == (5.0, math.inf)


@pytest.mark.parametrize("n", [2, 3, 5, 6, 10])
def test_intervals_of_a_few_requests_hold_the_truth(n: int) -> None:
    rng, held = np.random.default_rng(n), dict.fromkeys(("p50", "p99"), 0)
    truth = {"p50": 1.0, "p99": math.exp(0.5 * normal_quantile(0.98))}
    for _ in range(400):
        found = summary_intervals_ms(rng.lognormal(0, 0.5, n) * 1e6, seed=0, replicates=2)
        for key in held:
            held[key] += found[key][0] <= truth[key] <= found[key][1]
    assert min(held.values()) >= 360, held


def test_an_end_that_nothing_measured_supports_is_open() -> None:
    """Five slow first requests of 460: their power law would reach minutes."""
    latencies = np.concatenate([np.full(5, 500.0), np.random.default_rng(3).lognormal(1, 0.3, 455)]) * 1e6
    found = summary_intervals_ms(latencies, seed=0)
    assert found["p99_9"][0] < 500 and math.isinf(found["p99_9"][1])
    assert found["mean"][1] <= 500


# --- blocks ------------------------------------------------------------------------------------------------


@given(st.integers(1, 120), st.integers(1, 30), st.integers(0, 2**32))
def test_a_resample_consists_of_runs_of_neighbors(n: int, block: int, seed: int) -> None:
    block = min(block, n)
    starts = np.array(list(iter_block_starts(n, block=block, replicates=3, rng=np.random.default_rng(seed))))
    drawn = [[(start + k) % n for start in row for k in range(block)][:n] for row in starts.tolist()]
    expected = [np.bincount(row, minlength=n).tolist() for row in drawn]
    assert block_counts(n, starts, block).tolist() == expected
    assert block_counts(n, starts[0], block).tolist() == expected[0]


@given(st.lists(st.integers(0, 50) | st.just(math.nan), min_size=1, max_size=40), st.integers(0, 2**32))
def test_statistics_from_counts_are_those_of_each_resample(values: list[float], seed: int) -> None:
    series = np.array(values, dtype=np.float64)
    rows = np.random.default_rng(seed).integers(0, len(series), (3, len(series)))
    counts = np.stack([np.bincount(row, minlength=len(series)) for row in rows])
    found = SortedSample.of(series).statistics((0.5, 0.99), counts)
    for drawn, statistics, count in zip(series[rows], found, counts, strict=True):
        known = drawn[~np.isnan(drawn)]
        expected = [known.mean(), *np.percentile(known, [50, 99]), known.max()] if len(known) else [math.nan] * 4
        assert statistics.tolist() == pytest.approx(expected, nan_ok=True)
        assert SortedSample.of(series).statistics((0.5, 0.99), count).tobytes() == statistics.tobytes()


def test_missing_requests_are_left_out_of_statistics() -> None:
    series = [5.0, math.nan, 1.0, math.nan, 3.0]
    assert SortedSample.of(series).statistics((0.5,)).tolist() == [3.0, 3.0, 5.0]
    assert np.isnan(SortedSample.of([math.nan]).statistics((0.5,))).all()


def test_block_length_follows_dependence() -> None:
    rng = np.random.default_rng(5)
    noise = rng.normal(size=4000)
    smooth = np.convolve(rng.normal(size=4200), np.ones(100) / 100, mode="same")[:4000]
    assert block_length(noise) == default_block(4000) == 32
    assert block_length(smooth) > 2 * default_block(4000)
    assert block_length(smooth) <= 500
    assert block_length(np.ones(100)) == default_block(100)
    assert [default_block(n) for n in (0, 1, 10, 100)] == [1, 1, 1, 9]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.integers(1, 50))
def test_sliding_and_block_sums(values: list[float], block: int) -> None:
    each, n = np.array(values), len(values)
    block = min(block, n)
    assert sliding_sums(each, block).tolist() == pytest.approx(
        [sum(values[(i + k) % n] for k in range(block)) for i in range(n)], abs=1e-6
    )
    assert block_sums(each, block).sum() == pytest.approx(each.sum(), abs=1e-6)


def test_evidence_counts_outstanding_blocks() -> None:
    assert evidence(np.ones(40)) == pytest.approx(40)
    assert evidence(np.array([9.0, -9.0, *[0.0] * 98])) == pytest.approx(2)
    assert evidence(np.zeros(5)) == 1.0


# --- distributions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (10, 2.22814), (120, 1.97993)]
)
def test_student_t_is_the_table_s(freedom: int, expected: float) -> None:
    assert student_t(0.95, freedom) == pytest.approx(expected, rel=1e-5)


def test_student_t_falls_to_the_normal() -> None:
    quantiles = [student_t(0.95, freedom) for freedom in (1, 1.5, 2, 2.5, 7.3, 50, 200, 201, 1000)]
    assert quantiles == sorted(quantiles, reverse=True)
    assert student_t(0.95, 0.5) == student_t(0.95, 1)
    assert student_t(0.95, 1e9) == pytest.approx(normal_quantile(0.95)) == pytest.approx(1.959964)


def test_wilson_interval() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert list(wilson_interval(0, 100)) == pytest.approx([0.0, 0.0370], abs=1e-4)
    assert list(wilson_interval(10, 100)) == pytest.approx([0.0552, 0.1744], abs=1e-4)
    assert wilson_interval(7, 7)[1] == 1.0


def test_a_million_requests_fit_in_memory_and_time() -> None:
    latencies = np.random.default_rng(11).lognormal(size=1_000_000) * 1e6
    lo, hi = summary_intervals_ms(latencies, seed=0, replicates=50)["p99"]
    assert hi / lo < 1.05
