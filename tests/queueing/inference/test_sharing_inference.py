"""Logs of services whose requests share cores, and of others, as the benchmark simulates them."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.profilers.queue_inference import (
    SERVICES,
    inferred_sharing,
    outcome_of_sharing,
    shared_log,
    wandering_log,
)
from latfix.queueing.inference.sharing_inference import equal_work_waits, infer_sharing


@pytest.mark.parametrize("cores", [1, 2, 4])
@pytest.mark.parametrize("service", ["exponential", "lognormal, 0.5", "25 % five times as long"])
@pytest.mark.parametrize("load", ["0.8", "0.4 and a burst", "0.8, drift", "0.6, 1.1 for a third"])
def test_cores_that_requests_share_are_found(service: str, load: str, cores: int) -> None:
    assert outcome_of_sharing(service, load, cores, seed=40) == "right"


def test_what_remains_is_what_each_needed() -> None:
    arrival, latency = shared_log("lognormal, 0.5", "0.4 and a burst", 2, seed=41)
    need = 1e9 * SERVICES["lognormal, 0.5"](np.random.default_rng(41))
    sharing = infer_sharing(arrival, latency, 1000)
    assert sharing is not None
    assert np.quantile(latency / need, 0.97) > 10
    assert np.quantile(np.abs((latency - sharing.wait_ns) / need - 1), 0.97) < 0.1
    # In any order of the rows.
    order = np.random.default_rng(0).permutation(len(arrival))
    mixed = infer_sharing(arrival[order], latency[order], 1000)
    assert mixed is not None and (mixed.wait_ns == sharing.wait_ns[order]).all()


@pytest.mark.parametrize("slow_s", [2, 10, 30])
@pytest.mark.parametrize("spread", [0.2, 0.5])
def test_a_latency_that_wanders_is_no_sharing(slow_s: float, spread: float) -> None:
    """More requests are in flight while it is high, but not because more arrived."""
    for seed in range(40, 44):
        assert inferred_sharing(wandering_log(300, 0.05, slow_s, spread, 0.1, seed)) == "none"


def test_nor_are_bursts_of_requests_that_need_more() -> None:
    """They come together and take longer, and would do so alone."""
    rng = np.random.default_rng(3)
    for factor in (1.5, 2.0, 3.0):
        gaps = rng.exponential(1e7, 4_000)
        burst = np.arange(4_000) % 500 < 100
        arrival = np.cumsum(np.where(burst, gaps / 5, gaps)).astype(np.int64)
        need = (rng.lognormal(0, 0.3, 4_000) * 1e7 * np.where(burst, factor, 1)).astype(np.int64)
        assert infer_sharing(arrival, need, 1000) is None


def test_nor_is_a_queue_in_two_stages() -> None:
    rng = np.random.default_rng(4)
    arrival = np.cumsum(rng.exponential(1e7 / 0.7, 3_000))
    end = arrival.copy()
    for _ in range(2):
        free = 0.0
        for row, takes in enumerate(rng.exponential(1e7, 3_000).tolist()):
            free = end[row] = max(end[row], free) + takes
    assert infer_sharing(arrival.astype(np.int64), (end - arrival).astype(np.int64), 1000) is None


@pytest.mark.parametrize("service", ["10 % nine times as long", "25 % five times as long"])
def test_nor_is_a_queue_in_random_order(service: str) -> None:
    """Arrivals do not tell them apart, but short requests wait as long as long ones, if they differ that much."""
    rng = np.random.default_rng(0)
    need = SERVICES[service](rng)[:1_500]
    arrival = np.cumsum(rng.exponential(need.mean() / 0.7, 1_500))
    end, now, left = np.zeros(1_500), 0.0, set(range(1_500))
    while left:
        there = [row for row in left if arrival[row] <= now] or [min(left)]
        row = there[int(rng.integers(len(there)))]
        now = end[row] = max(now, arrival[row]) + need[row]
        left.remove(row)
    at = (1e9 * arrival).astype(np.int64)
    assert infer_sharing(at, (1e9 * end).astype(np.int64) - at, 1000) is None


def test_waits_of_equal_work() -> None:
    """Two that come together on one core take twice as long; one that has two cores of three takes half."""
    assert equal_work_waits(np.array([0.0, 0.0, 9.0]), 4.0, 1.0).tolist() == [4.0, 4.0, 0.0]
    assert equal_work_waits(np.array([0.0]), 4.0, 3.0, alone=2.0).tolist() == [0.0]
    assert equal_work_waits(np.array([0.0, 1.0]), 4.0, 1.0).tolist() == [3.0, 3.0]


def test_times_that_are_too_coarse_and_few_requests_show_nothing() -> None:
    arrival, latency = shared_log("exponential", "0.8", 2, seed=40)
    assert infer_sharing(arrival[:99], latency[:99], 1000) is None
    assert infer_sharing(arrival, latency, int(np.median(latency))) is None
