"""The objective of a sweep: its percentile with an interval, and whether a load meets it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latfix.arrays import Floats
from latfix.statistics.block_bootstrap import block_length, evidence
from latfix.statistics.decision import Interval
from latfix.statistics.distributions import score_interval, student_t
from latfix.statistics.percentiles import independent_draws, quantile_of

#: With fewer requests beyond the percentile, a point is reported as short.
TAIL_REQUESTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyObjective:
    """The objective that loads must meet.

    :param percentile: from 1 to below 100.
    :param limit: seconds; ``None`` if there is none.
    """

    percentile: float = 99.0
    limit: float | None = None

    @property
    def allowed(self) -> float:
        """Share of requests that may be slower."""
        return 1.0 - self.percentile / 100.0

    def enough(self, n: int) -> bool:
        """True if ``n`` requests hold enough slow ones for the percentile."""
        return n * self.allowed >= TAIL_REQUESTS - 1e-9


def percentile_of(series: Sequence[Floats], percentile: float) -> Interval:
    """A percentile in seconds over replays of one load, where lost requests count as slower than any.

    The interval is Woodruff's (:func:`latfix.statistics.percentiles.percentile_interval`), with an infinite upper end
    if too few requests are that slow.

    :param series: latencies of each replay in order of arrival, in seconds.
    """
    values = np.sort(np.concatenate(list(series))) if series else np.zeros(0)
    n = len(values)
    if not n:
        return Interval(value=math.nan, lo=math.nan, hi=math.nan)
    share = 1.0 - percentile / 100.0
    value = quantile_of(values, percentile / 100.0)
    effective, freedom = _draws(series, value, share)
    lo, hi = score_interval(share, effective, student_t(0.95, freedom))
    return Interval(
        value=value, lo=min(_beyond(values, hi), value), hi=max(_beyond(values, lo, open_end=True), value)
    )


def slow_share(series: Sequence[Floats], age: Sequence[Floats], target: LatencyObjective) -> Interval:
    """The share of requests slower than the limit or lost.

    Slow requests come in clusters. The clustering is estimated from the requests beyond the limit if there are many,
    otherwise from those beyond the percentile: a run without slow requests does not prove as many independent
    successes.

    :param series: latencies of each replay, infinite for lost requests and those in flight at an early end.
    :param age: how long each was observed; a request in flight counts as slow only if this exceeds the limit.
    """
    assert target.limit is not None
    slow = [
        np.where(np.isfinite(latency), latency > target.limit, (old > target.limit) | (old < 0))
        for latency, old in zip(series, age, strict=True)
    ]
    n = sum(len(part) for part in slow)
    if not n:
        return Interval(value=math.nan, lo=0.0, hi=1.0)
    share = float(np.concatenate(slow).mean())
    effective, freedom = _draws([part.astype(np.float64) for part in slow], 0.5, max(share, 0.5 / n))
    if share <= target.allowed:
        # With few slow requests or none, their clustering is estimated at the percentile itself.
        value = quantile_of(np.sort(np.concatenate(list(series))), target.percentile / 100.0)
        usual, at_percentile = _draws(series, value, target.allowed)
        effective = min(effective, usual)
        freedom = max(at_percentile, effective * target.allowed, 3.0)
    lo, hi = score_interval(share, effective, student_t(0.95, freedom))
    return Interval(value=share, lo=lo, hi=hi)


def _beyond(values: Floats, share: float, *, open_end: bool = False) -> float:
    """The value that at most ``share`` of ascending values exceed."""
    n = len(values)
    if open_end and share * n < 1.0:
        return math.inf
    return float(values[min(n - 1, max(0, math.ceil((1.0 - share) * n - 1e-9) - 1))])


def _draws(series: Sequence[Floats], limit: float, share: float) -> tuple[float, float]:
    """The effective number of independent draws for a share beyond a limit, and the degrees of freedom."""
    known = [part for part in series if len(part)]
    parts = [independent_draws((part > limit).astype(np.float64), share, block_length(part)) for part in known]
    added = np.concatenate([np.zeros(0), *(each for _, each in parts)])
    return max(sum(draws for draws, _ in parts), 1.0), max(2.0, evidence(added))
