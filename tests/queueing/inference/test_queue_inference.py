"""Logs without a queue, and with one, as the benchmark simulates them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.profilers.queue_inference import outcome, outcome_without_queue
from latfix.queueing.closed_loop import in_flight
from latfix.queueing.inference.queue_inference import infer_queue, served_from, starts


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-3, 30)), max_size=20), st.integers(1, 5))
def test_service_begins_once_all_but_so_many_of_the_earlier_requests_have_ended(
    gaps: list[tuple[int, int]], servers: int
) -> None:
    arrival = np.cumsum([gap for gap, _ in gaps], dtype=np.int64)
    end = arrival + np.array([took for _, took in gaps], np.int64)
    first = arrival[:1].tolist() * servers
    latest = [sorted([*first, *end[:k].tolist()])[-servers] for k in range(len(gaps))]
    assert starts(arrival, end, servers).tolist() == np.maximum(arrival, np.array(latest, np.int64)).tolist()


@pytest.mark.parametrize("slow_s", [2, 10, 30])
@pytest.mark.parametrize(("rate", "base_s"), [(100, 0.05), (300, 0.15)])
@pytest.mark.parametrize("spread", [0.2, 0.5])
def test_a_latency_that_wanders_is_no_queue(rate: float, base_s: float, slow_s: float, spread: float) -> None:
    """More requests are in flight while it is high, and yet they are served side by side."""
    assert outcome_without_queue(rate, base_s, slow_s, spread, 0.02, seed=40) == "none"


def test_nor_are_short_visits_of_a_few_requests() -> None:
    """As if 4 servers kept each for 3 ms of its 50."""
    assert outcome_without_queue(100, 0.05, 30, 0.2, 0.02, seed=6) == "none"


@pytest.mark.parametrize("seed", [200, 205])
def test_nor_is_one_that_waits_of_ten_servers_would_explain(seed: int) -> None:
    """If services did not depend on the number in flight."""
    assert outcome_without_queue(100, 0.05, 2, 0.5, 0.3, seed) == "none"


def test_few_free_starts_that_fit_badly_show_no_other_number() -> None:
    assert outcome("25 % five times as long", "1.05", 6, seed=2) != "wrong"


@pytest.mark.parametrize("servers", [1, 3, 16])
def test_a_queue_is_still_found_in_a_nearly_saturated_service(servers: int) -> None:
    found = [outcome("lognormal, 0.5", load, servers, seed) for load in ("0.85", "0.95") for seed in (40, 41, 42)]
    assert found.count("right") >= 5 and "wrong" not in found


def test_equal_services_that_grow_slightly_with_the_number_in_flight_hide_no_wait() -> None:
    """Twelve threads that sleep for 60 ms, and need 0.4 ms more in bursts: certain, and of no consequence."""
    rng, millisecond = np.random.default_rng(5), 1e6
    bursts = [2e9 * k + np.arange(30) * millisecond for k in range(1, 8)]
    at = np.sort(np.concatenate([np.cumsum(rng.exponential(1e9 / 130, 2_000)), *bursts])).astype(np.int64)
    service = rng.normal(60 * millisecond, 0.1 * millisecond, len(at)).astype(np.int64)
    crowded = in_flight(at, served_from(at, service, 12) + service - at) > 20
    end = served_from(at, service, 12) + service + np.where(crowded, int(0.4 * millisecond), 0)
    queue = infer_queue(at, end - at, 50_000)
    assert queue is not None and queue.servers == 12 and not queue.dependent


def test_differences_below_the_resolution_hide_no_queue() -> None:
    """An event loop in C: 2 ms for each request, 30 us less if the loop has several to read at once."""
    rng = np.random.default_rng(5)
    at = np.cumsum(rng.exponential(1e9 / 140, 3_000)).astype(np.int64)
    service = rng.normal(2e6, 3_000, len(at)).astype(np.int64) + np.where(rng.random(len(at)) < 0.025, 70_000_000, 0)
    several = in_flight(at, served_from(at, service, 1) + service - at) > 3
    service = service - np.where(several, 30_000, 0)
    end = served_from(at, service, 1) + service
    queue = infer_queue(at, end - at, 50_000)
    assert queue is not None and queue.servers == 1


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("coarse", ["end", "latency"])
def test_a_millisecond_does_not_hide_which_of_a_burst_came_first(coarse: str, servers: int) -> None:
    """As an AWS load balancer (latencies in milliseconds) and pino (ends) write it: arrivals are the difference."""
    rng, ms = np.random.default_rng(3), 1_000_000
    bursts = [3e9 * k + rng.uniform(0, 60 * ms, 60) for k in range(1, 8)]
    at = np.sort(np.concatenate([rng.uniform(0, 25e9, 600), *bursts])).astype(np.int64)
    service = (20 * ms * rng.lognormal(0, 0.2, len(at))).astype(np.int64)
    wait = served_from(at, service, servers) - at
    end, latency = at + wait + service, wait + service
    end, latency = (end // ms * ms, latency) if coarse == "end" else (end, latency // ms * ms)
    queue = infer_queue(end - latency, latency, ms)
    assert queue is not None and queue.servers == servers
    assert float(queue.wait_ns.sum()) == pytest.approx(float(wait.sum()), rel=0.02)
