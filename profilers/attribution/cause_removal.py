"""Predicted latencies with causes removed or a worker added, from a replay of the queue."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.profilers.attribution.ledger import LedgerContext
from latfix.profilers.attribution.wait_attribution import waits_at

#: Requests replayed at a time. Bounds the memory of a prediction.
_AT_ONCE = 2_000_000


@dataclass(frozen=True)
class QueueReplay:
    """The queue of a run, replayed under other conditions."""

    books: LedgerContext

    def latencies_without(self, removals: Sequence[Collection[str]]) -> Iterator[Ints]:
        """Predicted latencies without some causes: ``(n,)`` nanoseconds, one array per removal.

        The removed causes' own time is subtracted, and both queues are replayed with the remaining service time, so a
        wait that two causes share shrinks correctly. Waits that traffic alone causes (``traffic.*``) are subtracted
        as the ledger has them, because no service time causes them.
        """
        books = self.books
        ledger, line = books.ledger, books.line
        kept = np.ones((len(removals), len(ledger.causes)))
        for keep, removed in zip(kept, removals, strict=True):
            keep[[cause in removed for cause in ledger.causes]] = 0.0
        served = np.asarray(line.prepare_extra.any(axis=0) | line.batch_extra.any(axis=0), dtype=bool)
        served[line.window_column] |= line.workers.window > 0
        # A removal that changes no service time leaves all waits unchanged.
        replayed = np.flatnonzero((kept[:, served] == 0).any(axis=1))
        now = self._as_recorded if len(replayed) else np.zeros(len(ledger.latency_ns))
        group = max(1, _AT_ONCE // max(len(books.ok), 1))
        for first in range(0, len(removals), group):
            scale = kept[first : first + group]
            again = np.intersect1d(replayed, np.arange(first, first + len(scale)))
            waits = dict(zip(again.tolist(), self._waits(kept[again]), strict=True)) if len(again) else {}
            for k, keep in enumerate(scale, start=first):
                gone = keep == 0.0
                off = (ledger.own_ns[gone] + books.by_others[gone]).sum(axis=0)
                grown = np.rint(waits.get(k, now) - now).astype(np.int64)
                yield np.maximum(ledger.latency_ns - off + grown, 0)

    def latencies_with_another_worker(self) -> Ints | None:
        """Predicted latencies with one more worker, as fast as the others: ``(n,)`` nanoseconds.

        :returns: ``None`` if the queue can only be replayed in the recorded batches.
        """
        books = self.books
        line = books.line
        if line.recorded is not None:
            return None
        more = replace(line, workers=replace(line.workers, workers=line.workers.workers + 1))
        grown = waits_at(more, np.ones((1, len(books.ledger.causes))))[0, books.ok] - self._as_recorded
        return np.asarray(np.maximum(books.ledger.latency_ns + np.rint(grown).astype(np.int64), 0), dtype=np.int64)

    @cached_property
    def _as_recorded(self) -> Floats:
        return np.asarray(self._waits(np.ones((1, len(self.books.ledger.causes))))[0])

    def _waits(self, scale: Floats) -> Floats:
        return np.asarray(waits_at(self.books.line, scale)[:, self.books.ok], dtype=np.float64)
