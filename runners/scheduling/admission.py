"""Admission: a limit on requests inside that follows the measured latency, and deadlines that cannot be met.

Refusing a request loses its answer; admitting it under overload delays all others. Both policies refuse at once.
Refused requests count as ``shed``: they are lost, and percentiles cover them too.
"""

from __future__ import annotations

import math
import threading

from latfix.runners.scheduling.work_estimates import WorkEstimate

#: Latencies between two moves of the limit, and the weight of a move.
EVERY, _WEIGHT = 16, 0.2
#: Latency up to this multiple of a quiet service's does not lower the limit.
_TOLERANCE = 2.0
#: The quiet latency is measured again after this many consecutive medians above it.
_ABOVE = 64
#: A limit is raised only if at least this share of it is used.
_USED = 0.5
_MOST_LIMIT = 1_000_000


class ConcurrencyLimit:
    """A limit on requests inside, from the gradient of latency (as in Netflix's concurrency-limits).

    New limit = limit x quiet latency x tolerance / latency (from a half to one) + sqrt(limit) as room for a short
    queue; each move goes a fifth of the way. The limit grows while latency is that of a quiet service, and shrinks
    while a standing queue raises it. Latencies are medians of :data:`EVERY` requests. The quiet latency is the
    minimum seen. If latency stays above it, it is measured again with the limit briefly at its minimum. So a service
    that became slower is not throttled forever, and a permanently overloaded one does not mistake its queue for
    quiet.

    :param least: minimum of the limit: as many as the workers can serve at once, and the same number waiting.
    :param most: maximum of the limit; 0 for none.
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
        #: Medians left until one is measured at the minimum limit alone, and the limit before.
        self._probing, self._before = 0, self._limit
        self.shed = 0
        self.lowest = self.highest = self._limit

    @property
    def limit(self) -> int:
        """Maximum number of requests inside, now."""
        return int(self._limit)

    def refuses(self, inside: int) -> bool:
        """True if a request is refused while ``inside`` requests are inside."""
        if inside < int(self._limit):
            return False
        with self._lock:
            self.shed += 1
        return True

    def observe(self, latency_ns: int, inside: int) -> None:
        """Add a served request; ``inside`` requests, including it, were inside when it ended."""
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
            # Requests in service and waiting end first: only the second median is of the minimum limit.
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
    """Predicts whether a request can be answered before its caller gives up.

    The predicted wait is the number of requests ahead times a worker's mean time per request. The predicted service
    time is the mean batch's less its mean deviation, so that a request with a fair chance is admitted. A request
    without a deadline is always admitted, and so is one that finds the service empty: otherwise an estimate that is
    too high would never be corrected.

    :param workers: number of workers that serve the queue; with continuous batching, of all their places.
    """

    def __init__(self, estimate: WorkEstimate, *, workers: int) -> None:
        self._estimate = estimate
        self._workers = workers
        self._tried_ns = 0
        self.refused = 0
        self.dropped = 0

    def refuses(self, now_ns: int, expires_ns: int, inside: int) -> bool:
        """True if a new request is refused.

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
        """True if a request whose turn has come cannot be answered in time; False if it is late already.

        :param now_ns: when its batch closes.
        """
        if not expires_ns or now_ns > expires_ns or now_ns + self._service_ns() <= expires_ns:
            return False
        if expires_ns == self._tried_ns:
            return False
        self.dropped += 1
        return True

    def _service_ns(self) -> float:
        return max(self._estimate.batch_ns - self._estimate.spread.value, 0.0)
