"""A first look at a record: where to cut it, its latencies, and when it began and ended."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from latfix.arrays import Ints
from latfix.lower_bound import AtLeast
from latfix.profilers.chunked.record_chunks import Chunk, Cutter
from latfix.profilers.evidence.units import Evidence
from latfix.run_record.chunked_record import RecordSource
from latfix.run_record.schema import Columns
from latfix.stages import Status
from latfix.statistics.censored import Outcomes, answered_ranks
from latfix.statistics.latency_summary import percentile_ns
from latfix.statistics.quantile_sketch import ExactPercentiles, LogHistogram


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What is known of a record before any cause is looked at.

    :param rows: of the record, warm-up included.
    :param requests: measured, ended ``ok`` and served in a batch; what follows is about these.
    :param percentiles_ns: exact latencies, by percentile (0..100); zeros where there are no requests.
    :param arrived_ns: the same of all that arrived (:mod:`latfix.statistics.censored`), and at 100 the longest.
    :param outcomes: what became of all that arrived; ``None`` where the record is cut into several chunks.
    :param histogram: of their latencies; ``None`` where the record is one chunk, whose rows are kept.
    :param first_ns: the first arrival of all, ``last_ns`` the last one; ``ended_ns`` when the last ``ok`` had ended.
    """

    rows: int
    requests: int
    percentiles_ns: dict[float, float]
    arrived_ns: dict[float, float]
    outcomes: Outcomes | None
    histogram: LogHistogram | None
    first_ns: int
    last_ns: int
    ended_ns: int


def survey_rows(evidence: Evidence, percentiles: Sequence[float]) -> Survey:
    """The survey of a record that is laid out at once."""
    rows, ok = evidence.rows, evidence.ok
    some = ok | ((rows["warmup"] == 0) & (rows["status"] != Status.OK))
    outcomes = Outcomes.of(rows["latency_ns"][some], rows["status"][some])
    every, arrival, latency = (*percentiles, 100.0), rows["arrival_ns"][some], rows["latency_ns"][ok]
    return Survey(
        rows=len(ok),
        requests=len(latency),
        percentiles_ns={q: percentile_ns(latency, q) for q in percentiles},
        arrived_ns=dict(zip(every, outcomes.percentiles_ns(every), strict=True)),
        outcomes=outcomes,
        histogram=None,
        first_ns=int(arrival.min()) if len(arrival) else 0,
        last_ns=int(arrival.max()) if len(arrival) else 0,
        ended_ns=int((rows["arrival_ns"][ok] + latency).max(initial=0)),
    )


def survey_record(source: RecordSource, percentiles: Sequence[float], size: int) -> tuple[list[Chunk], Survey]:
    """Cut a record into chunks and survey it, in two passes over its rows.

    :param percentiles: to be computed exactly, 0 to 100.
    :param size: requests in a chunk at least.
    """
    cutter, latency, every, censored = Cutter(size), LogHistogram(), LogHistogram(), LogHistogram()
    first, last, ended = 2**62, -(2**62), -(2**62)
    for rows in source.scan(("arrival_ns", "latency_ns", "status", "warmup", "batch_id")):
        cutter.add(rows["arrival_ns"], rows["arrival_ns"] + rows["latency_ns"], rows["batch_id"])
        counted = _counted(rows)
        lost = (rows["warmup"] == 0) & (rows["status"] != Status.OK)
        every.add(rows["latency_ns"][counted | lost])
        arrived = rows["arrival_ns"][counted | lost]
        first, last = min(first, int(arrived.min(initial=first))), max(last, int(arrived.max(initial=last)))
        censored.add(rows["latency_ns"][lost & (rows["status"] == Status.UNFINISHED)])
        latency.add(rows["latency_ns"][counted])
        ended = max(ended, int((rows["arrival_ns"] + rows["latency_ns"])[counted].max(initial=ended)))
    requests, asked = len(latency), (*percentiles, 100.0)
    ranks = answered_ranks(latency.counts, censored.counts, len(every), asked)
    places = [rank if math.isnan(rank) else 100 * rank / max(requests - 1, 1) for rank in ranks]
    exact = ExactPercentiles(latency, [*percentiles, *(place for place in places if not math.isnan(place))])
    for values in _latencies(source):
        exact.add(values)
    found = exact.values()
    return cutter.chunks(), Survey(
        rows=len(source),
        requests=requests,
        percentiles_ns={q: found.get(q, 0.0) for q in percentiles},
        arrived_ns={
            q: AtLeast(every.percentile(q)) if math.isnan(place) else found[place]
            for q, place in zip(asked, places, strict=True)
        },
        outcomes=None,
        histogram=latency,
        first_ns=first if len(every) else 0,
        last_ns=last if len(every) else 0,
        ended_ns=ended if requests else 0,
    )


def _latencies(source: RecordSource) -> Iterator[Ints]:
    for rows in source.scan(("latency_ns", "status", "warmup", "batch_id")):
        yield rows["latency_ns"][_counted(rows)]


def _counted(rows: Columns) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.asarray((rows["warmup"] == 0) & (rows["status"] == Status.OK) & (rows["batch_id"] >= 0))
