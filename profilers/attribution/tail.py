"""The tail: its requests, each cause's part of it, and the intervals of these parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.results.diagnosis import Ledger
from latfix.statistics.block_bootstrap import block_counts, block_length, iter_block_starts

#: Causes that occur once per process, at its start, and so are part of every resample.
ONCE = ("cold.start", "cold.compile")
#: Limit on drawn requests over all replicates; large records need fewer replicates.
_MOST_DRAWN = 100_000_000
#: Drawn requests whose medians are computed at a time. Bounds the memory.
AT_ONCE = 200_000
#: Extra reach of an interval on the side away from zero, divided by the root of the tail's size: a resample contains
#: no pause longer than the longest observed one. Fitted to simulated runs; docs/causes.md has the resulting coverage.
_UNSEEN = 3.0
#: Error of what is attributed to one request, in milliseconds and as a share; no interval is narrower.
_CHARGE_MS, _CHARGE_SHARE = 0.1, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Sources of uncertainty other than the choice of requests.

    :param quiet: ``(n,)`` mask of the ledger rows that references are medians over.
    :param usual: for each part of the reference, the cause's row and the ``(n,)`` nanoseconds whose median it is.
    :param spread: ``(K, n)`` standard errors of entries that rest on a fit or a calibration; a cause's errors are
        fully correlated. Zeros elsewhere.
    """

    quiet: Bools
    usual: tuple[tuple[int, Ints], ...]
    spread: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Means over the requests at or above a percentile of latency, in milliseconds.

    :param requests: number of ledger rows; ``inside`` those in the tail.
    :param excess_ms: mean latency minus the reference; the sum of all ``own_ms + propagated_ms``.
    :param own_ms: ``(K,)``, as ``propagated_ms``.
    :param ci95_ms: ``(K, 2)`` intervals of own + propagated.
    """

    requests: int
    inside: int
    mean_ms: float
    excess_ms: float
    own_ms: Floats
    propagated_ms: Floats
    ci95_ms: Floats


def resampled_rows(ledger: Ledger, percentile: float, doubt: Doubt, seed: int, replicates: int) -> Floats:
    """``(replicates, K)``: every cause's mean over the tail of a resample, in milliseconds.

    A moving-block bootstrap. Each replicate cuts the tail again, recomputes the reference medians, and shifts figures
    that rest on a model or a calibrated price by their standard error. Requests that are slow :func:`by_start` are in
    every replicate, because a cold start happens in every run. What else struck them did so by chance: it is in the
    replicates that drew them.
    """
    n = len(ledger.latency_ns)
    order = np.argsort(ledger.latency_ns, kind="stable")
    entries = ((ledger.own_ns + ledger.propagated_ns) / 1e6)[:, order]
    latency, spread = ledger.latency_ns[order], doubt.spread[:, order] / 1e6
    once = [k for k, cause in enumerate(ledger.causes) if cause in ONCE]
    fixed = by_start(ledger)
    medians = [(k, Median(values, doubt.quiet)) for k, values in doubt.usual]
    rng = np.random.default_rng(seed)
    block = block_length(ledger.latency_ns)
    drawn = np.empty((max(2, min(replicates, _MOST_DRAWN // n)), len(entries)))
    pending: list[Ints] = []
    for at, starts in enumerate(iter_block_starts(n, block=block, replicates=len(drawn), rng=rng)):
        counts = block_counts(n, starts, block)
        chosen = counts[order]
        counts[fixed] = 1
        weight = counts[order]
        running = np.cumsum(weight)
        rank = int(np.ceil((int(running[-1]) - 1) * percentile / 100 - 1e-9))
        threshold = latency[np.searchsorted(running, rank + 1)]
        first = int(np.searchsorted(latency, threshold, side="left"))
        size = max(int(weight[first:].sum()), 1)
        held, by_chance = weight[first:] / size, chosen[first:] / size
        noise = rng.standard_normal(len(entries))
        drawn[at] = entries[:, first:] @ by_chance + (spread[:, first:] @ held) * noise
        drawn[at, once] += entries[once, first:] @ (held - by_chance)
        pending.append(counts)
        if len(pending) * n >= AT_ONCE or at == len(drawn) - 1:
            drawn[at + 1 - len(pending) : at + 1] -= moved_ms(medians, np.stack(pending), len(entries))
            pending.clear()
    return drawn


def by_start(ledger: Ledger) -> Bools:
    """``(n,)`` mask of requests most of whose excess is of the causes in :data:`ONCE`.

    Less does not count: in an overload, a slow first request delays every later one.
    """
    once = [k for k, cause in enumerate(ledger.causes) if cause in ONCE]
    cold = (ledger.own_ns[once] + ledger.propagated_ns[once]).sum(axis=0)
    least = np.maximum(0.05 * max(ledger.reference_ns, 1), 0.5 * (ledger.latency_ns - ledger.reference_ns))
    return np.asarray(cold > least)


def moved_ms(medians: Sequence[tuple[int, Median]], counts: Ints, columns: int) -> Floats:
    """``(replicates, columns)``: shift of the medians of each column, in milliseconds.

    :param counts: ``(replicates, n)`` how often each request was drawn.
    """
    moved = np.zeros((len(counts), columns))
    for k, median in medians:
        moved[:, k] += median.moved(counts) / 1e6
    return moved


class Median:
    """A median over some requests, and its shift in resamples."""

    def __init__(self, values: Ints, chosen: Bools) -> None:
        rows = np.flatnonzero(chosen)
        self._rows = rows[np.argsort(values[rows], kind="stable")]
        self._values = values[self._rows]
        self._usual = float(np.median(self._values)) if len(rows) else 0.0

    def moved(self, counts: Ints) -> Floats:
        """The medians of resamples minus that of the sample, in the values' unit.

        :param counts: ``(replicates, n)`` how often each request was drawn.
        """
        running = np.cumsum(counts[:, self._rows], axis=1)
        if not running.shape[1]:
            return np.zeros(len(counts))
        half = running[:, -1].copy()
        last = running.shape[1] - 1
        # One sorted row for all: each replicate starts above the end of the previous one.
        begin = (int(half.max()) + 2) * np.arange(len(half))
        running += begin[:, None]
        low, high = (
            np.minimum(np.searchsorted(running.ravel(), rank + begin) - (last + 1) * np.arange(len(half)), last)
            for rank in ((half + 1) // 2, half // 2 + 1)
        )
        median = (self._values[low] + self._values[high]).astype(np.float64) / 2
        return np.where(half > 0, median - self._usual, 0.0)


def reaching(value: Floats, ends: Floats, count: int) -> Floats:
    """Percentile intervals, extended on the side away from zero; ``(K, 2)``.

    The tail's mean is skewed: events that the run did not see can only make it larger.
    """
    off = np.where(value != 0, _CHARGE_MS + _CHARGE_SHARE * np.abs(value), 0.0)
    low, high = np.minimum(ends[0], value - off), np.maximum(ends[1], value + off)
    reach = 1.0 + _UNSEEN / np.sqrt(count)
    up = value + reach * (value - low)
    down = value - reach * (high - value)
    with np.errstate(divide="ignore", invalid="ignore"):
        # The same factor up as down, but at most three times the distance in milliseconds.
        grown = np.where(low > 0, np.minimum(value**2 / low, value + 3 * reach * (value - low)), up)
        fallen = np.where(high < 0, np.maximum(value**2 / high, value - 3 * reach * (high - value)), down)
    positive = value >= 0
    return np.column_stack(
        [
            np.where(positive, low, np.minimum(low, np.minimum(down, fallen))),
            np.where(positive, np.maximum(high, np.maximum(up, grown)), high),
        ]
    )
