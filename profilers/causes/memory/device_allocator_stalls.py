"""Calls of a GPU's driver for memory, from counters of torch's caching allocator.

A call (a segment taken or given back, all cached memory given back before a retry) holds up whoever allocates. The
counters are read at the end of batches; in older records, and where workers overlap, twice a second only. What lies
between two readings is a stretch. Its calls are put to those of its batches that took longest beyond what their
inputs need, one call each: where every batch was read, to the batch that made them.

What a stretch may owe is bounded by its calls' price, which was measured on the idle device at the start of the run:
a call that waits for a device at work, or behind another process's, takes longer, but not as much longer as one
likes. What a claim holds beyond the price is in doubt. Pages of expandable segments that were not priced are taken to
cost as much as is usual, in doubt by half of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.formatting import milliseconds
from latfix.profilers.causes.cause import Left, Parts
from latfix.profilers.evidence.nvml_samples import series_of
from latfix.profilers.evidence.units import Evidence

Kind = Literal["fragmented", "other"]
#: Of what is reserved, free in segments that something else lies in: from here on memory lies in pieces.
_IN_PIECES = 0.05
#: The share of batches that must have been read for them to be gone by.
_MOST_READ = 0.5
#: A call is taken to last at most so many times its price: it waits for what the device and its driver are doing.
_REACH = 10.0
#: Standard error of what a claim holds beyond the price, as a share of it.
_BEYOND = 0.5
#: Units whose thread allocates on the device: inputs, what the model makes, and what its output is copied from.
UNITS: tuple[str, ...] = ("compute", "h2d", "d2h")
MIB = float(1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """What the allocator did between readings; all arrays ``(k,)``.

    :param begin: nanoseconds; ``end`` likewise.
    :param taken: bytes of the segments in ``allocs``; ``given`` of those in ``frees``; 0 where that is not known.
    :param pieces: most bytes that lay free in segments in use.
    :param in_pieces: those were a share of what is reserved that counts.
    :param number: of the device (:func:`latfix.profilers.evidence.nvml_samples.series_of`).
    :param by_batch: readings are of batches.
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
    by_batch: bool

    def calls(self, kind: Kind) -> Ints:
        """How many calls of a kind, by stretch.

        ``fragmented``: retries while a part of the reserved memory lay free in pieces, with all calls that belonged
        to them; ``other``: calls in all other stretches.
        """
        fragmented = (self.retries > 0) & self.in_pieces
        if kind == "fragmented":
            return np.where(fragmented, self.retries, 0).astype(np.int64)
        return np.where(fragmented, 0, self.allocs + self.frees).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What calls cost on the idle device, nanoseconds: each, and each MiB; with the share that is in doubt.

    :param measured: at the start of the run.
    """

    malloc: float
    malloc_mib: float
    free: float
    free_mib: float
    sync: float
    error: float
    measured: bool = True

    def of(self, stretches: Stretches) -> Floats:
        """What the calls of each stretch cost at least."""
        return (
            self.malloc * stretches.allocs
            + self.malloc_mib * stretches.taken / MIB
            + self.free * stretches.frees
            + self.free_mib * stretches.given / MIB
            + self.sync * stretches.retries
        )


#: What creating, mapping and opening a page takes, and unmapping and releasing it, where that was not measured: some
#: tens of microseconds each, of which there are as many as pages of 20 MiB.
_PAGES = Prices(
    malloc=100_000.0, malloc_mib=5_000.0, free=100_000.0, free_mib=5_000.0, sync=0.0, error=_BEYOND, measured=False
)


def stretches_of(evidence: Evidence) -> Stretches:
    """The run's stretches; none where it computed on no device."""
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
    # The first covers what was before it: the record begins with it, or the piece that is looked at does.
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
        by_batch=True,
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
    """By the samples of every device; see :func:`latfix.profilers.evidence.nvml_samples.series_of`."""
    numbers = np.unique(evidence.setup.device_numbers(evidence.batches["worker"])).tolist()
    found = [_of_device(evidence, number) for number in numbers or [-1]]
    if len(found) == 1:
        return found[0]
    names = [field.name for field in fields(Stretches) if field.name != "by_batch"]
    joined = {name: np.concatenate([getattr(each, name) for each in found]) for name in names}
    return Stretches(**joined, by_batch=False)


def _of_device(evidence: Evidence, number: int) -> Stretches:
    times, retries = evidence.series(series_of("cuda.alloc_retries", number))
    if len(times) < 2:
        return _none()
    reserved, pieces, taken, given = (
        evidence.before(series_of(f"cuda.{name}", number), times)
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
        by_batch=False,
    )


def _positive(changes: Ints | Floats) -> Floats:
    """Somebody may have set the counters back."""
    return np.maximum(changes.astype(np.float64), 0.0)


def _none() -> Stretches:
    no, none = np.zeros(0, np.int64), np.zeros(0)
    return Stretches(
        begin=no,
        end=no,
        retries=none,
        allocs=none,
        frees=none,
        taken=none,
        given=none,
        pieces=none,
        in_pieces=np.zeros(0, bool),
        number=no,
        by_batch=False,
    )


def prices_of(evidence: Evidence) -> Prices | None:
    """What was calibrated on the run's device, or is usual for pages; ``None`` where neither is known."""
    found = {name: evidence.latest(f"cost.device_{name}_ns") for name in _PRICES}
    if not found["malloc"] and not found["malloc_mib"]:
        return _PAGES if evidence.setup.expandable else None
    # An interval holds the central 80 % of the rounds: 2.56 standard errors of a normal one.
    low, high = (evidence.latest(f"cost.device_malloc_{end}_ns") for end in ("low", "high"))
    error = min(max(high - low, 0.0) / (2.56 * found["malloc"]), 1.0) if found["malloc"] else 0.0
    return replace(_PAGES, **found, error=error, measured=True)


_PRICES = ("malloc", "malloc_mib", "free", "free_mib", "sync")


def held_up(evidence: Evidence, left: Left, kind: Kind, taken: Mapping[str, Ints]) -> tuple[dict[str, Parts], Floats]:
    """What such calls took of each batch's units, and the standard error of that by request, nanoseconds.

    :param taken: by unit, what the same cause claims of it already.
    """
    excess = {name: np.maximum(left.cpu_excess(name) - taken.get(name, 0), 0) for name in UNITS}
    total = sum(excess.values(), start=np.zeros(len(evidence.batches["size"]), np.int64))
    owed, doubt = _owed(evidence, total, kind)
    parts = {}
    for name in UNITS:
        part = np.minimum(excess[name], owed)
        owed = owed - part
        parts[name] = Parts(cpu=part)
    return parts, np.asarray(evidence.of_batch(np.rint(doubt).astype(np.int64)), dtype=np.float64)


def with_held(costs: Mapping[str, Ints], held: Mapping[str, Parts]) -> dict[str, Parts]:
    """Claims on units' work with what :func:`held_up` found added."""
    units = dict(held)
    for name, cost in costs.items():
        more = held[name].cpu if name in held else None
        units[name] = Parts(cpu=cost if more is None else cost + more)
    return units


def _owed(evidence: Evidence, excess: Ints, kind: Kind) -> tuple[Ints, Floats]:
    stretches, prices = stretches_of(evidence), prices_of(evidence)
    owed, doubt = np.zeros(len(excess), np.int64), np.zeros(len(excess))
    first, last = evidence.units["h2d"].start, evidence.batches["finish_end_ns"]
    calls = stretches.calls(kind)
    price = None if prices is None else prices.of(stretches)
    numbers = evidence.setup.device_numbers(evidence.batches["worker"])
    for k in np.flatnonzero(calls):
        here = (numbers == stretches.number[k]) & (excess > owed)
        inside = np.flatnonzero(here & (last > stretches.begin[k]) & (first <= stretches.end[k]))
        longest = inside[np.argsort(-excess[inside], kind="stable")[: int(calls[k])]]
        if price is None or prices is None:
            owed[longest] = excess[longest]
            continue
        room, sure = _REACH * price[k], float(price[k])
        for batch in longest:
            part = min(float(excess[batch] - owed[batch]), room)
            known = min(part, sure)
            room, sure = room - part, sure - known
            owed[batch] += int(part)
            doubt[batch] += prices.error * known + _BEYOND * (part - known)
    return owed, doubt


def said_price(evidence: Evidence, kind: Kind) -> str:
    """What the calls cost at least by their price, in a clause; empty where none is known."""
    stretches, prices = stretches_of(evidence), prices_of(evidence)
    if prices is None:
        return ""
    total = float(prices.of(stretches)[stretches.calls(kind) > 0].sum()) / 1e6
    what = "they cost on the idle device" if prices.measured else "such calls usually cost, which was not measured"
    return f", {milliseconds(total)} in all at what {what}"
