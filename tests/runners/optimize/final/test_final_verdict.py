"""The replay that proves the plan."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.cli.shared.optimize_flow import _subjects
from latfix.results.comparison import RATIO_KEYS
from latfix.run_record.run_record import RunRecord
from latfix.settings import RunnerSettings
from latfix.statistics.decision import RatioEstimate
from tests.profilers.samples import add_samples


def test_the_final_replay_starts_both_afresh_each_round_in_turns(search: Any, world: Any) -> None:
    outcome = search(world.fix("HALF", 0.5))
    final = [(name, cold) for _, name, cold in world.replays if name.startswith(("before-", "after-"))]
    assert [name for name, _ in final[:6]] == ["before-1", "after-1", "after-2", "before-2", "before-3", "after-3"]
    assert all(cold for _, cold in final)
    assert outcome.final is not None and outcome.final.rounds == len(final) // 2 == 5, "decided at the first look"


def test_a_final_round_with_a_neighbor_beside_one_service_is_left_out(
    search: Any, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It slows that service twenty times in one round of six, which the others do not average out."""
    replay = world.arm_class.replay

    def beside(arm: Any, folder: Path, *arguments: Any, **options: Any) -> RunRecord:
        record: RunRecord = replay(arm, folder, *arguments, **options)
        if not folder.name.startswith(("before-", "after-")):
            return record
        hog = 1.0 if folder.name == "after-2" else 0.0
        slowed = record.requests["latency_ns"] * (20 if hog else 1)
        record = replace(record, requests={**record.requests, "latency_ns": slowed})
        at = np.arange(5) * 10**9
        spent = (at, hog * at.clip(max=10**9))
        return add_samples(record, {"other.all.spent_ns": spent, "other.7.stress.spent_ns": spent})

    monkeypatch.setattr(world.arm_class, "replay", beside)
    outcome = search(world.fix("HALF", 0.5))
    assert outcome.final is not None
    assert (outcome.final.rounds, outcome.verdict) == (5, "improved")
    assert any("1 of 6 rounds is left out: other processes" in note for note in outcome.notes)


def test_nothing_kept_means_no_final_replay(search: Any, world: Any) -> None:
    outcome = search(world.fix("A", 1.0), world.fix("B", 1.3))
    assert outcome.verdict == "no_gain"
    assert outcome.final is None and outcome.before is None and outcome.after is None
    assert outcome.kept == []
    assert outcome.settings == RunnerSettings()
    assert not any(name.startswith(("before-", "after-")) for _, name, _ in world.replays)


def test_a_final_replay_that_is_worse_leaves_no_plan(search: Any, world: Any) -> None:
    """Screening was lucky: with fresh processes the fix costs."""
    fix = world.fix("LUCKY", 0.5)

    def turn(arm: Any, _name: str) -> None:
        if arm.label == "after":
            arm.settings = arm.settings.with_overrides({"env": {"LUCKY": "1.5"}})

    world.on_replay = turn
    outcome = search(fix)
    assert world.statuses(outcome) == {"a.LUCKY": "rejected"}
    assert world.step(outcome, "LUCKY").reason.startswith("slower in the final replay: p99 x1.5")
    assert outcome.final is not None and outcome.final.verdict == "worse"
    assert outcome.verdict == "no_gain"
    assert outcome.kept == [] and outcome.proved == ("a.LUCKY",)
    assert [each.status for each in outcome.candidates] == ["rejected"]
    # Gates judge the plan, which changes nothing, not what was refuted.
    after, before = _subjects(outcome, ["p99"])
    assert after == before and after.latency_ms["p99"] == outcome.final.before.latency_ms["p99"]


def test_a_refuted_plan_falls_back_to_the_best_one_before_it(search: Any, world: Any) -> None:
    """One of two fixes costs on fresh processes: the proved one stays."""

    def turn(arm: Any, _name: str) -> None:
        if arm.label == "after" and "LUCKY" in arm.settings.env:
            arm.settings = arm.settings.with_overrides({"env": {"LUCKY": "3.0"}})

    world.on_replay = turn
    outcome = search(world.fix("GOOD", 0.6), world.fix("LUCKY", 0.7), budget_s=2000)
    assert world.statuses(outcome) == {"a.GOOD": "kept", "a.LUCKY": "rejected"}
    assert world.step(outcome, "LUCKY").reason.startswith("tried as a.GOOD, a.LUCKY: slower in the final replay")
    assert outcome.verdict == "improved" and outcome.final.ratio["p99"].value == pytest.approx(0.6, rel=0.05)
    assert outcome.final_accuracy == 1.0
    assert any("This one is the next best" in note for note in outcome.notes)


@pytest.mark.usefixtures("forecast")
def test_without_a_better_replay_a_refuted_plan_falls_back_to_an_untried_way(search: Any, world: Any) -> None:
    def turn(arm: Any, _name: str) -> None:
        if arm.label == "after" and "LUCKY" in arm.settings.env:
            arm.settings = arm.settings.with_overrides({"env": {"LUCKY": "1.5"}})

    world.on_replay = turn
    lucky, steady = (world.fix(name, factor, compute=factor) for name, factor in (("LUCKY", 0.5), ("STEADY", 0.7)))
    outcome = search(lucky, steady, budget_s=2000)
    assert world.statuses(outcome) == {"a.LUCKY": "rejected", "a.STEADY": "kept"}
    assert outcome.verdict == "improved" and outcome.final.ratio["p99"].value == pytest.approx(0.7, rel=0.05)


def test_a_plan_without_effect_that_is_also_slower_ends_the_search(search: Any, world: Any) -> None:
    """It went to the final replay untried, and its only fix is found without effect there."""
    outcome = search(world.fix("HALF", 0.5))
    assert outcome.verdict == "improved"
    outcome.steps = [replace(step, status="not_effective") for step in outcome.steps]
    assert outcome.verdict == "no_gain", "what took no effect improved nothing"
    assert outcome.reject().startswith("slower in the final replay: p99 x0.5")
    assert world.statuses(outcome) == {"a.HALF": "not_effective"}


def test_a_share_that_points_the_other_way_divides_nothing(search: Any, world: Any) -> None:
    """Else the shares of the others are larger than the whole: x0.04 as 410 times faster and 16 times slower."""
    outcome = search(world.fix("HALF", 0.5))
    for against, divided in ((0.01, True), (2.0, False)):
        parts = {"a.HALF": -0.7 - against, "a.OTHER": against}
        outcome.shares = {fix: dict.fromkeys(("mean", "p99"), (part, part, part)) for fix, part in parts.items()}
        assert outcome.divided() == (outcome.shares if divided else {})


def ratios(judged: RatioEstimate, mean: RatioEstimate) -> dict[str, RatioEstimate]:
    return {**dict.fromkeys(RATIO_KEYS, mean), "p99": judged}


@pytest.mark.parametrize(
    ("judged", "mean", "untested", "refuted"),
    [
        ((1.65, 1.38, 1.98), (0.92, 0.17, 4.96), False, True),
        ((0.9, 0.7, 1.1), (1.3, 1.1, 1.5), False, True),
        ((1.1, 0.8, 1.5), (1.0, 0.9, 1.1), True, True),
        ((1.1, 0.8, 1.5), (1.0, 0.9, 1.1), False, False),
        ((0.8, 0.6, 1.2), (1.0, 0.9, 1.1), True, False),
    ],
)
def test_an_undecided_plan_that_was_slower_is_rejected(
    search: Any,
    world: Any,
    judged: tuple[float, float, float],
    mean: tuple[float, float, float],
    untested: bool,
    refuted: bool,
) -> None:
    """What replays of the search showed counts as evidence; a prediction does not."""
    outcome = search(world.fix("HALF", 0.5))
    estimates = ratios(*(RatioEstimate(value=value, lo=lo, hi=hi) for value, lo, hi in (judged, mean)))
    outcome.final = replace(outcome.final, verdict="undecided", ratio=estimates)
    if untested:
        outcome.steps = [replace(step, comparison=None) for step in outcome.steps]
    assert outcome.refuted is refuted and outcome.verdict == "inconclusive"
    if not untested and judged[1] < 1 < mean[1]:  # of more of the requests, slow ones among them, it is not slower
        lossy = replace(outcome.final.before, requests={"ok": 80, "timeout": 20})
        outcome.final = replace(outcome.final, before=lossy)
        assert not outcome.refuted


@pytest.mark.parametrize(("measured", "divided"), [(1.3, False), (1.001, False), (0.6, True)])
def test_a_prediction_is_no_share_of_a_ratio_that_contradicts_it(
    search: Any, world: Any, measured: float, divided: bool
) -> None:
    outcome = search(world.fix("HALF", 0.5))
    p99 = RatioEstimate(value=measured, lo=0.5, hi=2.0)
    outcome.final = replace(outcome.final, ratio=ratios(p99, RatioEstimate(value=0.6, lo=0.5, hi=0.7)))
    log = math.log(0.5)
    outcome.shares = {"a.HALF": dict.fromkeys(("mean", "p99"), (log, log, log))}
    assert bool(outcome.divided()) is divided


def test_rounds_that_take_longer_than_estimated_do_not_start(search: Any, world: Any) -> None:
    """Estimates do not include compilation at each start; measured rounds do."""
    world.warm_s = 200.0
    outcome = search(world.fix("HALF", 0.5), budget_s=1500.0)
    assert outcome.final is not None
    assert world.now <= 1500.0
