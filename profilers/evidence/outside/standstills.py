"""Times in which a service behind an address answered no request, and then all in flight went on together.

One event hits all requests: the prefill of a new request in the shared batch, a call that blocks the event loop, a
collection. Independent waits differ: each ends at its own time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.profilers.evidence.intervals import NO_INTERVALS, Intervals
from latfix.run_record.schema import Columns

#: Least length of a standstill: a multiple of the usual gap between two responses, and nanoseconds.
_TIMES, _LEAST_NS = 8.0, 15_000_000
#: Least requests in flight, share of them that goes on at once, and within which part of the standstill's length.
_IN_FLIGHT, _TOGETHER, _AT_ONCE = 2, 0.6, 0.3
#: A request was held up if it was without a response for longer than usual by this part of the standstill's length;
#: at least this share of them was, because some arrive towards its end.
_HELD_UP, _LEAST_HELD = 0.3, 0.4
#: A new request's prefill begins and ends with the standstill, within these parts of its length.
_BEGIN, _END = 0.05, 0.15
#: Newcomers have larger inputs if this share of them exceeds this quantile of the others.
_LARGER, _OTHERS = 0.8, 0.9
#: Prefill counts as the reason if it fits at least this number of standstills, and this share of their time.
_FITTING, _FITTING_SHARE = 3, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstills:
    """When no request was answered.

    :param everyone: all standstills; ``prefill`` those that ended with a new request's first output.
    :param newcomers: ``(n,)`` requests whose own first output ended one.
    """

    everyone: Intervals
    prefill: Intervals
    newcomers: Bools


def no_standstills(requests: int) -> Standstills:
    """No standstills."""
    return Standstills(everyone=NO_INTERVALS, prefill=NO_INTERVALS, newcomers=np.zeros(requests, dtype=bool))


def own_prefill_ns(still: Standstills, first: Ints, attributes: Floats) -> Ints:
    """``(n,)`` time to the first output that a request's own large input needs, as far as standstills show it.

    If inputs of requests whose prefill held up all others are larger than those of other requests, inputs of that
    size take as long without others, too. Zeros if they are not, or if no prefill was seen.

    :param first: ``(n,)`` nanoseconds to the first output.
    :param attributes: ``(n, g)`` sizes of the inputs.
    """
    new = still.newcomers
    none = np.zeros(len(new), np.int64)
    if not new.any() or new.all():
        return none
    limits = np.quantile(attributes[~new], _OTHERS, axis=0)
    larger = attributes > limits
    telling = np.flatnonzero(np.mean(larger[new], axis=0) >= _LARGER)
    if not len(telling):
        return none
    usual = int(np.median(first[new]))
    return np.where(larger[:, telling[0]], np.where(new, first, np.minimum(first, usual)), none)


def find_standstills(at: Ints, answered: Ints, end: Ints, index: Ints, events: Columns) -> Standstills:
    """Find times in which a service answered no request.

    :param at: ``(n,)`` when each request reached the service; ``answered`` its first byte, ``end`` its last.
    :param index: ``(n,)`` indices of the requests, as in events of streamed answers.
    """
    parts = streamed_parts(events)
    life = np.unique(np.concatenate([answered, end, *parts.values()]))
    gaps = np.diff(life)
    if len(gaps) < 10:
        return no_standstills(len(at))
    limit = max(_TIMES * float(np.median(gaps)), float(_LEAST_NS))
    # Each request's own responses: it goes on if one of them follows the gap.
    moments = {int(index[k]): np.concatenate([[at[k]], parts.get(int(index[k]), answered[k : k + 1]), [end[k]]])
               for k in range(len(at))}  # fmt: skip
    begin, length, fits, chances, fresh = [], [], [], [], np.zeros(len(at), dtype=bool)
    waits = np.concatenate([gaps[:0], *(np.diff(times) for times in parts.values())])
    usual, rate = float(np.median(waits if len(waits) else gaps)), (len(at) - 1) / max(float(np.ptp(at)), 1.0)
    silent = usual if len(waits) else float(np.median(answered - at))
    order = np.argsort(at, kind="stable")
    longest = int((end - at).max(initial=0))
    for k in np.flatnonzero(gaps > limit).tolist():
        start, stop, gap = int(life[k]), int(life[k + 1]), int(gaps[k])
        low, high = np.searchsorted(at[order], [start - longest, stop - gap // 5])
        near = order[low:high]
        waiting = near[end[near] >= stop]
        if len(waiting) < _IN_FLIGHT:
            continue
        start = max(start, int(at[waiting].min()))  # before, there was nothing to answer
        gap = stop - start
        long = [_silence(moments[int(index[r])], start, stop) >= silent + _HELD_UP * gap for r in waiting]
        if gap <= limit or np.count_nonzero(long) < _LEAST_HELD * len(waiting):
            continue
        soon = stop + int(_AT_ONCE * gap)
        went_on = [bool(np.any((moments[int(index[r])] >= stop) & (moments[int(index[r])] <= soon))) for r in waiting]
        if np.count_nonzero(went_on) < max(_TOGETHER * len(waiting), _IN_FLIGHT):
            continue
        early, late = usual, _BEGIN * gap  # it waits for the current step, then its prefill starts the standstill
        began = (at[waiting] >= start - early) & (at[waiting] <= start + late)
        chances.append(1 - math.exp(-rate * (early + late)))
        newcomers = waiting[began & (np.abs(answered[waiting] - stop) <= _END * gap)]
        begin.append(start)
        length.append(gap)
        streams = np.any(answered[waiting] < start)  # of which the new request shares the batch
        fits.append(bool(len(newcomers) and streams))
        fresh[newcomers] |= fits[-1]
    starts, lengths, fit = np.array(begin, np.int64), np.array(length, np.int64), np.array(fits, dtype=bool)
    # New requests must fit longer than by chance.
    chance, still = np.array(chances), lengths.astype(np.float64)
    by_chance = float(chance @ still) + 2 * math.sqrt(float((chance * (1 - chance)) @ still**2))
    fitting = float(still[fit].sum())
    if np.count_nonzero(fit) < _FITTING or fitting < max(_FITTING_SHARE * float(still.sum()), by_chance):
        fit[:], fresh[:] = False, False
    return Standstills(
        everyone=Intervals.merged(starts, lengths),
        prefill=Intervals.merged(starts[fit], lengths[fit]),
        newcomers=fresh,
    )


def _silence(moments: Ints, start: int, stop: int) -> int:
    """How long a request was without a response around ``start`` to ``stop``."""
    before, after = moments[moments <= start], moments[moments >= stop]
    return (int(after.min()) if len(after) else stop) - int(before.max(initial=int(moments[0])))


def streamed_parts(events: Columns) -> dict[int, Ints]:
    """By request, the times of the parts of a streamed answer, nanoseconds."""
    kinds = events["kind"]
    found = {}
    for k in np.flatnonzero(kinds == "stream").tolist() if len(kinds) else ():
        gaps = np.asarray(events["detail"][k].get("gaps_us", []), dtype=np.int64) * 1000
        found[int(events["request"][k])] = int(events["t_ns"][k]) + np.concatenate([[0], np.cumsum(gaps)])
    return found
