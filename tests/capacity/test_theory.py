"""Predictions of the models for a simulated service, and reasons for departures."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.capacity.sweep_world import make_traffic, simulate
from latfix.capacity.measured_load import LoadPoint, load_point
from latfix.capacity.model_departures import ModelPrediction, reasons
from latfix.capacity.objective import LatencyObjective
from latfix.capacity.service_moments import fit_batch_service, mean_and_scv, relaxation_time
from latfix.capacity.sweep_traffic import part_of
from latfix.runners.sweep.load_forecast import Simulated
from latfix.runners.sweep.sweep_state import Theory
from latfix.runners.sweep.theory import MODELS, theory_of
from latfix.settings import RunnerSettings

TARGET = LatencyObjective(percentile=99.0, limit=0.1)
ONE = RunnerSettings()


def theory(
    loads: tuple[float, ...],
    settings: RunnerSettings = ONE,
    n: int = 2000,
    rate: float = 50.0,
    bursts: float = 1.0,
    **service: Any,
) -> tuple[Theory, dict[float, LoadPoint]]:
    """The theory of replays at some multiples of a recorded rate, and the measured points."""
    part = part_of(make_traffic(n, rate, seed=1, bursts=bursts), n)
    records = {load: simulate(part.at(load), settings=settings, seed=2, **service) for load in loads}
    points = {load: load_point(record) for load, record in records.items()}
    replays = [Simulated.of(record, load, points[load]) for load, record in records.items()]
    found = theory_of(replays, settings, part, TARGET, seed=3)
    assert found is not None
    return found, points


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_batches_of_one_with_independent_arrivals_are_pollaczek_and_khinchine(noise: float) -> None:
    found, _ = theory((0.2, 1.4), each=0.01, noise=noise)
    wait = found.loads[1.4].predictions["mg1"].mean_wait_ms
    scv = found.service.batch_scv
    assert scv == pytest.approx(noise, abs=0.15)
    busy = 0.7 * found.service.batch_each_ms / 10
    exact = busy * (1 + scv) / (2 * (1 - busy)) * found.service.batch_each_ms
    assert wait == pytest.approx(exact, rel=0.2)


@pytest.mark.parametrize("settings", [ONE, RunnerSettings(max_batch_size=4, batch_window_ms=10.0)])
def test_independent_arrivals_are_predicted_from_low_load(settings: RunnerSettings) -> None:
    found, points = theory((0.5, 1.2), settings, 2000, 50.0, fixed=0.004, each=0.006, noise=0.3)
    for model in ("mg1", "kingman", "replay"):
        answer, high = found.loads[1.2].predictions[model], points[1.2]
        assert answer.mean_wait_ms == pytest.approx(1e3 * float(high.wait.mean()), rel=0.4), model
        assert answer.percentile_ms == pytest.approx(1e3 * float(np.quantile(high.latency, 0.99)), rel=0.4), model
        assert not answer.fitted


def test_models_differ_as_their_assumptions_do() -> None:
    found, points = theory((1.0,), each=0.01, bursts=3.5, n=1500)
    waits = {name: answer.mean_wait_ms or 0.0 for name, answer in found.loads[1.0].predictions.items()}
    # Constant service halves M/M/1's wait; bursts make up for it.
    assert waits["mg1"] == pytest.approx(waits["mm1"] / 2, rel=0.05)
    assert waits["kingman"] > 1.5 * waits["mg1"]
    measured = 1e3 * float(points[1.0].wait.mean())
    assert waits["replay"] == waits["replay_own"] == pytest.approx(measured, abs=0.2)
    assert {name for name, answer in found.loads[1.0].predictions.items() if answer.fitted} == set(MODELS)


def test_the_replay_knows_the_policy_and_each_requests_work() -> None:
    settings = RunnerSettings(max_batch_size=4, batch_window_ms=15.0, workers=2)
    found, points = theory((0.5, 1.6), settings, 800, 60.0, 3.0, fixed=0.005, each=0.01)
    answer, high = found.loads[1.6].predictions["replay"], points[1.6]
    assert answer.mean_wait_ms == pytest.approx(1e3 * float(high.wait.mean()), rel=0.05)
    assert answer.percentile_ms == pytest.approx(1e3 * float(np.quantile(high.latency, 0.99)), rel=0.05)


def test_overload_is_reported() -> None:
    found, _ = theory((0.4, 2.6), each=0.01, n=500)
    assert found.capacity == pytest.approx(100, rel=0.02)
    over = found.loads[2.6]
    assert all(over.predictions[name].mean_wait_ms is None for name in ("mm1", "mg1", "kingman"))
    assert over.predictions["mg1"].why_not == "it cannot keep up with this rate"
    assert over.reasons[0].id == "overload" and math.isinf(over.relaxation)


def test_batches_are_measured_where_half_of_the_largest_size_occurs() -> None:
    found, _ = theory((0.04, 1.2, 3.8), RunnerSettings(max_batch_size=8), 600, fixed=0.02, each=0.002)
    assert found.service.measured_at_loads != (0.04,), "at the lowest load there are batches of one alone"
    assert found.service.batch_fixed_ms == pytest.approx(20, rel=0.05)
    assert found.service.batch_each_ms == pytest.approx(2, rel=0.2)


def test_settings_that_models_do_not_support_are_reported() -> None:
    for settings in (
        RunnerSettings(batching="adaptive"),
        RunnerSettings(schedule="shortest"),
        RunnerSettings(max_queue=5),
    ):
        found, _ = theory((0.5,), settings, 200, each=0.01)
        assert all(answer.why_not and answer.mean_ms is None for answer in found.loads[0.5].predictions.values())


def test_without_a_simulation_there_is_no_theory() -> None:
    part = part_of(make_traffic(200, 10.0), 200)
    record = simulate(part.at(1.0), each=0.01, lost=1.0)
    point = load_point(record)
    assert not len(point.batches.size) and point.achieved == 0
    assert theory_of([Simulated.of(record, 1.0, point)], ONE, part, TARGET, seed=0) is None


def test_time_of_failures_is_not_service() -> None:
    some = load_point(simulate(make_traffic(400, 10.0), each=0.01, lost=0.5))
    assert 150 < len(some.batches.size) == some.requests["ok"] < 250


def test_a_fit_of_batch_times_is_never_negative_and_assumes_no_unmeasured_gain() -> None:
    sizes = np.arange(1, 9)
    assert fit_batch_service(sizes, 0.02 + 0.002 * sizes).fixed == pytest.approx(0.02)
    assert fit_batch_service(sizes, 0.03 - 0.002 * sizes).each == 0.0
    same = fit_batch_service([4, 4, 4], [0.04, 0.05, 0.03])
    assert (same.fixed, same.each, same.scv) == pytest.approx((0.0, 0.01, 1 / 24))
    assert mean_and_scv([]) == (0.0, 0.0)
    assert mean_and_scv([1.0, 3.0]) == pytest.approx((2.0, 0.25))
    assert relaxation_time(0.25, 1.0) == pytest.approx(4.0) and math.isinf(relaxation_time(2.0, 2.0))


def reasons_by_id(point: LoadPoint, low: LoadPoint, settings: RunnerSettings = ONE, **known: float) -> dict[str, str]:
    """Reasons by id, of a service whose batches at low load are known and whose waits the models have as measured."""
    size, took = low.batches.size, low.batches.service
    wait = known.get("wait", float(point.wait.mean()))
    modelled = ModelPrediction(
        waits={"mg1": wait / 2, "kingman": wait},
        index=known.get("index", 1.0),
        window=1.0,
        relaxation=known.get("relaxation", 0.1),
        capacity=100.0,
        batch=fit_batch_service(size, took),
        measured_at=0.25,
    )
    return {reason.id: reason.text for reason in reasons(point, 1.0, low, modelled, settings)}


def test_a_quiet_independent_service_departs_for_no_reason() -> None:
    low, high = (load_point(simulate(make_traffic(1500, rate), each=0.01)) for rate in (10.0, 40.0))
    assert reasons_by_id(high, low) == {}
    bursts = reasons_by_id(high, low, index=3.5)["bursts"]
    assert "burstier than independent ones: index of dispersion 3.5" in bursts and "(Kingman)" in bursts
    waits = reasons_by_id(high, low, index=3.5, wait=157.0)["bursts"]
    assert "from 78.5 s (M/G/1) to 157 s (Kingman)" in waits


def test_service_that_changes_with_load_is_named_if_waits_change_likewise() -> None:
    low, slower, faster = (
        load_point(simulate(make_traffic(1000, rate), each=each))
        for rate, each in ((10.0, 0.01), (40.0, 0.014), (40.0, 0.008))
    )
    found = reasons_by_id(slower, low, wait=0.001)
    assert "take 40 % longer here" in found["service"]
    assert "neither padding nor waiting for a core" in found["service"]
    assert "shorter here" in reasons_by_id(faster, low, wait=0.5)["service"]
    longer = replace(faster, wait=faster.wait + 0.05)
    found = reasons_by_id(longer, low, wait=0.002)
    assert set(found) == {"unexplained"} and "threads may wake late" in found["unexplained"]


def test_the_window_is_named_where_it_matters() -> None:
    settings = RunnerSettings(max_batch_size=8, batch_window_ms=50.0)
    low = load_point(simulate(make_traffic(1000, 5.0), each=0.01, settings=settings))
    assert "the batch window of 50 ms holds a request's batch open" in reasons_by_id(low, low, settings)["window"]


def test_lost_requests_and_a_short_replay_are_named() -> None:
    low = load_point(simulate(make_traffic(1000, 10.0), each=0.01))
    short = load_point(simulate(make_traffic(150, 90.0), each=0.01, lost=0.1))
    found = reasons_by_id(short, low, relaxation=1.0)
    assert "were lost" in found["lost"] and "the queue started empty" in found["unsettled"]
