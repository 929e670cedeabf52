"""The page of a sweep: the answer, loads and settings, the front, and where reality departs from theory and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from latfix.formatting import NONE, count, finite, milliseconds, rate, share, significant
from latfix.reports.before_after import items, mapping
from latfix.reports.charts import sweep_charts
from latfix.reports.elements import Column, Content, Html, element, figure, joined, section, table
from latfix.reports.html.page_file import write_page
from latfix.reports.html.run_sections import cards
from latfix.reports.sweep_rows import MODEL_WORDS, STATUS_SEVERITY, PointRow, SettingRow, SweepRows, read_sweep

#: Settings whose theory is drawn.
_DRAWN = 6

_TITLES = {
    "settings": "Settings",
    "loads": "Load by load",
    "front": "Throughput against latency",
    "theory": "Theory and reality",
    "method": "How it was measured",
    "definitions": "What the figures mean",
}
_DEFINITIONS: tuple[tuple[str, str], ...] = (
    (
        "Load",
        "A multiple of the recorded rate. The same requests in the same order are replayed at every load; only time "
        "is stretched, so that bursts stay bursts. Where they would be over in a moment, they come several times. "
        "They are sent when the schedule says so, whether or not earlier ones have come back.",
    ),
    (
        "Largest load",
        "The interval runs from the largest load that surely meets the objective to the smallest that surely misses "
        "it (95 %). Lost requests (errors, timeouts, shed) count as slower than any. It is found where these are "
        "within a factor of 1.25, otherwise undecided.",
    ),
    ("Knee", ""),
    (
        "Saturated",
        "The backlog grew for good: its minimum rose in the second half of the replay, and a tenth of all "
        "requests are inside at the last arrival. Such a load does not meet the objective, however short its replay. "
        "Most are ended early; the percentile is then a lower bound.",
    ),
    ("Wait", "Before prepare and in the queue, until the request's batch is closed."),
    (
        "M/M/1, M/G/1, Kingman",
        "From the service as measured at low load; with more than one worker their extensions (Erlang, Lee and "
        "Longton, Allen and Cunneen), with batches a chain with service by batch size. Percentiles beside M/M/1's "
        "are an approximation: exponential waits with the model's own mean.",
    ),
    (
        "Queue replay",
        "latfix's own: the runner's policy replayed request by request at this load with the service times "
        "measured at low load; with own service, with those measured at this very load, so that what it misses is "
        "not the service's.",
    ),
)


def write_sweep_report(path: Path, document: Mapping[str, Any]) -> None:
    """The page of ``sweep.json``.

    :raises InputError: the file cannot be written.
    """
    rows = read_sweep(document)
    main: list[Content] = [
        element("p", rows.sentence(), class_=f"verdict {rows.severity()}", id="verdict"),
        _notes(rows),
        _cards(document, rows),
    ]
    sections = {"settings": _settings(document, rows), "loads": _loads(rows)}
    if len(rows.settings) > 1 and rows.front:
        sections["front"] = _front(rows)
    if any(_has_theory(setting) for setting in rows.settings):
        sections["theory"] = _theory(rows)
    sections["method"] = _method(document)
    sections["definitions"] = _definitions(document)
    links = [element("a", _TITLES[anchor], href=f"#{anchor}") for anchor in sections]
    main.append(element("nav", *links, aria_label="Sections"))
    main += sections.values()
    device, state = str(document.get("device", "")), str(document.get("state", ""))
    runs = sum(point.repeats for setting in rows.settings for point in setting.points)
    facts = [device, f"{count(runs)} replays", *([state] if state != "complete" else [])]
    write_page(
        path,
        kind="latfix sweep",
        heading=str(document.get("workload", "")),
        facts=" · ".join(fact for fact in facts if fact),
        main=main,
    )


def _notes(rows: SweepRows) -> Html:
    lines = [element("li", note) for note in rows.notes]
    return element("ul", *lines, class_="notes", aria_label="Warnings") if lines else Html("")


def _cards(document: Mapping[str, Any], rows: SweepRows) -> Html:
    best = rows.best_setting()
    entries: list[tuple[str, str, str]] = []
    if rows.judged:
        words = best.largest_words() if best is not None else "undecided" if rows.undecided() else "none"
        entries.append(("largest load that meets it", words, best.label if best is not None else ""))
        entries.append(("objective", f"{rows.percentile} < {milliseconds(rows.slo_ms)}", ""))
    knees = [setting for setting in rows.settings if setting.knee is not None]
    top = (
        best if best is not None and best.knee is not None else max(knees, key=lambda s: s.knee or 0.0, default=None)
    )
    entries.append(("knee", top.knee_words() if top is not None else NONE, top.label if top is not None else ""))
    entries.append(("recorded", rate(rows.recorded), _burst_words(document)))
    gate = mapping(document.get("gate"))
    if gate:
        passed = gate.get("passed")
        words = "cannot tell" if not isinstance(passed, bool) else "passed" if passed else "failed"
        entries.append((f"at least {rate(gate.get('at_least_rps'))}", words, str(gate.get("reason", ""))))
    return cards(entries, class_="cards wide")


def _burst_words(document: Mapping[str, Any]) -> str:
    index = finite(mapping(document.get("traffic")).get("dispersion"))
    return "" if index is None else f"index of dispersion {significant(index)}; independent arrivals have 1"


def _settings(document: Mapping[str, Any], rows: SweepRows) -> Html:
    columns = [Column(title="setting", numeric=False)]
    if rows.judged:
        columns += [Column(title="largest load", numeric=False), Column(title="", numeric=False)]
    columns += [Column(title="knee", numeric=False), Column(title="most served"), Column(title="full batches serve")]
    body = [_setting_cells(setting, rows) for setting in rows.settings]
    parts: list[Content] = [table("Each combination of settings and its answers", columns, body)]
    if rows.judged:
        why = [f"{s.label}: {s.reason}." for s in rows.settings if s.reason]
        parts.append(element("ul", *(element("li", line) for line in why)))
    skipped = [mapping(entry) for entry in items(document.get("skipped"))]
    if skipped:
        labels = {setting.number: setting.label for setting in rows.settings}
        lines = [
            element(
                "li",
                f"{labels.get(int(finite(entry.get('setting')) or 0), '')}, load {significant(entry.get('load'))}: "
                f"{entry.get('reason', '')}",
            )
            for entry in skipped
        ]
        parts.append(element("details", element("summary", f"{len(skipped)} not replayed"), element("ul", *lines)))
    return section("settings", _TITLES["settings"], *parts)


def _setting_cells(setting: SettingRow, rows: SweepRows) -> list[Content]:
    cells: list[Content] = [element("code", setting.label)]
    if rows.judged:
        severity = STATUS_SEVERITY.get(setting.status, "warn")
        tag = element("span", setting.status, class_=f"tag {severity}") if setting.status else ""
        cells += [f"failed: {setting.failure}" if setting.failure else setting.largest_words(), tag]
    return [*cells, setting.knee_words(), rate(setting.most), rate(setting.capacity)]


def _loads(rows: SweepRows) -> Html:
    parts: list[Content] = [
        figure(
            sweep_charts.latency_over_load("sweep-latency", rows),
            "Bars are 95 % intervals, a triangle an open end. Hollow: the backlog grew for good. A cross: the knee.",
        ),
        figure(
            sweep_charts.throughput_over_load("sweep-served", rows),
            "What is served falls behind what is offered where the workers are busy all the time.",
        ),
    ]
    columns = [
        Column(title="load", numeric=False),
        Column(title="", numeric=False),
        Column(title="offered/s"),
        Column(title="served/s"),
        Column(title="busy"),
        Column(title="batch"),
        Column(title="p50, ms"),
        Column(title=f"{rows.percentile}, ms"),
        Column(title="95 %"),
        Column(title="replays"),
        Column(title="lost"),
    ]
    for setting in rows.settings:
        if setting.points:
            body = [_load_cells(point, rows) for point in setting.points]
            parts.append(table(f"Loads, {setting.label}", columns, body))
    return section("loads", _TITLES["loads"], *parts)


def _load_cells(point: PointRow, rows: SweepRows) -> list[Content]:
    words, severity = point.state(rows.judged)
    more = [] if point.enough else [element("span", " few requests", class_="soft")]
    return [
        significant(point.load),
        joined([element("span", words, class_=f"tag {severity}") if words else "", *more]),
        significant(point.offered),
        significant(point.achieved),
        share(point.workers),
        significant(point.batch_size),
        significant(point.p50_ms),
        point.percentile_words(),
        point.interval_words(),
        count(point.repeats),
        count(point.lost),
    ]


def _front(rows: SweepRows) -> Html:
    labels = {setting.number: setting.label for setting in rows.settings}
    columns = [
        Column(title="setting", numeric=False),
        Column(title="load"),
        Column(title="served"),
        Column(title=f"{rows.percentile}, ms"),
        Column(title="", numeric=False),
    ]
    body: list[list[Content]] = [
        [
            element("code", labels.get(number, "")),
            significant(load),
            rate(served),
            significant(latency),
            "" if certain else element("span", "others may be as good", class_="soft"),
        ]
        for number, load, served, latency, certain in rows.front
    ]
    return section(
        "front",
        _TITLES["front"],
        figure(
            sweep_charts.front("sweep-front", rows),
            "No other point serves as much with as low a percentile as one on the line. Saturated ones are left out.",
        ),
        table("Points on the front", columns, body, class_="narrow"),
    )


def _has_theory(setting: SettingRow) -> bool:
    return any(value is not None for point in setting.points for value in point.waits_ms.values())


def _theory(rows: SweepRows) -> Html:
    parts: list[Content] = [_errors(rows)]
    drawn = [setting for setting in rows.settings if _has_theory(setting)]
    for setting in drawn[:_DRAWN]:
        parts.append(
            figure(
                sweep_charts.theory(f"sweep-theory-{setting.number}", setting, rows),
                "A model's line ends where it says that the service cannot keep up.",
            )
        )
        parts.append(_reasons(setting))
    if len(drawn) > _DRAWN:
        parts.append(element("p", f"{len(drawn) - _DRAWN} more settings are in sweep.json.", class_="soft"))
    return section("theory", _TITLES["theory"], *parts)


def _errors(rows: SweepRows) -> Html:
    columns = [
        Column(title="model", numeric=False),
        Column(title="mean wait off by"),
        Column(title=f"{rows.percentile} off by"),
        Column(title="loads"),
        Column(title="of them silent"),
    ]
    body: list[Sequence[Content]] = []
    for name, words in MODEL_WORDS.items():
        if name not in rows.errors:
            continue
        wait, latency, loads, silent = rows.errors[name]
        body.append([words, _factor(wait), _factor(latency), count(loads), count(silent)])
    return table(
        "Median factor between model and measurement, at loads it was not fitted to", columns, body, class_="narrow"
    )


def _factor(value: float | None) -> str:
    return NONE if value is None else f"×{significant(value)}"


def _reasons(setting: SettingRow) -> Html:
    """Why each load departs, the highest first."""
    lines = [
        element("li", element("strong", f"Load {significant(point.load)}: "), f"{text}.")
        for point in reversed(setting.points)
        for _, text in point.reasons
    ]
    if not lines:
        return element("p", "Nothing in the figures speaks against the models' assumptions.", class_="soft")
    summary = f"Why reality departs from the models, {setting.label}"
    return element("details", element("summary", summary), element("ul", *lines), open="open")


def _method(document: Mapping[str, Any]) -> Html:
    traffic, spread = mapping(document.get("traffic")), mapping(document.get("spread"))
    machine, versions = mapping(document.get("machine")), mapping(document.get("versions"))
    ratio, largest = finite(spread.get("run_to_run_ratio")), finite(spread.get("largest_ratio"))
    told = "no point was replayed twice; that replays differ by a tenth is assumed"
    if ratio is not None and finite(spread.get("repeats")):
        told = (
            f"beyond what their requests explain, the percentiles of two replays of one point differ by a factor of "
            f"{significant(ratio)} (one standard deviation, repeats: {count(spread.get('repeats'))}; the largest "
            f"ratio was {significant(largest)})"
        )
    pairs = [
        ("Requests a point", f"{count(traffic.get('requests_per_point'))}, or several times these at high loads"),
        ("Seconds", f"{significant(document.get('seconds'))} of {significant(document.get('budget_s'))}"),
        ("Order", f"settings in turns, loads in random order, seed {document.get('seed', 0)}"),
        ("Between replays", told),
        *_machine(machine),
        *((str(name), str(value)) for name, value in versions.items()),
    ]
    words = [cell for name, value in pairs for cell in (element("dt", name), element("dd", value))]
    return section("method", _TITLES["method"], element("dl", *words, class_="words"))


def _machine(machine: Mapping[str, Any]) -> list[tuple[str, str]]:
    known = {name: value for name, value in machine.items() if value is not None and name != "torch"}
    memory = finite(known.pop("memory_bytes", None))
    facts = [(str(name), str(value)) for name, value in known.items()]
    return facts if memory is None else [*facts, ("memory", f"{significant(memory / 2**30)} GiB")]


def _definitions(document: Mapping[str, Any]) -> Html:
    rule = f"{str(document.get('knee_rule', '')).capitalize()}."
    words = [cell for name, value in _DEFINITIONS for cell in (element("dt", name), element("dd", value or rule))]
    return section("definitions", _TITLES["definitions"], element("dl", *words, class_="words"))
