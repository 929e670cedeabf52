"""A replay ends early if its backlog keeps growing, and only then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.capacity.sweep_world import make_traffic, simulate
from latfix.run_record.run_record import RunRecord
from latfix.runners.sweep.early_stop import BacklogWatch
from latfix.traffic.schedule import Traffic


def ended_at(traffic: Traffic, record: RunRecord, limit_s: float | None) -> float | None:
    """When the watch would end the replay; ``None`` for never."""
    watch = BacklogWatch(requests=len(traffic), scheduled_s=traffic.duration_s, at_once=1, limit_s=limit_s)
    arrival = traffic.arrival_ns / 1e9
    end = np.sort((record.requests["arrival_ns"] + record.requests["latency_ns"]) / 1e9)
    for at in np.arange(0.25, traffic.duration_s, 0.25).tolist():
        came = int(np.searchsorted(arrival, at, side="right"))
        done = int(np.searchsorted(end, at, side="right"))
        if watch.hopeless(at, came - done, done):
            return float(at)
    return None


@pytest.mark.parametrize("limit_s", [0.1, None])
def test_an_overloaded_service_is_not_drained(limit_s: float | None) -> None:
    for seed in range(5):
        traffic = make_traffic(1200, 200.0, seed=seed)
        at = ended_at(traffic, simulate(traffic, each=0.01), limit_s)
        assert at is not None and at < 0.8 * traffic.duration_s


@pytest.mark.parametrize(
    ("seeds", "traffic", "service"),
    [
        (40, {"n": 600, "rate": 80.0}, {"each": 0.01, "noise": 1.0}),
        (10, {"n": 1500, "rate": 50.0, "bursts": 3.0}, {"each": 0.012}),
    ],
)
def test_a_service_that_keeps_up_or_works_bursts_off_is_replayed_to_its_end(
    seeds: int, traffic: dict[str, Any], service: dict[str, Any]
) -> None:
    for seed in range(seeds):
        made = make_traffic(**traffic, seed=seed)
        assert ended_at(made, simulate(made, **service, seed=seed + 1000), 0.05) is None, seed


def test_a_stalled_service_is_not_treated_as_overloaded() -> None:
    """Nothing was served in the second half so far, as if the machine had stopped the service."""
    watch = BacklogWatch(requests=200, scheduled_s=40.0, at_once=1, limit_s=0.1)
    assert not any(watch.hopeless(at, max(0, 5 * at - 50), min(5 * at, 50)) for at in range(1, 30))
    going_on = BacklogWatch(requests=200, scheduled_s=40.0, at_once=1, limit_s=0.1)
    assert any(going_on.hopeless(at, 3 * at, 2 * at) for at in range(1, 30))


def test_a_backlog_within_the_objective_is_of_interest() -> None:
    traffic = make_traffic(1200, 120.0)
    record = simulate(traffic, each=0.01)
    assert ended_at(traffic, record, 0.05) is not None
    assert ended_at(traffic, record, 30.0) is None


@pytest.mark.parametrize(("limit_s", "enough_s"), [(0.5, 12.0), (None, 20.0)])
def test_a_drain_is_cut_once_all_requests_in_it_are_beyond_the_limit(limit_s: float | None, enough_s: float) -> None:
    watch = BacklogWatch(requests=100, scheduled_s=10.0, at_once=1, limit_s=limit_s)
    assert not watch.hopeless(-0.1, 0, 0), "before the schedule begins"
    assert not watch.drained_enough(enough_s - 0.1, 50)
    assert watch.drained_enough(enough_s + 0.1, 50)
    assert not watch.drained_enough(enough_s + 60, 5), "so few are soon worked off"
