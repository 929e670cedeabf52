"""How slow each replica is compared with the fastest, from the latencies of its batches.

Each batch is compared with the time that a batch of that size and lengths takes on the fastest replica. Only the
ratio is kept, so a replica with long requests does not appear slow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import sqrt

from latfix.runners.scheduling.work_estimates import Batch, WorkEstimate

#: Batches of a replica that are kept.
_WINDOW = 16
#: Minimum number of batches for a result.
_LEAST = 3
#: Replicas within this factor of the fastest count as equal: that much may be chance, and holding back has a cost.
ALIKE = 1.25
#: No replica counts as slower than this.
SLOWEST = 32.0
#: A batch that differs from the replica's others by this factor starts a new regime if more of the kind follow.
_ELSEWHERE = 1.4
#: Consecutive batches that confirm a regime: slower ones; and faster ones of a slow replica, which has few batches.
_RUN_UP, _RUN_DOWN = 5, 3
#: The fastest replica's time is learned from every batch up to ``_SETTLED``, then from one in ``_EVERY``: afterwards
#: only the replicas change.
_SETTLED, _EVERY = 64, 4
#: Half the width of a 95 % interval of a median, in ranks of the sorted values, divided by the root of their number.
_HALF_WIDTH = 0.98


class ReplicaSpeed:
    """The ratios of one replica's latest batches; ratios from before a change are dropped.

    :ivar known: there are enough batches for a result.
    :ivar median: the middle ratio, 1 without batches; ``low`` and ``high`` are the ends of its 95 % interval, by
        order statistics.
    """

    __slots__ = ("_down", "_up", "high", "known", "low", "median", "ratios")

    def __init__(self) -> None:
        self.ratios: deque[float] = deque(maxlen=_WINDOW)
        self._up = self._down = 0
        self.known = False
        self.median = self.low = self.high = 1.0

    def add(self, ratio: float, *, slow: bool = False) -> None:
        """Add a batch: its time divided by that on the fastest replica.

        :param slow: the replica counts as slower, so that a few consecutive quick batches show its recovery.
        """
        ratios = self.ratios
        ratios.append(ratio)
        if self.known:
            self._up = self._up + 1 if ratio > _ELSEWHERE * self.median else 0
            self._down = self._down + 1 if slow and ratio * _ELSEWHERE < self.median else 0
            run = self._up if self._up >= _RUN_UP else self._down if self._down >= _RUN_DOWN else 0
            if run:
                latest = list(ratios)[-run:]
                ratios.clear()
                ratios.extend(latest)
                self._up = self._down = 0
        n, ordered = len(ratios), sorted(ratios)
        below = max(int(n / 2 - _HALF_WIDTH * sqrt(n)), 0)
        self.known = n >= _LEAST
        self.median, self.low, self.high = ordered[n // 2], ordered[below], ordered[n - 1 - below]

    @property
    def recovering(self) -> bool:
        """True if its latest batch was much quicker than usual."""
        return self._down > 0


def weights_of(speeds: Sequence[ReplicaSpeed]) -> list[float]:
    """Each replica's time relative to the fastest; 1 if the difference may be chance."""
    fastest: ReplicaSpeed | None = None
    for speed in speeds:
        if speed.known and (fastest is None or speed.median < fastest.median):
            fastest = speed
    if fastest is None or fastest.median <= 0.0:
        return [1.0] * len(speeds)
    least, beyond_chance = fastest.median * ALIKE, fastest.high
    return [
        min(speed.median / fastest.median, SLOWEST)
        if speed.known and speed.median >= least and speed.low > beyond_chance
        else 1.0
        for speed in speeds
    ]


class Pace:
    """The time of a batch on the fastest replica, learned from all replicas. Not thread-safe."""

    def __init__(self, replicas: int) -> None:
        self._estimate = WorkEstimate()
        self._longest = 1.0
        self._seen = 0
        self.speeds = [ReplicaSpeed() for _ in range(replicas)]
        self.weights = [1.0] * replicas

    def expected_ns(self, size: int, longest: float | None = None) -> float:
        """Nanoseconds of a batch on the fastest replica; 0 while too little is known.

        :param longest: its largest bucket length; a typical one by default.
        """
        return self._estimate.batch_compute_ns(size, round(self._longest if longest is None else longest))

    def learn(self, replica: int, *, size: int, longest: int, total: int, took_ns: int) -> None:
        expected = self.expected_ns(size, longest)
        if expected > 0.0:
            self.speeds[replica].add(took_ns / expected, slow=self.weights[replica] > 1.0)
            self.weights = weights_of(self.speeds)
        self._seen += 1
        if self._seen > _SETTLED and self._seen % _EVERY:
            return
        self._longest += 0.05 * (longest - self._longest)
        own = round(took_ns / self.weights[replica])
        self._estimate.learn(Batch(size=size, longest=longest, total=total, elements=0, compute_ns=own, busy_ns=own))
