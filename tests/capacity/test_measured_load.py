"""Figures of a replay at one load, and the objective's decision from them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.capacity.sweep_world import make_traffic, simulate
from latfix.capacity.measured_load import backlog_grew, cell_of, load_point
from latfix.capacity.objective import LatencyObjective, percentile_of, slow_share
from latfix.run_record.run_record import RunRecord
from latfix.settings import RunnerSettings
from latfix.statistics.latency_summary import summarize_ms
from latfix.traffic.schedule import Traffic


def test_figures_of_a_replay() -> None:
    record = simulate(make_traffic(2000, 50.0), each=0.01)
    point = load_point(record)
    assert point.offered == pytest.approx(1999 / record.traffic.duration_s)
    assert point.worker_share == pytest.approx(point.offered * 0.01, rel=0.02)
    assert point.held_share == 0.0 and point.mean_size == 1.0
    assert point.prepare_share == pytest.approx(point.offered * 1e-4, rel=0.02)
    # Nothing but prepare, wait and service: the parts sum to the latency.
    assert point.latency == pytest.approx(point.wait + point.prepare + 0.01, abs=1e-6)
    assert not point.grew and not point.lost and point.trustworthy


def test_requests_that_share_steps_share_their_workers_time() -> None:
    record = simulate(make_traffic(2000, 50.0), each=0.01)
    alone = load_point(record)
    settings = RunnerSettings(batching="continuous", max_batch_size=8)
    record.batches["size"][:] = 4
    point = load_point(replace(record, meta=record.meta.updated(settings=settings)))
    assert point.worker_share == pytest.approx(alone.worker_share / 4)


def test_a_window_is_part_of_the_wait() -> None:
    settings = RunnerSettings(max_batch_size=4, batch_window_ms=30.0)
    point = load_point(simulate(make_traffic(300, 2.0), each=0.01, settings=settings))
    assert float(np.median(point.wait)) == pytest.approx(0.03, rel=0.01)
    assert float(np.median(point.batches.held)) == pytest.approx(0.03, rel=0.01)
    assert point.held_share == pytest.approx(point.offered * 0.03, rel=0.15)


def test_lost_requests_are_slower_than_any() -> None:
    point = load_point(simulate(make_traffic(1000, 5.0), each=0.001, lost=0.05))
    assert point.lost == pytest.approx(50, abs=25)
    assert np.count_nonzero(np.isinf(point.latency)) == point.lost
    assert percentile_of([point.latency], 99.0).value == math.inf
    assert percentile_of([point.latency], 90.0).value < 0.1
    slow = slow_share([point.latency], [point.age], LatencyObjective(percentile=99.0, limit=10.0))
    assert slow.lo < slow.value == pytest.approx(point.lost / 1000)


def test_a_replay_that_was_ended_early_counts_ages() -> None:
    traffic = make_traffic(1000, 200.0)
    record = simulate(traffic, each=0.01, cut_s=3.0)  # twice what it can serve
    point = load_point(record, cut_s=3.0)
    sent = record.meta.sent
    assert point.grew and point.cut and len(point.latency) == sent
    in_flight = np.isinf(point.latency)
    assert np.count_nonzero(in_flight) == sent - len(record.requests["index"]) > 100
    target = LatencyObjective(percentile=99.0, limit=0.5)
    # Those that came last have not waited half a second yet: they are not counted against it.
    assert 0.3 < slow_share([point.latency], [point.age], target).value < 0.9
    cell = cell_of(2.0, [point], target)
    assert cell.percentile.hi == math.inf
    assert 1.0 < cell.percentile.value < 3.0


def test_the_percentile_equals_that_of_reports() -> None:
    latency = np.random.default_rng(0).exponential(0.1, 777)
    assert percentile_of([latency], 99.0).value * 1e3 == pytest.approx(summarize_ms(latency * 1e9)["p99"])


def test_few_requests_leave_the_upper_end_open() -> None:
    latency = np.random.default_rng(1).exponential(0.1, 100)
    assert percentile_of([latency], 99.0).hi == math.inf
    assert percentile_of([latency], 50.0).hi < 1.0
    longer = np.random.default_rng(1).exponential(0.1, 4000)
    found = percentile_of([longer], 99.0)
    assert found.lo < found.value < found.hi < 1.0


def grew(traffic: Traffic, record: RunRecord) -> bool:
    end = record.requests["arrival_ns"] + record.requests["latency_ns"]
    return backlog_grew(traffic.arrival_ns, end, at_once=1)


def test_a_backlog_that_keeps_growing() -> None:
    for seed in range(20):
        traffic = make_traffic(400, 130.0, seed=seed)
        assert grew(traffic, simulate(traffic, each=0.01)), seed


def test_a_service_that_keeps_up_or_works_a_burst_off_is_not_saturated() -> None:
    wrong = 0
    for seed in range(60):
        traffic = make_traffic(400, 80.0, seed=seed)
        wrong += grew(traffic, simulate(traffic, each=0.01, seed=seed + 1000))
    assert wrong <= 1
    traffic = make_traffic(800, 50.0, bursts=3.0)
    record = simulate(traffic, each=0.012)
    assert load_point(record).latency.max() > 0.3, "the bursts do make a queue"
    assert not grew(traffic, record)


def test_neighbors_that_are_slow_together_count_for_less() -> None:
    alone, together = np.full(2000, 0.1), np.full(2000, 0.1)
    alone[::50] = 1.0  # 40 slow ones far apart, and 40 in one burst
    together[500:540] = 1.0
    target = LatencyObjective(percentile=99.0, limit=0.5)
    apart, clustered = slow_share([alone], [alone], target), slow_share([together], [together], target)
    assert apart.value == clustered.value == 0.02
    assert clustered.lo < 0.01 < apart.lo


def test_a_run_without_slow_requests_does_not_prove_as_many_successes() -> None:
    latency = np.full(2000, 0.1)
    latency[500:530] = 0.4  # a burst, all of it below the limit
    assert slow_share([latency], [latency], LatencyObjective(percentile=99.0, limit=0.5)).hi > 3 / 2000
