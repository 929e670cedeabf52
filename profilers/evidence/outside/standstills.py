"""Moments in which a service behind an address answered nobody, and all that were in flight went on together.

One event, whoever met it: the prefill of a newcomer in everybody's batch, a call that blocks the event loop, a
collection. It is told from waits of their own by what follows: those end each at its own time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from latfix.arrays import Bools, Ints
from latfix.profilers.evidence.intervals import Intervals
from latfix.run_record.schema import Columns

#: A standstill lasts so many times the usual time between two signs of life, and this long at least.
_TIMES, _LEAST_NS = 8.0, 15_000_000
#: Requests in flight at least, and the share of them that goes on at once, within this part of the standstill.
_IN_FLIGHT, _TOGETHER, _AT_ONCE = 2, 0.6, 0.3
#: A newcomer's prefill begins with the standstill and ends with it, within these parts of its length.
_BEGIN, _END = 0.05, 0.15
#: Prefill is held to be the reason where it fits so many standstills, and this share of them.
_FITTING, _FITTING_SHARE = 3, 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstills:
    """When nobody was answered.

    :param everyone: all standstills; ``prefill`` those that a newcomer's first part of its answer ended.
    :param newcomers: ``(n,)`` requests whose own first part ended one.
    """

    everyone: Intervals
    prefill: Intervals
    newcomers: Bools

    @property
    def longest_ns(self) -> int:
        """Of all."""
        return int((self.everyone.end - self.everyone.start).max(initial=0))


def no_standstills(requests: int) -> Standstills:
    """Where none is looked for."""
    none = Intervals.merged(np.zeros(0, np.int64), np.zeros(0, np.int64))
    return Standstills(everyone=none, prefill=none, newcomers=np.zeros(requests, dtype=bool))


def find_standstills(at: Ints, answered: Ints, end: Ints, index: Ints, events: Columns) -> Standstills:
    """Look for moments in which a service answered nobody.

    :param at: ``(n,)`` when each request was at the service; ``answered`` its first byte, ``end`` its last.
    :param index: ``(n,)`` of the requests, which events of streamed answers name.
    """
    parts = _parts(events)
    life = np.unique(np.concatenate([answered, end, *parts.values()]))
    gaps = np.diff(life)
    if len(gaps) < 10:
        return no_standstills(len(at))
    limit = max(_TIMES * float(np.median(gaps)), float(_LEAST_NS))
    # Before each request's next sign of life lies its last one: only a wait across all of the gap counts.
    moments = {int(index[k]): np.concatenate([[at[k]], parts.get(int(index[k]), answered[k : k + 1]), [end[k]]])
               for k in range(len(at))}  # fmt: skip
    begin, length, fits, fresh = [], [], [], np.zeros(len(at), dtype=bool)
    waits = np.concatenate([np.diff(times) for times in parts.values()] or [gaps])
    usual, rate, chance = float(np.median(waits)), (len(at) - 1) / max(float(np.ptp(at)), 1.0), 0.0
    order = np.argsort(at, kind="stable")
    longest = int((end - at).max(initial=0))
    for k in np.flatnonzero(gaps > limit).tolist():
        start, stop, gap = int(life[k]), int(life[k + 1]), int(gaps[k])
        low, high = np.searchsorted(at[order], [start - longest, stop - gap // 5])
        near = order[low:high]
        waiting = near[end[near] >= stop]
        if len(waiting) < _IN_FLIGHT:
            continue
        soon = stop + int(_AT_ONCE * gap)
        went_on = [bool(np.any((moments[int(index[r])] >= stop) & (moments[int(index[r])] <= soon))) for r in waiting]
        if np.count_nonzero(went_on) < max(_TOGETHER * len(waiting), _IN_FLIGHT):
            continue
        early, late = usual, _BEGIN * gap  # it waits for the step under way, and its own begins with the standstill
        began = (at[waiting] >= start - early) & (at[waiting] <= start + late)
        chance += 1 - math.exp(-rate * (early + late))
        newcomers = waiting[began & (np.abs(answered[waiting] - stop) <= _END * gap)]
        begin.append(start)
        length.append(gap)
        fits.append(bool(len(newcomers)) and len(newcomers) < len(waiting))
        fresh[newcomers] |= fits[-1]
    starts, lengths, fit = np.array(begin, np.int64), np.array(length, np.int64), np.array(fits, dtype=bool)
    # As often as newcomers come anyway is no reason.
    by_chance = chance + 2 * math.sqrt(max(chance * (1 - chance / max(len(fit), 1)), 0.0))
    if np.count_nonzero(fit) < max(_FITTING, _FITTING_SHARE * len(fit), by_chance):
        fit[:], fresh[:] = False, False
    return Standstills(
        everyone=Intervals.merged(starts, lengths),
        prefill=Intervals.merged(starts[fit], lengths[fit]),
        newcomers=fresh,
    )


def _parts(events: Columns) -> dict[int, Ints]:
    """By request, when each part of a streamed answer came."""
    kinds = events["kind"]
    found = {}
    for k in np.flatnonzero(kinds == "stream").tolist() if len(kinds) else ():
        gaps = np.asarray(events["detail"][k].get("gaps_us", []), dtype=np.int64) * 1000
        found[int(events["request"][k])] = int(events["t_ns"][k]) + np.concatenate([[0], np.cumsum(gaps)])
    return found
