"""Batches behind a log: their rule is inferred, and waits, company and stalls are told apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from latfix.profilers.recordings.reader import ReadOptions
from latfix.profilers.recordings.requests.readers import diagnose_table
from latfix.profilers.recordings.requests.request_table import RequestTable
from latfix.queueing.inference.batch_inference import Rule, infer_rule
from latfix.results.diagnosis import CauseSummary
from tests.profilers.recordings.requests.simulated_log import batched, simulated


def inferred(table: RequestTable) -> Rule | None:
    return infer_rule(table.arrival_ns, table.latency_ns, table.resolution_ns)


def causes_of(table: RequestTable) -> dict[str, CauseSummary]:
    result = diagnose_table(table, Path("log"), ReadOptions(percentile=99.0))
    assert result.ledger.conservation_error_ns() == 0
    return {cause.cause: cause for cause in result.causes}


@pytest.mark.parametrize("resolution_ns", [1_000, 1_000_000])
@pytest.mark.parametrize("load", [0.2, 0.6])
@pytest.mark.parametrize("timer", ["arrival", "worker", "batcher"])
def test_window_and_timer_follow_from_who_ended_together(timer: str, load: float, resolution_ns: int) -> None:
    found = inferred(batched(timer, load=load, window_ms=20.0, resolution_ns=resolution_ns))
    assert found is not None
    assert found.window_ns == pytest.approx(20e6, abs=1e6 + resolution_ns)
    if load > 0.5 and resolution_ns == 1_000:  # else the timers differ for too few batches
        assert (found.timer, found.workers) == (timer, 1)


@pytest.mark.parametrize(("limit", "workers"), [(4, 1), (8, 2), (32, 1)])
def test_limit_and_workers_are_inferred(limit: int, workers: int) -> None:
    found = inferred(batched("arrival", limit=limit, workers=workers, load=0.9))
    assert found is not None
    assert (found.limit, found.workers) == (limit, workers)


@pytest.mark.parametrize("load", [0.4, 0.6])
def test_a_few_late_answers_hide_no_batches(load: float) -> None:
    found = inferred(batched("worker", load=load, window_ms=15.0, late=0.03))
    assert found is not None and (found.timer, found.workers, found.limit) == ("worker", 1, 8)
    assert found.window_ns == pytest.approx(15e6, rel=0.05)


@pytest.mark.parametrize("servers", [1, 4])
@pytest.mark.parametrize("kind", ["quiet", "burst", "drift", "stall"])
def test_requests_served_one_by_one_are_no_batches(kind: str, servers: int) -> None:
    assert inferred(simulated(kind, 11, servers=servers, load=0.6)) is None


def test_requests_that_came_together_and_take_the_same_time_are_no_batch() -> None:
    rng = np.random.default_rng(4)
    arrival = np.repeat(np.cumsum(rng.exponential(50e6, 500)), 6).astype(np.int64) + np.tile(
        np.arange(6) * 20_000, 500
    )
    latency = np.full(3000, 10_000_000) + rng.integers(0, 10_000, 3000)
    assert infer_rule(arrival, latency, 1_000) is None


def test_the_wait_for_the_timer_is_the_windows() -> None:
    causes = causes_of(batched("arrival", load=0.2, window_ms=20.0))
    assert causes["batching.window"].named and causes["batching.window"].tail_ms > 10
    assert "held open for 20" in causes["batching.window"].evidence
    assert causes["unexplained"].tail_share < 0.1


def test_a_measured_part_beside_the_timer_counts_no_time_twice() -> None:
    """As of a load generator that sent some requests late."""
    table = batched("arrival", load=0.2, window_ms=20.0)
    late = np.full(len(table.arrival_ns), 2_000_000)
    late[::50] = 30_000_000
    sent = {"arrival_ns": table.arrival_ns - late, "latency_ns": table.latency_ns + late, "parts": {"dispatch": late}}
    causes, plain = causes_of(replace(table, **sent)), causes_of(table)
    assert causes["client.late"].named and causes["client.late"].tail_ms > 20
    assert "held open for 20" in causes["batching.window"].evidence
    assert causes["batching.size"].tail_ms < 1.5 * plain["batching.size"].tail_ms
    assert abs(causes["unexplained"].tail_share) < 0.1


def test_others_in_the_batch_cost_what_the_size_explains() -> None:
    causes = causes_of(batched("arrival", load=0.4, window_ms=0.0))
    size = causes["batching.size"]
    assert size.named and 1 < size.tail_ms < 7  # 1 ms for each other request
    assert "batching.window" not in causes or causes["batching.window"].tail_ms == 0


@pytest.mark.parametrize("timer", ["arrival", "worker"])
def test_stalls_of_batches_are_told_from_their_size_and_passed_on(timer: str) -> None:
    causes = causes_of(batched(timer, load=0.5, stalls=60))
    stall = causes["stall.shared"]
    assert stall.named and stall.tail_share > 0.6
    assert stall.own_ms > 10 and stall.propagated_ms > 0
    assert "batches took" in stall.evidence
    assert abs(causes["unexplained"].tail_share) < 0.1


def test_slow_members_are_no_stalls() -> None:
    """The more members a batch has, the more often one of them is slow: a stall does not care."""
    assert "stall.shared" not in causes_of(batched("arrival", load=0.4, slow=0.01, n=30_000))


def test_batches_that_share_a_millisecond_are_no_copies() -> None:
    table = batched("arrival", resolution_ns=1_000_000)
    notes = diagnose_table(table, Path("log"), ReadOptions()).notes
    assert not any("repeat another" in note for note in notes)


@pytest.mark.parametrize("seed", [3, 4])
def test_squares_of_inputs_are_the_work_of_a_batch(seed: int) -> None:
    """With a line instead, the largest are stalls, or unexplained."""
    causes = causes_of(batched("arrival", seed, squares=True, load=0.4))
    assert "side²" in causes["input.size"].evidence
    assert "stall.shared" not in causes and abs(causes["unexplained"].tail_share) < 0.1
