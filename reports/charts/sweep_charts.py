"""Charts of a sweep: latency and throughput over load, the Pareto front, and models against measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from latfix.formatting import visible
from latfix.reports.charts.inline_svg import INK, draw, label_right, number_axis
from latfix.reports.sweep_rows import MODEL_WORDS, SettingRow, SweepRows, predicted_ms, setting_label, wait_ms
from latfix.results.sweep import SweepPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LABEL = 40
#: Settings beyond this many reuse colors and are not in the legend.
COLORS = 8
_MODEL_STYLE = {"mm1": ":", "mg1": "-.", "kingman": "--", "replay": "-", "replay_own": (0, (1, 1))}
_MODEL_ROLE = {"mm1": "muted", "mg1": "stage-3", "kingman": "queue", "replay": "after", "replay_own": "before"}


def _legend(axes: Axes, *, columns: int = 1) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", ncols=columns)


def _color(place: int) -> str:
    return INK[f"stage-{(place + 1) % COLORS}"]


def _replayed(rows: SweepRows) -> list[tuple[SettingRow, str, str | None]]:
    """The settings with replays, each with its color and its label in the legend."""
    return [
        (setting, _color(place), visible(setting.label, limit=_LABEL) if place < COLORS else None)
        for place, setting in enumerate(rows.settings)
        if setting.points
    ]


def _milliseconds(axes: Axes, values: Sequence[float], limit: float | None) -> None:
    """An axis of milliseconds, logarithmic if the values span more than a factor of eight."""
    positive = [value for value in (*values, *([limit] if limit else [])) if value > 0]
    if positive and max(positive) > 8 * min(positive):
        axes.set(yscale="log", ylim=(min(positive) * 0.7, max(positive) * 1.5))
    else:
        axes.set_ylim(0, max(positive, default=1.0) * 1.15)
    number_axis(axes.yaxis)


def latency_over_load(name: str, rows: SweepRows) -> Markup:
    """The objective's percentile by offered load: replays with intervals, predictions, and the limit."""

    def plot(axes: Axes) -> None:
        values: list[float] = []
        for setting, color, label in _replayed(rows):
            some = [point for point in setting.points if point.objective.percentile_ms is not None]
            x = [point.offered_rps for point in some]
            y = [_percentile(point) for point in some]
            values += y
            axes.plot(x, y, color=color, linewidth=0 if setting.found.predicted else 1.8)
            axes.plot([], [], color=color, marker="o", markersize=6, linewidth=1.8, label=label)
            for point in some:
                _interval(axes, point, color)
            _predictions(axes, setting, color)
            for at, value, point in zip(x, y, some, strict=True):
                face = "none" if point.saturated else color
                axes.plot([at], [value], "o", color=color, markersize=6, markerfacecolor=face)
        _limit(axes, rows)
        _milliseconds(axes, values, rows.found.objective.slo_ms)
        axes.set(ylabel=f"{rows.percentile}, ms", xlabel="offered load, requests a second", xlim=(0, None))
        number_axis(axes.xaxis)
        _legend(axes)

    return draw(name, f"{rows.percentile} of latency by offered load", 4.2, 1, plot)


def _percentile(point: SweepPoint) -> float:
    value = point.objective.percentile_ms
    return np.nan if value is None else value


def _limit(axes: Axes, rows: SweepRows) -> None:
    limit = rows.found.objective.slo_ms
    if limit is not None:
        axes.axhline(limit, color=INK["bad"], linewidth=1.2, label="limit")


def _interval(axes: Axes, point: SweepPoint, color: str) -> None:
    (low, high), value, x = point.objective.ci95_ms, _percentile(point), point.offered_rps
    if low is None:
        return
    axes.plot((x, x), (low, value if high is None else high), color=color, linewidth=1.1)
    if high is None:  # open above
        axes.plot([x], [value * 1.12], color=color, marker="^", markersize=4, linestyle="none")


def _predictions(axes: Axes, setting: SettingRow, color: str) -> None:
    """The predicted line and its interval, as far as it is within four times the replayed values."""
    known = [_percentile(point) for point in setting.points if not point.saturated]
    most = 4 * max(filter(np.isfinite, known), default=np.inf)
    some = [each for each in setting.found.predicted if each.percentile_ms <= most]
    x = [each.offered_rps for each in some]
    axes.plot(x, [each.percentile_ms for each in some], color=color, linewidth=1.5, linestyle="--")
    low, high = ([each.ci95_ms[k] for each in some] for k in (0, 1))
    axes.fill_between(x, low, [min(value, 2 * most) for value in high], color=color, alpha=0.15, linewidth=0)


def throughput_over_load(name: str, rows: SweepRows) -> Markup:
    """Requests served and busy workers, by offered load."""

    def plot(top: Axes, bottom: Axes) -> None:
        offered = [point.offered_rps for setting in rows.settings for point in setting.points]
        reach = max(offered, default=1.0)
        top.plot((0, reach), (0, reach), color=INK["muted"], linewidth=1, linestyle=":", label="everything offered")
        for setting, color, label in _replayed(rows):
            x = [point.offered_rps for point in setting.points]
            served = [point.achieved_rps for point in setting.points]
            busy = [100 * point.utilization.get("workers", np.nan) for point in setting.points]
            top.plot(x, served, color=color, marker="o", markersize=4, linewidth=1.8, label=label)
            bottom.plot(x, busy, color=color, marker="o", markersize=4, linewidth=1.8)
        top.set_ylabel("served, 1/s")
        bottom.set(ylabel="workers busy, %", xlabel="offered load, requests a second")
        top.set_ylim(0, None)
        bottom.set_ylim(0, 105)
        top.set_xlim(0, None)
        for axis in (top.yaxis, bottom.yaxis, bottom.xaxis):
            number_axis(axis)
        _legend(top)

    return draw(name, "Requests served and workers busy by offered load", 4.6, 2, plot)


def front(name: str, rows: SweepRows) -> Markup:
    """Every load of every setting by throughput and percentile, and the Pareto front."""

    def plot(axes: Axes) -> None:
        values: list[float] = []
        for setting, color, label in _replayed(rows):
            some = [p for p in setting.points if p.objective.percentile_ms is not None and not p.saturated]
            values += [_percentile(point) for point in some]
            served = [point.achieved_rps for point in some]
            axes.plot(served, list(map(_percentile, some)), "o", color=color, markersize=5, label=label)
        known = [(p.achieved_rps, p.percentile_ms) for p in rows.found.pareto if p.percentile_ms is not None]
        if known:
            axes.plot(*zip(*known, strict=True), color=INK["ink"], linewidth=1.4, label="front")
        _limit(axes, rows)
        _milliseconds(axes, values, rows.found.objective.slo_ms)
        axes.set_xlabel("served, requests a second (right is better)")
        axes.set(ylabel=f"{rows.percentile}, ms (down is better)", xlim=(0, None))
        number_axis(axes.xaxis)
        _legend(axes)

    return draw(name, f"Throughput against {rows.percentile}, with the front", 4.0, 1, plot)


def memory_and_throughput(name: str, rows: SweepRows) -> Markup | None:
    """Highest throughput and memory of each setting, by rising batch size; ``None`` for fewer than two settings."""
    known = [
        (setting.found, setting.found.device_memory_bytes or setting.found.memory_bytes)
        for setting in rows.settings
        if setting.found.most_achieved_rps
    ]
    some = [(found, memory / 2**20) for found, memory in known if memory]
    if len(some) < 2:
        return None
    some.sort(key=lambda each: float(each[0].values.get("max_batch_size") or 0))

    def plot(axes: Axes) -> None:
        served = [found.most_achieved_rps or 0.0 for found, _ in some]
        axes.plot(served, [memory for _, memory in some], color=INK["muted"], linewidth=1, linestyle=":")
        for place, (found, memory) in enumerate(some):
            axes.plot([served[place]], [memory], "o", color=_color(place), markersize=8)
            label_right(axes, visible(setting_label(found.label), limit=_LABEL), served[place], memory, gap=9)
        where = "reserved on devices" if some[0][0].device_memory_bytes else "resident"
        axes.set(ylabel=f"memory {where}, MiB", xlabel="highest throughput, requests a second (right is better)")
        axes.set(ylim=(0, None), xlim=(0, 1.3 * max(served)))
        number_axis(axes.xaxis)
        number_axis(axes.yaxis)

    return draw(name, "Memory and highest throughput by setting", 3.0, 1, plot)


def theory(name: str, setting: SettingRow, rows: SweepRows) -> Markup:
    """Mean wait and percentile over load: measured, and by each model."""

    def plot(waits: Axes, tails: Axes) -> None:
        _compared(waits, setting, [p.wait_ms.get("mean") for p in setting.points], wait_ms)
        _compared(tails, setting, [p.objective.percentile_ms for p in setting.points], predicted_ms)
        waits.set_ylabel("mean wait, ms")
        tails.set(ylabel=f"{rows.percentile}, ms", xlabel="offered load, requests a second")
        waits.set_title(visible(setting.label, limit=_LABEL))
        _legend(waits, columns=2)
        tails.set_xlim(0, None)
        number_axis(tails.xaxis)

    return draw(name, f"Measured and predicted waits and {rows.percentile}, {setting.label}", 5.4, 2, plot)


def _compared(
    axes: Axes,
    setting: SettingRow,
    measured: Sequence[float | None],
    predicted: Callable[[SweepPoint, str], float | None],
) -> None:
    x = [point.offered_rps for point in setting.points]
    every = [value for value in measured if value]
    for model, words in MODEL_WORDS.items():
        answers = [predicted(point, model) for point in setting.points]
        y = [np.nan if answer is None else answer for answer in answers]
        if not np.isfinite(y).any():
            continue
        every += [value for value in y if np.isfinite(value)]
        axes.plot(x, y, color=INK[_MODEL_ROLE[model]], linestyle=_MODEL_STYLE[model], linewidth=1.5, label=words)
    shown = [np.nan if value is None else value for value in measured]
    axes.plot(x, shown, color=INK["ink"], marker="o", markersize=5, linewidth=2, label="measured")
    _milliseconds(axes, every, None)
