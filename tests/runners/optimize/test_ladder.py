"""One fix after the other: order, what is kept, how it is replayed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from latfix.runners.fixes import Fix, Verified
from latfix.settings import RunnerSettings


def test_fixes_come_in_the_order_of_what_they_promise(search: Any, world: Any) -> None:
    outcome = search(
        world.fix("first", treats="small"),
        world.fix("second", treats="large", relief=0.1),
        world.fix("third", treats="large", relief=0.9),
        world.fix("fourth", treats="nothing"),
        world.fix("fifth", treats="negative"),
        tail={"small": 10.0, "large": 90.0, "negative": -50.0},
    )
    assert [step.fix for step in outcome.steps] == ["a.third", "a.second", "a.first", "a.fourth", "a.fifth"]


def test_what_was_kept_changes_what_the_others_promise(search: Any, world: Any) -> None:
    def obstacle(context: Any) -> str:
        return "" if "A" in context.settings.env else "only beside A"

    outcome = search(
        world.fix("C", treats="small"),
        replace(world.fix("B", treats="large", relief=0.8), needs=(obstacle,)),
        world.fix("A", 0.5, treats="large", relief=0.9),
        tail={"small": 10.0, "large": 90.0},
    )
    assert [step.fix for step in outcome.steps] == ["a.A", "a.B", "a.C"]


def test_a_better_one_is_kept_and_the_next_builds_on_it(search: Any, world: Any) -> None:
    outcome = search(world.fix("HALF", 0.5), world.fix("NONE", 1.0), world.fix("WORSE", 1.5), world.fix("THIRD", 0.7))
    assert world.statuses(outcome) == {
        "a.HALF": "kept",
        "a.NONE": "no_gain",
        "a.WORSE": "rejected",
        "a.THIRD": "kept",
    }
    assert dict(outcome.settings.env) == {"HALF": "0.5", "THIRD": "0.7"}
    third = world.step(outcome, "THIRD")
    assert third.comparison is not None
    assert third.comparison.ratio["mean"].value == pytest.approx(0.7, rel=0.02), "beside HALF, not beside the start"
    assert outcome.verdict == "improved"
    assert outcome.final is not None
    assert outcome.final.ratio["p99"].value == pytest.approx(0.35, rel=0.02)
    assert outcome.before is not None and outcome.after is not None
    assert dict(outcome.before.meta.settings.env) == {}
    assert [step.fix for step in outcome.planned] == ["a.HALF", "a.THIRD"]


def test_both_arms_replay_each_window_in_turns_and_in_use(search: Any, world: Any) -> None:
    search(world.fix("HALF", 0.5))
    windows = [(label, cold) for label, name, cold in world.replays if name in world.windows]
    assert [label for label, _ in windows] == ["before", "a.HALF", "a.HALF", "before"]
    assert not any(cold for _, cold in windows), "a service's first requests are no other fix's business"
    folders = [name for _, name, _ in world.replays]
    assert len(folders) == len(set(folders)), "no record overwrites another"


def test_a_fix_of_the_start_is_judged_on_fresh_processes(search: Any, world: Any) -> None:
    search(world.fix("WARM", 0.5, cold=True))
    assert all(cold for _, name, cold in world.replays if name[0].isdigit())


def test_a_gain_without_evidence_is_not_kept(search: Any, world: Any) -> None:
    """The figures are better, yet the fix did nothing: it was something else."""
    fix = world.fix("LUCK", 0.5)
    unseen = Fix(
        **{name: getattr(fix, name) for name in Fix.__slots__} | {"verify": lambda _: Verified(False, "0 seen")}
    )
    outcome = search(unseen)
    assert world.statuses(outcome) == {"a.LUCK": "not_effective"}
    assert "0 seen" in outcome.steps[0].reason
    assert outcome.verdict == "no_gain" and dict(outcome.settings.env) == {}


def test_an_obstacle_is_a_reason(search: Any, world: Any) -> None:
    outcome = search(world.fix("A", 0.5, obstacle="it is there already"), world.fix("B", 0.5))
    assert world.step(outcome, "A").status == "skipped"
    assert world.step(outcome, "A").reason == "it is there already"
    assert not any(arm.label == "a.A" for arm in world.arms)
    assert world.statuses(outcome)["a.B"] == "kept"


def test_only_and_exclude(search: Any, world: Any) -> None:
    fixes = [world.fix(name, 1.0) for name in "ABC"]
    assert set(world.statuses(search(*fixes, only=("a.B",)))) == {"a.B"}
    assert set(world.statuses(search(*fixes, exclude=("a.B",)))) == {"a.A", "a.C"}


def test_first_settings_are_the_before(search: Any, world: Any) -> None:
    first = RunnerSettings(env={"PLAN": "1.0"}, max_batch_size=4)
    outcome = search(world.fix("HALF", 0.5), settings=first)
    assert outcome.before is not None and outcome.after is not None
    assert outcome.before.meta.settings == first
    assert outcome.after.meta.settings == replace(first, env={"PLAN": "1.0", "HALF": "0.5"})
    assert outcome.settings.max_batch_size == 4


def test_an_undecided_promise_is_replayed_once_more(search: Any, world: Any) -> None:
    world.noise = 0.9
    search(world.fix("MAYBE", 0.93))
    assert len(world.windows) in (4, 8)
    world.replays.clear()
    world.noise = 0.0
    search(world.fix("SURE", 0.5))
    assert len(world.windows) == 4


def test_a_first_use_is_not_held_against_a_fix(search: Any, world: Any) -> None:
    """The service without it has served the windows before; the one with it would meet each input first."""
    world.first_use = 3.0
    outcome = search(world.fix("A", 0.8), world.fix("B", 0.8))
    assert world.statuses(outcome) == {"a.A": "kept", "a.B": "kept"}
    for name in ("A", "B"):
        compared = world.step(outcome, name).comparison
        assert compared is not None and compared.ratio["mean"].value == pytest.approx(0.8, rel=0.02)
