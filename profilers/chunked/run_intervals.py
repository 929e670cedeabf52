"""The tail of a run and the intervals of its figures.

Resamples draw stretches of neighboring requests: single requests of a run in one chunk, blocks of a larger run, whose
tail is cut again between bands of latency.
"""

from __future__ import annotations

import math

import numpy as np

from latfix.arrays import Floats
from latfix.formatting import LATENCY_KEYS
from latfix.profilers.attribution.ledger import LedgerContext
from latfix.profilers.attribution.tail import AT_ONCE, ONCE, Median, Tail, moved_ms, reaching, resampled_rows
from latfix.profilers.causes import CAUSES
from latfix.profilers.chunked.chunk_ledgers import Baselines
from latfix.profilers.chunked.run_totals import BlockTotals, RunTotals
from latfix.statistics.block_bootstrap import block_counts, block_length, block_sums, evidence, iter_block_starts
from latfix.statistics.distributions import student_t
from latfix.statistics.latency_summary import QUANTILES
from latfix.statistics.percentiles import share_interval
from latfix.statistics.quantile_sketch import LogHistogram


def cut_tail(totals: RunTotals, baselines: Baselines, percentile: float, *, seed: int, replicates: int) -> Tail:
    """The tail of a run, with 95 % intervals of each cause's part."""
    count = max(totals.tail, 1)
    own, propagated = totals.tail_own / count / 1e6, totals.tail_propagated / count / 1e6
    intervals = np.zeros((len(own), 2))
    if totals.requests:
        drawn = _drawn(totals, baselines, percentile, seed, replicates)
        intervals = reaching(own + propagated, np.quantile(drawn, [0.025, 0.975], axis=0), count)
    return Tail(
        requests=totals.requests,
        inside=totals.tail,
        mean_ms=totals.tail_latency_ns / count / 1e6,
        excess_ms=(totals.tail_latency_ns - totals.tail * baselines.reference_ns) / count / 1e6,
        own_ms=own,
        propagated_ms=propagated,
        ci95_ms=intervals,
    )


def _drawn(totals: RunTotals, baselines: Baselines, percentile: float, seed: int, replicates: int) -> Floats:
    """``(replicates, K)``: every cause's mean over the tail of a resample, milliseconds."""
    if totals.kept is not None:
        return resampled_rows(totals.kept.ledger, percentile, totals.kept.books.doubt, seed, replicates)
    assert totals.blocks is not None
    drawn = _resampled_blocks(totals.blocks, percentile, seed, replicates)
    return drawn - _moved_references(baselines.books, len(totals.tail_own), seed, replicates)


def _resampled_blocks(totals: BlockTotals, percentile: float, seed: int, replicates: int) -> Floats:
    """As :func:`resampled_rows`, from sums over blocks, with fixed references."""
    rng = np.random.default_rng(seed)
    blocks = np.flatnonzero(totals.requests > 0)
    many, length = len(blocks), max(1, min(totals.together, len(blocks)))
    starts = iter_block_starts(many, block=length, replicates=replicates, rng=rng)
    weights = block_counts(many, np.stack(list(starts)), length)
    fixed = totals.blocks
    counts = weights @ totals.band_counts[blocks] + totals.band_counts[fixed]
    held = _held(counts.astype(np.float64), 1 - percentile / 100)
    size = np.maximum((held * counts).sum(axis=1), 1.0)
    spread = totals.band_spread / np.maximum(totals.band_counts.sum(axis=0), 1)
    drawn = np.empty((replicates, len(spread)))
    # Of a cold start's requests, what else struck them is in the resamples that drew them.
    struck_again = rng.poisson(1.0, (replicates, 1))
    for k, cause in enumerate(CAUSES):
        again = 1 if cause.id in ONCE else struck_again
        sums = weights @ totals.band_entries[k, blocks] + again * totals.band_entries[k, fixed]
        doubt = (held * counts) @ spread[k] * rng.standard_normal(replicates)
        drawn[:, k] = ((held * sums).sum(axis=1) + doubt) / size / 1e6
    return drawn


def _held(counts: Floats, share: float) -> Floats:
    """``(replicates, bands)``: the part of each band in the tail of its resample."""
    wanted = np.maximum(counts.sum(axis=1, keepdims=True) * share, 1.0)
    above = np.cumsum(counts[:, ::-1], axis=1)[:, ::-1] - counts
    return np.asarray(np.clip((wanted - above) / np.maximum(counts, 1), 0.0, 1.0), dtype=np.float64)


def _moved_references(books: LedgerContext, kinds: int, seed: int, replicates: int) -> Floats:
    """``(replicates, kinds)``: shift of the references when their sample is resampled, in milliseconds."""
    latency, doubt = books.ledger.latency_ns, books.doubt
    n = len(latency)
    moved = np.zeros((replicates, kinds))
    medians = [(k, Median(values, doubt.quiet)) for k, values in doubt.usual]
    if not n or not medians:
        return moved
    block, rng = block_length(latency), np.random.default_rng(seed)
    starts = list(iter_block_starts(n, block=block, replicates=replicates, rng=rng))
    together = max(1, AT_ONCE // n)
    for first in range(0, replicates, together):
        counts = block_counts(n, np.stack(starts[first : first + together]), block)
        moved[first : first + together] = moved_ms(medians, counts, kinds)
    return moved


def latency_intervals_ms(totals: RunTotals, latency: LogHistogram | None) -> dict[str, tuple[float, float]]:
    """Intervals of the latency summary of a run in several chunks, by :data:`LATENCY_KEYS`, in milliseconds.

    Lost requests count as slower than any, as in :meth:`latfix.statistics.censored.Outcomes.intervals_ms`.

    :param latency: of the run's ``ok`` requests.
    """
    if not totals.requests or totals.blocks is None or latency is None:
        return dict.fromkeys(LATENCY_KEYS, (math.nan, math.nan))
    blocks = totals.blocks
    arrived = blocks.requests + blocks.lost
    some, together = arrived > 0, blocks.together
    served, size = (block_sums(each[some].astype(np.float64), together) for each in (blocks.requests, arrived))
    starts = np.arange(0, np.count_nonzero(some), together)
    largest = np.sort(np.maximum.reduceat(blocks.largest[some], starts))[::-1]
    low, high = _mean_interval(block_sums(blocks.latency[some], together), served)
    # The mean is not below the fastest request, which the histogram has to within a bin.
    intervals = {"mean": (min(max(low, latency.value_at(0) / 1e6), totals.latency.total / len(latency) / 1e6), high)}
    for key, beyond in zip(QUANTILES, blocks.beyond, strict=True):
        sums = block_sums((beyond + blocks.lost)[some].astype(np.float64), together)
        intervals[key] = _percentile_interval(sums, size, 1 - QUANTILES[key], latency)
    # The j largest of B blocks are all missing in a resample with probability (1 - j / B)^B.
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
    ranks = ((n - 1) * (1 - end) for end in reversed(share_interval(share, n / inflation, beyond - share * size)))
    low, high = (latency.value_at(rank) / 1e6 if rank <= len(latency) - 1 else math.inf for rank in ranks)
    return low, high
