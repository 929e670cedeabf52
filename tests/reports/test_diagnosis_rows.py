"""The rows of the table of causes sum to the excess, whichever are listed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from latfix.cause_catalogue import UNEXPLAINED
from latfix.lower_bound import AtLeast
from latfix.reports.answer import diagnosis_answer
from latfix.reports.diagnosis_rows import (
    cause_advice,
    cause_rows,
    cause_total,
    closing_advice,
    error_words,
    excess_words,
    main_causes,
    remaining_ms,
    service_words,
    small_causes_words,
)
from latfix.reports.terminal.diagnosis import render_diagnosis
from latfix.results.diagnosis import (
    CodeLine,
    LatencyPart,
    Losses,
    ProcessFigures,
    ServiceFigures,
    Source,
    StreamFigures,
)
from tests.reports.conftest import Session, printed


@pytest.mark.parametrize("limit", [0, 1, 3, 100])
def test_rows_sum_to_what_all_entries_sum_to(session: Session, limit: int) -> None:
    _, diagnosis = session
    rows = cause_rows(diagnosis, limit=limit)
    expected = sum(entry.tail_ms for entry in diagnosis.causes) if diagnosis.causes else diagnosis.unexplained_ms
    assert math.isclose(cause_total(rows, diagnosis)[0], expected, rel_tol=1e-9, abs_tol=1e-9)
    assert [row.cause == UNEXPLAINED for row in rows] == [False] * (len(rows) - 1) + [True], "always the last"


def test_a_diagnosis_without_an_entry_for_it_still_shows_unexplained(ordinary: Session) -> None:
    bare = replace(ordinary[1], causes=(), unexplained_ms=12.5, excess_ms=50.0)
    (row,) = cause_rows(bare, limit=5)
    assert (row.tail_ms, row.share) == (12.5, 0.25)


def test_named_causes_are_listed_beyond_the_limit_and_the_rest_is_one_row(ordinary: Session) -> None:
    _, diagnosis = ordinary
    rows = cause_rows(diagnosis, limit=0)
    named = [entry.cause for entry in diagnosis.causes if entry.named]
    assert [row.cause for row in rows] == [*named, "", "unexplained"]
    assert rows[-2].label == f"{len(diagnosis.causes) - len(named) - 1} smaller causes"


def test_the_rest_includes_unexplained_only_if_that_has_no_row(ordinary: Session) -> None:
    diagnosis = ordinary[1]
    rest = [entry for entry in diagnosis.causes if entry.cause != UNEXPLAINED]
    small = [replace(entry, tail_ms=0.1, own_ms=0.1, propagated_ms=0.0, tail_share=0.001) for entry in rest[1:]]

    def rest_of(unexplained_ms: float) -> str:
        left = next(entry for entry in diagnosis.causes if entry.cause == UNEXPLAINED)
        left = replace(left, tail_ms=unexplained_ms, tail_share=unexplained_ms / 100)
        first = replace(rest[0], tail_ms=80.0, tail_share=0.8)
        return small_causes_words(replace(diagnosis, causes=(first, *small, left), excess_ms=100.0))

    assert "causes below 5 %, and unexplained time: " in rest_of(1.0)
    assert "causes below 5 %: " in rest_of(19.0)
    assert "causes below 5 %; the listed causes overlap by 5.00 ms" in rest_of(25.0)


@pytest.mark.parametrize(
    ("left_ms", "words"),
    [(2.0, "unexplained time: 2.00 ms in total, 2 %"), (-3.0, "the listed causes overlap by 3.00 ms")],
)
def test_unexplained_time_alone_is_not_another_cause(ordinary: Session, left_ms: float, words: str) -> None:
    first = replace(ordinary[1].causes[0], tail_ms=100.0 - left_ms, tail_share=1 - left_ms / 100)
    left = replace(first, cause=UNEXPLAINED, tail_ms=left_ms, tail_share=left_ms / 100)
    found = replace(ordinary[1], causes=(first, left), excess_ms=100.0)
    assert small_causes_words(found) == words


def test_the_main_causes_and_the_rest_sum_to_the_excess(session: Session) -> None:
    diagnosis = session[1]
    main = sum(row.tail_ms for row in main_causes(diagnosis))
    expected = diagnosis.excess_ms if math.isfinite(diagnosis.excess_ms) else 0.0
    assert math.isclose(main + remaining_ms(diagnosis), expected, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("replay", "this one run; a restart may move it further, --rounds 5 measures how far"),
        ("http", "this one run"),
        ("requests", "this one recording"),
    ],
)
def test_what_an_interval_does_not_cover(ordinary: Session, kind: str, words: str) -> None:
    found = replace(ordinary[1], source=Source(kind=kind, path="x"), latency_ci95_ms={"p99": (1.0, 2.0)})
    sure = next(line.words for line in diagnosis_answer(found).lines if line.label == "95 % interval")
    assert sure == f"1.00 to 2.00 ms, from {words}"


def _failed(errors: dict[str, int]) -> Losses:
    many = sum(errors.values())
    waited, stages = {"p50": 1.3}, {"stream": many}
    return Losses(
        status="error", requests=many, share=0.05, waited_ms=waited, in_stage=stages, stages_ms={}, errors=errors
    )


def test_the_commonest_error_is_shown_and_is_what_to_fix_first(ordinary: Session) -> None:
    failed = _failed({"KeyError: 7": 3, "HTTP 503: model overloaded": 26})
    shed = replace(failed, status="timeout", requests=5, errors={})
    found = replace(ordinary[1], verdict="losing", lost=(failed, shed))
    words = [error_words(lost.errors) for lost in found.lost]
    assert words == ["26 × HTTP 503: model overloaded; 3 with other messages", ""]
    assert closing_advice(found) == "First fix this error of 26 requests: HTTP 503: model overloaded"
    few = replace(found, verdict="inconclusive")
    assert closing_advice(few) == "First fix this error of 26 requests: HTTP 503: model overloaded"
    none_ok = replace(found, requests={"ok": 0, "error": 29})
    assert "fix this error of 26 requests: HTTP 503: model overloaded" in closing_advice(none_ok)
    late = replace(found, lost=(failed, replace(shed, requests=500)))
    assert "First fix what the lost requests waited for" in closing_advice(late)
    refused = replace(shed, status="shed", requests=500, errors={"HTTP 429: slow down": 500})
    assert closing_advice(replace(found, lost=(refused,))).endswith("of 500 requests: HTTP 429: slow down")
    queued = replace(refused, waited_for_ms={"work": 3.0})
    assert "First fix what the lost requests waited for" in closing_advice(replace(found, lost=(queued,)))


@pytest.mark.parametrize(("share", "words"), [(0.8, "decides whether it is {}"), (0.3, "does not show the cause")])
def test_a_longer_run_is_advised_for_a_cause_that_is_most_of_the_tail(
    ordinary: Session, share: float, words: str
) -> None:
    known = replace(next(each for each in ordinary[1].causes if each.cause != "unexplained"), tail_share=share)
    found = replace(ordinary[1], verdict="inconclusive", causes=(known,), source=None, service=None, lost=())
    assert words.format(known.cause) in closing_advice(found)
    assert closing_advice(found).startswith("Replay for longer (--repeat 3): ")
    recorded = replace(found, source=Source(kind="spans", path="spans.json"))
    assert closing_advice(recorded).startswith("Record for longer: ")


@pytest.mark.parametrize(
    ("cause", "verdict", "looks"),
    [
        ("unexplained", "inconclusive", True),
        ("external.dependency", "external.dependency", True),
        ("python.gil", "python.gil", False),  # a thread that waits for the lock does so anywhere
        ("unexplained", "steady", False),
    ],
)
def test_where_time_passes_in_the_users_code_is_what_to_look_at(
    ordinary: Session, cause: str, verdict: str, looks: bool
) -> None:
    line = CodeLine(
        unit="compute", file="w.py", line=34, function="W.f", inside="", slow_ms=11.1, typical_ms=0.0, looks=9
    )
    largest = replace(ordinary[1].causes[0], cause=cause, tail_share=0.9, own_ms=30.0, fixes=())
    found = replace(
        ordinary[1], verdict=verdict, causes=(largest,), source=None, service=None, lost=(), lines=(line,)
    )
    words = "Look at w.py:34 (W.f): 11.1 ms of a slow compute, 0 ms of a typical one."
    assert (closing_advice(found) == words) == looks
    spread = replace(found, lines=(line, replace(line, line=35, slow_ms=11.0), replace(line, line=36)))
    assert "Look at" not in closing_advice(spread)
    rare = replace(found, causes=(replace(largest, own_ms=500.0),))
    assert "Look at" not in closing_advice(rare), "far more than passes at that line"


def test_a_log_needs_more_columns_or_more_time(ordinary: Session) -> None:
    source, known = Source(kind="requests", path="access.log"), ordinary[1].causes[0]
    found = replace(ordinary[1], verdict="inconclusive", source=source, service=None, lost=())
    for low, words in (
        (0.0, "Record for longer: that decides whether it is"),
        (8.0, "a log with more columns (dependencies"),
    ):
        cause = replace(known, tail_ms=10.0, tail_share=0.8, ci95_ms=(low, 20.0))
        advice = closing_advice(replace(found, causes=(cause,)))
        assert words in advice and "unexplained" not in advice
    chance = replace(known, cause="traffic.burst", tail_ms=10.0, tail_share=0.98, ci95_ms=(8.0, 20.0), named=False)
    assert closing_advice(replace(found, causes=(chance,))) == (
        "Record for longer: that decides whether it is traffic.burst, which is 98 % of the tail's excess here."
    )
    rest = replace(known, cause="unexplained", tail_ms=12.0, ci95_ms=(8.0, 20.0))
    assert "Too much of the tail is unexplained" in closing_advice(replace(found, causes=(rest, cause)))


def test_what_cannot_be_seen_from_outside_is_in_the_log_of_the_service(ordinary: Session) -> None:
    figures = dict.fromkeys(("minor_faults", "major_faults", "voluntary_switches", "involuntary_switches"), 0)
    process = ProcessFigures(
        pid=7, cpu_cores=1.0, waiting_cores=0.0, throttled_ms=None, resident_bytes=1, gpu_util=None, **figures
    )
    seen = ServiceFigures(connections=1, process=process)
    rest = replace(ordinary[1].causes[0], cause="unexplained", tail_ms=10.0, tail_share=0.8)
    found = replace(ordinary[1], verdict="inconclusive", source=None, service=seen, lost=())
    for low, words in (
        (8.0, "its cause: join the service's own log or spans with --server-log"),
        (0.0, "for longer"),
    ):
        assert words in closing_advice(replace(found, causes=(replace(rest, ci95_ms=(low, 20.0)),)))


def test_a_part_that_a_newer_version_names_is_shown_by_its_name(ordinary: Session) -> None:
    part = LatencyPart(part="tokenizer", slow_ms=3.0, typical_ms=1.0, source="its log", p99_ms=4.0)
    found = replace(ordinary[1], service=ServiceFigures(connections=1, parts=(part,), parts_known="by request"))
    shown = dict(service_words(found))
    assert shown["in the tail"] == "3.00 ms on average = tokenizer 3.00 ms"
    assert shown["reported by"] == "its log (by request); p99: tokenizer at most 4.00 ms"


def test_a_stall_in_the_middle_of_a_stream_is_shown_that_few_gaps_have(ordinary: Session) -> None:
    gaps = {"p50": 12.8, "p99": 13.6, "max": 414.0}
    streams = StreamFigures(requests=9, first_token_ms=gaps, gap_ms=gaps, output_tokens=99, output_tokens_per_s=9.0)
    found = replace(ordinary[1], service=ServiceFigures(connections=1, streams=streams))
    assert "gaps p50 12.8 ms, p99 13.6 ms, longest 414 ms" in dict(service_words(found))["streams"]


def test_the_commonest_error_is_on_the_terminal(ordinary: Session) -> None:
    failed = _failed({"HTTP 503: model \x1b[31moverloaded": 26})
    shown = printed(render_diagnosis(replace(ordinary[1], lost=(failed,)), folder=None), width=100)
    assert "error: 26 × HTTP 503: model \\x1b[31moverloaded" in shown


def test_nothing_is_promised_for_a_percentile_that_is_lost(ordinary: Session) -> None:
    found = ordinary[1]
    cause = replace(found.causes[0], named=True, whatif_ms={"p50": 1.0, "p95": 2.0, "p99": 3.0})
    known = replace(found, causes=(cause,))
    lost = replace(known, latency_ms={**found.latency_ms, "p99": AtLeast(50.0)}, latency_ms_ok=found.latency_ms)
    assert [advice.predicted for advice in cause_advice(known)] == ["3.00"]
    assert [advice.predicted for advice in cause_advice(lost)] == [""]


def test_a_request_is_quiet_only_if_its_wait_in_the_queue_is_known(ordinary: Session) -> None:
    assert "more than a quiet request, which nothing delays (" in excess_words(ordinary[1])
    log = replace(ordinary[1], source=Source(kind="requests", path="access.log"))
    assert "queue" in log.stages_ms and "which nothing delays" in excess_words(log)
    unknown = excess_words(replace(log, stages_ms={}))
    assert "more than a typical request (median) (" not in unknown and "a typical request (median, " in unknown


def test_only_what_latfix_runs_is_said_to_have_no_fix(ordinary: Session) -> None:
    found = replace(ordinary[1], causes=tuple(replace(each, fixes=()) for each in ordinary[1].causes))
    behind = replace(found, source=Source(kind="http", path="http://h"))
    for diagnosis, said in ((found, True), (behind, False)):
        assert [each.unfixed for each in cause_advice(diagnosis)] == [said] * 2
        shown = printed(render_diagnosis(diagnosis, folder=None, verbose=True))
        assert ("latfix has no fix for it" in " ".join(shown.split())) == said


def test_long_facts_on_a_recording_go_on_below_themselves(ordinary: Session) -> None:
    source = Source(
        kind="requests", path="log", read={"columns": ", ".join(f"role{k} = column{k}" for k in range(20))}
    )
    shown = printed(render_diagnosis(replace(ordinary[1], source=source), folder=None, verbose=True))
    lines = shown[shown.index("\nread ") :].split("\n")[1:]
    end = next(k for k, line in enumerate(lines) if "column19" in line)
    assert end and all(line.startswith(" " * 12 + "") for line in lines[1 : end + 1])
