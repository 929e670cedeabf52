"""A first pass over a record: its cuts, its latencies, its begin and end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latfix.arrays import Bools
from latfix.lower_bound import AtLeast, in_order
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
    """Figures of a record that need no causes.

    :param rows: of the record, warm-up included.
    :param requests: number of requests that were measured, ended ``ok`` and were served in a batch.
    :param percentiles_ns: their exact latencies by percentile (0 to 100); zeros without requests.
    :param arrived_ns: the same for all that arrived (:mod:`latfix.statistics.censored`), and the longest at 100.
    :param outcomes: of all that arrived; ``None`` for a record in several chunks.
    :param histogram: of the ``ok`` latencies; ``None`` for a record in one chunk, whose rows are kept.
    :param first_ns: first arrival of all; ``last_ns`` the last; ``ended_ns`` the end of the last ``ok`` request.
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

    :param percentiles: percentiles to compute exactly, 0 to 100.
    :param size: least requests per chunk.
    """
    cutter, latency, every, censored = Cutter(size), LogHistogram(), LogHistogram(), LogHistogram()
    first, last, ended = 2**62, -(2**62), -(2**62)
    outside, names = source.meta.is_http, ("latency_ns", "status", "warmup", "batch_id", "http_status")
    for rows in source.scan(("arrival_ns", *names)):
        cutter.add(rows["arrival_ns"], rows["arrival_ns"] + rows["latency_ns"], rows["batch_id"])
        counted = _counted(rows, outside=outside)
        lost = (rows["warmup"] == 0) & (rows["status"] != Status.OK)
        every.add(rows["latency_ns"][counted | lost])
        arrived = rows["arrival_ns"][counted | lost]
        first, last = min(first, int(arrived.min(initial=first))), max(last, int(arrived.max(initial=last)))
        censored.add(rows["latency_ns"][lost & (rows["status"] == Status.UNFINISHED)])
        latency.add(rows["latency_ns"][counted])
        ended = max(ended, int((rows["arrival_ns"] + rows["latency_ns"])[counted].max(initial=ended)))
    requests, wanted = len(latency), sorted({*percentiles, 100.0})
    ranks = answered_ranks(latency.counts, censored.counts, len(every), wanted)
    places = [rank if math.isnan(rank) else 100 * rank / max(requests - 1, 1) for rank in ranks]
    exact = ExactPercentiles(latency, [*percentiles, *(place for place in places if not math.isnan(place))])
    for rows in source.scan(names):
        exact.add(rows["latency_ns"][_counted(rows, outside=outside)])
    found = exact.values()
    arrived = [
        AtLeast(every.percentile(q)) if math.isnan(place) else found[place]
        for q, place in zip(wanted, places, strict=True)
    ]
    return cutter.chunks(), Survey(
        rows=len(source),
        requests=requests,
        percentiles_ns={q: found.get(q, 0.0) for q in percentiles},
        arrived_ns=dict(zip(wanted, in_order(arrived), strict=True)),
        outcomes=None,
        histogram=latency,
        first_ns=first if len(every) else 0,
        last_ns=last if len(every) else 0,
        ended_ns=ended if requests else 0,
    )


def _counted(rows: Columns, *, outside: bool) -> Bools:
    """The rows of the ledger. Seen from outside there are no batches: an answer stands for one."""
    served = rows["http_status"] > 0 if outside else rows["batch_id"] >= 0
    return np.asarray((rows["warmup"] == 0) & (rows["status"] == Status.OK) & served)
