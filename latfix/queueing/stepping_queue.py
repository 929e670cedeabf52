"""Workers that requests join and leave between steps (``batching = "continuous"``), on simulated time.

All requests of a worker advance together. A step takes longer the more requests share it, so a request's progress is
slowed by the number of those that are served with it: processor sharing, with a measured speed for each number.
Times are nanoseconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from latfix.arrays import Floats


@dataclass(slots=True)
class _Worker:
    """The requests in service.

    :param progress: the work that a request would have done that was there from the beginning, at time ``clock``.
    :param ends: a heap of the progress at which each request ends, and its position.
    """

    stretch: Sequence[float]
    progress: float = 0.0
    clock: float = 0.0
    ends: list[tuple[float, int]] = field(default_factory=list)

    def next_end(self) -> float:
        """When the next request ends if none joins."""
        if not self.ends:
            return math.inf
        return self.clock + (self.ends[0][0] - self.progress) * self.stretch[len(self.ends)]

    def advance(self, now: float) -> None:
        if self.ends:
            self.progress += (now - self.clock) / self.stretch[len(self.ends)]
        self.clock = now


def serve_in_steps(
    when: Floats, keys: Floats, work: Floats, stretch: Sequence[float], workers: int
) -> tuple[list[float], list[float]]:
    """When each request joins a worker, and when its last step ends.

    A request joins the worker with the fewest requests as soon as one has room.

    :param when: ``(n,)`` arrivals, ascending; ``keys`` of their order, smallest first.
    :param work: ``(n,)`` how long each takes alone.
    :param stretch: ``(most + 1,)`` how much longer everything takes, by the number of requests that share a step.
    """
    n, most = len(when), len(stretch) - 1
    arrival, order, needs = [*when.tolist(), math.inf], keys.tolist(), work.tolist()
    begun, ended = [0.0] * n, [0.0] * n
    waiting = list[tuple[float, int]]()
    services = [_Worker(stretch) for _ in range(workers)]
    coming, left = 0, n
    while left:
        leaving = min(services, key=_Worker.next_end)
        now = min(leaving.next_end(), arrival[coming])
        if arrival[coming] <= now:
            heappush(waiting, (order[coming], coming))
            coming += 1
        else:
            leaving.advance(now)
            ended[heappop(leaving.ends)[1]] = now
            left -= 1
        while waiting:
            room = min(services, key=lambda one: len(one.ends))
            if len(room.ends) >= most:
                break
            room.advance(now)
            request = heappop(waiting)[1]
            begun[request] = now
            heappush(room.ends, (room.progress + max(needs[request], 0.0), request))
    return begun, ended
