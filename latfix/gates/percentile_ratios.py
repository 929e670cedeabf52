"""The ratio of any percentile of two runs, by the same bounds as those of the summary's percentiles."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from latfix.gates.metrics import GateSubject
from latfix.run_record.run_record import RunRecord
from latfix.stages import Status
from latfix.statistics.decision import FINAL, RatioEstimate, Rule
from latfix.statistics.distributions import normal_quantile
from latfix.statistics.percentiles import beyond_summary, percentile_key
from latfix.statistics.score_bounds import Rounds, decision_bounds

Floats = npt.NDArray[np.float64]

#: The 95 % interval of what the requests of these replays show, whatever a restart does.
_SHOWN = Rule(level=0.05, restart_sd=0.0)


def with_percentile_ratios(
    new: GateSubject, base: GateSubject, records: tuple[RunRecord, RunRecord], metrics: Iterable[str]
) -> tuple[GateSubject, GateSubject]:
    """Both sides of a comparison with the percentiles among some metrics that the summary lacks.

    :param records: the run and its baseline, one round.
    """
    asked = tuple(metrics)
    wanted = beyond_summary(metric for metric in asked if metric not in new.ratio)
    new, base = new.with_percentiles(asked, records[0]), base.with_percentiles(asked, records[1])
    if not wanted:
        return new, base
    return replace(new, ratio={**new.ratio, **percentile_ratios(*records, wanted)}), base


def percentile_ratios(new: RunRecord, base: RunRecord, percentiles: Iterable[float]) -> dict[str, RatioEstimate]:
    """New over base by key, request by request; empty where they did not replay the same traffic."""
    digests = [record.meta.get("traffic_sha256") for record in (new, base)]
    if digests[0] is None or digests[0] != digests[1]:
        return {}
    ours, theirs = _latencies(new), _latencies(base)
    size = min(len(ours), len(theirs))  # what only one of them got to is not compared
    rounds = Rounds.of([theirs[:size]], [ours[:size]], paired=True)
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
        spread=math.hypot(
            within, FINAL.restart_sd / 2
        ),  # as in latfix.statistics.bootstrap_ratio, for a single round
    )


def _latencies(record: RunRecord) -> Floats:
    """By position in the schedule, nanoseconds; NaN where a request did not end ``ok`` or has no record."""
    measured = record.measured
    index, status = record.requests["index"][measured], record.requests["status"][measured]
    found = np.full(int(index.max()) + 1 if len(index) else 0, math.nan)
    found[index] = np.where(status == Status.OK, record.requests["latency_ns"][measured], math.nan)
    return found
