"""Memory calls to a GPU's driver, from counters of torch's caching allocator.

A call (allocate or free a segment; free all cached memory before a retry) stalls the allocating thread. The counters
are read at the end of batches; in older records and with overlapping workers, only twice a second. The time between
two readings is a stretch. Its calls are attributed to the batches that took longest beyond their inputs' need, one
call each; if every batch was read, that is the batch that made them.

The claim of a stretch is bounded by a multiple of its calls' price, measured on the idle device at the start of the
run: a call takes longer while the device or another process is busy, but not arbitrarily longer. The part beyond the
price is uncertain. Pages of expandable segments without a measured price get the usual one, uncertain by half.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.formatting import milliseconds
from latfix.profilers.causes.cause import Claim, Left, Parts
from latfix.profilers.causes.memory.heap_growth import MIB
from latfix.profilers.causes.memory.page_faults import price_doubt
from latfix.profilers.evidence.intervals import Overlaps
from latfix.profilers.evidence.units import Evidence
from latfix.run_record.schema import device_series

Kind = Literal["fragmented", "other"]
#: Memory is in pieces if this share of the reserved memory is free within segments in use.
_IN_PIECES = 0.05
#: Readings by batch are used if at least this share of batches was read; samples otherwise.
_MOST_READ = 0.5
#: A call lasts at most this many times its price, while it waits for the device and its driver.
_REACH = 10.0
#: Standard error of the part of a claim beyond the price, as a share of it.
_BEYOND = 0.5
#: Units whose thread allocates on the device: for inputs, in the model, for outputs.
UNITS: tuple[str, ...] = ("compute", "h2d", "d2h")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """The allocator's activity between readings; all arrays ``(k,)``.

    :param begin: nanoseconds, as ``end``.
    :param taken: bytes of the segments in ``allocs``; ``given`` of those in ``frees``; 0 if unknown.
    :param pieces: largest number of free bytes within segments in use.
    :param in_pieces: true if these are at least :data:`_IN_PIECES` of the reserved memory.
    :param number: the device (:func:`latfix.run_record.schema.device_series`).
    """

    begin: Ints
    end: Ints
    retries: Floats
    allocs: Floats
    frees: Floats
    taken: Floats
    given: Floats
    pieces: Floats
    in_pieces: Bools
    number: Ints

    def calls(self, kind: Kind) -> Ints:
        """Number of calls of a kind, by stretch.

        ``fragmented``: retries while reserved memory was free in pieces, including the calls that belong to them;
        ``other``: calls in all other stretches.
        """
        fragmented = (self.retries > 0) & self.in_pieces
        if kind == "fragmented":
            return np.where(fragmented, self.retries, 0).astype(np.int64)
        return np.where(fragmented, 0, self.allocs + self.frees).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Costs of calls on the idle device: nanoseconds per call and per MiB, and their relative error.

    :param measured: at the start of this run; otherwise the usual costs.
    """

    malloc: float
    malloc_mib: float
    free: float
    free_mib: float
    sync: float
    error: float
    measured: bool = True

    def of(self, stretches: Stretches) -> Floats:
        """The least cost of each stretch's calls."""
        return (
            self.malloc * stretches.allocs
            + self.malloc_mib * stretches.taken / MIB
            + self.free * stretches.frees
            + self.free_mib * stretches.given / MIB
            + self.sync * stretches.retries
        )


#: Usual costs of pages of expandable segments (create, map, set access; unmap, release): some tens of microseconds
#: for each call, one set of calls per page of 20 MiB.
_PAGES = Prices(
    malloc=100_000.0, malloc_mib=5_000.0, free=100_000.0, free_mib=5_000.0, sync=0.0, error=_BEYOND, measured=False
)


def stretches_of(evidence: Evidence) -> Stretches:
    """The run's stretches; none for a run on the CPU."""
    if not evidence.setup.on_device:
        return _none()
    read = np.asarray(evidence.batches["device_read"]) > 0
    if len(read) and np.mean(read) >= _MOST_READ:
        return _by_batch(evidence, read)
    return _by_sample(evidence)


def _by_batch(evidence: Evidence, read: Bools) -> Stretches:
    rows = np.flatnonzero(read)
    rows = rows[np.argsort(evidence.batches["finish_end_ns"][rows], kind="stable")]
    column = {name: np.asarray(evidence.batches[name][rows], dtype=np.int64) for name in _COLUMNS}
    end = column["finish_end_ns"]
    # The first stretch begins with its batch, where the record or its piece begins.
    begin = np.concatenate([[min(evidence.batches["close_ns"][rows[0]], end[0]) - 1], end[:-1]])
    pieces, reserved = (
        np.maximum(column[name], np.concatenate([column[name][:1], column[name][:-1]]))
        for name in ("device_pieces_bytes", "device_reserved_bytes")
    )
    return Stretches(
        begin=begin.astype(np.int64),
        end=end,
        retries=_positive(column["alloc_retries"]),
        allocs=_positive(column["device_allocs"]),
        frees=_positive(column["device_frees"]),
        taken=column["device_taken_bytes"].astype(np.float64),
        given=column["device_given_bytes"].astype(np.float64),
        pieces=pieces.astype(np.float64),
        in_pieces=np.asarray(pieces >= _IN_PIECES * np.maximum(reserved, 1)),
        number=evidence.setup.device_numbers(evidence.batches["worker"][rows]),
    )


_COLUMNS = (
    "finish_end_ns",
    "alloc_retries",
    "device_allocs",
    "device_frees",
    "device_taken_bytes",
    "device_given_bytes",
    "device_reserved_bytes",
    "device_pieces_bytes",
)


def _by_sample(evidence: Evidence) -> Stretches:
    """Stretches from the samples of every device."""
    numbers = np.unique(evidence.setup.device_numbers(evidence.batches["worker"])).tolist()
    found = [_of_device(evidence, number) for number in numbers or [-1]]
    if len(found) == 1:
        return found[0]
    names = [field.name for field in fields(Stretches)]
    return Stretches(**{name: np.concatenate([getattr(each, name) for each in found]) for name in names})


def _of_device(evidence: Evidence, number: int) -> Stretches:
    times, retries = evidence.series(device_series("cuda.alloc_retries", number))
    if len(times) < 2:
        return _none()
    reserved, pieces, taken, given = (
        evidence.before(device_series(f"cuda.{name}", number), times)
        for name in ("reserved_bytes", "inactive_split_bytes", "device_allocs", "device_frees")
    )
    most_free, most = (np.maximum(each[:-1], each[1:]) for each in (pieces, reserved))
    grown = np.diff(reserved)
    return Stretches(
        begin=times[:-1],
        end=times[1:],
        retries=_positive(np.diff(retries)),
        allocs=_positive(np.diff(taken)),
        frees=_positive(np.diff(given)),
        taken=np.maximum(grown, 0.0),
        given=np.maximum(-grown, 0.0),
        pieces=most_free,
        in_pieces=np.asarray(most_free >= _IN_PIECES * np.maximum(most, 1)),
        number=np.full(len(grown), number, np.int64),
    )


def _positive(changes: Ints | Floats) -> Floats:
    """Changes of a counter; a reset counts as zero."""
    return np.maximum(changes.astype(np.float64), 0.0)


def _none() -> Stretches:
    kinds = {"begin": np.int64, "end": np.int64, "number": np.int64, "in_pieces": np.bool_}
    return Stretches(**{field.name: np.zeros(0, kinds.get(field.name, np.float64)) for field in fields(Stretches)})


def prices_of(evidence: Evidence) -> Prices | None:
    """Prices calibrated on the run's device, or the usual ones for pages; ``None`` if neither applies."""
    found = {name: evidence.latest(f"cost.device_{name}_ns") for name in _PRICES}
    if not found["malloc"] and not found["malloc_mib"]:
        return _PAGES if evidence.setup.expandable else None
    # An interval holds one more round in 80 % of cases: 2.56 standard errors of a normal one.
    low, high = (evidence.latest(f"cost.device_malloc_{end}_ns") for end in ("low", "high"))
    error = min(max(high - low, 0.0) / (2.56 * found["malloc"]), 1.0) if found["malloc"] else 0.0
    return replace(_PAGES, **found, error=error, measured=True)


_PRICES = ("malloc", "malloc_mib", "free", "free_mib", "sync")


def memory_claim(evidence: Evidence, left: Left, kind: Kind, costs: Mapping[str, Ints]) -> Claim:
    """A claim of costs in the heap, and of the stalls by calls of a kind on a device.

    :param costs: by unit, nanoseconds in the heap.
    """
    costs = {name: np.minimum(cost, left.cpu_excess(name)) for name, cost in costs.items()}
    excess = {name: np.maximum(left.cpu_excess(name) - costs.get(name, 0), 0) for name in UNITS}
    total = sum(excess.values(), start=np.zeros(len(evidence.batches["size"]), np.int64))
    stalled, by_batch = _stalls(evidence, total, kind)
    units = {}
    for name in UNITS:
        part = np.minimum(excess[name], stalled)
        stalled = stalled - part
        units[name] = Parts(cpu=part + costs[name] if name in costs else part)
    units |= {name: Parts(cpu=cost) for name, cost in costs.items() if name not in UNITS}
    doubt = np.hypot(price_doubt(evidence, costs), evidence.of_batch(np.rint(by_batch).astype(np.int64)))
    return Claim(units=units, disturbance=False, doubt=doubt)


def _stalls(evidence: Evidence, excess: Ints, kind: Kind) -> tuple[Ints, Floats]:
    """Stall time of each batch by calls of a kind, and its standard error, nanoseconds."""
    stretches, prices = stretches_of(evidence), prices_of(evidence)
    stalled, doubt = np.zeros(len(excess), np.int64), np.zeros(len(excess))
    first, last = evidence.units["h2d"].start, evidence.batches["finish_end_ns"]
    calls = stretches.calls(kind)
    price = None if prices is None else prices.of(stretches)
    numbers = evidence.setup.device_numbers(evidence.batches["worker"])
    spans = Overlaps(first, last)
    for k in np.flatnonzero(calls):
        near = spans.near(int(stretches.begin[k]), int(stretches.end[k]))
        here = (numbers[near] == stretches.number[k]) & (excess[near] > stalled[near])
        inside = near[here & (last[near] > stretches.begin[k]) & (first[near] <= stretches.end[k])]
        longest = inside[np.argsort(-excess[inside], kind="stable")[: int(calls[k])]]
        if price is None or prices is None:
            stalled[longest] = excess[longest]
            continue
        room, sure = _REACH * price[k], float(price[k])
        for batch in longest:
            part = min(float(excess[batch] - stalled[batch]), room)
            known = min(part, sure)
            room, sure = room - part, sure - known
            stalled[batch] += int(part)
            doubt[batch] += prices.error * known + _BEYOND * (part - known)
    return stalled, doubt


def price_clause(evidence: Evidence, kind: Kind) -> str:
    """A clause on the calls' total price; empty if the price is unknown."""
    stretches, prices = stretches_of(evidence), prices_of(evidence)
    if prices is None:
        return ""
    total = float(prices.of(stretches)[stretches.calls(kind) > 0].sum()) / 1e6
    what = (
        "their cost on the idle device" if prices.measured else "the usual cost of such calls, which was not measured"
    )
    return f", {milliseconds(total)} in total at {what}"
