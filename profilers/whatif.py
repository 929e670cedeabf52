"""What percentiles would be with causes removed, predicted by replaying the queue without them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from latfix.profilers.ledger import Books
from latfix.profilers.queue_blame import waits_at
from latfix.statistics import percentile_ns

Floats = npt.NDArray[np.float64]

_PERCENTILES = (50, 95, 99)
#: Replayed requests at a time; bounds the memory of a prediction.
_AT_ONCE = 2_000_000


def without(books: Books, removals: Sequence[Collection[str]]) -> list[dict[str, float]]:
    """p50, p95 and p99 in milliseconds, had the requests not met these causes; one answer a removal.

    What a removed cause owns of a request's own path is taken off, and both queues are replayed with the
    service that is left, so that a wait that two causes share shrinks as it would. What traffic alone makes
    wait (``traffic.*``) is taken off as it stands in the ledger: no service brings it about.
    """
    ledger = books.ledger
    if not len(ledger.latency_ns):
        return [dict.fromkeys((f"p{q}" for q in _PERCENTILES), 0.0) for _ in removals]
    kept = np.array([[cause not in removed for cause in ledger.causes] for removed in removals], dtype=np.float64)
    now = _waits(books, np.ones((1, len(ledger.causes))))[0]
    answers = []
    group = max(1, _AT_ONCE // len(books.ok))
    for first in range(0, len(removals), group):
        scale = kept[first : first + group]
        for keep, wait in zip(scale, _waits(books, scale), strict=True):
            gone = keep == 0.0
            off = (ledger.own_ns[gone] + books.finished_before[gone]).sum(axis=0)
            latency = np.maximum(ledger.latency_ns - off + np.rint(wait - now).astype(np.int64), 0)
            answers.append({f"p{q}": percentile_ns(latency, q) / 1e6 for q in _PERCENTILES})
    return answers


def _waits(books: Books, scale: Floats) -> Floats:
    return np.asarray(waits_at(books.line, scale)[:, books.ok], dtype=np.float64)
