"""``cold.start``: first use: lazy initialization, weights paged in, first growth of the heap."""

from __future__ import annotations

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.formatting import milliseconds
from latfix.profilers.causes.cause import Cause, Claim, Left, Parts, TailFigures
from latfix.profilers.evidence.intervals import Intervals
from latfix.profilers.evidence.units import Evidence, late_shapes

#: More new shapes than this in the second half of a run are worth a mention; so many must recur to be compared.
_FEW = 4


def _claim(evidence: Evidence, left: Left) -> Claim:
    excess = left.cpu_excess("compute") + left.blocked["compute"]
    begun = _firsts(evidence, "compute")
    extra = np.where(begun, excess, _cold_shapes_ns(evidence, "compute", excess))
    cold = begun | (extra > 0)
    cpu = np.minimum(extra, left.cpu_excess("compute"))
    units = {
        "collate": Parts(
            cpu=np.where(cold, left.cpu_excess("collate"), 0), blocked=np.where(cold, left.blocked["collate"], 0)
        ),
        "compute": Parts(cpu=cpu, blocked=np.minimum(extra - cpu, left.blocked["compute"])),
    }
    units["lag"] = Parts(blocked=np.where(cold, left.blocked["lag"], 0))
    fresh = _firsts(evidence, "prepare")
    excess = left.cpu_excess("prepare")
    units["prepare"] = Parts(cpu=np.where(fresh, excess, _cold_shapes_ns(evidence, "prepare", excess)))
    first = evidence.of_batch(cold.astype(np.int64)) * (evidence.ahead_in_batch == 0) > 0
    units["finish"] = Parts(cpu=np.where(first, left.cpu_excess("finish"), 0))
    return Claim(units=units)


def _outside(evidence: Evidence, left: Left) -> Claim:
    """Slow first uses of a value of a feature, and the interpreter lock while a first use may have held it."""
    compute = evidence.units["compute"]
    cold = _cold_shapes_ns(evidence, "compute", left.cpu_excess("compute") + left.blocked["compute"]) > 0
    using = Intervals.merged(compute.start[cold], compute.wall[cold])
    units = {}
    for name, first in (("compute", cold), ("finish", evidence.of_batch(cold.astype(np.int64)) > 0)):
        unit, excess = evidence.units[name], left.cpu_excess(name)
        waited = np.minimum(evidence.at_units(name, evidence.locks.python), using.covered(*unit.span))
        units[name] = Parts(excess=np.where(first, excess, waited))
    return Claim(units=units)


def _outside_sentence(evidence: Evidence, figures: TailFigures) -> str:
    firsts = np.count_nonzero(evidence.batches["first_shape"])
    return (
        f"{firsts} requests were the first with their value of a feature or their size, and most took longer than "
        f"later ones with the same, by up to {milliseconds(figures.largest_ms)}; {figures.parts}."
    )


def _cold_shapes_ns(evidence: Evidence, name: str, excess: Ints) -> Ints:
    """Per unit of a new shape, how much longer it took for being the first; zero unless half of these are slow.

    :param name: ``compute``, or ``prepare`` of the members of such a batch.
    """
    batches = evidence.batches
    fresh, shape = batches["first_shape"] > 0, batches["size"] << 40 | batches["padded_elements"]
    if name == "prepare":
        fresh, shape = evidence.of_batch(fresh.astype(np.int64)) > 0, evidence.rows["input_elements"]
    model = evidence.expected.models[name]
    if not fresh.any() or fresh.all():
        return np.zeros_like(excess)
    known = evidence.norms.of(f"excess.known_shapes.{name}", lambda: float(np.median(excess[~fresh])))
    usual = model.clearly_slow_ns(known)
    seen, usually = evidence.norms.of(f"excess.by_shape.{name}", lambda: _medians(shape[~fresh], excess[~fresh]))
    place = np.minimum(np.searchsorted(seen, shape), len(seen) - 1)
    # Rare shapes are large ones of busy moments, and slow whenever they come: only what the first took more is cold.
    later = np.where(seen[place] == shape, usually[place], np.nan)
    recurs = fresh & ~np.isnan(later)
    more = np.where(recurs, excess - later + known, excess)
    chosen = recurs if np.count_nonzero(recurs) > _FEW else fresh
    if evidence.norms.of(f"excess.new_shapes.{name}", lambda: float(np.median(more[chosen]))) <= usual:
        return np.zeros_like(excess)
    return np.where(fresh & (more > usual), np.rint(more), 0).astype(np.int64)


def _medians(key: Ints, values: Ints) -> tuple[Ints, Floats]:
    """The distinct keys, and the median of each one's values."""
    order = np.lexsort((values, key))
    distinct, first, count = np.unique(key[order], return_index=True, return_counts=True)
    return distinct, values[order][first + (count - 1) // 2].astype(np.float64)


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
    late, every = late_shapes(evidence.batches)
    coming = f"new shapes kept coming, {late} of {every} in the second half; " if late > _FEW else ""
    warm = int(np.count_nonzero(evidence.rows["warmup"]))
    return (
        f"{figures.requests} requests met a first use after {warm} warm-up requests and took up to "
        f"{milliseconds(figures.largest_ms)} longer than their inputs need; {coming}{figures.parts}."
    )


CAUSE = Cause(
    id="cold.start",
    fixes=("warmup.shapes", "memory.page_prefault", "warmup.resident", "fuse.planless_attention", "fuse.cudagraph"),
    claim=_claim,
    sentence=_sentence,
    outside=_outside,
    outside_sentence=_outside_sentence,
)
