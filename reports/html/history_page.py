"""The page of a history: each trend drawn over its runs, with the levels and the runs that changed them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from latfix.formatting import (
    count,
    key_label,
    ratio,
)
from latfix.history.trends import Trend
from latfix.reports.history_rows import figure_words, machine_words, reach_words
from latfix.reports.html.page_file import write_page


def write_history_page(path: Path, found: Sequence[Trend], *, file: Path, workload: str | None) -> None:
    """The page of a history.

    :param file: the history's own file.
    :raises InputError: the page cannot be written.
    """
    write_page(
        path,
        "history.html",
        kind="latfix history",
        heading=workload or "All workloads",
        facts=str(file),
        trends=[_trend(trend) for trend in found],
        overview=[
            [
                trend.series.workload,
                machine_words(trend),
                " ".join((trend.series.command, trend.series.plan)).strip(),
                count(len(trend.points)),
                figure_words(trend.metric, trend.values[-1] if trend.values else None),
                figure_words(trend.metric, None if trend.level is None else trend.level.value),
                reach_words(trend.metric, trend.level),
            ]
            for trend in found
        ],
    )


def _trend(trend: Trend) -> dict[str, Any]:
    """A trend drawn as a line through its runs, at equal distances: a level is of runs, not of days."""
    width, height, margin = 960.0, 180.0, 14.0
    low, high = min(trend.values, default=0.0), max(trend.values, default=0.0)
    span = (high - low) or max(abs(high), 1e-9)
    step = (width - 2 * margin) / max(len(trend.points) - 1, 1)
    began = {change.point.row.run for change in trend.changes}
    series = trend.series
    return {
        "title": f"{series.workload}, {machine_words(trend)}, {series.command} {series.plan}".strip(),
        "workload": series.workload,
        "metric": key_label(trend.metric),
        "began": [
            f"{margin + (k - 0.5) * step:.1f}" for k, point in enumerate(trend.points) if point.row.run in began
        ],
        "dots": [
            {
                "x": f"{margin + k * step:.1f}",
                "y": f"{height - margin - (point.value - low) / span * (height - 2 * margin):.1f}",
                "hollow": bool(point.row.unusable),
                "words": f"{point.row.started}: {figure_words(trend.metric, point.value)}",
            }
            for k, point in enumerate(trend.points)
            if point.value is not None
        ],
        "changes": [
            [
                change.point.row.started,
                figure_words(trend.metric, change.before),
                figure_words(trend.metric, change.after),
                ratio(change.ratio, "×"),
                ", ".join(change.differs),
                change.point.row.folder,
            ]
            for change in trend.changes
        ],
        "runs": [
            [
                point.row.started,
                figure_words(trend.metric, point.value),
                point.row.verdict,
                point.row.unusable,
                point.row.folder,
            ]
            for point in reversed(trend.points)
        ],
    }
