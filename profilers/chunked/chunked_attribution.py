"""The diagnosis of a run too large to be laid out at once.

What is usual in the run is learned from stretches spread over it; then the run is gone through in pieces, each
counted from the same references, and only sums are kept, with the ledger of the slowest requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from latfix.profilers.attribution.cause_removal import latencies_without
from latfix.profilers.attribution.ledger import Books, doubt_of, make_books
from latfix.profilers.attribution.tail import ONCE, Doubt
from latfix.profilers.causes import CAUSES
from latfix.profilers.chunked.accumulated_tail import bands_of
from latfix.profilers.chunked.accumulators import Layout, RunTally
from latfix.profilers.chunked.backlog_carryover import carry_over, rebased, wait_shares
from latfix.profilers.chunked.chunks import Piece, not_idle, sample_of
from latfix.profilers.chunked.first_pass import Survey
from latfix.profilers.evidence.run_baselines import Norms
from latfix.profilers.evidence.units import Evidence, gather
from latfix.results.diagnosis import Ledger
from latfix.run_record.chunked_record import LARGE, RecordSource
from latfix.run_record.run_record import RunRecord
from latfix.statistics.block_bootstrap import block_length
from latfix.statistics.latency_summary import QUANTILES, percentile_ns
from latfix.statistics.quantile_sketch import LogHistogram

Sink = Callable[[Ledger], None]

_BLOCKS = 2_000
_MOMENTS = 4_096
_WINDOWS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How a large run is divided.

    :param limit: runs of at most so many requests are laid out at once.
    :param piece: requests in a piece at least.
    :param stretches: learned from, each of ``stretch`` requests.
    :param listed: slowest requests whose ledger is kept.
    """

    limit: int = LARGE
    piece: int = 65_536
    stretches: int = 8
    stretch: int = 10_000
    listed: int = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What the sample taught.

    :param sample: stretches of the run, joined.
    :param evidence: of the sample, for the causes' sentences; ``reference_ns`` the run's.
    :param ranking: causes of the sample's tail, the largest first.
    :param doubt: of the references; ``latency_ns`` of the sample's ledger.
    """

    sample: RunRecord
    evidence: Evidence
    norms: Norms
    books: Books
    ranking: tuple[str, ...]
    doubt: Doubt

    @property
    def reference_ns(self) -> int:
        """What a quiet, typical request of the run takes."""
        return self.books.ledger.reference_ns


def learn(source: RecordSource, pieces: Sequence[Piece], percentile: float, scale: Scale) -> Lesson:
    """Learn what is usual in a run from stretches of it."""
    norms = Norms()
    sample = sample_of(source, pieces, scale.stretches, scale.stretch)
    if any(piece.busy for piece in pieces):
        # Stretches of a busy service begin with a backlog: what waking takes is told by the run's beginning alone.
        begun = Norms()
        make_books(gather(sample_of(source, pieces, 1, scale.stretch), begun))
        norms.of("waking", lambda: begun.of("waking", int))
    evidence = gather(sample, norms)
    books = make_books(evidence)
    totals = source.event_totals()
    pauses = {
        kind: replace(known, count=totals.get(kind, (0, 0))[0], longest_ns=totals.get(kind, (0, 0))[1])
        for kind, known in evidence.pauses.items()
    }
    evidence = replace(evidence, pauses=pauses)
    ledger = books.ledger
    slow = ledger.latency_ns >= percentile_ns(ledger.latency_ns, percentile)
    total = (ledger.own_ns + ledger.propagated_ns)[:, slow].sum(axis=1)
    order = np.argsort(-total, kind="stable")
    return Lesson(
        sample=sample,
        evidence=evidence,
        norms=norms,
        books=books,
        ranking=tuple(ledger.causes[k] for k in order if total[k] > 0 and k < len(CAUSES) - 1),
        doubt=doubt_of(evidence, books),
    )


def lay_out(seen: Survey, lesson: Lesson, percentile: float, scale: Scale) -> Layout:
    """Where the sums of a run are kept."""
    latency, n = seen.latency, len(seen.latency)
    at_ns = seen.percentiles_ns[percentile]
    block = max(-(-seen.rows // _BLOCKS), 1)
    learned = lesson.books.ledger.latency_ns
    # How far neighbors depend on each other, and more of it in longer series, as the rule for its length has it.
    dependent = min(block_length(learned) * math.cbrt(n / max(len(learned), 1)), seen.rows / 8)
    removals: list[tuple[str, ...]] = [(cause.id,) for cause in CAUSES]
    removals += [lesson.ranking[:count] for count in (2, 3) if len(lesson.ranking) >= count]
    begin, end = float(seen.first_ns), float(max(seen.last_ns, seen.first_ns + 1_000_000))
    return Layout(
        block_rows=block,
        blocks=-(-seen.rows // block),
        together=max(math.ceil(dependent / block), 1),
        bands_ns=bands_of(latency, percentile, at_ns),
        tail_ns=at_ns,
        # A few more than are kept: the histogram tells a rank to a twentieth of a percent of its latency.
        listed_ns=0.998 * latency.value_at(n - scale.listed) if n > scale.listed else 0.0,
        limits_ns=np.array([seen.percentiles_ns[100 * q] for q in QUANTILES.values()]),
        edges_ns=np.linspace(begin, end, _WINDOWS + 1),
        moments_ns=np.linspace(begin, max(end, float(seen.ended_ns)), _MOMENTS + 1),
        once=tuple(k for k, cause in enumerate(CAUSES) if cause.id in ONCE),
        removals=tuple(removals),
    )


def tally_pieces(
    source: RecordSource,
    pieces: Sequence[Piece],
    layout: Layout,
    norms: Norms,
    reference_ns: int,
    *,
    before: Piece | None = None,
    sink: Sink | None = None,
) -> RunTally:
    """Attribute pieces one after the other, and sum up.

    :param before: the piece before them, where they are not the run's first.
    :param sink: gets every piece's ledger, ids included.
    """
    tally = RunTally(layout)
    shares = np.zeros(len(CAUSES))
    if before is not None and pieces and pieces[0].busy:
        shares = wait_shares(_book(source, before, norms, reference_ns)[2])
    for piece in pieces:
        record, evidence, ledger, books = _book(source, piece, norms, reference_ns)
        early = not_idle(piece, record)[evidence.ok]
        carried = carry_over(ledger, books.closure_ns, early, shares)
        shares = wait_shares(carried)
        closure = np.where(early & shares.any(), np.minimum(books.closure_ns, 0), books.closure_ns)
        tally.add(piece.first, evidence, carried, closure, books.spread)
        _predict(tally, replace(books, ledger=ledger), carried)
        if sink is not None:
            sink(carried)
    return tally


def _book(
    source: RecordSource, piece: Piece, norms: Norms, reference_ns: int
) -> tuple[RunRecord, Evidence, Ledger, Books]:
    """A piece's record, laid out and attributed; its ledger counts from the run's reference."""
    record = source.stretch(piece.first, piece.last)
    evidence = _own_folds(gather(record, norms.copied(), begins=piece.first == 0))
    books = make_books(evidence)
    position = books.ledger.request - record.first_index
    ids = tuple(record.traffic.ids[k] for k in position.tolist())
    return record, evidence, rebased(replace(books.ledger, ids=ids), reference_ns), books


def _own_folds(evidence: Evidence) -> Evidence:
    """The models' folds, as they are for the piece's units."""
    counts = {"prepare": len(evidence.ok), "finish": len(evidence.ok), "compute": len(evidence.batches["size"])}
    models = {
        unit: replace(model, fold=model.folds_of(counts[unit])) for unit, model in evidence.expected.models.items()
    }
    return replace(evidence, expected=replace(evidence.expected, models=models))


def _predict(tally: RunTally, books: Books, carried: Ledger) -> None:
    """Count the latencies of a piece without each of the layout's sets of causes."""
    ledger = books.ledger
    if not len(ledger.latency_ns):
        return
    there = {
        cause
        for k, cause in enumerate(carried.causes)
        if carried.own_ns[k].any() or carried.propagated_ns[k].any() or books.finished_before[k].any()
    }
    removals = tally.layout.removals
    changed = [k for k, removed in enumerate(removals) if there.intersection(removed)]
    plain = LogHistogram()
    plain.add(ledger.latency_ns)
    for k, histogram in enumerate(tally.without):
        if k not in changed:
            histogram += plain
    more = carried.own_ns + carried.propagated_ns - books.ledger.own_ns - books.ledger.propagated_ns
    backlog = bool(more.any())
    for k, latency in zip(changed, latencies_without(books, [removals[k] for k in changed]), strict=True):
        if backlog:
            gone = [cause in removals[k] for cause in ledger.causes]
            latency = np.maximum(latency - more[gone].sum(axis=0), 0)
        tally.without[k].add(latency)
