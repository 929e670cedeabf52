"""Phrases on a plan."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from latfix.reports.plan_rows import best_candidate, floor_words, front_rows, kept_words, setting_rows
from latfix.results.optimization import Candidate, Contribution, Optimization, PredictionError, PredictionErrors
from latfix.statistics.decision import RatioEstimate


@pytest.mark.parametrize(
    ("floor", "after", "expected"),
    [
        (118.0, 90.9, ""),  # less was measured: no bound
        (
            100.0,
            105.0,
            "reached: predicted p99 100 ms with an empty queue and the fastest accurate form of this model;",
        ),
        (5.0, 22.0, "22.0 ms is 4.4 times that"),
        (None, 22.0, ""),
        (5.0, None, ""),
    ],
)
def test_how_far_from_the_limit(floor: float | None, after: float | None, expected: str) -> None:
    for device, more in (("cpu", "add cores, a GPU or replicas"), ("cuda:0", "add devices or replicas")):
        now, other = SimpleNamespace(latency_ms={"p99": after}), SimpleNamespace(latency_ms={"p99": 1e6})
        known = {"floor_ms": {"p99": floor}, "device": device, "disturbed": "", "diagnosis": None}
        found: Any = SimpleNamespace(before=other, after=now, changes={"precision": ("default", "bf16")}, **known)
        words = floor_words(found)
        # Of a refuted plan nothing is left.
        refuted: Any = SimpleNamespace(before=now, after=other, changes={}, **known)
        assert floor_words(refuted) == words
        assert expected in words and bool(expected) == bool(words)
        assert (more in words) == ("times that" in words)
        cause = {"diagnosis": SimpleNamespace(verdict="external.dependency")}
        outside: Any = SimpleNamespace(before=now, after=other, changes={}, **(known | cause))
        assert ("needs a faster dependency" in floor_words(outside)) == ("needs" in words)
        noisy: Any = SimpleNamespace(before=now, after=other, changes={}, **(known | {"disturbed": "by others"}))
        assert ("is disturbances and waiting" in floor_words(noisy)) == ("is waiting" in words)


def test_a_predicted_configuration_does_not_displace_a_replayed_one(improved: Optimization) -> None:
    # GIVEN a prediction that is faster than the plan, with unknown accuracy
    kept = Candidate(fixes=("batch.size",), settings={}, status="kept", compute=1.0, predicted={"p99": 0.3})
    foretold = Candidate(
        fixes=("quantize.int8_dynamic",), settings={}, status="foretold", compute=0.5, predicted={"p99": 0.1}
    )
    rows = {row.name: row for row in front_rows(replace(improved, rounds=2, candidates=(foretold, kept)))}
    assert rows["batch.size"].best and rows["batch.size"].is_replayed
    assert not rows["quantize.int8_dynamic"].best
    assert next(iter(rows)) == "batch.size"


def test_the_plan_is_compared_with_others_by_the_replays_of_the_search(improved: Optimization) -> None:
    """The final replay is of other requests: its ratio is shown, and no match for those of the search."""

    def candidate(fix: str, status: str, value: float) -> Candidate:
        ratio = {"p99": RatioEstimate(value=value, lo=value, hi=value)}
        return Candidate(fixes=(fix,), settings={}, status=status, compute=1.0, predicted={}, replayed=ratio)

    found = (candidate("batch.size", "kept", 0.1), candidate("batch.window", "undecided", 1.5))
    plan, other, _ = front_rows(replace(improved, rounds=2, candidates=found))
    assert other.ratio.value == pytest.approx(0.15) and plan.ratio.value == improved.ratio["p99"].value
    assert plan.best and plan.label == "batch.size (the plan)" and other.label == "batch.window"


def test_the_plan_without_what_took_no_effect_has_the_final_ratio(improved: Optimization) -> None:
    """The final replay tested both fixes; it showed that one of them does nothing, so that the plan has the other."""
    kept, idle = (
        replace(improved.steps[0], fix=fix, status=status) for fix, status in (("a", "kept"), ("b", "not_effective"))
    )
    plan = Candidate(fixes=("a",), settings={}, status="kept", predicted={})
    found = replace(improved, rounds=2, steps=(kept, idle), candidates=(plan,), proved=("a", "b"))
    row, _ = front_rows(found)
    assert row.label == "a (the plan)" and row.ratio.value == improved.ratio["p99"].value


def test_the_final_ratio_belongs_to_what_was_tested(improved: Optimization) -> None:
    """An earlier configuration, which the refuted one had surpassed, has only the replays of the search."""
    ratio = {"p99": RatioEstimate(value=0.2, lo=0.1, hi=0.3)}
    more: Any = {"settings": {}, "predicted": {}, "replayed": ratio}
    seen = (Candidate(fixes=("a",), status="kept", **more), Candidate(fixes=("b",), status="rejected", **more))
    worse = {"p99": RatioEstimate(value=1.5, lo=1.4, hi=1.6)}
    found = replace(improved, rounds=2, steps=(), changes={}, ratio=worse, candidates=seen, proved=("b",))
    assert {row.name: row.ratio.value for row in front_rows(found) if row.fixes} == {"a": 0.2, "b": 1.5}
    assert best_candidate(found) == (("a",), "a: p99 5.0 times faster (in replays of the search)")


@pytest.mark.parametrize("judged", ["p99", "p95"])
def test_the_proved_plan_is_beside_the_prediction_for_the_same_traffic(improved: Optimization, judged: str) -> None:
    """The search predicts for the whole traffic; the final replay may cover the slowest stretch only."""
    kept = Candidate(fixes=("batch.size",), settings={}, status="kept", predicted={"p99": 0.01, "p95": 0.02})
    errors = PredictionErrors(simulation=0.1, p99=PredictionError(median=None, steps=0, final=0.4, final_error=0.1))
    if judged != "p99":
        errors = replace(errors, judged=PredictionError(median=None, steps=0, final=0.3, final_error=0.1))
    found = replace(improved, judged=judged, rounds=2, candidates=(kept,), prediction_error=errors)
    assert front_rows(found)[0].predicted == {"p99": 0.4, "p95": 0.3}[judged]
    assert front_rows(replace(found, rounds=0))[0].predicted == kept.predicted[judged]


def test_the_plan_shows_variables_with_several_values_in_parts(improved: Optimization) -> None:
    changes = {
        "env.GLIBC_TUNABLES": (None, "glibc.malloc.mmap_max=0:glibc.malloc.arena_max=1"),
        "backend": ("a", "b:c"),
    }
    assert setting_rows(replace(improved, changes=changes)) == [
        ("env.GLIBC_TUNABLES", "not set", "glibc.malloc.mmap_max=0, glibc.malloc.arena_max=1"),
        ("backend", "a", "b:c"),
    ]


@pytest.mark.parametrize(("status", "advised"), [("undecided", True), ("not_effective", False)])
def test_a_fix_found_without_effect_in_the_final_replay_is_no_candidate(
    improved: Optimization, status: Any, advised: bool
) -> None:
    kept = Candidate(fixes=("batch.size",), settings={}, status="kept", compute=1.0, predicted={"p99": 0.3})
    step = replace(improved.steps[0], fix="batch.size", status=status)
    found = best_candidate(replace(improved, rounds=2, candidates=(kept,), steps=(step,)))
    assert (found is not None) == advised


def test_a_kept_fix_without_a_predicted_gain_is_no_reason(improved: Optimization) -> None:
    shares = tuple(
        Contribution(
            fixes=(fix,),
            before_ms={"p99": 2.0, "mean": 2.0},
            after_ms={"p99": 2.0 * value, "mean": 2.0 * value},
            ratio={"p99": RatioEstimate(value=value, lo=value, hi=value)},
        )
        for fix, value in (("host.workers", 1.25), ("batch.size", 0.5))
    )
    words = kept_words(replace(improved, ablation=shares))
    assert words.startswith("batch.size (2.0 times faster), host.workers (replayed with the others, no gain")
    doubtful = {"host.workers": {"p99": RatioEstimate(value=1.29, lo=0.9, hi=1.8)}}
    words = kept_words(replace(improved, ablation=(replace(shares[0], adds=doubtful), shares[1])))
    assert "host.workers (29 % slower on top of the others, not for certain)" in words
    slower = {"host.workers": {"p99": RatioEstimate(value=1.29, lo=1.1, hi=1.5)}}
    measured = (replace(shares[0], adds=slower), shares[1])
    assert "host.workers (29 % slower on top of the others)" in kept_words(replace(improved, ablation=measured))
    both = kept_words(
        replace(improved, ablation=(shares[0], replace(shares[1], adds={"batch.size": slower["host.workers"]})))
    )
    assert both.startswith("batch.size (2.0 times faster; 29 % slower on top of the others), "), "shares multiply"
    steps = tuple(replace(improved.steps[0], fix=fix, status="kept") for fix in ("host.workers", "batch.size"))
    undivided = replace(shares[0], fixes=("host.workers", "batch.size"), ratio=None, adds=slower)
    words = kept_words(replace(improved, steps=steps, ablation=(undivided,)))
    assert words == "host.workers (29 % slower on top of the others), batch.size"
