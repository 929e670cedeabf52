"""Windows of the run: equal lengths, every request in one, percentiles only with enough requests."""

from __future__ import annotations

import numpy as np
import pytest

from latfix.arrays import Ints
from latfix.lower_bound import AtLeast
from latfix.profilers.chunked.chunk_ledgers import Scale
from latfix.profilers.diagnose import diagnose
from latfix.profilers.over_time.time_windows import WindowTally, window_edges
from latfix.results.diagnosis import Window
from latfix.stages import Status
from tests.profilers.simulated_runs import simulate

MS = 1_000_000


def _windows(arrival: Ints, latency: Ints) -> tuple[Window, ...]:
    """Two chunks, half of every latency due to the only cause."""
    tally = WindowTally(window_edges(len(arrival), int(arrival.min()), int(arrival.max())), 1, exact=True)
    half = len(arrival) // 2
    for part in (slice(0, half), slice(half, None)):
        tally.offer(arrival[part])
        tally.add(arrival[part], latency[part], {0: latency[part] // 2})
    return tally.windows({"python.gc": 0})


@pytest.mark.parametrize(("n", "number"), [(1, 1), (60, 1), (250, 5), (900, 6), (1800, 12), (50_000, 24)])
def test_the_number_of_windows_is_bounded_and_none_is_lost(n: int, number: int) -> None:
    rng = np.random.default_rng(n)
    arrival = np.sort(rng.uniform(0, 60e9, n)).astype(np.int64)
    latency = rng.integers(1, 100, n) * MS
    windows = _windows(arrival, latency)
    assert len(windows) == number
    assert sum(window.requests for window in windows) == n
    lengths = [window.end_s - window.start_s for window in windows]
    assert lengths == pytest.approx([lengths[0]] * number)
    assert sum(w.causes_ms["python.gc"] * w.requests for w in windows) == pytest.approx(latency.sum() / 2 / MS)
    offered = sum(window.offered_rps * length for window, length in zip(windows, lengths, strict=True))
    assert offered == pytest.approx(n)


def test_percentiles_are_those_of_the_windows_own_requests() -> None:
    # GIVEN two thirds of the run at 10 ms and the rest at 30 ms, and few requests in the last window
    arrival = np.concatenate([np.linspace(0, 50e9, 900), np.linspace(51e9, 60e9, 30)]).astype(np.int64)
    windows = _windows(arrival, np.where(arrival < 30e9, 10, 30).astype(np.int64) * MS)
    assert (windows[0].p50_ms, windows[0].p95_ms, windows[0].p99_ms) == (10.0, 10.0, 10.0)
    assert windows[4].p50_ms == 30.0
    last = windows[-1].to_json()
    assert last["p50_ms"] == 30.0 and last["p95_ms"] is None and last["p99_ms"] is None
    assert last["note"] == f"p95, p99 omitted: {windows[-1].requests} requests"
    assert windows[0].to_json()["note"] == ""


def test_an_episode_of_collections_is_placed_in_time() -> None:
    rng = np.random.default_rng(0)
    faults = {k: ("gc", 40.0) for k in range(360, 540) if rng.random() < 0.3}
    record = simulate(n=1200, rate=20, compute_faults=faults)
    found = diagnose(record)
    active = next(cause.active for cause in found.causes if cause.cause == "python.gc")
    begin, end = record.requests["arrival_ns"][[min(faults), max(faults)]] / 1e9
    assert active is not None and not active.throughout and len(active.intervals_s) == 1
    assert active.intervals_s[0] == pytest.approx((begin, end), abs=1.0)
    windows = found.windows
    during = [w.causes_ms["python.gc"] for w in windows if w.start_s < end and w.end_s > begin]
    before = [w.causes_ms["python.gc"] for w in windows if w.end_s < begin]
    assert before and max(before) == 0 and min(during) > 0
    # Only causes with a part of the tail worth mention are followed over time.
    assert set(windows[0].causes_ms) == {cause.cause for cause in found.causes if cause.active}


@pytest.mark.parametrize("limit", [10_000, 0], ids=["at-once", "in-chunks"])
def test_windows_reach_to_the_end_of_a_run_that_stops_answering(limit: int) -> None:
    record = simulate(n=900, status=dict.fromkeys(range(450, 900), int(Status.TIMEOUT)))
    found = diagnose(record, scale=Scale(limit=limit, chunk=300, stretches=3, stretch=200))
    arrival, latency = (record.requests[name] / 1e9 for name in ("arrival_ns", "latency_ns"))
    assert found.windows[-1].end_s == arrival[-1] > 1.5 * arrival[449]
    last = found.windows[-1]
    waited = latency[arrival >= last.start_s] * 1e3
    assert last.requests == 0 and last.offered_rps > 0
    assert isinstance(last.p50_ms, AtLeast) and last.p50_ms.bound == pytest.approx(np.median(waited), rel=0.01)
    first = latency[arrival < found.windows[0].end_s] * 1e3
    assert found.windows[0].p50_ms == pytest.approx(np.median(first), rel=0.01)


def test_a_run_without_ok_requests_has_no_windows() -> None:
    found = diagnose(simulate(n=30, status=dict.fromkeys(range(30), 1)))
    assert found.windows == ()
