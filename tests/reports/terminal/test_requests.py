"""Stories on a terminal and on the page: every figure is there, and nothing hostile is obeyed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from latfix.formatting import significant
from latfix.profilers.drilldown.explain import explain_slowest, tell
from latfix.profilers.drilldown.selection import choose_slowest
from latfix.reports.html.pages import write_run_report
from latfix.reports.terminal.requests import render_stories
from latfix.results.request_explanation import (
    Account,
    BatchFacts,
    Entry,
    Happening,
    Holder,
    Others,
    StageTime,
    Story,
    Wait,
)
from tests.reports.conftest import Session, in_one_line, printed, unharmed
from tests.reports.html.test_pages import checked

HOSTILE = '<script>alert(1)</script>\x1b[31m[red]x[/red]\x00\u202egnp.exe"\ud800\n\t$ {0}'


def story(text: str = "request") -> Story:
    """A story with everything in it; its ledger sums."""
    stages = (
        StageTime(stage="dispatch", at_ns=0, duration_ns=20_000),
        StageTime(
            stage="prepare",
            at_ns=20_000,
            duration_ns=2_000_000,
            parts=(("wait for a prepare thread", 500_000), ("own work", 1_500_000)),
            account=Account(
                thread="prepare 0",
                cpu_ns=1_100_000,
                runq_ns=300_000,
                blocked_ns=100_000,
                vcsw=2,
                icsw=1,
                minflt=4476,
                majflt=3,
            ),
            happenings=(
                Happening(kind="span", what=text, where="", own=True, at_ns=1, duration_ns=700_000, count=2),
                Happening(
                    kind="gc", what="generation 2", where="worker 0", own=False, at_ns=2, duration_ns=81_000, count=1
                ),
            ),
        ),
        StageTime(stage="queue", at_ns=2_020_000, duration_ns=177_000_000),
        StageTime(
            stage="compute",
            at_ns=179_020_000,
            duration_ns=20_980_000,
            happenings=(Happening(kind="error", what=text, where="", own=True, at_ns=9, duration_ns=0, count=1),),
        ),
    )
    culprit = Holder(
        label="60",
        thread=0,
        size=3,
        at_ns=-83_800_000,
        held_ns=262_000_000,
        within_ns=177_000_000,
        typical_ns=30_200_000,
        causes=(("python.gc", 225_000_000), (text, 5_000_000), ("unexplained", 1_800_000)),
        overtook=2,
        facts=("first batch of its shape",),
    )
    earlier = replace(culprit, label="59", held_ns=30_000_000, within_ns=0, causes=(("unexplained", -200_000),))
    entries = (
        Entry(cause="python.gc", own_ns=0, propagated_ns=150_000_000, evidence_class="measured"),
        Entry(cause=text, own_ns=26_000_000, propagated_ns=-1_000_000, evidence_class="modelled"),
        Entry(cause="observer", own_ns=9_000, propagated_ns=0, evidence_class="measured"),
        Entry(cause="unexplained", own_ns=-4_000, propagated_ns=900, evidence_class="remainder"),
    )
    return Story(
        id=text,
        index=4,
        row=4,
        arrival_ns=7_111_000_000,
        latency_ns=200_000_000,
        status="ok",
        error="",
        faster=118,
        ok_requests=121,
        warmup=False,
        priority="high",
        session=text,
        deadline_ms=500.0,
        features={text: text, "tokens": 812, "score": float("nan")},
        stages=stages,
        batch=BatchFacts(
            batch_id=61,
            worker=0,
            size=40,
            members=(text, "other-1", "other-2"),
            padding_share=0.315,
            first_shape=True,
            retried=True,
        ),
        waits=(
            Wait(
                resource="queue",
                at_ns=2_020_000,
                duration_ns=177_000_000,
                busy_since_ns=-83_800_000,
                idle_ns=400_000,
                holders=(earlier, culprit),
                others=Others(count=31, held_ns=77_000_000, within_ns=0, excess_ns=4_400_000, causes=()),
            ),
        ),
        reference_ns=24_994_100,
        entries=entries,
        sentence=f"It took 200 ms. {text}",
        matches=2,
    )


FAILED = replace(
    story(), status="timeout", error=HOSTILE, faster=None, reference_ns=None, entries=(), batch=None, waits=()
)
LOST = replace(FAILED, row=None, status="not recorded", error="", stages=(), latency_ns=0)


def shown(*stories: Story, width: int = 80, encoding: str = "utf-8", slowest: tuple[Story, ...] | None = None) -> str:
    return printed(render_stories(stories, slowest), width=width, encoding=encoding)


STORIES = pytest.mark.parametrize(
    "given", [story(), story(HOSTILE), FAILED, LOST], ids=["whole", "hostile", "failed", "lost"]
)


@pytest.mark.parametrize("width", [60, 80, 140])
@STORIES
def test_it_fits_every_width_and_shows_text_literally(given: Story, width: int) -> None:
    assert given.status in shown(given, encoding="ascii")
    unharmed(shown(given, width=width, slowest=(given,)), width)


def test_the_whole_story_is_there() -> None:
    text = in_one_line(shown(story(), width=160))
    for words in (
        "Request request 200 ms ok",
        "! 2 requests of this traffic have this id",
        "number 3 from the slowest of the 121 ok requests",
        "7.111 s into the replay",
        "priority high, session request, deadline 500 ms",
        "tokens 812",
        "61 on worker 0, 40 requests, 31.5 % of it padding, the first of its shape, alone after its batch failed",
        "with other-1, other-2 and 37 more",
        "wait for a prepare thread 0.500, own work 1.50",
        "prepare 0: on-CPU 1.10, run queue 0.300, blocked 0.100; 3 major faults, 4,476 faults, 2 voluntary switches, "
        "1 involuntary switch",
        "2 x span request 0.700",
        "collection generation 2 0.0810 in worker 0",
        "error: request",
        "It waited 177 ms for a worker, busy without a break since 85.8 ms before that wait began; no recorded "
        "work covers 0.400 ms of it.",
        "batch 60 (3) -83.8 262 177 30.2 232 python.gc 225",
        "first batch of its shape, 2 of its requests arrived later and went first",
        "ended before the wait",
        "31 others",
        "It took 200 ms. request",
    ):
        assert words in text, words


def test_the_ledger_runs_to_the_latency_and_the_difference_is_shown() -> None:
    lines = [in_one_line(line) for line in shown(story(), width=120).splitlines()]
    ledger = lines[next(k for k, line in enumerate(lines) if line.startswith("The ledger")) :]
    (culprit,) = [line for line in ledger if line.startswith("python.gc")]
    assert culprit.endswith("150 – 150 175 measured")
    (small,) = [line for line in ledger if line.startswith("2 smaller entries")]
    assert small.endswith("0.00590 0.00500 0.000900 200")
    assert "latency 200 200" in ledger
    assert "latency 200,000,000 - quiet request 24,994,100 - entries 175,005,900 = 0 ns" in ledger
    assert "= 7 ns" in shown(replace(story(), latency_ns=200_000_007), width=120), "one that does not sum says so"
    without = shown(FAILED, width=120)
    assert "The ledger" not in without and "Timeline" in without and "timeout" in without
    assert "Timeline" not in shown(LOST, width=120)


def test_bars_lie_where_the_stages_do() -> None:
    lines = shown(story(), width=120).splitlines()
    (queue,) = [line for line in lines if line.startswith("queue ")]
    (compute,) = [line for line in lines if line.startswith("compute ")]
    assert queue.index("█") < compute.index("█")
    assert queue.rindex("█") <= compute.index("█")
    assert queue.count("█") > 5 * compute.count("█")


def test_the_slowest_are_listed_with_entries_and_what_they_waited_behind() -> None:
    text = in_one_line(shown(width=160, slowest=(story(), FAILED)))
    assert "The 2 slowest requests" in text
    assert "python.gc 150 (queue), request 25.0" in text
    assert "177 behind batch 60 (3) and 32 more: 262, typical 30.2; python.gc 225" in text
    assert "request timeout" in text
    assert "each ok one is among the slowest 2.48 % of ok requests" in text
    assert "No measured request was recorded." in shown(slowest=())
    assert "slowest request" not in shown(story())


def test_a_rank_among_very_many_requests_is_not_rounded_to_all_of_them() -> None:
    many = replace(story(), faster=99_990, ok_requests=100_000)
    text = in_one_line(shown(many, width=160, slowest=(many,)))
    assert "number 10 from the slowest of the 100,000 ok requests" in text
    assert "each ok one is among the slowest 0.0100 % of ok requests" in text and " 100 % of" not in text


def page_of(session: Session, tmp_path: Path, *stories: Story) -> str:
    path = tmp_path / "report.html"
    write_run_report(path, *session, stories=stories)
    checked(path)
    return path.read_text().split("errors included, warm-up excluded", 1)[1].split("</section>")[0]


@STORIES
def test_the_page_shows_the_same_and_text_literally(given: Story, ordinary: Session, tmp_path: Path) -> None:
    page = page_of(ordinary, tmp_path, given).partition("<details")[2].replace("\u00a0", " ")
    assert "<script" not in page
    if given.reference_ns is not None:
        assert "= 0 ns" in page
        assert significant(given.waits[0].holders[1].excess_ns / 1e6) in page
        assert page.count("<table") == 3


def test_a_dot_of_a_chart_finds_the_story_by_its_id(ordinary: Session, tmp_path: Path) -> None:
    assert 'data-request="call 5 s-0"' in page_of(ordinary, tmp_path, replace(story(), id="call 5 s-0"))


def test_the_page_of_a_run_explains_its_slowest_requests(ordinary: Session, tmp_path: Path) -> None:
    record, diagnosis = ordinary
    stories = explain_slowest(record, diagnosis.ledger)
    text = page_of(ordinary, tmp_path, *stories)
    assert text.count("<details ") == len(stories) == 20
    for one in stories:
        assert f"Timeline of {one.id}," in text


def test_every_session_can_be_explained(session: Session) -> None:
    record, diagnosis = session
    stories = tell(record, diagnosis.ledger, choose_slowest(record, 30))
    unharmed(shown(*stories[:3], slowest=stories), 80, figures=False)  # milliseconds of months are cut
    assert all(one.difference_ns in (0, None) for one in stories)
    assert len(stories) == min(30, int(record.measured.sum()))


def test_without_anything_known_of_threads_there_is_no_column_for_it(ordinary: Session, tmp_path: Path) -> None:
    known = story()
    bare = replace(known, stages=tuple(replace(one, parts=(), account=None, happenings=()) for one in known.stages))
    assert "what the thread did" in shown(known) and "what the thread did" not in shown(bare)
    assert "what the thread did" in page_of(ordinary, tmp_path, known)
    assert "what the thread did" not in page_of(ordinary, tmp_path, bare)
