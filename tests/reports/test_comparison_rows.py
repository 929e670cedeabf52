"""Before and after, for complete and incomplete documents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from latfix.lower_bound import AtLeast
from latfix.reports.comparison_rows import (
    REST,
    Ratio,
    optimization_change,
    prediction_words,
    ratio_of,
    shares_of,
    step_rows,
)
from latfix.results.optimization import Optimization, TriedFix
from latfix.statistics.decision import RatioEstimate


def test_the_sentence_gives_both_figures_the_ratio_and_the_limit(improved: Optimization) -> None:
    assert optimization_change(improved).sentence() == (
        "p99 412 → 98.0 ms (×0.238 [0.210, 0.280]); mean 88.1 → 31.9 ms (×0.362 [0.351, 0.377]); "
        "accuracy 0.912 → 0.911 (limit 0.902)"
    )


def test_a_ratio_without_an_estimate_is_the_quotient_and_has_no_interval(improved: Optimization) -> None:
    ratio = optimization_change(improved).ratio("max")
    assert (ratio.value, ratio.ci95, ratio.decisive) == (181.0 / 701.0, None, False)


def test_figures_that_are_not_known_are_dashes(improved: Optimization) -> None:
    unknown = replace(improved.before, latency_ms={"p99": 0.0}, accuracy=None)
    change = optimization_change(replace(improved, before=unknown, after=unknown, ratio={}))
    assert change.sentence() == "p99 0 → 0 ms; mean – → –"


def test_the_sentence_and_the_table_have_the_same_figures(improved: Optimization) -> None:
    # GIVEN a wide interval before, and a percentile among lost requests after
    before = replace(improved.before, latency_ms={"p99": 953.0}, latency_ci95_ms={"p99": (572.0, 1910.0)})
    after = replace(improved.after, latency_ms={"p99": AtLeast(0.0)})
    change = optimization_change(replace(improved, before=before, after=after, ratio={}))
    # WHEN both are written
    (row,) = [row for row in change.rows() if row.name == "p99, ms"]
    # THEN the sentence has the table's figures, and no unit after a word
    assert (row.before, row.after) == ("953", "lost")
    assert change.sentence().startswith("p99 953 → lost; ")


@pytest.mark.parametrize(
    ("ci95", "decision", "tone"),
    [
        ([0.8, 0.99], None, "good"),
        ([1.1, 1.4], None, "bad"),
        ([0.8, 1.0], None, None),
        ([0.85, 0.95], [0.8, 0.97], "good"),
        ([0.85, 0.95], [0.8, 1.02], None),
        ([0.85, 0.95], [0.8, None], None),
        ([0.85, 0.95], [None, 0.97], "good"),
    ],
)
def test_the_bounds_that_decide_exclude_one(
    ci95: list[float], decision: list[float | None] | None, tone: str | None
) -> None:
    entry = {"value": sum(ci95) / 2, "ci95": ci95, **({} if decision is None else {"decision": decision})}
    found = ratio_of(RatioEstimate.from_json(entry))
    assert (found.decisive, found.tone) == (tone is not None, tone)
    assert ratio_of(None) == Ratio(value=None, ci95=None)


def test_what_several_fixes_share_is_marked() -> None:
    def tried(fix: str, reason: str, *together: str) -> TriedFix:
        return TriedFix(fix=fix, status="kept", reason=reason, together=together)

    group = [tried("a", "same", "a", "b"), tried("b", "same", "a", "b"), tried("c", "own", "a", "b")]
    alone = [tried("d", "own"), tried("e", "own")]
    assert [row.together for row in step_rows([*group, *alone])] == [False, True, False, False, False]


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
def explained(improved: Optimization) -> Optimization:
    adds = {"batch.size": {key: {"value": 0.8, "ci95": [0.7, 0.9]} for key in ("mean", "p99")}}
    return Optimization.from_json(
        {
            **improved.to_json(),
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
                "p99": {"median": 0.214, "steps": 3, "final": 0.29, "final_error": 0.06, "at_pace": 0.3},
            },
        }
    )


def test_shares_lead_from_the_first_figure_to_the_last(explained: Optimization) -> None:
    shares = shares_of(explained.ablation, "p99")
    assert [share.name for share in shares] == ["batch.size", "gc.freeze + memory.pool", REST]
    assert [share.before_ms for share in shares[1:]] == [share.after_ms for share in shares[:-1]]
    assert shares[0].predicted == 0.45 and shares[0].adds["batch.size"].value == 0.8
    assert shares[2].ratio is None


def test_prediction_errors_by_step_and_together(explained: Optimization) -> None:
    assert prediction_words(explained) == (
        "Predictions of replayed configurations were off: p99 by 21 % (median of 3); mean by 8 % (median of 3). "
        "All kept fixes in the final replay: p99 predicted x0.290 (x0.300 with the measured batch times), "
        "measured x0.310; mean predicted x0.330, measured x0.300."
    )
