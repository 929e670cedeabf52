"""Predictions: what the forecast says orders the fixes, spares hopeless replays, and is held against the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latfix.profilers.forecast.settings_forecast import Forecast, Serving


class Known(Forecast):
    """Says that latency goes with compute, and halves where a cause or the window is gone."""

    def __init__(self, _record: Any) -> None:
        self.serving = Serving(max_batch=1, window_ns=0.0, workers=1, prepare_threads=1)
        self.measured = self.simulated = {"mean": 1.0, "p99": 1.0}

    def latencies(self, serving: Serving, within: Sequence[tuple[float, float]] = ()) -> Any:
        del within
        factor = serving.compute[1] * (0.5 if serving.without else 1.0) * serving.max_batch
        return np.random.default_rng(3).gamma(9.0, 2e6, 500) * factor


@pytest.fixture
def forecast(world: Any, monkeypatch: pytest.MonkeyPatch) -> type[Known]:
    del world  # must have put its own there before
    monkeypatch.setattr("latfix.runners.optimize.optimizer.Forecast", Known)
    return Known


@pytest.mark.usefixtures("forecast")
def test_a_cause_that_a_fix_removes_whole_is_foretold(search: Any, world: Any) -> None:
    outcome = search(world.fix("HALF", 0.5, removes=("python.gc",)), world.fix("OTHER", 1.0))
    half = world.step(outcome, "HALF")
    assert half.predicted_p99_ms == pytest.approx(half.comparison.before.latency_ms["p99"] / 2)
    assert half.prediction_error("p99") < 0.05
    errors = outcome.prediction_errors()
    assert errors["p99"]["steps"] == 2 and errors["p99"]["median"] < 0.05
    assert errors["p99"]["final"] == pytest.approx(0.5) and errors["p99"]["final_error"] < 0.05


@pytest.mark.usefixtures("forecast")
def test_compute_is_measured_before_it_is_foretold(search: Any, world: Any) -> None:
    # GIVEN a fix whose first guess is off, and a service whose batches compute in 0.6 of the time with it
    world.paces = {"FAST": 0.6}
    outcome = search(world.fix("FAST", 0.6, compute=0.2))
    step = world.step(outcome, "FAST")
    assert step.prediction.compute == (pytest.approx(0.0, abs=1e-9), pytest.approx(0.6))
    assert step.prediction.ratio["p99"] == pytest.approx(0.6)


@pytest.mark.usefixtures("forecast")
def test_the_pace_is_of_batches_that_the_service_has_come_to_serve(search: Any, world: Any) -> None:
    """Once a fix is kept, its windows' batches stand for it, wherever they lie in the whole schedule."""
    outcome = search(world.fix("FAST", 0.6, relief=0.9), world.fix("NEXT", 0.9, relief=0.1))
    windows = [each.traffic for folder, each in world.records.items() if folder.name.endswith("-a.FAST")]
    ids = {name for window in windows for name in window.ids}
    asked = dict(world.paced)["a.NEXT"]
    assert asked and {f"r{position}" for batch in asked for position in batch} <= ids
    whole = outcome.baseline.traffic
    assert len(ids) < len(whole) / 2


@pytest.mark.usefixtures("forecast")
def test_the_next_prediction_builds_on_what_was_kept(search: Any, world: Any) -> None:
    world.paces = {"FAST": 0.6, "FASTER": 0.5}
    outcome = search(world.fix("FAST", 0.6, compute=0.2), world.fix("FASTER", 0.5, compute=0.9))
    assert world.step(outcome, "FASTER").prediction.ratio["p99"] == pytest.approx(0.5)


@pytest.mark.usefixtures("forecast")
def test_fixes_come_in_the_order_of_the_forecast(search: Any, world: Any) -> None:
    outcome = search(
        world.fix("SLOW", 1.0, treats="large", relief=0.9),
        world.fix("FAST", 0.6, compute=0.6),
        world.fix("GONE", 0.5, removes=("python.gc",)),
        tail={"large": 0.1},
    )
    assert [step.fix for step in outcome.steps][:2] == ["a.GONE", "a.FAST"]


@pytest.mark.usefixtures("forecast")
def test_what_the_forecast_knows_to_be_worse_is_not_replayed(search: Any, world: Any) -> None:
    outcome = search(replace(world.fix("WORSE", 1.0), sets={"max_batch_size": 2}))
    assert world.statuses(outcome) == {"a.WORSE": "skipped"}
    assert "forecast" in outcome.steps[0].reason and "x2.00" in outcome.steps[0].reason
    assert not world.windows


def test_a_forecast_that_misses_what_ran_is_not_used(
    search: Any, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(Known):
        def __init__(self, record: Any) -> None:
            super().__init__(record)
            self.simulated = {"mean": 1.0, "p99": 2.0}

    monkeypatch.setattr("latfix.runners.optimize.optimizer.Forecast", Wrong)
    outcome = search(world.fix("HALF", 0.5, removes=("python.gc",)))
    assert outcome.steps[0].prediction is None and outcome.steps[0].predicted_p99_ms is None
    assert outcome.forecast_error == pytest.approx(1.0)
    assert outcome.prediction_errors()["p99"] == {"median": None, "steps": 0}


def test_no_more_candidates_than_trials(search: Any, world: Any) -> None:
    outcome = search(*(world.fix(name, 0.9) for name in "ABCD"), trials=2)
    assert list(world.statuses(outcome).values()) == ["kept", "kept", "skipped", "skipped"]
    assert "2 trials" in world.step(outcome, "C").reason


@pytest.mark.usefixtures("forecast")
def test_compute_that_was_measured_to_be_slower_is_not_replayed(search: Any, world: Any) -> None:
    world.paces = {"SLOW": 1.4, "SAME": 0.99, "FAST": 0.7}
    outcome = search(
        world.fix("SLOW", 1.4, compute=0.5), world.fix("SAME", 0.8, compute=0.5), world.fix("FAST", 0.7, compute=0.5)
    )
    assert world.step(outcome, "SAME").status == "no_gain"
    slow = world.step(outcome, "SLOW")
    assert (slow.status, slow.comparison) == ("no_gain", None)
    assert "the same batches take x1.40 as long" in slow.reason and "not replayed" in slow.reason
    assert not any(label == "a.SLOW" for label, _, _ in world.replays)
    assert world.statuses(outcome)["a.FAST"] == "kept"


@pytest.mark.usefixtures("forecast")
def test_what_acts_otherwise_than_on_compute_is_replayed_whatever_its_pace(search: Any, world: Any) -> None:
    world.paces = {"POOL": 1.4}
    outcome = search(world.fix("POOL", 0.8))
    assert world.statuses(outcome) == {"a.POOL": "kept"}
