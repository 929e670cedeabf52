"""Who is let in: a limit on requests inside that follows the measured latency, and deadlines that cannot be met.

Turning a request away costs it its answer; letting it in under overload costs everybody theirs. Both policies here
say no at once, and count as ``shed`` beside the percentiles.
"""

from __future__ import annotations

import math
import threading

from latfix.runners.scheduling.work_estimates import WorkEstimate

#: Latencies between two moves of the limit, and the weight of a move.
EVERY, _WEIGHT = 16, 0.2
#: Latency up to so many times that of a quiet service is not held against the limit.
_TOLERANCE = 2.0
#: The quiet latency is measured anew after so many medians in a row above it.
_ABOVE = 64
#: A limit that is not used to this part is not raised.
_USED = 0.5
_MOST_LIMIT = 1_000_000


class ConcurrencyLimit:
    """A limit on requests inside, from the gradient of latency (as Netflix's concurrency-limits has it).

    New limit = limit x quiet latency x tolerance / latency (from a half to one), plus room for a short queue of the
    limit's square root, and of that a fifth each time. Where latency is that of a quiet service the limit grows, and
    where a standing queue makes it longer the limit shrinks until the queue is short. Latencies are medians of
    :data:`EVERY` requests. The quiet one is the least that was seen; where latency stays above it, it is measured
    anew, with the limit at its least for a moment: a service that became slower is then not choked for good, and one
    that is overloaded for good does not take its queue for quiet.

    :param least: the limit is never lower: as many as the workers can serve at once, and the same number waiting.
    :param most: never higher; 0 for no bound.
    """

    def __init__(self, *, least: int, most: int = 0) -> None:
        self._least = float(least if not most else min(least, most))
        self._most = float(most or _MOST_LIMIT)
        self._limit = min(2.0 * self._least, self._most)
        self._lock = threading.Lock()
        self._latencies: list[int] = []
        self._inside = 0
        self._quiet = math.inf
        self._above = 0
        #: Medians until what is measured is that of the least limit, and the limit before.
        self._probing, self._before = 0, self._limit
        self.shed = 0
        self.lowest = self.highest = self._limit

    @property
    def limit(self) -> int:
        """Most requests inside, now."""
        return int(self._limit)

    def refuses(self, inside: int) -> bool:
        """Whether a request is turned away where so many are inside."""
        if inside < int(self._limit):
            return False
        with self._lock:
            self.shed += 1
        return True

    def observe(self, latency_ns: int, inside: int) -> None:
        """Take in a request that was served.

        :param inside: how many were, with it, when it ended.
        """
        with self._lock:
            self._latencies.append(latency_ns)
            self._inside = max(self._inside, inside)
            if len(self._latencies) < EVERY:
                return
            median = float(sorted(self._latencies)[EVERY // 2])
            used, self._inside = self._inside, 0
            self._latencies.clear()
            self._move(median, used)

    def _move(self, median: float, used: int) -> None:
        if self._probing:
            self._probing -= 1
            if not self._probing:
                self._quiet, self._limit = median, self._before
            return
        self._quiet = min(self._quiet, median)
        self._above = self._above + 1 if median > _TOLERANCE * self._quiet else 0
        if self._above >= _ABOVE:
            # What is under way and waiting ends first: the second median is of the least limit alone.
            self._above, self._probing, self._before, self._limit = 0, 2, self._limit, self._least
            return
        gradient = min(max(_TOLERANCE * self._quiet / max(median, 1.0), 0.5), 1.0)
        wanted = self._limit * gradient + math.sqrt(self._limit)
        if wanted > self._limit and used < _USED * self._limit:
            return
        moved = self._limit + _WEIGHT * (wanted - self._limit)
        self._limit = min(max(moved, self._least), self._most)
        self.lowest, self.highest = min(self.lowest, self._limit), max(self.highest, self._limit)


class DeadlineCheck:
    """Whether a request can still be answered before its caller gives up, by what was learned of the service.

    The wait is what is ahead of it by the mean time that a worker is held for a request; the service is the mean
    batch's, less its mean deviation, so that a request with a fair chance is not turned away. One without a deadline
    never is, and neither is one that finds the service empty: otherwise an estimate that is too high would never be
    put right.

    :param workers: serving the queue side by side.
    """

    def __init__(self, estimate: WorkEstimate, *, workers: int) -> None:
        self._estimate = estimate
        self._workers = workers
        self._tried_ns = 0
        self.refused = 0
        self.dropped = 0

    def refuses(self, now_ns: int, expires_ns: int, inside: int) -> bool:
        """Whether a new request is turned away.

        :param expires_ns: when its caller gives up; 0 for never.
        :param inside: requests ahead of it.
        """
        if not inside:
            self._tried_ns = expires_ns
        if not expires_ns or not inside:
            return False
        ahead = inside * self._estimate.each_ns / self._workers
        if now_ns + ahead + self._service_ns() <= expires_ns:
            return False
        self.refused += 1
        return True

    def hopeless(self, now_ns: int, expires_ns: int) -> bool:
        """Whether a request whose turn has come cannot be answered in time; one that is late already is not asked.

        :param now_ns: when its batch closes.
        """
        if not expires_ns or now_ns > expires_ns or now_ns + self._service_ns() <= expires_ns:
            return False
        if expires_ns == self._tried_ns:
            return False
        self.dropped += 1
        return True

    def _service_ns(self) -> float:
        return max(self._estimate.batch_ns - self._estimate.batch_spread_ns, 0.0)
