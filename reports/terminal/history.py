"""What a terminal shows of the history: a figure's trend for each workload and machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from latfix.formatting import count, key_label, ratio, visible
from latfix.history.trends import Change, Trend
from latfix.reports.history_rows import figure_words, kind_words, machine_words, reach_words
from latfix.reports.terminal.widgets import Portable, Sparkline, add_figures, heading, plain_table, safe


def render_history(found: Sequence[Trend], *, file: Path, workload: str | None) -> RenderableType:
    """All trends as a table; for one workload its runs as well."""
    if not found:
        return Portable(Text.assemble("No runs are recorded in ", safe(file, limit=400), "."))
    parts: list[RenderableType] = [_table(found)]
    changes = [(trend, change) for trend in found for change in trend.changes]
    if changes:
        parts += [heading("Where the level changed"), *(_change(trend, change) for trend, change in changes)]
    if workload is not None:
        for trend in found:
            parts += [heading(_title(trend)), _runs(trend)]
    parts.append(Text.assemble(("\nhistory  ", "dim"), safe(file, limit=400)))
    return Portable(Group(*parts))


def _table(found: Sequence[Trend]) -> RenderableType:
    metric = key_label(found[0].metric)
    table = plain_table()
    table.add_column("workload", overflow="fold")
    table.add_column("machine", overflow="fold")
    table.add_column("of", no_wrap=True)
    add_figures(table, "runs")
    table.add_column(metric, no_wrap=True)
    add_figures(table, "last", "median")
    table.add_column("one run more, 95 %", justify="right")
    for trend in found:
        values = trend.values
        table.add_row(
            safe(trend.series.workload, "bold", limit=60),
            safe(machine_words(trend), limit=80),
            safe(kind_words(trend), limit=60),
            count(len(trend.points)),
            Sparkline([point.value for point in trend.points], "cyan"),
            figure_words(trend.metric, values[-1] if values else None),
            figure_words(trend.metric, trend.level.value if trend.level is not None else None),
            reach_words(trend.metric, trend.level),
        )
    return table


def _change(trend: Trend, change: Change) -> Text:
    text = Text.assemble(
        safe(f"{trend.series.workload}: ", "bold", limit=80),
        f"{key_label(trend.metric)} {figure_words(trend.metric, change.before)} -> ",
        (f"{figure_words(trend.metric, change.after)}", "bold"),
        f" ({ratio(change.ratio)}) since the run of " if change.ratio is not None else " since the run of ",
        safe(change.point.row.started, limit=40),
    )
    if change.differs:
        text.append("; differs from the run before: ", "dim")
        text.append_text(safe(", ".join(change.differs), "dim", limit=300))
    return text.append_text(Text.assemble("\n  ", safe(change.point.row.folder, "dim", limit=400)))


def _title(trend: Trend) -> str:
    parts = (trend.series.workload, kind_words(trend), trend.series.device, machine_words(trend))
    return visible(", ".join(part for part in parts if part), limit=200)


def _runs(trend: Trend) -> RenderableType:
    table = plain_table()
    table.add_column("started", no_wrap=True)
    table.add_column(key_label(trend.metric), justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    table.add_column("not compared with, because", overflow="fold")
    table.add_column("folder", overflow="fold")
    began = [change.point for change in trend.changes]
    for point in trend.points:
        row = point.row
        table.add_row(
            Text.assemble(("> " if point in began else "  ", "bold yellow"), safe(row.started[:19], limit=19)),
            figure_words(trend.metric, point.value),
            safe(row.verdict, limit=60),
            safe(row.unusable, "yellow", limit=200),
            safe(row.folder, "dim", limit=300),
        )
    return table
