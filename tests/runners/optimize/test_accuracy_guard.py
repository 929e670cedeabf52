"""Accuracy comes before speed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from latfix.runners.fixes import Context, Fix
from latfix.runners.fixes.quantize import int8_dynamic, int8_excluded


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


def test_agreement_replaces_a_missing_score(search: Any, world: Any) -> None:
    world.evaluates = False
    world.scores = {"INT8": 0.5}
    outcome = search(world.fix("INT8", 0.3, changes_outputs=True))
    assert outcome.accuracy_kind == "agreement" and outcome.accuracy == 1.0
    assert world.statuses(outcome) == {"a.INT8": "rejected"}


@pytest.fixture
def int8(world: Any) -> tuple[list[Fix], list[Any]]:
    """Int8 that costs too much in all layers, but not with one of them left out; the layers that the latter saw."""
    world.scores, world.keep = {"INT8": 0.9, "PART": 0.995}, {"head": 0.4}
    seen: list[Any] = []

    def layers_known(context: Context) -> str:
        seen.append(context.found.get(int8_excluded.FIX.id))
        return "" if seen[-1] else "not measured"

    whole = replace(world.fix("INT8", 0.4, changes_outputs=True), id=int8_dynamic.FIX.id)
    part = replace(
        world.fix("PART", 0.5, changes_outputs=True),
        id=int8_excluded.FIX.id,
        needs=(layers_known,),
        set_up=int8_excluded.FIX.set_up,
        after=whole.id,
    )
    return [part, whole], seen


def test_sensitive_layers_are_measured_once_int8_is_rejected(
    search: Any, world: Any, int8: tuple[list[Fix], list[Any]]
) -> None:
    (part, whole), seen = int8
    outcome = search(part, whole)
    assert world.statuses(outcome) == {whole.id: "rejected", part.id: "kept"}
    assert seen[-1] == outcome.layers == {"keep": {"head": 0.4}}
    search(part, whole, resume=True)
    assert world.asked.count(("sensitivity", "sensitivity")) == 1


def test_layers_are_not_measured_before_there_is_something_to_prove(
    search: Any, world: Any, int8: tuple[list[Fix], list[Any]]
) -> None:
    """The next best way is replayed at once; what takes the refused one's place, and is better, after it."""
    (part, whole), _ = int8
    outcome = search(part, whole, world.fix("NEXT", 0.8))
    assert world.statuses(outcome) == {whole.id: "rejected", part.id: "kept", "a.NEXT": "kept"}
    looked = world.asked.index(("sensitivity", "sensitivity"))
    assert ("a.NEXT", "evidence") in world.asked[:looked], "replayed before"


def test_a_resumed_search_knows_the_measured_layers(
    search: Any, world: Any, int8: tuple[list[Fix], list[Any]]
) -> None:
    (part, whole), seen = int8
    refused = replace(part, needs=(*part.needs, lambda _: "not now"))
    for resume in (False, True):
        seen.clear()
        search(refused, whole, resume=resume)
        assert seen[-1] == {"keep": {"head": 0.4}}
    assert world.asked.count(("sensitivity", "sensitivity")) == 1


def test_layers_are_not_measured_without_need(search: Any, world: Any) -> None:
    search(world.fix("INT8", 0.4, changes_outputs=True))
    assert not any(do == "sensitivity" for _, do in world.asked)
