"""What is said of a plan in words."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from latfix.reports.plan_rows import floor_words, front_rows
from latfix.results.optimization import Candidate, Optimization


@pytest.mark.parametrize(
    ("floor", "after", "says"),
    [
        (118.0, 90.9, "reached: 118 ms was foretold for the fastest accurate way to run this model at p99"),
        (100.0, 105.0, "reached: 100 ms is what the fastest accurate way to run this model takes at p99"),
        (5.0, 22.0, "22.0 ms is 4.4 times that"),
        (None, 22.0, ""),
        (5.0, None, ""),
    ],
)
def test_how_far_from_the_limit(floor: float | None, after: float | None, says: str) -> None:
    found: Any = SimpleNamespace(floor_ms={"p99": floor}, after=SimpleNamespace(latency_ms={"p99": after}))
    words = floor_words(found)
    assert says in words and bool(says) == bool(words)


def test_a_forecast_is_no_rival_of_what_was_replayed(improved: Optimization) -> None:
    # GIVEN a forecast that is faster than the plan, and whose accuracy nobody measured
    kept = Candidate(fixes=("batch.size",), settings={}, status="kept", compute=1.0, predicted={"p99": 0.3})
    foretold = Candidate(
        fixes=("quantize.int8_dynamic",), settings={}, status="foretold", compute=0.5, predicted={"p99": 0.1}
    )
    rows = {row.name: row for row in front_rows(replace(improved, rounds=2, candidates=(foretold, kept)))}
    assert rows["batch.size"].best and rows["batch.size"].is_replayed
    assert not rows["quantize.int8_dynamic"].best
    assert next(iter(rows)) == "batch.size"
