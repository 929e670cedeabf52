"""The baselines of a run, and the ledger of each of its chunks, all relative to the same references.

A small record is its own sample. For a larger one, baselines are learned from stretches spread over it, and each
chunk is attributed with them. A chunk's replay begins with an empty queue. If a record is cut while its service is
busy, waits that the replay does not reproduce are waits for the backlog at the cut, which has the same causes as the
waits of the last requests before the cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.profilers.attribution.ledger import LedgerContext, make_books
from latfix.profilers.causes import CAUSES
from latfix.profilers.chunked.record_chunks import Chunk, before_first_idle, sample_of
from latfix.profilers.evidence.run_baselines import Norms
from latfix.profilers.evidence.units import Evidence, gather
from latfix.results.diagnosis import Ledger
from latfix.run_record.chunked_record import LARGE, RecordSource
from latfix.run_record.run_record import RunRecord
from latfix.statistics.latency_summary import percentile_ns

Sink = Callable[[Ledger], None]

#: Causes whose own part is a wait in the queue.
_WAITS = ("traffic.burst", "traffic.overload", "traffic.priority")
#: Number of the last requests before a cut whose waits represent the backlog.
_LAST = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How a run is divided.

    :param limit: largest run that is one chunk, laid out at once.
    :param chunk: least requests per chunk of a larger run.
    :param stretches: number of stretches to learn from, each of ``stretch`` requests.
    :param listed: number of slowest requests whose ledger rows are kept.
    """

    limit: int = LARGE
    chunk: int = 65_536
    stretches: int = 8
    stretch: int = 10_000
    listed: int = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Baselines:
    """What the chunks of a run are compared with.

    :param sample: the record they were learned from: joined stretches of the run, or all of it.
    :param evidence: of the sample, for the causes' sentences and for the run's norms.
    :param books: of the sample; their reference is the run's.
    :param ranking: causes of the sample's tail, the largest first.
    """

    sample: RunRecord
    evidence: Evidence
    books: LedgerContext
    ranking: tuple[str, ...]

    @property
    def reference_ns(self) -> int:
        """Latency of a quiet, typical request of the run."""
        return self.books.ledger.reference_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkLedger:
    """One chunk, attributed.

    :param first_row: of the chunk in the record.
    :param books: from the chunk's own replay.
    :param ledger: relative to the run's reference, with waits for the backlog at the cut divided among its causes.
    :param closure_ns: ``(n,)`` waits that neither explains.
    """

    first_row: int
    record: RunRecord
    evidence: Evidence
    books: LedgerContext
    ledger: Ledger
    closure_ns: Ints

    @property
    def begun_ns(self) -> Ints:
        """``(n,)`` when work on each request of the ledger began."""
        rows = self.evidence.rows
        begun = rows["arrival_ns"] + rows["dispatch_ns"] + rows["prepare_ns"] + rows["queue_ns"]
        return np.asarray(begun[self.evidence.ok], dtype=np.int64)


def learn_all(record: RunRecord, percentile: float) -> Baselines:
    """Baselines of a run that is laid out at once."""
    return _learned(record, gather(record), percentile)


def learn(source: RecordSource, chunks: Sequence[Chunk], percentile: float, scale: Scale) -> Baselines:
    """Baselines of a large run, from stretches of it."""
    norms = Norms()
    sample = sample_of(source, chunks, scale.stretches, scale.stretch)
    if any(chunk.busy for chunk in chunks):
        # Stretches of a busy service begin with a backlog, so the wake-up time is learned from the run's beginning.
        begun = Norms()
        make_books(gather(sample_of(source, chunks, 1, scale.stretch), begun))
        norms.of("waking", lambda: begun.of("waking", int))
    evidence = gather(sample, norms)
    totals = source.event_totals()
    pauses = {
        kind: replace(known, count=totals.get(kind, (0, 0))[0], longest_ns=totals.get(kind, (0, 0))[1])
        for kind, known in evidence.pauses.items()
    }
    return _learned(sample, replace(evidence, pauses=pauses), percentile)


def _learned(sample: RunRecord, evidence: Evidence, percentile: float) -> Baselines:
    books = make_books(evidence)
    books = replace(books, ledger=replace(books.ledger, ids=_ids(sample, books.ledger)))
    ledger = books.ledger
    slow = ledger.latency_ns >= percentile_ns(ledger.latency_ns, percentile)
    total = (ledger.own_ns + ledger.propagated_ns)[:, slow].sum(axis=1)
    order = np.argsort(-total, kind="stable")
    return Baselines(
        sample=sample,
        evidence=evidence,
        books=books,
        ranking=tuple(ledger.causes[k] for k in order if total[k] > 0 and k < len(CAUSES) - 1),
    )


def whole_ledger(baselines: Baselines) -> ChunkLedger:
    """The ledger of a run that was laid out at once."""
    books = baselines.books
    return ChunkLedger(
        first_row=0,
        record=baselines.sample,
        evidence=baselines.evidence,
        books=books,
        ledger=books.ledger,
        closure_ns=books.closure_ns,
    )


def chunk_ledgers(source: RecordSource, chunks: Sequence[Chunk], baselines: Baselines) -> Iterator[ChunkLedger]:
    """Attribute chunks in order; a backlog at a cut carries over to the next chunk."""
    shares = np.zeros(len(CAUSES))
    for chunk in chunks:
        record = source.stretch(chunk.first, chunk.last)
        evidence = gather(record, baselines.evidence.norms.copied())
        books = make_books(evidence)
        ledger = rebased(replace(books.ledger, ids=_ids(record, books.ledger)), baselines.reference_ns)
        early = before_first_idle(chunk, record)[evidence.ok]
        carried = carry_over(ledger, books.closure_ns, early, shares)
        closure = np.where(early & shares.any(), np.minimum(books.closure_ns, 0), books.closure_ns)
        shares = wait_shares(carried)
        yield ChunkLedger(
            first_row=chunk.first,
            record=record,
            evidence=evidence,
            books=replace(books, ledger=ledger),
            ledger=carried,
            closure_ns=closure,
        )


def _ids(record: RunRecord, ledger: Ledger) -> tuple[str, ...]:
    return tuple(record.traffic.ids[k] for k in (ledger.request - record.first_index).tolist())


def wait_shares(ledger: Ledger) -> Floats:
    """``(K,)``: shares of the causes in the waits of a chunk's last requests; zeros if none waited."""
    waits = ledger.propagated_ns[:, -_LAST:].sum(axis=1).astype(np.float64)
    for cause in _WAITS:
        k = ledger.causes.index(cause)
        waits[k] += float(ledger.own_ns[k, -_LAST:].sum())
    waits = np.maximum(waits, 0.0)
    total = float(waits.sum())
    return np.asarray(waits / total if total > 0 else waits, dtype=np.float64)


def carry_over(ledger: Ledger, closure_ns: Ints, before_idle: Bools, shares: Floats) -> Ledger:
    """Divide waits for the backlog at a cut among its causes; every sum stays exact.

    :param closure_ns: ``(n,)`` wait that the chunk's replay does not reproduce, so far in ``unexplained``.
    :param before_idle: ``(n,)`` requests that the backlog can have delayed.
    :param shares: ``(K,)`` of the backlog by cause; if all are zero, the ledger is unchanged.
    """
    if not before_idle.any() or not shares.any():
        return ledger
    own, propagated = ledger.own_ns.copy(), ledger.propagated_ns.copy()
    waited = np.where(before_idle, np.maximum(closure_ns, 0), 0)
    parts = np.floor(waited[None] * shares[:, None]).astype(np.int64)
    parts[int(np.argmax(shares))] += waited - parts.sum(axis=0)
    last = len(ledger.causes) - 1
    own[last] -= waited
    for k, cause in enumerate(ledger.causes):
        if cause in _WAITS or k == last:
            own[k] += parts[k]
        else:
            propagated[k] += parts[k]
    return replace(ledger, own_ns=own, propagated_ns=propagated)


def rebased(ledger: Ledger, reference_ns: int) -> Ledger:
    """A chunk's ledger relative to the run's reference; the difference goes to ``unexplained``."""
    if ledger.reference_ns == reference_ns:
        return ledger
    own = ledger.own_ns.copy()
    own[-1] += ledger.reference_ns - reference_ns
    return replace(ledger, own_ns=own, reference_ns=reference_ns)
