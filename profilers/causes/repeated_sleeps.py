"""Waits that are whole multiples of one length: somebody sleeps between tries, or until a timeout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfix.arrays import Bools, Floats
from latfix.formatting import from_ns, significant
from latfix.profilers.evidence.units import Evidence

#: Shorter sleeps are not told from the timers' own slack, and longer waits than so many of one sleep not from chance.
_LEAST_NS, _MOST_TIMES = 2_000_000, 12
#: A wait is a multiple where it is off by at most this share of the sleep. By chance a tenth of all waits are.
_OFF = 0.05
#: Where all waits are one sleep each, only their likeness tells: work and networks vary by more.
_ALIKE = 0.01
#: So many waits, and this share of them, must be multiples.
_FEWEST, _MOSTLY = 6, 0.8
#: So many of them must be another multiple than the commonest.
_OTHERS = 2
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

    Waits too short for one sleep are something else's. They may be many, but only a small part of the time.

    :param waits_ns: ``(n,)``, without what is always waited for.
    """
    waits = np.sort(waits_ns[waits_ns >= _LEAST_NS].astype(np.float64))
    if len(waits) < _FEWEST:
        return None
    # Longer ones make most of the time, so that one of them is a multiple if most are.
    tried = waits[-_TRIED:]
    lengths = np.unique(np.concatenate([tried / times for times in range(1, _MOST_TIMES + 1)]))
    for length in lengths[lengths >= _LEAST_NS][::-1]:
        found = _sleeps_of(waits[waits > length / 2], float(length), _MOSTLY * float(waits.sum()))
        if found is not None:
            return found
    return None


def _sleeps_of(waits: Floats, length: float, least_ns: float) -> Sleeps | None:
    """Waits as multiples of about ``length``, if most are.

    :param least_ns: of all time waited, what they must make up together.
    """
    near = waits[_multiples(waits, length)]
    if len(near) < max(_FEWEST, _MOSTLY * len(waits)) or near.sum() < least_ns:
        return None
    length = float(np.median(near / np.rint(near / length)))
    number, count = np.unique(np.rint(near / length), return_counts=True)
    if len(near) - count.max() < _OTHERS:
        alike = np.count_nonzero(np.abs(near / length - 1) <= _ALIKE)
        return Sleeps(length, 1, int(alike), len(waits)) if alike >= _MOSTLY * len(waits) else None
    return Sleeps(length, int(number[-1]), len(near), len(waits))


def _multiples(waits: Floats, length: float) -> Bools:
    """Those that are near a multiple of ``length``."""
    times = np.rint(waits / length)
    return (times >= 1) & (times <= _MOST_TIMES) & (np.abs(waits - times * length) <= _OFF * length)


def sleeps_in(evidence: Evidence, *units: str) -> str:
    """What the waits of served requests in these units look like, to follow a figure; empty where like nothing."""
    for name in units:
        usual = evidence.usually_blocked(name)
        beyond = evidence.units[name].blocked - usual
        of_request = name in ("prepare", "finish")
        served = evidence.ok if of_request else np.isin(np.arange(len(beyond)), evidence.batch_of[evidence.ok])
        found = find_sleeps(beyond[served & (beyond > usual)].astype(np.float64))
        if found is not None:
            return f"; in {name}, {found.words}"
    return ""
