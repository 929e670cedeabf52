"""The forecast of a service whose callers give up: those requests, too, keep it busy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from latfix.profilers.forecast.settings_forecast import Forecast
from latfix.queueing.queue_simulator import Offered, Simulated, SimulatedQueue
from latfix.queueing.serving_order import FixedLimits
from latfix.settings import RunnerSettings
from latfix.stages import Status
from tests.runners.scheduling.simulated_runs import offer, recorded

MS = 1_000_000
PATIENCE_MS = 150.0


def _served(traffic: list[Offered], most: int) -> Simulated:
    rng = np.random.default_rng(3)

    def service(members: Sequence[Offered]) -> int:
        return int((12.0 + 1.0 * len(members)) * (1 + 0.03 * rng.standard_normal()) * MS)

    return SimulatedQueue(
        service=service, limits=FixedLimits(most, 0), doomed=lambda item, now: now > item.expires_ns
    ).run(traffic)


def _waited_ms(traffic: list[Offered], run: Simulated) -> list[float]:
    """Of those who gave up in the queue as long as they had patience."""
    waited = (run.end_ns - run.arrival_ns) / MS
    return [PATIENCE_MS if slot in set(run.dropped) else float(waited[slot]) for slot in range(len(traffic))]


def test_requests_that_time_out_keep_a_simulated_service_busy() -> None:
    # GIVEN a service that is too slow in bursts: many give up in the queue, or are answered too late
    traffic = offer(*[(4.0, 55.0), (2.0, 110.0)] * 5, seed=8, deadline_ms=PATIENCE_MS)
    run = _served(traffic, 1)
    record = recorded(traffic, run, RunnerSettings(max_batch_size=1))
    rows = record.requests
    rows["status"][run.dropped] = int(Status.TIMEOUT)
    rows["latency_ns"][run.dropped] = int(PATIENCE_MS * MS)
    assert 0.1 < np.mean(rows["status"] == Status.TIMEOUT) < 0.5
    # THEN it is reproduced, and batches are predicted to serve nearly all in time
    forecast = Forecast(record)
    assert forecast.measured["p99"] > PATIENCE_MS
    assert forecast.error < 0.15
    predicted = forecast.statistics(replace(forecast.serving, max_batch=4))
    actual = _waited_ms(traffic, _served(traffic, 4))
    assert predicted["mean"] == pytest.approx(float(np.mean(actual)), rel=0.15)
    assert predicted["p99"] == pytest.approx(float(np.percentile(actual, 99)), rel=0.15)
    assert predicted["p99"] < 0.8 * forecast.simulated["p99"]
