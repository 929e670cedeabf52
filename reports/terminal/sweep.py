"""Terminal report of a sweep: loads by setting, the Pareto front, models against measurements, and the answer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from latfix.capacity.max_load import PredictedLoad
from latfix.formatting import NONE, counted, interval, percent, rate, ratio, significant, visible
from latfix.reports.answer import sweep_answer
from latfix.reports.sweep_rows import (
    SettingRow,
    SweepRows,
    departure,
    interval_words,
    largest_words,
    meets_words,
    percentile_words,
    point_state,
    predicted_ms,
    sweep_rows,
    wait_ms,
)
from latfix.reports.terminal.widgets import (
    SEVERITY_STYLE,
    Bar,
    Cell,
    Column,
    FittedTable,
    Portable,
    answer_block,
    heading,
    safe,
    title_line,
    warnings,
)
from latfix.reports.vocabulary import Severity
from latfix.results.sweep import ModelErrors, Sweep, SweepPoint

#: Most settings whose loads are listed; the others are in the summary, the page and the JSON.
_LISTED = 4
#: Column titles of the models.
_SHORT = {"mm1": "M/M/1", "mg1": "M/G/1", "kingman": "Kingman", "replay": "replay", "replay_own": "own"}
#: A full bar is this multiple of the limit; without a limit, the slowest unsaturated load.
_BAR_LIMITS = 2.0
#: A reason is listed for one load, or for this many if the mean wait is off by this factor.
_FAR_OFF, _MOST_LISTED = 2.0, 2


def render_sweep(found: Sweep, *, folder: Path | None) -> RenderableType:
    """A sweep; the answer is last.

    :param folder: of records and report; ``None`` if nothing was kept.
    """
    rows = sweep_rows(found)
    replays = sum(len(point.runs) for point in found.points)
    parts: list[RenderableType] = [title_line(found.workload, found.device, counted(replays, "replay"), "")]
    parts += warnings(found.notes)
    if len(rows.settings) > 1:
        parts += [heading("Settings"), _summary(rows)]
    for setting in _listed(rows):
        parts += _loads(setting, rows)
    if len(rows.settings) > 1 and found.pareto:
        parts += [heading(f"Pareto front of throughput and {rows.percentile}"), _front(rows)]
    parts += _theory(rows)
    parts += _skipped(found)
    return Portable(Group(*parts, *answer_block(sweep_answer(rows), folder=folder)))


def _listed(rows: SweepRows) -> list[SettingRow]:
    """The most relevant settings: the best, then those on the front, then the others."""
    found = rows.found
    first = [found.best.setting] if found.best is not None else []
    order = [*first, *(point.setting for point in reversed(found.pareto)), *(s.id for s in found.settings)]
    by_number = {setting.found.id: setting for setting in rows.settings if setting.points}
    return [by_number[number] for number in dict.fromkeys(order) if number in by_number][:_LISTED]


def _summary(rows: SweepRows) -> FittedTable:
    columns = [Column("setting", right=False)]
    columns += [Column("largest load", right=False), Column(right=False, given_up=2)] if rows.judged else []
    columns += [Column("knee", right=False, given_up=3), Column("served", given_up=1)]
    lines: list[Sequence[Cell] | Text] = []
    for setting in rows.settings:
        found = setting.found
        if found.failure:
            failed = Text.assemble(safe(setting.label), "  ", safe(f"failed: {found.failure}", "red", limit=200))
            lines.append(failed)
            continue
        judged: list[Cell] = [largest_words(found.largest), _status(setting)] if rows.judged else []
        lines.append([safe(setting.label, limit=80), *judged, setting.knee_words(), rate(found.most_achieved_rps)])
    return FittedTable(columns, lines)


def _status(setting: SettingRow) -> Text:
    return safe(setting.status, SEVERITY_STYLE[setting.severity])


def _loads(setting: SettingRow, rows: SweepRows) -> Iterator[RenderableType]:
    yield heading(f"Loads, {visible(setting.label, limit=120)}")
    full = _full_bar(setting, rows)
    columns = [Column("load"), Column("offered/s", given_up=4), Column("served/s", given_up=3)]
    columns += [Column("busy", given_up=2), Column(f"{rows.percentile} ms"), Column("95 %", given_up=1)]
    full_bar = f"full bar: {significant(_BAR_LIMITS, 2)}x the limit" if rows.judged else rows.percentile
    columns += [Column(right=False), Column(full_bar, right=False, given_up=5)]
    lines: list[Sequence[Cell]] = []
    for each in setting.loads():
        if isinstance(each, PredictedLoad):
            lines.append(_predicted(each, full, rows))
            continue
        words, severity = point_state(each, judged=rows.judged)
        repeated = f" x{len(each.runs)}" if len(each.runs) > 1 else ""
        lines.append(
            [
                significant(each.load),
                significant(each.offered_rps),
                significant(each.achieved_rps),
                percent(each.utilization.get("workers")),
                percentile_words(each),
                interval_words(each),
                Text(f"{words}{repeated}", style=SEVERITY_STYLE[severity]),
                _bar(each, full, severity),
            ]
        )
    yield FittedTable(columns, lines)
    if rows.judged:
        yield Text.assemble(
            "largest load ",
            (largest_words(setting.found.largest), "bold"),
            ": ",
            _status(setting),
            ", ",
            safe("" if setting.found.largest is None else setting.found.largest.reason, limit=300),
        )
    yield Text.assemble("knee ", (setting.knee_words(), "bold"))


def _predicted(each: PredictedLoad, full: float, rows: SweepRows) -> list[Cell]:
    """The row of a load that was predicted, not replayed."""
    words, severity = meets_words(each.meets, judged=rows.judged)
    return [
        significant(each.load),
        significant(each.offered_rps),
        NONE,
        NONE,
        significant(each.percentile_ms),
        interval(each.ci95_ms),
        Text(f"predicted {words}".rstrip(), style="dim"),
        Bar([(min(each.percentile_ms / full, 1.0), "█", SEVERITY_STYLE[severity])]),
    ]


def _full_bar(setting: SettingRow, rows: SweepRows) -> float:
    if rows.found.objective.slo_ms is not None:
        return _BAR_LIMITS * rows.found.objective.slo_ms
    steady = (point.objective.percentile_ms or 0.0 for point in setting.points if not point.saturated)
    return max(steady, default=1.0) or 1.0


def _bar(point: SweepPoint, full: float, severity: Severity) -> Bar:
    value = point.objective.percentile_ms
    length = 1.0 if value is None else min(value / full, 1.0)
    return Bar([(length, "█", SEVERITY_STYLE[severity])])


def _front(rows: SweepRows) -> FittedTable:
    columns = [Column("setting", right=False), Column("load", given_up=2), Column("served")]
    columns += [Column(f"{rows.percentile} ms"), Column(right=False, given_up=1)]
    lines: list[Sequence[Cell]] = [
        [
            safe(rows.label(point.setting), limit=80),
            significant(point.load),
            rate(point.achieved_rps),
            significant(point.percentile_ms),
            Text("" if point.certain else "uncertain", style="dim"),
        ]
        for point in rows.found.pareto
    ]
    return FittedTable(columns, lines)


def _theory(rows: SweepRows) -> Iterator[RenderableType]:
    setting = rows.best_setting() or next((s for s in rows.settings if s.points), None)
    if setting is None or not any(wait_ms(point, "mm1") is not None for point in setting.points):
        return
    models = [rows.found.models.get(name) for name in _SHORT]
    yield heading(f"Queueing models, {visible(setting.label, limit=120)}")
    yield _models(
        "mean wait, ms",
        setting,
        measured=lambda point: significant(point.wait_ms.get("mean")),
        model=wait_ms,
        off=[_off(errors, None if errors is None else errors.wait) for errors in models],
    )
    yield Text("")
    yield _models(
        f"{rows.percentile}, ms",
        setting,
        measured=percentile_words,
        model=predicted_ms,
        off=[_off(errors, None if errors is None else errors.percentile) for errors in models],
    )
    yield Text("[in brackets]: the model was fitted at that load; !: no answer at some loads", style="dim")
    yield from _reasons(setting)


def _reasons(setting: SettingRow) -> Iterator[RenderableType]:
    """Why loads depart from Kingman's formula, the farthest off first; each kind of reason at most twice."""
    listed: Counter[str] = Counter()
    for point in sorted(setting.points, key=lambda p: departure(p) or 0.0, reverse=True):
        off = departure(point)
        far = off is not None and math.isfinite(off) and off >= _FAR_OFF
        factor = f" (wait off by x{significant(off)})" if far else ""
        for reason in point.reasons:
            if listed[reason.id] < (_MOST_LISTED if far else 1):
                listed[reason.id] += 1
                where = f"  at load {significant(point.load)}{factor}: "
                yield Text.assemble((where, "dim"), safe(reason.text, limit=500))


def _models(
    title: str,
    setting: SettingRow,
    *,
    measured: Callable[[SweepPoint], str],
    model: Callable[[SweepPoint, str], float | None],
    off: list[str],
) -> FittedTable:
    """Measured and predicted values by load, and the factor by which each model is off."""
    columns = [Column(title, right=False), Column("measured")]
    columns += [
        Column(name, given_up=given_up) for name, given_up in zip(_SHORT.values(), (4, 3, 0, 2, 1), strict=True)
    ]
    lines: list[Sequence[Cell]] = [
        [
            f"load {significant(point.load)}",
            measured(point),
            *(_answer(point, name, model(point, name)) for name in _SHORT),
        ]
        for point in setting.points
    ]
    lines.append([Text("off by", style="dim"), "", *(Text(text, style="dim") for text in off)])
    return FittedTable(columns, lines)


def _answer(point: SweepPoint, name: str, value: float | None) -> str:
    text = significant(value)
    fitted = name != "replay_own" and name in point.predictions and point.predictions[name].fitted
    return f"[{text}]" if fitted and text != NONE else text


def _off(errors: ModelErrors | None, value: float | None) -> str:
    """``x1.20``; with ``!`` if the model has no answer at some loads."""
    return f"{ratio(value)}{'!' if errors is not None and errors.silent and value is not None else ''}"


def _skipped(found: Sweep) -> Iterator[RenderableType]:
    if found.skipped:
        kinds = Counter(one.reason.partition(":")[0] for one in found.skipped)
        words = ", ".join(f"{number} {kind}" for kind, number in kinds.items())
        yield Text("")
        yield Text.assemble(("not replayed: ", "dim"), safe(words, "dim"))
