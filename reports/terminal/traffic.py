"""Terminal report of ``latfix traffic inspect``: the shape of recorded traffic."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from latfix.formatting import counted, percent, share, visible
from latfix.reports.terminal.widgets import Cell, Column, FittedTable, Portable, safe
from latfix.traffic.summary import FeatureSummary, Gaps, TrafficShape, figure, seconds_text

_BLOCKS = " ▁▂▃▄▅▆▇█"
_BAR = "█"
_PARTS = " ▏▎▍▌▋▊▉"
_CHART_COLUMNS = 60
_CHART_ROWS = 4
_BAR_WIDTH = 30
#: Longest name or value of a feature, in characters.
_NAME = 24
_HISTOGRAM_ROWS = 8
_COLORS = {"steady": "green", "periodic": "cyan", "bursty": "yellow", "long-tailed": "magenta"}


def render_shape(shape: TrafficShape) -> RenderableType:
    """The kind of load and the reason, then figures, then two small charts."""
    parts: list[RenderableType] = [_kind_of_load(shape), Text(), _figures(shape)]
    if shape.features:
        parts += [Text(), _features(shape)]
    if shape.span_s > 0:
        parts += [Text(), _rate_chart(shape)]
    if shape.gaps is not None and shape.gaps.histogram:
        parts += [Text(), _gap_chart(shape.gaps)]
    return Portable(Group(*parts))


def _kind_of_load(shape: TrafficShape) -> Text:
    text = Text()
    text.append(f"{shape.kind.capitalize()} load. ", style=f"bold {_COLORS[shape.kind]}")
    return text.append_text(safe(shape.reason, limit=1000))


def _figures(shape: TrafficShape) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in _rows(shape):
        table.add_row(name, safe(value, limit=1000))
    return table


def _rows(shape: TrafficShape) -> list[tuple[str, str]]:
    source = f"{visible(shape.source, limit=200)} ({shape.format})" if shape.source else shape.format
    rows = [("source", source)]
    over = f"in {seconds_text(shape.span_s)}" if shape.span_s else "at once"
    rows.append(("requests", f"{shape.count:,} {over}"))
    if shape.skipped_lines:
        rows.append(("skipped", counted(shape.skipped_lines, "malformed line")))
    if shape.span_s:
        peak = f"peak {figure(shape.peak_rate)}/s in {seconds_text(shape.rate.window_s)} windows"
        rows.append(("rate", f"mean {figure(shape.mean_rate)}/s, {peak}"))
    if shape.gaps is not None:
        rows += _gap_rows(shape.gaps)
    if shape.dispersion:
        entries = ", ".join(f"{figure(e.index)} at {seconds_text(e.window_s)}" for e in shape.dispersion)
        rows.append(("dispersion", f"{entries} (Fano factor of counts; 1 for independent arrivals)"))
    if shape.period is not None:
        period = f"{seconds_text(shape.period.seconds)}, strength {shape.period.strength:.2f}"
        rows.append(("period", f"{period}, swing {percent(shape.period.amplitude)} of the mean rate"))
    if shape.tail is not None and shape.tail.hill < 20:
        tail = f"Hill index {figure(shape.tail.hill)}"
        rows.append(("tail", f"{tail} of the longest gaps (variance is infinite below 2)"))
    if shape.grid_s is not None:
        rows.append(("grid", f"all arrivals are whole multiples of {seconds_text(shape.grid_s)}"))
    if set(shape.priorities) != {"normal"}:
        counts = ", ".join(f"{name} {count:,}" for name, count in shape.priorities.items())
        rows.append(("priorities", counts))
    if shape.sessions:
        rows.append(("sessions", f"{shape.sessions:,}, of {shape.session_requests:,} requests"))
    if shape.deadlines:
        spread = f"p50 {figure(shape.deadline_ms['p50'])} ms, min {figure(shape.deadline_ms['min'])} ms"
        rows.append(("deadlines", f"{shape.deadlines:,} requests, {spread}"))
    if shape.transforms:
        rows.append(("transforms", ", ".join(str(entry.get("transform")) for entry in shape.transforms)))
    return rows


def _gap_rows(gaps: Gaps) -> list[tuple[str, str]]:
    named = (("p50", "p50"), ("p95", "p95"), ("p99", "p99"), ("p99.9", "p99_9"))
    quantiles = ", ".join(f"{label} {seconds_text(gaps.percentiles[key])}" for label, key in named)
    rows = [("gaps", f"{quantiles}, max {seconds_text(gaps.max_s)}, coefficient of variation {gaps.cv:.2f}")]
    if gaps.zero_share >= 0.001:
        rows.append(("ties", f"{share(gaps.zero_share)} of requests arrive at the same time as the previous one"))
    return rows


def _features(shape: TrafficShape) -> FittedTable:
    """The features; below a text its most frequent values."""
    keys = ("min", "p50", "p95", "max")
    columns = [Column("feature", right=False), Column("requests")]
    columns += [Column(key, given_up=k) for k, key in enumerate(keys)]
    rows: list[Sequence[Cell] | Text] = []
    for feature in shape.features:
        figures = [figure(feature.numbers[key]) if key in feature.numbers else "" for key in keys]
        rows.append([safe(feature.name, limit=_NAME), f"{feature.present:,}", *figures])
        if feature.top:
            rows.append(Text.assemble(("  most frequent: ", "dim"), safe(_top_words(feature), limit=600)))
    return FittedTable(columns, rows)


def _top_words(feature: FeatureSummary) -> str:
    top = ", ".join(f"{visible(value, limit=_NAME)} {count:,}" for value, count in feature.top[:3])
    more = (feature.distinct or 0) - min(3, len(feature.top))
    return f"{top}, {more:,} more" if more > 0 else top


def _rate_chart(shape: TrafficShape) -> Text:
    """Requests a second from left to right; each column is the maximum of its windows."""
    columns = _squeezed(list(shape.rate.rates), _CHART_COLUMNS)
    highest = max(columns) or 1.0
    text = Text()
    text.append(f"requests a second over {seconds_text(shape.span_s)}, highest {figure(highest)}\n", style="dim")
    levels = [round(value / highest * _CHART_ROWS * 8) for value in columns]
    for row in range(_CHART_ROWS - 1, -1, -1):
        line = "".join(_BLOCKS[min(8, max(0, level - row * 8))] for level in levels)
        text.append(line.rstrip() + ("\n" if row else ""), style="blue")
    return text


def _squeezed(values: list[float], width: int) -> list[float]:
    if len(values) <= width:
        return values
    bounds = [index * len(values) // width for index in range(width + 1)]
    return [max(values[low:high]) for low, high in pairwise(bounds)]


def _gap_chart(gaps: Gaps) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(no_wrap=True, style="blue")
    table.add_column(justify="right", no_wrap=True)
    table.add_row("gaps up to", "", "")
    bins = len(gaps.histogram)
    step = -(-bins // _HISTOGRAM_ROWS)
    groups = [(sum(gaps.histogram[low : low + step]), min(low + step, bins)) for low in range(0, bins, step)]
    most = max(count for count, _ in groups) or 1
    for count, end in groups:
        table.add_row(seconds_text(gaps.edges_s[end]), _bar(count / most), f"{count:,}")
    return table


def _bar(fraction: float) -> str:
    eighths = round(fraction * _BAR_WIDTH * 8)
    part = _PARTS[eighths % 8] if eighths % 8 else ""
    return _BAR * (eighths // 8) + part
