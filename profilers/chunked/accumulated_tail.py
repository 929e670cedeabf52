"""Intervals of a large run from sums over its blocks, as :mod:`attribution.tail` has them from single requests.

A resample draws stretches of neighboring blocks; the tail is cut anew between bands of latency.
"""

from __future__ import annotations

import math

import numpy as np

from latfix.formatting import LATENCY_KEYS
from latfix.profilers.attribution.tail import Doubt, Median, Tail, reaching
from latfix.profilers.chunked.accumulators import RunTally
from latfix.profilers.evidence.work_model import Floats, Ints
from latfix.statistics.block_bootstrap import block_counts, block_length, block_sums, evidence, iter_block_starts
from latfix.statistics.distributions import student_t
from latfix.statistics.latency_summary import QUANTILES
from latfix.statistics.percentiles import share_interval
from latfix.statistics.quantile_sketch import LogHistogram

#: Shares of requests above the bounds of bands, as parts of the tail's own share.
_BOUNDS = (
    *(100.0, 70.0, 50.0, 35.0, 25.0, 17.0, 12.0, 8.0, 6.0, 4.0),
    *(3.0, 2.5, 2.0, 1.75, 1.5, 1.35, 1.25, 1.18, 1.12, 1.08, 1.05, 1.03, 1.015, 1.0),
    *(0.985, 0.97, 0.95, 0.92, 0.88, 0.82, 0.75, 0.65, 0.5, 0.35, 0.2),
)


def bands_of(latency: LogHistogram, percentile: float, at_ns: float) -> Floats:
    """Bounds of latency around a percentile, nanoseconds, ascending; ``at_ns``, the percentile, is one of them."""
    n, share = len(latency), 1 - percentile / 100
    below = [latency.value_at((n - 1) * max(1 - share * part, 0.0)) if part != 1.0 else at_ns for part in _BOUNDS]
    return np.unique(below)


def cut_block_tail(
    tally: RunTally, reference_ns: int, percentile: float, moved_ms: Floats, *, seed: int, replicates: int
) -> Tail:
    """The tail of a tallied run.

    :param moved_ms: ``(replicates, K)`` by which references move when the requests they are learned from are drawn
        anew, milliseconds.
    """
    count = max(tally.tail_requests, 1)
    own, propagated = tally.tail_own / count / 1e6, tally.tail_propagated / count / 1e6
    drawn = _resampled(tally, percentile, seed, replicates) - moved_ms
    ends = np.quantile(drawn, [0.025, 0.975], axis=0)
    return Tail(
        members=np.broadcast_to(np.True_, (tally.requests,)),
        mean_ms=tally.tail_latency / count / 1e6,
        excess_ms=(tally.tail_latency - tally.tail_requests * reference_ns) / count / 1e6,
        own_ms=own,
        propagated_ms=propagated,
        ci95_ms=reaching(own + propagated, ends, count),
    )


def _resampled(tally: RunTally, percentile: float, seed: int, replicates: int) -> Floats:
    """``(replicates, K)``: every cause's mean over the tail of a resample, milliseconds."""
    rng = np.random.default_rng(seed)
    blocks = np.flatnonzero(tally.block_requests > 0)
    many, length = len(blocks), max(1, min(tally.layout.together, len(blocks)))
    starts = iter_block_starts(many, block=length, replicates=replicates, rng=rng)
    weights = np.stack([block_counts(many, each, length) for each in starts])
    fixed = tally.layout.blocks
    counts = weights @ tally.band_counts[blocks] + tally.band_counts[fixed]
    held = _held(counts.astype(np.float64), 1 - percentile / 100)
    size = np.maximum((held * counts).sum(axis=1), 1.0)
    spread = tally.band_spread / np.maximum(tally.band_counts.sum(axis=0), 1)
    drawn = np.empty((replicates, len(tally.tail_own)))
    for k in range(drawn.shape[1]):
        sums = weights @ tally.band_entries[k, blocks] + tally.band_entries[k, fixed]
        doubt = (held * counts) @ spread[k] * rng.standard_normal(replicates)
        drawn[:, k] = ((held * sums).sum(axis=1) + doubt) / size / 1e6
    return drawn


def _held(counts: Floats, share: float) -> Floats:
    """``(replicates, bands)``: what part of each band is in the tail of its resample."""
    wanted = np.maximum(counts.sum(axis=1, keepdims=True) * share, 1.0)
    above = np.cumsum(counts[:, ::-1], axis=1)[:, ::-1] - counts
    return np.asarray(np.clip((wanted - above) / np.maximum(counts, 1), 0.0, 1.0), dtype=np.float64)


def moved_references(doubt: Doubt, latency_ns: Ints, kinds: int, *, seed: int, replicates: int) -> Floats:
    """``(replicates, kinds)``: how references move when the sample they were learned from is drawn anew, in ms."""
    n = len(latency_ns)
    moved = np.zeros((replicates, kinds))
    medians = [(k, Median(values, doubt.quiet)) for k, values in doubt.usual]
    if not n or not medians:
        return moved
    block, rng = block_length(latency_ns), np.random.default_rng(seed)
    for row, starts in zip(moved, iter_block_starts(n, block=block, replicates=replicates, rng=rng), strict=True):
        counts = block_counts(n, starts, block)
        for k, median in medians:
            row[k] += median.moved(counts) / 1e6
    return moved


def latency_intervals_ms(tally: RunTally, latency: LogHistogram) -> dict[str, tuple[float, float]]:
    """Intervals of the summary of latency by :data:`latfix.statistics.latency_summary.LATENCY_KEYS`, milliseconds.

    Woodruff's for percentiles, with the dependence that blocks show; see :mod:`latency_summary`. The layout's
    ``limits_ns`` are those of ``QUANTILES``, in their order.
    """
    if not tally.requests:
        return dict.fromkeys(LATENCY_KEYS, (0.0, 0.0))
    some, together = tally.block_requests > 0, tally.layout.together
    size = block_sums(tally.block_requests[some].astype(np.float64), together)
    starts = np.arange(0, np.count_nonzero(some), together)
    largest = np.sort(np.maximum.reduceat(tally.block_largest[some], starts))[::-1]
    intervals = {"mean": _mean_interval(block_sums(tally.block_latency[some], together), size)}
    for key, beyond in zip(QUANTILES, tally.block_beyond, strict=True):
        sums = block_sums(beyond[some].astype(np.float64), together)
        intervals[key] = _percentile_interval(sums, size, 1 - QUANTILES[key], latency)
    # Blocks that hold the maximum are missing in a resample with a chance of (1 - j / B)^B.
    rank = min(math.ceil(len(size) * (1 - 0.025 ** (1 / len(size)))), len(size)) - 1
    intervals["max"] = (float(largest[max(rank, 0)]) / 1e6, float(largest[0]) / 1e6)
    return {key: intervals[key] for key in LATENCY_KEYS}


def _mean_interval(sums: Floats, size: Floats) -> tuple[float, float]:
    mean = float(sums.sum() / size.sum())
    added = sums - mean * size
    half = student_t(0.95, evidence(added)) * float(np.sqrt((added**2).sum())) / float(size.sum())
    return (max(mean - half, 0.0) / 1e6, (mean + half) / 1e6)


def _percentile_interval(beyond: Floats, size: Floats, share: float, latency: LogHistogram) -> tuple[float, float]:
    n = float(size.sum())
    observed = min(max(float(beyond.sum()) / n, 1.0 / n), 0.5)
    added = beyond - size * float(beyond.sum()) / n
    inflation = max(1.0, float((added**2).sum()) / (n * observed * (1 - observed)))
    low, high = share_interval(share, n / inflation, beyond - share * size)
    return latency.value_at((n - 1) * (1 - high)) / 1e6, latency.value_at((n - 1) * (1 - low)) / 1e6
