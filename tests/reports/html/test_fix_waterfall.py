"""Which fix gave how much, and how good the predictions were."""

from __future__ import annotations

from typing import Any

import pytest

from latfix.reports.before_after import prediction_words
from latfix.reports.html.change_sections import steps_section
from latfix.reports.html.fix_waterfall import REST, ablation_section, read_shares


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
def document() -> dict[str, Any]:
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


def test_shares_lead_from_the_first_figure_to_the_last(document: dict[str, Any]) -> None:
    shares = read_shares(document, "p99")
    assert [share.name for share in shares] == ["batch.size", "gc.freeze + memory.pool", REST]
    assert [share.before_ms for share in shares[1:]] == [share.after_ms for share in shares[:-1]]
    assert shares[0].predicted == 0.45 and shares[0].adds["batch.size"].value == 0.8
    assert shares[2].ratio is None


def test_the_section_has_a_bar_and_a_row_a_fix_and_what_was_predicted(document: dict[str, Any]) -> None:
    page = str(ablation_section(document))
    assert "batch.size" in page and "gc.freeze + memory.pool" in page and "ablation-chart" in page
    assert "×0.450" in page and "×0.500 [0.450, 0.550]" in page
    assert "interaction, and the rest" in page


def test_damaged_entries_are_left_out_and_names_are_text(document: dict[str, Any]) -> None:
    document["ablation"] += [{}, "x", {"before_ms": {"p99": 1.0, "mean": 1.0}}]
    document["ablation"][1]["fixes"] = ["<script>alert(1)</script>"]
    page = str(ablation_section(document))
    assert "<script>alert" not in page and "&lt;script&gt;" in page
    assert len(read_shares(document, "p99")) == 3
    assert ablation_section({}) is None and ablation_section({"ablation": "odd"}) is None


def test_predictions_are_told_step_by_step_and_together(document: dict[str, Any]) -> None:
    assert prediction_words(document) == (
        "Predictions against replays of the windows: p99 off by 21 % in the median of 3; mean off by 8 % in the "
        "median of 3. All kept fixes together, on the whole traffic: p99 x0.290 foretold, x0.310 measured; "
        "mean x0.330 foretold, x0.300 measured."
    )
    assert prediction_words({}) == ""


def test_fixes_that_were_skipped_stand_apart_with_their_reason() -> None:
    tried = {"fix": "gc.freeze", "status": "kept", "reason": "p95 x0.5", "verified": "8 objects frozen"}
    skipped = {"fix": "batch.window", "status": "skipped", "reason": "there is no batch window"}
    page = str(steps_section({"steps": [skipped, tried]}))
    first, _, second = page.partition("Not tried")
    assert "8 objects frozen" in first and "no batch window" not in first
    assert "no batch window" in second
    assert "in which they were tried" not in str(steps_section({"steps": [skipped]}))
    assert "Not tried" not in str(steps_section({"steps": [tried]}))
