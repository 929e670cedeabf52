"""The tail: which requests it holds, what each cause owns of it, and how sure that is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from latfix.blocks import block_counts, block_length, iter_block_starts
from latfix.diagnosis import Ledger
from latfix.statistics import percentile_ns

Floats = npt.NDArray[np.float64]

#: Resampling stops at so many drawn requests in all; large records need fewer replicates anyway.
_MOST_DRAWN = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Means over the requests at or above a percentile of latency, in milliseconds.

    :param members: ``(n,)`` which rows of the ledger.
    :param excess_ms: mean latency less the reference; the causes' ``own_ms + propagated_ms`` sum to it.
    :param own_ms: ``(K,)``; ``propagated_ms`` the same.
    :param ci95_ms: ``(K, 2)`` interval of own + propagated.
    """

    members: npt.NDArray[np.bool_]
    mean_ms: float
    excess_ms: float
    own_ms: Floats
    propagated_ms: Floats
    ci95_ms: Floats


def cut_tail(ledger: Ledger, percentile: float, *, seed: int, replicates: int, once: Collection[str]) -> Tail:
    """The tail of a ledger.

    Intervals come from a moving-block bootstrap over the ledger's rows, the tail cut anew in each replicate;
    the reference and the models are not fitted again. Requests that a cause of ``once`` touched are in every
    replicate: a cold start is no draw from a population of moments, it happens once in every run.
    """
    n, kinds = len(ledger.latency_ns), len(ledger.causes)
    if not n:
        nothing = np.zeros(kinds)
        return Tail(
            members=np.zeros(0, dtype=bool),
            mean_ms=0.0,
            excess_ms=0.0,
            own_ms=nothing,
            propagated_ms=nothing,
            ci95_ms=np.zeros((kinds, 2)),
        )
    members = np.asarray(ledger.latency_ns >= percentile_ns(ledger.latency_ns, percentile))
    count = int(np.count_nonzero(members))
    total = int(ledger.latency_ns[members].sum())
    return Tail(
        members=members,
        mean_ms=total / count / 1e6,
        excess_ms=(total - count * ledger.reference_ns) / count / 1e6,
        own_ms=ledger.own_ns[:, members].sum(axis=1) / count / 1e6,
        propagated_ms=ledger.propagated_ns[:, members].sum(axis=1) / count / 1e6,
        ci95_ms=_intervals(ledger, percentile, seed, replicates, once),
    )


def _intervals(ledger: Ledger, percentile: float, seed: int, replicates: int, once: Collection[str]) -> Floats:
    n = len(ledger.latency_ns)
    entries = (ledger.own_ns + ledger.propagated_ns) / 1e6
    order = np.argsort(ledger.latency_ns, kind="stable")
    latency, entries = ledger.latency_ns[order], entries[:, order]
    fixed = np.zeros(n, dtype=bool)
    for k, cause in enumerate(ledger.causes):
        if cause in once:
            fixed |= ledger.own_ns[k] + ledger.propagated_ns[k] > 0.05 * max(ledger.reference_ns, 1)
    rng = np.random.default_rng(seed)
    block = block_length(ledger.latency_ns)
    drawn = np.empty((max(2, min(replicates, _MOST_DRAWN // n)), len(entries)))
    for row, starts in zip(drawn, iter_block_starts(n, block=block, replicates=len(drawn), rng=rng), strict=True):
        counts = block_counts(n, starts, block)
        counts[fixed] = 1
        weight = counts[order]
        running = np.cumsum(weight)
        rank = int(np.ceil((int(running[-1]) - 1) * percentile / 100 - 1e-9))
        threshold = latency[np.searchsorted(running, rank + 1)]
        first = int(np.searchsorted(latency, threshold, side="left"))
        row[:] = entries[:, first:] @ weight[first:] / max(int(weight[first:].sum()), 1)
    return np.quantile(drawn, [0.025, 0.975], axis=0).T
