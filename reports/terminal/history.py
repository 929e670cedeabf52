"""Terminal report of the history: the trend of a figure for each workload and machine."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from latfix.formatting import key_label, ratio, visible
from latfix.reports.history_rows import LEVEL_TITLES, figure_words, kind_words, level_figures, machine_words
from latfix.reports.terminal.widgets import Cell, Column, FittedTable, Portable, Sparkline, heading, safe
from latfix.results.history import HistoryTrend, HistoryTrends, LevelChange


def render_history(found: HistoryTrends, *, workload: str | None) -> RenderableType:
    """All trends as a table; for a single workload also its runs."""
    if not found.trends:
        return Portable(Text.assemble("No runs are recorded in ", safe(found.file, limit=400), "."))
    parts: list[RenderableType] = [Text(key_label(found.metric), style="bold"), _table(found)]
    changes = [(trend, change) for trend in found.trends for change in trend.changes]
    if changes:
        parts += [heading("Where the level changed"), *(_change(found.metric, *each) for each in changes)]
    if workload is not None:
        for trend in found.trends:
            parts += [heading(_title(trend)), _runs(found.metric, trend)]
    parts.append(Text.assemble(("\nhistory  ", "dim"), safe(found.file, limit=400)))
    return Portable(Group(*parts))


def _table(found: HistoryTrends) -> RenderableType:
    """A row for each trend, below a line with its command and machine where they change."""
    columns = [Column("workload", right=False), *map(Column, LEVEL_TITLES)]
    rows: list[list[Cell] | Text] = []
    above = ""
    for trend in found.trends:
        before = above
        above = f"{kind_words(trend)} on {machine_words(trend)}"
        if above != before:
            rows.append(safe(above, "dim", limit=200))
        rows.append(
            [
                safe(trend.workload, "bold", limit=60),
                *level_figures(found.metric, trend),
                Sparkline([run.value for run in trend.runs], "cyan"),
            ]
        )
    return FittedTable([*columns, Column("trend", right=False, given_up=1)], rows)


def _change(metric: str, trend: HistoryTrend, change: LevelChange) -> Text:
    text = Text.assemble(
        safe(f"{trend.workload}: ", "bold", limit=80),
        f"{key_label(metric)} {figure_words(metric, change.before)} -> ",
        (f"{figure_words(metric, change.after)}", "bold"),
        f" ({ratio(change.ratio)}) since the run of " if change.ratio is not None else " since the run of ",
        safe(change.started, limit=40),
    )
    if change.differs:
        text.append("; differences from the previous run: ", "dim")
        text.append_text(safe(", ".join(change.differs), "dim", limit=300))
    return text.append_text(Text.assemble("\n  ", safe(change.folder, "dim", limit=400)))


def _title(trend: HistoryTrend) -> str:
    parts = (trend.workload, kind_words(trend), trend.device, machine_words(trend))
    return visible(", ".join(part for part in parts if part), limit=200)


def _runs(metric: str, trend: HistoryTrend) -> RenderableType:
    """A row for each run, with the reason for its exclusion and its folder below."""
    rows: list[list[Cell] | Text] = []
    began = {change.run for change in trend.changes}
    for run in trend.runs:
        started = safe(run.started[:19].replace("T", " "), limit=19)
        mark = ("> " if run.run in began else "  ", "bold yellow")
        rows.append([Text.assemble(mark, started), figure_words(metric, run.value), safe(run.verdict, limit=60)])
        if run.not_compared_because:
            rows.append(safe(f"    excluded: {run.not_compared_because}", "yellow", limit=200))
        rows.append(Text.assemble("    ", safe(run.folder, "dim", limit=300)))
    columns = [Column("started", right=False), Column(key_label(metric)), Column("verdict", right=False)]
    return FittedTable(columns, rows)
