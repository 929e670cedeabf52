"""Before and after in one shape, whatever the document lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latfix.reports.before_after import Ratio, read_change, read_ratio


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
