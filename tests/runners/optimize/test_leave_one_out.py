"""Each kept fix is taken out once: what it adds to the others in the end, and which adds nothing any more."""

from __future__ import annotations

from typing import Any

import pytest


def test_a_fix_that_another_made_needless_is_dropped(search: Any, world: Any) -> None:
    # GIVEN a fix that was worth something until a stronger one of the same kind came
    world.eclipsed = {"WEAK": "STRONG"}
    tail = {"first": 90.0, "second": 10.0}
    outcome = search(world.fix("WEAK", 0.8, treats="first"), world.fix("STRONG", 0.4, treats="second"), tail=tail)
    # THEN it was kept when it was tried, and is no part of the plan
    assert world.statuses(outcome) == {"a.WEAK": "no_gain", "a.STRONG": "kept"}
    weak = world.step(outcome, "WEAK")
    assert weak.comparison.ratio["mean"].value == pytest.approx(0.8, rel=0.02)
    assert weak.adds.ratio["mean"].value == pytest.approx(1.0, rel=0.02)
    assert "beside the others" in weak.reason
    assert dict(outcome.settings.env) == {"STRONG": "0.4"}
    assert dict(outcome.after.meta.settings.env) == {"STRONG": "0.4"}


def test_what_each_adds_to_the_others_is_measured(search: Any, world: Any) -> None:
    outcome = search(world.fix("A", 0.5), world.fix("B", 0.7))
    assert world.statuses(outcome) == {"a.A": "kept", "a.B": "kept"}
    adds = {step.fix: step.adds.ratio["mean"].value for step in outcome.steps}
    assert adds == {"a.A": pytest.approx(0.5, rel=0.02), "a.B": pytest.approx(0.7, rel=0.02)}
    assert {"without-a.A", "without-a.B"} <= {label for label, _, _ in world.replays}


def test_one_kept_fix_has_no_others(search: Any, world: Any) -> None:
    outcome = search(world.fix("A", 0.5))
    assert outcome.steps[0].adds is None
    assert not any(label.startswith("without") for label, _, _ in world.replays)


def test_there_must_be_time_for_it(search: Any, world: Any) -> None:
    outcome = search(world.fix("A", 0.5), world.fix("B", 0.7), budget_s=285.0)
    assert len(outcome.kept) == 2 and outcome.final is not None
    assert not any(label.startswith("without") for label, _, _ in world.replays)


def test_the_shares_of_the_kept_fixes_lead_from_before_to_after(search: Any, world: Any) -> None:
    from latfix.results.optimization_step import ablation

    outcome = search(world.fix("A", 0.5), world.fix("B", 0.7))
    entries = ablation(outcome.kept, outcome.final)
    assert [entry.fixes for entry in entries] == [("a.A",), ("a.B",), ()]
    for key in ("mean", "p99"):
        assert entries[0].before_ms[key] == outcome.final.before.latency_ms[key]
        assert entries[-1].after_ms[key] == outcome.final.after.latency_ms[key]
        assert [one.after_ms[key] for one in entries[:-1]] == [next_.before_ms[key] for next_ in entries[1:]]
    assert entries[0].after_ms["mean"] == pytest.approx(0.5 * entries[0].before_ms["mean"], rel=0.02)
    assert (entries[1].adds or {})["a.B"]["mean"].value == pytest.approx(0.7, rel=0.02)


def test_fixes_that_were_replayed_together_share_an_entry(search: Any, world: Any) -> None:
    from latfix.results.optimization_step import ablation

    outcome = search(*(world.fix(name, 0.9, gentle=True) for name in "ABC"), budget_s=285.0)
    entries = ablation(outcome.kept, outcome.final)
    assert [entry.fixes for entry in entries] == [("a.A", "a.B", "a.C"), ()]
    assert entries[0].predicted is None
