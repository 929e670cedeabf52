"""Compute is measured before anything is replayed, so that time goes to what promises most."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.runners.optimize.test_fix_prediction import Known


@pytest.fixture(autouse=True)
def _forecast(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    del world  # must have put its own there before
    monkeypatch.setattr("latfix.runners.optimize.optimizer.Forecast", Known)


def _scouted(world: Any) -> list[str]:
    return [label.removeprefix("scout-a.") for label, do in world.asked if do == "pace" and label.startswith("scout")]


def test_what_is_measured_orders_the_fixes_not_what_is_usual(search: Any, world: Any) -> None:
    world.paces = {"USUAL": 0.95, "HERE": 0.5}
    outcome = search(world.fix("USUAL", 0.95, compute=0.4), world.fix("HERE", 0.5, compute=0.9))
    assert [step.fix for step in outcome.steps] == ["a.HERE", "a.USUAL"]
    assert set(_scouted(world)) == {"USUAL", "HERE"}


def test_only_what_changes_compute_is_measured(search: Any, world: Any) -> None:
    search(world.fix("A", 0.9, compute=0.8), world.fix("B", 0.9, compute=0.8), world.fix("C", 0.9))
    assert set(_scouted(world)) == {"A", "B"}


def test_so_is_what_shares_the_cores_otherwise(search: Any, world: Any) -> None:
    fix = world.fix("B", 0.9)
    workers = replace(fix, sets=lambda context: {**fix.change(context), "workers": 2})
    search(world.fix("A", 0.9, compute=0.8), workers)
    assert set(_scouted(world)) == {"A", "B"}


def test_one_alone_has_no_order(search: Any, world: Any) -> None:
    search(world.fix("A", 0.9, compute=0.8), world.fix("C", 0.9))
    assert not _scouted(world)


def test_what_does_not_apply_is_not_measured(search: Any, world: Any) -> None:
    fixes = [world.fix(name, 0.9, compute=0.8) for name in "AB"]
    search(*fixes, world.fix("C", 0.9, compute=0.8, obstacle="not here"))
    assert set(_scouted(world)) == {"A", "B"}


def test_one_that_does_not_load_is_told_by_its_trial(search: Any, world: Any) -> None:
    world.broken, world.paces = {"BROKEN"}, {"B": 0.5}
    outcome = search(world.fix("BROKEN", 0.9, compute=0.8), world.fix("B", 0.5, compute=0.8))
    assert world.statuses(outcome) == {"a.BROKEN": "not_effective", "a.B": "kept"}


def test_no_more_than_a_fifth_of_the_time(search: Any, world: Any) -> None:
    fixes = [world.fix(name, 1.0, compute=0.8) for name in "ABCDEFGH"]
    search(*fixes, budget_s=240.0)
    assert 0 < len(set(_scouted(world))) < len(fixes)


def test_scouts_are_gone_when_the_search_begins(search: Any, world: Any) -> None:
    search(*(world.fix(name, 0.9, compute=0.8) for name in "AB"))
    scouts = [arm for arm in world.arms if arm.label.startswith("scout")]
    assert len(scouts) == 2 and not any(arm.alive for arm in scouts)
    assert not any(label.startswith("scout") for label, _, _ in world.replays)


def test_one_that_takes_long_to_make_is_known_for_it(search: Any, world: Any) -> None:
    """Converting took a minute: scouting ends with it, and there is no time left to try it."""
    world.paces = dict.fromkeys(("SLOW", "B", "C", "D"), 0.6)
    running = world.arm_class.running

    def slowly(arm: Any) -> None:
        was = arm.alive
        running(arm)
        if not was and "SLOW" in arm.settings.env:
            world.now += 60.0

    world.arm_class.running = slowly
    try:
        outcome = search(*(world.fix(name, 0.6, compute=0.8) for name in world.paces), budget_s=300.0)
    finally:
        world.arm_class.running = running
    assert _scouted(world)[0] == "SLOW" and set(_scouted(world)) == {"SLOW"}
    assert world.statuses(outcome)["a.SLOW"] == "skipped" and "budget" in world.step(outcome, "SLOW").reason
    assert world.statuses(outcome)["a.B"] == "kept"
