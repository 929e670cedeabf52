"""Accuracy comes before speed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any


def test_accuracy_is_measured_before_speed(search: Any, world: Any) -> None:
    world.scores = {"INT8": 0.98, "BF16": 0.995}
    outcome = search(world.fix("INT8", 0.3, changes_outputs=True), world.fix("BF16", 0.6, changes_outputs=True))
    assert world.statuses(outcome) == {"a.INT8": "rejected", "a.BF16": "kept"}
    step = world.step(outcome, "INT8")
    assert step.reason.startswith("accuracy 1 -> 0.98, limit 0.99")
    assert step.accuracy == 0.98 and step.comparison is None
    assert not any(label == "a.INT8" for label, _, _ in world.replays)
    assert world.step(outcome, "BF16").accuracy == outcome.final_accuracy == 0.995


def test_accuracy_is_not_measured_where_answers_stay(search: Any, world: Any) -> None:
    search(world.fix("A", 1.0))
    assert ("a.A", "evaluate") not in world.asked


def test_agreement_stands_in_where_the_workload_has_no_score(search: Any, world: Any) -> None:
    world.evaluates = False
    world.scores = {"INT8": 0.5}
    outcome = search(world.fix("INT8", 0.3, changes_outputs=True))
    assert outcome.accuracy_kind == "agreement" and outcome.accuracy == 1.0
    assert world.statuses(outcome) == {"a.INT8": "rejected"}


def test_kept_fixes_that_lose_accuracy_together_are_no_plan(search: Any, world: Any) -> None:
    """Each alone was fine; the fix that lost it changes no answers by itself, so only the end shows it."""
    world.scores = {"BATCH": 0.9}
    outcome = search(world.fix("BATCH", 0.5))
    assert world.statuses(outcome) == {"a.BATCH": "kept"}
    assert outcome.final_accuracy == 0.9
    assert not outcome.accurate
    assert outcome.verdict == "no_gain"
    assert outcome.planned == []


def test_layers_that_accuracy_hangs_on_are_found_once_the_whole_was_refused(search: Any, world: Any) -> None:
    # GIVEN int8 that costs too much in all layers, and not with one of them left out
    world.scores, world.keep = {"INT8": 0.9, "PART": 0.995}, {"head": 0.4}
    seen: list[Any] = []

    def obstacle(context: Any) -> str:
        seen.append(context.sensitivity)
        return "" if context.sensitivity else "not measured"

    whole = world.fix("INT8", 0.4, changes_outputs=True)
    part = world.fix("PART", 0.5, changes_outputs=True)
    fixes = [
        replace(whole, id="quantize.int8_dynamic"),
        replace(part, id="quantize.int8_excluded", obstacle=obstacle),
    ]
    # WHEN they are searched in whatever order they are given
    outcome = search(*reversed(fixes))
    # THEN the layers are measured after the refusal, and the rest is kept
    assert world.statuses(outcome) == {"quantize.int8_dynamic": "rejected", "quantize.int8_excluded": "kept"}
    assert seen[-1] == {"head": 0.4}
    assert ("sensitivity", "sensitivity") in world.asked


def test_layers_that_were_found_are_known_to_a_search_that_is_resumed(search: Any, world: Any) -> None:
    world.scores, world.keep = {"INT8": 0.9}, {"head": 0.4}
    whole, part = world.fix("INT8", 0.4, changes_outputs=True), world.fix("PART", 0.5)
    known: list[Any] = []

    def obstacle(context: Any) -> str:
        known.append(context.sensitivity)
        return "not now"

    fixes = [
        replace(whole, id="quantize.int8_dynamic"),
        replace(part, id="quantize.int8_excluded", obstacle=obstacle),
    ]
    search(*fixes)
    asked = world.asked.count(("sensitivity", "sensitivity"))
    search(*fixes, resume=True)
    assert known[-1] == {"head": 0.4}
    assert world.asked.count(("sensitivity", "sensitivity")) == asked == 1


def test_layers_are_not_looked_for_without_need(search: Any, world: Any) -> None:
    search(world.fix("INT8", 0.4, changes_outputs=True))
    assert not any(do == "sensitivity" for _, do in world.asked)
