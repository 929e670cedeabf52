"""The sections of pages about a change: before and after, what each fix did, gates, both arms drawn together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from latfix.formatting import (
    LATENCY_KEYS,
    count,
    finite,
    interval,
    key_label,
    milliseconds,
    rate,
    ratio,
    significant,
)
from latfix.reports.before_after import STATUSES, Arm, Change, Ratio, items, mapping, read_ratio
from latfix.reports.charts import run_charts as charts
from latfix.reports.charts.chart_data import Floats, percentile_curve, scatter, stage_profile, windows
from latfix.reports.elements import Column, Content, Html, element, figure, joined, section, table
from latfix.reports.html.run_sections import cards, drawn_words
from latfix.reports.vocabulary import STEP_STATUS
from latfix.run_record.run_record import RunRecord

_STATUS_ROLE = {"good": "after", "bad": "bad", "warn": "queue", "calm": "muted"}


def change_cards(change: Change) -> Html:
    """Key figures of both arms."""
    entries = []
    for key in ("p99", "p50", "mean"):
        before, after = change.before.latency_ms.get(key), change.after.latency_ms.get(key)
        entries.append(
            (
                key_label(key),
                f"{significant(before)} → {milliseconds(after)}",
                change.ratio(key).words("×"),
            )
        )
    before_rate, after_rate = change.before.throughput_rps, change.after.throughput_rps
    entries.append(("throughput", rate(after_rate), f"before {rate(before_rate)}"))
    entries.append(("not ok", count(_failed(change.after)), f"before {count(_failed(change.before))}"))
    if change.after.accuracy is not None or change.before.accuracy is not None:
        limit = "" if change.accuracy_limit is None else f", limit {significant(change.accuracy_limit)}"
        entries.append(
            ("accuracy", significant(change.after.accuracy), f"before {significant(change.before.accuracy)}{limit}")
        )
    return cards(entries, class_="cards wide")


def _failed(arm: Arm) -> int:
    return sum(arm.requests.get(name, 0) for name in STATUSES if name != "ok")


def change_section(change: Change) -> Html:
    """Every figure of both arms with its ratio."""
    columns = [
        Column(title="figure", numeric=False),
        Column(title=change.before.label),
        Column(title=change.after.label),
        Column(title="ratio"),
        Column(title="95 % interval"),
    ]
    before, after = change.before, change.after
    rows: list[Sequence[Content]] = []
    for key in LATENCY_KEYS:
        step = change.ratio(key)
        rows.append(
            [
                f"{key_label(key)}, ms",
                significant(before.latency_ms.get(key)),
                significant(after.latency_ms.get(key)),
                colored_ratio(step),
                interval(step.ci95),
            ]
        )
    rows.append(["throughput", rate(before.throughput_rps), rate(after.throughput_rps), "", ""])
    for name in STATUSES:
        rows.append(
            [f"requests {name}", count(before.requests.get(name, 0)), count(after.requests.get(name, 0)), "", ""]
        )
    if before.accuracy is not None or after.accuracy is not None:
        limit = "" if change.accuracy_limit is None else f"limit {significant(change.accuracy_limit)}"
        rows.append(["accuracy", significant(before.accuracy), significant(after.accuracy), "", limit])
    caption = "A ratio is colored where its interval excludes 1"
    return section(
        "change", f"{before.label.capitalize()} and {after.label}", table(caption, columns, rows, class_="narrow")
    )


def colored_ratio(step: Ratio) -> Content:
    """The ratio, colored where the data decide it."""
    text = ratio(step.value, "×")
    if step.value is None or not step.decisive:
        return text
    return element("strong", text, class_="good" if step.value < 1 else "bad")


def arms_section(change: Change, before: RunRecord | None, after: RunRecord | None) -> Html | None:
    """Both arms' latency over time, percentile curves and stages; ``None`` where there is no record to draw."""
    arms = [
        (label, role, record)
        for label, role, record in ((change.before.label, "before", before), (change.after.label, "after", after))
        if record is not None and len(record.latencies_ns())
    ]
    if not arms:
        return None
    curves = [
        charts.Curve(label=label, role=role, slower=curve[0], latency_ms=curve[1])
        for label, role, record in arms
        for curve in [percentile_curve(record)]
    ]
    panels = [
        charts.Arrivals(label=label, role=role, points=scatter(record), windows=windows(record))
        for label, role, record in arms
    ]
    drawn = " ".join(
        f"{panel.label.capitalize()}: {drawn_words(len(panel.points.arrival_s), panel.points.total)}"
        for panel in panels
    )
    groups = _stage_groups(arms)
    return section(
        "arms",
        "Both replays",
        figure(
            charts.percentile_curves("arms-curve", curves),
            "Latency by percentile. Each division to the right is rarer by the same factor.",
        ),
        figure(
            charts.latency_over_time("arms-time", panels),
            f"Latency by scheduled arrival, on one scale. {drawn}",
        ),
        figure(charts.stage_bars("arms-stages", groups), "Each bar sums to the mean latency of its group."),
    )


def _stage_groups(
    arms: Sequence[tuple[str, str, RunRecord]],
) -> list[tuple[str, Floats]]:
    """Groups of requests of each arm, the same group of both next to each other."""
    profiles = [(label, *stage_profile(record)) for label, _, record in arms]
    names = list(dict.fromkeys(name for _, group, _ in profiles for name in group))
    return [
        (f"{name}, {label}", values[group.index(name)])
        for name in names
        for label, group, values in profiles
        if name in group
    ]


def steps_section(document: Mapping[str, Any]) -> Html | None:
    """Every fix that was tried, with its reason and the proof that it took effect."""
    steps = [mapping(step) for step in items(document.get("steps"))]
    if not steps:
        return None
    parts: list[Content] = []
    forest = [
        (str(step.get("fix", "")), read_ratio(mapping(step.get("ratio")).get("p99")), _STATUS_ROLE[_status(step)[1]])
        for step in steps
    ]
    if any(step.value is not None and step.value > 0 for _, step, _ in forest):
        parts.append(
            figure(
                charts.ratio_forest("steps-chart", forest),
                "What each fix did to p99 against the best plan before it. An interval across ×1 decides nothing.",
            )
        )
    columns = [
        Column(title="fix", numeric=False),
        Column(title="status", numeric=False),
        Column(title="mean"),
        Column(title="p99"),
        Column(title="p99, ms"),
        Column(title="predicted"),
        Column(title="accuracy"),
        Column(title="why, and how it was verified", numeric=False),
    ]
    tried = [step for step in steps if step.get("status") != "skipped"]
    if tried:
        title = "Fixes in the order in which they were tried"
        parts.append(table(title, columns, [_step_cells(step) for step in tried]))
    skipped = [step for step in steps if step.get("status") == "skipped"]
    if skipped:
        short = [Column(title="fix", numeric=False), Column(title="why", numeric=False)]
        rows: list[list[Content]] = [
            [element("code", str(step.get("fix", ""))), str(step.get("reason", ""))] for step in skipped
        ]
        parts.append(table("Not tried", short, rows))
    return section("steps", "What was tried", *parts)


def _status(step: Mapping[str, Any]) -> tuple[str, str]:
    return STEP_STATUS.get(str(step.get("status")), (str(step.get("status", "")), "warn"))


def _step_cells(step: Mapping[str, Any]) -> list[Content]:
    words, severity = _status(step)
    ratios = mapping(step.get("ratio"))
    p99 = read_ratio(ratios.get("p99"))
    why: list[Content] = []
    if step.get("reason"):
        why.append(element("div", str(step["reason"])))
    if step.get("verified"):
        why.append(element("div", f"verified: {step['verified']}", class_="soft"))
    return [
        element("code", str(step.get("fix", ""))),
        element("span", words, class_=f"tag {severity}"),
        colored_ratio(read_ratio(ratios.get("mean"))),
        joined([colored_ratio(p99), element("br"), element("span", interval(p99.ci95), class_="soft")])
        if p99.ci95 is not None
        else colored_ratio(p99),
        significant(step.get("p99_ms")),
        significant(step.get("predicted_p99_ms")),
        significant(step.get("accuracy")),
        element("div", *why),
    ]


def gates_section(document: Mapping[str, Any]) -> Html | None:
    """The gates that decide the exit code."""
    gates = [mapping(gate) for gate in items(document.get("gates"))]
    if not gates:
        return None
    rows: list[list[Content]] = []
    for gate in gates:
        passed = gate.get("passed")
        words, severity = "cannot tell", "warn"
        if isinstance(passed, bool):
            words, severity = ("passed", "good") if passed else ("failed", "bad")
        value = significant(gate.get("value")) if finite(gate.get("value")) is not None else ""
        rows.append(
            [element("code", str(gate.get("gate", ""))), value, element("span", words, class_=f"tag {severity}")]
        )
    columns = [Column(title="gate", numeric=False), Column(title="value"), Column(title="outcome", numeric=False)]
    return section("gates", "Gates", table("Gates and their outcome", columns, rows, class_="narrow"))
