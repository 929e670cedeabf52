"""The section of a run's page that shows it over time: percentiles and causes per window, and active stretches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from latfix.formatting import count, finite, rate, significant
from latfix.reports.charts.inline_svg import INK, drawing_style, inline_svg
from latfix.reports.elements import Column, Content, Html, element, figure, section, table
from latfix.reports.escaping import visible
from latfix.reports.terminal.over_time import ActiveCause, read_activity, read_windows, series
from latfix.results.diagnosis import Diagnosis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Window = Mapping[str, Any]

_CAUSES = 5
_WIDTH = 10.0
_LABEL = 32
_PERCENTILES = (("p50_ms", "p50"), ("p95_ms", "p95"), ("p99_ms", "p99"))


def windows_section(diagnosis: Diagnosis) -> Html | None:
    """The run over time; ``None`` where the diagnosis has no windows."""
    windows, active = read_windows(diagnosis), read_activity(diagnosis)
    if not windows:
        return None
    parts: list[Content] = []
    if active:
        parts.append(_active_list(active))
    causes = _largest_causes(windows)
    if len(windows) > 1:
        parts.append(
            figure(
                _drawing(windows, causes, active),
                "Mean milliseconds a request by cause in each window of scheduled arrivals, own and through the "
                "queue, beyond the reference. Bars below: when a cause was active on requests' own path.",
            )
        )
    parts.append(_table(windows, causes))
    return section("windows", "Over time", *parts)


def _active_list(active: Sequence[ActiveCause]) -> Html:
    items = [element("li", element("code", entry.cause), f" {entry.text}") for entry in active]
    return element("ul", *items)


def _largest_causes(windows: Sequence[Window]) -> list[str]:
    totals: dict[str, float] = {}
    for window in windows:
        for cause, value in _causes_of(window).items():
            totals[cause] = totals.get(cause, 0.0) + abs(value) * (finite(window.get("requests")) or 0.0)
    return sorted(totals, key=lambda cause: -totals[cause])[:_CAUSES]


def _causes_of(window: Window) -> dict[str, float]:
    found = window.get("causes_ms")
    if not isinstance(found, Mapping):
        return {}
    return {str(cause): value for cause, given in found.items() if (value := finite(given)) is not None}


def _table(windows: Sequence[Window], causes: Sequence[str]) -> Html:
    columns = [
        Column(title="window, s", numeric=False),
        Column(title="requests"),
        Column(title="offered"),
        *[Column(title=f"{name}, ms") for _, name in _PERCENTILES],
        *[Column(title=f"{visible(cause, limit=_LABEL)}, ms") for cause in causes],
    ]
    rows: list[list[Content]] = []
    for window in windows:
        own = _causes_of(window)
        rows.append(
            [
                f"{significant(window.get('start_s'))} to {significant(window.get('end_s'))}",
                count(window.get("requests")),
                rate(window.get("offered_rps")),
                *[significant(window.get(key)) for key, _ in _PERCENTILES],
                *[significant(own.get(cause)) for cause in causes],
            ]
        )
    caption = (
        "Windows of equal length by scheduled arrival; causes as mean milliseconds a request. A percentile is left "
        "out where too few requests rest on it: p50 under 5, p95 under 40, p99 under 100"
    )
    return table(caption, columns, rows)


def _drawing(windows: Sequence[Window], causes: Sequence[str], active: Sequence[ActiveCause]) -> Html:
    edges = np.array([finite(w.get("start_s")) or 0.0 for w in windows] + [finite(windows[-1].get("end_s")) or 0.0])
    with drawing_style():
        from matplotlib.figure import Figure

        height = 2.6 + (0.5 + 0.3 * len(active) if active else 0.0)
        drawn = Figure(figsize=(_WIDTH, height), layout="constrained")
        ratios = [2.6, 0.5 + 0.3 * len(active)] if active else [2.6]
        panels = np.atleast_1d(drawn.subplots(len(ratios), 1, sharex=True, height_ratios=ratios))
        _stack(panels[0], windows, causes, edges)
        if active:
            _spans(panels[1], active)
        panels[-1].set_xlabel("scheduled arrival, s")
        return inline_svg(drawn, name="windows-chart", label="Causes by window of time, and when each was active")


def _stack(axes: Axes, windows: Sequence[Window], causes: Sequence[str], edges: Any) -> None:
    """Causes on top of each other; what shortens latency below zero."""
    above, below = np.zeros(len(windows)), np.zeros(len(windows))
    for k, cause in enumerate(causes):
        values = np.array([_causes_of(window).get(cause, 0.0) for window in windows])
        base = np.where(values >= 0, above, below)
        color = INK[f"stage-{k}"]
        axes.bar(
            edges[:-1],
            values,
            width=np.diff(edges),
            bottom=base,
            align="edge",
            color=color,
            alpha=0.85,
            label=visible(cause, limit=_LABEL),
        )
        above, below = above + np.maximum(values, 0.0), below + np.minimum(values, 0.0)
    p50 = series(windows, "p50_ms")
    axes.set_ylabel("ms a request")
    axes.axhline(0, color=INK["muted"], linewidth=0.8)
    if causes:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=_CAUSES, handlelength=0.9, borderaxespad=0.1)
    elif any(value is not None for value in p50):
        axes.stairs([np.nan if value is None else value for value in p50], edges, baseline=None, color=INK["ink"])


def _spans(axes: Axes, active: Sequence[ActiveCause]) -> None:
    for y, entry in enumerate(reversed(active)):
        bars = [(begin, end - begin) for begin, end in entry.intervals_s]
        axes.broken_barh(bars, (y - 0.3, 0.6), facecolors=INK["own"], edgecolors=INK["own"], linewidth=1)
    axes.set_yticks(range(len(active)), [visible(entry.cause, limit=_LABEL) for entry in reversed(active)])
    axes.set_ylim(-0.6, len(active) - 0.4)
    axes.tick_params(axis="y", labelcolor=INK["ink"])
    axes.grid(visible=False, axis="y")
