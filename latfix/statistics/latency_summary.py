"""Statistics of latencies: percentiles and their intervals. Ratios of two arms are in :mod:`bootstrap_ratio`.

Percentiles are interpolated linearly between order statistics (Hyndman and Fan's type 7, NumPy's default):
the value at rank ``(n - 1)·q``, counted from 0.

Intervals come from a moving-block bootstrap (:mod:`block_bootstrap`), widened by Student's t with as many
degrees of freedom as there are separate pieces of evidence: blocks for the mean and the median, clusters of
slow requests for a high percentile. A p99 from three slow periods is that uncertain, no matter how many requests
surround them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from latfix.arrays import Floats
from latfix.formatting import LATENCY_KEYS
from latfix.statistics.block_bootstrap import SortedSample, block_length, block_sums, evidence, sliding_sums
from latfix.statistics.distributions import normal_quantile, student_t
from latfix.statistics.percentiles import LEAST_BOUNDED, percentile_interval

#: The percentiles among the keys, as fractions.
QUANTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
_FRACTIONS: tuple[float, ...] = tuple(QUANTILES.values())
#: Ends of a 95 % interval.
_TAILS = (0.5 - 0.95 / 2, 0.5 + 0.95 / 2)


def percentile_ns(values: npt.ArrayLike, q: float) -> float:
    """The ``q``-th percentile (0..100) of latencies in nanoseconds; 0 for none."""
    array = np.asarray(values, dtype=np.float64)
    return float(np.percentile(array, q)) if array.size else 0.0


def summarize_ms(latencies_ns: npt.ArrayLike) -> dict[str, float]:
    """Mean, percentiles and maximum in milliseconds, one entry for each of ``LATENCY_KEYS``; zeros for none."""
    sample = SortedSample.of(latencies_ns)
    if not len(sample.values):
        return dict.fromkeys(LATENCY_KEYS, 0.0)
    return dict(zip(LATENCY_KEYS, (sample.statistics(_FRACTIONS) / 1e6).tolist(), strict=True))


def summary_intervals_ms(
    latencies_ns: npt.ArrayLike, *, seed: int, replicates: int = 400
) -> dict[str, tuple[float, float]]:
    """95 % intervals of :func:`summarize_ms` for one run.

    The mean by moving-block bootstrap, percentiles by Woodruff's method with the dependence estimated from blocks; an
    upper end that would lie far beyond the slowest request, or that only equal latencies support, is open (infinite).
    Fewer than six requests bound neither the mean nor the median: all of five lie on one side of it with a chance of
    1 in 16. ``max`` runs from the bootstrap's lower end to the maximum itself, which shows its dependence on single
    requests.

    In simulations of a queue at half load these intervals held the true p99 in 93, 82 and 86 % of runs of 4,000,
    1,000 and 300 requests, the true p90 in 96, 94 and 90 %; with rare pauses the p99 in 88, 70 and 65 %, at
    80 % load, where one backlog can outlast the run, in 80, 50 and 39 %. No interval covers what its run did not
    show, such as the next restart of the service: compare rounds for a decision that depends on it.

    :param latencies_ns: ``(n,)`` in order of arrival; infinite if a request was never answered.
    :returns: for each of ``LATENCY_KEYS`` the interval in milliseconds, which holds the value itself. The mean's is
        of answered requests.
    """
    series = np.asarray(latencies_ns, dtype=np.float64) / 1e6
    n = len(series)
    if n == 0:
        return dict.fromkeys(LATENCY_KEYS, (0.0, 0.0))
    values = np.sort(series)
    block = block_length(series)
    intervals = {"mean": _mean_interval(series[np.isfinite(series)], block, seed, replicates)}
    intervals["max"] = (_maximum_low(series, block, _TAILS[0]), float(values[-1]))
    for key in QUANTILES:
        intervals[key] = percentile_interval(series, values, block, QUANTILES[key])
    return {key: intervals[key] for key in LATENCY_KEYS}


def _mean_interval(series: Floats, block: int, seed: int, replicates: int) -> tuple[float, float]:
    n = len(series)
    if n < LEAST_BOUNDED:
        return (0.0, math.inf) if n else (math.nan, math.nan)
    mean = float(series.mean())
    starts = np.random.default_rng(seed).integers(0, n, size=(replicates, -(-n // block)))
    drawn = sliding_sums(series, block)[starts].mean(axis=1) / block
    widen = student_t(0.95, evidence(influence("mean", series, mean, block))) / normal_quantile(0.95)
    low, high = _widened(mean, drawn, widen)
    return (max(low, float(series.min())), min(high, float(series.max())))  # no request was faster or slower


def _maximum_low(series: Floats, block: int, tail: float) -> float:
    """The value below which the maximum of a block resample falls with a chance of at most ``tail``."""
    n = len(series)
    blocks = -(-n // block)
    holds = np.zeros(n, dtype=np.bool_)  # starts whose block holds one of the slowest
    slowest = np.argsort(series)[::-1]
    for position in slowest:
        holds[np.arange(position - block + 1, position + 1) % n] = True
        if (1.0 - float(holds.mean())) ** blocks <= tail:
            return float(series[position])
    return float(series[slowest[-1]])


def _widened(value: float, drawn: Floats, widen: float) -> tuple[float, float]:
    """Ends of the bootstrap distribution, moved away from the value by a factor, on the logarithm."""
    drawn = drawn[np.isfinite(drawn) & (drawn > 0)]
    if not len(drawn) or value <= 0:
        return (value, value)
    lo, hi = np.quantile(np.log(drawn) - math.log(value), _TAILS)
    return (value * math.exp(min(float(lo), 0.0) * widen), value * math.exp(max(float(hi), 0.0) * widen))


def influence(key: str, series: Floats, limit: float, block: int) -> Floats:
    """Each block's contribution to the mean or a percentile beyond its share, up to a factor.

    :param limit: the statistic's value.
    """
    each: Floats
    if key == "mean":
        each = np.nan_to_num(series / limit - 1.0) if limit > 0 else np.zeros(len(series))
    else:
        each = np.where(np.isnan(series), 0.0, (series > limit) - (1.0 - QUANTILES[key]))
    return block_sums(each, block)
