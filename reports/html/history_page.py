"""The page of a history: each trend over its runs, its levels, and the runs that changed them."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Any

from latfix.formatting import key_label, ratio
from latfix.reports.history_rows import LEVEL_TITLES, figure_words, level_figures, machine_words
from latfix.reports.html.page_file import write_page
from latfix.results.history import HistoryTrend, HistoryTrends


def write_history_page(path: Path, found: HistoryTrends, *, workload: str | None) -> None:
    """The page of a history.

    :raises InputError: the page cannot be written.
    """
    write_page(
        path,
        "history.html",
        kind="latfix history",
        heading=workload or "All workloads",
        facts=PurePath(found.file).name,
        columns=["workload", "machine", "command", *LEVEL_TITLES],
        trends=[_trend(found.metric, trend) for trend in found.trends],
        overview=[
            [
                trend.workload,
                machine_words(trend),
                " ".join((trend.command, trend.plan)).strip(),
                *level_figures(found.metric, trend),
            ]
            for trend in found.trends
        ],
    )


def _trend(metric: str, trend: HistoryTrend) -> dict[str, Any]:
    """A trend as a line through its runs, equally spaced: levels count runs, not days."""
    width, height, margin, left = 960.0, 180.0, 14.0, 110.0
    low, high = min(trend.values, default=0.0), max(trend.values, default=0.0)
    span = (high - low) or max(abs(high), 1e-9)
    step = (width - left - 2 * margin) / max(len(trend.runs) - 1, 1)
    across = [left + margin + k * step for k in range(len(trend.runs))]
    excluded = any(run.not_compared_because for run in trend.runs)

    def place(value: float) -> str:
        return f"{height - margin - (value - low) / span * (height - 2 * margin):.1f}"

    began = {change.run for change in trend.changes}
    return {
        "title": f"{trend.workload}, {machine_words(trend)}, {trend.command} {trend.plan}".strip(),
        "workload": trend.workload,
        "metric": key_label(metric),
        "left": left,
        "marks": [
            (place(value), figure_words(metric, value)) for value in dict.fromkeys((low, (low + high) / 2, high))
        ],
        "days": [
            (f"{across[k]:.1f}", anchor, trend.runs[k].started[:16].replace("T", " "))
            for k, anchor in ((0, "start"), (-1, "end"))[: len(trend.runs)]
        ],
        "began": [f"{x - step / 2:.1f}" for x, run in zip(across, trend.runs, strict=True) if run.run in began],
        "dots": [
            {
                "x": f"{x:.1f}",
                "y": place(run.value),
                "hollow": bool(run.not_compared_because),
                "words": f"{run.started}: {figure_words(metric, run.value)}",
            }
            for x, run in zip(across, trend.runs, strict=True)
            if run.value is not None
        ],
        "changes": [
            [
                change.started,
                figure_words(metric, change.before),
                figure_words(metric, change.after),
                ratio(change.ratio, "×"),
                ", ".join(change.differs),
                change.folder,
            ]
            for change in trend.changes
        ],
        "columns": ["started", key_label(metric), "verdict", *["excluded because"] * excluded, "folder"],
        "runs": [
            [
                run.started,
                figure_words(metric, run.value),
                run.verdict,
                *[run.not_compared_because] * excluded,
                run.folder,
            ]
            for run in reversed(trend.runs)
        ],
    }
