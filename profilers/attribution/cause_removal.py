"""What percentiles would be with causes removed or a worker added, predicted by replaying the queue so."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.profilers.attribution.ledger import Books
from latfix.profilers.attribution.wait_attribution import waits_at

#: Replayed requests at a time; bounds the memory of a prediction.
_AT_ONCE = 2_000_000


def latencies_without(books: Books, removals: Sequence[Collection[str]]) -> Iterator[Ints]:
    """Latencies had the requests not met some causes: ``(n,)`` nanoseconds, one array a removal.

    What a removed cause owns of a request's own path is taken off, and both queues are replayed with the
    service that is left, so that a wait that two causes share shrinks as it would. What traffic alone makes
    wait (``traffic.*``) is taken off as it stands in the ledger: no service brings it about.
    """
    ledger, line = books.ledger, books.line
    kept = np.ones((len(removals), len(ledger.causes)))
    for keep, removed in zip(kept, removals, strict=True):
        keep[[cause in removed for cause in ledger.causes]] = 0.0
    served = np.asarray(line.prepare_extra.any(axis=0) | line.batch_extra.any(axis=0), dtype=bool)
    served[line.window_column] |= line.workers.window > 0
    # Where what is removed was in nobody's service, everyone waits as before.
    replayed = np.flatnonzero((kept[:, served] == 0).any(axis=1))
    now = _waits(books, np.ones((1, len(ledger.causes))))[0] if len(replayed) else np.zeros(len(ledger.latency_ns))
    group = max(1, _AT_ONCE // max(len(books.ok), 1))
    for first in range(0, len(removals), group):
        scale = kept[first : first + group]
        again = np.intersect1d(replayed, np.arange(first, first + len(scale)))
        waits = dict(zip(again.tolist(), _waits(books, kept[again]), strict=True)) if len(again) else {}
        for k, keep in enumerate(scale, start=first):
            gone = keep == 0.0
            off = (ledger.own_ns[gone] + books.by_others[gone]).sum(axis=0)
            grown = np.rint(waits.get(k, now) - now).astype(np.int64)
            yield np.maximum(ledger.latency_ns - off + grown, 0)


def latencies_with_another_worker(books: Books) -> Ints | None:
    """Latencies had one more worker, as fast as the others, taken batches from the queue: ``(n,)`` nanoseconds.

    :returns: ``None`` where the queue can only be replayed in the batches that were recorded.
    """
    line = books.line
    if line.recorded is not None:
        return None
    as_it_was = np.ones((1, len(books.ledger.causes)))
    more = replace(line, workers=replace(line.workers, workers=line.workers.workers + 1))
    grown = waits_at(more, as_it_was)[0, books.ok] - _waits(books, as_it_was)[0]
    return np.asarray(np.maximum(books.ledger.latency_ns + np.rint(grown).astype(np.int64), 0), dtype=np.int64)


def _waits(books: Books, scale: Floats) -> Floats:
    return np.asarray(waits_at(books.line, scale)[:, books.ok], dtype=np.float64)
