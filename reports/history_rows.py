"""The words of a history that the terminal and the page share."""

from __future__ import annotations

import math

from latfix.formatting import NONE, milliseconds, share, significant
from latfix.gates.reference_level import Level
from latfix.gates.syntax import is_latency
from latfix.results.history import HistoryTrend


def figure_words(metric: str, value: float | None) -> str:
    """A figure with its unit, three digits."""
    if value is None:
        return NONE
    if is_latency(metric):
        return milliseconds(value)
    if metric == "throughput":
        return f"{significant(value)}/s"
    return significant(value, 4) if metric == "accuracy" else share(value)


def reach_words(metric: str, level: Level | None) -> str:
    """Between which figures a further run of an unchanged service would lie."""
    if level is None:
        return NONE
    reach = math.hypot(level.one_more(), level.own_doubt())
    if not level.by_factor:
        low, high = level.value - reach, level.value + reach
    elif reach > math.log(1e6):
        return "anywhere"
    else:
        low, high = level.value * math.exp(-reach), level.value * math.exp(reach)
    return f"{figure_words(metric, low)} to {figure_words(metric, high)}"


def machine_words(trend: HistoryTrend) -> str:
    """The machine's processor, cores and GPU, or its fingerprint where they are not known."""
    facts = trend.machine_facts
    cores = facts.get("cores")
    words = [str(facts.get("cpu") or ""), f"{cores} cores" if cores else "", str(facts.get("gpu") or "")]
    return ", ".join(word for word in words if word) or trend.machine


def kind_words(trend: HistoryTrend) -> str:
    """The command, with the plan that it was started with."""
    return f"{trend.command}, {trend.plan}" if trend.plan else trend.command
