"""What a terminal shows of a sweep: the answer, each setting's loads with a bar, the front, theory beside reality."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from latfix.formatting import NONE, rate, ratio, significant, visible
from latfix.reports.sweep_rows import ModelError, PointRow, SettingRow, SweepRows, read_sweep
from latfix.reports.terminal.widgets import (
    SEVERITY_STYLE,
    Bar,
    Portable,
    add_figures,
    gate_lines,
    heading,
    plain_table,
    report_line,
    safe,
    title_line,
    warnings,
)
from latfix.reports.vocabulary import Severity

#: Settings whose loads are listed one by one; the others are in the summary, the page and the JSON.
_LISTED = 4
#: Models as the columns of a narrow table name them.
_SHORT = {"mm1": "M/M/1", "mg1": "M/G/1", "kingman": "Kingman", "replay": "replay", "replay_own": "own"}
#: A full bar is this many times the limit; without one, the slowest unsaturated load.
_BAR_LIMITS = 2.0
#: Where the mean wait is off by this factor, a reason is told that was told of another load already.
_FAR_OFF, _MOST_TOLD = 2.0, 2


def render_sweep(document: Mapping[str, Any], *, folder: Path | None) -> RenderableType:
    """``sweep.json`` for a person.

    :param folder: where records and report are; ``None`` where nothing was kept.
    """
    rows = read_sweep(document)
    style = SEVERITY_STYLE[rows.severity()]
    workload, device = document.get("workload", ""), document.get("device", "")
    parts: list[RenderableType] = [title_line(workload, device, rows.sentence(), style, limit=1000)]
    parts += warnings(rows.notes)
    if len(rows.settings) > 1:
        parts += [heading("Settings"), _summary(rows)]
    for setting in _listed(rows):
        parts += _loads(setting, rows)
    if len(rows.settings) > 1 and rows.front:
        parts += [heading(f"Front: throughput against {rows.percentile}"), _front(rows)]
    parts += _theory(rows)
    parts += gate_lines(() if rows.gate is None else (rows.gate,), title="Gate")
    parts += _skipped(rows)
    if folder is not None:
        parts += [Text(""), report_line(folder)]
    return Portable(Group(*parts))


def _listed(rows: SweepRows) -> list[SettingRow]:
    """The settings that matter most: the best one, then those on the front, then the rest."""
    best = rows.best_setting()
    first = [best.number] if best is not None else []
    order = list(
        dict.fromkeys(
            [*first, *(point.setting for point in reversed(rows.front)), *(s.number for s in rows.settings)]
        )
    )
    by_number = {setting.number: setting for setting in rows.settings if setting.points}
    return [by_number[number] for number in order if number in by_number][:_LISTED]


def _summary(rows: SweepRows) -> RenderableType:
    table = plain_table()
    table.add_column("setting", overflow="fold", min_width=16)
    if rows.judged:
        table.add_column("largest load", min_width=10)
        table.add_column("", no_wrap=True)
    table.add_column("knee", min_width=10)
    table.add_column("served", justify="right", no_wrap=True, min_width=6)
    for setting in rows.settings:
        cells: list[RenderableType] = [safe(setting.label, limit=80)]
        if setting.failure:
            table.add_row(safe(setting.label), safe(f"failed: {setting.failure}", "red", limit=200))
            continue
        if rows.judged:
            cells += [setting.largest_words(), _status(setting)]
        table.add_row(*cells, setting.knee_words(), rate(setting.most))
    return table


def _status(setting: SettingRow) -> Text:
    return safe(setting.status, SEVERITY_STYLE[setting.severity])


def _loads(setting: SettingRow, rows: SweepRows) -> Iterator[RenderableType]:
    yield heading(f"Loads, {visible(setting.label, limit=120)}")
    full = _full_bar(setting, rows)
    table = plain_table()
    add_figures(table, "load", "offered/s", "served/s", "busy", f"{rows.percentile} ms", "95 %")
    table.add_column("", no_wrap=True)
    table.add_column(rows.percentile, min_width=4)
    for point in setting.points:
        words, severity = point.state(rows.judged)
        repeated = f" x{point.repeats}" if point.repeats > 1 else ""
        table.add_row(
            significant(point.load),
            significant(point.offered),
            significant(point.achieved),
            _percent(point.workers),
            point.percentile_words(),
            point.interval_words(),
            Text(f"{words}{repeated}", style=SEVERITY_STYLE[severity]),
            _bar(point, full, severity),
        )
    yield table
    if rows.judged:
        yield Text(f"a full bar is {significant(_BAR_LIMITS)} times the limit", style="dim")
        yield Text.assemble(
            "largest load ",
            (setting.largest_words(), "bold"),
            ": ",
            _status(setting),
            ", ",
            safe(setting.reason, limit=300),
        )
    yield Text.assemble("knee ", (setting.knee_words(), "bold"))


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f} %"


def _full_bar(setting: SettingRow, rows: SweepRows) -> float:
    if rows.slo_ms is not None:
        return _BAR_LIMITS * rows.slo_ms
    steady = [p.percentile_ms for p in setting.points if not p.saturated and p.percentile_ms is not None]
    return max(steady, default=1.0) or 1.0


def _bar(point: PointRow, full: float, severity: Severity) -> Bar:
    length = 1.0 if point.percentile_ms is None else min(point.percentile_ms / full, 1.0)
    return Bar([(length, "█", SEVERITY_STYLE[severity])])


def _front(rows: SweepRows) -> RenderableType:
    table = plain_table()
    add_figures(table, "served", f"{rows.percentile} ms")
    table.add_column("setting", overflow="fold")
    table.add_column("load", justify="right")
    table.add_column("")
    for point in rows.front:
        table.add_row(
            rate(point.served),
            significant(point.percentile_ms),
            safe(point.label, limit=80),
            significant(point.load),
            Text("" if point.certain else "maybe", style="dim"),
        )
    return table


def _theory(rows: SweepRows) -> Iterator[RenderableType]:
    setting = rows.best_setting() or next((s for s in rows.settings if s.points), None)
    if setting is None or not any(point.waits_ms.get("mm1") is not None for point in setting.points):
        return
    label = visible(setting.label, limit=120)
    yield heading(f"Theory beside it, {label}")
    yield _models("mean wait, ms", setting, rows, wait=True)
    yield Text("")
    yield _models(f"{rows.percentile}, ms", setting, rows, wait=False)
    yield Text("in brackets: the model was given what was measured at that load", style="dim")
    yield from _reasons(setting)


def _reasons(setting: SettingRow) -> Iterator[RenderableType]:
    """Why loads depart from Kingman's formula, the farthest off first; no kind of reason more than twice."""
    told: Counter[str] = Counter()
    for point in sorted(setting.points, key=lambda p: p.departure() or 0.0, reverse=True):
        off = point.departure()
        far = off is not None and math.isfinite(off) and off >= _FAR_OFF
        factor = f" (wait off by x{significant(off)})" if far else ""
        for kind, text in point.reasons:
            if told[kind] < (_MOST_TOLD if far else 1):
                told[kind] += 1
                where = f"  at load {significant(point.load)}{factor}: "
                yield Text.assemble((where, "dim"), safe(text, limit=500))


def _models(title: str, setting: SettingRow, rows: SweepRows, *, wait: bool) -> RenderableType:
    """Measured and predicted, load by load, and by what factor each model is off."""
    table = plain_table()
    table.add_column(title, no_wrap=True)
    add_figures(table, "measured", *_SHORT.values())
    for point in setting.points:
        answers = point.waits_ms if wait else point.predicted_ms
        measured = significant(point.wait_ms) if wait else point.percentile_words()
        table.add_row(f"load {significant(point.load)}", measured, *(_answer(point, answers, n) for n in _SHORT))
    off = [_off(rows.errors.get(name), wait=wait) for name in _SHORT]
    table.add_row(Text("off by", style="dim"), "", *(Text(text, style="dim") for text in off))
    return table


def _answer(point: PointRow, answers: Mapping[str, float | None], name: str) -> str:
    text = significant(answers.get(name))
    return f"[{text}]" if name in point.fitted and name != "replay_own" and text != NONE else text


def _off(error: ModelError | None, *, wait: bool) -> str:
    """``x1.20``; with ``!`` where the model is silent at some of the loads."""
    value = None if error is None else error.wait if wait else error.percentile
    if error is None or value is None:
        return NONE
    return f"{ratio(value)}{'!' if error.silent else ''}"


def _skipped(rows: SweepRows) -> Iterator[RenderableType]:
    if rows.skipped:
        kinds = Counter(reason.partition(":")[0] for _, _, reason in rows.skipped)
        words = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
        yield Text("")
        yield Text.assemble(("not replayed: ", "dim"), safe(words, "dim"))
