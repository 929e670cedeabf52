"""Phrases on a plan."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from latfix.reports.plan_rows import best_candidate, floor_words, front_rows, kept_words
from latfix.results.optimization import Candidate, Contribution, Optimization
from latfix.statistics.decision import RatioEstimate


@pytest.mark.parametrize(
    ("floor", "after", "expected"),
    [
        (118.0, 90.9, "fastest accurate form of this model, measured less; going lower needs"),
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
        after_run = SimpleNamespace(latency_ms={"p99": after})
        found: Any = SimpleNamespace(floor_ms={"p99": floor}, after=after_run, device=device)
        words = floor_words(found)
        assert expected in words and bool(expected) == bool(words)
        assert (more in words) == ("times that" in words)


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
