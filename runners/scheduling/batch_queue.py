"""The queue between prepare threads and workers, and the batcher that empties it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from latfix.queueing.serving_order import Backlog, FixedLimits, Limits, Ordering, Waiting
from latfix.request import Request

#: Greater lengths count as this one: the record stores them in 64 bits.
_LONGEST = 1 << 62

__all__ = ["BatchQueue", "Formed", "Waiting", "bucket_length"]


class Formed(NamedTuple):
    """A batch whose membership is fixed; a tuple, because one is made per batch.

    :param open_ns: when the worker was free and the first member waited.
    :param close_ns: when the batch was full, or the window of the oldest member ended.
    :param full: at least as many requests waited as a batch may hold; ``left`` are still waiting.
    :param dropped: requests that were no longer worth serving; ``members`` may be empty then.
    """

    members: list[Waiting]
    open_ns: int
    close_ns: int
    full: bool = False
    left: int = 0
    dropped: tuple[Waiting, ...] = ()


#: Returned to a worker whose patience ended.
IDLE = Formed([], 0, 0)


class BatchQueue:
    """Requests wait here for a worker.

    A free worker opens a batch as soon as one request waits. It closes the batch when as many wait as a batch may
    hold, or when the window of the oldest ends, which counts from the time it was enqueued. A request that has waited
    longer than the window leaves at once.

    :param by_length: choose members by closeness in length to the head of the queue.
    :param limits: replaces ``max_batch_size`` and ``window_ns`` if a controller moves them.
    :param doomed: True for a request that is no longer worth serving at a given time.
    :param clock: replaced in tests on simulated time.
    :ivar lock: of the queue, and of the router of a subclass.
    """

    def __init__(
        self,
        *,
        max_batch_size: int,
        window_ns: int,
        by_length: bool = False,
        ordering: Ordering | None = None,
        memory_limit: int = 0,
        limits: Limits | None = None,
        doomed: Callable[[Waiting, int], bool] | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._limits: Limits = limits or FixedLimits(max_batch_size, window_ns)
        self._doomed = doomed
        self._clock = clock
        self._backlog = Backlog(ordering=ordering, by_length=by_length, memory_limit=memory_limit)
        self._closed = False
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        # One worker forms a batch at a time; the others wait here for their turn, not for requests.
        self._forming = threading.Lock()

    def __len__(self) -> int:
        return len(self._backlog)

    def put(self, *, enqueued_ns: int, **request: Any) -> None:
        """Enqueue a prepared request; see :meth:`latfix.queueing.serving_order.Backlog.push`."""
        with self._changed:
            self._backlog.push(enqueued_ns=enqueued_ns, **request)
            self._came(enqueued_ns)

    def _came(self, enqueued_ns: int) -> None:  # noqa: ARG002  (used by a subclass)
        """A request was enqueued at ``enqueued_ns``; the lock is held."""
        self._changed.notify()

    def close(self) -> None:
        """Accept no more requests: :meth:`take` returns what waits, then ``None``."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take(self, free_ns: int, patience_s: float | None = None) -> Formed | None:
        """Form the next batch for a worker that has been free since ``free_ns``; ``None`` when closed.

        :param patience_s: maximum seconds to wait for its turn, and then for a request, before it gets
            :data:`IDLE`; ``None`` for no limit.
        """
        if not self._forming.acquire(timeout=-1 if patience_s is None else patience_s):
            return IDLE
        try:
            return self._form_next(free_ns, patience_s)
        finally:
            self._forming.release()

    def _form_next(self, free_ns: int, patience_s: float | None) -> Formed | None:
        backlog = self._backlog
        with self._changed:
            while not len(backlog):
                if self._closed:
                    return None
                if not self._changed.wait(patience_s) and not len(backlog):
                    return IDLE
            most, window_ns = self._limits.size, self._limits.window_ns
            # With a full batch waiting, the window decides nothing, and a long backlog need not be searched.
            oldest = backlog.oldest_ns() if len(backlog) < most else backlog.head_ns()
            open_ns = max(free_ns, oldest)
            leaves_ns = oldest + window_ns
            while len(backlog) < most and not self._closed:
                remaining = leaves_ns - self._clock()
                if remaining <= 0:
                    break
                self._changed.wait(remaining / 1e9)
            full = len(backlog) >= most
            close_ns = self._clock()
            members, dropped = self._pop(most, close_ns)
            return Formed(members, open_ns, close_ns, full, len(backlog), tuple(dropped))

    def _pop(self, most: int, now_ns: int, skip: int = 0) -> tuple[list[Waiting], list[Waiting]]:
        """Up to ``most`` members of a batch that closes now, after the first ``skip``, and the dropped requests."""
        doomed = self._doomed
        hopeless = None if doomed is None else (lambda item: doomed(item, now_ns))
        if skip:
            return self._backlog.pop_behind(skip, most, hopeless)
        return self._backlog.pop(most, hopeless)

    def take_full(self) -> Formed | None:
        """A full batch if enough requests wait now; ``None`` if not, or while another worker forms a batch."""
        return self.take_at_once(self._limits.size, least=self._limits.size)

    def take_at_once(self, most: int, least: int = 1) -> Formed | None:
        """Up to ``most`` waiting requests, for a worker that has room in its current batch.

        ``None`` if fewer than ``least`` wait, or while another worker forms a batch.
        """
        if len(self._backlog) < least or not self._forming.acquire(blocking=False):
            return None
        try:
            with self._changed:
                if len(self._backlog) < least:
                    return None
                now = self._clock()
                members, dropped = self._pop(most, now)
                full = len(members) == self._limits.size
                return Formed(members, now, now, full, len(self._backlog), tuple(dropped))
        finally:
            self._forming.release()


def bucket_length(request: Request, key: str, elements: int) -> int:
    """The length of a request for batches ordered by length.

    :param key: a numeric feature; if empty, missing or not finite, the number of input elements is used.
    """
    value = request.features.get(key) if key else None
    # A large integer may not fit a float, so only floats are checked for being finite.
    if not isinstance(value, int | float) or (isinstance(value, float) and not math.isfinite(value)):
        return elements
    return round(min(max(value, -_LONGEST), _LONGEST))
