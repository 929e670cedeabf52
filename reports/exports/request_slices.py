"""Iterates over requests with their stages, for records of any size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from latfix.formatting import visible
from latfix.run_record.chunked_record import RecordSource
from latfix.run_record.run_record import RunRecord
from latfix.stages import STAGES, STATUS_NAMES, stage_label

#: Requests in memory at a time.
STEP = 16_384
_LONGEST_ID, _LONGEST_ERROR = 200, 600


@dataclass(frozen=True, slots=True)
class RequestSlice:
    """One request. Times in nanoseconds from the run's start; a warm-up request's index is negative.

    :param id: from the traffic, printable.
    :param stages: name, begin and duration of each stage that took time.
    :param error: error message, printable; empty without one.
    :param worker: that served it, or -1.
    """

    index: int
    id: str
    arrival_ns: int
    latency_ns: int
    stages: list[tuple[str, int, int]]
    status: str
    error: str
    batch_id: int
    worker: int


def request_slices(source: RecordSource) -> Iterator[RequestSlice]:
    """All requests in the order of the schedule, warm-up first."""
    labels = [stage_label(stage, outside=source.meta.is_http) for stage in STAGES]
    for first in range(0, len(source), STEP):
        yield from _slices(source.stretch(first, min(first + STEP, len(source))), labels)


def _slices(record: RunRecord, labels: list[str]) -> Iterator[RequestSlice]:
    rows, ids = record.requests, record.traffic.ids
    took = np.stack([rows[f"{stage}_ns"] for stage in STAGES], axis=1)
    begun = rows["arrival_ns"][:, None] + np.cumsum(took, axis=1) - took
    workers = dict(zip(record.batches["batch_id"].tolist(), record.batches["worker"].tolist(), strict=True))
    names = ("index", "arrival_ns", "latency_ns", "status", "batch_id")
    columns = [rows[name].tolist() for name in names]
    for index, arrival, latency, status, batch, starts, lengths in zip(
        *columns, begun.tolist(), took.tolist(), strict=True
    ):
        name = ids[index - record.first_index] if index >= 0 else f"warm-up {-index}"
        yield RequestSlice(
            index=index,
            id=visible(name, limit=_LONGEST_ID),
            arrival_ns=arrival,
            latency_ns=latency,
            stages=[part for part in zip(labels, starts, lengths, strict=True) if part[2] > 0],
            status=STATUS_NAMES[status],
            error=visible(record.errors.get(index, ""), limit=_LONGEST_ERROR),
            batch_id=batch,
            worker=workers.get(batch, -1),
        )
