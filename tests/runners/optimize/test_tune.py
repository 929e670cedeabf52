"""Numbers are tuned once all else is decided, by what the forecast proposes and a replay confirms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latfix.profilers.forecast.settings_forecast import Forecast, Serving
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes import FIXES
from latfix.settings import RunnerSettings

TUNE = next(fix for fix in FIXES if fix.id == "batch.tune")


class Likes(Forecast):
    """Says that latency goes down with a larger limit and a second worker."""

    def __init__(self, _record: Any) -> None:
        self.serving = Serving(max_batch=2, window_ns=0.0, workers=1, prepare_threads=1)
        self.measured = self.simulated = {"mean": 1.0, "p99": 1.0}

    def latencies(self, serving: Serving, within: Sequence[tuple[float, float]] = ()) -> Any:
        del within
        factor = serving.compute[1] / serving.workers * (1.0 + serving.window_ns / 1e6) / min(serving.max_batch, 8)
        return np.full(500, 1e7) * factor


@pytest.fixture
def served(world: Any, monkeypatch: pytest.MonkeyPatch) -> list[RunnerSettings]:
    """Every batch is as full as its limit; returns what the arms ran with."""
    monkeypatch.setattr("latfix.runners.optimize.optimizer.Forecast", Likes)
    replay, ran = world.arm_class.replay, list[RunnerSettings]()

    def full(arm: Any, *arguments: Any, **options: Any) -> RunRecord:
        record: RunRecord = replay(arm, *arguments, **options)
        ran.append(arm.settings)
        record.batches["size"][:] = arm.settings.max_batch_size
        record.batches["worker"][:] = np.arange(len(record.batches["worker"])) % arm.settings.workers
        record.requests["latency_ns"][:] = record.requests["latency_ns"] / _factor(arm.settings)
        return record

    monkeypatch.setattr(world.arm_class, "replay", full)
    return ran


REFUSED: set[int] = set()


def _factor(settings: RunnerSettings) -> float:
    if settings.max_batch_size in REFUSED:
        return 0.5
    return float(min(settings.max_batch_size, 8)) / 2


@pytest.fixture(autouse=True)
def none_refused() -> None:
    REFUSED.clear()


@pytest.mark.usefixtures("served")
def test_the_best_numbers_are_replayed_and_kept(search: Any, world: Any) -> None:
    outcome = search(world.fix("A", 0.5), TUNE, settings=RunnerSettings(intra_op_threads=1, max_batch_size=2))
    (step,) = [step for step in outcome.steps if step.fix == "batch.tune"]
    assert step.status == "kept", step.reason
    assert outcome.settings.max_batch_size == 8 and outcome.settings.workers == 2
    assert outcome.settings.env == {"A": "0.5"}, "on top of what was kept before"
    assert "batches held 8 requests at most, 2 without" in step.verified
    assert "max_batch_size = 8" in step.reason


@pytest.mark.usefixtures("served")
def test_a_proposal_that_a_replay_refuses_leads_to_another(search: Any) -> None:
    REFUSED.update({8, 16})
    outcome = search(TUNE, settings=RunnerSettings(intra_op_threads=1, max_batch_size=2), trials=9)
    (step,) = [step for step in outcome.steps if step.fix == "batch.tune"]
    assert step.status == "kept" and outcome.settings.max_batch_size == 32
    assert "before that, max_batch_size = 16" in step.reason and "worse" in step.reason


def test_it_gives_up_after_some_refusals(search: Any, served: list[RunnerSettings]) -> None:
    REFUSED.update({4, 8, 16, 32, 64})
    outcome = search(TUNE, settings=RunnerSettings(intra_op_threads=1, max_batch_size=2))
    (step,) = [step for step in outcome.steps if step.fix == "batch.tune"]
    assert step.status == "rejected" and outcome.settings.max_batch_size == 2
    assert len({settings.max_batch_size for settings in served} - {2}) == 3


def test_refused_numbers_are_trials_like_any_other(search: Any, served: list[RunnerSettings]) -> None:
    """They share one step in the end, which must not make them one trial."""
    REFUSED.update({4, 8, 16, 32, 64})
    search(TUNE, settings=RunnerSettings(intra_op_threads=1, max_batch_size=2), trials=2)
    assert len({settings.max_batch_size for settings in served} - {2}) == 2


def test_without_a_forecast_nothing_is_proposed(search: Any, world: Any) -> None:
    outcome = search(TUNE)
    assert world.statuses(outcome) == {"batch.tune": "skipped"}
    assert "too small for a forecast" in outcome.steps[0].reason


@pytest.mark.usefixtures("served")
def test_adaptive_batching_is_left_alone(search: Any) -> None:
    outcome = search(TUNE, settings=RunnerSettings(intra_op_threads=1, max_batch_size=2, batching="adaptive"))
    assert outcome.steps[0].status == "skipped" and "adaptive" in outcome.steps[0].reason


@pytest.mark.usefixtures("served")
def test_a_search_that_was_resumed_does_not_tune_twice(search: Any) -> None:
    first = search(TUNE, settings=RunnerSettings(intra_op_threads=1, max_batch_size=2))
    again = search(TUNE, settings=RunnerSettings(intra_op_threads=1, max_batch_size=2), resume=True)
    assert again.settings == first.settings
    assert replace(again.settings, workers=1, max_batch_size=2) == RunnerSettings(
        intra_op_threads=1, max_batch_size=2
    )
    assert [step.fix for step in again.steps] == ["batch.tune"]


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("wrong", ["limit", "workers"])
def test_numbers_that_took_no_effect_are_not_counted(
    search: Any, world: Any, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    replay = world.arm_class.replay

    def idle(arm: Any, *arguments: Any, **options: Any) -> RunRecord:
        record: RunRecord = replay(arm, *arguments, **options)
        if wrong == "limit":
            record.batches["size"][:] = 2
        else:
            record.batches["worker"][:] = 0
        return record

    monkeypatch.setattr(world.arm_class, "replay", idle)
    outcome = search(TUNE, settings=RunnerSettings(intra_op_threads=1, max_batch_size=2))
    assert outcome.steps[0].status == "not_effective", outcome.steps[0].reason
