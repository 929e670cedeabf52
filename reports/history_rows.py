"""The words of a history that the terminal and the page share, and the document of ``latfix history --json``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from latfix.formatting import NONE, milliseconds, share, significant
from latfix.gates.reference_level import Level
from latfix.gates.syntax import is_latency
from latfix.history.trends import Point, Trend

HISTORY_SCHEMA = "latfix.history/1"


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


def machine_words(trend: Trend) -> str:
    """The machine's processor, cores and GPU, or its fingerprint where they are not known."""
    facts = trend.points[-1].row.machine if trend.points else {}
    cores = facts.get("cores")
    words = [str(facts.get("cpu") or ""), f"{cores} cores" if cores else "", str(facts.get("gpu") or "")]
    return ", ".join(word for word in words if word) or trend.series.machine


def kind_words(trend: Trend) -> str:
    """The command, with the plan that it was started with."""
    return f"{trend.series.command}, {trend.series.plan}" if trend.series.plan else trend.series.command


def history_document(found: Sequence[Trend], *, file: Path, metric: str) -> dict[str, Any]:
    """What ``latfix history --json`` writes; milliseconds, requests a second, or shares."""
    return {
        "schema": HISTORY_SCHEMA,
        "file": str(file),
        "metric": metric,
        "trends": [_trend_json(trend) for trend in found],
    }


def _trend_json(trend: Trend) -> dict[str, Any]:
    series, level = trend.series, trend.level
    return {
        "workload": series.workload,
        "machine": series.machine,
        "machine_facts": dict(trend.points[-1].row.machine) if trend.points else {},
        "device": series.device,
        "command": series.command,
        "plan": series.plan,
        "traffic": series.traffic,
        "level": None
        if level is None
        else {
            "median": level.value,
            "spread": level.spread,
            "by_factor": level.by_factor,
            "runs": level.runs,
        },
        "runs": [_run_json(point) for point in trend.points],
        "changes": [
            {
                "run": change.point.row.run,
                "started": change.point.row.started,
                "folder": change.point.row.folder,
                "before": change.before,
                "after": change.after,
                "ratio": change.ratio,
                "differs": list(change.differs),
            }
            for change in trend.changes
        ],
    }


def _run_json(point: Point) -> Mapping[str, Any]:
    row = point.row
    return {
        "run": row.run,
        "started": row.started,
        "value": point.value,
        "verdict": row.verdict,
        "folder": row.folder,
        "settings": row.settings,
        "versions": dict(row.versions),
        "requests": dict(row.subject.requests),
        "gates": [dict(gate) for gate in row.gates],
        "not_compared_because": row.unusable,
    }
