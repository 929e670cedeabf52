"""The page of a run, and the sections that it shares with other pages."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from latfix.arrays import Floats
from latfix.formatting import (
    LATENCY_KEYS,
    LOST,
    NONE,
    count,
    counted,
    finite,
    interval,
    key_label,
    latency_words,
    milliseconds,
    rate,
    share,
    significant,
    tail_words,
    uncertain_bounds,
    visible,
)
from latfix.reports.answer import diagnosis_answer
from latfix.reports.charts import run_charts
from latfix.reports.charts.chart_data import (
    arrival_rate,
    batch_sizes,
    event_spans,
    in_flight,
    machine_series,
    percentile_curve,
    queue_depth,
    scatter,
    stage_profile,
    windows,
)
from latfix.reports.charts.flame_graph import flame_graphs
from latfix.reports.diagnosis_rows import (
    ABOUT_ZERO,
    CauseRow,
    active_causes,
    cause_advice,
    cause_rows,
    cause_total,
    closing_advice,
    cost_words,
    excess_words,
    lag_words,
    largest_causes,
    line_rows,
    main_causes,
    remaining_ms,
    service_words,
    small_causes_words,
    unexplained_words,
    weight_words,
)
from latfix.reports.html.page_file import write_page
from latfix.reports.html.point_data import points_over_time
from latfix.reports.next_commands import Words, optimize_command, workload_argument
from latfix.reports.request_rows import (
    balance_words,
    described_rows,
    header_facts,
    holder_rows,
    ledger_rows,
    stage_lines,
    wait_words,
)
from latfix.reports.vocabulary import CLASS_DEFINITIONS, DEFINITIONS, LINES_WORDS
from latfix.results.diagnosis import Activity, Diagnosis, Ledger, Window
from latfix.results.request_explanation import StageTime, Story
from latfix.run_record.run_record import RunRecord
from latfix.stages import STAGES, stage_label, stage_number
from latfix.statistics.percentiles import percentile_key

if TYPE_CHECKING:
    from markupsafe import Markup

Card = tuple[str, str, str]

TITLES = {
    "causes": "Where the tail comes from",
    "remaining": "Where the tail comes from",
    "advice": "What to do",
    "latency": "Latency",
    "windows": "Over time",
    "stages": "Stages",
    "workers": "Workers",
    "lines": "Slow lines of code",
    "slowest": "Slowest requests",
    "units": "The slowest",
    "read": "What was read",
    "machine": "Machine",
    "traffic": "Traffic",
    "change": "Before and after",
    "gates": "Gates",
    "ablation": "Effect of each fix",
    "steps": "What was tried",
    "arms": "Latency",
    "plan": "Plan",
    "settings": "Settings",
    "ideas": "Ideas, side by side",
    "loads": "Load by load",
    "front": "Accuracy, latency and throughput",
    "theory": "Queueing models",
    "method": "How it was measured",
    "definitions": "What the figures mean",
}
#: Facts about the origin of a run in the head of a page.
_ORIGIN = ("host", "branch", "commit", "command")
_CAUSES = 14
_WINDOW_CAUSES = 5
_LONGEST_NAME = 32
#: Most rows of ``run.json`` on a page, and the depth to which its tables are expanded.
_MOST_ROWS, _DEEPEST = 150, 4


def write_run_report(path: Path, record: RunRecord, diagnosis: Diagnosis, *, stories: Sequence[Story] = ()) -> None:
    """The page of one run.

    :param stories: of the slowest requests.
    :raises InputError: the file cannot be written.
    """
    advice, over_time = cause_advice(diagnosis), run_over_time(record, diagnosis)
    weighed = any(map(weight_words, diagnosis.workers))
    absent = {name for name, shown in over_time.items() if not shown}
    absent |= set() if diagnosis.workers else {"workers"}
    flames = list(flame_graphs(diagnosis.stacks, record.meta.workload_folder).items())
    absent |= set() if diagnosis.lines or flames else {"lines"}
    anchors = ("causes", "advice", "latency", "windows", "stages", "workers", "lines", "slowest", "traffic")
    fixable = any(entry.fixes for entry in advice)
    charts = latency_charts("latency", [("this run", record, "after", diagnosis.ledger)])
    workload = without_path(workload_argument(record.meta))
    write_page(
        path,
        "run.html",
        kind="latfix diagnosis",
        heading=diagnosis.workload,
        facts=facts_of(diagnosis.device, record),
        contents=contents_of(anchor for anchor in (*anchors, "machine", "method") if anchor not in absent),
        diagnosis=diagnosis,
        answer=diagnosis_answer(diagnosis, workload=workload),
        notes=_run_notes(record, diagnosis),
        cards=_run_cards(diagnosis),
        advice=advice,
        closing=closing_advice(diagnosis),
        command=optimize_command(workload) if fixable else "",
        latency_rows=latency_rows(diagnosis),
        latency_charts=charts,
        points=None if charts is None else charts["points"],
        **over_time,
        stage_rows=[
            [stage, *(significant(diagnosis.stages_ms.get(stage, {}).get(key)) for key in _STAGE_FIGURES)]
            for stage in (STAGES if set(diagnosis.stages_ms) <= set(STAGES) else diagnosis.stages_ms)
        ],
        weighed=weighed,
        workers=[
            [
                str(row.worker),
                visible(row.device, limit=24),
                count(row.batches),
                count(row.requests),
                share(row.busy_share),
                significant(row.compute_p50_ms),
                significant(row.compute_p99_ms),
                share(row.tail_share),
                *([weight_words(row) or NONE, significant(row.slow_s) if row.slow_s else NONE] if weighed else []),
            ]
            for row in diagnosis.workers
        ],
        lines=[[visible(cell, limit=300) for cell in row] for row in line_rows(diagnosis)],
        lines_words=LINES_WORDS,
        flames=flames,
        slowest=slow_requests(record, diagnosis.ledger, stories),
        method=_run_method(record, diagnosis),
        details=machine_details(record, "Machine, versions and settings"),
        definitions=(*DEFINITIONS, *CLASS_DEFINITIONS),
        tail=tail_values(diagnosis),
    )


def latency_rows(diagnosis: Diagnosis) -> list[list[str]]:
    """Latencies with their intervals."""
    return [
        [key_label(key), significant(diagnosis.latency_ms.get(key)), interval(diagnosis.latency_ci95_ms.get(key))]
        for key in LATENCY_KEYS
    ]


_STAGE_FIGURES = ("mean", "p50", "p99", "reference")


def without_path(workload: str) -> str:
    """The workload and its options as a user types them, without folders of the machine."""
    return Words(_by_name(workload)) if isinstance(workload, Words) else _last_of(workload)


def story_values(story: Story) -> dict[str, Any]:
    """Variables of the template of a story."""
    scale = max(story.latency_ns, 1)
    known = story.reference_ns is not None
    return {
        "story": story,
        "facts": list(header_facts(story)),
        "stages": [(stage, _strip_part(stage, scale), stage_lines(stage)) for stage in story.stages],
        "waits": [(wait, wait_words(wait), holder_rows(wait)) for wait in story.waits if wait.holders],
        "ledger": ledger_rows(story) if known else [],
        "balance": balance_words(story) if known else "",
    }


def _strip_part(stage: StageTime, scale: int) -> tuple[float, float, int]:
    """Start and width of a stage in percent of the request's latency, and its number."""
    left = min(max(stage.at_ns / scale, 0.0), 1.0) * 100
    width = max(min(max(stage.duration_ns / scale, 0.0) * 100, 100 - left), 0.3)
    return left, width, stage_number(stage.stage)


def contents_of(anchors: Iterable[str]) -> dict[str, str]:
    """Titles of a page's sections by anchor, the definitions last."""
    return {anchor: TITLES[anchor] for anchor in (*anchors, "definitions")}


def last_round(rounds: int) -> str:
    """Marks what a page of several rounds shows of the last one only."""
    return " of the last round" if rounds > 1 else ""


def facts_of(device: str, record: RunRecord | None, *, rounds: int = 1) -> str:
    parts = [device]
    if record is not None:
        parts.append(record.meta.started)
        parts.append(f"{counted(sum(record.counts().values()), 'request')}{last_round(rounds)}")
        parts.append("partial run" if record.partial else "")
        parts += origin_words(record.meta.origin)
    return " · ".join(filter(None, parts))


def origin_words(origin: Mapping[str, str]) -> list[str]:
    """When, where and by which command a result was made; folders of the machine are left out of the command."""
    known = {**origin, "command": _by_name(origin.get("command", ""))}
    return [origin.get("started", ""), *(f"{name} {known[name]}" for name in _ORIGIN if known.get(name))]


def _by_name(command: str) -> str:
    """A command in which absolute paths are only names."""
    try:
        words = shlex.split(command)
    except ValueError:  # a long command is recorded in part
        words = command.split()
    return shlex.join(_last_of(word) for word in words)


def _last_of(word: str) -> str:
    option, equals, path = word.rpartition("=") if word.startswith("-") else ("", "", word)
    return f"{option}{equals}{PurePosixPath(path).name or path}" if path.startswith("/") else word


def _run_notes(record: RunRecord, diagnosis: Diagnosis) -> Sequence[str]:
    if record.partial and not any("partial" in note.lower() for note in diagnosis.notes):
        return (*diagnosis.notes, "Partial run: it did not reach its end; figures cover the recorded part.")
    return diagnosis.notes


def latency_cards(diagnosis: Diagnosis) -> list[Card]:
    """The median, the objective's percentile, the maximum and the excess."""
    bounds = diagnosis.latency_ci95_ms
    words = latency_words(diagnosis.latency_ms)  # of usual percentiles: the objective's may be another
    cards = [
        (
            key_label(key),
            words[key] + ("" if words[key] in (NONE, LOST) else " ms"),
            f"95 %: {uncertain_bounds(bounds[key])}" if key in bounds and key != "max" else "",
        )
        for key in dict.fromkeys(["p50", percentile_key(diagnosis.percentile), "max"])
        if key in words
    ]
    if finite(diagnosis.excess_ms) is None:
        return cards
    above = f"above {milliseconds(diagnosis.reference_ms)}"
    return [*cards, ("excess of the tail", milliseconds(diagnosis.excess_ms), above)]


def _run_cards(diagnosis: Diagnosis) -> list[Card]:
    failed = {name: number for name, number in diagnosis.requests.items() if name != "ok" and number}
    counts = ", ".join(f"{count(number)} {name}" for name, number in failed.items())
    return [
        *latency_cards(diagnosis),
        ("throughput", rate(diagnosis.throughput_rps), f"{count(diagnosis.requests.get('ok', 0))} ok"),
        ("not ok", count(sum(failed.values())), counts),
    ]


def tail_values(diagnosis: Diagnosis, anchor: str = "causes") -> dict[str, Any]:
    """Variables of the section on the tail's causes.

    :param anchor: of the section.
    """
    every = cause_rows(diagnosis, limit=_CAUSES)
    words, rest, small = excess_words(diagnosis), remaining_ms(diagnosis), small_causes_words(diagnosis)
    rows = main_causes(diagnosis) if finite(diagnosis.excess_ms) and diagnosis.excess_ms > 0 else every
    label = "overlap of the above" if rest < 0 else "all others"
    others = CauseRow(cause="", label=label, tail_ms=rest, own_ms=rest, propagated_ms=0.0, share=None)
    queued, single = diagnosis.unit == "request", diagnosis.is_single
    reference = 0.0 if single else finite(diagnosis.reference_ms) or 0.0
    chart = run_charts.cause_waterfall(
        f"{anchor}-chart",
        [*rows, others] if small else rows,
        reference,
        diagnosis.unit,
        of=tail_words(diagnosis.percentile),
    )
    overlap = " The causes claim more than this time, because they overlap." if small and rest < 0 else ""
    total, whole = cause_total(every, diagnosis)
    return {
        "anchor": anchor,
        "words": f"{words}.{overlap}",
        "chart": chart,
        "rows": rows,
        "small": small,
        "rest": ABOUT_ZERO if rest < 0 else significant(rest),
        "every": every,
        "total": total,
        "whole": whole,
        "queued": queued,
        "single": single,
        "unit": diagnosis.unit,
    }


def slow_requests(record: RunRecord, ledger: Ledger | None, stories: Sequence[Story]) -> dict[str, Any]:
    """Variables of the section on the slowest requests.

    :param ledger: of the record, for the causes of each request; ``None`` if they are unknown.
    """
    told = {story.index: f"story-{k}" for k, story in enumerate(stories)}
    return {
        "rows": [(row, told.get(row.index, "")) for row in described_rows(record, ledger, record.slowest())],
        "known": ledger is not None,
        "stories": [(f"story-{k}", story_values(story)) for k, story in enumerate(stories)],
    }


def _drawn_words(drawn: int, total: int) -> str:
    if drawn >= total:
        return "The only request is drawn." if total == 1 else f"All {count(total)} requests are drawn."
    return f"{count(drawn)} of {count(total)} requests are drawn: the slowest, and an even sample of the others."


def latency_charts(
    name: str, arms: Iterable[tuple[str, RunRecord | None, str, Ledger | None]]
) -> dict[str, Any] | None:
    """Latency over time, percentile curves and stages, of a run or of two arms; ``None`` if no request ended ok.

    :param name: prefix of the charts' ids; ``latency`` for a run, whose charts have no labels.
    :param arms: label, record, role in the palette, and ledger, if known, of each.
    """
    known = [
        (label, record, role, ledger)
        for label, record, role, ledger in arms
        if record is not None and len(record.latencies_ns())
    ]
    if not known:
        return None
    single = name == "latency"
    panels = [
        run_charts.Arrivals(label=label, role=role, points=scatter(record), windows=windows(record))
        for label, record, role, _ in known
    ]
    titles = ["" if single else label for label, *_ in known]
    drawn = [_drawn_words(len(panel.points.arrival_s), panel.points.total) for panel in panels]
    return {
        "points": points_over_time([(panel, arm[1], arm[3]) for panel, arm in zip(panels, known, strict=True)]),
        "curve": run_charts.percentile_curves(
            f"{name}-curve", [(label, role, percentile_curve(record)) for label, record, role, _ in known]
        ),
        "time": run_charts.latency_over_time(
            f"{name}-time", [replace(panel, label=title) for panel, title in zip(panels, titles, strict=True)]
        ),
        "stages": _stages_chart(
            "stages-chart" if single else "arms-stages",
            [(title, arm[1]) for title, arm in zip(titles, known, strict=True)],
        ),
        "several": len(known) > 1,
        "drawn": " ".join(
            f"{title.capitalize()}: {words}" if title else words for title, words in zip(titles, drawn, strict=True)
        ),
    }


def replay_evidence(
    arms: Sequence[tuple[str, RunRecord | None, str]], last: Diagnosis | None, stories: Sequence[Story]
) -> dict[str, Any]:
    """Variables of the sections on one replay or two; ``None`` for what is unknown.

    :param arms: label, record and role in the palette of each.
    :param last: the diagnosis of the last record; with ``stories`` of its slowest requests.
    """
    place = max((k for k, (_, record, _) in enumerate(arms) if record is not None), default=0)
    shown, ledger = arms[place][1], None if last is None else last.ledger
    charts = latency_charts("arms", [(*arm, ledger if k == place else None) for k, arm in enumerate(arms)])
    return {
        "arms": charts,
        "points": None if charts is None else charts["points"],
        "remaining": None if last is None or arms[-1][1] is None else tail_values(last, "remaining"),
        "slowest": None if shown is None else slow_requests(shown, ledger, stories),
        **({} if last is None or shown is None else run_over_time(shown, last)),
    }


def _stages_chart(name: str, records: Sequence[tuple[str, RunRecord]]) -> Markup | None:
    """Stage bars by group of requests; bars of the same group are adjacent."""
    profiles = [(label, dict(zip(*stage_profile(record), strict=True))) for label, record in records]
    names = dict.fromkeys(group for _, profile in profiles for group in profile)
    groups: list[tuple[str, Floats]] = [
        (f"{group}, {label}" if label else group, profile[group])
        for group in names
        for label, profile in profiles
        if group in profile
    ]
    outside = any(record.meta.is_http for _, record in records)
    labels = [stage_label(stage, outside=outside) for stage in STAGES]
    return run_charts.stage_bars(name, groups, labels) if groups else None


def _traffic_chart(record: RunRecord) -> Markup | None:
    if not record.measured.any():
        return None
    return run_charts.traffic_over_time(
        "traffic-chart", arrival_rate(record), in_flight(record), queue_depth(record), batch_sizes(record)
    )


def run_over_time(record: RunRecord, diagnosis: Diagnosis) -> dict[str, Any]:
    """Variables of the sections on windows, traffic and the machine, ``None`` without any."""
    active, panels = active_causes(diagnosis), machine_series(record)
    return {
        "windows": window_values(diagnosis.windows, active, event_spans(record)) if diagnosis.windows else None,
        "traffic": _traffic_chart(record),
        "machine": run_charts.machine_over_time("machine-chart", panels) if panels else None,
    }


def window_values(
    windows: Sequence[Window],
    active: Sequence[tuple[str, Activity]],
    events: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> dict[str, Any]:
    """Variables of the section on windows.

    :param events: by kind, begin and length in seconds.
    """
    causes = largest_causes(((window.causes_ms, window.requests) for window in windows), _WINDOW_CAUSES)
    several = len(windows) > 1
    return {
        "active": active,
        "chart": run_charts.causes_over_time("windows-chart", windows, causes, active, events or {})
        if several
        else None,
        "columns": [
            *("window, s", "requests", "offered", "p50, ms", "p95, ms", "p99, ms"),
            *(f"{visible(cause, limit=_LONGEST_NAME)}, ms" for cause in causes),
        ],
        "rows": [
            [
                f"{significant(window.start_s)} to {significant(window.end_s)}",
                count(window.requests),
                rate(window.offered_rps),
                *(significant(value) for value in (window.p50_ms, window.p95_ms, window.p99_ms)),
                *(unexplained_words(cause, window.causes_ms.get(cause)) for cause in causes),
            ]
            for window in windows
        ],
    }


def _run_method(record: RunRecord, diagnosis: Diagnosis) -> list[tuple[str, str]]:
    verdict = (
        "small enough for reliable percentiles"
        if diagnosis.trustworthy
        else "too large, the percentiles of this run are unreliable"
    )
    lag, cost = lag_words(diagnosis, milliseconds), cost_words(diagnosis)
    counts = ", ".join(f"{count(number)} {name}" for name, number in record.counts().items())
    warm, lost = int((~record.measured).sum()), record.unrecorded()
    unrecorded = f"; {count(lost)} scheduled but not recorded" if lost > 0 else ""
    gap = f"{count(diagnosis.ledger.conservation_error_ns())} ns"
    return [
        *([("Replay lag", f"{lag} behind the schedule: {verdict}.")] if lag else []),
        *([("Cost of latfix", f"{cost}.")] if cost else []),
        ("Requests", f"{counts}; {counted(warm, 'warm-up request')} excluded{unrecorded}."),
        *((name.capitalize(), f"{words}.") for name, words in service_words(diagnosis)),
        ("Ledger", f"largest difference between a request's excess and the sum of its entries: {gap}."),
    ]


def machine_details(record: RunRecord, title: str) -> dict[str, Any]:
    pairs = list(_flattened(record.meta.to_json()))
    return {"title": title, "pairs": pairs[:_MOST_ROWS], "more": max(len(pairs) - _MOST_ROWS, 0)}


def _flattened(value: Mapping[str, object], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Nested values of a document as dotted keys and short texts."""
    for key, entry in value.items():
        name = f"{prefix}{key}"
        if isinstance(entry, Mapping) and entry and depth < _DEEPEST:
            yield from _flattened(entry, f"{name}.", depth + 1)
        else:
            yield name, _value_words(entry)


def _value_words(value: object) -> str:
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return visible(", ".join(visible(part, limit=80) for part in value[:30]), limit=600)
    return visible(value, limit=600)
