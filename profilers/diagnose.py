"""A run's record in, its diagnosis out. Pure: the same record and seed give the same diagnosis."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from latfix.cause_catalogue import UNEXPLAINED
from latfix.formatting import LATENCY_KEYS
from latfix.lower_bound import in_unit
from latfix.profilers.attribution.ledger_parquet import causes_file
from latfix.profilers.attribution.lost_requests import lost_requests
from latfix.profilers.attribution.naming_rule import deserves_timeline, floors_ms, overhead_of, summarize_cause
from latfix.profilers.attribution.noise_floors import above_noise, chance_wait_ns
from latfix.profilers.attribution.tail import Tail
from latfix.profilers.attribution.verdict import Loss, judge, late_words, warnings
from latfix.profilers.causes import CAUSES
from latfix.profilers.causes.host.core_takers import disturbance
from latfix.profilers.chunked.chunk_ledgers import (
    Baselines,
    Scale,
    Sink,
    chunk_ledgers,
    learn,
    learn_all,
    whole_ledger,
)
from latfix.profilers.chunked.record_chunks import WholeRecord
from latfix.profilers.chunked.run_intervals import cut_tail, latency_intervals_ms
from latfix.profilers.chunked.run_totals import RunTotals
from latfix.profilers.chunked.survey import Survey, survey_record, survey_rows
from latfix.profilers.code_lines.slow_lines import slow_lines, stack_times
from latfix.profilers.drilldown.incident import incident_of
from latfix.profilers.evidence.outside.outside_view import Serving
from latfix.profilers.evidence.outside.serving_processes import served_by
from latfix.profilers.evidence.run_baselines import quiet_median
from latfix.profilers.over_time.active_intervals import activity
from latfix.profilers.services.server_advice import with_advice
from latfix.profilers.services.service_figures import service_figures, slower_process
from latfix.results.diagnosis import CauseSummary, Diagnosis, Incident, Slowest, Source, WhatIf
from latfix.run_record.chunked_record import RecordSource
from latfix.run_record.run_record import RunRecord
from latfix.stages import status_counts
from latfix.statistics.latency_summary import QUANTILES, summarize_ms
from latfix.statistics.quantile_sketch import Distribution
from latfix.traffic.parsed_fields import RECORDED, recorded_summary_ms

_NUMBER = {cause.id: k for k, cause in enumerate(CAUSES)}


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

    A record of at most ``scale.limit`` requests is laid out at once; a larger one chunk by chunk, in constant memory.

    :param percentile: start of the tail, 0 to 100; by default the run's objective, or 99.
    :param seed: of the bootstrap; ``bootstrap`` is its number of replicates.
    :param sink: receives the ledger of each chunk, in order; a diagnosis of several chunks keeps the slowest rows
        only.
    """
    q = record.meta.objective.percentile if percentile is None else float(percentile)
    scale = scale or Scale()
    source = WholeRecord(record) if isinstance(record, RunRecord) else record
    wanted = sorted({q, *(100 * fraction for fraction in QUANTILES.values())})
    if len(source) <= scale.limit:
        baselines = learn_all(source.stretch(0, len(source)), q)
        whole = whole_ledger(baselines)
        seen, chunks, ledgers = survey_rows(whole.evidence, wanted), 1, iter([whole])
    else:
        cuts, seen = survey_record(source, wanted, scale.chunk)
        baselines = learn(source, cuts, q, scale)
        chunks, ledgers = len(cuts), chunk_ledgers(source, cuts, baselines)
    totals = RunTotals(seen, baselines, q, scale)
    for chunk in ledgers:
        totals.add(chunk)
        if sink is not None:
            sink(chunk.ledger)
    tail = cut_tail(totals, baselines, q, seed=seed, replicates=bootstrap)
    found = _Findings(source, q, seed, chunks, seen, baselines, totals, tail).diagnosis()
    if not record.meta.is_http:
        return found
    return with_advice(found, str(record.meta.http.get("server", "")), record.meta.program)


def write_causes(diagnosis: Diagnosis, path: Path) -> None:
    """Write ``causes.parquet``: one row per nonzero ledger entry, by request id."""
    with causes_file(path) as add:
        add(diagnosis.ledger)


@dataclass(frozen=True, slots=True)
class _Findings:
    """The inputs of a diagnosis, and its assembly."""

    source: RecordSource
    percentile: float
    seed: int
    chunks: int
    seen: Survey
    baselines: Baselines
    totals: RunTotals
    tail: Tail

    def diagnosis(self) -> Diagnosis:
        meta, totals, tail, q = self.source.meta, self.totals, self.tail, self.percentile
        statuses = status_counts(totals.statuses.tolist())
        ok_ms, latency_ms = self._ok_ms(), self._latency_ms()
        floors = self._floors_ms(ok_ms["p50"])
        causes = self._causes(floors)
        by_id = {cause.cause: cause for cause in causes}
        known = self.baselines
        losses = lost_requests(self.source, known.evidence, known.books, known.sample)
        lost = Loss.of(losses, meta.state)
        incident, at_ms = self._incident(), in_unit(self.seen.arrived_ns[q], 1e6)
        at_once, chance_ms = incident is not None, floors["traffic.burst"]
        verdict, sentence = judge(causes, tail, ok_ms, q, at_ms, lost, at_once=at_once, chance_ms=chance_ms)
        late = late_words(totals.lag.percentile(99) / 1e6, ok_ms["p50"])
        run = replace(self.baselines.sample, totals=statuses, partial=self.source.partial)
        notes = warnings(run, self.baselines.evidence, tail, causes, q)
        disturbed = disturbance(self.baselines.sample.samples)
        ledger, outside = totals.ledger(), self._outside()
        if service := outside.get("service"):
            notes += filter(None, [slower_process(service)])
        if not totals.exact:
            notes.append(
                f"{totals.requests:,} requests were attributed in pieces: references, models and the counts in the "
                f"causes' sentences come from sample stretches of the run, and only the {len(ledger.request):,} "
                "slowest requests are shown individually."
            )
        return Diagnosis(
            workload=meta.workload,
            device=meta.device,
            requests=statuses,
            latency_ms=latency_ms,
            latency_ms_ok=ok_ms,
            latency_ci95_ms=self._intervals_ms(latency_ms),
            stages_ms=self._stages_ms(),
            verdict=verdict,
            sentence=sentence,
            percentile=q,
            slo_ms=meta.objective.slo_ms if q == meta.objective.percentile else None,
            excess_ms=tail.excess_ms,
            reference_ms=self.baselines.reference_ns / 1e6,
            unexplained_ms=by_id[UNEXPLAINED].tail_ms if UNEXPLAINED in by_id else 0.0,
            causes=causes,
            dispatch_ms={**_percentiles_ms(totals.lag, 50, 99), "max": totals.lag.largest / 1e6},
            throughput_rps=totals.throughput.rps,
            overhead=overhead_of(meta),
            ledger=ledger,
            lost=losses,
            partial=self.source.partial,
            trustworthy=late is None,
            notes=(
                *([f"The machine was disturbed: {disturbed}."] if disturbed else []),
                *([late] if late else []),
                *notes,
            ),
            disturbed=disturbed,
            recorded_ms=recorded_summary_ms(self.baselines.sample.traffic.features.get(RECORDED)),
            largest=Slowest.of(ledger),
            **outside,
            incident=incident,
            **self._extra(causes),
        )

    def _ok_ms(self) -> dict[str, float]:
        if not self.totals.requests:
            return dict.fromkeys(LATENCY_KEYS, math.nan)
        if self.totals.kept is not None:
            return summarize_ms(self.totals.kept.ledger.latency_ns)
        exact = {key: self.seen.percentiles_ns[100 * q] / 1e6 for key, q in QUANTILES.items()}
        exact["mean"] = self.totals.latency.total / self.totals.requests / 1e6
        exact["max"] = self.totals.latency.largest / 1e6
        return {key: exact[key] for key in LATENCY_KEYS}

    def _latency_ms(self) -> dict[str, float]:
        ok_ms, arrived = self._ok_ms(), self.seen.arrived_ns
        figures = {key: in_unit(arrived[100 * q], 1e6) for key, q in QUANTILES.items()}
        figures |= {"mean": ok_ms["mean"], "max": in_unit(arrived[100.0], 1e6)}
        return {key: figures[key] for key in LATENCY_KEYS}

    def _intervals_ms(self, latency_ms: Mapping[str, float]) -> dict[str, tuple[float, float]]:
        if self.seen.outcomes is not None:
            return self.seen.outcomes.intervals_ms(seed=self.seed)
        found = latency_intervals_ms(self.totals, self.seen.histogram)
        return {key: (min(lo, latency_ms[key]), max(hi, latency_ms[key])) for key, (lo, hi) in found.items()}

    def _causes(self, floors: Mapping[str, float]) -> tuple[CauseSummary, ...]:
        """Every cause with a nonzero entry, largest first; the important ones with their activity over time."""
        totals = self.totals
        causes = [
            summarize_cause(
                k,
                self.baselines.evidence,
                self.tail,
                floors[CAUSES[k].id],
                _percentiles_ms(totals.without[k], 50, 95, 99),
                self.source.meta,
                requests=int(totals.touched[k]),
                largest_ns=float(totals.largest[k]),
            )
            for k in np.flatnonzero(totals.present).tolist()
        ]
        causes.sort(key=lambda entry: -entry.tail_ms)
        start_s, end_s = totals.span_s
        return tuple(
            replace(
                cause,
                active=activity(*totals.strikes(_NUMBER[cause.cause]), start_s=start_s, end_s=end_s, seed=self.seed),
            )
            if deserves_timeline(cause)
            else cause
            for cause in causes
        )

    def _floors_ms(self, p50_ms: float) -> dict[str, float]:
        """By cause, the milliseconds that its interval must exceed for the cause to be named."""
        books, sent = self.baselines.books, self.totals.sent
        span_ns = float(self.totals.sent_last_ns - self.totals.sent_first_ns)
        shared, several = self.baselines.evidence.shared, self.baselines.evidence.setup.processes
        # Several processes could serve one queue: that requests wait in one while another is idle is no chance.
        if shared.cores:
            together = replace(shared, cores=several * shared.cores)
            chance = together.chance_wait_ns(sent, span_ns, 1 - self.percentile / 100, self.seed)
        else:
            workers = replace(books.line.workers, workers=several * books.line.workers.workers)
            line = replace(books.line, workers=workers)
            chance = chance_wait_ns(line, self.percentile, arrivals=sent, span_ns=span_ns, seed=self.seed)
        floors = floors_ms(p50_ms, self.tail.excess_ms, chance)
        return above_noise(floors, self.tail, self.percentile, books)

    def _stages_ms(self) -> dict[str, dict[str, float]]:
        totals, evidence, reference = self.totals, self.baselines.evidence, self.baselines.books.stages
        if evidence.setup.outside:
            reference = {stage: quiet_median(evidence.stage_ns(stage), evidence.quiet) for stage in totals.stages}
        stages = {
            stage: {
                "mean": taken.total / max(totals.requests, 1) / 1e6,
                **_percentiles_ms(taken, 50, 99),
                "reference": reference.get(stage, 0) / 1e6,
                "tail": totals.tail_stages_ns[stage] / max(totals.tail, 1) / 1e6,
            }
            for stage, taken in totals.stages.items()
        }
        if evidence.setup.servers == 0 and "queue" not in evidence.told.parts:  # the queue is not visible
            stages["queue"] = dict.fromkeys(stages["queue"], math.nan)
        return stages

    def _outside(self) -> dict[str, Any]:
        """For a service behind an address: its address and its figures."""
        meta, setup = self.source.meta, self.baselines.evidence.setup
        if setup.servers is None:
            return {}
        serving = Serving(servers=setup.servers, rule=setup.rule)
        record = self.source.stretch(0, len(self.source))
        served = np.zeros(0, np.int64) if setup.unknown_process else served_by(record)
        return {
            "seen": tuple(cause.id for cause in CAUSES if cause.shows(self.baselines.evidence)),
            "source": Source(kind="http", path=str(meta.source.get("path", ""))),
            "service": service_figures(record, serving, self.totals.tail_ns, served),
        }

    def _extra(self, causes: tuple[CauseSummary, ...]) -> dict[str, Any]:
        """Figures on the attribution's quality, over time, and by worker."""
        totals, evidence, books = self.totals, self.baselines.evidence, self.baselines.books
        rows = evidence.rows
        served = (rows["latency_ns"] - rows["queue_ns"] - rows["prepare_wait_ns"] - evidence.window)[evidence.quiet]
        gap = float(books.ledger.reference_ns) - float(np.median(served)) if len(served) else 0.0
        weighty = {cause.cause for cause in causes if deserves_timeline(cause)}
        numbers = {cause: k for cause, k in _NUMBER.items() if cause in weighty}
        windows = totals.windows.windows(numbers) if totals.windows is not None else ()
        stacks = stack_times(evidence, self.source.meta.stacks)
        return {
            "reference_gap_ms": gap / 1e6,
            "quiet_requests": totals.quiet,
            "queue_closure_ms": totals.closure_ns / max(totals.tail, 1) / 1e6,
            "lock_closure_ms": totals.lock_closure_ns / max(totals.tail, 1) / 1e6,
            "models": {unit: model.quality() for unit, model in evidence.expected.models.items()},
            "whatif": tuple(
                WhatIf(without=removed, **_percentiles_ms(latencies, 50, 95, 99))
                for removed, latencies in zip(totals.removals, totals.without, strict=True)
                if len(removed) > 1
            ),
            "another_worker_ms": _percentiles_ms(more, 50, 95, 99)
            if (more := totals.another_worker) is not None
            else {},
            "windows": windows,
            "learned_from": len(evidence.ok),
            "pieces": self.chunks,
            "workers": totals.workers.rows(self.source.notes()),
            "lines": slow_lines(stacks, self.source.meta.workload_folder),
            "stacks": stacks,
        }

    def _incident(self) -> Incident | None:
        kept = self.totals.kept
        if kept is None:
            return None
        return incident_of(kept.evidence, kept.ledger, kept.books.line, self.totals.tail_ns, self.totals.span_s)


def _percentiles_ms(values: Distribution, *percentiles: int) -> dict[str, float]:
    return {f"p{q}": values.percentile(q) / 1e6 for q in percentiles}
