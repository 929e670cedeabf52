"""The traffic cut into parts of one round each: many short rounds tell more than few long ones.

What a restart does to a replay shows only in restarts; a long replay repeats it. Rounds take the parts in turn, so
that all of the traffic is replayed where the budget allows as many rounds.
"""

from __future__ import annotations

import math
from itertools import pairwise

from latfix.traffic.schedule import Traffic
from latfix.traffic.transforms import slice_time

#: Rounds that a budget should hold: beyond that, more restarts tell little more than their number.
WANTED_ROUNDS = 16
#: A shorter replay is mostly its own beginning and end.
_SHORTEST_S = 2.0
#: A part holds so many requests at least, where the budget allows any choice.
_FEWEST = 30


def part_seconds(traffic: Traffic, budget_s: float, start_s: float) -> float:
    """How long one replay should take, in seconds of the schedule.

    :param start_s: about how long starting one service takes; a round starts and replays two.
    """
    span = max(traffic.duration_s - traffic.start_s, 1e-9)
    room = budget_s / WANTED_ROUNDS / 2 - start_s
    enough = _FEWEST * span / max(len(traffic), 1)
    return min(max(room, enough, _SHORTEST_S), span)


def cut(traffic: Traffic, seconds: float) -> list[Traffic]:
    """The traffic in consecutive parts of about ``seconds``; one without a request is left out.

    The last part is not shorter than the others: they share what is over.
    """
    start, end = traffic.start_s, math.nextafter(traffic.duration_s, math.inf) + 1e-6
    count = max(int((end - start) / seconds), 1)
    if count == 1:
        return [traffic]
    edges = [start + (end - start) * k / count for k in range(count + 1)]
    arrivals = traffic.arrival_ns / 1e9
    return [slice_time(traffic, a, b) for a, b in pairwise(edges) if ((arrivals >= a) & (arrivals < b)).any()]
