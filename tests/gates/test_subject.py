"""The ratio of any percentile of two runs: that of the summary's percentiles where both have it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from latfix.gates.subject import percentile_ratios, with_percentile_ratios
from latfix.results.comparison import compare_records
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import REQUEST_DTYPE
from tests.records import build_record, zeros

N = 1500


def _record(scale: float, *, seed: int = 0, digest: str = "t", n: int = N, failed: int = 0) -> RunRecord:
    rows = zeros(REQUEST_DTYPE, n)
    rows["index"], rows["arrival_ns"] = np.arange(n), np.arange(n) * 10**8
    noise = np.random.default_rng(seed + 1).normal(1, 0.02, n)
    rows["latency_ns"] = (np.random.default_rng(0).lognormal(0, 0.8, N)[:n] * noise * scale * 5e6).astype(np.int64)
    rows["status"][:failed] = 1
    return build_record(rows, traffic_sha256=digest, workload="w")


def test_the_bounds_are_those_of_the_summary_s_percentiles() -> None:
    base, new = _record(1.0), _record(0.6, seed=5)
    known = compare_records(base, new).ratio["p95"]
    found = percentile_ratios(new, base, [95.0])["p95"]
    assert found.value == pytest.approx(known.value)
    assert found.decision is not None and known.decision is not None
    low, high = found.bounds
    assert low <= found.lo <= found.value <= found.hi <= high
    assert math.log(high / low) == pytest.approx(math.log(known.bounds[1] / known.bounds[0]), rel=0.25)
    assert known.spread / 3 < found.spread < 3 * known.spread


def test_other_traffic_has_no_ratio_request_by_request() -> None:
    assert percentile_ratios(_record(0.6, digest="other"), _record(1.0), [93.0]) == {}


def test_requests_of_only_one_run_are_not_compared() -> None:
    short, whole = _record(0.6, seed=5, n=900), _record(1.0)
    found = percentile_ratios(short, whole, [93.0])["p93"]
    same = percentile_ratios(_record(0.6, seed=5, n=900), _record(1.0, n=900), [93.0])["p93"]
    assert found.value == pytest.approx(same.value, rel=0.02)


def test_a_percentile_without_enough_requests_beyond_it_is_open() -> None:
    found = percentile_ratios(_record(0.6, seed=5), _record(1.0), [99.95])["p99_95"]
    assert found.bounds[1] == math.inf or found.bounds[0] == 0.0


def test_both_sides_get_the_percentiles_that_gates_need() -> None:
    records = (_record(0.6, seed=5, failed=3), _record(1.0))
    sides = compare_records(records[1], records[0]).gate_subjects()
    new, base = with_percentile_ratios(*sides, records, ["p93", "p95", "mean", "p93", "throughput"])
    assert set(new.latency_ms) - set(sides[0].latency_ms) == {"p93"} and "p93" in base.latency_ms
    assert set(new.ratio) - set(sides[0].ratio) == {"p93"} and new.ratio["p95"] is sides[0].ratio["p95"]
    assert new.ratio["p93"].value == pytest.approx(new.latency_ms["p93"] / base.latency_ms["p93"], rel=0.02)
    assert with_percentile_ratios(*sides, records, ["p99", "error_rate"]) == sides
