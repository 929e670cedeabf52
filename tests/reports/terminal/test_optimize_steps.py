"""The steps of an optimization on a terminal: what several fixes share is shown once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from latfix.reports.terminal.comparison import render_optimization
from latfix.results.optimization import Candidate, Optimization, TriedFix
from tests.reports.conftest import printed

SHARED = "in the same replays"


def step(fix: str, reason: str, together: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    return {
        "fix": fix,
        "status": "kept",
        "reason": reason,
        "together": list(together),
        "ratio": {"mean": {"value": 0.9, "ci95": [0.8, 1.0]}, "p99": {"value": 0.7, "ci95": [0.6, 0.8]}},
        "p99_ms": 12.0,
        "predicted_p99_ms": None,
        "accuracy": 0.875,
        "verified": f"seen of {fix}",
        **more,
    }


def lines_of(found: Optimization, *steps: Mapping[str, Any]) -> list[str]:
    report = render_optimization(
        replace(found, steps=tuple(map(TriedFix.from_json, steps))), folder=None, verbose=True
    )
    return [line.rstrip() for line in printed(report, width=160).splitlines()]


def words_of(fix: str, lines: list[str]) -> str:
    """The line with the outcome of a fix; its row in the table has no colon."""
    (line,) = [line for line in lines if line.startswith(f"{fix}: ")]
    return line


GROUP = ("a.one", "a.two", "a.three")


def test_later_members_of_a_group_refer_to_the_first(improved: Optimization) -> None:
    reason = "in a group of 3: p95 x0.70 [0.60, 0.80], mean x0.90 [0.80, 1.00]"
    lines = lines_of(improved, *(step(fix, reason, GROUP) for fix in GROUP))
    assert words_of("a.one", lines) == f"a.one: {reason}; accuracy 0.875"
    assert words_of("a.two", lines) == f"a.two: {SHARED}"
    assert words_of("a.three", lines) == f"a.three: {SHARED}"
    assert sum(reason in line for line in lines) == 1
    rows = [line for line in lines if line.split()[:2] in [[fix, "kept"] for fix in GROUP]]
    assert len(rows) == 3 and all("0.7" in row and "12.0" in row for row in rows)
    for fix in GROUP:  # the evidence is each member's own
        assert f"  verified: seen of {fix}" in lines


def test_a_member_with_its_own_reason_shows_it(improved: Optimization) -> None:
    reason = "in a group of 3: p95 x0.70"
    own = "it did not take effect: 0 seen"
    steps = [step("a.one", reason, GROUP), step("a.two", own, GROUP), step("a.three", reason, GROUP)]
    lines = lines_of(improved, *steps)
    assert own in words_of("a.two", lines)
    # The step above has another reason, so this one repeats its own.
    assert words_of("a.three", lines).startswith(f"a.three: {reason}")


@pytest.mark.parametrize("second", [GROUP, ()])
def test_fixes_tried_alone_or_in_other_groups_share_nothing(improved: Optimization, second: tuple[str, ...]) -> None:
    """The same words by chance are not the same replays."""
    reason = "budget: it needs about 20 s, 5 s are left before the final replay"
    lines = lines_of(improved, step("a.one", reason), step("a.two", reason, second), step("a.three", reason))
    for fix in GROUP:
        assert reason in words_of(fix, lines)
    assert not any(SHARED in line for line in lines)


def test_a_prediction_is_shown_with_the_measured_value(improved: Optimization) -> None:
    lines = lines_of(improved, step("a.one", "p95 x0.70", predicted_p99_ms=10.0))
    assert "p99 predicted 10.0 ms, measured 12.0 ms" in words_of("a.one", lines)
    assert "predicted" not in words_of("a.two", lines_of(improved, step("a.two", "p95 x0.70")))


def test_configurations_have_the_figure_that_is_judged(improved: Optimization) -> None:
    seen = tuple(Candidate(fixes=(fix,), settings={}, status="foretold", predicted={"p95": 0.5}) for fix in GROUP)
    report = render_optimization(replace(improved, judged="p95", candidates=seen), folder=None, verbose=True)
    table = printed(report, width=160).partition("Configurations, fastest first")[2].splitlines()
    assert table[1].split()[0] == "p95"


def skipped(fix: str, reason: str) -> dict[str, Any]:
    return {"fix": fix, "status": "skipped", "reason": reason, "ratio": {}, "predicted_p99_ms": None, "p99_ms": None}


def test_fixes_that_were_not_tried_are_one_line_and_verbose_lists_them(improved: Optimization) -> None:
    """A catalogue of skipped fixes would hide the few that were tried."""
    budget = "budget: it needs about 20 s, 5 s are left before the final replay"
    late = [skipped(f"late.{k}", budget) for k in range(6)]
    other = [skipped(f"other.{k}", f"reason number {k}") for k in range(5)]
    absent = skipped("memory.jemalloc", "jemalloc is not installed (libjemalloc.so.2 is nowhere to be found)")
    steps = (step("a.one", "p95 x0.70"), *late, absent, *other)
    short = render_optimization(replace(improved, steps=tuple(map(TriedFix.from_json, steps))), folder=None)
    text = printed(short, width=200)
    summary = (
        "6 no time left: a larger --budget tries them, or the same command with --resume; 1 not installed; 5 nothing"
    )
    assert f"Not tried: 12 fixes ({summary} to change here); -v lists them" in text
    assert "reason number" not in text and "late.0" not in text
    lines = lines_of(improved, *steps)
    assert "other.3: reason number 3" in lines and f"late.5: {budget}" in lines
    assert not any("Not tried" in line for line in lines_of(improved, step("a.one", "p95 x0.70")))


def test_no_fix_is_lost_between_the_lists(improved: Optimization, count: int = 9) -> None:
    reasons = ["budget: all 3 trials are used", "needs onnx, not installed here; install latfix[onnx]", "no window"]
    steps = [skipped(f"fix.n{k}", reasons[k % 3]) for k in range(count)]
    text = " ".join(lines_of(improved, *steps))
    assert all(text.count(f"fix.n{k}") == 1 for k in range(count))
    assert "What was tried" not in text
