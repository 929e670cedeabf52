"""Where and when the unexplained part of latencies arose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from latfix.arrays import Ints
from latfix.formatting import counted, share, shown, significant
from latfix.profilers.over_time.level_shift import raised_stretch
from latfix.profilers.recordings.requests.shared_stalls import regular_interval
from latfix.statistics.distributions import poisson_at_least

Codes = npt.NDArray[np.int32] | Ints
NOTHING_KNOWN = "nothing in the recording accounts for it"
#: A value stands out if it has this share of the slowest requests, and this multiple of its share of all; chance does
#: so for any of the values with at most this probability.
_MOST, _OVER, _CHANCE = 0.5, 2.0, 1e-3
#: Half of the slowest came together if they are at least so many, and all requests meanwhile at most this share.
_LEAST_TOGETHER, _SHORT = 10, 0.1
#: A request is slow if it has this share of what half of the unexplained time exceeds.
_STRIKE = 0.25
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
    tail = max(round(tail_share * len(rest_ns)), 1)
    slow = np.sort(np.argpartition(rest_ns, -tail)[-tail:])
    found = [_of_value(name, codes, slow, values) for name, (codes, values) in labels.items()]
    if arrival_ns is not None:
        found.append(_when(rest_ns, slow, arrival_ns))
    return "; ".join([opening, *filter(None, found)]) + "."


def rhythm(rest_ns: Ints, arrival_ns: Ints | None) -> str:
    """How many requests, or how much time, is between turns of slow requests; empty if they come without a rhythm.

    :param rest_ns: as for :func:`remainder_words`, of all requests of a stretch; ``arrival_ns`` likewise.
    """
    beyond = np.maximum(rest_ns - np.median(rest_ns), 0)
    largest = np.sort(beyond)[::-1]
    half = int(np.searchsorted(largest.cumsum(), largest.sum() / 2))
    slow = np.flatnonzero(beyond >= max(_STRIKE * largest[half], 1))
    found = list[str]()
    for at, unit in ((slow, " requests"), (None if arrival_ns is None else arrival_ns[slow] / 1e9, " s")):
        if at is None or len(at) < 2:
            continue
        gaps = np.diff(at)
        begins = at[np.concatenate([[True], gaps > gaps.mean() / 2])]  # those of one turn come together
        if every := regular_interval(begins):
            opening = "" if found else f"{counted(round(len(slow) / len(begins)), 'slow request')} every "
            found.append(opening + (f"{every:,.0f}" if at is slow else significant(every)) + unit)
    return ", or ".join(found)


def _of_value(name: str, codes: Codes, slow: Ints, values: Sequence[str]) -> str:
    """The value that most of the slowest requests have, if it stands out."""
    if not 1 < len(values) <= _MOST_VALUES:
        return ""
    count = np.bincount(codes[slow], minlength=len(values))
    most = int(np.argmax(count))
    of_slow, of_all = float(count[most] / len(slow)), float(np.mean(codes == most))
    chance = poisson_at_least(int(count[most]), of_all * len(slow)) * len(values)
    if of_slow < _MOST or of_slow < _OVER * of_all or chance > _CHANCE:
        return ""
    return (
        f"{share(of_slow)} of the slowest have the {name} {shown(values[most], 60)} ({share(of_all)} of all requests)"
    )


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
