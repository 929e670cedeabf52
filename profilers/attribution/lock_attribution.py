"""Waits for the interpreter lock, attributed to what the holder was doing.

A thread that waits for the lock is not at fault, like a request in a queue: its wait belongs to whatever slowed the
holder. The units that ran in other threads during the wait are the possible holders. A unit that was on a core, or
runnable without one, held the lock for the share of time typical of its kind; a blocked unit did not. Each holder
owns the part of the wait that it held the lock for, divided among its own causes. ``python.gil`` keeps the part of
ordinary work, and the part that no unit can have held: another thread of the process, or an unknown holder (the
closure error).

The share of time for which a kind of unit holds the lock (operators may release it) comes from the probe: how often a
thread that woke while only such a unit ran had to wait.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from latfix.arrays import Bools, Ints
from latfix.profilers.causes.python.gil_waits import PROCESS_CPU, other_threads_ns
from latfix.profilers.evidence.intervals import Timeline
from latfix.profilers.evidence.units import Evidence
from latfix.profilers.probes.gil_probe import USUAL_NS, WAIT_SERIES

#: Units in which a thread runs code of the service.
HOLDERS: tuple[str, ...] = tuple(PROCESS_CPU)
#: Causes whose blocked time still holds the lock, because the thread did not release it to wait.
HOLDS_BLOCKED = ("memory.page_faults", "host.throttle", "host.steal")
#: Prior of the probe's statistics: readings with a held lock, and all readings.
_PRIOR = (1.0, 2.0)


class LockHolders:
    """The possible lock holders over time, by thread.

    :param held: by unit, ``(K, rows)`` nanoseconds of each cause beyond the usual, while its thread was not blocked.
    :param paused: by unit, ``(rows,)`` the part of that time that other units' waits are already attributed to.
    """

    def __init__(self, evidence: Evidence, held: Mapping[str, Ints], paused: Mapping[str, Ints]) -> None:
        self._evidence = evidence
        self._causes = len(next(iter(held.values())))
        self._named = np.flatnonzero(sum(entries.any(axis=1) for entries in held.values()))
        shares = {name: self._holding(name) for name in HOLDERS}
        self._threads = {
            place: self._timeline(place, held, paused, shares)
            for place in np.unique(np.concatenate([evidence.places(name) for name in HOLDERS]))
        }

    def blame(self, name: str, waited: Ints) -> tuple[Ints, Ints]:
        """Divide the waits of one kind of unit. All nanoseconds.

        :param waited: ``(rows,)`` beyond the usual.
        :returns: ``(K, rows)`` by the holder's cause, never negative, and ``(rows,)`` without a known holder; what
            the holders do not own is ``python.gil``.
        """
        owned = np.zeros((self._causes, len(waited)), np.int64)
        unknown = np.zeros(len(waited), np.int64)
        rows = np.flatnonzero(waited > 0)
        if not len(rows):
            return owned, unknown
        unit = self._evidence.units[name]
        start, end = unit.start[rows], unit.end[rows]
        mine = self._evidence.places(name)[rows]
        total = np.zeros((3 + len(self._named), len(rows)))
        for place, timeline in self._threads.items():
            total += np.where(mine == place, 0.0, timeline.between(start, end))
        running, on_core, holding, *_ = total
        # On-core time of other threads outside any unit: threads that serve no request.
        others = np.maximum(other_threads_ns(self._evidence, name)[rows] - on_core, 0.0)
        held = np.minimum(waited[rows], running + others)
        owned[np.ix_(self._named, rows)] = np.floor(total[3:] * held / np.maximum(holding + others, 1.0))
        unknown[rows] = np.rint(waited[rows] - held)
        return owned, unknown

    def _holding(self, name: str) -> float:
        """The share of its time for which a kind of unit holds the lock."""

        def learn() -> float:
            times, waits = self._evidence.series(WAIT_SERIES)
            alone = _alone(self._evidence, name, times)
            hits, of = np.count_nonzero(alone & (waits > USUAL_NS)), np.count_nonzero(alone)
            return (_PRIOR[0] + hits) / (_PRIOR[1] + of)

        return self._evidence.norms.of(f"lock.holds.{name}", learn)

    def _timeline(
        self, place: int, held: Mapping[str, Ints], paused: Mapping[str, Ints], shares: Mapping[str, float]
    ) -> Timeline:
        """One thread's units in order: busy time, on-core time, time holding the lock, and that time by cause."""
        begin, end, columns = [], [], []
        for name in HOLDERS:
            unit = self._evidence.units[name]
            rows = np.flatnonzero((unit.wall > 0) & (self._evidence.places(name) == place))
            busy = np.maximum((unit.cpu + unit.runq - paused[name])[rows], 0)
            entries = held[name][np.ix_(self._named, rows)]
            # Granted blocked time that holds the lock (a page read from disk) comes on top.
            busy = np.maximum(busy, entries.sum(axis=0))
            begin.append(unit.start[rows])
            end.append(unit.start[rows] + unit.wall[rows])
            columns.append(np.vstack([busy, unit.cpu[rows], shares[name] * busy, shares[name] * entries]))
        return Timeline.of(np.concatenate(begin), np.concatenate(end), np.concatenate(columns, axis=1))


def _alone(evidence: Evidence, name: str, times: Ints) -> Bools:
    """True at the times when exactly one unit ran, and it was of this kind."""
    under_way = {}
    for kind in HOLDERS:
        unit = evidence.units[kind]
        begun = np.searchsorted(np.sort(unit.start[unit.wall > 0]), times, side="right")
        under_way[kind] = begun - np.searchsorted(
            np.sort((unit.start + unit.wall)[unit.wall > 0]), times, side="right"
        )
    return np.asarray((under_way[name] == 1) & (sum(under_way.values()) == 1))
