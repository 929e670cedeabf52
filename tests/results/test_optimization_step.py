"""The rule that decides about a fix, and the entry that it leaves in optimization.json."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latfix.formatting import LATENCY_KEYS
from latfix.results.comparison import Comparison, Summary
from latfix.results.optimization import Prediction
from latfix.results.optimization_step import Step, ablation
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import REQUEST_DTYPE
from latfix.runners.optimize.screening_decision import compare_windows, decide, decide_cold, joined, shown, waited_ms
from latfix.stages import Status
from latfix.statistics.decision import RatioEstimate
from latfix.traffic.schedule import Traffic
from tests.records import build_record, zeros

Bounds = tuple[float, float, float]


def summary(ok: int = 1000, lost: int = 0) -> Summary:
    return Summary(
        latency_ms=dict.fromkeys(LATENCY_KEYS, 10.0),
        latency_ci95_ms={},
        throughput_rps=50.0,
        requests={"ok": ok, "error": 0, "timeout": lost, "shed": 0},
    )


def comparison(p95: Bounds, mean: Bounds, *, lost: int = 0) -> Comparison:
    """Ratios as value, lower and upper end."""
    known = {"p95": p95, "mean": mean, "p99": (1.0, 0.1, 9.0)}
    return Comparison(
        before=summary(),
        after=summary(1000 - lost, lost),
        ratio={key: RatioEstimate(value=v, lo=lo, hi=hi) for key, (v, lo, hi) in known.items()},
        verdict="undecided",
    )


BETTER, WORSE, SAME, WIDE = (0.5, 0.4, 0.6), (1.5, 1.4, 1.6), (1.0, 0.98, 1.02), (1.0, 0.6, 1.5)


@pytest.mark.parametrize(
    ("p95", "mean", "status"),
    [
        (BETTER, SAME, "kept"),
        (BETTER, BETTER, "kept"),
        (BETTER, WIDE, "kept"),
        ((0.98, 0.8, 1.2), BETTER, "kept"),  # by the mean, with a tail that is not higher
        ((1.02, 0.8, 1.2), BETTER, "undecided"),
        (WORSE, BETTER, "rejected"),
        (WORSE, SAME, "rejected"),
        (WIDE, WORSE, "rejected"),
        (SAME, WORSE, "rejected"),
        (SAME, SAME, "no_gain"),
        (SAME, (1.03, 0.99, 1.06), "undecided"),
        ((0.97, 0.94, 1.01), SAME, "undecided"),
        (WIDE, SAME, "undecided"),
        (WIDE, WIDE, "undecided"),
        ((math.nan,) * 3, (math.nan,) * 3, "undecided"),
    ],
)
def test_status_by_the_intervals(p95: Bounds, mean: Bounds, status: str) -> None:
    found, reason = decide(comparison(p95, mean))
    assert found == status, reason
    for name, (value, _, _) in (("p95", p95), ("mean", mean)):
        assert f"{name} {'unknown' if math.isnan(value) else f'x{value:.2f}'}" in reason


@pytest.mark.parametrize(
    ("p95", "mean", "status"),
    [
        ((0.3, 0.2, 0.79), WIDE, "kept"),
        ((0.3, 0.2, 0.81), WIDE, "undecided"),
        ((0.9, 0.5, 1.6), (0.4, 0.2, 0.79), "kept"),
        ((1.1, 0.5, 1.6), (0.4, 0.2, 0.79), "undecided"),
        ((1.8, 1.26, 2.6), WIDE, "rejected"),
        ((1.8, 1.24, 2.6), WIDE, "undecided"),
        ((1.1, 0.5, 2.6), (1.5, 1.26, 1.9), "rejected"),
    ],
)
def test_a_large_change_needs_less_than_the_decision_bounds(p95: Bounds, mean: Bounds, status: str) -> None:
    found = comparison(p95, mean)
    open_bounds = {key: replace(each, decision=(0.0, math.inf)) for key, each in found.ratio.items()}
    assert decide(replace(found, ratio=open_bounds))[0] == status


@pytest.mark.parametrize(
    ("goal", "p95", "mean", "lost", "status"),
    [
        ("mean", WORSE, BETTER, 0, "kept"),
        ("mean", BETTER, WORSE, 0, "rejected"),
        ("mean", BETTER, SAME, 0, "no_gain"),
        ("mean", SAME, BETTER, 5, "undecided"),  # it is the mean of the others
        ("p50", WORSE, BETTER, 0, "kept"),
        ("p50", WORSE, BETTER, 5, "kept"),
        ("p99", WORSE, BETTER, 0, "rejected"),
    ],
)
def test_the_goal_takes_the_place_of_the_tail(goal: str, p95: Bounds, mean: Bounds, lost: int, status: str) -> None:
    found = comparison(p95, mean, lost=lost)
    found = replace(found, ratio={**found.ratio, "p50": found.ratio["mean"]})
    assert decide(found, goal)[0] == status


def test_a_mean_of_more_of_the_requests_is_not_worse() -> None:
    """Before, 100 of them were lost, the slow ones: the others had the lower mean."""
    found = replace(comparison(WIDE, WORSE), before=summary(900, 100))
    assert decide(found)[0] == "undecided"
    assert decide(replace(found, before=summary(995, 5)))[0] == "rejected"


def test_requests_that_timed_out_count_as_slow_as_they_had_waited() -> None:
    lossy, whole = _record(np.full(100, 20.0), "a"), _record(np.full(100, 30.0), "a")
    lossy.requests["latency_ns"][:50] = 50_000_000
    lossy.requests["status"][:50] = Status.TIMEOUT
    before, after = waited_ms(lossy), waited_ms(whole)
    assert (before["mean"], after["mean"]) == (35.0, 30.0)


def test_lost_requests_are_no_gain_in_latency() -> None:
    assert decide(comparison(BETTER, BETTER, lost=9))[0] == "kept"
    status, reason = decide(comparison(BETTER, BETTER, lost=11))
    assert status == "rejected"
    assert "1.1 %" in reason


#: As the contract names them.
KEYS = {"fix", "status", "reason", "ratio", "predicted_p99_ms", "p99_ms", "accuracy", "verified"}


def test_an_entry_has_the_keys_of_the_contract() -> None:
    step = Step(
        fix="gc.freeze",
        status="kept",
        reason="p95 x0.5",
        comparison=comparison(BETTER, SAME),
        predicted=Prediction(ratio={"mean": 0.9, "p95": 0.5, "p99": 1.2}),
        accuracy=0.9,
        verified="8 objects frozen",
        settings={"gc": "freeze"},
    )
    entry = json.loads(json.dumps(step.tried().to_json(), allow_nan=False))
    assert set(entry) >= KEYS
    assert entry["ratio"]["p95"] == {"value": 0.5, "ci95": [0.4, 0.6]}
    assert (entry["p99_ms"], entry["predicted_p99_ms"], entry["accuracy"]) == (10.0, 12.0, 0.9)
    assert entry["together"] == []
    assert entry["settings"] == {"gc": "freeze"}
    untried = json.loads(json.dumps(Step(fix="gc.freeze", status="skipped", reason="no pauses").tried().to_json()))
    assert set(untried) >= KEYS and untried["ratio"] == {}
    assert untried["p99_ms"] is untried["accuracy"] is untried["predicted_p99_ms"] is None


def test_the_final_ratio_is_divided_as_predicted() -> None:
    final = replace(comparison(SAME, (0.5, 0.4, 0.6)), after=replace(summary(), latency_ms={"mean": 5.0, "p99": 5.0}))
    final = replace(final, ratio={**final.ratio, "p99": final.ratio["mean"]})
    kept = [Step(fix=name, status="kept", reason="") for name in ("small", "large", "unknown")]
    parts = {"small": math.log(0.9), "large": math.log(0.6)}
    shares = {fix: dict.fromkeys(("mean", "p99"), (part, 1.1 * part, 0.9 * part)) for fix, part in parts.items()}
    # If the forecast covers all: the largest first, together equal to the measurement.
    seen = {"large": {"p99": final.ratio["p99"]}}
    large, small = ablation(kept[:2], final, shares, seen)
    assert large.adds == seen and small.adds is None
    assert (large.fixes, small.fixes) == (("large",), ("small",)) and small.before_ms == large.after_ms
    assert large.before_ms["p99"] == 10.0 and small.after_ms["p99"] == pytest.approx(5.0)
    assert large.predicted is not None and large.predicted["p99"] == pytest.approx(0.6)
    assert large.ratio is not None
    assert large.ratio["p99"].lo < large.ratio["p99"].value < large.ratio["p99"].hi
    # Fixes without a forecast share one entry for the remainder; without a forecast, all do.
    *told, rest = ablation(kept, final, shares, {})
    assert [each.ratio["p99"].value for each in told if each.ratio] == pytest.approx([0.6, 0.9])
    assert rest.fixes == ("unknown",) and (rest.before_ms["p99"], rest.after_ms["p99"]) == pytest.approx((5.4, 5.0))
    (together,) = ablation(kept, final, {}, seen)
    assert together.fixes == ("small", "large", "unknown") and together.adds == seen
    assert ablation(kept, None, shares, {}) == ablation([], final, shares, {}) == ()


def _record(latency_ms: Any, digest: str) -> RunRecord:
    n = len(latency_ms)
    rows = zeros(REQUEST_DTYPE, n)
    rows["index"], rows["arrival_ns"] = np.arange(n), np.arange(n) * 20_000_000
    rows["latency_ns"] = (np.asarray(latency_ms) * 1e6).astype(np.int64)
    rows["status"] = np.full(n, Status.OK)
    traffic = Traffic.plain(rows["arrival_ns"].copy(), ids=[f"{digest}{k}" for k in range(n)])
    return build_record(rows, traffic=traffic, traffic_sha256=digest, scheduled=n)


@pytest.mark.parametrize(("factor", "status"), [(0.5, "kept"), (1.0, "no_gain"), (1.7, "rejected")])
def test_windows_that_differ_much_are_paired(factor: float, status: str) -> None:
    """One window is forty times slower than the other; only pairing request by request decides."""
    rng = np.random.default_rng(5)
    quiet, loaded = rng.gamma(9.0, 1.0, 300), rng.gamma(9.0, 40.0, 300)
    chance = rng.normal(1.0, 0.01, (2, 300))
    pairs = [
        (_record(quiet, "a"), _record(quiet * factor * chance[0], "a")),
        (_record(loaded, "b"), _record(loaded * factor * chance[1], "b")),
    ]
    found = compare_windows(*joined(pairs), seed=0)
    assert found.paired and found.rounds == 1
    assert found.before.requests["ok"] == 600
    assert decide(found)[0] == status, decide(found)[1]


def _backlog(rng: np.random.Generator, factor: float) -> Any:
    """Latencies of a queue that falls behind from the middle on: one slow stretch."""
    arrivals = np.arange(300) * 20.0
    done = np.cumsum(rng.gamma(9.0, 1.0, 300) * np.where(np.arange(300) < 200, 1.0, 3.5) * factor)
    return done + np.maximum.accumulate(arrivals - np.concatenate([[0], done[:-1]])) - arrivals


@pytest.mark.parametrize(("factor", "status"), [(0.5, "kept"), (0.98, "undecided")])
def test_a_backlog_that_is_gone_is_kept(factor: float, status: str) -> None:
    """All that is slow lies in one stretch, and blocks of requests bound nothing."""
    rng = np.random.default_rng(8)
    pairs = [(_record(_backlog(rng, 1.0), name), _record(_backlog(rng, factor), name)) for name in "ab"]
    found = compare_windows(*joined(pairs), seed=0)
    assert found.ratio["p95"].bounds[1] > 1
    assert decide(found)[0] == status, decide(found)[1]


@pytest.mark.parametrize(
    ("starts", "status"),
    [
        ([(80.0, 20.0), (60.0, 30.0)], "kept"),
        ([(80.0, 20.0), (60.0, 58.0)], "no_gain"),
        ([(20.0, 80.0), (30.0, 60.0)], "rejected"),
        ([(20.0, 20.0), (0.0, 0.0)], "no_gain"),
    ],
)
def test_first_requests_decide_a_cold_fix(starts: list[tuple[float, float]], status: str) -> None:
    """Only the first eight count, at every start; later ones do not affect a cold fix."""
    later = np.full(40, 500.0)
    pairs = [
        (
            _record(np.concatenate([np.full(8, without / 8), later]), "x"),
            _record(np.concatenate([np.full(8, with_it / 8), later * 3]), "x"),
        )
        for without, with_it in starts
    ]
    found, reason = decide_cold(pairs)
    assert found == status
    assert "first 8 requests" in reason


def test_first_requests_that_are_lost_are_no_fast_ones() -> None:
    """A cold service sheds seven of eight requests at once; a warm one answers all, each in a quarter of the time."""
    cold, warm = _record([200.0, *[0.0] * 7, *[50.0] * 32], "x"), _record([50.0] * 40, "x")
    cold.requests["status"][1:8] = Status.SHED
    found, reason = decide_cold([(cold, warm)] * 2)
    assert found == "kept" and "200 ms (7 lost) -> 400 ms" in reason
    assert decide_cold([(warm, cold)] * 2)[0] == "rejected"
    assert decide_cold([(cold, cold)] * 2)[0] == "no_gain"


def test_a_large_gain_keeps_its_digits() -> None:
    assert shown(RatioEstimate(value=0.000961, lo=0.0005, hi=0.0021)) == "x0.000961 [0.000500, 0.00210]"
