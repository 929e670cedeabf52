"""Percentiles of all that arrived: lost requests are slower than any answer, requests in flight are censored."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latfix.lower_bound import AtLeast
from latfix.stages import Status
from latfix.statistics.censored import Outcomes, answered_ranks, outcomes_of
from latfix.statistics.latency_summary import QUANTILES, percentile_ns
from latfix.statistics.quantile_sketch import LogHistogram

MS = 1e6
ALL = (0.0, 1.0, 25.0, 50.0, 90.0, 99.0, 99.9, 100.0)


def _outcomes(waited_ms: Sequence[float], statuses: Sequence[int]) -> Outcomes:
    return Outcomes.of(np.array(waited_ms) * MS, statuses)


def test_timeouts_cannot_improve_a_percentile() -> None:
    waited = [*np.linspace(8.0, 10.0, 524), *[12.0] * 76]
    figures = _outcomes(waited, [Status.OK] * 524 + [Status.TIMEOUT] * 76).summary_ms()
    survivors = np.percentile(waited[:524], 99)
    p99 = figures["p99"]
    assert survivors < 10.1 and isinstance(p99, AtLeast) and p99.bound == pytest.approx(12.0)
    assert math.isinf(p99) and not p99 < 15
    assert 8.0 < figures["p50"] < 10.0 and figures["mean"] == pytest.approx(9.0)
    assert isinstance(figures["max"], AtLeast)


@given(st.lists(st.tuples(st.floats(1, 1e9), st.sampled_from([0, 1, 2, 3])), min_size=1, max_size=60))
def test_lost_requests_are_slower_than_any_answer(rows: list[tuple[float, int]]) -> None:
    waited, statuses = (np.array(column) for column in zip(*rows, strict=True))
    found = Outcomes.of(waited, statuses).percentiles_ns(ALL)
    beyond = np.sort(np.where(statuses == 0, waited, 1e30))
    for q, value in zip(ALL, found, strict=True):
        expected = percentile_ns(beyond, q)
        if isinstance(value, AtLeast):
            assert expected > 1e10 and value.bound <= waited.max()
        else:
            assert value == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_requests_in_flight_are_censored_as_by_kaplan_and_meier(seed: int) -> None:
    rng = np.random.default_rng(seed)
    latency = rng.lognormal(2, 0.8, 900)
    cut = rng.random(900) < 0.2
    waited = np.where(cut, latency * rng.random(900), latency)
    found = Outcomes.of(waited, np.where(cut, Status.UNFINISHED, Status.OK)).percentiles_ns((10.0, 50.0, 90.0, 98.0))
    from scipy.stats import CensoredData, ecdf  # takes most of a second

    steps = ecdf(CensoredData(uncensored=waited[~cut], right=waited[cut])).cdf
    for q, value in zip((10.0, 50.0, 90.0, 98.0), found, strict=True):
        assert steps.evaluate(value) == pytest.approx(q / 100, abs=0.004)


@given(st.lists(st.tuples(st.floats(1, 1e9), st.sampled_from([0, 1, 2, 3])), min_size=1, max_size=60))
def test_no_lower_bound_is_below_a_lower_percentile(rows: list[tuple[float, int]]) -> None:
    waited, statuses = zip(*rows, strict=True)
    outcomes = Outcomes.of(waited, statuses)
    found = outcomes.percentiles_ns(ALL)
    least = [value.bound if isinstance(value, AtLeast) else value for value in found]
    assert least == pytest.approx(np.maximum.accumulate(least))
    assert [outcomes.percentiles_ns([q])[0] for q in ALL[3:]] == found[3:]


def test_requests_lost_early_do_not_hide_how_slow_the_others_are() -> None:
    figures = _outcomes([790.0] * 60 + [5.0] * 40, [Status.OK] * 60 + [Status.ERROR] * 40).summary_ms()
    assert figures["p50"] == pytest.approx(790) and str(figures["p90"]) == "AtLeast(790.0)"


def test_a_hung_request_is_lost_with_a_long_lower_bound() -> None:
    hung = _outcomes([*[5.0] * 390, *[60_000.0] * 10], [Status.OK] * 390 + [Status.UNFINISHED] * 10).summary_ms()
    assert hung["p95"] == pytest.approx(5.0)
    assert isinstance(hung["p99"], AtLeast) and hung["p99"].bound == pytest.approx(60_000.0)


def test_a_request_shed_on_arrival_is_lost() -> None:
    shed = _outcomes([*[5.0] * 95, *[0.0] * 5], [Status.OK] * 95 + [Status.SHED] * 5).summary_ms()
    assert shed["p90"] == pytest.approx(5.0) and isinstance(shed["p99"], AtLeast)


def test_unknown_is_not_zero() -> None:
    assert all(math.isnan(value) for value in Outcomes.answers([]).summary_ms().values())
    failed = _outcomes([3.0, 4.0], [Status.ERROR, Status.ERROR]).summary_ms()
    assert math.isnan(failed["mean"]) and all(isinstance(failed[key], AtLeast) for key in QUANTILES)


@pytest.mark.parametrize("lost", [0, 5, 40])
def test_an_interval_holds_its_figure_and_is_open_where_lost_requests_reach_it(lost: int) -> None:
    waited = np.random.default_rng(lost).lognormal(2, 0.5, 800) * MS
    statuses = np.where(np.arange(800) % 20 == 0, Status.TIMEOUT, Status.OK) if lost == 40 else np.zeros(800)
    statuses[:lost] = Status.TIMEOUT
    outcomes = Outcomes.of(waited, statuses)
    figures, intervals = outcomes.summary_ms(), outcomes.intervals_ms(seed=0)
    assert all(lo <= figures[key] <= hi for key, (lo, hi) in intervals.items())
    assert math.isfinite(intervals["p50"][1]) and math.isfinite(intervals["mean"][1])
    assert math.isinf(intervals["p99"][1]) == (lost > 0)


def test_ranks_from_a_histogram_are_those_of_the_values() -> None:
    rng = np.random.default_rng(3)
    latency = rng.lognormal(15, 1, 20_000).astype(np.int64)
    statuses = rng.choice([0, 0, 0, 0, 0, 0, 0, 2, 4], 20_000)
    outcomes, answered, cut = Outcomes.of(latency, statuses), LogHistogram(), LogHistogram()
    answered.add(latency[statuses == 0])
    cut.add(latency[statuses == 4])
    wanted = (5.0, 50.0, 80.0, 99.0)
    ranks = answered_ranks(answered.counts, cut.counts, len(latency), wanted)
    ok = np.sort(latency[statuses == 0])
    for rank, value in zip(ranks, outcomes.percentiles_ns(wanted), strict=True):
        assert math.isnan(rank) == isinstance(value, AtLeast)
        if not math.isnan(rank):
            assert ok[int(rank)] == pytest.approx(value, rel=0.01)


def test_a_record_in_pieces_has_the_same_outcomes() -> None:
    class Pieces:
        def scan(self, names: object) -> object:
            assert set(names) == {"latency_ns", "warmup", "status"}  # type: ignore[call-overload]
            yield {"latency_ns": np.array([1, 2]), "warmup": np.array([1, 0]), "status": np.array([0, 0])}
            yield {"latency_ns": np.array([3, 4]), "warmup": np.array([0, 0]), "status": np.array([1, 0])}

    found = outcomes_of(Pieces())  # type: ignore[arg-type]
    assert found.ok_ns.tolist() == [2, 4] and found.waited_ns.tolist() == [2, 3, 4]
