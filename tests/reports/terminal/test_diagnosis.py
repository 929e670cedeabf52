"""The terminal reports: the answer last, every figure that matters, nothing hostile obeyed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from latfix.formatting import significant
from latfix.profilers.recordings.detect import diagnose_recording
from latfix.profilers.recordings.reader import ReadOptions
from latfix.reports.answer import change_headline
from latfix.reports.comparison_rows import comparison_change
from latfix.reports.diagnosis_rows import main_causes
from latfix.reports.html.recording_page import write_recording_report
from latfix.reports.terminal.comparison import render_comparison, render_optimization
from latfix.reports.terminal.diagnosis import render_diagnosis, render_tail
from latfix.reports.terminal.widgets import WIDEST_BAR, Column, FittedTable, pair_bar
from latfix.results.comparison import compare_records
from latfix.results.diagnosis import Losses, UnitLedger
from latfix.results.optimization import Candidate, Optimization
from latfix.results.worker_summary import WorkerRow
from latfix.statistics.decision import RatioEstimate, Verdict
from tests.profilers.recordings.requests.formats.test_formats import HISTOGRAM
from tests.reports.conftest import Session, in_one_line, unharmed
from tests.reports.conftest import printed as shown

WIDTHS = pytest.mark.parametrize(("width", "verbose"), [(60, False), (80, True), (120, True), (200, False)])


@WIDTHS
def test_every_session_fits_every_width(session: Session, width: int, verbose: bool) -> None:
    unharmed(shown(render_diagnosis(session[1], folder=Path("runs/1"), verbose=verbose), width=width), width)


@WIDTHS
def test_every_optimization_fits_every_width(optimization: Optimization, width: int, verbose: bool) -> None:
    unharmed(shown(render_optimization(optimization, folder=Path("runs/1"), verbose=verbose), width=width), width)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_id_is_broken_and_bars_stay_short(ordinary: Session, improved: Optimization, width: int) -> None:
    words = shown(render_diagnosis(ordinary[1], folder=None, verbose=True), width=width).split()
    assert {row.label for row in main_causes(ordinary[1])} <= set(words)
    tried = shown(render_optimization(improved, folder=None, verbose=True), width=width).split()
    assert {step.fix for step in improved.steps if step.status != "skipped"} <= set(tried)
    wide = shown(render_diagnosis(ordinary[1], folder=None), width=200)
    assert max(line.count("█") + line.count("▒") for line in wide.splitlines()) <= WIDEST_BAR


def test_a_diagnosis_is_one_screen_and_ends_with_its_answer(ordinary: Session) -> None:
    text = shown(render_diagnosis(ordinary[1], folder=Path("runs/ranker")))
    assert len(text.splitlines()) <= 40
    end = in_one_line("\n".join(text.splitlines()[-16:]))
    for words in (
        ordinary[1].sentence,
        "95 % interval",
        "why",
        "gates none set",
        "next step latfix optimize ranker",
        "runs/ranker",
    ):
        assert words in end
    assert "ms (the excess) more than a quiet request" in in_one_line(text)
    assert "-v also shows stages and what to do" in text
    bare = replace(ordinary[1], stages_ms={}, causes=())
    assert "-v also" not in shown(render_diagnosis(bare, folder=None)), "it shows nothing else"


def test_a_diagnosis_with_everything_is_one_screen_too(ordinary: Session) -> None:
    hog = "others used 1.8 cores (stress (process 77), 1.2 cores; cc1plus (process 79), 0.60 cores)"
    notes = (f"The machine was disturbed: {hog}, and the service waited.", "p99 rests on few. " * 9)
    workers = tuple(
        WorkerRow(
            worker=k,
            device="cpu",
            batches=1000,
            requests=1000,
            busy_share=0.3,
            compute_p50_ms=9.0,
            compute_p99_ms=50.0,
            tail_requests=10,
            tail_share=0.5,
        )
        for k in range(2)
    )
    lost = Losses(
        status="error", requests=8, share=0.004, waited_ms={"p50": 10.0}, in_stage={"finish": 8}, stages_ms={}
    )
    first, *others = ordinary[1].causes
    causes = (replace(first, culprit="stress (process 77), 1.2 cores"), *others)
    found = replace(ordinary[1], notes=notes, disturbed=hog, workers=workers, lost=(lost,), causes=causes)
    text = shown(render_diagnosis(found, folder=Path("runs/ranker")))
    assert len(text.splitlines()) <= 40
    assert in_one_line(text).count("stress (process 77)") == 1
    (left_out,) = re.findall(r"-v also shows (.*)", text)
    assert left_out == "requests that did not end ok, workers, stages and what to do"
    everything = shown(render_diagnosis(found, folder=Path("runs/ranker"), verbose=True))
    assert "Workers" in everything and "Workers" not in text
    losing = shown(render_diagnosis(replace(found, verdict="losing"), folder=None))
    assert "Requests that did not end ok" in losing
    assert "measured: timestamps" in in_one_line(text).lower()


def test_the_baseline_of_an_optimization_says_why_requests_failed(ordinary: Session) -> None:
    errors = {"finish raised KeyError: 'label 7' (workload.py:16)": 8}
    lost = Losses(
        status="error", requests=8, share=0.004, waited_ms={}, in_stage={"finish": 8}, stages_ms={}, errors=errors
    )
    assert "8 × finish raised KeyError" in in_one_line(shown(render_tail(replace(ordinary[1], lost=(lost,)))))


def test_a_first_view_has_no_negative_milliseconds(session: Session) -> None:
    text = shown(render_diagnosis(session[1], folder=None))
    table = text[text.index("Where the tail") :] if "Where the tail" in text else ""
    assert not re.search(r"(?<![\w.])[-−]\d", table.split("─" * 80)[0])


def test_bars_are_to_one_scale_from_zero() -> None:
    def cells(own: float, queue: float) -> tuple[int, int]:
        table = FittedTable([Column(right=False), Column(right=False)], [["gc", pair_bar(own, queue, 100.0)]])
        line = shown(table, width=80)
        return line.count("█"), line.count("▒")

    assert cells(100, 0) == (WIDEST_BAR, 0)
    assert cells(25, 25) == (WIDEST_BAR // 4, WIDEST_BAR // 4)
    assert sum(cells(0.6, 0.6)) == 0, "two halves of a cell are not two cells"
    assert cells(75, -25) == (WIDEST_BAR // 2, 0) and cells(-25, 75) == (0, WIDEST_BAR // 2), "as long as its figure"
    assert cells(0, 0) == (0, 0)


def test_a_table_leaves_columns_out_whole() -> None:
    columns = [Column("fix", right=False), Column("p99", given_up=1), Column("status", right=False)]
    rows = [["quantize.int8_weight_only", "2,412 ms", "rejected"]]
    assert "2,412 ms" in shown(FittedTable(columns, rows), width=60)
    narrow = shown(FittedTable(columns, rows), width=40)
    assert "2," not in narrow and "quantize.int8_weight_only  rejected" in narrow


def test_every_figure_of_a_diagnosis_is_there(ordinary: Session) -> None:
    diagnosis = replace(ordinary[1], notes=("Too few requests.",))
    report = render_diagnosis(diagnosis, folder=Path("runs/ranker"), verbose=True)
    text = shown(report, width=100)
    assert text.startswith("ranker on cpu: 1,996 ok")
    assert text.index("! Too few requests.") < text.index("latency, ms")
    for value in diagnosis.latency_ci95_ms["p99"]:
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
    assert f"\x1b[1;33m{diagnosis.sentence[:20]}" in untrusted, "yellow, not red"


def test_causes_sum_to_the_excess_with_bars_for_own_queue_and_negative(ordinary: Session) -> None:
    lines = shown(render_diagnosis(ordinary[1], folder=None, verbose=True), width=100).splitlines()
    begins = ("python.gc ", "traffic.burst ", "unexplained", "sum = excess")
    own, queue, rest, total = [next(line for line in lines if line.startswith(name)) for name in begins]
    assert significant(ordinary[1].excess_ms) in total
    assert significant(ordinary[1].unexplained_ms) in rest
    assert "█" in own and "▒" not in own
    assert "▒" in queue and "█" not in queue
    assert "░" in rest and "█" not in rest


def test_the_causes_of_the_first_view_sum_to_the_excess(ordinary: Session) -> None:
    """Rounded by its interval, each would read 200, 100 and 0 of 207."""
    parts = zip(ordinary[1].causes, (173.4, 22.9, 10.7), strict=False)
    causes = tuple(replace(entry, tail_ms=ms, tail_share=ms / 207, ci95_ms=(ms, ms + 1500)) for entry, ms in parts)
    text = shown(render_diagnosis(replace(ordinary[1], causes=causes, excess_ms=207.0), folder=None), width=100)
    lines = [line for line in text.splitlines() if re.search("[█▒]", line) and "own:" not in line]
    figures = [re.search(r"[█▒]\s+([\d.]+)", line) for line in lines]
    assert [found[1] for found in figures if found] == ["173", "22.9", "10.7"]


def test_what_to_do_names_the_command_with_the_workload_quoted(ordinary: Session) -> None:
    text = shown(render_diagnosis(ordinary[1], folder=None, workload_argument="my folder/ranker"))
    assert "latfix optimize 'my folder/ranker'" in text
    assert "gc.freeze" in text


def test_a_steady_run_has_no_cause_that_stands_out(ordinary: Session) -> None:
    steady = replace(ordinary[1], verdict="steady", causes=())
    text = shown(render_diagnosis(steady, folder=None))
    assert "No cause stands out" in text
    assert "latfix optimize" not in text


def test_hostile_texts_are_literal_on_a_terminal_too(hostile: Session) -> None:
    text = shown(render_diagnosis(hostile[1], folder=Path("[red]folder[/red]")), color=True, width=200)
    assert all(literal in text for literal in ("[red]x[/red]", "[red]folder[/red]", "\\x1b[31m"))
    assert "\u202e" not in text and "\x00" not in text


def test_an_output_without_unicode_is_not_a_crash(ordinary: Session, hostile: Session) -> None:
    for _, diagnosis in (ordinary, hostile):
        text = shown(render_diagnosis(diagnosis, folder=None), encoding="ascii")
        assert "####" in text


def test_a_run_without_requests(ordinary: Session) -> None:
    empty = replace(ordinary[1], requests={"ok": 0, "error": 0, "timeout": 0, "shed": 0}, causes=())
    assert "No request was recorded" in shown(render_diagnosis(empty, folder=None))
    failed = replace(empty, requests={"ok": 0, "error": 9, "timeout": 0, "shed": 0})
    text = shown(render_diagnosis(failed, folder=None))
    assert "First fix the errors" in text and "Where the tail comes from" not in text


def test_the_slowest_requests_of_a_recording_have_their_largest_causes(ordinary: Session) -> None:
    """The time that a quiet request takes, too, delays nobody."""
    causes_ms = {"reference": 20.6, "python.gc": 9.0, "traffic.burst": 30.0, "observer": 1.0}
    unit = UnitLedger(id="a", start_ms=1000.0, latency_ms=60.6, causes_ms=causes_ms)
    text = shown(render_diagnosis(replace(ordinary[1], slowest=(unit,)), folder=None), width=120)
    assert re.search(r"largest cause, ms +next largest", text)
    assert re.search(r"60\.6 +traffic\.burst 30\.0 +python\.gc 9\.00\n", text)


def test_a_histogram_has_no_table_of_causes(tmp_path: Path) -> None:
    (tmp_path / "metrics").write_text(HISTOGRAM)
    found = diagnose_recording(tmp_path / "metrics", ReadOptions())
    text = shown(render_diagnosis(found, folder=None))
    assert "Where the tail comes from" not in text and "lies between" in in_one_line(text)
    write_recording_report(tmp_path / "page.html", found)
    page = (tmp_path / "page.html").read_text()
    assert "Where the tail comes from" not in page and "excess of the tail" not in page


def test_an_optimization_shows_fixes_gates_and_plan(improved: Optimization) -> None:
    found = replace(improved, rounds=5)
    text = in_one_line(shown(render_optimization(found, folder=Path("runs/2"), verbose=True), width=120))
    for words in (
        "quantize.int8_dynamic rejected",
        "accuracy 0.912 -> 0.871, limit 0.902",
        "fusion.compile not effective",
        "predicted 300 ms, measured 321 ms",
        "verified: 0 collections in 2,000 requests",
        "transfer.pin: needs a CUDA device",
    ):
        assert words in text, words
    end = in_one_line(shown(render_optimization(found, folder=Path("runs/2")), width=120)).partition("Improved: ")[2]
    for words in (
        "p99 412 -> 98.0 ms, 4.2 times faster",
        "95 % interval between 3.6 and 4.8 times faster, from 5 rounds",
        "why gc.freeze, quantize.bf16",
        "gates 1 of 3 gates failed",
        "p99<=baseline*0.2 failed: 0.238",
        "p99.9<150ms undecided",
        "next step latfix diagnose ranker --plan runs/2/plan.toml",
        "1 request lost, 0 before",
        "runs/2/report.html",
    ):
        assert words in end, words


def test_nothing_kept_is_not_shown_as_before_and_after(improved: Optimization) -> None:
    steps = tuple(replace(step, status="undecided") for step in improved.steps)
    found = replace(
        improved,
        verdict="no_gain",
        steps=steps,
        after=improved.before,
        ratio={},
        rounds=0,
        candidates=(
            Candidate(fixes=("batch.size",), settings={}, status="undecided", predicted={"p99": 0.5}),
            Candidate(fixes=("quantize.int8",), settings={}, status="rejected", predicted={"p99": 0.1}),
        ),
    )
    text = in_one_line(shown(render_optimization(found, folder=None), width=120))
    assert "->" not in text.partition("What was tried")[0] and "[1.00" not in text
    assert "No fix is proved to help: p99 stays 412 ms" in text
    assert "best candidate batch.size: p99 2.0 times faster (predicted, not replayed)" in text
    assert "next step latfix optimize ranker --fix batch.size --budget" in text


def test_a_refuted_plan_is_not_called_the_result(improved: Optimization) -> None:
    reason = "slower in the final replay: p99 x1.50"
    steps = tuple(replace(one, status="rejected", reason=reason) for one in improved.steps if one.status == "kept")
    worse = {key: RatioEstimate(value=1.5, lo=1.4, hi=1.6) for key in improved.ratio}
    found = replace(improved, verdict="no_gain", steps=steps, changes={}, ratio=worse, rounds=5)
    found = replace(found, proved=("gc.freeze",))
    text = in_one_line(shown(render_optimization(found, folder=None), width=160))
    assert "No gain: in the final replay, gc.freeze was 50 % slower (p99 412 -> 98.0 ms), so the plan " in text
    assert "changes nothing; best so far: the first settings, p99 412 ms" in text
    assert "before tried ratio" in text and "side effects" not in text
    left = Candidate(fixes=("batch.size",), settings={}, status="undecided", predicted={"p99": 0.5})
    idle = tuple(replace(one, status="not_effective") for one in steps)
    found = replace(found, steps=idle, candidates=(left,))
    text = in_one_line(shown(render_optimization(found, folder=None), width=160))
    assert "gc.freeze took no effect, so the plan changes nothing; best so far: batch.size: p99 2.0 ti" in text
    assert "mes faster (predicted, not replayed)" in text and "best candidate" not in text


def test_a_comparison_ends_with_its_verdict_and_warns(ordinary: Session, hostile: Session) -> None:
    comparison = compare_records(ordinary[0], hostile[0])
    text = shown(render_comparison(comparison))
    assert "! the traffic differs" in text
    assert comparison_change(comparison).after.latency_words()["p99"] in text
    assert "Compared by their distributions over 1 round" in in_one_line(text)
    assert change_headline(comparison_change(comparison), comparison.verdict).replace("→", "->") in in_one_line(text)


@pytest.mark.parametrize(
    ("verdict", "style"), [("better", "32"), ("worse", "31"), ("no_difference", "36"), ("undecided", "33")]
)
def test_the_color_of_a_comparison_is_that_of_its_verdict(ordinary: Session, verdict: Verdict, style: str) -> None:
    comparison = replace(compare_records(ordinary[0], ordinary[0]), verdict=verdict, same_run=False)
    word = verdict.replace("_", " ").capitalize()
    assert f"\x1b[1;{style}m{word}" in shown(render_comparison(comparison), color=True)


def test_every_session_can_be_compared(session: Session, ordinary: Session) -> None:
    unharmed(shown(render_comparison(compare_records(ordinary[0], session[0]))), 80)


def test_a_run_without_an_ok_request_is_never_green(ordinary: Session) -> None:
    counts = {"ok": 0, "error": 0, "timeout": 0, "shed": 0}
    for error, style in ((0, "33"), (5, "31")):
        steady = replace(ordinary[1], verdict="steady", causes=(), requests={**counts, "error": error})
        text = shown(render_diagnosis(steady, folder=None), color=True)
        assert f"\x1b[1;{style}m{steady.sentence[:20]}" in text


def test_small_named_causes_are_mentioned_but_not_explained(ordinary: Session) -> None:
    small = [
        replace(entry, named=True, tail_share=0.5 if k == 0 else 0.01, evidence=f"evidence number {k}")
        for k, entry in enumerate(ordinary[1].causes)
        if entry.cause != "unexplained"
    ]
    text = in_one_line(
        shown(render_diagnosis(replace(ordinary[1], causes=tuple(small)), folder=None, verbose=True), width=160)
    )
    assert "Evidence number 0." in text
    assert "vidence number 1" not in text
    assert f"also: {small[1].cause}" in text
