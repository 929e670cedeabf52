"""Attribution: a run's record in, its diagnosis out. Pure; the same record and seed give the same diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.profilers.attribution.cause_removal import without
from latfix.profilers.attribution.ledger import Books, doubt_of, make_books
from latfix.profilers.attribution.ledger_parquet import CausesFile
from latfix.profilers.attribution.machine_noise_floor import above_noise
from latfix.profilers.attribution.naming_rule import floors_ms, overhead_of, summarize_cause, worth_a_course
from latfix.profilers.attribution.queueing_noise_floor import chance_wait_ns
from latfix.profilers.attribution.tail import ONCE, Tail, cut_tail
from latfix.profilers.attribution.verdict import dispatch_trust, judge, warnings
from latfix.profilers.causes import CAUSES
from latfix.profilers.chunked.accumulators import OWN_FLOOR_NS
from latfix.profilers.chunked.chunked_attribution import Scale, Sink
from latfix.profilers.chunked.chunks import WholeRecord
from latfix.profilers.chunked_diagnosis import diagnose_large
from latfix.profilers.evidence.units import Evidence, gather
from latfix.profilers.over_time.time_windows import windows_of
from latfix.results.diagnosis import UNEXPLAINED, CauseSummary, Diagnosis, WhatIf
from latfix.results.worker_summary import worker_rows
from latfix.run_record.chunked_record import RecordSource
from latfix.run_record.run_record import RunRecord
from latfix.stages import STAGES
from latfix.statistics.latency_summary import percentile_ns, summarize_ms, summary_intervals_ms

_DEFAULT_PERCENTILE = 99.0


def diagnose(
    record: RunRecord | RecordSource,
    *,
    percentile: float | None = None,
    seed: int = 0,
    bootstrap: int = 200,
    scale: Scale | None = None,
    sink: Sink | None = None,
) -> Diagnosis:
    """Attribute a run's tail to causes.

    :param percentile: where the tail begins, 0 to 100; the run's objective, or 99, where ``None``.
    :param seed: of the bootstrap.
    :param bootstrap: replicates for the causes' intervals.
    :param scale: how a large record is divided, and from which size on.
    :param sink: gets the whole ledger, in parts where the record is large; the diagnosis then has the slowest rows.
    """
    objective = record.meta.get("objective") or {}
    q = float(percentile if percentile is not None else objective.get("percentile", _DEFAULT_PERCENTILE))
    if not isinstance(record, RunRecord) or len(record.requests["index"]) > (scale or Scale()).limit:
        source = WholeRecord(record) if isinstance(record, RunRecord) else record
        return diagnose_large(source, q, seed=seed, bootstrap=bootstrap, scale=scale, sink=sink)
    evidence = gather(record)
    books = make_books(evidence)
    ledger = replace(books.ledger, ids=tuple(record.traffic.ids[k] for k in books.ledger.request.tolist()))
    if sink is not None:
        sink(ledger)
    tail = cut_tail(ledger, q, doubt=doubt_of(evidence, books), seed=seed, replicates=bootstrap, once=ONCE)
    latency_ms = summarize_ms(ledger.latency_ns)
    floors = floors_ms(latency_ms["p50"], tail.excess_ms, record.meta, chance_wait_ns(books.line, q, seed=seed))
    floors = above_noise(floors, tail, q, books)
    causes = _summaries(evidence, replace(books, ledger=ledger), tail, floors)
    over_time = windows_of(evidence, ledger, [each.cause for each in causes if worth_a_course(each)], seed=seed)
    causes = tuple(
        replace(cause, active=over_time.active[cause.cause]) if cause.cause in over_time.active else cause
        for cause in causes
    )
    verdict = judge(causes, tail, latency_ms, q, percentile_ns(ledger.latency_ns, q) / 1e6)
    lag_ms = _lag_ms(record)
    share = {cause.cause: cause.tail_share for cause in causes}
    own_lag = percentile_ns(ledger.own_ns[ledger.causes.index("observer")], 99) / 1e6
    late = dispatch_trust(own_lag, latency_ms["p50"], share.get("observer", 0.0))
    notes = warnings(record, evidence, tail, causes, q)
    unexplained = next((cause.tail_ms for cause in causes if cause.cause == UNEXPLAINED), 0.0)
    return Diagnosis(
        workload=str(record.meta.get("workload", "")),
        device=str(record.meta.get("device", "cpu")),
        requests=record.counts(),
        latency_ms=latency_ms,
        latency_ci95_ms=summary_intervals_ms(ledger.latency_ns, seed=seed),
        stages_ms=_stages_ms(evidence, books, tail),
        verdict=verdict.word,
        sentence=verdict.sentence,
        percentile=q,
        excess_ms=tail.excess_ms,
        reference_ms=ledger.reference_ns / 1e6,
        unexplained_ms=unexplained,
        causes=causes,
        dispatch_ms=lag_ms,
        throughput_rps=_throughput(evidence),
        overhead=overhead_of(record.meta),
        ledger=ledger,
        partial=record.partial,
        trustworthy=late is None,
        notes=tuple([late, *notes] if late else notes),
        whatif=_joint(books, causes),
        windows=over_time.windows,
        workers=worker_rows(record, q),
        **_trust(evidence, books, tail),
    )


def write_causes(diagnosis: Diagnosis, path: Path) -> None:
    """Write ``causes.parquet``: a row for each nonzero entry of the ledger, by the requests' ids."""
    with CausesFile(path) as file:
        file.add(diagnosis.ledger)


def _summaries(evidence: Evidence, books: Books, tail: Tail, floors: Mapping[str, float]) -> tuple[CauseSummary, ...]:
    ledger = books.ledger
    present = [k for k in range(len(CAUSES)) if ledger.own_ns[k].any() or ledger.propagated_ns[k].any()]
    whatif = without(books, [{CAUSES[k].id} for k in present])
    result = [
        summarize_cause(
            k,
            evidence,
            tail,
            floors[CAUSES[k].id],
            predicted,
            requests=int(np.count_nonzero(ledger.own_ns[k] > OWN_FLOOR_NS)),
            largest_ns=float(ledger.own_ns[k].max(initial=0)),
        )
        for k, predicted in zip(present, whatif, strict=True)
    ]
    return tuple(sorted(result, key=lambda entry: -entry.tail_ms))


def _joint(books: Books, causes: tuple[CauseSummary, ...]) -> tuple[WhatIf, ...]:
    """Percentiles predicted with the two and with the three largest causes removed together."""
    largest = [cause.cause for cause in causes if cause.cause != UNEXPLAINED and cause.tail_ms > 0]
    removals = [largest[:count] for count in (2, 3) if len(largest) >= count]
    predictions = without(books, removals)
    return tuple(WhatIf(without=tuple(removed), **each) for removed, each in zip(removals, predictions, strict=True))


def _stages_ms(evidence: Evidence, books: Books, tail: Tail) -> dict[str, dict[str, float]]:
    stages: dict[str, dict[str, float]] = {}
    for stage in STAGES:
        values = evidence.rows[f"{stage}_ns"][evidence.ok]
        stages[stage] = {
            "mean": _mean_ms(values),
            "p50": percentile_ns(values, 50) / 1e6,
            "p99": percentile_ns(values, 99) / 1e6,
            "reference": books.stages.get(stage, 0) / 1e6,
            "tail": _mean_ms(values[tail.members]),
        }
    return stages


def _mean_ms(values: npt.NDArray[Any]) -> float:
    return float(values.mean()) / 1e6 if len(values) else 0.0


def _lag_ms(record: RunRecord) -> dict[str, float]:
    lag = record.requests["dispatch_ns"][record.measured]
    return {
        "p50": percentile_ns(lag, 50) / 1e6,
        "p99": percentile_ns(lag, 99) / 1e6,
        "max": float(lag.max(initial=0)) / 1e6,
    }


def _throughput(evidence: Evidence) -> float:
    arrival = evidence.rows["arrival_ns"][evidence.ok]
    if not len(arrival):
        return 0.0
    span = int((arrival + evidence.rows["latency_ns"][evidence.ok]).max() - arrival.min())
    return len(arrival) / (span / 1e9) if span > 0 else 0.0


def _trust(evidence: Evidence, books: Books, tail: Tail) -> dict[str, Any]:
    """Figures that say how far the attribution can be trusted."""
    rows = evidence.rows
    served = rows["latency_ns"] - rows["queue_ns"] - rows["prepare_wait_ns"] - evidence.window
    quiet = served[evidence.quiet]
    gap = float(books.ledger.reference_ns) - float(np.median(quiet)) if len(quiet) else 0.0
    closure = books.closure_ns[tail.members]
    return {
        "reference_gap_ms": gap / 1e6,
        "quiet_requests": len(quiet),
        "queue_closure_ms": _mean_ms(closure),
        "models": evidence.expected.quality(),
    }
