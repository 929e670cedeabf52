"""The forecast of a service whose batches a controller limits: from other settings to it, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from latfix.profilers.forecast.settings_forecast import Forecast
from latfix.queueing.adaptive_batching import BatchController, Bounds, Seen
from latfix.queueing.queue_simulator import Offered, Simulated, SimulatedBatch, SimulatedQueue
from latfix.queueing.serving_order import FixedLimits
from latfix.settings import RunnerSettings
from tests.runners.scheduling.simulated_runs import offer, recorded

MS = 1_000_000
FIXED = RunnerSettings(max_batch_size=8, batch_window_ms=40.0)
ADAPTIVE = FIXED.with_overrides(
    {"batching": "adaptive", "target_ms": 40.0, "window_least_ms": 5.0, "window_most_ms": 50.0}
)
#: Milliseconds of a batch by its size: larger ones pay, and do not.
COSTS: dict[str, Callable[[int], float]] = {"pays": lambda n: 12.0 + 1.0 * n, "does not": lambda n: 0.2 + 9.3 * n}


def _served(traffic: list[Offered], settings: RunnerSettings, cost: Callable[[int], float]) -> Simulated:
    rng = np.random.default_rng(3)

    def service(members: Sequence[Offered]) -> int:
        return int(cost(len(members)) * (1 + 0.03 * rng.standard_normal()) * MS)

    bounds = Bounds.of(settings)
    if bounds is None:
        limits = FixedLimits(settings.max_batch_size, int(settings.batch_window_ms * MS))
        return SimulatedQueue(service=service, limits=limits).run(traffic)
    controller, arrival = BatchController(bounds), [one.arrival_ns for one in traffic]

    def observe(batch: SimulatedBatch, _inside: int) -> None:
        controller.observe(Seen.of(batch, arrival))

    return SimulatedQueue(service=service, limits=controller, observe=observe).run(traffic)


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS.keys())
@pytest.mark.parametrize(("ran", "then"), [(FIXED, ADAPTIVE), (ADAPTIVE, FIXED)], ids=["to it", "from it"])
def test_an_adaptive_service_is_predicted(
    cost: Callable[[int], float], ran: RunnerSettings, then: RunnerSettings
) -> None:
    # GIVEN the record of a service with one kind of limits, and the truth with the other kind
    traffic = offer((20.0, 60.0), (5.0, 100.0), (20.0, 40.0), seed=8)
    forecast = Forecast(recorded(traffic, _served(traffic, ran, cost), ran))
    actual = _served(traffic, then, cost).latency_ns() / MS
    # THEN the service that ran is reproduced, and the other one predicted
    assert forecast.error < 0.1
    serving = replace(forecast.serving, window_ns=then.batch_window_ms * MS, adaptive=Bounds.of(then))
    predicted = forecast.statistics(serving)
    assert predicted["mean"] == pytest.approx(float(actual.mean()), rel=0.1)
    assert predicted["p99"] == pytest.approx(float(np.percentile(actual, 99)), rel=0.15)
    # which is another latency altogether.
    assert abs(predicted["mean"] / forecast.simulated["mean"] - 1.0) > 0.2
