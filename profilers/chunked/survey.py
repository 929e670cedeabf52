"""A first look at a record: where to cut it, its latencies, and when it began and ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from latfix.profilers.chunked.record_chunks import Chunk, Cutter
from latfix.profilers.evidence.work_model import Ints
from latfix.run_record.chunked_record import RecordSource
from latfix.run_record.schema import Columns
from latfix.stages import Status
from latfix.statistics.latency_summary import percentile_ns
from latfix.statistics.quantile_sketch import ExactPercentiles, LogHistogram


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What is known of a record before any cause is looked at.

    :param rows: of the record, warm-up included.
    :param requests: measured, ended ``ok`` and served in a batch; what follows is about these.
    :param percentiles_ns: exact latencies, by percentile (0..100); zeros where there are no requests.
    :param histogram: of their latencies; ``None`` where the record is one chunk, whose rows are kept.
    :param first_ns: their first arrival, ``last_ns`` the last one; ``ended_ns`` when the last of them had ended.
    """

    rows: int
    requests: int
    percentiles_ns: dict[float, float]
    histogram: LogHistogram | None
    first_ns: int
    last_ns: int
    ended_ns: int


def survey_rows(rows: int, arrival_ns: Ints, latency_ns: Ints, percentiles: Sequence[float]) -> Survey:
    """The survey of a record in one chunk, from the rows of its ledger."""
    some = len(arrival_ns) > 0
    return Survey(
        rows=rows,
        requests=len(arrival_ns),
        percentiles_ns={q: percentile_ns(latency_ns, q) for q in percentiles},
        histogram=None,
        first_ns=int(arrival_ns.min()) if some else 0,
        last_ns=int(arrival_ns.max()) if some else 0,
        ended_ns=int((arrival_ns + latency_ns).max()) if some else 0,
    )


def survey_record(source: RecordSource, percentiles: Sequence[float], size: int) -> tuple[list[Chunk], Survey]:
    """Cut a record into chunks and survey it, in two passes over its rows.

    :param percentiles: to be computed exactly, 0 to 100.
    :param size: requests in a chunk at least.
    """
    cutter, latency = Cutter(size), LogHistogram()
    first, last, ended = 2**62, -(2**62), -(2**62)
    for rows in source.scan(("arrival_ns", "latency_ns", "status", "warmup", "batch_id")):
        cutter.add(rows["arrival_ns"], rows["arrival_ns"] + rows["latency_ns"], rows["batch_id"])
        counted = _counted(rows)
        arrival, taken = rows["arrival_ns"][counted], rows["latency_ns"][counted]
        latency.add(taken)
        ended = max(ended, int((arrival + taken).max(initial=ended)))
        first, last = min(first, int(arrival.min(initial=first))), max(last, int(arrival.max(initial=last)))
    exact, requests = ExactPercentiles(latency, percentiles), len(latency)
    for values in _latencies(source):
        exact.add(values)
    return cutter.chunks(), Survey(
        rows=len(source),
        requests=requests,
        percentiles_ns=dict.fromkeys(percentiles, 0.0) | exact.values(),
        histogram=latency,
        first_ns=first if requests else 0,
        last_ns=last if requests else 0,
        ended_ns=ended if requests else 0,
    )


def _latencies(source: RecordSource) -> Iterator[Ints]:
    for rows in source.scan(("latency_ns", "status", "warmup", "batch_id")):
        yield rows["latency_ns"][_counted(rows)]


def _counted(rows: Columns) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.asarray((rows["warmup"] == 0) & (rows["status"] == Status.OK) & (rows["batch_id"] >= 0))
