"""A large record downsampled for a report: every k-th request, and the slowest ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from latfix.arrays import Ints
from latfix.profilers.chunked.run_totals import rows_of
from latfix.results.diagnosis import Diagnosis
from latfix.run_record.chunked_record import RecordSource
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import BATCH_DTYPE, EVENT_FIELDS, REQUEST_DTYPE, SAMPLE_FIELDS, Columns
from latfix.traffic.schedule import Traffic

#: Requests that a report shows: more than it lays out for single-request explanations.
SHOWN = 60_000
#: The slowest requests added to them: few, so that percentiles of the shown requests stay those of the run.
_SLOWEST = 50


def downsampled(source: RecordSource, diagnosis: Diagnosis) -> tuple[RunRecord, Diagnosis]:
    """The part of a large run that a report shows, renumbered from zero, and the diagnosis with a matching ledger.

    Counts are the whole run's (:attr:`RunRecord.totals`); a note tells what is shown. Batches, events and samples are
    omitted.
    """
    step = max(-(-len(source) // SHOWN), 1)
    slowest = np.sort(diagnosis.ledger.request[np.argsort(diagnosis.ledger.latency_ns)[-_SLOWEST:]])
    requests = _chosen(source, step, slowest)
    listed = np.flatnonzero(np.isin(diagnosis.ledger.request, requests["index"]))
    ledger = rows_of(diagnosis.ledger, listed)
    measured = np.flatnonzero(requests["index"] >= 0)
    number = np.full(len(requests["index"]), -1, np.int64)
    number[measured] = np.arange(len(measured))
    ids = dict(zip(ledger.request.tolist(), ledger.ids, strict=False))
    where = np.searchsorted(requests["index"][measured], ledger.request)
    record = RunRecord(
        folder=source.folder,
        meta=source.meta,
        requests=requests | {"index": np.where(number >= 0, number, requests["index"])},
        batches=_nothing(BATCH_DTYPE.names or ()),
        events=_nothing(EVENT_FIELDS),
        samples=_nothing(SAMPLE_FIELDS),
        traffic=Traffic.plain(
            requests["arrival_ns"][measured],
            ids=[ids.get(index, f"#{index}") for index in requests["index"][measured].tolist()],
        ),
        partial=source.partial,
        totals=diagnosis.counts,
    )
    note = (
        f"Charts and tables show one request in {step:,} and the {len(slowest)} slowest; figures cover all requests."
    )
    shown = replace(diagnosis, ledger=replace(ledger, request=where.astype(np.int64)), notes=(*diagnosis.notes, note))
    return record, shown


def _chosen(source: RecordSource, step: int, slowest: Ints) -> Columns:
    names = REQUEST_DTYPE.names or ()
    parts, row = [], 0
    for columns in source.scan(names):
        index = columns["index"]
        keep = np.flatnonzero(((np.arange(row, row + len(index)) % step) == 0) | np.isin(index, slowest))
        parts.append({name: columns[name][keep] for name in names})
        row += len(index)
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def _nothing(names: tuple[str, ...]) -> Columns:
    return {name: np.zeros(0, object if name in ("kind", "series", "detail") else np.int64) for name in names}
