"""Handmade records and causes: what a test does not give is empty."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.results.diagnosis import CauseSummary
from latfix.results.worker_summary import WorkerRow, WorkerTally
from latfix.run_record.run_meta import RunMeta
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import BATCH_DTYPE, EVENT_FIELDS, REQUEST_DTYPE, SAMPLE_FIELDS, Columns
from latfix.stages import Status
from latfix.statistics.latency_summary import percentile_ns
from latfix.traffic.schedule import Traffic

_TEXTS = ("kind", "detail", "series")


def zeros(dtype: np.dtype[Any], n: int) -> dict[str, npt.NDArray[np.int64]]:
    """All columns of requests or batches, ``n`` rows of zeros."""
    return {name: np.zeros(n, dtype=np.int64) for name in dtype.names or ()}


def build_record(
    requests: Mapping[str, Any] | None = None,
    batches: Mapping[str, Any] | None = None,
    *,
    events: Columns | None = None,
    samples: Columns | None = None,
    traffic: Traffic | None = None,
    folder: Path = Path("run"),
    errors: Mapping[int, str] | None = None,
    partial: bool = False,
    **meta: Any,
) -> RunRecord:
    """A record.

    :param traffic: the schedule; by default one of the requests that are no warm-up.
    :param meta: keys of ``run.json``.
    """
    rows = dict(zeros(REQUEST_DTYPE, 0) if requests is None else requests)
    if traffic is None:
        traffic = Traffic.plain(np.sort(rows["arrival_ns"][rows["warmup"] == 0]))
    return RunRecord(
        folder=folder,
        meta=RunMeta().updated(**meta),
        requests=rows,
        batches=dict(zeros(BATCH_DTYPE, 0) if batches is None else batches),
        events=_nothing(EVENT_FIELDS) if events is None else events,
        samples=_nothing(SAMPLE_FIELDS) if samples is None else samples,
        traffic=traffic,
        errors=errors or {},
        partial=partial,
    )


def _nothing(names: tuple[str, ...]) -> Columns:
    return {name: np.zeros(0, object if name in _TEXTS else float if name == "value" else np.int64) for name in names}


def cause_summary(cause: str, tail_ms: float, **more: Any) -> CauseSummary:
    """A cause of the tail, measured, all of it on the requests' own path."""
    known: dict[str, Any] = {"tail_share": 0.0, "own_ms": tail_ms, "propagated_ms": 0.0, "ci95_ms": (0.0, 0.0)}
    known |= {"named": True, "evidence_class": "measured", "evidence": "", "requests": 1, "whatif_ms": {}}
    return CauseSummary(cause=cause, tail_ms=tail_ms, fixes=(), **{**known, **more})


def worker_rows(record: RunRecord, percentile: float) -> tuple[WorkerRow, ...]:
    """A row a worker; none where the run had one only.

    :param percentile: where the tail begins, 0 to 100.
    """
    rows = record.requests
    ok = (rows["warmup"] == 0) & (rows["batch_id"] >= 0) & (rows["status"] == Status.OK)
    tally = WorkerTally(record.meta, percentile_ns(rows["latency_ns"][ok], percentile), exact=True)
    tally.add(record)
    return tally.rows(record.events)
