"""``cold.start``: first use: lazy initialization, weights paged in, first growth of the heap."""

from __future__ import annotations

import numpy as np

from latfix.arrays import Bools
from latfix.formatting import milliseconds
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures, own_and_propagated
from latfix.profilers.evidence.units import Evidence

#: First uses of a shape count as cold if half of them exceed the model by more than this many deviations.
_DEVIATIONS = 4.0
#: More new shapes than this in the second half of a run are worth a mention.
_FEW = 4


def _claim(evidence: Evidence, left: Left) -> Claim:
    cold = _firsts(evidence, "compute") | _cold_shapes(evidence, left)
    units = {
        name: Parts(cpu=np.where(cold, left.cpu_excess(name), 0), blocked=np.where(cold, left.blocked(name), 0))
        for name in ("collate", "compute")
    }
    units["lag"] = Parts(blocked=np.where(cold, left.blocked("lag"), 0))
    fresh = _firsts(evidence, "prepare")
    units["prepare"] = Parts(cpu=np.where(fresh, left.cpu_excess("prepare"), 0))
    first = evidence.of_batch(cold.astype(np.int64)) * (evidence.ahead_in_batch == 0) > 0
    units["finish"] = Parts(cpu=np.where(first, left.cpu_excess("finish"), 0))
    return Claim(units=units)


def _cold_shapes(evidence: Evidence, left: Left) -> Bools:
    """Batches of a new shape, if first uses of shapes are slow in this run."""
    fresh = evidence.batches["first_shape"] > 0
    model = evidence.expected.models["compute"]
    excess = left.cpu_excess("compute") + left.blocked("compute")
    if not fresh.any() or fresh.all():
        return np.zeros_like(fresh)
    usual = evidence.norms.of("excess.known_shapes", lambda: float(np.median(excess[~fresh])))
    usual = max(usual + _DEVIATIONS * 1.4826 * model.residual_mad, 0.1 * model.typical)
    if evidence.norms.of("excess.new_shapes", lambda: float(np.median(excess[fresh]))) <= usual:
        return np.zeros_like(fresh)
    return np.asarray(fresh & (excess > usual))


def _firsts(evidence: Evidence, name: str) -> Bools:
    """The first unit of each worker or prepare thread; none in a later piece of the run."""
    unit = evidence.units[name]
    first = np.zeros(len(unit.thread), dtype=bool)
    if evidence.begins:
        order = np.argsort(unit.start, kind="stable")
        order = order[unit.thread[order] >= 0]
        _, where = np.unique(unit.thread[order], return_index=True)
        first[order[where]] = True
    return first


def _sentence(evidence: Evidence, figures: TailFigures) -> str:
    fresh = evidence.batches["first_shape"] > 0
    late, every = int(np.count_nonzero(fresh[len(fresh) // 2 :])), int(np.count_nonzero(fresh))
    coming = f"new shapes kept coming, {late} of {every} in the second half; " if late > _FEW else ""
    warm = int(np.count_nonzero(evidence.rows["warmup"]))
    return (
        f"{figures.requests} requests met a first use after {warm} warm-up requests and took up to "
        f"{milliseconds(figures.largest_ms)} longer than their inputs need; {coming}{own_and_propagated(figures)}."
    )


CAUSE = Cause(
    id="cold.start",
    fixes=("warmup.shapes", "memory.page_prefault", "warmup.resident"),
    claim=_claim,
    sentence=_sentence,
)
