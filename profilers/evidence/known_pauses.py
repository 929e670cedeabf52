"""Pauses with known intervals: collections and compilations, by thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from latfix.arrays import Ints
from latfix.profilers.evidence.intervals import Intervals
from latfix.run_record.run_record import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Intervals of one kind of pause.

    :param everywhere: in any thread.
    :param worker: in a worker's thread, by worker; ``prepare`` by prepare thread.
    :param unplaced: in an unknown thread.
    :param count: number of pauses; ``longest_ns`` the longest one.
    """

    everywhere: Intervals
    worker: Mapping[int, Intervals]
    prepare: Mapping[int, Intervals]
    unplaced: Intervals
    count: int
    longest_ns: int

    def inside(self, start: Ints, end: Ints, thread: Ints, *, worker: bool) -> Ints:
        """Nanoseconds of each span in which its own thread paused."""
        total = np.zeros(len(start), np.int64)
        for number, intervals in (self.worker if worker else self.prepare).items():
            mine = thread == number
            total[mine] = intervals.covered(start[mine], end[mine])
        return total


def collect_pauses(record: RunRecord) -> dict[str, Pauses]:
    """Collections (``gc``) and compilations (``compile``) of a run, by thread of the runner.

    ``threads`` in ``run.json`` has the native ids. Without it no pause has a known thread: a pause within a worker's
    batch may have run in any thread.
    """
    events = record.events
    named = named_threads(record)
    result: dict[str, Pauses] = {}
    for kind in ("gc", "compile"):
        keep = np.asarray(events["kind"], dtype=object) == kind
        start, duration = events["t_ns"][keep].astype(np.int64), events["duration_ns"][keep].astype(np.int64)
        thread = events["thread"][keep].astype(np.int64)
        placed: dict[tuple[str, int], Intervals] = {}
        known = np.zeros(len(start), dtype=bool)
        for native in np.unique(thread):
            mine = thread == native
            place = named.get(int(native))
            if place is not None:
                placed[place] = Intervals.merged(start[mine], duration[mine])
            if named:  # then a thread without a role is neither a worker nor a prepare thread
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


def named_threads(record: RunRecord) -> dict[int, tuple[str, int]]:
    """By native id, the role (``worker``, ``prepare``) and number of each thread of the runner."""
    return {
        native: (role, number)
        for role in ("worker", "prepare")
        for number, native in enumerate(record.meta.threads.get(role, ()))
    }
