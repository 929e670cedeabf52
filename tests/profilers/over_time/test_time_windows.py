"""Windows of the run: equal lengths, every request in one, percentiles only where enough rest on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from latfix.profilers.attribution.ledger import make_books
from latfix.profilers.evidence.units import gather
from latfix.profilers.over_time.time_windows import cut_windows, windows_of
from latfix.run_record.run_record import RunRecord

Simulate = Callable[..., RunRecord]
MS = 1_000_000


@pytest.mark.parametrize(("n", "number"), [(0, 0), (1, 1), (60, 1), (250, 5), (900, 6), (1800, 12), (50_000, 24)])
def test_the_number_of_windows_is_bounded_and_none_is_lost(n: int, number: int) -> None:
    rng = np.random.default_rng(n)
    arrival = np.sort(rng.uniform(0, 60e9, n)).astype(np.int64)
    latency = rng.integers(1, 100, n) * MS
    windows = cut_windows(arrival, latency, arrival, {"python.gc": latency // 2})
    assert len(windows) == number
    assert sum(window.requests for window in windows) == n
    if windows:
        lengths = [window.end_s - window.start_s for window in windows]
        assert lengths == pytest.approx([lengths[0]] * number)
        assert sum(w.causes_ms["python.gc"] * w.requests for w in windows) == pytest.approx(latency.sum() / 2 / MS)
        offered = sum(window.offered_rps * length for window, length in zip(windows, lengths, strict=True))
        assert offered == pytest.approx(n)


def test_percentiles_are_those_of_the_windows_own_requests() -> None:
    # GIVEN two thirds of the run at 10 ms and the rest at 30 ms, and few requests in the last window
    arrival = np.concatenate([np.linspace(0, 50e9, 900), np.linspace(51e9, 60e9, 30)]).astype(np.int64)
    latency = np.where(arrival < 30e9, 10, 30) * MS
    windows = cut_windows(arrival, latency.astype(np.int64), arrival, {})
    assert (windows[0].p50_ms, windows[0].p95_ms, windows[0].p99_ms) == (10.0, 10.0, 10.0)
    assert windows[4].p50_ms == 30.0
    last = windows[-1].to_json()
    assert last["p50_ms"] == 30.0 and last["p95_ms"] is None and last["p99_ms"] is None
    assert last["note"] == f"p95, p99 omitted: {windows[-1].requests} requests"
    assert windows[0].to_json()["note"] == ""


def test_an_episode_of_collections_is_placed_in_time(simulate: Simulate) -> None:
    rng = np.random.default_rng(0)
    faults = {k: ("gc", 40.0) for k in range(360, 540) if rng.random() < 0.3}
    record = simulate(n=1200, rate=20, compute_faults=faults)
    evidence = gather(record)
    ledger = make_books(evidence).ledger
    found = windows_of(evidence, ledger, {"python.gc", "traffic.burst", "not.one"})
    active = found.active["python.gc"]
    begin, end = record.requests["arrival_ns"][[min(faults), max(faults)]] / 1e9
    assert not active.throughout and len(active.intervals_s) == 1
    assert active.intervals_s[0] == pytest.approx((begin, end), abs=1.0)
    assert set(found.active) == {"python.gc", "traffic.burst"}
    during = [w.causes_ms["python.gc"] for w in found.windows if w.start_s < end and w.end_s > begin]
    before = [w.causes_ms["python.gc"] for w in found.windows if w.end_s < begin]
    assert before and max(before) == 0 and min(during) > 0


def test_the_entries_of_a_window_sum_to_its_excess(simulate: Simulate) -> None:
    record = simulate(n=600, rate=40, compute_faults=dict.fromkeys(range(50, 600, 40), ("runq", 30.0)))
    evidence = gather(record)
    ledger = make_books(evidence).ledger
    arrival = record.requests["arrival_ns"][evidence.ok]
    for window in windows_of(evidence, ledger, ledger.causes).windows:
        last = window.end_s == arrival.max() / 1e9
        inside = (arrival / 1e9 >= window.start_s) & ((arrival / 1e9 < window.end_s) | last)
        excess = (ledger.latency_ns[inside] - ledger.reference_ns).mean() / 1e6
        assert sum(window.causes_ms.values()) == pytest.approx(excess)


def test_a_run_without_ok_requests_has_no_windows(simulate: Simulate) -> None:
    record = simulate(n=30, status=dict.fromkeys(range(30), 1))
    evidence = gather(replace(record))
    found = windows_of(evidence, make_books(evidence).ledger, {"python.gc"})
    assert found.windows == () and found.active == {}
