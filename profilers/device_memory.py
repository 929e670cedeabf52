"""Calls of a GPU's driver for memory, from counters of torch's caching allocator that are read twice a second.

A call (a segment taken or given back, all cached memory given back before a retry) holds up whoever allocates, and
on a busy device it waits for the device. The counters say how many there were between two readings, not in which
batch: they are put to the batches of that time that computed longest beyond what their inputs need, one call each.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from latfix.profilers.compute_model import Floats, Ints
from latfix.profilers.evidence import Evidence
from latfix.profilers.gpu_samples import device_numbers, series_of

Kind = Literal["fragmented", "other"]
#: Of what is reserved, free in segments that something else lies in: from here on memory lies in pieces.
_IN_PIECES = 0.05


def calls_between(evidence: Evidence, kind: Kind, number: int = -1) -> tuple[Ints, Ints]:
    """Times of readings, and how many calls there were between each and the next one.

    :param kind: ``fragmented``: retries while a part of the reserved memory lay free in pieces, with all calls that
        belonged to them; ``other``: calls in all other stretches.
    :param number: of the device (:func:`latfix.profilers.gpu_samples.series_of`).
    :returns: times ``(k,)`` and calls ``(k - 1,)``; empty where the run computed on no device.
    """
    none = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    if not evidence.setup.on_device:
        return none
    times, retries = evidence.series(series_of("cuda.alloc_retries", number))
    if len(times) < 2:
        return none
    reserved, pieces, taken, given = (
        _at(times, evidence.series(series_of(f"cuda.{name}", number)))
        for name in ("reserved_bytes", "inactive_split_bytes", "device_allocs", "device_frees")
    )
    retried = np.maximum(np.diff(retries), 0)
    most_free, most = (np.maximum(each[:-1], each[1:]) for each in (pieces, reserved))
    in_pieces = most_free >= _IN_PIECES * np.maximum(most, 1)
    fragmented = (retried > 0) & in_pieces
    if kind == "fragmented":
        return times, np.where(fragmented, retried, 0).astype(np.int64)
    calls = np.maximum(np.diff(taken), 0) + np.maximum(np.diff(given), 0)
    return times, np.where(fragmented, 0, calls).astype(np.int64)


def calls_of_all(evidence: Evidence, kind: Kind) -> int:
    """Such calls on all devices."""
    return sum(int(calls_between(evidence, kind, number)[1].sum()) for number in _devices(evidence))


def largest(evidence: Evidence, name: str) -> float:
    """The largest reading of a counter of the allocator on any device; 0 where it was not read."""
    series = (evidence.series(series_of(f"cuda.{name}", number))[1] for number in _devices(evidence))
    return max((float(values.max(initial=0)) for values in series), default=0.0)


def _devices(evidence: Evidence) -> list[int]:
    numbers: list[int] = np.unique(device_numbers(evidence.setup, evidence.batches["worker"])).tolist()
    return numbers


def held_up(evidence: Evidence, excess: Ints, kind: Kind) -> Ints:
    """Nanoseconds of each batch's compute that such calls took, at most ``excess``.

    :param excess: ``(m,)`` compute beyond what the batch's inputs need.
    """
    owed = np.zeros(len(excess), np.int64)
    unit = evidence.units["compute"]
    numbers = device_numbers(evidence.setup, evidence.batches["worker"])
    for number in np.unique(numbers).tolist():
        times, calls = calls_between(evidence, kind, number)
        here = (numbers == number) & (excess > 0)
        for k in np.flatnonzero(calls):
            inside = np.flatnonzero(here & (unit.end > times[k]) & (unit.start <= times[k + 1]))
            longest = inside[np.argsort(-excess[inside], kind="stable")[: int(calls[k])]]
            owed[longest] = excess[longest]
    return owed


def _at(times: Ints, series: tuple[Ints, Floats]) -> Floats:
    """A series at other times, by its reading before; 0 where there is none."""
    at, values = series
    if not len(at):
        return np.zeros(len(times))
    return np.where(times >= at[0], values[np.maximum(np.searchsorted(at, times, side="right") - 1, 0)], values[0])
