"""Phrases of the history for the terminal and the page."""

from __future__ import annotations

import math

from latfix.formatting import NONE, count, milliseconds, share, significant
from latfix.gates.reference_level import Level
from latfix.gates.syntax import is_latency
from latfix.results.history import HistoryTrend


def figure_words(metric: str, value: float | None) -> str:
    """A figure with three significant digits and its unit."""
    if value is None:
        return NONE
    if is_latency(metric):
        return milliseconds(value)
    if metric == "throughput":
        return f"{significant(value)}/s"
    return significant(value, 4) if metric == "accuracy" else share(value)


def reach_words(metric: str, level: Level | None) -> str:
    """The range in which one more run of the unchanged service is expected (95 %)."""
    if level is None:
        return NONE
    reach = math.hypot(level.one_more(), level.own_doubt())
    if not level.by_factor:
        low, high = level.value - reach, level.value + reach
        if metric == "error_rate":  # the only one of these figures that is always a share of the requests
            low, high = max(low, 0.0), min(high, 1.0)
    elif reach > math.log(1e6):
        return "anywhere"
    else:
        low, high = level.value * math.exp(-reach), level.value * math.exp(reach)
    return f"{figure_words(metric, low)} to {figure_words(metric, high)}"


#: Titles of :func:`level_figures`.
LEVEL_TITLES = ("runs", "last", "median", "next run, 95 %")


def level_figures(metric: str, trend: HistoryTrend) -> list[str]:
    """Number of runs, the last figure, and the level with the range of the next run."""
    return [
        count(len(trend.runs)),
        figure_words(metric, trend.values[-1] if trend.values else None),
        figure_words(metric, None if trend.level is None else trend.level.value),
        reach_words(metric, trend.level),
    ]


def machine_words(trend: HistoryTrend) -> str:
    """The machine's processor, cores and GPU, or its fingerprint if these are unknown."""
    facts = trend.machine_facts
    cores = facts.get("cores")
    named = f"{cores} core{'s' * (cores != 1)}" if cores else ""
    words = [str(facts.get("cpu") or ""), named, str(facts.get("gpu") or "")]
    return ", ".join(word for word in words if word) or trend.machine


def kind_words(trend: HistoryTrend) -> str:
    """The command and the plan that it started from."""
    return f"{trend.command}, {trend.plan}" if trend.plan else trend.command
