"""The batch queue that assigns batches to workers by their speed: ``routing = "weighted"``.

Every worker has its own door. A new request wakes the worker that should decide, not the one that has waited longest.
A worker that leaves requests to faster ones decides again when those are late (:mod:`scheduling.replica_router`).
"""

from __future__ import annotations

import threading
from typing import Any

from latfix.runners.scheduling.batch_queue import IDLE, BatchQueue, Formed
from latfix.runners.scheduling.replica_router import Router, RoutingDecision

#: A request is tried on a slow worker only if its remaining time is this multiple of its expected time there.
_TIME_TO_TRY = 3.0


class RoutedQueue(BatchQueue):
    """A queue from which each worker takes batches through its own :meth:`door`.

    :param router: called only under this queue's lock.
    :param rest: as for :class:`latfix.runners.scheduling.batch_queue.BatchQueue`.
    """

    def __init__(self, *, router: Router, workers: int, **rest: Any) -> None:
        super().__init__(**rest)
        self.router = router
        #: Wakes each worker: conditions on the queue's lock, which simulated clocks replace.
        self.bells: list[Any] = [threading.Condition(self.lock) for _ in range(workers)]
        self._doors = [Door(self, worker) for worker in range(workers)]
        self._filled_ns = 0

    def door(self, worker: int) -> Door:
        return self._doors[worker]

    def _came(self, enqueued_ns: int) -> None:
        self._filled_ns = enqueued_ns
        self.router.came(enqueued_ns)
        self._wake()

    def close(self) -> None:
        """Accept no more requests: doors return what waits, then ``None``."""
        with self.lock:
            self._closed = True
            self.router.close(self._clock())
            for bell in self.bells:
                bell.notify()

    def note_others(self, worker: int, others: float) -> None:
        """Note the current share of a device used by other processes; see :meth:`Router.note_others`."""
        with self.lock:
            self.router.note_others(worker, others, self._clock())

    def arrive(self, worker: int, free_ns: int, now_ns: int) -> None:
        """A worker arrives at the queue; its previous batch has ended. The lock is held."""
        self._doors[worker].settle(free_ns)
        self.router.stands(worker, now_ns)

    def depart(self, worker: int, now_ns: int) -> None:
        """A worker leaves the queue, with a batch or without one; another worker decides on the rest."""
        self.router.leaves(worker, now_ns)
        self._wake()

    def attempt(self, worker: int, free_ns: int, now_ns: int) -> Formed | int | None:
        """What a worker at the queue gets now. The lock is held.

        :returns: a batch; nanoseconds until the next decision; ``None`` to wait until woken.
        """
        backlog = self._backlog
        self.router.looks(worker)
        waiting = len(backlog)
        if not waiting:
            return None
        limit = self._limits.size
        if self._closed:
            return self._form(worker, RoutingDecision(limit), free_ns, now_ns)
        # With a full batch waiting, the window decides nothing, and a long backlog need not be searched.
        full = waiting >= limit
        due = self._filled_ns if full else backlog.oldest_ns() + self._limits.window_ns
        if due > now_ns and not full:
            return due - now_ns
        decision = self.router.decide(worker, waiting=waiting, most=limit, due_ns=due, now_ns=now_ns)
        if decision.probe and not self._has_time(worker, now_ns):
            self.router.not_now(worker)
            self._wake()
            return None
        if not decision.take:
            self._doors[worker].held_ns = now_ns
            return decision.again_ns
        return self._form(worker, decision, free_ns, now_ns, full=full)

    def take_at(self, worker: int, free_ns: int, patience_s: float | None) -> Formed | None:
        """A batch, ``None`` when closed, ``IDLE`` if none was available for ``patience_s`` seconds."""
        with self.lock:
            now = self._clock()
            until = None if patience_s is None else now + int(patience_s * 1e9)
            self.arrive(worker, free_ns, now)
            try:
                while True:
                    got = self.attempt(worker, free_ns, now)
                    if isinstance(got, Formed):
                        return got
                    if self._closed:
                        return None
                    if until is not None and now >= until:
                        return IDLE
                    rests = [rest for rest in (got, None if until is None else until - now) if rest is not None]
                    self.bells[worker].wait(min(rests) / 1e9 if rests else None)
                    now = self._clock()
            finally:  # also if the worker dies here
                self.depart(worker, self._clock())

    def take_between(self, worker: int, most: int) -> Formed | None:
        """Up to ``most`` requests for a worker that has room in its current batch; ``None`` for none."""
        if not len(self._backlog):
            return None
        with self.lock:
            waiting, now = len(self._backlog), self._clock()
            if not waiting:
                return None
            due = self._backlog.head_ns()
            decision = self.router.decide(worker, waiting=waiting, most=most, due_ns=due, now_ns=now)
            if not decision.take or decision.probe:
                return None
            return self._form(worker, decision, now, now)

    def _wake(self) -> None:
        """Wake the worker that should decide on the waiting requests."""
        if len(self._backlog) and (worker := self.router.ring(self._clock())) is not None:
            self.bells[worker].notify()

    def _form(
        self, worker: int, decision: RoutingDecision, free_ns: int, now_ns: int, *, full: bool = False
    ) -> Formed:
        """Take a batch, and note that the worker begins it."""
        door = self._doors[worker]
        members, dropped = self._pop(decision.take, now_ns, decision.skip)
        self.router.probes += decision.probe
        first = min((member.enqueued_ns for member in members), default=now_ns)
        # Until now these requests were left to a faster worker, so their wait is not for this one.
        opened = now_ns if door.held_ns >= first else max(free_ns, first)
        formed = Formed(members, opened, now_ns, full, len(self._backlog), tuple(dropped))
        door.began(formed)
        return formed

    def _has_time(self, worker: int, now_ns: int) -> bool:
        """True if the last waiting request has enough time for a slow worker."""
        last = self._backlog.last()
        takes = self.router.weight(worker) * self.router.pace.expected_ns(1, last.length)
        return not last.expires_ns or last.expires_ns > now_ns + _TIME_TO_TRY * takes


class Door:
    """One worker's access to the queue; reports to the router what the worker takes and when that ends.

    :ivar held_ns: when it last left waiting requests to a faster worker.
    """

    def __init__(self, queue: RoutedQueue, worker: int) -> None:
        self._queue = queue
        self._worker = worker
        self._stepping = queue.router.places > 1
        self._batch: tuple[int, int, int, int] | None = None
        self._rows: dict[int, int] = {}
        self.held_ns = -1

    def __len__(self) -> int:
        return len(self._queue)

    def take(self, free_ns: int, patience_s: float | None = None) -> Formed | None:
        """Like :meth:`BatchQueue.take`; the worker's last batch ended at ``free_ns``."""
        return self._queue.take_at(self._worker, free_ns, patience_s)

    def take_at_once(self, most: int) -> Formed | None:
        """Like :meth:`BatchQueue.take_at_once`."""
        return self._queue.take_between(self._worker, most)

    def row_ended(self, slot: int, end_ns: int, *, shared: int, length: int) -> None:
        """A request that joined between steps was answered.

        :param shared: average number of rows in its steps; 0 if it was not served in steps.
        """
        with self._queue.lock:
            ticket = self._rows.pop(slot, None)
            if ticket is not None:
                router = self._queue.router
                router.ended(self._worker, ticket, end_ns, size=shared, longest=length, total=length * max(shared, 1))

    def began(self, formed: Formed) -> None:
        """The worker took a batch. The queue's lock is held."""
        router, worker, now = self._queue.router, self._worker, formed.close_ns
        live = [one for one in formed.members if not one.expires_ns or now <= one.expires_ns]
        if self._stepping:
            for one in live:
                self._rows[one.slot] = router.took(worker, now, size=len(self._rows) + 1, longest=one.length)
        elif live:
            longest, total = max(one.length for one in live), sum(one.length for one in live)
            self._batch = (router.took(worker, now, size=len(live), longest=longest), len(live), longest, total)

    def settle(self, free_ns: int) -> None:
        """The worker's previous batch has ended. The queue's lock is held."""
        router = self._queue.router
        if self._batch is not None:
            ticket, size, longest, total = self._batch
            self._batch = None
            router.ended(self._worker, ticket, free_ns, size=size, longest=longest, total=total)
        while self._rows:
            router.ended(self._worker, self._rows.popitem()[1], free_ns, size=0, longest=0, total=0)
