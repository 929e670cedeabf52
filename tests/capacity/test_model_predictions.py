"""What the models predict of a simulated service, and the reasons that are found where it departs from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from latfix.capacity.measured_load import LoadPoint, load_point
from latfix.capacity.model_discrepancies import reasons
from latfix.capacity.model_predictions import Modelled, ServiceModel, model_load, service_model
from latfix.capacity.objective import Target
from latfix.capacity.sweep_traffic import Burstiness, burstiness
from latfix.run_record.run_record import RunRecord
from latfix.runners.sweep.replay_prediction import measured_work, replayed, replays_exactly
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic
from latfix.traffic.transforms import repeat, scale_time

MakeTraffic = Callable[..., Traffic]
Simulate = Callable[..., RunRecord]
TARGET = Target(percentile=99.0, limit=0.1)
EVEN = Burstiness(gap_scv=1.0, windows=(), index=())


def modelled(
    point: LoadPoint, service: ServiceModel, settings: RunnerSettings, bursts: Burstiness = EVEN
) -> Modelled:
    return model_load(point.offered, service, bursts, settings, TARGET, lag=np.zeros(1))


def known(points: list[tuple[float, LoadPoint]], settings: RunnerSettings) -> ServiceModel:
    service = service_model(points, settings)
    assert service is not None
    return service


@pytest.mark.parametrize("settings", [RunnerSettings(), RunnerSettings(max_batch_size=4, batch_window_ms=10.0)])
def test_independent_arrivals_are_predicted_from_low_load(
    settings: RunnerSettings, make_traffic: MakeTraffic, simulate: Simulate
) -> None:
    def at(rate: float) -> LoadPoint:
        traffic = make_traffic(12_000, rate, seed=1)
        return load_point(simulate(traffic, fixed=0.004, each=0.006, noise=0.3, settings=settings, seed=2))

    service = known([(0.5, at(25.0)), (0.25, at(12.0))], settings)
    assert service.loads[0] == 0.25
    high = at(75.0)
    answer = modelled(high, service, settings).predictions["mg1"]
    assert answer.wait == pytest.approx(float(high.wait.mean()), rel=0.15)
    assert answer.percentile == pytest.approx(float(np.quantile(high.latency, 0.99)), rel=0.2)


def test_models_differ_as_their_assumptions_do(make_traffic: MakeTraffic, simulate: Simulate) -> None:
    settings = RunnerSettings()
    point = load_point(simulate(make_traffic(4000, 60.0), each=0.01))
    service = known([(1.0, point)], settings)
    bursty = Burstiness(gap_scv=2.0, windows=(1.0, 100.0), index=(1.0, 9.0))
    waits = {name: p.wait for name, p in modelled(point, service, settings, bursty).predictions.items()}
    assert waits["mm1"] is not None and waits["mg1"] is not None and waits["kingman"] is not None
    # Constant service halves M/M/1's wait; bursts make up for it.
    assert waits["mg1"] == pytest.approx(waits["mm1"] / 2, rel=0.05)
    assert waits["kingman"] > waits["mg1"]


def test_more_than_it_can_serve_is_told(make_traffic: MakeTraffic, simulate: Simulate) -> None:
    settings = RunnerSettings()
    low = load_point(simulate(make_traffic(500, 20.0), each=0.01))
    high = load_point(simulate(make_traffic(500, 130.0), each=0.01))
    service = known([(0.2, low), (1.3, high)], settings)
    answer = modelled(high, service, settings)
    assert answer.capacity == pytest.approx(100, rel=0.02)
    assert all(p.wait is None and p.why_not for p in answer.predictions.values())
    assert next(r.id for r in reasons(high, 1.3, service, low, answer, settings)) == "overload"


def test_batches_are_measured_until_half_of_the_largest_was_seen(
    make_traffic: MakeTraffic, simulate: Simulate
) -> None:
    settings = RunnerSettings(max_batch_size=8)

    def at(rate: float) -> LoadPoint:
        return load_point(simulate(make_traffic(600, rate), fixed=0.02, each=0.002, settings=settings))

    service = known([(0.1, at(2.0)), (1.0, at(60.0)), (3.0, at(190.0))], settings)
    assert len(service.loads) > 1, "at the lowest load there are batches of one alone"
    assert service.batch.fixed == pytest.approx(0.02, rel=0.05)
    assert service.batch.each == pytest.approx(0.002, rel=0.2)
    assert service_model([], settings) is None


def told(point: LoadPoint, low: LoadPoint, settings: RunnerSettings, bursts: Burstiness = EVEN) -> dict[str, str]:
    service = known([(0.25, low)], settings)
    found = reasons(point, 1.0, service, low, modelled(point, service, settings, bursts), settings)
    return {reason.id: reason.text for reason in found}


def test_a_quiet_independent_service_departs_for_no_reason(make_traffic: MakeTraffic, simulate: Simulate) -> None:
    low = load_point(simulate(make_traffic(4000, 10.0), each=0.01))
    high = load_point(simulate(make_traffic(4000, 40.0), each=0.01))
    assert told(high, low, RunnerSettings()) == {}


def test_bursts_are_named_with_their_index(make_traffic: MakeTraffic, simulate: Simulate) -> None:
    traffic = make_traffic(6000, 60.0, bursts=3.5)
    low = load_point(simulate(make_traffic(1000, 10.0), each=0.01))
    found = told(load_point(simulate(traffic, each=0.01)), low, RunnerSettings(), burstiness(traffic))
    assert "burstier than independent ones: index of dispersion" in found["bursts"] and "(Kingman)" in found["bursts"]


def test_service_that_grows_with_load_is_named(make_traffic: MakeTraffic, simulate: Simulate) -> None:
    low = load_point(simulate(make_traffic(1000, 10.0), each=0.01))
    high = load_point(simulate(make_traffic(1000, 40.0), each=0.014))
    found = told(high, low, RunnerSettings())
    assert "take 40% longer here" in found["service"]
    assert "neither padding nor waiting for a core" in found["service"]


def test_service_that_is_shorter_does_not_explain_a_wait_that_is_longer(
    make_traffic: MakeTraffic, simulate: Simulate
) -> None:
    low = load_point(simulate(make_traffic(1000, 10.0), each=0.01))
    high = load_point(simulate(make_traffic(1000, 40.0), each=0.008))
    assert "shorter here" in told(high, low, RunnerSettings())["service"]
    longer = replace(high, wait=high.wait + 0.05)
    found = told(longer, low, RunnerSettings())
    assert set(found) == {"unexplained"} and "threads may wake late" in found["unexplained"]


def test_what_failures_took_is_no_service(make_traffic: MakeTraffic, simulate: Simulate) -> None:
    record = simulate(make_traffic(200, 10.0), each=0.01, lost=1.0)
    point = load_point(record)
    assert not len(point.batches.size) and point.achieved == 0 and math.isinf(point.demand)
    assert service_model([(1.0, point)], RunnerSettings()) is None
    some = load_point(simulate(make_traffic(400, 10.0), each=0.01, lost=0.5))
    assert 150 < len(some.batches.size) == some.requests["ok"] < 250


def test_the_window_is_named_where_it_matters(make_traffic: MakeTraffic, simulate: Simulate) -> None:
    settings = RunnerSettings(max_batch_size=8, batch_window_ms=50.0)
    low = load_point(simulate(make_traffic(1000, 5.0), each=0.01, settings=settings))
    found = told(low, low, settings)
    assert "the batch window of 50 ms holds a request's batch open" in found["window"]


def test_lost_requests_and_a_short_look_are_named(make_traffic: MakeTraffic, simulate: Simulate) -> None:
    low = load_point(simulate(make_traffic(1000, 10.0), each=0.01))
    short = load_point(simulate(make_traffic(150, 97.0), each=0.01, lost=0.1))
    found = told(short, low, RunnerSettings())
    assert "were lost" in found["lost"]
    assert "the queue started empty" in found.get("unsettled", found.get("overload", ""))


@pytest.mark.parametrize(
    ("settings", "times"),
    [
        (RunnerSettings(), 1),
        (RunnerSettings(max_batch_size=4, batch_window_ms=15.0), 1),
        (RunnerSettings(workers=2), 1),
        (RunnerSettings(max_batch_size=2), 3),
    ],
)
def test_the_queue_replay_knows_the_policy(
    settings: RunnerSettings, times: int, make_traffic: MakeTraffic, simulate: Simulate
) -> None:
    """Also of a schedule that comes several times over."""
    traffic = make_traffic(800, 40.0, bursts=3.0)
    low = simulate(scale_time(traffic, 0.5), fixed=0.005, each=0.01, settings=settings)
    fast = scale_time(repeat(traffic, times) if times > 1 else traffic, 1.6)
    high = load_point(simulate(fast, fixed=0.005, each=0.01, settings=settings))
    service = known([(0.5, load_point(low)), (1.6, high)], settings)
    wait, latency = replayed(measured_work(low, service.batch, settings), fast, settings)
    # Service is the same at both loads: then the replay is exact, request by request.
    assert len(wait) == 800 * times and wait == pytest.approx(high.wait, abs=2e-4)
    assert latency == pytest.approx(high.latency, abs=2e-4)


def test_the_queue_replay_says_what_it_does_not_know() -> None:
    assert not replays_exactly(RunnerSettings(max_batch_size=8, batch_order="length"))
    assert "adaptive" in replays_exactly(RunnerSettings(batching="adaptive"))
    assert replays_exactly(RunnerSettings(schedule="shortest")) and replays_exactly(RunnerSettings(max_queue=5))
