"""A large run's diagnosis from its sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from latfix.formatting import LATENCY_KEYS
from latfix.profilers.attribution.machine_noise_floor import above_noise
from latfix.profilers.attribution.naming_rule import floors_ms, overhead_of, summarize_cause, worth_a_course
from latfix.profilers.attribution.queueing_noise_floor import chance_wait_ns
from latfix.profilers.attribution.tail import Tail
from latfix.profilers.attribution.verdict import dispatch_trust, judge, warnings
from latfix.profilers.causes import CAUSES
from latfix.profilers.chunked.accumulated_tail import cut_block_tail, latency_intervals_ms, moved_references
from latfix.profilers.chunked.accumulators import RunTally, stacked
from latfix.profilers.chunked.chunked_attribution import Lesson, Scale, Sink, lay_out, learn, tally_pieces
from latfix.profilers.chunked.first_pass import Survey, survey
from latfix.profilers.over_time.active_intervals import activity
from latfix.results.diagnosis import UNEXPLAINED, CauseSummary, Diagnosis, WhatIf, Window
from latfix.run_record.chunked_record import RecordSource
from latfix.run_record.run_record import RunRecord
from latfix.stages import STATUS_NAMES
from latfix.statistics.latency_summary import QUANTILES
from latfix.statistics.quantile_sketch import LogHistogram

_PREDICTED = (50, 95, 99)
#: A percentile is told of a window where so many requests rest on it.
_WINDOW_PERCENTILES: Mapping[int, int] = {50: 5, 95: 40, 99: 100}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """All that a diagnosis is made from."""

    meta: Mapping[str, Any]
    partial: bool
    percentile: float
    seed: int
    replicates: int
    seen: Survey
    lesson: Lesson
    tally: RunTally

    @property
    def seconds(self) -> tuple[float, float]:
        """First and last arrival."""
        return self.seen.first_ns / 1e9, self.seen.last_ns / 1e9


def diagnose_large(
    source: RecordSource,
    percentile: float,
    *,
    seed: int = 0,
    bootstrap: int = 200,
    scale: Scale | None = None,
    sink: Sink | None = None,
) -> Diagnosis:
    """Attribute a large run's tail to causes, in memory that does not grow with the run.

    :param percentile: where the tail begins, 0 to 100.
    :param sink: gets the ledgers of the pieces, in order, ids included; the diagnosis holds the slowest rows only.
    """
    scale = scale or Scale()
    wanted = sorted({percentile, *(100 * q for q in QUANTILES.values())})
    seen = survey(source, wanted, scale.piece)
    lesson = learn(source, seen.pieces, percentile, scale)
    layout = lay_out(seen, lesson, percentile, scale)
    tally = tally_pieces(source, seen.pieces, layout, lesson.norms, lesson.reference_ns, sink=sink)
    run = _Run(
        meta=source.meta,
        partial=source.partial,
        percentile=percentile,
        seed=seed,
        replicates=bootstrap,
        seen=seen,
        lesson=lesson,
        tally=tally,
    )
    return _diagnosis(run, scale)


def _diagnosis(run: _Run, scale: Scale) -> Diagnosis:
    tally, lesson, q = run.tally, run.lesson, run.percentile
    latency_ms = _latency_ms(run)
    sample_latency = lesson.books.ledger.latency_ns
    moved = moved_references(lesson.doubt, sample_latency, len(CAUSES), seed=run.seed, replicates=run.replicates)
    tail = cut_block_tail(tally, lesson.reference_ns, q, moved, seed=run.seed, replicates=run.replicates)
    causes = _with_course(run, _summaries(run, tail, _floors_ms(run, tail, latency_ms)))
    verdict = judge(causes, tail, latency_ms, q, run.seen.percentiles_ns[q] / 1e6)
    share = {cause.cause: cause.tail_share for cause in causes}
    late = dispatch_trust(tally.observed.percentile(99) / 1e6, latency_ms["p50"], share.get("observer", 0.0))
    whole = _whole(run)
    notes = warnings(whole, lesson.evidence, tail, causes, q)
    notes.append(_kept_note(scale, tally))
    unexplained = next((cause.tail_ms for cause in causes if cause.cause == UNEXPLAINED), 0.0)
    return Diagnosis(
        workload=str(run.meta.get("workload", "")),
        device=str(run.meta.get("device", "cpu")),
        requests=whole.counts(),
        latency_ms=latency_ms,
        latency_ci95_ms=latency_intervals_ms(tally, run.seen.latency),
        stages_ms=_stages_ms(run),
        verdict=verdict.word,
        sentence=verdict.sentence,
        percentile=q,
        excess_ms=tail.excess_ms,
        reference_ms=lesson.reference_ns / 1e6,
        unexplained_ms=unexplained,
        causes=causes,
        dispatch_ms={**_percentiles_ms(tally.lag, (50, 99)), "max": tally.lag_largest / 1e6},
        throughput_rps=_throughput(run),
        overhead=overhead_of(run.meta),
        ledger=stacked(tally.listed, scale.listed) if tally.listed else lesson.books.ledger,
        partial=run.partial,
        trustworthy=late is None,
        notes=tuple([late, *notes] if late else notes),
        **_extra(run),
    )


def _latency_ms(run: _Run) -> dict[str, float]:
    exact = {key: run.seen.percentiles_ns[100 * q] / 1e6 for key, q in QUANTILES.items()}
    exact["mean"] = run.tally.latency_total / max(run.tally.requests, 1) / 1e6
    exact["max"] = run.tally.latency_largest / 1e6
    return {key: exact[key] for key in LATENCY_KEYS}


def _whole(run: _Run) -> RunRecord:
    """The sample, with the counts of the whole run."""
    statuses = {name: int(count) for name, count in zip(STATUS_NAMES, run.tally.statuses, strict=True)}
    return replace(run.lesson.sample, totals=statuses, partial=run.partial)


def _kept_note(scale: Scale, tally: RunTally) -> str:
    return (
        f"{tally.requests:,} requests were attributed in pieces: references and models are learned from stretches "
        f"of the run, and only the {scale.listed:,} slowest requests are shown one by one."
    )


def _floors_ms(run: _Run, tail: Tail, latency_ms: Mapping[str, float]) -> dict[str, float]:
    line = run.lesson.books.line
    # The sample's stretches lie apart: the rate of arrivals is the whole run's.
    gap = (run.seen.last_ns - run.seen.first_ns) / max(run.tally.requests - 1, 1)
    even = replace(line, handed=np.arange(len(line.handed), dtype=np.float64) * max(gap, 1.0))
    chance = chance_wait_ns(even, run.percentile, seed=run.seed)
    floors = floors_ms(latency_ms["p50"], tail.excess_ms, run.meta, chance)
    return above_noise(floors, tail, run.percentile, run.lesson.books)


def _summaries(run: _Run, tail: Tail, floors: Mapping[str, float]) -> tuple[CauseSummary, ...]:
    present = np.flatnonzero(run.tally.present).tolist()
    result = [
        summarize_cause(
            k,
            run.lesson.evidence,
            tail,
            floors[CAUSES[k].id],
            _percentiles_ms(run.tally.without[k], _PREDICTED),
            requests=int(run.tally.touched[k]),
            largest_ns=float(run.tally.largest[k]),
        )
        for k in present
    ]
    return tuple(sorted(result, key=lambda entry: -entry.tail_ms))


def _with_course(run: _Run, causes: tuple[CauseSummary, ...]) -> tuple[CauseSummary, ...]:
    """Causes of weight, with when they were active: to a 4096th of the run."""
    tally, (start_s, end_s) = run.tally, run.seconds
    some = tally.moment_requests > 0
    edges = tally.layout.moments_ns
    middle = ((edges[:-1] + edges[1:]) / 2)[some].astype(np.int64)
    told = []
    for cause in causes:
        if worth_a_course(cause):
            own = tally.moment_own[[known.id for known in CAUSES].index(cause.cause)][some]
            when = activity(own.astype(np.int64), middle, start_s=start_s, end_s=end_s, seed=run.seed)
            told.append(replace(cause, active=when))
        else:
            told.append(cause)
    return tuple(told)


def _stages_ms(run: _Run) -> dict[str, dict[str, float]]:
    tally = run.tally
    return {
        stage: {
            "mean": known.total / max(tally.requests, 1) / 1e6,
            **_percentiles_ms(known.histogram, (50, 99)),
            "reference": run.lesson.books.stages.get(stage, 0) / 1e6,
            "tail": known.tail / max(tally.tail_requests, 1) / 1e6,
        }
        for stage, known in tally.stages.items()
    }


def _percentiles_ms(histogram: LogHistogram, percentiles: tuple[int, ...]) -> dict[str, float]:
    return {f"p{q}": histogram.percentile(q) / 1e6 for q in percentiles}


def _throughput(run: _Run) -> float:
    span = run.seen.ended_ns - run.seen.first_ns
    return run.tally.requests / (span / 1e9) if run.tally.requests and span > 0 else 0.0


def _extra(run: _Run) -> dict[str, Any]:
    evidence, tally, books = run.lesson.evidence, run.tally, run.lesson.books
    rows = evidence.rows
    served = (rows["latency_ns"] - rows["queue_ns"] - rows["prepare_wait_ns"] - evidence.window)[evidence.quiet]
    gap = float(books.ledger.reference_ns) - float(np.median(served)) if len(served) else 0.0
    joint = [
        WhatIf(without=tuple(removed), **_percentiles_ms(histogram, _PREDICTED))
        for removed, histogram in zip(tally.layout.removals, tally.without, strict=True)
        if len(removed) > 1
    ]
    return {
        "reference_gap_ms": gap / 1e6,
        "quiet_requests": tally.quiet,
        "queue_closure_ms": tally.closure / max(tally.tail_requests, 1) / 1e6,
        "models": evidence.expected.quality(),
        "whatif": tuple(joint),
        "windows": _windows(run),
        "learned_from": len(evidence.ok),
        "pieces": len(run.seen.pieces),
    }


def _windows(run: _Run) -> tuple[Window, ...]:
    tally = run.tally
    edges_s = tally.layout.edges_ns / 1e9
    told = [k for k, cause in enumerate(CAUSES) if tally.present[k]]
    windows = []
    for k, histogram in enumerate(tally.window_latency):
        count = len(histogram)
        windows.append(
            Window(
                start_s=float(edges_s[k]),
                end_s=float(edges_s[k + 1]),
                requests=count,
                offered_rps=float(tally.window_offered[k] / (edges_s[k + 1] - edges_s[k])),
                **{
                    f"p{q}_ms": histogram.percentile(q) / 1e6 if count >= least else None
                    for q, least in _WINDOW_PERCENTILES.items()
                },
                causes_ms={CAUSES[c].id: float(tally.window_entries[c, k] / max(count, 1) / 1e6) for c in told},
            )
        )
    return tuple(windows)
