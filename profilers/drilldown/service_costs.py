"""How long each batch and prepare held its thread, and by which causes it took longer than usual.

The figures are those of the ledger's queues, so that both name the same causes.
"""

from __future__ import annotations

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.cause_catalogue import UNEXPLAINED
from latfix.profilers.causes import CAUSES
from latfix.profilers.evidence.units import Evidence
from latfix.queueing.two_stage_queue import Line


class Costs:
    """Work that held threads, one column per piece of work; all nanoseconds.

    :param start: ``(m,)`` when it took its thread; ``end`` when it released it.
    :param thread: ``(m,)`` worker or prepare thread.
    :param typical: ``(m,)`` typical duration for its size.
    :param extra: ``(k, m)`` time beyond that by cause.
    :ivar causes: names of the rows of ``parts``; the last, ``unexplained``, is the remainder.
    :ivar parts: ``(k, m)`` parts of ``end - start - typical``.
    """

    def __init__(self, start: Ints, end: Ints, thread: Ints, typical: Ints, extra: Floats) -> None:
        self.start, self.end, self.thread, self.typical = (
            np.asarray(each, dtype=np.int64) for each in (start, end, thread, typical)
        )
        self.causes = (*(cause.id for cause in CAUSES[:-1]), UNEXPLAINED)
        self.parts: Ints = np.rint(extra).astype(np.int64)
        self.parts[-1] = self.end - self.start - self.typical - self.parts[:-1].sum(axis=0)

    def named(self, rows: Ints) -> tuple[tuple[str, int], ...]:
        """The nonzero parts of some rows together, the largest first."""
        total = self.parts[:, rows].sum(axis=1)
        order = np.argsort(-np.abs(total), kind="stable").tolist()
        return tuple((self.causes[k], int(total[k])) for k in order if total[k])


def batch_costs(evidence: Evidence, line: Line) -> Costs:
    """Costs of every batch: it holds its worker from its opening until the next batch could begin.

    :param line: the queues of the ledger (:class:`latfix.profilers.attribution.ledger.LedgerContext`).
    """
    batches = evidence.batches
    start, end = batches["open_ns"], np.maximum(evidence.released_ns, batches["open_ns"])
    reference = np.rint(line.workers.reference).astype(np.int64)
    typical = reference[np.minimum(batches["size"], len(reference) - 1)]
    known = evidence.head >= 0
    extra = np.zeros((len(CAUSES), len(start)))
    extra[:, known] = line.batch_extra[evidence.head[known]].T
    window = np.maximum(batches["close_ns"] - evidence.units["lag"].wall - batches["open_ns"], 0)
    extra[[cause.id for cause in CAUSES].index("batching.window")] += window
    return Costs(start, end, batches["worker"], typical, extra)


def prepare_costs(evidence: Evidence, line: Line) -> Costs:
    """Costs of every request's ``prepare``; zero for requests that were never prepared."""
    unit, prepared = evidence.units["prepare"], evidence.rows["prepare_thread"] >= 0
    typical = np.where(prepared, np.rint(line.prepare.reference[1]).astype(np.int64), 0)
    work = np.where(prepared, unit.wall, 0)
    extra = np.where(prepared, line.prepare_extra.T, 0.0)
    return Costs(unit.end - work, unit.end, evidence.rows["prepare_thread"], typical, extra)
