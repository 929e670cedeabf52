"""Data of the interactive chart: requests over time, which the template writes as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from latfix.arrays import Floats
from latfix.formatting import visible
from latfix.reports.charts.run_charts import Arrivals, is_wide
from latfix.reports.request_rows import SlowRow, described_rows
from latfix.results.diagnosis import Ledger
from latfix.run_record.run_record import RunRecord

#: Id of the figure whose chart the script replaces.
FIGURE = "over-time"
#: Longest id; a story's ``data-request`` is cut to the same length.
LONGEST_ID = 120
_LONGEST_WORDS = 300


def points_over_time(arms: Sequence[tuple[Arrivals, RunRecord, Ledger | None]]) -> dict[str, Any] | None:
    """The points of the chart, each with its request's id and summary; ``None`` if no request ended ok.

    :param arms: each with its record and, if there is one, its ledger.
    """
    if not any(arrivals.points.total for arrivals, _, _ in arms):
        return None
    together = np.concatenate([arrivals.points.latency_ms for arrivals, _, _ in arms])
    return {"figure": FIGURE, "log": is_wide(together), "arms": [_arm(*arm) for arm in arms]}


def _arm(arrivals: Arrivals, record: RunRecord, ledger: Ledger | None) -> dict[str, Any]:
    points, windows = arrivals.points, arrivals.windows
    rows = np.concatenate([points.rows, points.failed_rows]).tolist()
    described = described_rows(record, ledger, rows)
    entries = [[entry[0] for entry in row.entries or ()] for row in described]
    causes = {name: k for k, name in enumerate(dict.fromkeys(name for names in entries for name in names))}
    return {
        "label": visible(arrivals.label, limit=40),
        "role": arrivals.role,
        "at_s": [round(row.arrival_s, 4) for row in described],
        "ms": [float(f"{row.latency_ms:.5g}") for row in described],
        "failed": [row.status != "ok" for row in described],
        "ids": [visible(row.id, limit=LONGEST_ID) for row in described],
        "words": [_words(row) for row in described],
        "causes": [visible(name, limit=LONGEST_ID) for name in causes],
        "of": [[causes[name] for name in names] for names in entries],
        "edges_s": _numbers(windows.edges_s),
        "p50_ms": _numbers(windows.p50_ms),
        "p99_ms": _numbers(windows.p99_ms),
    }


def _words(row: SlowRow) -> str:
    outcome = f"{row.status} {row.error}".strip() if row.status != "ok" else ""
    return visible("; ".join(filter(None, (outcome, row.stage_words(), row.cause_words()))), limit=_LONGEST_WORDS)


def _numbers(values: Floats) -> list[float | None]:
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values.tolist()]
