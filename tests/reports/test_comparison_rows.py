"""Before and after in one shape, whatever the document lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from latfix.reports.comparison_rows import REST, Ratio, prediction_words, read_change, read_ratio, read_shares


def test_the_sentence_gives_both_figures_the_ratio_and_the_limit(improved: Mapping[str, Any]) -> None:
    assert read_change(improved).sentence() == (
        "p99 412 -> 98.0 ms (x0.238 [0.210, 0.280]); mean 88.1 -> 31.9 ms (x0.362 [0.351, 0.377]); "
        "accuracy 0.912 -> 0.911 (limit 0.902)"
    )


def test_a_ratio_without_an_estimate_is_the_quotient_and_has_no_interval(improved: Mapping[str, Any]) -> None:
    ratio = read_change(improved).ratio("max")
    assert ratio.value == 181.0 / 701.0
    assert ratio.ci95 is None
    assert not ratio.decisive


def test_a_zero_before_gives_no_ratio() -> None:
    change = read_change({"before": {"latency_ms": {"p99": 0}}, "after": {"latency_ms": {"p99": 3}}})
    assert change.ratio("p99").value is None


def test_an_empty_document_has_no_figures_and_no_accuracy() -> None:
    assert read_change({}).sentence() == "p99 – -> – ms (–); mean – -> – ms (–)"


def test_decisive_means_that_the_interval_excludes_one() -> None:
    assert Ratio(value=0.9, ci95=(0.8, 0.99)).decisive
    assert Ratio(value=1.2, ci95=(1.1, 1.4)).decisive
    assert not Ratio(value=0.9, ci95=(0.8, 1.0)).decisive


def test_what_decides_is_the_decision_bounds_where_a_document_has_them() -> None:
    entry = {"value": 0.9, "ci95": [0.85, 0.95]}
    assert read_ratio(entry).decisive
    assert read_ratio({**entry, "decision": [0.8, 0.97]}).decisive
    assert not read_ratio({**entry, "decision": [0.8, 1.02]}).decisive
    assert not read_ratio({**entry, "decision": [0.8, None]}).decisive
    assert read_ratio({**entry, "decision": [None, 0.97]}).decisive
    assert read_ratio({**entry, "decision": "odd"}).decisive


def entry(fixes: list[str], before: float, after: float, **more: Any) -> dict[str, Any]:
    ratio = {"value": after / before, "ci95": [0.9 * after / before, 1.1 * after / before]}
    return {
        "fixes": fixes,
        "before_ms": {"mean": before / 4, "p99": before},
        "after_ms": {"mean": after / 4, "p99": after},
        "ratio": {"mean": ratio, "p99": ratio},
        "adds": None,
        "predicted": None,
        **more,
    }


@pytest.fixture
def ablation() -> dict[str, Any]:
    adds = {"batch.size": {key: {"value": 0.8, "ci95": [0.7, 0.9]} for key in ("mean", "p99")}}
    return {
        "ablation": [
            entry(["batch.size"], 160.0, 80.0, adds=adds, predicted={"mean": 0.55, "p99": 0.45}),
            entry(["gc.freeze", "memory.pool"], 80.0, 60.0),
            {**entry([], 60.0, 50.0), "ratio": None},
        ],
        "ratio": {"mean": {"value": 0.3, "ci95": [0.2, 0.4]}, "p99": {"value": 0.31, "ci95": [0.2, 0.4]}},
        "prediction_error": {
            "simulation": 0.01,
            "mean": {"median": 0.08, "steps": 3, "final": 0.33, "final_error": 0.1},
            "p95": {"median": None, "steps": 0},
            "p99": {"median": 0.214, "steps": 3, "final": 0.29, "final_error": 0.06},
        },
    }


def test_shares_lead_from_the_first_figure_to_the_last(ablation: dict[str, Any]) -> None:
    shares = read_shares(ablation, "p99")
    assert [share.name for share in shares] == ["batch.size", "gc.freeze + memory.pool", REST]
    assert [share.before_ms for share in shares[1:]] == [share.after_ms for share in shares[:-1]]
    assert shares[0].predicted == 0.45 and shares[0].adds["batch.size"].value == 0.8
    assert shares[2].ratio is None


def test_predictions_are_told_step_by_step_and_together(ablation: dict[str, Any]) -> None:
    assert prediction_words(ablation) == (
        "Predictions against replays of the windows: p99 off by 21 % in the median of 3; mean off by 8 % in the "
        "median of 3. All kept fixes together, on the whole traffic: p99 x0.290 foretold, x0.310 measured; "
        "mean x0.330 foretold, x0.300 measured."
    )
    assert prediction_words({}) == ""


def test_damaged_entries_are_left_out(ablation: dict[str, Any]) -> None:
    ablation["ablation"] += [{}, "x", {"before_ms": {"p99": 1.0, "mean": 1.0}}]
    assert len(read_shares(ablation, "p99")) == 3
    assert read_shares({}, "p99") == read_shares({"ablation": "odd"}, "p99") == []
