"""Trends of recorded runs: which run began a new level, and which runs are only far off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from latfix.gates.subject import GateSubject
from latfix.history.rows import HistoryRow, Series
from latfix.history.trends import trends

SERIES = Series(workload="w", machine="m", device="cpu", command="diagnose", traffic="t")


def _rows(values: Sequence[float], series: Series = SERIES, **changes: Any) -> list[HistoryRow]:
    same: dict[str, Any] = {"series": series, "verdict": "steady", "folder": "/runs", **changes}
    return [
        HistoryRow(
            run=f"run {k}",
            started=f"{k:04d}",
            subject=GateSubject(latency_ms={"p99": value}, requests={"ok": 9}),
            **same,
        )
        for k, value in enumerate(values)
    ]


def _noisy(level: Sequence[float], seed: int, spread: float = 0.04) -> list[float]:
    values: list[float] = (
        np.asarray(level) * np.exp(np.random.default_rng(seed).normal(0, spread, len(level)))
    ).tolist()
    return values


@pytest.mark.parametrize("seed", range(5))
def test_the_first_run_of_a_new_level_is_named(seed: int) -> None:
    values = _noisy([100.0] * 14 + [140.0] * 9, seed)
    (trend,) = trends(_rows(values), "p99")
    (change,) = trend.changes
    assert change.run == "run 14"
    assert change.ratio == pytest.approx(1.4, rel=0.06)
    assert change.before == pytest.approx(np.median(values[:14]))


def test_two_changes_are_both_found() -> None:
    values = _noisy([100.0] * 15 + [150.0] * 15 + [80.0] * 15, 3)
    (trend,) = trends(_rows(values), "p99")
    assert [change.run for change in trend.changes] == ["run 15", "run 30"]


def test_outliers_and_too_few_runs_show_no_change() -> None:
    values = _noisy([100.0] * 24, 1)
    for k in (3, 11, 19):
        values[k] *= 20
    for few in (values, [100.0] * 4 + [900.0] * 3):
        assert trends(_rows(few), "p99")[0].changes == ()


def test_a_steady_series_is_not_cut() -> None:
    """Called in at most 1 of 20 at chance; here in 3 of 60 at most."""
    called = sum(bool(trends(_rows(_noisy([100.0] * 30, seed)), "p99")[0].changes) for seed in range(60))
    assert called <= 3


@pytest.mark.parametrize(("rise", "least"), [(1.2, 90), (1.1, 40)])
def test_how_often_a_rise_is_located(rise: float, least: int) -> None:
    """In the middle of 16 runs that differ by 5 %: to within one run, of 100 series."""
    dated = 0
    for seed in range(100):
        changes = trends(_rows(_noisy([100.0] * 8 + [100.0 * rise] * 8, seed, 0.05)), "p99")[0].changes
        dated += [change.run in ("run 7", "run 8", "run 9") for change in changes] == [True]
    assert dated >= least


def test_a_change_too_small_to_matter_is_not_reported() -> None:
    steps = [100.0 + 0.001 * k for k in range(12)]
    assert trends(_rows([*steps, *(value + 0.5 for value in steps)]), "p99")[0].changes == ()
    assert len(trends(_rows([*steps, *(value + 5.0 for value in steps)]), "p99")[0].changes) == 1


def test_unusable_runs_are_shown_but_not_used() -> None:
    rows = _rows([100.0] * 9)
    odd = _rows([5.0] * 9, unusable="it did not reach its end")
    (trend,) = trends([*rows, *odd], "p99")
    assert len(trend.runs) == 18 and trend.changes == ()
    assert trend.level is not None and (trend.level.value, trend.level.runs) == (100.0, 9)


def test_other_differences_are_reported() -> None:
    first = _rows(_noisy([100.0] * 12, 0), settings="a", versions={"torch": "2.12", "numpy": "2.1"})
    later = _rows(_noisy([160.0] * 12, 1), settings="b", versions={"torch": "2.13", "numpy": "2.1"})
    (trend,) = trends([*first, *later], "p99")
    assert trend.changes[0].differs == ("settings", "torch 2.12 -> 2.13")


def test_each_series_has_its_own_trend() -> None:
    other = Series(workload="w", machine="other", device="cpu", command="diagnose", traffic="t")
    found = trends([*_rows([1.0, 2.0]), *_rows([3.0], series=other)], "p99")
    assert [(trend.machine, trend.values) for trend in found] == [("m", [1.0, 2.0]), ("other", [3.0])]


def test_last_limits_only_what_is_shown() -> None:
    rows = _rows(_noisy([100.0] * 14 + [140.0] * 10, 2))
    (trend,) = trends(rows, "p99", last=12)
    assert len(trend.runs) == 12 and [change.run for change in trend.changes] == ["run 14"]
    assert trends(rows, "p99", last=5)[0].changes == ()


def test_a_metric_that_no_run_has() -> None:
    (trend,) = trends(_rows([1.0, 2.0]), "accuracy")
    assert trend.values == [] and trend.level is None and len(trend.runs) == 2
