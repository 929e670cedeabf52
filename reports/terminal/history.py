"""What a terminal and ``--json`` show of the history: a figure's trend for each workload and machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from latfix.formatting import NONE, count, key_label, milliseconds, ratio, share, significant
from latfix.gates.reference_level import Level
from latfix.gates.syntax import is_latency
from latfix.history.trends import Change, Point, Trend
from latfix.reports.escaping import visible
from latfix.reports.terminal.widgets import Portable, heading, plain_table, safe

HISTORY_SCHEMA = "latfix.history/1"
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = "_.-=*#@"
_WIDEST = 32


@dataclass(frozen=True, slots=True)
class Sparkline:
    """Values as bars of one character each, the highest at the top; a blank where there is none.

    With more values than there is room the latest are drawn. Where the output is not Unicode, signs stand for bars.
    """

    values: Sequence[float | None]
    style: str = ""

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = max(min(len(self.values), _WIDEST), 1)
        return Measurement(min(width, 8), width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        blocks = _ASCII if options.ascii_only else _BLOCKS
        yield Segment(bars(self.values[-options.max_width :], blocks), Style.parse(self.style))


def bars(values: Sequence[float | None], blocks: str = _BLOCKS) -> str:
    """One character a value, between the least and the largest."""
    known = [value for value in values if value is not None]
    if not known:
        return " " * len(values)
    low, high = min(known), max(known)

    def one(value: float | None) -> str:
        if value is None:
            return " "
        part = (value - low) / (high - low) if high > low else 0.5
        return blocks[min(int(part * len(blocks)), len(blocks) - 1)]

    return "".join(one(value) for value in values)


def figure_words(metric: str, value: float | None) -> str:
    """A figure with its unit, three digits."""
    if value is None:
        return NONE
    if is_latency(metric):
        return milliseconds(value)
    if metric == "throughput":
        return f"{significant(value)}/s"
    return significant(value, 4) if metric == "accuracy" else share(value)


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
    table.add_column("runs", justify="right", no_wrap=True)
    table.add_column(metric, no_wrap=True)
    table.add_column("last", justify="right", no_wrap=True)
    table.add_column("median", justify="right", no_wrap=True)
    table.add_column("one run more, 95 %", justify="right")
    for trend in found:
        values = trend.values
        table.add_row(
            safe(trend.series.workload, "bold", limit=60),
            safe(machine_words(trend), limit=80),
            safe(_kind(trend), limit=60),
            count(len(trend.points)),
            Sparkline([point.value for point in trend.points], "cyan"),
            figure_words(trend.metric, values[-1] if values else None),
            figure_words(trend.metric, trend.level.value if trend.level is not None else None),
            reach_words(trend.metric, trend.level),
        )
    return table


def reach_words(metric: str, level: Level | None) -> str:
    """Between which figures a further run of an unchanged service would lie."""
    if level is None:
        return NONE
    reach = math.hypot(level.one_more(), level.own_doubt())
    if not level.by_factor:
        low, high = level.value - reach, level.value + reach
    elif reach > math.log(1e6):
        return "anywhere"
    else:
        low, high = level.value * math.exp(-reach), level.value * math.exp(reach)
    return f"{figure_words(metric, low)} to {figure_words(metric, high)}"


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
    parts = (trend.series.workload, _kind(trend), trend.series.device, machine_words(trend))
    return visible(", ".join(part for part in parts if part), limit=200)


def _kind(trend: Trend) -> str:
    return f"{trend.series.command}, {trend.series.plan}" if trend.series.plan else trend.series.command


def machine_words(trend: Trend) -> str:
    """The machine's processor, cores and GPU, or its fingerprint where they are not known."""
    facts = trend.points[-1].row.machine if trend.points else {}
    cores = facts.get("cores")
    words = [str(facts.get("cpu") or ""), f"{cores} cores" if cores else "", str(facts.get("gpu") or "")]
    return ", ".join(word for word in words if word) or trend.series.machine


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


def history_document(found: Sequence[Trend], *, file: Path, metric: str) -> dict[str, Any]:
    """What ``latfix history --json`` writes; milliseconds, requests a second, or shares."""
    return {
        "schema": HISTORY_SCHEMA,
        "file": str(file),
        "metric": metric,
        "trends": [_trend_json(trend) for trend in found],
    }


def _trend_json(trend: Trend) -> dict[str, Any]:
    series, level = trend.series, trend.level
    return {
        "workload": series.workload,
        "machine": series.machine,
        "machine_facts": dict(trend.points[-1].row.machine) if trend.points else {},
        "device": series.device,
        "command": series.command,
        "plan": series.plan,
        "traffic": series.traffic,
        "level": None
        if level is None
        else {
            "median": level.value,
            "spread": level.spread,
            "by_factor": level.by_factor,
            "runs": level.runs,
        },
        "runs": [_run_json(point) for point in trend.points],
        "changes": [
            {
                "run": change.point.row.run,
                "started": change.point.row.started,
                "folder": change.point.row.folder,
                "before": change.before,
                "after": change.after,
                "ratio": change.ratio,
                "differs": list(change.differs),
            }
            for change in trend.changes
        ],
    }


def _run_json(point: Point) -> Mapping[str, Any]:
    row = point.row
    return {
        "run": row.run,
        "started": row.started,
        "value": point.value,
        "verdict": row.verdict,
        "folder": row.folder,
        "settings": row.settings,
        "versions": dict(row.versions),
        "requests": dict(row.subject.requests),
        "gates": [dict(gate) for gate in row.gates],
        "not_compared_because": row.unusable,
    }
