"""Where and when the unexplained part of latencies arose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.arrays import Floats, Ints
from latfix.formatting import counted, share, shown, significant
from latfix.profilers.over_time.level_shift import raised_stretch
from latfix.profilers.recordings.requests.shared_stalls import regular_interval
from latfix.statistics.distributions import binomial_at_least, poisson_at_least

Codes = npt.NDArray[np.int32] | Ints
#: The label of how many servers a request was sent to.
ATTEMPT = "attempt"
NOTHING_KNOWN = "nothing in the recording accounts for it"
#: A value stands out if it has this share of the slowest requests, and this multiple of its share of all; chance does
#: so for any of the values with at most this probability.
_MOST, _OVER, _CHANCE = 0.5, 2.0, 1e-3
#: Half of the slowest came together if they are at least so many, and all requests meanwhile at most this share.
_LEAST_TOGETHER, _SHORT = 10, 0.1
#: A request is slow if it has this share of what half of the unexplained time exceeds; so is a turn of them.
_STRIKE = 0.25
#: A rhythm is of at most this share of the requests, of so many units of the times, and of so many requests.
_MINORITY, _RESOLVED, _LEAST_EVERY = 0.5, 10, 2
#: Periods that are tried: so many cycles, in these steps, each in so many phases. The share of cycles that are alike,
#: and how probable they are by chance.
_LEAST_CYCLES, _MOST_CYCLES, _CYCLES_APART, _PHASES, _REGULAR, _CHANCE_OF_TURNS = 7, 40, 0.1, 20, 0.8, 4e-4
#: A value of a column explains slow requests if it has this share of them, or of their time.
_NEARLY_ALL = 0.9
#: Values of a column from which each may stand for a single request.
_MOST_VALUES = 1_000


def remainder_words(
    rest_ns: Ints,
    tail_share: float,
    arrival_ns: Ints | None,
    labels: Mapping[str, tuple[Codes, Sequence[str]]],
    opening: str = NOTHING_KNOWN,
) -> str:
    """One sentence on what stands out among the requests with the largest unexplained part.

    :param rest_ns: ``(n,)`` unexplained, in order of arrival; ``tail_share`` of requests are the slowest.
    :param arrival_ns: ``(n,)`` since the first arrival; ``None`` if only the order is known.
    :param labels: by the name of a column, ``(n,)`` numbers of its values, and the values.
    :param opening: of the sentence.
    """
    slow = _slowest(rest_ns, tail_share)
    found = [_of_value(name, codes, slow, values)[1] for name, (codes, values) in labels.items()]
    if arrival_ns is not None:
        found.append(_when(rest_ns, slow, arrival_ns))
    return "; ".join([opening, *filter(None, found)]) + "."


def attempt_words(part_ns: Ints, tail_share: float, attempt: Codes, attempts: Sequence[str]) -> str:
    """To how many servers the requests with the largest such part were sent; empty if it does not stand out.

    :param part_ns: ``(n,)``; ``tail_share`` of requests are the slowest.
    """
    return _of_value(ATTEMPT, attempt, _slowest(part_ns, tail_share), attempts)[1]


def culprit_among(
    rest_ns: Ints, tail_share: float, labels: Mapping[str, tuple[Codes, Sequence[str]]]
) -> tuple[str, str]:
    """The value that nearly all requests with the largest unexplained part have, and a clause on it; empty without.

    Parameters as for :func:`remainder_words`.
    """
    slow = _slowest(rest_ns, tail_share)
    for name, (codes, values) in labels.items():
        found, words = _of_value(name, codes, slow, values)
        if words and np.mean(codes[slow] == values.index(found)) >= _NEARLY_ALL:
            return f"{name} {shown(found, 60)}", words
    return "", ""


def _slowest(rest_ns: Ints, tail_share: float) -> Ints:
    tail = max(round(tail_share * len(rest_ns)), 1)
    return np.sort(np.argpartition(rest_ns, -tail)[-tail:])


def rhythm(
    rest_ns: Ints,
    arrival_ns: Ints | None,
    labels: Mapping[str, tuple[Codes, Sequence[str]]] = MappingProxyType({}),
    resolution_ns: int = 1,
) -> str:
    """How many requests, or how much time, is between turns of slow requests; empty if they come without a rhythm.

    :param rest_ns: as for :func:`remainder_words`, of all requests of a stretch; ``arrival_ns`` and ``labels``
        likewise.
    :param resolution_ns: unit of the times. Rounded to it, requests have a rhythm of their own.
    """
    beyond = np.maximum(rest_ns - np.median(rest_ns), 0)
    slow = _large(beyond)
    if len(slow) < 2 or len(slow) > _MINORITY * len(rest_ns):
        return ""
    # One server of several gets every n-th request anyway.
    by_label = any(_are_those_of_one(codes, slow, beyond) for codes, _ in labels.values())
    apart_s = 0.0 if arrival_ns is None else float(np.ptp(arrival_ns)) / len(arrival_ns) / 1e9
    finest_s = _RESOLVED * resolution_ns / 1e9
    found = list[str]()
    for at, unit in ((slow, " requests"), (None if arrival_ns is None else arrival_ns[slow] / 1e9, " s")):
        if at is None:
            continue
        every, of_one = _regular_turns(at, beyond[slow])
        too_short = max(finest_s / apart_s if apart_s else 0.0, _LEAST_EVERY) if at is slow else finest_s
        if not every or every < too_short or (at is slow and by_label):
            continue
        opening = "" if found else f"{counted(max(round(of_one), 1), 'slow request')} every "
        found.append(opening + (f"{every:,.0f}" if at is slow else significant(every)) + unit)
    return ", or ".join(found)


def _regular_turns(at: Ints | Floats, beyond: Ints) -> tuple[float, float]:
    """The interval of regular turns of slow requests, and the number of requests in one; 0 without.

    :param at: ascending places of slow requests; ``beyond`` what they take longer.
    """
    gaps = np.diff(at)
    first = np.concatenate([[0], np.flatnonzero(gaps > gaps.mean() / 2) + 1])  # those of one turn come together
    large = _large(np.add.reduceat(beyond, first))  # between regular turns, single ones are slow by chance
    if every := regular_interval(at[first[large]]):
        return every, float(np.diff([*first, len(at)])[large].mean())
    return _recurring_sum(at - at[0], np.minimum(beyond, np.median(beyond)).astype(np.float64))


def _recurring_sum(at: Ints | Floats, cost: Floats) -> tuple[float, float]:
    """As :func:`_regular_turns`, where many are slow by chance: at one phase of a period, the sums are largest.

    The largest sum of each cycle of a period is at any phase if events are independent, so that the number of cycles
    in which it is at nearly the same one is binomial.

    :param at: from 0.
    """
    length, best, middle = float(at[-1]) * (1 + 1e-9), (_CHANCE_OF_TURNS, 0.0, 0), _PHASES // 2
    for cycles in np.arange(_LEAST_CYCLES, _MOST_CYCLES, _CYCLES_APART):
        per_unit = _PHASES * cycles / length
        place = (at * per_unit).astype(np.int64)
        # Cycles begin half a period from the phase of most, which so is not divided among two.
        begin = (int(np.bincount(place % _PHASES, cost).argmax()) - middle) % _PHASES
        whole = int((_PHASES * cycles - begin) / _PHASES)
        place = place - begin
        inside = (place >= 0) & (place < whole * _PHASES)
        sums = np.bincount(place[inside], cost[inside], whole * _PHASES).reshape(whole, _PHASES)
        hits = int(np.count_nonzero(np.abs(sums.argmax(axis=1)[sums.any(axis=1)] - middle) <= 1))
        if hits < max(_REGULAR * whole, 1):
            continue
        # In any phase, and in any of the periods that have as many cycles.
        chance = _PHASES / _CYCLES_APART * binomial_at_least(hits, whole, 3 / _PHASES)
        if chance < best[0]:
            best = (chance, per_unit, begin)
    if not best[1]:
        return 0.0, 0.0
    turn, phase = np.divmod((at * best[1]).astype(np.int64) - best[2], _PHASES)
    near = np.abs(phase - middle) <= 1
    turns, of_turn = np.unique(turn[near], return_inverse=True)
    centers = np.bincount(of_turn, (cost * at)[near]) / np.bincount(of_turn, cost[near])
    return float(np.polyfit(turns, centers, 1)[0]), float(np.median(np.bincount(of_turn)))


def _large(amounts: npt.NDArray[Any]) -> Ints:
    """The places of the amounts that are not small beside those that make up half of the sum."""
    largest = np.sort(amounts)[::-1]
    half = int(np.searchsorted(largest.cumsum(), largest.sum() / 2))
    return np.flatnonzero(amounts >= max(_STRIKE * largest[half], 1))


def _are_those_of_one(codes: Codes, slow: Ints, beyond: Ints) -> bool:
    """True if most requests with one value of a column are slow, and theirs is nearly all the time lost."""
    cost = np.bincount(codes[slow], beyond[slow])
    value = int(cost.argmax())
    most = int(np.count_nonzero(codes[slow] == value)) >= _MINORITY * int(np.count_nonzero(codes == value))
    return most and float(cost[value]) >= _NEARLY_ALL * float(cost.sum())


def _of_value(name: str, codes: Codes, slow: Ints, values: Sequence[str]) -> tuple[str, str]:
    """The value that most of the slowest requests have, if it stands out, and a clause on it; else empty."""
    if not 1 < len(values) <= _MOST_VALUES:
        return "", ""
    count = np.bincount(codes[slow], minlength=len(values))
    most = int(np.argmax(count))
    of_slow, of_all = float(count[most] / len(slow)), float(np.mean(codes == most))
    chance = poisson_at_least(int(count[most]), of_all * len(slow)) * len(values)
    if of_slow < _MOST or of_slow < _OVER * of_all or chance > _CHANCE:
        return "", ""
    value = values[most]
    have = f"were sent to {value}" if name == ATTEMPT else f"have the {name} {shown(value, 60)}"
    return value, f"{share(of_slow)} of the slowest {have} ({share(of_all)} of all requests)"


def _when(rest_ns: Ints, slow: Ints, arrival_ns: Ints) -> str:
    """The time in which the remainder is larger, or in which half of the slowest requests came."""
    if stretch := raised_stretch((rest_ns - rest_ns.min()).astype(np.float64)):
        return f"it is larger from {_seconds(arrival_ns, stretch.first, min(stretch.last, len(rest_ns) - 1))}"
    half = (len(slow) + 1) // 2
    lengths = slow[half - 1 :] - slow[: len(slow) - half + 1]
    place = int(np.argmin(lengths))
    if half < _LEAST_TOGETHER or lengths[place] > _SHORT * len(rest_ns):
        return ""
    return f"half of the slowest came from {_seconds(arrival_ns, int(slow[place]), int(slow[place + half - 1]))}"


def _seconds(arrival_ns: Ints, first: int, last: int) -> str:
    begin, end = (float(arrival_ns[row] - arrival_ns[0]) / 1e9 for row in (first, last))
    digits = max(1 - math.floor(math.log10(max(end - begin, 1e-9))), 0)  # two of the length
    return f"{begin:,.{digits}f} s to {end:,.{digits}f} s"
