"""The sections of a run's page: where the tail comes from, latency, stages, slow requests, traffic, machine."""

from __future__ import annotations

import numpy as np

from latfix.cause_catalogue import UNEXPLAINED
from latfix.formatting import (
    LATENCY_KEYS,
    count,
    finite,
    interval,
    key_label,
    milliseconds,
    rate,
    sentence,
    share,
    significant,
    tail_words,
)
from latfix.reports.cause_rows import OTHERS, CauseRow, cause_rows, cause_total_ms
from latfix.reports.charts import run_charts as charts
from latfix.reports.charts.chart_data import (
    arrival_rate,
    in_flight,
    percentile_curve,
    scatter,
    stage_profile,
    windows,
)
from latfix.reports.elements import Column, Content, Html, element, figure, joined, section, table
from latfix.reports.html.slow_requests import slowest_table
from latfix.reports.vocabulary import CLASS_WORDS, cause_words
from latfix.results.diagnosis import CauseSummary, Diagnosis
from latfix.run_record.run_record import RunRecord
from latfix.stages import STAGES

_LISTED = 14


def cards(entries: list[tuple[str, str, str]], *, class_: str = "cards") -> Html:
    """The few figures that matter most: name, figure, and a line below it."""
    return element(
        "dl",
        *[
            element("div", element("dt", name), element("dd", value), element("dd", below, class_="small"))
            for name, value, below in entries
        ],
        class_=class_,
    )


def run_cards(diagnosis: Diagnosis) -> Html:
    """Key figures of one run."""
    focus = f"p{diagnosis.percentile:g}".replace(".", "_")
    keys = list(dict.fromkeys(["p50", focus, "max"]))
    entries = [
        (
            key_label(key),
            milliseconds(diagnosis.latency_ms.get(key)),
            f"95 % {interval(diagnosis.latency_ci95_ms.get(key))}" if key in diagnosis.latency_ci95_ms else "",
        )
        for key in keys
    ]
    entries.append(
        ("excess of the tail", milliseconds(diagnosis.excess_ms), f"above {milliseconds(diagnosis.reference_ms)}")
    )
    entries.append(("throughput", rate(diagnosis.throughput_rps), f"{count(diagnosis.requests.get('ok', 0))} ok"))
    failed = sum(diagnosis.requests.get(name, 0) for name in ("error", "timeout", "shed"))
    counts = ", ".join(f"{count(diagnosis.requests.get(n, 0))} {n}" for n in ("error", "timeout", "shed"))
    entries.append(("not ok", count(failed), counts))
    return cards(entries)


def causes_section(diagnosis: Diagnosis, *, prefix: str = "") -> Html:
    """The ledger of the tail: chart, table, and what each class of evidence means."""
    rows = cause_rows(diagnosis, limit=_LISTED)
    words = (
        f"The {tail_words(diagnosis.percentile)} of requests take {milliseconds(diagnosis.excess_ms)} more than a "
        f"quiet request ({milliseconds(diagnosis.reference_ms)}). These milliseconds divide among the causes below; "
        "the parts sum to the whole, and what no cause explains is shown as it is."
    )
    chart = figure(
        charts.cause_bars(f"{prefix}causes-chart", rows),
        "Own: arose in the request itself. Through the queue: arose in a request ahead of it and arrived as waiting.",
    )
    return section(
        f"{prefix}causes", "Where the tail comes from", element("p", words), chart, _cause_table(rows, diagnosis)
    )


def _cause_table(rows: list[CauseRow], diagnosis: Diagnosis) -> Html:
    by_id = {entry.cause: entry for entry in diagnosis.causes}
    columns = [
        Column(title="cause", numeric=False),
        Column(title="tail, ms"),
        Column(title="95 % interval"),
        Column(title="own"),
        Column(title="queue"),
        Column(title="share"),
        Column(title="requests"),
        Column(title="known by", numeric=False),
    ]
    body: list[list[Content]] = [_cause_cells(row, by_id.get(row.cause)) for row in rows]
    total = cause_total_ms(rows)
    whole = share(total / diagnosis.excess_ms) if (finite(diagnosis.excess_ms) or 0) > 0 else ""
    body.append(["sum = excess", element("strong", significant(total)), "", "", "", whole, "", ""])
    return table(
        "Causes by milliseconds of the tail's excess (means over tail requests)", columns, body, class_="told"
    )


def _cause_cells(row: CauseRow, entry: CauseSummary | None) -> list[Content]:
    return [
        _cause_told(row, entry),
        element("strong", significant(row.tail_ms)) if row.named else significant(row.tail_ms),
        interval(row.ci95_ms),
        significant(row.own_ms),
        significant(row.propagated_ms),
        share(row.share),
        count(entry.requests) if entry is not None else "",
        element("span", row.evidence_class, title=CLASS_WORDS.get(row.evidence_class)),
    ]


def _cause_told(row: CauseRow, entry: CauseSummary | None) -> Content:
    """The cause's id, what it means, and the sentence of evidence."""
    if row.cause == OTHERS:
        return f"{row.count} smaller causes"
    parts: list[Content] = [element("code", row.cause)]
    if cause_words(row.cause):
        parts.append(element("span", f" {cause_words(row.cause)}", class_="plain"))
    if entry is not None and entry.evidence:
        parts.append(element("div", sentence(entry.evidence), class_="soft small"))
    return joined(parts)


def advice_section(diagnosis: Diagnosis, *, command: str) -> Html:
    """What to do about the named causes, with the command to copy."""
    named = [entry for entry in diagnosis.causes if entry.named and entry.cause != UNEXPLAINED]
    parts: list[Content] = []
    if not any(diagnosis.requests.values()):
        parts.append(element("p", "No request was recorded: there is nothing to act on. Replay the traffic again."))
    elif not diagnosis.requests.get("ok"):
        parts.append(element("p", "No request ended ok: mend the errors first, then diagnose again."))
    else:
        if named:
            parts.append(element("ol", *[_advice(entry, diagnosis) for entry in named], class_="advice"))
        if diagnosis.verdict == "inconclusive":
            parts.append(element("p", "Too much of the tail is unexplained to name its cause: record a longer run."))
        elif not named:
            parts.append(element("p", "Nothing stands out: no cause clears the naming threshold."))
    if any(entry.fixes for entry in named):
        parts += [element("p", "Try the fixes and measure them:"), element("pre", element("code", command))]
    return section("advice", "What to do", *parts)


def _advice(entry: CauseSummary, diagnosis: Diagnosis) -> Html:
    key = f"p{diagnosis.percentile:g}".replace(".", "_")
    predicted = finite(entry.whatif_ms.get(key))
    parts: list[Content] = [element("strong", element("code", entry.cause))]
    if cause_words(entry.cause):
        parts.append(f": {cause_words(entry.cause)}")
    parts.append(f". {sentence(entry.evidence)}" if entry.evidence else ".")
    if predicted is not None:
        now = significant(diagnosis.latency_ms.get(key))
        parts.append(f" Without it {key_label(key)} is predicted to go {now} → {significant(predicted)} ms.")
    if entry.fixes:
        parts.append(" Fixes: ")
        for position, fix in enumerate(entry.fixes):
            parts += [", " if position else "", element("code", fix)]
        parts.append(".")
    elif predicted is not None:
        parts.append(" latfix has no fix for it.")
    return element("li", *parts)


def latency_section(record: RunRecord, diagnosis: Diagnosis) -> Html:
    """Percentiles with intervals, the percentile curve, and latency over time."""
    columns = [Column(title="figure", numeric=False), Column(title="latency, ms"), Column(title="95 % interval")]
    rows = [
        [key_label(key), significant(diagnosis.latency_ms.get(key)), interval(diagnosis.latency_ci95_ms.get(key))]
        for key in LATENCY_KEYS
    ]
    points = scatter(record)
    slower, latency = percentile_curve(record)
    arms = [charts.Arrivals(label="", role="after", points=points, windows=windows(record))]
    parts: list[Content] = [
        table("Latency of requests that ended ok, warm-up excluded", columns, rows, class_="narrow")
    ]
    if points.total:
        curve = charts.Curve(label="this run", role="after", slower=slower, latency_ms=latency)
        parts += [
            figure(
                charts.latency_over_time("latency-time", arms),
                f"Latency by scheduled arrival. {drawn_words(len(points.arrival_s), points.total)}",
            ),
            figure(
                charts.percentile_curves("latency-curve", [curve]),
                "Latency by percentile. Each division to the right is rarer by the same factor.",
            ),
        ]
    else:
        parts.append(element("p", "No request ended ok, so there is no latency to draw.", class_="soft"))
    return section("latency", "Latency", *parts)


def drawn_words(drawn: int, total: int) -> str:
    """How many of the requests a scatter shows."""
    if drawn >= total:
        return f"All {count(total)} requests are drawn."
    return f"{count(drawn)} of {count(total)} requests are drawn: the slowest, and an even sample of the others."


def stages_section(record: RunRecord, diagnosis: Diagnosis) -> Html:
    """Where time goes, for all requests, the typical ones and the slow ones."""
    names, profile = stage_profile(record)
    columns = [
        Column(title="stage", numeric=False),
        *[Column(title=f"{key}, ms") for key in ("mean", "p50", "p99", "quiet")],
    ]
    rows = []
    for stage in STAGES:
        row = diagnosis.stages_ms.get(stage, {})
        rows.append([stage, *[significant(row.get(key)) for key in ("mean", "p50", "p99", "reference")]])
    parts: list[Content] = []
    if names:
        parts.append(
            figure(
                charts.stage_bars("stages-chart", list(zip(names, profile, strict=True))),
                "Each bar sums to the mean latency of its group, so what grows from the typical to the slowest "
                "requests is where the tail arises.",
            )
        )
    parts.append(
        table(
            "Stages over requests that ended ok; percentiles of stages do not sum, means do",
            columns,
            rows,
            class_="narrow",
        )
    )
    return section("stages", "Stages", *parts)


def slow_section(record: RunRecord, diagnosis: Diagnosis) -> Html:
    """The slowest requests one by one."""
    return section("slowest", "Slowest requests", slowest_table(record, diagnosis.ledger))


def traffic_section(record: RunRecord) -> Html:
    """The replayed traffic as it arrived."""
    measured = record.measured
    if not np.any(measured):
        return section("traffic", "Traffic", element("p", "No request was recorded.", class_="soft"))
    drawing = charts.traffic_over_time("traffic-chart", arrival_rate(record), in_flight(record))
    return section(
        "traffic",
        "Traffic",
        figure(drawing, "Arrivals of the replayed schedule, and how many requests were inside the service at once."),
    )
