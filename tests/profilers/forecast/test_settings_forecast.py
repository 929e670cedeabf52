"""Forecasts compared with the service itself: the simulator runs again with the predicted settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latfix.profilers.forecast.batch_cost import BatchCost
from latfix.profilers.forecast.settings_forecast import Forecast, Pace, Serving
from latfix.run_record.run_record import RunRecord
from latfix.statistics.latency_summary import summarize_ms
from tests.profilers.simulated_runs import simulate

#: A service that gains from batches, with varied inputs, busy enough for queues.
BUSY: dict[str, Any] = {"n": 1500, "rate": 70.0, "seed": 5, "max_batch": 4, "base": 6.0, "per_item": 0.05}


def lengths(seed: int = 3, n: int = 1500) -> Any:
    return (40 * np.random.default_rng(seed).lognormal(0, 0.7, n)).astype(np.int64) + 1


def faults(kind: str, every: int = 40, ms: float = 60.0, n: int = 1500) -> dict[int, tuple[str, float]]:
    return dict.fromkeys(range(7, n, every), (kind, ms))


def changed(forecast: Forecast, **fields: Any) -> Serving:
    return replace(forecast.serving, **fields)


def off(forecast: Forecast, serving: Serving, actual: RunRecord) -> dict[str, float]:
    """Relative error of the predicted mean and p99."""
    then, was = forecast.statistics(serving), summarize_ms(actual.latencies_ns())
    predicted = {key: forecast.measured[key] * then[key] / forecast.simulated[key] for key in ("mean", "p99")}
    return {key: abs(predicted[key] / was[key] - 1.0) for key in predicted}


@pytest.mark.parametrize(
    "plan",
    [
        {"max_batch": 1, "rate": 40.0},
        {"max_batch": 1, "workers": 2},
        {"max_batch": 4, "window": 5.0},
        {"max_batch": 8, "window": 20.0, "rate": 40.0, "prepare_threads": 2},
        {"max_batch": 4, "compute_faults": faults("gc")},
        {"max_batch": 1, "rate": 40.0, "prepare_faults": faults("blocked")},
    ],
    ids=["alone", "two workers", "batches", "window", "collections", "a dependency"],
)
def test_the_settings_that_ran_are_reproduced(plan: dict[str, Any]) -> None:
    forecast = Forecast(simulate(**{**BUSY, "lengths": lengths(), **plan}))
    assert forecast.error < 0.1
    assert len(forecast.latencies(forecast.serving)) == 1500


@pytest.mark.parametrize(
    ("plan", "then"),
    [
        ({"window": 20.0, "rate": 40.0}, {"window": 0.0}),
        ({}, {"max_batch": 1, "rate": 70.0}),
        ({"max_batch": 1}, {"max_batch": 4}),
        ({"max_batch": 1, "rate": 70.0}, {"workers": 2}),
        ({"prepare": 10.0, "prepare_threads": 1}, {"prepare_threads": 2}),
    ],
    ids=["no window", "no batches", "batches", "a second worker", "a second prepare thread"],
)
def test_other_settings_are_predicted(plan: dict[str, Any], then: dict[str, Any]) -> None:
    # GIVEN a run, and the same requests served with other settings
    before = {**BUSY, "lengths": lengths(), **plan}
    forecast = Forecast(simulate(**before))
    fields = {("window_ns" if name == "window" else name): value for name, value in then.items() if name != "rate"}
    actual = simulate(**{**before, **then})
    # THEN the forecast is much closer to it than the earlier measurement
    wrong = off(forecast, changed(forecast, **fields), actual)
    was = summarize_ms(actual.latencies_ns())
    unchanged = {key: abs(forecast.measured[key] / was[key] - 1.0) for key in wrong}
    assert wrong["mean"] < 0.1 and wrong["p99"] < 0.15, (wrong, unchanged)
    assert wrong["mean"] < 0.5 * unchanged["mean"]


def test_batches_by_length_are_predicted_to_pad_less() -> None:
    record = simulate(**{**BUSY, "rate": 90.0, "lengths": lengths()})
    record.requests["bucket_length"][:] = record.requests["input_elements"]
    forecast = Forecast(record)
    before, after = (forecast.statistics(each) for each in (forecast.serving, changed(forecast, by_length=True)))
    assert after["mean"] < 0.95 * before["mean"]


def test_batches_are_padded_in_two_dimensions() -> None:
    # GIVEN images of one size, wide, square and tall: a batch of unlike shapes is mostly padding
    widths = np.random.default_rng(5).choice([10, 20, 40], 1500)
    plan = {**BUSY, "per_item": 0.004, "lengths": np.full(1500, 400, np.int64), "widths": widths}
    forecast = Forecast(simulate(**plan))
    # THEN the settings that ran are reproduced, and others predicted
    assert forecast.error < 0.1
    wrong = off(forecast, changed(forecast, max_batch=2), simulate(**{**plan, "max_batch": 2}))
    assert wrong["mean"] < 0.1 and wrong["p99"] < 0.15


def test_shortest_first_is_predicted() -> None:
    """The truth is a run whose classes are the lengths, in a hundred steps."""
    sizes = lengths()
    plan = {**BUSY, "max_batch": 1, "rate": 105.0, "lengths": sizes}
    forecast = Forecast(simulate(**plan))
    rank = np.searchsorted(np.quantile(sizes, np.linspace(0.01, 0.99, 99)), sizes).astype(np.int8)
    actual = simulate(**plan, priority=rank)
    wrong = off(forecast, changed(forecast, shortest=True), actual)
    assert wrong["mean"] < 0.1 and wrong["p99"] < 0.15
    was = summarize_ms(actual.latencies_ns())
    assert was["mean"] < 0.8 * forecast.measured["mean"] and was["max"] > 1.5 * forecast.measured["max"]
    # With ageing, no request is overtaken for long.
    aged = forecast.statistics(changed(forecast, shortest=True, ageing_ns=20_000_000))
    assert was["mean"] < aged["mean"] < forecast.measured["mean"] and aged["max"] < was["max"]


@pytest.mark.parametrize(
    ("kind", "cause"), [("gc", "python.gc"), ("faults", "memory.page_faults"), ("runq", "host.contention")]
)
def test_a_removed_cause_is_predicted(kind: str, cause: str) -> None:
    plan = {**BUSY, "rate": 50.0, "lengths": lengths()}
    forecast = Forecast(simulate(**plan, compute_faults=faults(kind)))
    wrong = off(forecast, changed(forecast, without=frozenset({cause})), simulate(**plan))
    assert wrong["mean"] < 0.1 and wrong["p99"] < 0.15


@pytest.mark.parametrize("waiting", [False, True], ids=["undisturbed", "with waits for a core"])
def test_halved_compute_is_predicted(waiting: bool) -> None:
    """Half of the compute waits half as long for a core."""
    plan = {**BUSY, "lengths": lengths(), **({"rate": 50.0} if waiting else {})}
    waits, halved_waits = (faults("runq", every=10, ms=ms) if waiting else {} for ms in (60.0, 30.0))
    forecast = Forecast(simulate(**plan, compute_faults=waits))
    less = {**plan, "base": 3.0, "per_request": 0.25, "per_item": 0.025}
    halved = simulate(**less, compute_faults=halved_waits)
    wrong = off(forecast, changed(forecast, cost=BatchCost(typical=0.5)), halved)
    assert wrong["mean"] < 0.1 and wrong["p99"] < 0.15


def test_a_new_shape_takes_longer_once_unless_warm_up_ran_all() -> None:
    several = np.array([10, 30, 20, 30, 10, 40] * 20)
    forecast = Forecast(simulate(**{**BUSY, "n": len(several), "rate": 2.0, "max_batch": 1, "lengths": several}))
    slow = changed(forecast, cost=BatchCost(new_shape_ns=20e6))
    added = forecast.latencies(slow) - forecast.latencies(forecast.serving)
    assert np.flatnonzero(added > 1e6).tolist() == [0, 1, 2, 5]
    assert added[[0, 1, 2, 5]] == pytest.approx(20e6, rel=0.02)
    for shapes, charged in ((4, False), (3, True)):
        warm = forecast.latencies(replace(slow, warm_shapes=shapes))
        assert np.array_equal(warm, forecast.latencies(forecast.serving)) is not charged


@pytest.mark.parametrize("always", [True, False], ids=["ever-new shapes", "every shape twice"])
def test_another_way_to_run_the_model_in_traffic_of_ever_new_shapes(always: bool) -> None:
    """A tenth of the compute, as long for a new shape: what the run took for its shapes does not shrink with it."""
    several = np.random.default_rng(2).permutation(np.arange(600) + 40 if always else np.arange(600) // 2 + 40)
    run = {"n": len(several), "rate": 25.0, "max_batch": 1, "lengths": several, "per_item": 0.1, "base": 2.0}
    forecast = Forecast(simulate(**run, new_shape=8.0))
    faster = simulate(**{**run, "per_item": 0.01, "base": 0.2, "per_request": 0.05}, new_shape=8.0)
    other = changed(forecast, cost=BatchCost(typical=0.1, new_shape_ns=8e6))
    batches = forecast.probes([2, 4], 60.0)
    took = [1e6 * (2.5 + 0.1 * len(batch) * max(several[batch])) for batch in batches]
    forecast.learn(batches, took)
    before = off(forecast, other, faster)["mean"]
    forecast.learn(batches, took, 8e6)
    assert forecast.error < 0.1
    assert off(forecast, other, faster)["mean"] < min(0.1, before)
    # Its pace is that of its batches, new and known.
    assert forecast.pace_of(faster, other).batches == pytest.approx(1.0, abs=0.1)


def test_workers_slow_each_other_while_both_compute() -> None:
    """On average they seldom do, but in a burst always: the mean of both does not tell its tail."""
    bursts = np.sort(np.concatenate([np.arange(300) * 100.0, *(9e3 * (k + 1) + np.arange(60.0) for k in range(3))]))
    run = {"n": len(bursts), "arrivals_ms": bursts, "max_batch": 1, "base": 20.0, "lengths": np.full(len(bursts), 10)}
    forecast = Forecast(simulate(**run))
    actual = simulate(**run, workers=2, together=1.6)
    other = changed(forecast, workers=2, cost=BatchCost(together=1.6))
    wrong, blended = (off(forecast, each, actual) for each in (other, changed(forecast, workers=2)))
    assert wrong["mean"] < 0.05 and wrong["p99"] < 0.05 < 0.3 < blended["p99"]
    assert forecast.pace_of(actual, other).batches == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("slower", [0.7, 1.0, 1.6])
def test_the_pace_comes_from_a_replay(slower: float) -> None:
    run = {**BUSY, "lengths": lengths(), "max_batch": 1}
    forecast = Forecast(simulate(**run))
    # Cores that a faster model leaves idle are free for ``prepare`` and ``finish``.
    batches, ready = {name: slower * BUSY[name] for name in ("base", "per_item")}, slower**2
    again = simulate(**{**run, **batches, "prepare": ready, "finish": 0.2 * ready})
    shown = forecast.pace_of(again, forecast.serving)
    assert (shown.batches, shown.beside) == pytest.approx((slower, ready), rel=0.1)
    predicted = forecast.statistics(replace(forecast.serving, pace=shown))["mean"]
    assert predicted == pytest.approx(float(again.latencies_ns().mean()) / 1e6, rel=0.2)
    # Requests of a part of the traffic are found by their ids.
    rows = {name: column[again.requests["index"] >= 500] for name, column in again.requests.items()}
    part = replace(again.traffic, ids=again.traffic.ids[500:])
    later = replace(again, requests={**rows, "index": rows["index"] - 500}, traffic=part)
    sliced = forecast.pace_of(later, forecast.serving)
    assert (sliced.batches, sliced.beside) == pytest.approx((shown.batches, shown.beside), rel=0.1)
    others = replace(part, ids=[f"other {name}" for name in part.ids])
    unknown = forecast.pace_of(replace(later, traffic=others), forecast.serving)
    assert np.isnan(unknown.batches) and np.isnan(unknown.beside)
    assert Pace.typical([unknown, shown]) == Pace.typical([shown]) != Pace()


def test_prepare_that_waits_no_more_for_cores_shortens_the_tail() -> None:
    """As for a voice encoder: ``prepare`` waited beside the model's own threads, until each worker had one."""
    run = {**BUSY, "lengths": lengths(), "rate": 60.0, "prepare": 12.0}
    forecast = Forecast(simulate(**run))
    again = simulate(**{**run, "prepare": 1.0})
    predicted = forecast.statistics(replace(forecast.serving, pace=forecast.pace_of(again, forecast.serving)))
    measured = summarize_ms(again.latencies_ns())
    for key in ("mean", "p99"):
        assert predicted[key] == pytest.approx(measured[key], rel=0.2)
        assert predicted[key] < 0.8 * forecast.simulated[key]


def test_causes_of_the_policy_are_not_removed_from_requests() -> None:
    """Forming batches differently already removes padding; subtracting it as well would count it twice."""
    forecast = Forecast(simulate(**{**BUSY, "lengths": lengths()}))
    same = forecast.latencies(changed(forecast, without=frozenset({"batching.padding", "input.size"})))
    assert np.array_equal(same, forecast.latencies(forecast.serving))


def test_stretches_are_served_on_their_own() -> None:
    record = simulate(**{**BUSY, "lengths": lengths()})
    forecast = Forecast(record)
    bounds = [(2e9, 4e9), (8e9, 9e9)]
    arrival = record.requests["arrival_ns"]
    inside = sum(int(np.count_nonzero((arrival >= begin) & (arrival < end))) for begin, end in bounds)
    assert len(forecast.latencies(forecast.serving, bounds)) == inside > 50


def test_a_run_without_requests_predicts_nothing() -> None:
    forecast = Forecast(simulate(n=0))
    assert len(forecast.latencies(forecast.serving)) == 0
    assert forecast.statistics(forecast.serving)["p99"] == 0.0


def test_probes_cover_the_range_and_larger_sizes_only_within_the_time() -> None:
    forecast = Forecast(simulate(**{**BUSY, "lengths": lengths()}))
    length = lengths()
    some, many = forecast.probes([2, 4, 8], 0.05), forecast.probes([2, 4, 8, 16], 60.0)
    singles = [int(length[position]) for (position,) in many[:6]]
    assert (
        singles == sorted(singles) and singles[0] < np.percentile(length, 5) < np.percentile(length, 95) < singles[-1]
    )
    assert [len(batch) for batch in some] == [1, 1, 2, 2, 4], "at least one of the size that ran"
    assert [len(batch) for batch in many] == [1] * 6 + [2, 2, 4, 4, 8, 8, 16, 16]
    assert forecast.probes([2], 60.0) == many[:8], "the same every time"
    assert forecast.seconds(some) < forecast.seconds(many)


def test_the_repeatable_latency_excludes_the_machine() -> None:
    still = {**BUSY, "lengths": lengths(), "rate": 40.0}
    plain = simulate(**still)
    disturbed = Forecast(simulate(**still, compute_faults=faults("runq")))
    gap = np.abs(disturbed.repeated() / plain.requests["latency_ns"] - 1.0)
    was = np.abs(disturbed.latencies(disturbed.serving) / plain.requests["latency_ns"] - 1.0)
    assert np.percentile(gap, 99) < 0.2 < np.percentile(was, 99)


def test_learning_the_time_of_small_batches() -> None:
    """A service that is never idle runs no small batches; computing some on purpose gives their time."""
    full = {
        "n": 400,
        "rate": 2000.0,
        "window": 20.0,
        "seed": 5,
        "max_batch": 4,
        "base": 2.0,
        "per_item": 1.0,
        "lengths": np.full(400, 10),
    }
    forecast = Forecast(simulate(**full))
    alone = changed(forecast, max_batch=1)
    actual = simulate(**{**full, "max_batch": 1})
    before = off(forecast, alone, actual)["mean"]
    batches = forecast.probes([2, 4], 60.0)
    # Everything takes longer under traffic; only the dependence on the size is learned.
    forecast.learn(batches, [0.8e6 * (2.0 + 10.0 * len(batch)) for batch in batches])
    assert forecast.error < 0.1
    assert off(forecast, alone, actual)["mean"] < 0.1 < before


def test_the_cost_of_probes_is_the_change_of_compute() -> None:
    """Half of the time, except for the fixed part: short inputs gain less."""
    forecast = Forecast(simulate(**{**BUSY, "lengths": lengths()}))
    batches, length = forecast.probes([2, 4], 60.0), lengths()
    before = [6.0 + 0.05 * len(batch) * max(length[batch]) for batch in batches]
    after = [6.0 + 0.025 * len(batch) * max(length[batch]) for batch in batches]
    cost = forecast.cost([*batches, [10**6]], [*before, 1.0], [*after, 1.0])
    assert cost is not None and 0.5 < cost.least < cost.typical < cost.most < 1.0
    assert forecast.cost([[10**6]], [1.0], [1.0]) is None, "a request that was not served"


def test_alone_is_a_lower_bound() -> None:
    forecast = Forecast(simulate(**{**BUSY, "lengths": lengths()}))
    alone, half = forecast.alone(None), forecast.alone(BatchCost(typical=0.5))
    assert half["mean"] < alone["mean"] < forecast.simulated["mean"] and alone["p99"] < forecast.simulated["p99"]
    work = forecast._work
    work.prepare_extra[work.causes.index("host.contention")], work.prepare[:] = 5e6, work.prepare + 5e6
    assert forecast.alone(None) == pytest.approx(alone), "waiting for a core is not the model's"


def test_at_its_own_times_a_run_is_simulated_as_it_was() -> None:
    record = simulate(**{**BUSY, "lengths": lengths()})
    forecast = Forecast(record)
    times = record.traffic.arrival_ns.astype(np.float64)
    waits, latencies = forecast.at_times(times)
    assert latencies == pytest.approx(forecast.latencies(forecast.serving))
    assert (waits >= -1e-6).all() and (waits < latencies).all()
    denser, sparser = (forecast.at_times(times * factor)[1].mean() for factor in (1 / 4, 4))
    assert denser > latencies.mean() > sparser
    twice = np.concatenate([times, times + 10 * times[-1]])
    assert forecast.at_times(twice)[1][: len(times)] == pytest.approx(latencies)
    assert len(forecast.at_times(twice, rotated=7)[1]) == 2 * len(times)
