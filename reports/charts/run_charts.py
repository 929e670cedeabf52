"""The pictures of the HTML reports, drawn with matplotlib from plain arrays and returned as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from latfix.arrays import Floats
from latfix.formatting import milliseconds, percentile_label, significant, tick, visible
from latfix.reports.charts.chart_data import Scatter, Windows
from latfix.reports.charts.inline_svg import INK, LABEL, beside, draw, named_rows, number_axis
from latfix.reports.comparison_rows import Share, StepRow
from latfix.reports.diagnosis_rows import CauseRow
from latfix.results.diagnosis import Activity, Window
from latfix.stages import STAGES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: How far beyond the points an interval is drawn, as a factor; what goes on has an arrow.
_REACH = 8.0
#: How far beyond the longest bar whiskers are drawn.
_WHISKER = 1.6
_STATUS_ROLE = {"good": "after", "bad": "bad", "warn": "queue", "calm": "muted"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """One arm's requests over time, under its name."""

    label: str
    role: str
    points: Scatter
    windows: Windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One arm's percentile curve: latency against the share of slower requests."""

    label: str
    role: str
    slower: Floats
    latency_ms: Floats


def is_wide(latency_ms: Floats) -> bool:
    """Whether the tail would flatten everything else on a linear axis."""
    positive = latency_ms[np.isfinite(latency_ms) & (latency_ms > 0)]
    return len(positive) > 0 and bool(positive.max() > 15 * np.median(positive))


def _latency_axis(axes: Axes, values: Floats) -> None:
    """Milliseconds from zero, or on a logarithmic axis where the tail would flatten everything else."""
    positive = values[np.isfinite(values) & (values > 0)]
    axes.set_ylabel("latency, ms")
    if is_wide(values):
        axes.set_yscale("log")
        axes.set_ylim(max(float(np.percentile(positive, 1)) * 0.7, positive.max() * 1e-6), positive.max() * 1.4)
    else:
        axes.set_ylim(0, (float(positive.max()) if len(positive) else 1.0) * 1.08)
    number_axis(axes.yaxis)


def latency_over_time(name: str, arms: Sequence[Arrivals]) -> Markup:
    """Every request as a dot by its scheduled arrival, with p50 and p99 of each window; one panel an arm."""

    def plot(panels: list[Axes]) -> None:
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
    # Dots as zero-length strokes of one path: a tenth of the size of one marker element a request.
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


def percentile_curves(name: str, curves: Sequence[Curve]) -> Markup:
    """Latency by percentile, the tail spread out: each division of the axis is ten times rarer."""
    curves = [curve for curve in curves if len(curve.slower)]

    def plot(panels: list[Axes]) -> None:
        axes = panels[0]
        for curve in curves:
            axes.plot(
                curve.slower,
                curve.latency_ms,
                color=INK[curve.role],
                linewidth=2.2,
                label=visible(curve.label, limit=LABEL),
            )
        axes.set_xscale("log")
        rarest = min((float(curve.slower.min()) for curve in curves), default=0.01)
        axes.set_xlim(1.0, max(min(rarest, 0.1), 1e-7) * 0.999)
        marks = [p for p in (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999) if 1 - p / 100 >= rarest * 0.999]
        axes.set_xticks([1 - p / 100 for p in marks], [percentile_label(p) if p else "fastest" for p in marks])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("percentile: share of requests at least as fast")
        together = [curve.latency_ms for curve in curves]
        _latency_axis(axes, np.concatenate(together) if together else np.zeros(0))
        if len(curves) > 1:
            axes.legend(loc="upper left")

    return draw(name, "Latency by percentile, " + " and ".join(c.label for c in curves), 3.4, 1, plot)


def stage_bars(name: str, groups: Sequence[tuple[str, Floats]], labels: Sequence[str] = STAGES) -> Markup:
    """One stacked bar a group, a color a stage.

    :param groups: name and ``(stages,)`` mean milliseconds, from the top.
    :param labels: of the stages.
    """
    used = [k for k in range(len(STAGES)) if any(values[k] > 0 for _, values in groups)]

    def plot(panels: list[Axes]) -> None:
        axes = panels[0]
        position = np.arange(len(groups))[::-1]
        left = np.zeros(len(groups))
        for k in used:
            widths = np.array([values[k] for _, values in groups])
            axes.barh(position, widths, left=left, height=0.62, color=INK[f"stage-{k}"], label=labels[k])
            left += widths
        for y, total in zip(position, left, strict=True):
            beside(axes, milliseconds(float(total)), total, y)
        named_rows(axes, position, [group for group, _ in groups])
        axes.set_xlim(0, float(left.max(initial=0.0)) * 1.14 or 1.0)
        axes.set_xlabel("mean of the group, ms")
        number_axis(axes.xaxis)
        if used:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=8, handlelength=0.9, columnspacing=1.1)

    return draw(name, "Mean milliseconds in each stage by group of requests", 0.42 * len(groups) + 1.2, 1, plot)


def cause_bars(name: str, rows: Sequence[CauseRow], *, unit: str = "request", single: bool = False) -> Markup:
    """Milliseconds of the tail by cause: own and through the queue, with the interval of their sum.

    :param unit: what has a tail; only requests wait in a queue. ``single``: there is one, and no tail.
    """

    def plot(panels: list[Axes]) -> None:
        axes = panels[0]
        position = np.arange(len(rows))[::-1]
        longest = max((abs(row.own_ms) + abs(row.propagated_ms) for row in rows), default=1.0)
        within = (-_WHISKER * longest, _WHISKER * longest)
        for y, row in zip(position, rows, strict=True):
            reach = {True: 0.0, False: 0.0}
            for value, role in ((row.own_ms, "own"), (row.propagated_ms, "queue")):
                side = value >= 0
                axes.barh(y, value, left=reach[side], height=0.6, color=INK[role if side else "relief"])
                reach[side] += value
            high = reach[True]
            if row.ci95_ms is not None and all(np.isfinite(row.ci95_ms)):
                ends = _whisker(axes, row.ci95_ms, y, within, color=INK["ink"], linewidth=1.2, cap="|")
                high = max(high, ends[1])
            beside(axes, significant(row.tail_ms), high, y, weight="bold" if row.named else "normal")
        named_rows(axes, position, [row.label for row in rows])
        axes.axvline(0, color=INK["muted"], linewidth=1)
        low, high = axes.get_xlim()
        axes.set_xlim(low, high + 0.08 * (high - low))
        of_tail = f"milliseconds of the tail's excess (mean over tail {unit}s), with 95 % interval"
        axes.set_xlabel(f"milliseconds of the {unit}" if single else of_tail)
        number_axis(axes.xaxis)
        for role, words in (("own", "own path"), ("queue", "through the queue"), ("relief", "shortens the tail")):
            if role != "relief" or _shows_relief(rows):
                axes.barh(np.nan, np.nan, color=INK[role], label=words)
        if unit == "request":
            axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, handlelength=0.9, borderaxespad=0.1)

    return draw(name, "Milliseconds of the tail's excess by cause", 0.36 * len(rows) + 1.1, 1, plot)


def _whisker(
    axes: Axes,
    bounds: tuple[float, float],
    y: float,
    within: tuple[float, float],
    *,
    color: str,
    linewidth: float,
    cap: str = "",
) -> tuple[float, float]:
    """An interval as a line; an end beyond ``within`` is an arrow there. Where it is drawn from and to."""
    low, high = (min(max(bound, within[0]), within[1]) for bound in bounds)
    axes.plot((low, high), (y, y), color=color, linewidth=linewidth, solid_capstyle="round")
    for end, bound, arrow in ((low, bounds[0], "<"), (high, bounds[1], ">")):
        marker = cap if end == bound else arrow
        if marker:
            axes.plot([end], [y], color=color, marker=marker, markersize=7, linestyle="none")
    return low, high


def _shows_relief(rows: Sequence[CauseRow]) -> bool:
    """Some negative part is wide enough to be seen."""
    parts = [part for row in rows for part in (row.own_ms, row.propagated_ms)]
    return min(parts, default=0.0) < -0.005 * max(map(abs, parts), default=0.0)


def traffic_over_time(name: str, rate: tuple[Floats, Floats], inside: tuple[Floats, Floats]) -> Markup:
    """Arrivals a second, and below it how many requests were inside the service."""

    def plot(panels: list[Axes]) -> None:
        top, bottom = panels
        _steps(top, *rate, color=INK["before"], label="arrivals", fill=True)
        top.set_ylabel("arrivals, 1/s")
        bottom.fill_between(*inside, step="post", color=INK["queue"], alpha=0.45, linewidth=0)
        bottom.set_ylabel("in flight")
        bottom.set_xlabel("scheduled arrival, s")
        for axes in panels:
            axes.set_ylim(0, max(axes.get_ylim()[1], 1e-9))
            number_axis(axes.yaxis)
        number_axis(bottom.xaxis)

    return draw(name, "Arrivals a second and requests in flight over time", 3.4, 2, plot)


def ratio_forest(name: str, steps: Sequence[StepRow]) -> Markup | None:
    """Each fix's ratio of p99 with its interval, on a logarithmic axis around 1; ``None`` without any ratio."""
    shown = [step for step in steps if step.p99.value is not None and step.p99.value > 0]
    if not shown:
        return None

    def plot(panels: list[Axes]) -> None:
        axes = panels[0]
        position = np.arange(len(shown))[::-1]
        axes.set_xscale("log")
        axes.axvline(1, color=INK["ink"], linewidth=1)
        points = [1.0, *(step.p99.value or 1.0 for step in shown)]
        within, reached = (min(points) / _REACH, max(points) * _REACH), list(points)
        for y, step in zip(position, shown, strict=True):
            value, color = step.p99.value or 1.0, INK[_STATUS_ROLE[step.severity]]
            ends = _whisker(axes, step.p99.ci95 or (value, value), y, within, color=color, linewidth=2.2)
            axes.plot([value], [y], color=color, marker="o", markersize=7)
            reached += ends
            beside(axes, f"×{significant(value)}", max(value, *ends), y, gap=11)
        low, high = min(reached), max(reached)
        axes.set_xlim(low * 0.9, high * (high / low) ** 0.12 * 1.05)
        axes.set_ylim(-0.6, len(shown) - 0.3)
        axes.set_yticks(position, [visible(step.fix, limit=LABEL) for step in shown])
        axes.tick_params(axis="y", labelcolor=INK["ink"])
        fine = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0)
        coarse = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0)
        marks = [m for m in (fine if high < 3 * low else coarse) if low * 0.9 <= m <= high * 1.2]
        axes.set_xticks(marks, [f"×{tick(m)}" for m in marks])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("p99 after / before (left of 1 is faster), with 95 % interval")

    return draw(name, "Ratio of p99 that each fix achieved", 0.5 * len(shown) + 0.9, 1, plot)


def _signed(value: float) -> str:
    return f"{'−' if value < 0 else '+'}{significant(abs(value))}"


def waterfall(name: str, shares: Sequence[Share]) -> Markup:
    """Bars from the first p99 to the last, one a fix."""

    def plot(panels: list[Axes]) -> None:
        axes = panels[0]
        position = np.arange(len(shares) + 2)[::-1]
        for y, role, value in (
            (position[0], "before", shares[0].before_ms),
            (position[-1], "after", shares[-1].after_ms),
        ):
            axes.barh(y, value, color=INK[role], height=0.62)
            beside(axes, significant(value), value, y, weight="bold")
        for y, share in zip(position[1:-1], shares, strict=True):
            role = "muted" if share.ratio is None else "relief" if share.after_ms <= share.before_ms else "bad"
            low, high = sorted((share.before_ms, share.after_ms))
            axes.barh(y, high - low, left=low, color=INK[role], height=0.62)
            axes.plot((share.before_ms, share.before_ms), (y, y + 1), color=INK["muted"], linewidth=0.8)
            beside(axes, _signed(share.after_ms - share.before_ms), high, y)
        named_rows(axes, position, ["before", *(share.name for share in shares), "after"], limit=48)
        axes.set_xlim(0, 1.12 * max(max(share.before_ms, share.after_ms) for share in shares))
        axes.set_xlabel("p99, ms")

    return draw(name, "p99 from before to after, fix by fix", 0.4 * (len(shares) + 2) + 0.8, 1, plot)


def causes_over_time(
    name: str, windows: Sequence[Window], causes: Sequence[str], active: Sequence[tuple[str, Activity]]
) -> Markup:
    """Mean milliseconds a request by cause in each window, and below it when causes were active.

    :param causes: those to stack, at most eight.
    """

    def plot(panels: list[Axes]) -> None:
        _stack_causes(panels[0], windows, causes)
        if active:
            axes = panels[1]
            for y, (_, activity) in enumerate(reversed(active)):
                bars = [(begin, end - begin) for begin, end in activity.intervals_s]
                axes.broken_barh(bars, (y - 0.3, 0.6), facecolors=INK["own"], edgecolors=INK["own"], linewidth=1)
            named_rows(axes, range(len(active)), [cause for cause, _ in reversed(active)])
            axes.set_ylim(-0.6, len(active) - 0.4)
        panels[-1].set_xlabel("scheduled arrival, s")

    ratios = [2.6, *([0.5 + 0.3 * len(active)] if active else [])]
    label = "Causes by window of time, and when each was active"
    return draw(name, label, sum(ratios), len(ratios), plot, height_ratios=ratios)


def _stack_causes(axes: Axes, windows: Sequence[Window], causes: Sequence[str]) -> None:
    """Causes on top of each other; what shortens latency below zero."""
    edges = np.array([*(window.start_s for window in windows), windows[-1].end_s])
    above, below = np.zeros(len(windows)), np.zeros(len(windows))
    for k, cause in enumerate(causes):
        values = np.array([window.causes_ms.get(cause, 0.0) for window in windows])
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
    axes.set_ylabel("ms a request")
    axes.axhline(0, color=INK["muted"], linewidth=0.8)
    p50 = [window.p50_ms for window in windows]
    if causes:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, handlelength=0.9, borderaxespad=0.1)
    elif any(value is not None for value in p50):
        known = [value if value is not None and np.isfinite(value) else np.nan for value in p50]
        axes.stairs(known, edges, baseline=None, color=INK["ink"])
