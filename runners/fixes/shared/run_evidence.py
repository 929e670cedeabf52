"""Figures of a run that verify several fixes: page faults, losses, how long batches stay open."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.formatting import counted
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.fix import Applied


def faults_per_request(record: RunRecord) -> float:
    """Minor page faults of prepare, collate, compute and finish: mean over the measured requests."""
    rows, batches = record.requests, record.batches
    measured, counted = record.measured, batches["warmup"] == 0
    requests = int(np.count_nonzero(measured))
    if not requests:
        return 0.0
    shared = float(batches["collate_minflt"][counted].sum() + batches["compute_minflt"][counted].sum())
    own = float(rows["prepare_minflt"][measured].sum() + rows["finish_minflt"][measured].sum())
    return (shared + own) / requests


def faults_words(faults: float) -> str:
    """``1 page fault a request``."""
    return f"{counted(round(faults), 'page fault')} a request"


def fewer_faults(applied: Applied) -> tuple[bool, str]:
    """True if page faults more than halved, and both figures in words."""
    now, before = applied.both(faults_per_request)
    return now < 0.5 * before, f"{faults_words(now)}, {before:.0f} without"


def mean(values: npt.NDArray[Any]) -> float:
    """The mean; 0 of an empty array."""
    return float(values.mean()) if len(values) else 0.0


def open_ms(record: RunRecord) -> float:
    """Mean time that a batch stayed open for more requests; 0 if no batch ran."""
    return mean(record.batches["close_ns"] - record.batches["open_ns"]) / 1e6


def losses_text(applied: Applied) -> str:
    """Shares of requests that were shed, and lost in total, with and without the fix."""

    def text(record: RunRecord) -> str:
        counts = record.counts()
        total, shed = sum(counts.values()), counts["shed"]
        every = max(total, 1)
        lost_share = f"{100 * (total - counts['ok']) / every:.1f} %"
        return f"{shed} of {total} requests ({100 * shed / every:.1f} %) shed, {lost_share} lost in all"

    now, before = applied.both(text)
    return f"{now}; without: {before}"
