"""The page of a sweep: the answer, loads and settings, the front, and where reality departs from theory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latfix.formatting import (
    NONE,
    count,
    finite,
    milliseconds,
    rate,
    ratio,
    significant,
)
from latfix.reports.charts import sweep_charts
from latfix.reports.html.page_file import write_page
from latfix.reports.html.pages import Card, contents_of
from latfix.reports.sweep_rows import SettingRow, SweepRows, mapping, read_sweep
from latfix.reports.vocabulary import (
    SWEEP_DEFINITIONS,
)

#: Settings whose theory is drawn.
_DRAWN = 6


def write_sweep_report(path: Path, document: Mapping[str, Any]) -> None:
    """The page of ``sweep.json``.

    :raises InputError: the file cannot be written.
    """
    rows = read_sweep(document)
    drawn = [setting for setting in rows.settings if setting.has_theory]
    front = len(rows.settings) > 1 and bool(rows.front)
    state = str(document.get("state", ""))
    runs = sum(point.repeats for setting in rows.settings for point in setting.points)
    facts = [str(document.get("device", "")), f"{count(runs)} replays", "" if state == "complete" else state]
    anchors = ("settings", "loads", *(["front"] if front else []), *(["theory"] if drawn else []), "method")
    knee_rule = f"{str(document.get('knee_rule', '')).capitalize()}."
    write_page(
        path,
        "sweep.html",
        kind="latfix sweep",
        heading=str(document.get("workload", "")),
        facts=" · ".join(filter(None, facts)),
        contents=contents_of(anchors),
        rows=rows,
        cards=_sweep_cards(rows, finite(mapping(document.get("traffic")).get("dispersion"))),
        charts={
            "latency": sweep_charts.latency_over_load("sweep-latency", rows),
            "served": sweep_charts.throughput_over_load("sweep-served", rows),
            "front": sweep_charts.front("sweep-front", rows) if front else "",
        },
        theory=[
            (setting, sweep_charts.theory(f"sweep-theory-{setting.number}", setting, rows))
            for setting in drawn[:_DRAWN]
        ],
        undrawn=len(drawn[_DRAWN:]),
        model_errors=[
            [each.model, ratio(each.wait, "×"), ratio(each.percentile, "×"), count(each.loads), count(each.silent)]
            for each in rows.errors.values()
        ],
        method=_sweep_method(document),
        definitions=[(name, words or knee_rule) for name, words in SWEEP_DEFINITIONS],
    )


def _sweep_cards(rows: SweepRows, dispersion: float | None) -> list[Card]:
    best = rows.best_setting()
    label = "" if best is None else best.label
    cards: list[Card] = []
    if rows.judged:
        words = best.largest_words() if best is not None else "undecided" if rows.undecided() else "none"
        cards.append(("largest load that meets it", words, label))
        cards.append(("objective", f"{rows.percentile} < {milliseconds(rows.slo_ms)}", ""))
    knees = [setting for setting in rows.settings if setting.knee is not None]
    top: SettingRow | None = best if best in knees else max(knees, key=lambda s: s.knee or 0.0, default=None)
    cards.append(("knee", NONE, "") if top is None else ("knee", top.knee_words(), top.label))
    burst = f"index of dispersion {significant(dispersion)}; independent arrivals have 1"
    cards.append(("recorded", rate(rows.recorded), "" if dispersion is None else burst))
    if rows.gate is not None:
        cards.append((rows.gate.gate, rows.gate.words, rows.gate.reason))
    return cards


def _sweep_method(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    traffic, spread = mapping(document.get("traffic")), mapping(document.get("spread"))
    words = "no point was replayed twice; that replays differ by a tenth is assumed"
    if finite(spread.get("run_to_run_ratio")) is not None and finite(spread.get("repeats")):
        words = (
            "beyond what their requests explain, the percentiles of two replays of one point differ by a factor of "
            f"{significant(spread.get('run_to_run_ratio'))} (one standard deviation, repeats: "
            f"{count(spread.get('repeats'))}; the largest ratio was {significant(spread.get('largest_ratio'))})"
        )
    machine = {name: value for name, value in mapping(document.get("machine")).items() if value is not None}
    machine.pop("torch", None)
    memory = finite(machine.pop("memory_bytes", None))
    return [
        ("Requests a point", f"{count(traffic.get('requests_per_point'))}, or several times these at high loads"),
        ("Seconds", f"{significant(document.get('seconds'))} of {significant(document.get('budget_s'))}"),
        ("Order", f"settings in turns, loads in random order, seed {document.get('seed', 0)}"),
        ("Between replays", words),
        *((str(name), str(value)) for name, value in machine.items()),
        *([] if memory is None else [("memory", f"{significant(memory / 2**30)} GiB")]),
        *((str(name), str(value)) for name, value in mapping(document.get("versions")).items()),
    ]
