"""Waits that are whole multiples of one length: somebody sleeps between tries, or until a timeout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfix.formatting import from_ns, significant
from latfix.profilers.causes.cause import Ints
from latfix.profilers.evidence.units import Evidence
from latfix.profilers.evidence.work_model import Bools, Floats

#: Shorter sleeps are not told from the timers' own slack, and longer waits than so many of one sleep not from chance.
_LEAST_NS, _MOST_TIMES = 2_000_000, 12
#: A wait is a multiple where it is off by at most this share of the sleep. By chance a tenth of all waits are.
_OFF = 0.05
#: Where all waits are one sleep each, only their likeness tells: work and networks vary by more.
_ALIKE = 0.01
#: So many waits, and this share of them, must be multiples.
_FEWEST, _MOSTLY = 6, 0.8
#: Waits from which the length is looked for.
_TRIED = 40


@dataclass(frozen=True, slots=True)
class Sleeps:
    """Waits of 1, 2, … times one length.

    :param length_ns: of one sleep; ``most`` of them made the longest wait; ``waits`` are multiples, of ``seen``.
    """

    length_ns: float
    most: int
    waits: int
    seen: int

    @property
    def words(self) -> str:
        """``9 of 9 waits are 1 to 3 sleeps of 0.5 s each``."""
        long = self.length_ns >= 1e8
        length = f"{significant(self.length_ns / 1e9, 2)} s" if long else from_ns(self.length_ns)
        if self.most == 1:
            return f"{self.waits} of {self.seen} longer waits are one sleep of {length}, or a timeout of that length"
        return (
            f"{self.waits} of {self.seen} longer waits are up to {self.most} sleeps of {length}, as of a loop that "
            "polls or tries again"
        )


def find_sleeps(waits_ns: Floats) -> Sleeps | None:
    """The longest length that most waits are whole multiples of; ``None`` where there is none.

    :param waits_ns: ``(n,)``, without what is always waited for.
    """
    waits = np.sort(waits_ns[waits_ns >= _LEAST_NS].astype(np.float64))
    if len(waits) < _FEWEST:
        return None
    middle = float(np.median(waits))
    alike = int(np.count_nonzero(np.abs(waits / middle - 1) <= _ALIKE))
    if alike >= _MOSTLY * len(waits):
        return Sleeps(middle, 1, alike, len(waits))
    tried = waits[np.linspace(0, len(waits) - 1, min(_TRIED, len(waits))).astype(int)]
    lengths = np.unique(np.concatenate([tried / times for times in range(1, _MOST_TIMES + 1)]))
    for length in lengths[lengths >= _LEAST_NS][::-1]:
        found = _sleeps_of(waits, float(length))
        if found is not None:
            return found
    return None


def _sleeps_of(waits: Floats, length: float) -> Sleeps | None:
    """Waits that are multiples of about ``length``, if most are, and of at least two different ones."""
    near = _multiples(waits, length)
    if np.count_nonzero(near) < _MOSTLY * len(waits):
        return None
    length = float(np.median(waits[near] / np.rint(waits[near] / length)))
    near = _multiples(waits, length)
    number, count = np.unique(np.rint(waits[near] / length), return_counts=True)
    if np.count_nonzero(near) < _MOSTLY * len(waits) or np.count_nonzero(count > 1) < 2:
        return None
    return Sleeps(length, int(number[-1]), int(np.count_nonzero(near)), len(waits))


def _multiples(waits: Floats, length: float) -> Bools:
    """Those that are near a multiple of ``length``."""
    times = np.rint(waits / length)
    return (times >= 1) & (times <= _MOST_TIMES) & (np.abs(waits - times * length) <= _OFF * length)


def sleeps_in(evidence: Evidence, *units: str) -> str:
    """What the waits of served requests in these units look like, to follow a figure; empty where like nothing."""
    waits: list[Ints] = []
    for name in units:
        beyond = evidence.units[name].blocked - evidence.usually_blocked(name)
        of_request = name in ("prepare", "finish")
        mine = evidence.ok if of_request else np.isin(np.arange(len(beyond)), evidence.batch_of[evidence.ok])
        waits.append(beyond[mine & (beyond > max(evidence.usually_blocked(name), 0))])
    found = find_sleeps(np.concatenate(waits).astype(np.float64))
    return f"; {found.words}" if found else ""
