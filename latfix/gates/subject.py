"""The input of gates: figures of one run, or of one side of a comparison, and ratios of any percentile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from latfix.arrays import Floats
from latfix.formatting import LATENCY_KEYS, finite, interval_bounds
from latfix.stages import Status
from latfix.statistics.censored import Outcomes, beyond_any, outcomes_of
from latfix.statistics.decision import FINAL, RatioEstimate, Rule
from latfix.statistics.distributions import normal_quantile
from latfix.statistics.percentiles import Bounds, beyond_summary, percentile_figures, percentile_key, percentile_of
from latfix.statistics.score_bounds import Rounds, decision_bounds

if TYPE_CHECKING:
    from latfix.results.diagnosis import Diagnosis
    from latfix.run_record.chunked_record import RecordSource
    from latfix.run_record.run_record import RunRecord

#: The 95 % interval of the requests in these replays, without an allowance for restarts.
_SHOWN = Rule(level=0.05, restart_sd=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSubject:
    """One run, or one side of a comparison.

    :param latency_ms: by :data:`latency_summary.LATENCY_KEYS`, and by the key of any other percentile that
        a gate needs (:meth:`with_percentiles`); percentiles of all that arrived, the mean of those that ended ``ok``.
    :param latency_ci95_ms: their intervals; a figure without one is exact.
    :param ratio: over the baseline, if both replayed the same traffic; narrower than two intervals.
    :param requests: how many ended in each status.
    :param throughput_rps: requests ended ``ok`` per second.
    :param accuracy: the workload's score; ``None`` if it was not measured.
    :param cause_shares: of the tail's excess, by cause; ``None`` without a diagnosis.
    :param seen: causes that the source of the diagnosis can show; ``None`` for all.
    :param trustworthy: False if the replay itself was too late for latencies to mean anything.
    :param partial: the run did not reach its end.
    :param losses_known: False if a recording does not say how requests ended.
    :param round_s: seconds that a further round of a comparison would take; ``None`` if unknown.
    """

    latency_ms: Mapping[str, float]
    requests: Mapping[str, int]
    latency_ci95_ms: Mapping[str, Bounds] = field(default_factory=dict)
    ratio: Mapping[str, RatioEstimate] = field(default_factory=dict)
    throughput_rps: float | None = None
    accuracy: float | None = None
    unexplained_share: float | None = None
    cause_shares: Mapping[str, float] | None = None
    cause_shares_ci95: Mapping[str, Bounds] = field(default_factory=dict)
    seen: frozenset[str] | None = None
    trustworthy: bool = True
    partial: bool = False
    losses_known: bool = True
    round_s: float | None = None

    @property
    def total(self) -> int:
        """Requests that ended, in any status."""
        return sum(count for status, count in self.requests.items() if status != "unfinished")

    @property
    def lost(self) -> int:
        """Requests that failed, timed out, or were shed."""
        return self.total - self.requests.get("ok", 0)

    @property
    def lost_share(self) -> float:
        """:attr:`lost` over :attr:`total`; 0 if none ended."""
        return self.lost / self.total if self.total else 0.0

    @property
    def rate_rps(self) -> float | None:
        """Requests per second, ``ok`` or not; ``None`` if unknown."""
        ok = self.requests.get("ok", 0)
        return self.throughput_rps * self.total / ok if ok and self.throughput_rps else None

    def figure(self, metric: str) -> float | None:
        """A gate's figure in milliseconds, requests per second, or as a share; ``None`` if it was not measured."""
        if metric in LATENCY_KEYS or percentile_of(metric) is not None:
            return self.latency_ms.get(metric)
        if metric == "error_rate":
            return self.lost_share if self.losses_known else None
        if metric == "throughput":
            return self.throughput_rps
        if metric == "accuracy":
            return self.accuracy
        if metric == "unexplained_share" or (
            self.unexplained_share is not None and math.isnan(self.unexplained_share)
        ):
            return self.unexplained_share  # without a known tail, no cause's share of it is known either
        if self.cause_shares is None or self.hides(metric):
            return None
        return self.cause_shares.get(metric.removeprefix("cause:"), 0.0)

    def hides(self, metric: str) -> bool:
        """True for a cause that the source of the diagnosis cannot show: its share is unknown, not zero."""
        cause = metric.removeprefix("cause:")
        return cause != metric and self.seen is not None and cause not in {*self.seen, *(self.cause_shares or ())}

    def interval(self, metric: str) -> Bounds | None:
        """The interval of a latency or of a cause's share; ``None``: exact, or computed in :mod:`gates.bounds`."""
        if metric.startswith("cause:"):
            return self.cause_shares_ci95.get(metric.removeprefix("cause:"))
        return self.latency_ci95_ms.get(metric)

    def with_percentiles(self, metrics: Iterable[str], source: RunRecord | RecordSource | Outcomes) -> GateSubject:
        """Add the percentiles among ``metrics`` that the summary lacks, computed from the run's requests."""
        wanted = beyond_summary(metric for metric in metrics if metric not in self.latency_ms)
        if not wanted:
            return self
        outcomes = source if isinstance(source, Outcomes) else outcomes_of(source)
        figures, intervals = percentile_figures(outcomes, wanted)
        return replace(
            self,
            latency_ms={**self.latency_ms, **figures},
            latency_ci95_ms={**self.latency_ci95_ms, **intervals},
        )

    @classmethod
    def from_diagnosis(cls, found: Diagnosis) -> GateSubject:
        """The figures of a diagnosis."""
        excess = found.excess_ms
        bounds = {cause.cause: interval_bounds(cause.ci95_ms) for cause in found.causes}
        return cls(
            latency_ms=found.latency_ms,
            requests=found.counts,
            latency_ci95_ms={
                key: (low, math.inf if math.isnan(high) else high)
                for key, (low, high) in found.latency_ci95_ms.items()
                if math.isfinite(low)
            },
            losses_known=found.requests.get("error", 0) is not None,
            throughput_rps=finite(found.throughput_rps),
            unexplained_share=found.unexplained_share,
            cause_shares={cause.cause: cause.tail_share for cause in found.causes if math.isfinite(cause.tail_share)},
            cause_shares_ci95={
                cause: (pair[0] / excess, pair[1] / excess)
                for cause, pair in bounds.items()
                if pair is not None and excess > 0
            },
            seen=None if found.source is None or found.source.kind == "replay" else frozenset(found.seen),
            trustworthy=found.trustworthy,
            partial=found.partial,
        )


def with_percentile_ratios(
    new: GateSubject, base: GateSubject, records: tuple[RunRecord, RunRecord], metrics: Iterable[str]
) -> tuple[GateSubject, GateSubject]:
    """Both sides of a comparison with those percentiles among ``metrics`` that the summary lacks.

    :param records: the run and its baseline, one round.
    """
    names = tuple(metrics)
    wanted = beyond_summary(metric for metric in names if metric not in new.ratio)
    new, base = new.with_percentiles(names, records[0]), base.with_percentiles(names, records[1])
    if not wanted:
        return new, base
    return replace(new, ratio={**new.ratio, **percentile_ratios(*records, wanted)}), base


def percentile_ratios(new: RunRecord, base: RunRecord, percentiles: Iterable[float]) -> dict[str, RatioEstimate]:
    """New over base by key, paired by request; empty if they did not replay the same traffic."""
    digests = [record.meta.traffic_sha256 for record in (new, base)]
    if digests[0] is None or digests[0] != digests[1]:
        return {}
    ours, theirs = _latencies(new), _latencies(base)
    size = min(len(ours), len(theirs))  # requests that only one run reached are not compared
    rounds = Rounds.of(*beyond_any([theirs[:size]], [ours[:size]]), paired=True)
    return {percentile_key(q): _estimate(rounds, q / 100) for q in percentiles}


def _estimate(rounds: Rounds, q: float) -> RatioEstimate:
    value = math.exp(rounds.log_ratio(q))
    lo, hi = decision_bounds(rounds, q, _SHOWN)
    least, most = decision_bounds(rounds, q, FINAL)
    known = 0 < lo <= hi < math.inf
    within = math.log(hi / lo) / 2 / normal_quantile(0.95) if known else math.nan
    return RatioEstimate(
        value=value,
        lo=lo,
        hi=hi,
        decision=(min(least, lo), max(most, hi)),
        level=FINAL.level,
        spread=math.hypot(within, FINAL.restart_sd / 2),  # as in bootstrap_ratio, for a single round
    )


def _latencies(record: RunRecord) -> Floats:
    """Nanoseconds by position in the schedule; infinite if a request was lost, NaN if it has no record."""
    measured = record.measured
    index, status = record.requests["index"][measured], record.requests["status"][measured]
    found = np.full(int(index.max()) + 1 if len(index) else 0, math.nan)
    found[index] = np.where(status == Status.OK, record.requests["latency_ns"][measured], math.inf)
    return found
