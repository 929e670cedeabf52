"""Fixes that are tried together where the budget is tight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any


def test_groups_only_where_the_budget_is_tight(search: Any, world: Any) -> None:
    fixes = [world.fix(name, 0.9, gentle=True) for name in ("A", "B", "C")]
    large = search(*fixes)
    assert all(step.together == () for step in large.steps)
    tight = search(*fixes, budget_s=285.0)
    assert all(step.together == ("a.A", "a.B", "a.C") for step in tight.steps)
    assert world.statuses(tight) == dict.fromkeys(("a.A", "a.B", "a.C"), "kept")
    assert all("in a group of 3" in step.reason and step.predicted_p99_ms is None for step in tight.steps)
    assert dict(tight.settings.env) == {"A": "0.9", "B": "0.9", "C": "0.9"}


def test_only_gentle_fixes_are_grouped(search: Any, world: Any) -> None:
    outcome = search(
        world.fix("HARD", 1.0, treats="large", changes_outputs=True),
        world.fix("A", 0.9, gentle=True),
        world.fix("B", 0.9, gentle=True),
        tail={"large": 50.0},
        budget_s=270.0,
    )
    assert world.step(outcome, "A").together == ("a.A", "a.B")
    assert world.step(outcome, "HARD").together == ()


def test_warm_up_is_not_credited_with_what_a_group_did(search: Any, world: Any) -> None:
    outcome = search(
        world.fix("WARM", 1.0, gentle=True, cold=True),
        world.fix("A", 0.5, gentle=True),
        world.fix("B", 0.9, gentle=True),
        budget_s=276.0,
    )
    assert world.step(outcome, "A").together == ("a.A", "a.B")
    assert world.statuses(outcome) == {"a.A": "kept", "a.B": "kept", "a.WARM": "no_gain"}
    assert all(cold for label, _, cold in world.replays if label == "a.WARM")


def test_a_group_that_is_no_gain_is_taken_apart(search: Any, world: Any) -> None:
    """One that harms hides one that helps."""
    fixes = [
        world.fix(name, f, gentle=True) for name, f in (("A", 3.0), ("B", 0.5), *((f"N{k}", 1.0) for k in range(6)))
    ]
    outcome = search(*fixes, budget_s=350.0)
    found = world.statuses(outcome)
    assert set(found) == {fix.id for fix in fixes}
    assert all(step.together == () for step in outcome.steps)
    assert found["a.A"] == "rejected" and found["a.B"] == "kept"
    assert found["a.N5"] == "skipped", "there was no time for each alone"


def test_a_member_without_effect_is_left_out_of_a_kept_group(search: Any, world: Any) -> None:
    world.silent = {"B"}
    outcome = search(*(world.fix(name, 0.7, gentle=True) for name in ("A", "B", "C")), budget_s=285.0)
    assert world.statuses(outcome) == {"a.A": "kept", "a.B": "not_effective", "a.C": "kept"}
    assert dict(outcome.settings.env) == {"A": "0.7", "C": "0.7"}
    assert [step.fix for step in outcome.kept] == ["a.A", "a.C"]
    assert outcome.after is not None and "B" not in outcome.after.meta.settings.env


def test_one_that_does_not_start_does_not_take_its_group_with_it(search: Any, world: Any) -> None:
    world.broken = {"B"}
    outcome = search(*(world.fix(name, 0.5, gentle=True) for name in "ABC"), budget_s=285.0)
    found = world.statuses(outcome)
    assert found["a.A"] == "kept"
    assert found["a.B"] == "not_effective"


def test_a_fix_that_promises_more_comes_before_the_group(search: Any, world: Any) -> None:
    outcome = search(
        world.fix("A", 0.9, gentle=True),
        world.fix("B", 0.9, gentle=True),
        world.fix("LARGE", 0.5, treats="large"),
        tail={"large": 80.0, "x": 1.0},
        budget_s=285.0,
    )
    assert [step.fix for step in outcome.steps] == ["a.LARGE", "a.A", "a.B"]
    assert world.step(outcome, "A").together == ("a.A", "a.B")


def test_one_that_does_not_go_with_the_group_is_tried_after_it(search: Any, world: Any) -> None:
    """What it says beside a member that may not be kept is no reason against it."""
    second = world.fix("SECOND", 0.8, gentle=True)

    def obstacle(context: Any) -> str:
        return "FIRST is there" if "FIRST" in context.settings.env else ""

    fixes = [
        world.fix("FIRST", 1.3, gentle=True),
        replace(second, needs=(obstacle,)),
        world.fix("THIRD", 1.0, gentle=True),
    ]
    outcome = search(*fixes, budget_s=370.0)
    assert world.statuses(outcome)["a.SECOND"] == "kept"
    assert world.step(outcome, "SECOND").together == ()
    out_of_time = search(*fixes, budget_s=150.0, folder="short")
    assert {step.reason.split(":")[0] for step in out_of_time.steps} == {"budget"}


def test_a_group_that_was_taken_apart_was_a_trial(search: Any, world: Any) -> None:
    fixes = [world.fix(name, factor, gentle=True) for name, factor in (("A", 9.0), ("B", 0.5), ("C", 0.6))]
    outcome = search(*fixes, trials=2)
    tried = {label for label, name, _ in world.replays if name[0].isdigit() and label != "before"}
    assert len(tried) == 2 and "together" in tried
    assert sum("all 2 trials are used" in step.reason for step in outcome.steps) == 2
