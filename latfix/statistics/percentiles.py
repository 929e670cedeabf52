"""Any percentile: its key, its value in a run's latencies, and its interval."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from latfix.arrays import Floats
from latfix.formatting import LATENCY_KEYS
from latfix.lower_bound import in_unit
from latfix.statistics.block_bootstrap import block_length, block_sums, evidence, sliding_sums
from latfix.statistics.distributions import score_interval, student_t

if TYPE_CHECKING:
    from latfix.statistics.censored import Outcomes

Bounds = tuple[float, float]

#: Percentiles that a history keeps of every run, in addition to the summary's.
GRID: tuple[float, ...] = tuple(
    sorted(
        (
            *(float(q) for q in range(1, 100)),
            *(q + 0.5 for q in range(90, 99)),
            *(99 + k / 10 for k in range(1, 10)),
            *(99.95, 99.99),
        )
    )
)
#: An interval ends at most this factor beyond the slowest request; else it is open.
_FARTHEST = 2.0
#: Fewest different latencies above its threshold from which a tail's exponent is estimated.
_LEAST_SPACINGS = 5
#: Chance that either end of a 95 % interval misses.
_MISSES = 0.025
#: Fewest requests that bound their median: five lie on one side of it with a chance of 1 in 16 (the sign test).
LEAST_BOUNDED = math.ceil(math.log2(1 / _MISSES))
_KEY = re.compile(r"p([0-9]{1,2})(?:[._]([0-9]{1,4}))?")


def percentile_of(key: str) -> float | None:
    """99.9 for ``p99.9``, ``p99_9`` and ``p999``; ``None`` for a text that is none from 1 to below 100."""
    if key == "p999":
        return 99.9
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    percentile = float(f"{match[1]}.{match[2] or 0}")
    return percentile if 1 <= percentile < 100 else None


def percentile_key(percentile: float) -> str:
    """``p99_9`` for 99.9: the key of the summaries; at most four decimals."""
    return "p" + f"{percentile:.4f}".rstrip("0").rstrip(".").replace(".", "_")


def beyond_summary(metrics: Iterable[str]) -> tuple[float, ...]:
    """The percentiles among some metrics that no latency summary holds, each once."""
    percentiles = [percentile for percentile in map(percentile_of, metrics) if percentile is not None]
    return tuple(dict.fromkeys(q for q in percentiles if percentile_key(q) not in LATENCY_KEYS))


def percentile_figures(
    outcomes: Outcomes, percentiles: Iterable[float]
) -> tuple[dict[str, float], dict[str, Bounds]]:
    """Values and 95 % intervals in milliseconds by key; NaN if no request arrived."""
    wanted = tuple(percentiles)
    keys, found = [percentile_key(q) for q in wanted], outcomes.percentiles_ns(wanted)
    figures = dict(zip(keys, (in_unit(value, 1e6) for value in found), strict=True))
    if not len(outcomes):
        return figures, dict.fromkeys(keys, (math.nan, math.nan))
    series = outcomes.series_ns / 1e6
    values = np.sort(series)
    block = block_length(series)
    ends = {percentile_key(q): percentile_interval(series, values, block, q / 100) for q in wanted}
    return figures, {key: (min(lo, figures[key]), max(hi, figures[key])) for key, (lo, hi) in ends.items()}


def percentile_grid(outcomes: Outcomes) -> dict[str, float]:
    """The known percentiles of :data:`GRID`, in milliseconds by key, to six digits."""
    found = zip(GRID, outcomes.percentiles_ns(GRID), strict=True)
    return {percentile_key(q): float(f"{value / 1e6:.6g}") for q, value in found if math.isfinite(value)}


def quantile_of(ascending: Floats, q: float) -> float:
    """A quantile (0..1) of ascending values, the last of which may be infinite; infinite if it reaches those."""
    return at_rank(ascending, (len(ascending) - 1) * q)


def at_rank(ascending: Floats, rank: float) -> float:
    """The value at a fractional rank from 0, interpolated as in :mod:`latfix.statistics.latency_summary`."""
    below = min(math.floor(rank + 1e-9), len(ascending) - 1)
    fraction = max(rank - below, 0.0)
    if fraction <= 1e-9 or below + 1 >= len(ascending):
        return float(ascending[below])
    low, high = float(ascending[below]), float(ascending[below + 1])
    return low + (high - low) * fraction if math.isfinite(high) else math.inf


def percentile_interval(series: Floats, values: Floats, block: int, q: float) -> Bounds:
    """Woodruff's 95 % interval (1952) of a percentile, in the series' unit.

    The share of requests beyond the percentile has an interval (:func:`share_interval`); the latencies at its ends
    are the percentile's interval. A little beyond the slowest request the tail is extrapolated as a power law with
    Hill's exponent, so that the interval of a p99 of 100 requests does not end at their maximum. Where that exceeds
    twice the slowest request, or too few of the slowest differ to estimate the exponent (they are equal, or there are
    only two), nothing that was measured supports the number, and the end is open (infinite). Likewise at the other
    end, if chance alone may have put all requests above the percentile: the end is 0, as for a single request.

    :param series: ``(n,)`` in order of arrival, without NaN; infinite if a request was never answered.
    :param values: the same, ascending.
    :param q: the percentile as a fraction.
    """
    share, limit = 1.0 - q, quantile_of(values, q)
    beyond = (series > limit if math.isfinite(limit) else np.isinf(series)).astype(np.float64)
    lo, hi = share_interval(share, *independent_draws(beyond, share, block))
    exponent, n = _hill(values), len(values)
    low = 0.0 if n == 1 or share**n > _MISSES else _tail_value(values, hi, exponent)
    return low, _tail_value(values, lo, exponent)


def independent_draws(beyond: Floats, share: float, block: int) -> tuple[float, Floats]:
    """The effective number of independent draws of a series, and each block's excess over the expected share.

    Slow requests come in clusters: draws are fewer than requests by the ratio of the variance of the counts in
    ``block`` neighbors to that of independent draws.

    :param beyond: ``(n,)`` in order of arrival; 1 if a request lies beyond the limit, else 0.
    :param share: the expected share of those.
    """
    n = len(beyond)
    observed = min(max(float(beyond.mean()), 1.0 / n), 1.0 - 1.0 / n) if n > 1 else 0.5
    spread = float(sliding_sums(beyond, block).var())
    inflation = max(1.0, spread / (block * observed * (1 - observed)) * n / max(n - block, 1))
    return n / inflation, block_sums(beyond - share, block)


def share_interval(share: float, draws: float, added: Floats) -> Bounds:
    """Wilson's 95 % interval of a share, with Student's t for as many degrees of freedom as blocks stand out.

    :param draws: effective number of independent draws.
    :param added: each block's excess over the share.
    """
    return score_interval(share, draws, student_t(0.95, max(2.0, evidence(added))))


def _hill(values: Floats) -> float:
    """Hill's estimate (1975) of a tail's exponent, from the ``sqrt(n)`` slowest of ascending values; at most 2.

    Latencies with an exponent of 1 or more have no mean: 2 leaves a margin and keeps the result finite. Equal ones
    say nothing of how far a tail reaches: infinite if fewer than five differ from the threshold and each other.
    """
    n = len(values)
    count = min(max(_LEAST_SPACINGS, math.isqrt(n)), n - 1)
    slowest = values[n - 1 - count :]
    if slowest[0] <= 0 or math.isinf(slowest[-1]) or np.count_nonzero(np.diff(slowest)) < _LEAST_SPACINGS:
        return math.inf
    return min(2.0, float((np.log(values[-count:]) - math.log(values[-count - 1])).mean()))


def _tail_value(values: Floats, share: float, exponent: float) -> float:
    """The value that ``share`` of the requests exceed."""
    n = len(values)
    if share * n >= 1.0:
        return quantile_of(values, 1.0 - share)
    factor = (1.0 / max(share * n, 1e-9)) ** exponent
    return float(values[-1]) * factor if factor <= _FARTHEST else math.inf
