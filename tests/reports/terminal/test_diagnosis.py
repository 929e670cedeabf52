"""The terminal reports: verdict first, every figure that matters, nothing hostile obeyed."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from latfix.formatting import significant
from latfix.reports.terminal.diagnosis import render_comparison, render_diagnosis, render_optimization
from latfix.results.comparison import compare_records
from latfix.results.diagnosis import Diagnosis
from latfix.results.optimization import Optimization
from latfix.run_record.run_record import RunRecord
from latfix.statistics.decision import Verdict
from tests.reports.conftest import in_one_line
from tests.reports.conftest import printed as shown

Session = tuple[RunRecord, Diagnosis]


def unharmed(text: str, width: int) -> None:
    """It fits, and holds nothing that a terminal would obey."""
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in "\n\u200c\u200d" for c in text)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_session_fits_every_width(session: Session, width: int) -> None:
    unharmed(shown(render_diagnosis(session[1], folder=Path("runs/1")), width=width), width)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_optimization_fits_every_width(optimization: Optimization, width: int) -> None:
    unharmed(shown(render_optimization(optimization, folder=Path("runs/1")), width=width), width)


def test_every_figure_of_a_diagnosis_is_there_and_the_verdict_comes_first(ordinary: Session) -> None:
    diagnosis = replace(ordinary[1], notes=("Too few requests.",))
    report = render_diagnosis(diagnosis, folder=Path("runs/ranker"))
    text = shown(report)
    assert in_one_line(text).startswith(f"ranker on cpu: {diagnosis.sentence}")
    assert text.index("! Too few requests.") < text.index("latency, ms")
    for value in (*diagnosis.latency_ms.values(), *diagnosis.latency_ci95_ms["p99"]):
        assert significant(value) in text
    # The small print: counts, lag, cost and folder.
    for words in (
        "1,996 ok, 2 error, 1 timeout, 1 shed; 39.9/s",
        "p50 0.00310, p99 0.0410, max 0.310 ms",
        "12.3 µs a request, 0.800 % of a core",
        "runs/ranker",
    ):
        assert words in text
    assert "\x1b" not in text and "\x1b[1;31m" in shown(report, color=True)
    untrusted = shown(render_diagnosis(replace(diagnosis, trustworthy=False), folder=None), color=True)
    assert "\x1b[1;33m" in untrusted.splitlines()[0], "yellow, not red"


def test_causes_sum_to_the_excess_with_bars_for_own_queue_and_negative(ordinary: Session) -> None:
    lines = shown(render_diagnosis(ordinary[1], folder=None)).splitlines()
    begins = ("python.gc ", "traffic.burst ", "unexplained", "sum = excess")
    own, queue, rest, total = [next(line for line in lines if line.startswith(name)) for name in begins]
    assert significant(ordinary[1].excess_ms) in total
    assert significant(ordinary[1].unexplained_ms) in rest and "remainder" in rest
    assert "█" in own and "▒" not in own
    assert "▒" in queue and "█" not in queue
    assert "░" in rest and "█" not in rest


def test_what_to_do_names_the_command_with_the_workload_quoted(ordinary: Session) -> None:
    text = shown(render_diagnosis(ordinary[1], folder=None, workload_argument="my folder/ranker"))
    assert "latfix optimize 'my folder/ranker'" in text
    assert "gc.freeze" in text


def test_a_steady_run_is_told_that_nothing_stands_out(ordinary: Session) -> None:
    steady = replace(ordinary[1], verdict="steady", causes=())
    text = shown(render_diagnosis(steady, folder=None))
    assert "Nothing stands out" in text
    assert "latfix optimize" not in text


def test_hostile_texts_are_literal_on_a_terminal_too(hostile: Session) -> None:
    text = shown(render_diagnosis(hostile[1], folder=Path("[red]folder[/red]")), color=True, width=200)
    assert all(literal in text for literal in ("[red]x[/red]", "[red]folder[/red]", "\\x1b[31m"))
    assert "\u202e" not in text and "\x00" not in text


def test_an_output_without_unicode_is_not_a_crash(ordinary: Session, hostile: Session) -> None:
    for _, diagnosis in (ordinary, hostile):
        text = shown(render_diagnosis(diagnosis, folder=None), encoding="ascii")
        assert "####" in text


def test_no_request_says_so(ordinary: Session) -> None:
    empty = replace(ordinary[1], requests={"ok": 0, "error": 0, "timeout": 0, "shed": 0}, causes=())
    assert "No request was recorded" in shown(render_diagnosis(empty, folder=None))
    failed = replace(empty, requests={"ok": 0, "error": 9, "timeout": 0, "shed": 0})
    assert "mend the errors first" in shown(render_diagnosis(failed, folder=None))


def test_an_optimization_leads_with_its_verdict_and_tells_fixes_gates_and_plan(improved: Optimization) -> None:
    text = in_one_line(shown(render_optimization(improved, folder=Path("runs/2")), width=120))
    assert text.startswith("ranker on cpu: improved: p99 412 -> 98.0 ms (x0.238 [0.210, 0.280]);")
    for words in (
        "quantize.int8_dynamic rejected",
        "accuracy 0.912 -> 0.871, limit 0.902",
        "fusion.compile not effective",
        "predicted 300 ms, measured 321 ms",
        "verified: 0 collections in 2,000 requests",
        "passed p99<200ms",
        "FAILED p99<=baseline*0.2",
        "cannot tell p99.9<150ms",
        "latfix diagnose ranker --plan runs/2/plan.toml",
    ):
        assert words in text, words


def test_a_comparison_leads_with_its_verdict_and_warns(ordinary: Session, hostile: Session) -> None:
    comparison = compare_records(ordinary[0], hostile[0])
    text = shown(render_comparison(comparison))
    assert text.startswith(comparison.verdict.replace("_", " "))
    assert "! the traffic differs" in text
    assert significant(comparison.after.latency_ms["p99"]) in text
    assert "compared as wholes over 1 round" in in_one_line(text)


@pytest.mark.parametrize(
    ("verdict", "style"), [("better", "32"), ("worse", "31"), ("no_difference", "36"), ("undecided", "33")]
)
def test_the_color_of_a_comparison_is_that_of_its_verdict(ordinary: Session, verdict: Verdict, style: str) -> None:
    comparison = replace(compare_records(ordinary[0], ordinary[0]), verdict=verdict)
    assert f"\x1b[1;{style}m" in shown(render_comparison(comparison), color=True).splitlines()[0]


def test_every_session_can_be_compared(session: Session, ordinary: Session) -> None:
    unharmed(shown(render_comparison(compare_records(ordinary[0], session[0]))), 80)


def test_a_run_without_an_ok_request_is_never_green(ordinary: Session) -> None:
    counts = {"ok": 0, "error": 0, "timeout": 0, "shed": 0}
    for error, style in ((0, "33"), (5, "31")):
        steady = replace(ordinary[1], verdict="steady", causes=(), requests={**counts, "error": error})
        assert f"\x1b[1;{style}m" in shown(render_diagnosis(steady, folder=None), color=True).splitlines()[0]


def test_small_named_causes_are_mentioned_but_not_explained(ordinary: Session) -> None:
    small = [
        replace(entry, named=True, tail_share=0.5 if k == 0 else 0.01, evidence=f"evidence number {k}")
        for k, entry in enumerate(ordinary[1].causes)
        if entry.cause != "unexplained"
    ]
    text = in_one_line(shown(render_diagnosis(replace(ordinary[1], causes=tuple(small)), folder=None), width=160))
    assert "Evidence number 0." in text
    assert "vidence number 1" not in text
    assert f"also: {small[1].cause}" in text
