"""The tail: which requests it holds, what each cause owns of it, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.results.diagnosis import Ledger
from latfix.statistics.block_bootstrap import block_counts, block_length, iter_block_starts

#: Causes that belong to a process's start, not to a moment drawn at random.
ONCE = ("cold.start", "cold.compile")
#: Resampling stops at so many drawn requests in all; large records need fewer replicates anyway.
_MOST_DRAWN = 100_000_000
#: Drawn requests whose medians are found at a time, which bounds the memory.
AT_ONCE = 200_000
#: How much further an interval reaches away from zero than towards it, by requests in the tail: a resample holds
#: no pause longer than the longest that was seen. Fitted to simulated runs; docs/causes.md has what it reaches.
_UNSEEN = 3.0
#: What one request is charged may be off by as much, in milliseconds and as a share: no interval is narrower.
_CHARGE_MS, _CHARGE_SHARE = 0.1, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """What else than the choice of moments makes a cause's figure uncertain.

    :param quiet: ``(n,)`` ledger rows that the references are medians over.
    :param usual: for each part of the reference, the row of the ledger that counts from it and the ``(n,)``
        values whose median it is, in nanoseconds.
    :param spread: ``(K, n)`` standard errors of entries that rest on a fitted or calibrated figure, all rows of a
        cause moving together; rows of zeros where there is none.
    """

    quiet: Bools
    usual: tuple[tuple[int, Ints], ...]
    spread: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Means over the requests at or above a percentile of latency, in milliseconds.

    :param requests: of the ledger; ``inside`` how many of them are in the tail.
    :param excess_ms: mean latency less the reference; the causes' ``own_ms + propagated_ms`` sum to it.
    :param own_ms: ``(K,)``; ``propagated_ms`` the same.
    :param ci95_ms: ``(K, 2)`` interval of own + propagated.
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

    A moving-block bootstrap: in each replicate the tail is cut anew, the references are medians anew, and figures
    that rest on a model or a calibrated price move by their standard error. Requests that a cause of :data:`ONCE`
    touched are in every replicate: a cold start happens once in every run.
    """
    n = len(ledger.latency_ns)
    order = np.argsort(ledger.latency_ns, kind="stable")
    entries = ((ledger.own_ns + ledger.propagated_ns) / 1e6)[:, order]
    latency, spread = ledger.latency_ns[order], doubt.spread[:, order] / 1e6
    fixed = np.zeros(n, dtype=bool)
    for k, cause in enumerate(ledger.causes):
        if cause in ONCE:
            fixed |= ledger.own_ns[k] + ledger.propagated_ns[k] > 0.05 * max(ledger.reference_ns, 1)
    medians = [(k, Median(values, doubt.quiet)) for k, values in doubt.usual]
    rng = np.random.default_rng(seed)
    block = block_length(ledger.latency_ns)
    drawn = np.empty((max(2, min(replicates, _MOST_DRAWN // n)), len(entries)))
    pending: list[Ints] = []
    for at, starts in enumerate(iter_block_starts(n, block=block, replicates=len(drawn), rng=rng)):
        counts = block_counts(n, starts, block)
        counts[fixed] = 1
        weight = counts[order]
        running = np.cumsum(weight)
        rank = int(np.ceil((int(running[-1]) - 1) * percentile / 100 - 1e-9))
        threshold = latency[np.searchsorted(running, rank + 1)]
        first = int(np.searchsorted(latency, threshold, side="left"))
        held = weight[first:] / max(int(weight[first:].sum()), 1)
        noise = rng.standard_normal(len(entries))
        drawn[at] = entries[:, first:] @ held + (spread[:, first:] @ held) * noise
        pending.append(counts)
        if len(pending) * n >= AT_ONCE or at == len(drawn) - 1:
            drawn[at + 1 - len(pending) : at + 1] -= moved_ms(medians, np.stack(pending), len(entries))
            pending.clear()
    return drawn


def moved_ms(medians: Sequence[tuple[int, Median]], counts: Ints, columns: int) -> Floats:
    """``(replicates, columns)``: by how much the medians that count to each column move, in milliseconds.

    :param counts: ``(replicates, n)`` how often each request was drawn.
    """
    moved = np.zeros((len(counts), columns))
    for k, median in medians:
        moved[:, k] += median.moved(counts) / 1e6
    return moved


class Median:
    """A median over some of the requests, and how it moves when they are drawn anew."""

    def __init__(self, values: Ints, chosen: Bools) -> None:
        rows = np.flatnonzero(chosen)
        self._rows = rows[np.argsort(values[rows], kind="stable")]
        self._values = values[self._rows]
        self._usual = float(np.median(self._values)) if len(rows) else 0.0

    def moved(self, counts: Ints) -> Floats:
        """The medians of resamples less that of the sample, in the values' unit.

        :param counts: ``(replicates, n)`` how often each request was drawn.
        """
        running = np.cumsum(counts[:, self._rows], axis=1)
        if not running.shape[1]:
            return np.zeros(len(counts))
        half = running[:, -1].copy()
        last = running.shape[1] - 1
        # One sorted row of all: each replicate begins above the end of the one before.
        begin = (int(half.max()) + 2) * np.arange(len(half))
        running += begin[:, None]
        low, high = (
            np.minimum(np.searchsorted(running.ravel(), rank + begin) - (last + 1) * np.arange(len(half)), last)
            for rank in ((half + 1) // 2, half // 2 + 1)
        )
        median = (self._values[low] + self._values[high]).astype(np.float64) / 2
        return np.where(half > 0, median - self._usual, 0.0)


def reaching(value: Floats, ends: Floats, count: int) -> Floats:
    """Percentile intervals, drawn out on the side away from zero; ``(K, 2)``.

    The tail's mean is skewed: what a run has not seen can only make it larger.
    """
    off = np.where(value != 0, _CHARGE_MS + _CHARGE_SHARE * np.abs(value), 0.0)
    low, high = np.minimum(ends[0], value - off), np.maximum(ends[1], value + off)
    reach = 1.0 + _UNSEEN / np.sqrt(count)
    up = value + reach * (value - low)
    down = value - reach * (high - value)
    with np.errstate(divide="ignore", invalid="ignore"):
        # As far up, as a factor, as down; at most thrice as far as that in milliseconds.
        grown = np.where(low > 0, np.minimum(value**2 / low, value + 3 * reach * (value - low)), up)
        fallen = np.where(high < 0, np.maximum(value**2 / high, value - 3 * reach * (high - value)), down)
    positive = value >= 0
    return np.column_stack(
        [
            np.where(positive, low, np.minimum(low, np.minimum(down, fallen))),
            np.where(positive, np.maximum(high, np.maximum(up, grown)), high),
        ]
    )
