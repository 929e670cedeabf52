"""Waits that are whole multiples of one length: sleeps between retries, or a timeout."""

from __future__ import annotations

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


def find_sleeps(waits_ns: Floats) -> str:
    """A clause on the longest length that most waits are whole multiples of; empty if there is none.

    Waits too short for one sleep have other reasons. They may be many, but must be a small part of the time.

    :param waits_ns: ``(n,)``, without the usual wait.
    """
    waits = np.sort(waits_ns[waits_ns >= _LEAST_NS].astype(np.float64))
    if len(waits) < _FEWEST:
        return ""
    # The longest waits make most of the time, so one of them is a multiple if most are.
    tried = waits[-_TRIED:]
    lengths = np.unique(np.concatenate([tried / times for times in range(1, _MOST_TIMES + 1)]))
    for length in lengths[lengths >= _LEAST_NS][::-1]:
        found = _sleeps_of(waits[waits > length / 2], float(length), _MOSTLY * float(waits.sum()))
        if found:
            return found
    return ""


def _sleeps_of(waits: Floats, length: float, least_ns: float) -> str:
    """A clause on waits that are multiples of about ``length``; empty unless most are.

    :param least_ns: the least total time of these waits.
    """
    near = waits[_multiples(waits, length)]
    if len(near) < max(_FEWEST, _MOSTLY * len(waits)) or near.sum() < least_ns:
        return ""
    length = float(np.median(near / np.rint(near / length)))
    number, count = np.unique(np.rint(near / length), return_counts=True)
    words = f"{significant(length / 1e9, 2)} s" if length >= 1e8 else from_ns(length)
    if len(near) - count.max() < _OTHERS:
        alike = np.count_nonzero(np.abs(near / length - 1) <= _ALIKE)
        one = f"{alike} of {len(waits)} longer waits are one sleep of {words}, or a timeout of that length"
        return one if alike >= _MOSTLY * len(waits) else ""
    return (
        f"{len(near)} of {len(waits)} longer waits are up to {number[-1]:.0f} sleeps of {words}, as in a loop that "
        "polls or retries"
    )


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
        if found:
            return f"; in {name}, {found}"
    return ""
