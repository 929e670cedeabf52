"""Charts of a change: the effect of each fix, configurations, and predictions against measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from latfix.formatting import significant, tick, visible
from latfix.reports.charts.inline_svg import INK, LABEL, draw, label_right, named_rows, number_axis, whisker
from latfix.reports.comparison_rows import Ratio, Share
from latfix.reports.plan_rows import FrontRow
from latfix.reports.vocabulary import Severity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Intervals are drawn up to this factor beyond the points, and end in an arrow there.
_REACH = 8.0
_STATUS_ROLE = {"good": "after", "bad": "bad", "warn": "queue", "calm": "muted"}


def ratio_forest(name: str, rows: Sequence[tuple[str, Ratio, Severity]], *, key: str = "p99") -> Markup | None:
    """Ratios by name with their intervals, on a logarithmic axis; ``None`` without any ratio.

    :param key: label of the figure that they compare.
    """
    shown = [row for row in rows if row[1].value is not None and row[1].value > 0]
    if not shown:
        return None

    def plot(axes: Axes) -> None:
        position = np.arange(len(shown))[::-1]
        axes.set_xscale("log")
        axes.axvline(1, color=INK["ink"], linewidth=1)
        points = [1.0, *(each.value or 1.0 for _, each, _ in shown)]
        within, reached = (min(points) / _REACH, max(points) * _REACH), list(points)
        for y, (_, each, severity) in zip(position, shown, strict=True):
            value, color = each.value or 1.0, INK[_STATUS_ROLE[severity]]
            ends = whisker(axes, each.ci95 or (value, value), y, within, color=color, linewidth=2.2)
            axes.plot([value], [y], color=color, marker="o", markersize=7)
            reached += ends
            label_right(axes, f"×{significant(value)}", max(value, *ends), y, gap=11)
        low, high = min(reached), max(reached)
        axes.set(xlim=(low * 0.9, high * (high / low) ** 0.12 * 1.05), ylim=(-0.6, len(shown) - 0.3))
        axes.set_yticks(position, [visible(row[0], limit=LABEL) for row in shown])
        axes.tick_params(axis="y", labelcolor=INK["ink"])
        _ratio_marks(axes.xaxis, low * 0.9, high * 1.2)
        axes.set_xlabel(f"{key} after / before, with 95 % interval (below 1 is faster)")

    return draw(name, f"Ratio of {key} that each change achieved", 0.5 * len(shown) + 0.9, 1, plot)


def _ratio_marks(axis: Any, low: float, high: float) -> None:
    """Set ratios as ticks of a logarithmic axis."""
    fine = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0)
    coarse = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0)
    marks = [m for m in (fine if high < 4 * low else coarse) if low <= m <= high]
    axis.set_ticks(marks, [f"×{tick(m)}" for m in marks])
    axis.set_ticks([], minor=True)


def waterfall(name: str, shares: Sequence[Share], key: str = "p99") -> Markup | None:
    """A figure from before to after, a bar for each fix; ``None`` if it is unknown, as among lost requests.

    :param key: label of the figure.
    """
    if not all(math.isfinite(value) for share in shares for value in (share.before_ms, share.after_ms)):
        return None

    def plot(axes: Axes) -> None:
        position = np.arange(len(shares) + 2)[::-1]
        for y, role, value in (
            (position[0], "before", shares[0].before_ms),
            (position[-1], "after", shares[-1].after_ms),
        ):
            axes.barh(y, value, color=INK[role], height=0.62)
            label_right(axes, significant(value), value, y, weight="bold")
        for y, share in zip(position[1:-1], shares, strict=True):
            role = "muted" if share.ratio is None else "relief" if share.after_ms <= share.before_ms else "bad"
            low, high = sorted((share.before_ms, share.after_ms))
            axes.barh(y, high - low, left=low, color=INK[role], height=0.62)
            axes.plot((share.before_ms, share.before_ms), (y, y + 1), color=INK["muted"], linewidth=0.8)
            sign = "−" if share.after_ms < share.before_ms else "+"
            label_right(axes, f"{sign}{significant(high - low)}", high, y)
        named_rows(axes, position, ["before", *(share.name for share in shares), "after"], limit=48)
        axes.set(xlim=(0, 1.12 * max(max(share.before_ms, share.after_ms) for share in shares)), xlabel=f"{key}, ms")
        number_axis(axes.xaxis)

    return draw(name, f"{key} from before to after, fix by fix", 0.4 * (len(shares) + 2) + 0.8, 1, plot)


def front(name: str, rows: Sequence[FrontRow], key: str) -> Markup:
    """Configurations by latency and by throughput of full batches, both over the baseline.

    :param key: label of the percentile.
    """

    def plot(axes: Axes) -> None:
        for row in rows:
            value = row.ratio.value if row.is_replayed else row.predicted
            if not value or not row.compute:
                continue
            color, served = INK[_STATUS_ROLE[row.words[1]] if row.fixes else "ink"], 1 / row.compute
            face = color if row.is_replayed else "none"
            axes.plot([value], [served], "o", color=color, markersize=8, markerfacecolor=face, markeredgewidth=1.6)
            if row.best or not row.fixes:
                accuracy = "" if row.accuracy is None else f", accuracy {significant(row.accuracy, 4)}"
                label_right(axes, visible(f"{row.name}{accuracy}", limit=70), value, served, gap=9)
        axes.set_xscale("log")
        axes.margins(x=0.1, y=0.2)
        low, high = axes.get_xlim()
        axes.set_xlim(low, high * (high / low) ** 0.6)  # room for names
        _ratio_marks(axes.xaxis, low, high)
        axes.set(xlabel=f"{key} over the baseline (left is faster)", ylabel="throughput of full batches, ×")
        number_axis(axes.yaxis)

    return draw(name, f"{key}, throughput and accuracy of configurations", 3.4, 1, plot)


def predicted_against_measured(name: str, rows: Sequence[FrontRow], key: str) -> Markup | None:
    """Predicted against replayed ratios; ``None`` if no configuration has both."""
    both = [row for row in rows if row.fixes and row.predicted and row.ratio.value]
    if not both:
        return None

    def plot(axes: Axes) -> None:
        points = [value for row in both for value in (row.predicted or 1.0, row.ratio.value or 1.0)]
        low, high = min(*points, 1.0) / 1.5, max(*points, 1.0) * 1.5
        axes.plot((low, high), (low, high), color=INK["muted"], linewidth=1, linestyle="--")
        for row in both:
            x, y = row.predicted or 1.0, row.ratio.value or 1.0
            color = INK[_STATUS_ROLE[row.words[1]]]
            ends = row.ratio.ci95 or (y, y)
            axes.plot((x, x), (max(ends[0], low), min(ends[1], high)), color=color, linewidth=1.6)
            axes.plot([x], [y], "o", color=color, markersize=7)
            label_right(axes, visible(row.name, limit=60), x, y, gap=9)
        axes.set(xscale="log", yscale="log")
        axes.set_xlim(low, high * (high / low) ** 0.4)  # room for names
        axes.set_ylim(low, high)
        _ratio_marks(axes.xaxis, low, high)
        _ratio_marks(axes.yaxis, low, high)
        axes.set(xlabel=f"{key} predicted", ylabel="replayed")

    return draw(name, f"{key} predicted against replayed", 3.4, 1, plot)
