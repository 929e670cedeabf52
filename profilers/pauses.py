"""Pauses whose intervals are known: collections and compilations, by the thread that they ran in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from latfix.profilers.intervals import Intervals
from latfix.record import RunRecord

Ints = npt.NDArray[np.int64]

#: A thread is taken for a runner's thread where this share of its pauses lies inside that one's work ...
_CONTAINED = 0.75
#: ... and no other thread's work holds nearly as many.
_MARGIN = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Intervals of one kind of pause.

    :param everywhere: in whatever thread.
    :param worker: those known to have run in a worker's thread, by worker; ``prepare`` by prepare thread.
    :param unplaced: those whose thread is not known.
    :param count: how many there were, ``longest_ns`` the longest.
    """

    everywhere: Intervals
    worker: Mapping[int, Intervals]
    prepare: Mapping[int, Intervals]
    unplaced: Intervals
    count: int
    longest_ns: int

    def seen(self, start: Ints, end: Ints) -> Ints:
        """Nanoseconds of each span during which a pause was under way anywhere."""
        return self.everywhere.covered(start, end)

    def inside(self, start: Ints, end: Ints, thread: Ints, *, worker: bool) -> Ints:
        """Nanoseconds of each span during which its own thread was in a pause."""
        total = np.zeros(len(start), np.int64)
        for number, intervals in (self.worker if worker else self.prepare).items():
            mine = thread == number
            total[mine] = intervals.covered(start[mine], end[mine])
        return total


def collect_pauses(record: RunRecord) -> dict[str, Pauses]:
    """Collections (``gc``) and compilations (``compile``) of a run, placed in the runner's threads.

    The record's ``threads`` names the native ids where the runner wrote them. Otherwise a thread is
    recognized by its pauses: they lie inside its own work, and in another's only by chance.
    """
    events = record.events
    named = _named_threads(record)
    kinds = events["kind"]
    result: dict[str, Pauses] = {}
    for kind in ("gc", "compile"):
        keep = kinds == kind if len(kinds) else np.zeros(0, bool)
        start, duration = events["t_ns"][keep].astype(np.int64), events["duration_ns"][keep].astype(np.int64)
        thread = events["thread"][keep].astype(np.int64)
        placed: dict[tuple[str, int], Intervals] = {}
        known = np.zeros(len(start), dtype=bool)
        for native in np.unique(thread):
            mine = thread == native
            place = named.get(int(native)) or _recognize(record, start[mine], duration[mine])
            if place is not None:
                placed[place] = Intervals.merged(start[mine], duration[mine])
                known |= mine
        result[kind] = Pauses(
            everywhere=Intervals.merged(start, duration),
            worker={number: found for (role, number), found in placed.items() if role == "worker"},
            prepare={number: found for (role, number), found in placed.items() if role == "prepare"},
            unplaced=Intervals.merged(start[~known], duration[~known]),
            count=len(start),
            longest_ns=int(duration.max(initial=0)),
        )
    return result


def _named_threads(record: RunRecord) -> dict[int, tuple[str, int]]:
    """Native id -> role and number, from ``run.json``'s ``threads``: ``{"worker": [ids], "prepare": [ids]}``."""
    threads = record.meta.get("threads")
    named: dict[int, tuple[str, int]] = {}
    if isinstance(threads, Mapping):
        for role in ("worker", "prepare"):
            for number, native in enumerate(threads.get(role, ())):
                named[int(native)] = (role, number)
    return named


def _recognize(record: RunRecord, start: Ints, duration: Ints) -> tuple[str, int] | None:
    share: list[tuple[float, str, int]] = []
    total = float(duration.sum())
    if total <= 0:
        return None
    for role, number, busy in _busy(record):
        share.append((float(busy.covered(start, start + duration).sum()) / total, role, number))
    share.sort(reverse=True)
    if not share or share[0][0] < _CONTAINED:
        return None
    if len(share) > 1 and share[0][0] - share[1][0] < _MARGIN:
        return None
    return share[0][1], share[0][2]


def _busy(record: RunRecord) -> list[tuple[str, int, Intervals]]:
    """When each worker and each prepare thread was at work."""
    rows, batches = record.requests, record.batches
    result: list[tuple[str, int, Intervals]] = []
    for number in np.unique(batches["worker"]):
        mine = batches["worker"] == number
        begin = batches["close_ns"][mine]
        result.append(("worker", int(number), Intervals.merged(begin, batches["finish_end_ns"][mine] - begin)))
    for number in np.unique(rows["prepare_thread"][rows["prepare_thread"] >= 0]):
        mine = rows["prepare_thread"] == number
        begin = (rows["arrival_ns"] + rows["dispatch_ns"] + rows["prepare_wait_ns"])[mine]
        took = (rows["prepare_ns"] - rows["prepare_wait_ns"])[mine]
        result.append(("prepare", int(number), Intervals.merged(begin, took)))
    return result
