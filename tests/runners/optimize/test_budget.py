"""Everything within the budget."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from latfix.runners.fixes.fuse import compile as fuse_compile
from latfix.runners.fixes.fuse import openvino as fuse_openvino
from latfix.runners.fixes.quantize import bf16 as quantize_bf16
from latfix.runners.fixes.quantize import int8_dynamic as quantize_int8_dynamic
from latfix.runners.fixes.quantize import int8_excluded as quantize_int8_excluded
from latfix.runners.optimize.measurement import Bench
from latfix.runners.replay.runner_process import LEAST_START_S
from latfix.settings import RunnerSettings


def test_fixes_that_do_not_fit_the_budget_are_skipped(search: Any, world: Any) -> None:
    outcome = search(*(world.fix(name, 0.9) for name in "ABCDEFGH"), budget_s=280.0)
    found = world.statuses(outcome)
    assert found["a.A"] == "kept" and found["a.H"] == "skipped"
    assert world.step(outcome, "H").reason.startswith("budget: ")
    assert world.now <= 280.0 * 1.05
    assert outcome.final is not None


@pytest.mark.parametrize("budget_s", [150.0, 400.0, 900.0])
def test_time_is_reserved_for_the_final_replay(search: Any, world: Any, budget_s: float) -> None:
    """Many fixes that never get anywhere cannot use up what proves the one that does."""
    world.noise = 0.3
    outcome = search(world.fix("HALF", 0.5), *(world.fix(f"N{k}", 0.999) for k in range(40)), budget_s=budget_s)
    assert outcome.kept or budget_s < 200
    if outcome.kept:
        assert outcome.final is not None and outcome.final.rounds >= (1 if budget_s < 800 else 3)
    assert world.now <= budget_s * 1.1 or not outcome.kept


def test_without_time_for_anything_nothing_is_tried(search: Any, world: Any) -> None:
    outcome = search(world.fix("A", 0.5), budget_s=10.0)
    assert world.statuses(outcome) == {"a.A": "skipped"}
    assert [name for _, name, _ in world.replays] == ["baseline"]
    assert outcome.verdict == "inconclusive"


def test_a_fix_for_which_a_trial_has_no_time_goes_to_the_final_replay(search: Any, world: Any) -> None:
    outcome = search(world.fix("SLOWER", 1.5, relief=0.2), world.fix("HALF", 0.5, relief=0.4), budget_s=70.0)
    assert world.statuses(outcome) == {"a.HALF": "kept", "a.SLOWER": "skipped"}
    assert "only the final replay tests it" in world.step(outcome, "HALF").reason and not world.windows
    assert outcome.final is not None and outcome.final.ratio["mean"].value == pytest.approx(0.5, rel=0.05)
    assert 35.0 < world.now <= 70.0


def test_a_likely_gain_that_no_replay_decided_goes_to_the_final_replay(
    search: Any, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the time of the final replay would pass unused, and the plan stay empty."""
    monkeypatch.setattr("latfix.runners.optimize.search.decide", lambda *_: ("undecided", "the data cannot tell"))
    outcome = search(world.fix("SMALL", 0.9), world.fix("LARGE", 0.7), world.fix("NONE", 1.0))
    assert world.statuses(outcome) == {"a.LARGE": "kept", "a.SMALL": "undecided", "a.NONE": "undecided"}
    assert outcome.verdict == "improved" and outcome.final_accuracy == 1.0
    none = search(world.fix("NONE", 1.0), folder="none")
    assert none.final is None and world.statuses(none) == {"a.NONE": "undecided"}


def test_a_fix_that_only_the_final_replay_tested_and_found_slower_is_rejected(search: Any, world: Any) -> None:
    outcome = search(world.fix("SLOWER", 1.5), budget_s=70.0)
    assert world.statuses(outcome) == {"a.SLOWER": "rejected"}
    assert outcome.final is not None and not outcome.kept and not outcome.nothing_tried


def test_a_slow_first_start_does_not_raise_every_estimate(search: Any, world: Any) -> None:
    """It reads all packages from the disk; the ones after it find them in memory.

    A sixth of the budget is set apart, so that it takes so much more to be in the same place.
    """
    fixes = [world.fix(f"N{k}", 1.1) for k in range(20)]
    tried = []
    for slower in (0.0, 25.0):
        world.first_load_s += slower
        world.replays.clear()
        world.now = 0.0
        outcome = search(*fixes, budget_s=420.0 + 1.2 * slower)
        tried.append(sum(status != "skipped" for status in world.statuses(outcome).values()))
    assert tried[0] == tried[1] and 2 < tried[0] < 20


def test_before_anything_is_kept_two_thirds_of_the_final_replays_time_may_be_used(search: Any, world: Any) -> None:
    """There is nothing to prove yet; a step takes some twenty seconds. The rest tests one more fix."""
    outcome = search(*(world.fix(f"N{k}", 1.1) for k in range(30)), budget_s=420.0)
    assert not outcome.kept and outcome.for_time
    last = next(at for at, (_, name, _) in enumerate(world.replays) if name == "before-1")
    assert all(name.startswith(("before-", "after-")) for _, name, _ in world.replays[last:])
    assert [trial.reason for trial in outcome.trials if "only the final replay tests it" in trial.reason]
    assert 420.0 * 8 / 9 < world.now <= 420.0


@pytest.mark.parametrize("budget_s", [200.0, 240.0])
def test_the_final_stretch_is_so_short_that_five_rounds_fit(search: Any, world: Any, budget_s: float) -> None:
    outcome = search(world.fix("HALF", 0.5), *(world.fix(f"N{k}", 1.1) for k in range(30)), budget_s=budget_s)
    assert outcome.final is not None and outcome.final.rounds == 5 and outcome.verdict == "improved"
    assert any("The final replay covers the slowest stretch of the traffic" in note for note in outcome.notes)
    assert len(outcome.after.traffic) < len(outcome.baseline.traffic)
    assert world.now <= budget_s


@pytest.mark.parametrize(
    ("budget_s", "cold", "led"), [(400.0, False, True), (240.0, False, False), (400.0, True, False)]
)
def test_a_stretch_has_a_lead_in_if_time_allows_and_the_fix_is_not_cold(
    search: Any, world: Any, budget_s: float, cold: bool, led: bool
) -> None:
    fixes = (world.fix("HALF", 0.3, cold=cold), *(world.fix(f"N{k}", 1.1) for k in range(30)))
    outcome = search(*fixes, budget_s=budget_s)
    assert outcome.kept and len(outcome.after.traffic) < len(outcome.baseline.traffic)
    final = [name for _, name, _ in world.replays if name.startswith(("before-", "after-"))]
    leads = [name for name in final if name.endswith("-lead-in")]
    assert len(leads) == (len(final) // 2 if led else 0)


def test_the_baseline_keeps_to_a_quarter_of_the_budget(search: Any, world: Any) -> None:
    outcome = search(world.fix("A", 0.5), budget_s=120.0)
    assert outcome.baseline.traffic.duration_s <= 30.0


@pytest.mark.parametrize(("device", "seconds"), [("cpu", 0.0), ("cuda:0", 90.0)])
def test_int8_takes_time_to_compile_on_a_gpu(device: str, seconds: float) -> None:
    bench: Any = SimpleNamespace(baseline=SimpleNamespace(meta=SimpleNamespace(device=device, model={})))
    for fix in (quantize_int8_dynamic.FIX, quantize_int8_excluded.FIX):
        assert Bench._making_of(bench, [fix]) == seconds
    assert Bench._making_of(bench, [fuse_compile.FIX, quantize_bf16.FIX]) == (seconds or 85.0)


def test_a_file_that_the_backend_reads_itself_takes_less_time_than_a_conversion() -> None:
    onnx_file = {"made_of": {"file": "model.onnx", "runtime": "ONNX Runtime"}}
    metas = [SimpleNamespace(device="cpu", model=model) for model in (onnx_file, {})]
    benches: list[Any] = [SimpleNamespace(baseline=SimpleNamespace(meta=meta)) for meta in metas]
    read_s, converted_s = (Bench._making_of(bench, [fuse_openvino.FIX]) for bench in benches)
    assert 0.0 < read_s < converted_s / 2


def test_a_service_that_is_tried_may_take_half_of_the_budget_to_start_but_a_minute_in_any_case() -> None:
    """Else one that hangs while its answers are scored takes half an hour of a budget of five minutes."""
    nothing: Any = None
    bench = Bench(nothing, nothing, Path(), watch=nothing, seed=0, budget_s=1000.0)
    patience_s = bench.arm("before", RunnerSettings(), ()).patience_s
    assert patience_s() is None, "nothing is known about the workload yet"
    bench.first_load_s, bench.accuracy_s = 3.0, 2.0
    assert patience_s() == 500.0
    bench.reserve(900.0)
    assert LEAST_START_S < (patience_s() or 0.0) <= 100.0, "until the budget ends"
    bench.reserve(90.0)
    assert patience_s() == LEAST_START_S
    bench.first_load_s = 60.0
    assert patience_s() == 180.0


def test_a_baseline_that_falls_behind_is_ended_and_what_it_served_is_optimized(search: Any, world: Any) -> None:
    # GIVEN a service that answered 400 of 1200 requests when the baseline's time was over
    world.behind = 400
    outcome = search(world.fix("HALF", 0.5), budget_s=240.0)
    # THEN everything after it is about these
    assert outcome.baseline.counts()["ok"] + 1 == len(outcome.baseline.traffic) == 400
    assert len(outcome.baseline.batches["batch_id"]) == 400
    assert outcome.verdict == "improved" and len(outcome.after.traffic) <= 400
    assert "the first 400 of 1200" in outcome.notes[0]
    # AND a resumed search knows them, although the folder has the whole run
    again = search(world.fix("HALF", 0.5), budget_s=240.0, resume=True)
    assert len(again.baseline.traffic) == 400 and again.notes[0] == outcome.notes[0]
