"""Ways to run the model are measured, the best configurations replayed, and other fixes added."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from latfix.errors import RunnerError
from latfix.formatting import LATENCY_KEYS
from latfix.reports.comparison_rows import step_rows
from latfix.results.answer_check import AnswerCheck
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes import FIXES, Applied, Fix, Verified
from latfix.runners.optimize import measurement
from latfix.runners.optimize.configuration import Choice, Configuration
from latfix.runners.optimize.measurement import Bench
from latfix.runners.optimize.predicted_configurations import Planner
from latfix.runners.optimize.search import Search
from latfix.settings import RunnerSettings
from tests.profilers.samples import add_samples
from tests.runners.optimize.conftest import Known

pytestmark = pytest.mark.usefixtures("forecast")

#: Time on a core of a process that is not the service's.
HOG = "other.7.stress.spent_ns"


def limits(world: Any, *sizes: int) -> Fix:
    """Batch limits to choose from."""
    changes = [{"max_batch_size": size} for size in sizes]
    fix: Fix = world.fix("LIMIT")
    return replace(fix, sets=changes[0], options=lambda _: changes, verify=lambda _: Verified(True, "seen"))


def workers(world: Any, count: int) -> Fix:
    fix: Fix = world.fix("WORKERS")
    return replace(fix, sets={"workers": count}, verify=lambda _: Verified(True, "seen"))


def model(world: Any, name: str, factor: float, **more: Any) -> Fix:
    """A way to run the model whose answers differ."""
    fix: Fix = world.fix(name, factor, compute=0.5, changes_outputs=True, **more)
    return fix


def scored(world: Any) -> list[str]:
    return [label for label, do in world.asked if do == "evaluate"]


def test_the_quickest_accurate_way_is_kept(search: Any, world: Any) -> None:
    world.scores, world.broken = {"INT8": 0.9, "BF16": 0.995}, {"BROKEN"}
    ways = {"BROKEN": 0.3, "INT8": 0.4, "BF16": 0.6, "SLOW": 1.2}
    outcome = search(*(model(world, name, factor) for name, factor in ways.items()))
    assert world.statuses(outcome) == {
        "a.BROKEN": "not_effective",
        "a.INT8": "rejected",
        "a.BF16": "kept",
        "a.SLOW": "no_gain",
    }
    assert dict(outcome.settings.env) == {"BF16": "0.6"} and outcome.final_accuracy == 0.995
    assert "accuracy 1 -> 0.9" in world.step(outcome, "INT8").reason
    assert "x1.20" in world.step(outcome, "SLOW").reason and "does not load" in world.step(outcome, "BROKEN").reason
    assert scored(world) == ["before", "a.INT8", "a.BF16"], "neither what does not run, nor what is slower"
    assert {label for label, _ in world.paced} == {"before", *(f"pace-a.{name}" for name in ways if name != "BROKEN")}
    assert not any(label == "a.INT8" for label, _, _ in world.replays), "accuracy comes before speed"


def test_ways_that_do_not_exclude_each_other_are_also_measured_together(search: Any, world: Any) -> None:
    """A precision and a memory layout; if the precision costs accuracy, the layout with the next precision."""
    ways = [model(world, "INT8", 0.4), model(world, "BF16", 0.6), model(world, "LAYOUT", 0.8, combines=True)]
    ways.append(model(world, "SLOW", 1.1, combines=True))
    outcome = search(*ways, budget_s=2000)
    assert dict(outcome.settings.env) == {"INT8": "0.4", "LAYOUT": "0.8"}
    assert outcome.final.ratio["p99"].value == pytest.approx(0.32, rel=0.05)

    world.scores = {"INT8": 0.9}
    outcome = search(*ways, budget_s=2000)
    assert dict(outcome.settings.env) == {"BF16": "0.6", "LAYOUT": "0.8"}
    assert not any("SLOW" in label and "-" in label[5:] for label, _ in world.paced), "it gains nothing"


def test_two_fixes_with_the_same_split_of_the_cores_are_measured_once(search: Any, world: Any) -> None:
    """As pinning, which on few cores limits the threads too, next to the limit alone."""
    threads = {"intra_op_threads": 1}
    outcome = search(
        replace(world.fix("THREADS"), sets=threads), replace(world.fix("PIN"), sets={"pin": "workers", **threads})
    )
    assert {label for label, _ in world.paced} == {"before", "pace-a.THREADS"}
    assert outcome.verdict == "no_gain"


def test_a_way_that_fails_on_every_batch_shows_the_models_error(search: Any, world: Any) -> None:
    world.paces = {"FAILS": float("nan")}
    outcome = search(model(world, "FAILS", 0.5))
    step = world.step(outcome, "FAILS")
    assert step.status == "not_effective" and "TypeError: no such layer" in step.reason


def test_a_prediction_of_the_objectives_percentile_has_its_error(search: Any, world: Any) -> None:
    outcome = search(model(world, "FAST", 0.5), goal="p90")
    assert outcome.prediction_errors()["judged"]["final"] == outcome.predicted["p90"] == pytest.approx(0.5)
    assert "judged" not in search(model(world, "FAST", 0.5), goal="mean").prediction_errors()


def test_a_way_and_a_batch_size_are_replayed_together_as_predicted(search: Any, world: Any) -> None:
    world.limits = {4: 0.9, 8: 0.6}
    outcome = search(model(world, "FAST", 0.5), limits(world, 2, 4, 8))
    assert world.statuses(outcome) == {"a.FAST": "kept", "a.LIMIT": "kept"}
    assert outcome.settings.max_batch_size == 8 and len(outcome.trials) == 1
    step = world.step(outcome, "LIMIT")
    assert step.together == ("a.FAST", "a.LIMIT") and step.settings == {"max_batch_size": 8}
    assert step.predicted.ratio["p99"] == pytest.approx(0.3)
    assert step.comparison.ratio["mean"].value == pytest.approx(0.3, rel=0.02)
    assert outcome.prediction_errors()["p99"]["median"] < 0.05 and outcome.predicted["p99"] == pytest.approx(0.3)
    assert outcome.at_pace["p99"] == pytest.approx(0.3, rel=0.02)
    assert set(outcome.shares) == {"a.FAST", "a.LIMIT"}
    assert {label for label, _, _ in world.replays} == {"before", "trial-1", "after", "without"}
    adds = {fix: ratio["mean"].value for fix, ratio in outcome.adds.items()}
    assert adds == pytest.approx({"a.FAST": 0.5, "a.LIMIT": 0.6}, rel=0.02), "by replays of the plan without each"


def test_after_a_cold_fix_the_remaining_tail_is_that_of_the_best_before_it(search: Any, world: Any) -> None:
    outcome = search(world.fix("A", 0.5), world.fix("COLD", 0.5, cold=True))
    assert world.statuses(outcome) == {"a.A": "kept", "a.COLD": "kept"}
    latest = {arm.label: arm.latest for arm in world.arms}
    assert latest["a.A"] is not None and latest["a.COLD"] is latest["a.A"]
    assert outcome.trials[1].score == outcome.trials[0].score, "first requests say nothing of the traffic"


def test_a_plan_whose_part_alone_does_not_run_is_proved_all_the_same(search: Any, world: Any) -> None:
    """Without FAST the service dies: what FAST adds is unknown, and nothing else."""
    world.limits = {8: 0.6}

    def die(arm: Any, _name: str) -> None:
        if arm.label == "without" and "FAST" not in arm.settings.env:
            arm.close()
            arm.failed = True
            raise RunnerError("the runner was killed")

    world.on_replay = die
    outcome = search(model(world, "FAST", 0.5), limits(world, 8), budget_s=2000)
    assert outcome.verdict == "improved" and not outcome.failure and len(outcome.kept) == 2
    assert set(outcome.adds) == {"a.LIMIT"} and set(outcome.shares) == {"a.FAST", "a.LIMIT"}
    assert any(note.startswith("What a.FAST adds is not known") for note in outcome.notes)


@pytest.mark.parametrize("budget_s", [200.0, 300.0, 400.0])
def test_the_plan_without_a_fix_is_replayed_only_in_time_that_is_left(
    search: Any, world: Any, budget_s: float
) -> None:
    world.limits = {8: 0.6}
    outcome = search(model(world, "FAST", 0.5), limits(world, 8), budget_s=budget_s)
    assert outcome.verdict == "improved" and world.now <= budget_s


def test_a_fix_that_gains_nothing_next_to_others_is_left_out_of_the_plan(search: Any, world: Any) -> None:
    """Its batches looked quicker when they were measured, and were slower in the replay."""
    world.paces, world.shown, world.limits = {"NEEDLESS": 0.9}, {"NEEDLESS": 1.4}, {8: 0.5}
    outcome = search(world.fix("NEEDLESS", 1.26, compute=0.9), limits(world, 8), trials=1)
    assert outcome.trials[0].configuration.fixes == ("a.NEEDLESS", "a.LIMIT") and outcome.trials[0].status == "kept"
    assert world.statuses(outcome) == {"a.NEEDLESS": "no_gain", "a.LIMIT": "kept"}
    assert dict(outcome.settings.env) == {} and outcome.settings.max_batch_size == 8
    assert outcome.final.ratio["mean"].value == pytest.approx(0.5, rel=0.02)


def test_a_fix_is_not_left_out_if_the_forecast_does_not_foresee_the_measured_gain(search: Any, world: Any) -> None:
    """Its batches are slower in the replay, so it seems needless; yet requests take 0.4 of their time with it."""
    world.paces, world.shown, world.limits = {"UNDERRATED": 0.9}, {"UNDERRATED": 1.4}, {8: 0.5}
    outcome = search(world.fix("UNDERRATED", 0.4, compute=0.9), limits(world, 8), trials=1)
    assert outcome.trials[0].status == "kept"
    assert world.statuses(outcome) == {"a.UNDERRATED": "kept", "a.LIMIT": "kept"}
    assert outcome.final.ratio["mean"].value == pytest.approx(0.2, rel=0.05)


def test_a_way_that_was_replayed_is_not_left_out_for_one_that_was_not(search: Any, world: Any) -> None:
    """In the replay batches were slower than measured, so the split seems to gain nothing."""
    world.shares, world.shown = {2: 0.8}, {"FAST": 1.6}
    outcome = search(model(world, "FAST", 0.5), workers(world, 2), trials=1)
    kept = {fix for fix, status in world.statuses(outcome).items() if status == "kept"}
    assert kept == set(outcome.trials[0].configuration.fixes)


def test_what_is_predicted_to_be_faster_after_a_replay_is_replayed_too(search: Any, world: Any) -> None:
    """The replay measured more than is now predicted for it, which may be so of the way without the split, too."""
    world.shares, world.shown = {2: 0.8}, {"FAST": 1.6}
    outcome = search(model(world, "FAST", 0.5), workers(world, 2))
    assert [set(trial.configuration.fixes) for trial in outcome.trials] == [{"a.FAST", "a.WORKERS"}, {"a.FAST"}]


def test_a_fix_that_changes_answers_is_not_left_out_unscored(search: Any, world: Any) -> None:
    world.paces, world.shown, world.limits = {"NEEDLESS": 0.9}, {"NEEDLESS": 1.4}, {8: 0.5}
    outcome = search(world.fix("NEEDLESS", 1.26, compute=0.9, changes_outputs=True), limits(world, 8), trials=1)
    assert world.statuses(outcome) == {"a.NEEDLESS": "kept", "a.LIMIT": "kept"}


def test_a_configuration_predicted_to_be_no_better_is_not_replayed(search: Any, world: Any) -> None:
    outcome = search(model(world, "FAST", 0.5), model(world, "OTHER", 0.7))
    assert world.statuses(outcome) == {"a.FAST": "kept", "a.OTHER": "no_gain"}
    assert "it is not in the best configuration" in world.step(outcome, "OTHER").reason
    assert len(outcome.trials) == 1


def test_what_new_shapes_cost_is_part_of_a_way(search: Any, world: Any, tmp_path: Path) -> None:
    world.new_shape_ns, world.together = {"OTHER": 5e6, "FAST": 1e3}, {"OTHER": 1.5, "FAST": 1.01}
    outcome = search(model(world, "FAST", 0.5), model(world, "OTHER", 0.7))
    assert "the first of a new shape 5.00 ms longer" in world.step(outcome, "OTHER").reason
    ways = json.loads((tmp_path / "out" / "search.json").read_text())["ways"]
    costs = {each["choices"][0]["fix"]: each["cost"].get("new_shape_ns", 0.0) for each in ways}
    assert costs == {"a.FAST": 0.0, "a.OTHER": 5e6}, "a hundredth of a batch's time is none"
    together = {each["choices"][0]["fix"]: each["cost"].get("together", 1.0) for each in ways}
    assert together == {"a.FAST": 1.0, "a.OTHER": pytest.approx(1.5)}
    assert "x1.50 of that next to other workers" in world.step(outcome, "OTHER").reason


def test_what_is_replayed_next_is_predicted_for_the_replayed_windows(
    search: Any, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best so far was measured where requests are slow: a ratio of the whole traffic is no match for that."""
    usual = Planner.score

    def score(planner: Planner, configuration: Any, within: Any = ()) -> float:
        return usual(planner, configuration, within) - (1.0 if within and "OTHER" in configuration.words else 0.0)

    monkeypatch.setattr(Planner, "score", score)
    outcome = search(model(world, "FAST", 0.5), model(world, "OTHER", 0.6))
    assert [trial.configuration.words for trial in outcome.trials] == ["a.FAST", "a.OTHER"]


def test_after_a_disappointing_replay_the_next_best_is_replayed(search: Any, world: Any) -> None:
    world.paces = {"VAIN": 0.4}
    outcome = search(model(world, "VAIN", 0.9), model(world, "OTHER", 0.7))
    assert [trial.configuration.fixes for trial in outcome.trials] == [("a.VAIN",), ("a.OTHER",)]
    assert world.statuses(outcome) == {"a.VAIN": "no_gain", "a.OTHER": "kept"}
    assert dict(outcome.settings.env) == {"OTHER": "0.7"}


@pytest.mark.parametrize(("other", "tried"), [(0.4, ["a.FIRST", "a.OTHER"]), (0.5, ["a.FIRST"])])
def test_a_large_predicted_gain_may_use_time_of_the_final_replay(
    search: Any, world: Any, other: float, tried: list[str]
) -> None:
    """The first one's batches take twice as long in the replay as where they were measured."""
    world.paces, world.shown = {"FIRST": 0.3}, {"FIRST": 2.0}
    outcome = search(model(world, "FIRST", 0.6), model(world, "OTHER", other), budget_s=165.0)
    assert [trial.configuration.words for trial in outcome.trials] == tried
    assert outcome.verdict == "improved" and world.now <= 165.0


def test_a_process_that_prepared_more_than_a_replay_brings_is_not_timed(
    search: Any, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What grows with every request (a cache, a list) would be older in the first settings' process alone."""
    monkeypatch.setattr(measurement, "preparing_share", lambda _: 0.5)
    worn: list[bool] = []
    world.on_replay = lambda arm, _: worn.append(arm.worn)
    outcome = search(model(world, "FAST", 0.5))
    assert world.statuses(outcome) == {"a.FAST": "kept"} and ("before", "pace") in world.asked
    assert worn and not any(worn)


def test_a_window_in_which_a_neighbor_slowed_one_arm_does_not_count(
    search: Any, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = world.arm_class.replay

    def beside_a_neighbor(arm: Any, folder: Path, *more: Any, **seed: int) -> RunRecord:
        record: RunRecord = replay(arm, folder, *more, **seed)
        if folder.name == "002-before":
            record.requests["latency_ns"] *= 4
            at = np.arange(5) * 1_000_000_000
            world.records[folder] = record = add_samples(record, dict.fromkeys(("other.all.spent_ns", HOG), (at, at)))
        return record

    monkeypatch.setattr(world.arm_class, "replay", beside_a_neighbor)
    step = world.step(search(model(world, "FAST", 0.5)), "FAST")
    assert step.status == "kept" and step.comparison.ratio["mean"].value == pytest.approx(0.5, rel=0.05)
    assert "1 of 2 rounds is left out: other processes used more of the cores" in step.reason


def test_shares_of_the_cores_are_measured_with_the_best_way_and_without(search: Any, world: Any) -> None:
    world.shares = {2: 0.6}
    outcome = search(model(world, "FAST", 0.5), workers(world, 2))
    assert world.statuses(outcome) == {"a.FAST": "kept", "a.WORKERS": "kept"} and outcome.settings.workers == 2
    assert [label for label, _ in world.paced if label != "before"] == [
        "pace-a.FAST",
        "pace-a.FAST-a.WORKERS",
        "pace-a.WORKERS",
    ]


def test_core_shares_that_were_not_measured_are_not_tried(
    search: Any, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay takes longer than measuring does."""
    usual = Bench.pace_s
    monkeypatch.setattr(
        Bench, "pace_s", lambda *args: usual(*args) + (1e6 if any(fix.id == "a.WORKERS" for fix in args[1]) else 0.0)
    )
    world.shares = {2: 0.6}
    outcome = search(model(world, "FAST", 0.5), workers(world, 2))
    assert world.statuses(outcome) == {"a.FAST": "kept", "a.WORKERS": "skipped"}
    assert "measuring it takes about" in world.step(outcome, "WORKERS").reason
    assert not any("WORKERS" in label for label, _ in world.paced)


def test_core_shares_are_measured_late_if_time_was_short_before(
    search: Any, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Bench.pace_s
    monkeypatch.setattr(
        Bench,
        "pace_s",
        lambda bench, fixes, seconds: (
            usual(bench, fixes, seconds)
            + (1e6 if any(fix.id == "a.WORKERS" for fix in fixes) and not bench.replays else 0.0)
        ),
    )
    world.shares = {2: 0.6}
    outcome = search(model(world, "FAST", 0.5), workers(world, 2))
    assert world.statuses(outcome) == {"a.FAST": "kept", "a.WORKERS": "kept"} and len(outcome.trials) == 2
    assert outcome.final.ratio["mean"].value == pytest.approx(0.3, rel=0.02)


def test_without_time_for_a_replay_the_final_replay_decides(
    search: Any, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Bench.trial_s
    monkeypatch.setattr(
        Bench,
        "trial_s",
        lambda bench, fixes: usual(bench, fixes) + (1e6 if "a.LIMIT" in [fix.id for fix in fixes] else 0.0),
    )
    world.limits, world.scores, world.silent = {4: 0.9, 8: 0.6}, {"INT8": 0.9}, {"LIMIT"}
    outcome = search(model(world, "INT8", 0.5), limits(world, 2, 4, 8))
    assert outcome.settings.max_batch_size == 8 and outcome.verdict == "improved"
    step = world.step(outcome, "LIMIT")
    assert step.status == "kept" and "only the final replay tests it" in step.reason and step.verified
    assert {label for label, _, _ in world.replays} == {"before", "after"}


def test_what_the_final_replay_shows_without_effect_leaves_plan_and_candidates(
    search: Any, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No replay of the search tested the plan, so none could show it before."""
    monkeypatch.setattr(Bench, "trial_s", lambda *_: 1e6)
    world.limits, world.silent = {8: 0.6}, {"LIMIT"}
    vain = replace(model(world, "VAIN", 0.9), verify=lambda _: Verified(False, "no batch shows it"))
    outcome = search(vain, limits(world, 8))
    assert outcome.proved == ("a.VAIN", "a.LIMIT") and outcome.verdict == "improved"
    assert world.statuses(outcome) == {"a.LIMIT": "kept", "a.VAIN": "not_effective"}
    assert world.step(outcome, "VAIN").reason == "it did not take effect: no batch shows it"
    assert (outcome.settings.max_batch_size, dict(outcome.settings.env)) == (8, {})
    assert [each.fixes for each in outcome.candidates if each.status == "kept"] == [("a.LIMIT",)]


def test_rejected_answers_are_not_scored_again_on_other_cores(search: Any, world: Any) -> None:
    world.shares, world.scores = {2: 0.6}, {"INT8": 0.9}
    outcome = search(model(world, "INT8", 0.5), workers(world, 2))
    assert world.statuses(outcome) == {"a.INT8": "rejected", "a.WORKERS": "kept"}
    assert len(scored(world)) == 2


def test_after_a_refusal_splits_of_the_cores_are_measured_without_it(search: Any, world: Any) -> None:
    """There was time for them on the best way only, whose answers were then refused."""
    world.shares, world.scores = {2: 0.6}, {"INT8": 0.9}
    outcome = search(model(world, "INT8", 0.5), model(world, "FAST", 0.8), workers(world, 2), budget_s=180.0)
    assert world.statuses(outcome)["a.INT8"] == "rejected"
    order = [label for label, _ in world.paced]
    assert order.index("pace-a.INT8-a.WORKERS") < order.index("pace-a.FAST-a.WORKERS")


def test_batches_that_change_answers_rule_out_no_other_fix(search: Any, world: Any) -> None:
    """Larger batches are predicted to help each way to run the model, and padding changes answers in any of them."""
    world.limits, world.mixing = {4: 0.7, 8: 0.6}, {4: 0.9, 8: 0.9}
    size = replace(limits(world, 4, 8), changes_outputs=True, mates_only=True)
    outcome = search(model(world, "FAST", 0.5), size)
    assert world.statuses(outcome) == {"a.FAST": "kept", "a.LIMIT": "rejected"}
    assert dict(outcome.settings.env) == {"FAST": "0.5"} and outcome.verdict == "improved"
    assert scored(world) == ["before", "trial-1", "a.FAST"], "another size of batches is not scored"


def test_answers_that_are_refused_say_nothing_about_fixes_that_keep_them(
    search: Any, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.limits, world.scores = {8: 0.7}, {"INT8": 0.9}
    monkeypatch.setattr("latfix.runners.optimize.search.decide", lambda *_: ("no_gain", "no difference"))
    outcome = search(model(world, "INT8", 0.95, accepted=0.5), limits(world, 8))
    assert [trial.configuration.fixes for trial in outcome.trials] == [("a.LIMIT",), ("a.INT8", "a.LIMIT")]
    assert world.statuses(outcome) == {"a.INT8": "rejected", "a.LIMIT": "no_gain"}
    assert "no difference" in world.step(outcome, "LIMIT").reason


def test_a_fix_that_was_only_tried_beside_refused_answers_is_not_called_rejected(search: Any, world: Any) -> None:
    world.limits, world.scores = {8: 0.7}, {"INT8": 0.9}
    outcome = search(model(world, "INT8", 0.5), limits(world, 8), trials=1)
    assert world.statuses(outcome) == {"a.INT8": "rejected", "a.LIMIT": "skipped"}
    tried = "a.INT8, a.LIMIT (max_batch_size = 8)"
    assert world.step(outcome, "LIMIT").reason == f"only tried as {tried}, whose answers were refused"


def test_of_batches_that_do_not_run_smaller_ones_are_tried(search: Any, world: Any) -> None:
    def die(arm: Any, _name: str) -> None:
        if arm.settings.max_batch_size == 8:
            arm.close()
            arm.failed = True
            raise RunnerError("out of memory")

    world.limits, world.on_replay = {4: 0.7, 8: 0.6}, die
    outcome = search(limits(world, 4, 8))
    assert [trial.status for trial in outcome.trials] == ["not_effective", "kept"]
    assert outcome.settings.max_batch_size == 4 and outcome.verdict == "improved"


def test_what_may_change_answers_is_not_tried_if_they_cannot_be_compared(search: Any, world: Any) -> None:
    world.evaluates = False
    world.answers = AnswerCheck(outputs=(), compared=0, differing=0, repeated=4, unrepeatable=2).to_json()
    outcome = search(model(world, "FAST", 0.5), world.fix("HEAP", 0.8))
    assert world.statuses(outcome) == {"a.FAST": "skipped", "a.HEAP": "kept"}
    assert world.step(outcome, "FAST").reason == "it may change answers, and this service's cannot be compared"
    assert not any("FAST" in arm.settings.env for arm in world.arms)


@pytest.mark.parametrize(
    ("stateful", "evaluates", "statuses"),
    [(True, False, ("skipped", "skipped")), (True, True, ("kept", "kept")), (False, False, ("kept", "kept"))],
    ids=["with state", "scored", "samples"],
)
def test_state_of_a_model_is_not_divided_among_workers(
    search: Any, world: Any, stateful: bool, evaluates: bool, statuses: tuple[str, str]
) -> None:
    """A session would find only the part of its state that its worker has."""
    world.evaluates = evaluates
    answers = AnswerCheck(outputs=(), compared=0, differing=0, repeated=4, unrepeatable=2, stateful=stateful)
    world.answers = answers.to_json()
    outcome = search(world.fix("WORKERS", 0.8, stateless=True), world.fix("ORDER", 0.8, reorders=True))
    assert world.statuses(outcome) == dict(zip(("a.WORKERS", "a.ORDER"), statuses, strict=True))
    assert {fix.id for fix in FIXES if fix.stateless} == {
        "host.workers",
        "warmup.shapes",
        "warmup.resident",
        "cache.embeddings",
    }


@pytest.mark.parametrize(("throughput", "status"), [(True, "skipped"), (False, "kept")])
def test_an_order_of_requests_is_no_throughput(search: Any, world: Any, throughput: bool, status: str) -> None:
    """The mean latency falls, and no more requests are served."""
    outcome = search(world.fix("ORDER", 0.5, reorders=True), throughput=throughput, goal="mean")
    assert world.statuses(outcome) == {"a.ORDER": status}


def test_a_fix_that_cannot_be_simulated_is_added_if_it_treats_the_remaining_tail(search: Any, world: Any) -> None:
    fixes = model(world, "FAST", 0.5), world.fix("HEAP", 0.8), world.fix("ELSEWHERE", 0.5, treats="y")
    outcome = search(*fixes)
    assert world.statuses(outcome) == {"a.FAST": "kept", "a.HEAP": "kept", "a.ELSEWHERE": "skipped"}
    assert dict(outcome.settings.env) == {"FAST": "0.5", "HEAP": "0.8"}
    assert world.step(outcome, "HEAP").comparison.ratio["mean"].value == pytest.approx(0.8, rel=0.02)
    assert "0.0 % of the remaining tail latency" in world.step(outcome, "ELSEWHERE").reason
    assert outcome.final.ratio["mean"].value == pytest.approx(0.4, rel=0.02)
    assert list(outcome.shares) == ["a.FAST"], "the forecast shares out what it knows of"


def test_a_setting_that_the_best_so_far_has_too_is_compared_with_the_first(world: Any) -> None:
    """A split of the cores limits the threads as well: without the limit there was only the baseline."""
    fix = replace(world.fix("THREADS"), verify=lambda applied: Verified(applied.without == "baseline", "seen"))
    limit, first = Choice(fix, {"intra_op_threads": 1}), RunnerSettings()
    split = Choice(world.fix("WORKERS"), {"workers": 2, "intra_op_threads": 1})
    bench = SimpleNamespace(baseline="baseline")
    of_the_windows: Any = {"record": "candidate", "without": "best so far"}
    for best, effective in (((split,), True), ((), False)):
        searching: Any = SimpleNamespace(bench=bench, best=Configuration(first, best))
        applied = Applied(evidence={}, **of_the_windows)
        verified, _ = Search._verify(searching, Configuration(first, (limit,)), applied)
        assert bool(verified) == effective


def test_a_fix_without_effect_is_left_out_of_the_plan(search: Any, world: Any) -> None:
    world.silent = {"SILENT"}
    outcome = search(world.fix("GENTLE", 0.7, gentle=True), world.fix("SILENT", 0.5, gentle=True))
    assert world.statuses(outcome) == {"a.GENTLE": "kept", "a.SILENT": "not_effective"}
    assert len(outcome.trials) == 1 and outcome.trials[0].configuration.fixes == ("a.GENTLE", "a.SILENT")
    assert dict(outcome.settings.env) == {"GENTLE": "0.7"}
    assert [each.fixes for each in outcome.candidates] == [("a.GENTLE",)], "what was measured"


def test_of_similar_predictions_the_one_with_safer_answers_is_replayed_first(search: Any, world: Any) -> None:
    outcome = search(model(world, "BOLD", 0.5, accepted=0.5), model(world, "SAFE", 0.55, accepted=0.9))
    assert outcome.trials[0].configuration.fixes == ("a.SAFE",)
    assert dict(outcome.settings.env) == {"BOLD": "0.5"}, "the better one is still tried, and taken"
    safe = world.step(outcome, "SAFE")
    assert safe.status == "no_gain" and safe.reason.startswith("it gained, but another configuration gained more: ")
    (row,) = step_rows([safe.tried()])
    assert row.words == "surpassed"


@pytest.mark.parametrize(("differing", "asked"), [(0, 1), (3, 2)])
def test_regrouping_batches_is_not_scored_if_answers_do_not_depend_on_batches(
    search: Any, world: Any, differing: int, asked: int
) -> None:
    world.limits = {8: 0.6}
    world.answers = AnswerCheck(outputs=(), compared=64, differing=differing).to_json()
    outcome = search(replace(limits(world, 8), changes_outputs=True, mates_only=True))
    assert outcome.settings.max_batch_size == 8 and len(scored(world)) == asked
    assert outcome.final_accuracy == 1.0


def test_the_number_of_trials_is_limited(search: Any, world: Any) -> None:
    outcome = search(model(world, "FAST", 0.5), world.fix("HEAP", 0.8), trials=1)
    assert world.statuses(outcome) == {"a.FAST": "kept", "a.HEAP": "skipped"}
    assert "all 1 trials are used" in world.step(outcome, "HEAP").reason


@pytest.mark.parametrize("budget_s", [120.0, 200.0])
def test_measuring_leaves_time_for_replays(search: Any, world: Any, budget_s: float) -> None:
    ways = [model(world, f"W{k}", 0.9 - 0.01 * k, making_s=10.0) for k in range(30)]
    outcome = search(*ways, budget_s=budget_s)
    assert outcome.kept and outcome.final is not None and world.now <= budget_s
    assert outcome.for_time and "measuring it takes about" in next(
        step.reason for step in outcome.steps if step.fix == outcome.for_time[0]
    )


def test_ways_that_treat_most_of_the_tail_for_their_time_are_measured_first(search: Any, world: Any) -> None:
    world.shares = {2: 0.6}
    ways = [
        model(world, "OTHER", 0.9, treats="y"),
        model(world, "CONVERTED", 0.8, making_s=60.0),
        replace(workers(world, 2), treats=("x",)),
    ]
    search(*ways, tail={"x": 70.0, "y": 20.0})
    order = [label for label, _ in world.paced if label != "before"]
    assert order[:3] == ["pace-a.WORKERS", "pace-a.OTHER", "pace-a.CONVERTED"]
    world.paced.clear()
    search(*ways, tail={"x": 70.0, "y": 20.0}, unnamed="x", folder="unnamed")
    assert next(label for label, _ in world.paced if label != "before") == "pace-a.OTHER", "x may be chance"


def test_without_time_for_a_trial_the_best_way_is_scored_and_goes_to_the_final_replay(
    search: Any, world: Any
) -> None:
    world.scores = {"INT8": 0.9}
    ways = [model(world, "INT8", 0.2), model(world, "BF16", 0.4), model(world, "OTHER", 0.95)]
    outcome = search(*ways, budget_s=70.0)
    assert world.statuses(outcome) == {"a.BF16": "kept", "a.INT8": "rejected", "a.OTHER": "no_gain"}
    assert scored(world) == ["before", "predicted", "predicted"] and not world.windows
    assert outcome.final.ratio["mean"].value == pytest.approx(0.4, rel=0.05)
    assert outcome.final_accuracy == 1.0 and world.now <= 70.0


@pytest.mark.parametrize("budget_s", [72.0, 90.0, 100.0, 120.0, 140.0, 160.0])
def test_the_quickest_way_is_measured_and_proved_however_short_the_time(
    search: Any, world: Any, budget_s: float
) -> None:
    """What is made sooner gains less: neither measuring it nor replaying it first may use up the time."""
    ways = [
        model(world, "FIRST", 0.6),
        model(world, "SECOND", 0.4, making_s=10.0),
        model(world, "THIRD", 0.2, making_s=12.0),
    ]
    outcome = search(*ways, budget_s=budget_s)
    assert dict(outcome.settings.env) == {"THIRD": "0.2"} and outcome.verdict == "improved"
    assert world.now <= budget_s


def test_the_way_that_treats_the_main_cause_may_use_time_of_the_final_replay(search: Any, world: Any) -> None:
    """The baseline left less than the final replay's share; one round of it still fits."""
    world.first_load_s = 25.0
    outcome = search(model(world, "FAST", 0.5), budget_s=70.0)
    assert world.statuses(outcome) == {"a.FAST": "kept"} and world.now <= 70.0


def test_a_busy_machine_on_which_measuring_takes_longer_leaves_time_for_the_final_replay(
    search: Any, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = world.arm_class.ask

    def slowly(arm: Any, do: str, **more: Any) -> Any:
        world.now += 20.0 if do == "pace" else 0.0
        return ask(arm, do, **more)

    monkeypatch.setattr(world.arm_class, "ask", slowly)
    begun: list[float] = []
    world.on_replay = lambda arm, _: begun.append(world.now) if arm.label == "after" else None
    outcome = search(*(model(world, f"W{k}", 0.5 + 0.01 * k) for k in range(9)), budget_s=240.0)
    assert outcome.kept and outcome.for_time and world.now <= 240.0
    assert begun[0] <= 160.0, "a third of the budget is left for the final replay"


def test_an_untried_configuration_must_be_predicted_to_lower_the_judged_figure(
    search: Any, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mean that halves outweighs a p99 that rises a little in the score."""

    def statistics(_forecast: Any, serving: Any, _within: object = ()) -> dict[str, float]:
        limited = serving.max_batch == 2
        return dict.fromkeys(LATENCY_KEYS, 10.0) | ({"mean": 3.0, "p99": 11.8} if limited else {})

    monkeypatch.setattr(Known, "statistics", statistics)
    outcome = search(limits(world, 2), budget_s=70.0)
    assert outcome.final is None and not outcome.kept


def test_what_is_predicted_goes_to_the_final_replay_before_what_is_not_is_tried(search: Any, world: Any) -> None:
    """A trial of the prediction takes longer than is left, one of a fix that acts on first requests does not."""
    cold = replace(world.fix("COLD", 0.9, relief=0.9), cold=True)
    outcome = search(model(world, "FAST", 0.5), cold, budget_s=70.0)
    assert world.statuses(outcome) == {"a.FAST": "kept", "a.COLD": "skipped"} and not world.windows
    assert outcome.final is not None and outcome.final.rounds >= 3


def test_a_resumed_search_tries_again_what_only_the_final_replay_tested(search: Any, world: Any) -> None:
    first = search(model(world, "FAST", 0.5), budget_s=70.0)
    assert world.statuses(first) == {"a.FAST": "kept"} and not world.windows
    outcome = search(model(world, "FAST", 0.5), resume=True, budget_s=280.0)
    assert world.windows and world.step(outcome, "FAST").comparison is not None


def test_a_resumed_search_predicts_with_what_replays_showed(search: Any, world: Any) -> None:
    fast, world.shown = model(world, "FAST", 0.5), {"FAST": 1.2}

    def stop(arm: Any, _name: str) -> None:
        if arm.label == "after":
            raise KeyboardInterrupt

    world.on_replay = stop
    assert search(fast).interrupted
    world.on_replay = lambda *_: None
    outcome = search(fast, resume=True)
    assert outcome.predicted["mean"] == pytest.approx(0.5 * 1.2)


def test_a_resumed_search_repeats_no_measurement(search: Any, world: Any) -> None:
    # GIVEN a search that was stopped in its second replay
    world.scores = {"INT8": 0.9}
    fixes = model(world, "INT8", 0.4), model(world, "FAST", 0.5), world.fix("HEAP", 0.8), model(world, "SLOW", 1.2)

    def stop(arm: Any, _name: str) -> None:
        if arm.label == "a.HEAP":
            raise KeyboardInterrupt

    world.on_replay = stop
    first = search(*fixes)
    assert first.interrupted and dict(first.settings.env) == {"FAST": "0.5"}
    # WHEN it goes on
    world.on_replay = lambda *_: None
    world.paced.clear()
    world.asked.clear()
    outcome = search(*fixes, resume=True)
    # THEN only what is left is measured
    assert {label for label, _ in world.paced} <= {"before"} and not {"a.INT8", "a.FAST"} & {
        label for label, _ in world.asked
    }
    assert world.statuses(outcome) == {
        "a.INT8": "rejected",
        "a.FAST": "kept",
        "a.HEAP": "kept",
        "a.SLOW": "no_gain",
    }
    assert outcome.final.ratio["mean"].value == pytest.approx(0.4, rel=0.02)
