"""Charts of a run: plain arrays in, inline SVG out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from latfix.arrays import Floats
from latfix.cause_catalogue import UNEXPLAINED
from latfix.formatting import milliseconds, percentile_label, significant, visible
from latfix.reports.charts.chart_data import Curve, Scatter, Windows
from latfix.reports.charts.inline_svg import INK, LABEL, draw, label_right, named_rows, number_axis, whisker
from latfix.reports.diagnosis_rows import CauseRow
from latfix.results.diagnosis import Activity, Window
from latfix.stages import STAGES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Curves reach p99.99 or beyond; they are gray where fewer than this many requests are slower.
_TO, _BEYOND = 1e-4, 10
#: Letters that fit in one row of a legend.
_LEGEND = 90
#: Whiskers are drawn up to this multiple of the longest bar.
_WHISKER = 1.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """One arm's requests over time, under its name."""

    label: str
    role: str
    points: Scatter
    windows: Windows


def is_wide(latency_ms: Floats) -> bool:
    """True if the tail would flatten everything else on a linear axis."""
    positive = latency_ms[np.isfinite(latency_ms) & (latency_ms > 0)]
    return len(positive) > 0 and bool(positive.max() > 15 * np.median(positive))


def _latency_axis(axes: Axes, values: Floats) -> None:
    """Milliseconds from zero, or on a logarithmic axis if :func:`is_wide`."""
    positive = values[np.isfinite(values) & (values > 0)]
    axes.set_ylabel("latency, ms")
    if is_wide(values):
        axes.set_yscale("log")
        axes.set_ylim(max(float(np.percentile(positive, 1)) * 0.7, positive.max() * 1e-6), positive.max() * 1.4)
    else:
        axes.set_ylim(0, (float(positive.max()) if len(positive) else 1.0) * 1.08)
    number_axis(axes.yaxis)


def latency_over_time(name: str, arms: Sequence[Arrivals]) -> Markup:
    """Requests as dots by scheduled arrival, with p50 and p99 of each window; a panel for each arm."""

    def plot(*panels: Axes) -> None:
        together = np.concatenate([arm.points.latency_ms for arm in arms])
        for axes, arm in zip(panels, arms, strict=True):
            _scatter(axes, arm)
            _latency_axis(axes, together)
            if arm.points.failed:
                top = axes.get_ylim()[1]
                axes.plot(
                    arm.points.failed_s,
                    np.full(len(arm.points.failed_s), top),
                    linestyle="none",
                    marker="x",
                    markersize=5,
                    color=INK["bad"],
                    clip_on=False,
                    label=f"not ok ({arm.points.failed:,})",
                )
            axes.set_title(visible(arm.label, limit=LABEL))
            axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, borderaxespad=0.1)
        panels[-1].set_xlabel("scheduled arrival, s")
        number_axis(panels[-1].xaxis)

    label = "Latency of requests by scheduled arrival, with p50 and p99 of each window of time"
    return draw(name, label, 2.9 * len(arms) + 0.3, len(arms), plot)


def _scatter(axes: Axes, arm: Arrivals) -> None:
    points = arm.points
    # Dots as zero-length strokes of one path: a tenth of the size of a marker element per request.
    x = np.repeat(points.arrival_s, 3)
    y = np.repeat(points.latency_ms, 3)
    y[2::3] = np.nan
    axes.plot(x, y, color=INK[arm.role], alpha=0.45, linewidth=3, solid_capstyle="round")
    axes.plot([], [], color=INK[arm.role], marker="o", markersize=3, linestyle="none", label="request")
    _steps(axes, arm.windows.edges_s, arm.windows.p50_ms, color=INK["muted"], label="p50 of window")
    _steps(axes, arm.windows.edges_s, arm.windows.p99_ms, color=INK["ink"], label="p99 of window")


def _steps(axes: Axes, edges: Floats, values: Floats, *, color: str, label: str, fill: bool = False) -> None:
    if not len(values):
        return
    if fill:
        axes.stairs(values, edges, fill=True, color=color, alpha=0.35)
    axes.stairs(values, edges, baseline=None, color=color, linewidth=1.6, label=label)


def percentile_curves(name: str, arms: Sequence[tuple[str, str, Curve]]) -> Markup:
    """Latency by percentile on a logarithmic axis: each division is ten times rarer.

    :param arms: label, role and curve of each.
    """
    arms = [arm for arm in arms if len(arm[2][0])]

    def plot(axes: Axes) -> None:
        for label, role, (slower, latency_ms, _) in arms:
            axes.plot(slower, latency_ms, color=INK[role], linewidth=2.2, label=visible(label, limit=LABEL))
        axes.set_xscale("log")
        rarest = max(min((float(curve[0].min()) for _, _, curve in arms), default=_TO), 1e-7)
        end = min(rarest, _TO) * 0.999
        axes.set_xlim(1.0, end)
        marks = [p for p in (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999) if 1 - p / 100 >= end]
        axes.set_xticks([1 - p / 100 for p in marks], [percentile_label(p) if p else "fastest" for p in marks])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("percentile: share of requests at least as fast")
        together = [curve[1] for _, _, curve in arms]
        _latency_axis(axes, np.concatenate(together) if together else np.zeros(0))
        supported = _BEYOND / max(min((curve[2] for _, _, curve in arms), default=1), 1)
        if supported > end:
            few = f"unreliable: fewer than {_BEYOND} requests are slower"
            axes.axvspan(min(supported, 1.0), end, color=INK["muted"], alpha=0.15, linewidth=0, label=few)
        if len(arms) > 1 or supported > end:
            axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, borderaxespad=0.1)

    return draw(name, "Latency by percentile, " + " and ".join(label for label, _, _ in arms), 3.4, 1, plot)


def stage_bars(name: str, groups: Sequence[tuple[str, Floats]], labels: Sequence[str]) -> Markup:
    """One stacked bar for each group, one color for each stage.

    :param groups: name and ``(stages,)`` mean milliseconds, from the top.
    :param labels: of the stages.
    """
    used = [k for k in range(len(STAGES)) if any(values[k] > 0 for _, values in groups)]

    def plot(axes: Axes) -> None:
        position = np.arange(len(groups))[::-1]
        left = np.zeros(len(groups))
        for k in used:
            widths = np.array([values[k] for _, values in groups])
            axes.barh(position, widths, left=left, height=0.62, color=INK[f"stage-{k}"], label=labels[k])
            left += widths
        for y, total in zip(position, left, strict=True):
            label_right(axes, milliseconds(float(total)), total, y)
        named_rows(axes, position, [group for group, _ in groups])
        axes.set(xlim=(0, float(left.max(initial=0.0)) * 1.14 or 1.0), xlabel="mean of the group, ms")
        number_axis(axes.xaxis)
        if used:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=8, handlelength=0.9, columnspacing=1.1)

    return draw(name, "Mean milliseconds in each stage by group of requests", 0.42 * len(groups) + 1.2, 1, plot)


def cause_waterfall(
    name: str, rows: Sequence[CauseRow], reference_ms: float, unit: str = "request", *, of: str = ""
) -> Markup:
    """From a quiet request to the mean of the tail, cause by cause: own and through the queue, with intervals.

    :param reference_ms: zero for a single unit, which has no tail.
    :param of: name of the tail.
    """
    total = reference_ms + sum(row.tail_ms for row in rows)

    def plot(axes: Axes) -> None:
        position = np.arange(len(rows) + 2)[::-1]
        longest = max((abs(row.own_ms) + abs(row.propagated_ms) for row in rows), default=1.0)
        now, reached = reference_ms, total
        for y, row in zip(position[1:], rows, strict=False):
            begun, high = now, now
            for value, role in ((row.own_ms, "own"), (row.propagated_ms, "queue")):
                color = INK["muted" if not row.cause else role if value >= 0 else "relief"]
                axes.barh(y, value, left=now, height=0.6, color=color)
                now += value
                high = max(high, now)
            axes.plot((begun, begun), (y, y + 1), color=INK["muted"], linewidth=0.8)
            if row.ci95_ms is not None and all(np.isfinite(row.ci95_ms)):
                within = (min(0.0, begun), max(total, begun) + (_WHISKER - 1) * longest)
                ends = (begun + row.ci95_ms[0], begun + row.ci95_ms[1])
                high = max(high, *whisker(axes, ends, y, within, color=INK["ink"], linewidth=1.2, cap="|"))
            shown = significant(row.tail_ms if row.cause else abs(row.tail_ms))
            label_right(axes, shown, high, y, weight="bold" if row.named else "normal")
            reached = max(reached, high)
        for y, value in ((position[0], reference_ms), (position[-1], total)):
            axes.barh(y, value, height=0.6, color=INK["muted"])
            label_right(axes, significant(value), value, y)
        named_rows(axes, position, [f"quiet {unit}", *(row.label for row in rows), f"{of}, mean" if of else unit])
        axes.axvline(0, color=INK["muted"], linewidth=1)
        axes.set_xlim(min(axes.get_xlim()[0], 0.0), 1.1 * max(reached, 1e-9))
        axes.set_ylim(-0.6, len(rows) + (1.6 if reference_ms else 0.6))
        axes.set_xlabel(f"milliseconds, mean of {unit}s" if reference_ms else f"milliseconds of the {unit}")
        number_axis(axes.xaxis)
        for role, words in (("own", "own"), ("queue", "through the queue"), ("relief", "shortens the tail")):
            if role != "relief" or _shows_relief(rows):
                axes.barh(np.nan, np.nan, color=INK[role], label=words)
        if unit == "request":
            axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, handlelength=0.9, borderaxespad=0.1)

    return draw(name, "Milliseconds of the tail by cause", 0.36 * (len(rows) + 2) + 1.1, 1, plot)


def _shows_relief(rows: Sequence[CauseRow]) -> bool:
    """True if a negative part is wide enough to be visible."""
    parts = [part for row in rows if row.cause for part in (row.own_ms, row.propagated_ms)]
    return min(parts, default=0.0) < -0.005 * max(map(abs, parts), default=0.0)


def traffic_over_time(
    name: str,
    rate: tuple[Floats, Floats],
    inside: tuple[Floats, Floats],
    queue: tuple[Floats, Floats],
    batches: tuple[Floats, Floats],
) -> Markup:
    """Arrivals a second; below it requests inside the service, in its queue, and in a batch, if known."""
    known = [pair for pair in (("in the queue", queue), ("in a batch", batches)) if len(pair[1][0])]

    def plot(*panels: Axes) -> None:
        top, bottom, *others = panels
        _steps(top, *rate, color=INK["before"], label="arrivals", fill=True)
        top.set_ylabel("arrivals, 1/s")
        bottom.fill_between(*inside, step="post", color=INK["queue"], alpha=0.45, linewidth=0)
        bottom.set_ylabel("in flight")
        for axes, (label, (seconds, values)) in zip(others, known, strict=True):
            axes.plot(seconds, values, color=INK["own"], linewidth=1.4)
            axes.set_ylabel(label)
        panels[-1].set_xlabel("s")
        for axes in panels:
            axes.set_ylim(0, max(axes.get_ylim()[1], 1e-9))
            number_axis(axes.yaxis)
        number_axis(panels[-1].xaxis)

    height = 1.7 * (2 + len(known))
    return draw(name, "Arrivals a second and requests in the service over time", height, 2 + len(known), plot)


def causes_over_time(
    name: str,
    windows: Sequence[Window],
    causes: Sequence[str],
    active: Sequence[tuple[str, Activity]],
    events: Mapping[str, Sequence[tuple[float, float]]],
) -> Markup:
    """Mean milliseconds per request by cause and window; below it, when causes were active and events happened.

    :param causes: those to stack, at most eight.
    :param events: by kind, begin and length in seconds.
    """
    rows = [(cause, "own", [(a, b - a) for a, b in activity.intervals_s]) for cause, activity in active]
    rows += [(f"event: {kind}", "muted", list(spans)) for kind, spans in events.items()]

    def plot(*panels: Axes) -> None:
        _stack_causes(panels[0], windows, causes)
        if rows:
            axes = panels[1]
            for y, (_, role, bars) in enumerate(reversed(rows)):
                axes.broken_barh(bars, (y - 0.3, 0.6), facecolors=INK[role], edgecolors=INK[role], linewidth=1)
            named_rows(axes, range(len(rows)), [label for label, _, _ in reversed(rows)])
            axes.set(ylim=(-0.6, len(rows) - 0.4), xlim=(windows[0].start_s, windows[-1].end_s))
        panels[-1].set_xlabel("scheduled arrival, s")

    ratios = [2.6, *([0.5 + 0.3 * len(rows)] if rows else [])]
    label = "Causes by window of time, and when each was active"
    return draw(name, label, sum(ratios), len(ratios), plot, height_ratios=ratios)


def _stack_causes(axes: Axes, windows: Sequence[Window], causes: Sequence[str]) -> None:
    """Stack the causes; those that shorten latency go below zero, but not a remainder of causes that overlap."""
    edges = np.array([*(window.start_s for window in windows), windows[-1].end_s])
    above, below = np.zeros(len(windows)), np.zeros(len(windows))
    for k, cause in enumerate(causes):
        values = np.array([window.causes_ms.get(cause, 0.0) for window in windows])
        values = np.maximum(values, 0.0) if cause == UNEXPLAINED else values
        base = np.where(values >= 0, above, below)
        axes.bar(
            edges[:-1],
            values,
            width=np.diff(edges),
            bottom=base,
            align="edge",
            color=INK[f"stage-{k}"],
            alpha=0.85,
            label=visible(cause, limit=LABEL),
        )
        above, below = above + np.maximum(values, 0.0), below + np.minimum(values, 0.0)
    axes.set_ylabel("ms per request")
    number_axis(axes.yaxis)
    axes.axhline(0, color=INK["muted"], linewidth=0.8)
    p50 = [window.p50_ms for window in windows]
    if causes:
        columns = 5 if sum(map(len, causes)) < _LEGEND else 3
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, handlelength=0.9, borderaxespad=0.1)
    elif any(value is not None for value in p50):
        known = [value if value is not None and np.isfinite(value) else np.nan for value in p50]
        axes.stairs(known, edges, baseline=None, color=INK["ink"])


def machine_over_time(name: str, panels: Mapping[str, Sequence[tuple[str, Floats, Floats]]]) -> Markup:
    """Memory, cores and devices over time, a panel for each axis.

    :param panels: by axis, lines as label, seconds and values.
    """

    def plot(*drawn: Axes) -> None:
        for axes, (axis, lines) in zip(drawn, panels.items(), strict=True):
            for k, (label, seconds, values) in enumerate(lines):
                axes.plot(seconds, values, color=INK[f"stage-{(k + 1) % 8}"], linewidth=1.6, label=label)
            axes.set(ylabel=axis, ylim=(0, None))
            number_axis(axes.yaxis)
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, handlelength=0.9, borderaxespad=0.1)
        drawn[-1].set_xlabel("s")
        number_axis(drawn[-1].xaxis)

    return draw(name, f"Over time: {'; '.join(panels)}", 1.7 * len(panels) + 0.4, len(panels), plot)
