"""Moving-block resampling of a series of requests, and percentiles of resamples.

Latencies of neighboring requests are dependent (they wait in the same queue), so resampling draws runs of neighbors
instead of single requests. Blocks wrap around the end of the series (Politis and Romano, 1992), which gives every
request the same chance to be drawn.

A resample is stored as the number of times that each request was drawn. Values are sorted once, and percentiles of a
resample are read from running sums of these counts: O(n) time and memory per resample, without sorting.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from latfix.arrays import Floats, Ints, ranks


def default_block(n: int) -> int:
    """Block length from the number of requests alone: ``2·n**(1/3)``, between 1 and ``n // 8``.

    The rate is optimal for a variance (Künsch, 1989). :func:`block_length` also uses the data.
    """
    return max(1, min(round(2.0 * math.cbrt(n)), n // 8))


def block_length(values: npt.ArrayLike) -> int:
    """Block length for a series in order of arrival: Politis and White's rule (2004, corrected 2009).

    The rule is applied to ranks, because a few enormous latencies would hide the dependence of their neighbors.
    Never below :func:`default_block`, never above ``n // 8``: with fewer than eight blocks a resample says little.

    :param values: ``(n,)``; NaN (a request that did not end ``ok``) is left out.
    """
    series = np.asarray(values, dtype=np.float64)
    series = series[np.isfinite(series)]
    n = len(series)
    least = default_block(n)
    if n < 32 or (series[0] == series[-1] and np.ptp(series) == 0):
        return least
    return int(max(least, min(_politis_white(ranks(series)), n // 8)))


def iter_block_starts(n: int, *, block: int, replicates: int, rng: np.random.Generator) -> Iterator[Ints]:
    """Start positions of the blocks of each resample: ``ceil(n / block)`` per resample."""
    blocks = -(-n // block) if n else 0
    for _ in range(replicates):
        yield rng.integers(0, max(n, 1), size=blocks, dtype=np.int64)


def block_counts(n: int, starts: Ints, block: int) -> Ints:
    """Number of times that each of ``n`` positions is drawn by blocks at ``starts``; sums to ``n``.

    The last block is cut so that a resample has as many requests as the original.

    :param starts: ``(…, blocks)``, of any number of resamples.
    :returns: ``(…, n)``.
    """
    *resamples, blocks = starts.shape
    if n == 0:
        return np.zeros((*resamples, 0), dtype=np.int64)
    size = n + block + 1
    first = starts.reshape(-1, blocks) + size * np.arange(math.prod(resamples))[:, None]  # one after the other
    last = first + block
    last[:, -1] -= blocks * block - n
    begun, ended = (np.bincount(at.ravel(), minlength=size * len(first)) for at in (first, last))
    drawn = np.cumsum((begun - ended).reshape(-1, size), axis=1)
    drawn[:, :block] += drawn[:, n : n + block]
    return np.asarray(drawn[:, :n].reshape(*resamples, n), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class SortedSample:
    """Values sorted once, to compute statistics of resamples from counts.

    :param values: ``(m,)`` ascending, the finite values of the series.
    :param order: ``(m,)`` their positions in the series.
    """

    values: Floats
    order: npt.NDArray[np.intp]

    @classmethod
    def of(cls, series: npt.ArrayLike) -> SortedSample:
        """Sort a series in order of arrival; NaN marks a request without a latency and is left out."""
        array = np.asarray(series, dtype=np.float64)
        order = np.argsort(array, kind="stable")
        order = order[: int(np.count_nonzero(~np.isnan(array)))]
        return cls(np.ascontiguousarray(array[order]), order)

    def statistics(self, quantiles: Sequence[float], counts: Ints | None = None) -> Floats:
        """Mean, the quantiles (each in 0..1), and the maximum, of the sample or of resamples.

        :param counts: ``(…, n)`` number of times that each position of the series was drawn, by resample; ``None``:
            once each.
        :returns: ``(…, len(quantiles) + 2)``; NaN if nothing was drawn.
        """
        resamples = () if counts is None else counts.shape[:-1]
        rows = math.prod(resamples)
        result = np.full((rows, len(quantiles) + 2), math.nan)
        if len(self.values):
            drawn = np.ones(len(self.values), dtype=np.int64) if counts is None else counts.take(self.order, -1)
            drawn = drawn.reshape(rows, -1)
            running = np.cumsum(drawn)  # one resample after the other, so that one search finds places in all
            total = drawn.sum(axis=1, keepdims=True)
            before = np.cumsum(total, axis=0) - total
            rank = (total - 1) * np.asarray(quantiles, dtype=np.float64)
            below = np.floor(rank + 1e-9)
            ranks = np.concatenate([below + 1, np.minimum(below + 2, total), total], axis=1).astype(np.int64)
            found = self.values[np.searchsorted(running, before + ranks) % len(self.values)]
            low, high = found[:, : len(quantiles)], found[:, len(quantiles) : -1]
            # Row by row, or the order of additions would depend on the number of rows.
            result[:, 0] = [row @ self.values for row in drawn.astype(np.float64)] / np.maximum(total[:, 0], 1)
            result[:, 1:-1] = low + (high - low) * np.maximum(rank - below, 0.0)
            result[:, -1] = found[:, -1]
            result[total[:, 0] == 0] = math.nan
        return result.reshape(*resamples, -1)


def statistic(series: Floats, q: float | None) -> float:
    """A quantile (0..1), or the mean if ``None``, of a series without its NaN; NaN if none remains."""
    finite = series[~np.isnan(series)]
    if not len(finite):
        return math.nan
    return float(finite.mean() if q is None else np.quantile(finite, q))


def block_sums(each: Floats, block: int) -> Floats:
    """Sums over consecutive blocks; the last one may be shorter."""
    if not len(each):
        return each
    return np.asarray(np.add.reduceat(each, np.arange(0, len(each), max(block, 1))), dtype=np.float64)


def evidence(added: Floats) -> float:
    """Degrees of freedom of a variance estimated from the contributions of blocks: ``(Σd²)² / Σd⁴``, at least 1.

    As in Satterthwaite's formula (1946): if two blocks out of a hundred dominate, there are two.
    """
    squares = added**2
    fourth = float((squares**2).sum())
    return max(1.0, float(squares.sum()) ** 2 / fourth) if fourth > 0 else 1.0


def sliding_sums(each: Floats, block: int) -> Floats:
    """Sums over ``block`` neighbors from each position, wrapped around the end; ``(n,)``."""
    n = len(each)
    running = np.concatenate([[0.0], np.cumsum(np.concatenate([each, each[:block]]))])
    return np.asarray(running[block : block + n] - running[:n], dtype=np.float64)


def _politis_white(series: Floats) -> int:
    n = len(series)
    covariance = _autocovariance(series, most=min(n - 1, math.ceil(math.sqrt(n)) + 10 + n // 16))
    if covariance[0] <= 0:
        return 1
    correlation = covariance / covariance[0]
    bandwidth = min(2 * _last_significant(correlation, n), len(covariance) - 1)
    lags = np.arange(1, bandwidth + 1)
    # Flat-top weights: one up to half the bandwidth, then falling to zero.
    weights = np.clip(2.0 * (1.0 - lags / max(bandwidth, 1)), 0.0, 1.0)
    spectrum = covariance[0] + 2.0 * float(weights @ covariance[1 : bandwidth + 1])
    slope = 2.0 * float((weights * lags) @ covariance[1 : bandwidth + 1])
    if spectrum <= 0 or slope <= 0:
        return 1
    return math.ceil(math.cbrt(2.0 * slope**2 / (4.0 / 3.0 * spectrum**2)) * math.cbrt(n))


def _last_significant(correlation: Floats, n: int) -> int:
    """The lag after which a run of lags shows no correlation beyond chance."""
    run = max(5, math.ceil(math.sqrt(math.log10(n))))
    quiet = np.abs(correlation[1:]) < 2.0 * math.sqrt(math.log10(n) / n)
    for lag in range(len(quiet) - run + 1):
        if quiet[lag : lag + run].all():
            return max(lag, 1)
    return len(quiet)


def _autocovariance(series: Floats, most: int) -> Floats:
    """Autocovariance at lags ``0..most``, by FFT."""
    n = len(series)
    size = 1 << (n + most).bit_length()
    spectrum = np.fft.rfft(series - series.mean(), size)
    return np.asarray(np.fft.irfft(spectrum * spectrum.conj(), size)[: most + 1] / n, dtype=np.float64)
