"""The page of a history: each trend drawn over its runs, with the levels and the runs that changed them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from latfix.formatting import NONE, count, key_label, ratio
from latfix.history.trends import Change, Trend
from latfix.reports.elements import Column, Content, Html, element, figure, section, table
from latfix.reports.html.page_file import write_page
from latfix.reports.terminal.history import figure_words, machine_words, reach_words

_WIDTH, _HEIGHT, _MARGIN = 960.0, 180.0, 14.0


def write_history_page(path: Path, found: Sequence[Trend], *, file: Path, workload: str | None) -> None:
    """Write the page.

    :param file: the history's own file.
    :raises InputError: the page cannot be written.
    """
    main: list[Content] = [_overview(found)] if found else [element("p", "No runs are recorded.")]
    main += [_trend(trend, place) for place, trend in enumerate(found)]
    write_page(path, kind="latfix history", heading=workload or "All workloads", facts=str(file), main=main)


def _overview(found: Sequence[Trend]) -> Html:
    columns = [
        Column(title="workload", numeric=False),
        Column(title="machine", numeric=False),
        Column(title="of", numeric=False),
        Column(title="runs"),
        Column(title="last"),
        Column(title="median"),
        Column(title="one run more, 95 %"),
    ]
    rows = [
        [
            trend.series.workload,
            machine_words(trend),
            " ".join((trend.series.command, trend.series.plan)).strip(),
            count(len(trend.points)),
            figure_words(trend.metric, trend.values[-1] if trend.values else None),
            figure_words(trend.metric, trend.level.value if trend.level is not None else None),
            reach_words(trend.metric, trend.level),
        ]
        for trend in found
    ]
    return section("overview", key_label(found[0].metric), table("Trends by workload and machine", columns, rows))


def _trend(trend: Trend, place: int) -> Html:
    parts: list[Content] = []
    if trend.values:
        caption = "Each dot is a run; a hollow one is not compared with. A vertical line is where a new level began."
        parts.append(figure(_drawing(trend), caption))
    if trend.changes:
        columns = [
            Column(title="since the run of", numeric=False),
            Column(title="before"),
            Column(title="after"),
            Column(title="ratio"),
            Column(title="differs from the run before", numeric=False),
            Column(title="folder", numeric=False),
        ]
        parts.append(
            table("Where the level changed", columns, [_change_cells(trend, each) for each in trend.changes])
        )
    parts.append(_runs(trend))
    title = f"{trend.series.workload}, {machine_words(trend)}, {trend.series.command} {trend.series.plan}".strip()
    return section(f"trend-{place}", title, *parts)


def _change_cells(trend: Trend, change: Change) -> list[Content]:
    return [
        change.point.row.started,
        figure_words(trend.metric, change.before),
        figure_words(trend.metric, change.after),
        NONE if change.ratio is None else ratio(change.ratio, "×"),
        ", ".join(change.differs),
        change.point.row.folder,
    ]


def _runs(trend: Trend) -> Html:
    columns = [
        Column(title="started", numeric=False),
        Column(title=key_label(trend.metric)),
        Column(title="verdict", numeric=False),
        Column(title="not compared with, because", numeric=False),
        Column(title="folder", numeric=False),
    ]
    rows: list[list[Content]] = [
        [
            point.row.started,
            figure_words(trend.metric, point.value),
            point.row.verdict,
            point.row.unusable,
            point.row.folder,
        ]
        for point in reversed(trend.points)
    ]
    return table("Runs, the latest first", columns, rows)


def _drawing(trend: Trend) -> Html:
    """Runs at equal distances: they are what a level is of, not days."""
    values = trend.values
    low, high = min(values), max(values)
    span = (high - low) or max(abs(high), 1e-9)
    step = (_WIDTH - 2 * _MARGIN) / max(len(trend.points) - 1, 1)

    def place(k: int, value: float) -> tuple[str, str]:
        x = _MARGIN + k * step
        y = _HEIGHT - _MARGIN - (value - low) / span * (_HEIGHT - 2 * _MARGIN)
        return f"{x:.1f}", f"{y:.1f}"

    shapes: list[Content] = [element("title", f"{key_label(trend.metric)} over {len(values)} runs")]
    began = [change.point for change in trend.changes]
    dots = [(k, point, point.value) for k, point in enumerate(trend.points) if point.value is not None]
    for k, point in enumerate(trend.points):
        if point in began:
            x = f"{_MARGIN + (k - 0.5) * step:.1f}"
            mark = {"stroke": "var(--bad)", "stroke_dasharray": "4 4"}
            shapes.append(element("line", x1=x, x2=x, y1="0", y2=f"{_HEIGHT:.0f}", **mark))
    ends = [place(k, value) for k, _, value in dots]
    for (x1, y1), (x2, y2) in itertools.pairwise(ends):
        shapes.append(element("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke="var(--grid)", stroke_width="2"))
    for k, point, value in dots:
        x, y = place(k, value)
        inside = "var(--card)" if point.row.unusable else "var(--after)"
        words = f"{point.row.started}: {figure_words(trend.metric, value)}"
        shapes.append(
            element("circle", element("title", words), cx=x, cy=y, r="4", fill=inside, stroke="var(--after)")
        )
    label = f"{key_label(trend.metric)} of {trend.series.workload}, run by run"
    return element("svg", *shapes, viewBox=f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}", role="img", aria_label=label)
