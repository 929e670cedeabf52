"""What a page's script draws: requests over time as numbers and texts, which the template writes as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from latfix.arrays import Floats
from latfix.formatting import visible
from latfix.reports.charts.run_charts import Arrivals, is_wide
from latfix.reports.request_rows import SlowRow, rows_told
from latfix.results.diagnosis import Ledger
from latfix.run_record.run_record import RunRecord

#: The figure whose picture the script replaces.
FIGURE = "over-time"
#: Longest id; a story's ``data-request`` is cut alike.
LONGEST_ID = 120
_LONGEST_WORDS = 300


def points_over_time(arms: Sequence[tuple[Arrivals, RunRecord, Ledger | None]]) -> dict[str, Any] | None:
    """The points of a chart, each with its request's id and a line of its story; ``None`` where none ended ok.

    :param arms: what the picture draws, with the record that it is of, and its ledger where there is one.
    """
    if not any(arrivals.points.total for arrivals, _, _ in arms):
        return None
    together = np.concatenate([arrivals.points.latency_ms for arrivals, _, _ in arms])
    return {"figure": FIGURE, "log": is_wide(together), "arms": [_arm(*arm) for arm in arms]}


def _arm(arrivals: Arrivals, record: RunRecord, ledger: Ledger | None) -> dict[str, Any]:
    points, windows = arrivals.points, arrivals.windows
    rows = np.concatenate([points.rows, points.failed_rows]).tolist()
    told = rows_told(record, ledger, rows)
    return {
        "label": visible(arrivals.label, limit=40),
        "role": arrivals.role,
        "at_s": [round(row.arrival_s, 4) for row in told],
        "ms": [float(f"{row.latency_ms:.5g}") for row in told],
        "failed": [row.status != "ok" for row in told],
        "ids": [visible(row.id, limit=LONGEST_ID) for row in told],
        "words": [_words(row) for row in told],
        "edges_s": _numbers(windows.edges_s),
        "p50_ms": _numbers(windows.p50_ms),
        "p99_ms": _numbers(windows.p99_ms),
    }


def _words(row: SlowRow) -> str:
    outcome = f"{row.status} {row.error}".strip() if row.status != "ok" else ""
    return visible("; ".join(filter(None, (outcome, row.stage_words(), row.causes))), limit=_LONGEST_WORDS)


def _numbers(values: Floats) -> list[float | None]:
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values.tolist()]
