"""Waits that are whole multiples of one length: sleeps between retries, or a timeout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfix.arrays import Bools, Floats
from latfix.formatting import from_ns, significant
from latfix.profilers.evidence.units import Evidence

#: Shorter sleeps are within the timers' slack; more multiples of one sleep are indistinguishable from chance.
_LEAST_NS, _MOST_TIMES = 2_000_000, 12
#: Tolerance of a multiple, as a share of the sleep. By chance a tenth of all waits are multiples.
_OFF = 0.05
#: If all waits are one sleep each, they must be this close to each other: work and networks vary by more.
_ALIKE = 0.01
#: Least number and share of waits that must be multiples.
_FEWEST, _MOSTLY = 6, 0.8
#: Least number of waits with another multiple than the most common one.
_OTHERS = 2
#: Number of waits from which candidate lengths are derived.
_TRIED = 40


@dataclass(frozen=True, slots=True)
class Sleeps:
    """Waits of 1, 2, … times one length.

    :param length_ns: of one sleep; ``most`` the largest multiple; ``waits`` of ``seen`` are multiples.
    """

    length_ns: float
    most: int
    waits: int
    seen: int

    @property
    def words(self) -> str:
        """``9 of 9 longer waits are up to 3 sleeps of 0.50 s, …``."""
        long = self.length_ns >= 1e8
        length = f"{significant(self.length_ns / 1e9, 2)} s" if long else from_ns(self.length_ns)
        if self.most == 1:
            return f"{self.waits} of {self.seen} longer waits are one sleep of {length}, or a timeout of that length"
        return (
            f"{self.waits} of {self.seen} longer waits are up to {self.most} sleeps of {length}, as in a loop that "
            "polls or retries"
        )


def find_sleeps(waits_ns: Floats) -> Sleeps | None:
    """The longest length that most waits are whole multiples of, or ``None``.

    Waits too short for one sleep have other reasons. They may be many, but must be a small part of the time.

    :param waits_ns: ``(n,)``, without the usual wait.
    """
    waits = np.sort(waits_ns[waits_ns >= _LEAST_NS].astype(np.float64))
    if len(waits) < _FEWEST:
        return None
    # The longest waits make most of the time, so one of them is a multiple if most are.
    tried = waits[-_TRIED:]
    lengths = np.unique(np.concatenate([tried / times for times in range(1, _MOST_TIMES + 1)]))
    for length in lengths[lengths >= _LEAST_NS][::-1]:
        found = _sleeps_of(waits[waits > length / 2], float(length), _MOSTLY * float(waits.sum()))
        if found is not None:
            return found
    return None


def _sleeps_of(waits: Floats, length: float, least_ns: float) -> Sleeps | None:
    """Waits as multiples of about ``length``, if most are.

    :param least_ns: the least total time of these waits.
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
    """True for waits near a multiple of ``length``."""
    times = np.rint(waits / length)
    return (times >= 1) & (times <= _MOST_TIMES) & (np.abs(waits - times * length) <= _OFF * length)


def sleeps_in(evidence: Evidence, *units: str) -> str:
    """A clause on sleeps among served requests' waits in these units; empty if there are none."""
    for name in units:
        usual = evidence.usually_blocked(name)
        beyond = evidence.units[name].blocked - usual
        of_request = name in ("prepare", "finish")
        served = evidence.ok if of_request else np.isin(np.arange(len(beyond)), evidence.batch_of[evidence.ok])
        found = find_sleeps(beyond[served & (beyond > usual)].astype(np.float64))
        if found is not None:
            return f"; in {name}, {found.words}"
    return ""
