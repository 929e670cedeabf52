"""The traffic cut into parts, one for each round: many short rounds show more than few long ones.

The effect of a restart differs between restarts, and only more rounds average it. Rounds use the parts in turn, so
that all of the traffic is replayed if the budget allows.
"""

from __future__ import annotations

import math
from itertools import pairwise

from latfix.traffic.schedule import Traffic
from latfix.traffic.transforms import slice_time

#: Rounds that a budget should hold. More, each of fewer requests, would be mostly starts of services.
WANTED_ROUNDS = 28
#: Minimum length of a replay; a shorter one is mostly its start and end.
_SHORTEST_S = 2.0
#: Minimum number of requests in a part.
_FEWEST = 30


def part_seconds(traffic: Traffic, budget_s: float, start_s: float) -> float:
    """Length of one replay, in seconds of the schedule.

    :param start_s: about how long one service takes to start; a round starts and replays two.
    """
    span = max(traffic.duration_s - traffic.start_s, 1e-9)
    room = budget_s / WANTED_ROUNDS / 2 - start_s
    enough = _FEWEST * span / max(len(traffic), 1)
    return min(max(room, enough, _SHORTEST_S), span)


def cut(traffic: Traffic, seconds: float) -> list[Traffic]:
    """The traffic in consecutive parts of equal length, about ``seconds``; parts without a request are left out."""
    start, end = traffic.start_s, math.nextafter(traffic.duration_s, math.inf) + 1e-6
    count = max(int((end - start) / seconds), 1)
    if count == 1:
        return [traffic]
    edges = [start + (end - start) * k / count for k in range(count + 1)]
    arrivals = traffic.arrival_ns / 1e9
    return [slice_time(traffic, a, b) for a, b in pairwise(edges) if ((arrivals >= a) & (arrivals < b)).any()]
