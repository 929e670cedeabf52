"""Whether arrivals of a log depend on its answers: a fixed number of users, each of which sends when it is answered.

Then a slow answer delays further requests instead of letting them queue, so waits and percentiles look better than
for independent arrivals (coordinated omission).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from latfix.arrays import Ints

#: Largest deviation of requests in flight if users send at once: in requests, as a share of them, over the square
#: root of all requests, and as a share of a few; least requests.
_STEADY, _STEADY_SHARE, _WANDERS, _OF_FEW, _LEAST = 0.7, 0.02, 0.05, 0.4, 30
#: The largest number in flight is a limit if so large a share of requests reach it, and so many in each part.
_AT_LIMIT, _PARTS, _IN_EACH = 0.01, 4, 5
#: Least overlapping requests of the same user if arrivals were independent, and the largest share of them found;
#: least requests of a user (a session that comes once and leaves is no fixed user).
_EXPECTED, _OVERLAP, _EACH = 20.0, 0.05, 10


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """A fixed number of users.

    :param known_by: ``ids`` of users whose requests never overlap, the ``steady`` number in flight, or its ``limit``.
    """

    users: int
    known_by: Literal["ids", "steady", "limit"]


def find_closed_loop(arrival: Ints, latency: Ints, user: Ints | None = None) -> ClosedLoop | None:
    """The closed loop that a log shows; ``None`` if arrivals may be independent of answers.

    :param arrival: ``(n,)`` ascending; ``latency`` ``(n,)`` nanoseconds.
    :param user: ``(n,)`` who sent each request, from 0; -1 if unknown.
    """
    if user is not None and _take_turns(arrival, latency, user):
        return ClosedLoop(len(np.unique(user[user >= 0])), "ids")
    met = in_flight(arrival, latency)
    usual = float(np.median(met)) if len(met) else 0.0
    met = met[int(usual) + 1 :]  # while the users begin there are fewer
    if len(met) < _LEAST or usual < 1:
        return None
    if float(met.std()) < min(max(_STEADY, _STEADY_SHARE * usual), _WANDERS * math.sqrt(len(met)), _OF_FEW * usual):
        return ClosedLoop(int(usual) + 1, "steady")
    most = int(met.max())
    reached = met == most
    often = reached.mean() >= _AT_LIMIT and min(part.sum() for part in np.array_split(reached, _PARTS)) >= _IN_EACH
    return ClosedLoop(most + 1, "limit") if often and most > 1 else None


def in_flight(arrival: Ints, latency: Ints) -> Ints:
    """``(n,)`` earlier requests that had not ended when each arrived."""
    ended = np.sort(arrival + latency)
    return np.asarray(np.arange(len(arrival)) - np.searchsorted(ended, arrival, side="right"), dtype=np.int64)


def _take_turns(arrival: Ints, latency: Ints, user: Ints) -> bool:
    """True if hardly any user sends before the last answer, although independent requests would often overlap."""
    order = np.lexsort((arrival, user))
    order = order[np.searchsorted(user[order], 0) :]  # those of known users
    if not len(order):
        return False
    who, came, took = user[order], arrival[order], latency[order]
    overlaps = np.count_nonzero((who[1:] == who[:-1]) & (came[1:] < came[:-1] + took[:-1]))
    counts = np.bincount(who)
    expected = float((took * (counts[who] - 1.0)).sum()) / max(float(np.ptp(arrival)), 1.0)
    stay = len(who) >= _EACH * np.count_nonzero(counts)
    return bool(stay and expected >= _EXPECTED and overlaps <= _OVERLAP * expected)
