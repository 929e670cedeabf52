"""How many requests a second a replay served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from latfix.stages import Status

if TYPE_CHECKING:
    from latfix.run_record.run_record import RunRecord


def throughput_rps(records: Sequence[RunRecord]) -> float:
    """Requests that ended ``ok`` a second, from the start of a replay to its last end, over all records."""
    served, seconds = 0, 0.0
    for record in records:
        rows = record.requests
        measured = record.measured
        if not measured.any():
            continue
        ends = rows["arrival_ns"][measured] + rows["latency_ns"][measured]
        served += int(np.count_nonzero(rows["status"][measured] == Status.OK))
        seconds += max(int(ends.max()), 1) / 1e9
    return served / seconds if seconds > 0 else 0.0
