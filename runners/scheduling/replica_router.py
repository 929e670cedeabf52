"""Which of several replicas serves waiting requests if they are not equally fast.

Free workers that take whatever waits are simple and never idle. But a worker that is three times slower takes every
batch that it is free for, even if a fast one would have been free a moment later and finished sooner (the slow-server
problem: Larsen and Agrawala 1983; Lin and Kumar, Optimal control of a queueing system with two heterogeneous servers,
1984). A slow server is worth using above a certain queue length.

Here that length follows from predictions. A free worker takes a batch if it is expected to finish it no later than
the faster workers would, each of which takes from the head of the queue whenever it is free. If they would finish the
first few sooner, it leaves those to them and takes the next ones. The delay that a fast worker's batch causes to
later arrivals counts too, so under load the slow worker takes more.

Waiting for a faster worker is bounded: an overdue worker is expected to take as long again as it is late, so no
request waits for it longer than twice the time by which it is faster, even if the worker is dead.

Nothing here has a clock or a lock: every method receives the time, and the caller synchronizes threads.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from latfix.runners.scheduling.replica_speed import Pace

#: Other workers' batches after which an unused worker gets one request, to check if it is still slow; and the number
#: after a trial that was quick.
PROBE_EVERY, PROBE_AGAIN = 200, 20
#: Minimum time before a worker that holds back decides again.
LEAST_WAIT_NS = 200_000
#: Number of workers whose weight is sampled, ten times a second each; notes report slow phases of the others.
_SAMPLED = 32
#: Arrivals over which their rate is averaged.
_ARRIVALS = 64
#: Upper bound on the assumed share of a device that other processes use.
_MOST_TAKEN = 0.9


@dataclass(frozen=True, slots=True)
class RoutingDecision:
    """The decision of a free worker.

    :param take: maximum number of requests to take; 0 to leave all to faster workers.
    :param skip: requests at the head of the queue that are left to faster workers.
    :param again_ns: time until the next decision if it takes none.
    :param probe: the request tests how fast the worker is.
    """

    take: int
    skip: int = 0
    again_ns: int = 0
    probe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A phase in which a replica was slower than the fastest.

    :param weight: maximum ratio of its time to the fastest's.
    :param until_ns: 0 while it lasts.
    """

    worker: int
    weight: float
    since_ns: int
    until_ns: int = 0


@dataclass(slots=True)
class _Replica:
    """The router's state of one worker.

    :param running: by ticket, when a batch was taken and when it is expected to end.
    :param standing: waits at the queue since ``since_ns``.
    :param rung_ns: when it was woken, until it decides; 0 if it was not.
    :param back_ns: when a worker that is neither standing nor running is expected back.
    :param unseen: batches of others since its last one ended.
    """

    running: dict[int, tuple[int, int]] = field(default_factory=dict)
    standing: bool = False
    since_ns: int = 0
    back_ns: int = 0
    rung_ns: int = 0
    unseen: int = 0
    taken: float = 0.0
    noted_ns: int = 0
    ended_ns: int = 0
    slow_since_ns: int = 0
    slowest: float = 1.0


def left_to_faster(mine_ns: float, faster: Iterable[tuple[float, float]], batches: int) -> int | None:
    """How many waiting batches faster places would finish sooner than this worker; ``None`` for all.

    :param mine_ns: time until this worker would finish one.
    :param faster: for each faster place, time until it is free, and its time per batch, in nanoseconds.
    """
    ends = [(free + takes, takes) for free, takes in faster]
    heapq.heapify(ends)
    for ahead in range(batches):
        if not ends or ends[0][0] >= mine_ns:
            return ahead
        end, takes = ends[0]
        heapq.heapreplace(ends, (end + takes, takes))
    return None


class Router:
    """Tracks where workers are and how fast they are, and decides what a free worker takes.

    :param places: batches that a worker can serve at once; more than one if requests join between steps.
    :param on_shift: called when a replica becomes slow, and when it recovers.
    :param learns: if False, all workers count as equally fast, so a free worker takes what waits.
    :ivar held: times that a free worker left waiting requests to faster ones; ``probes`` times that one was tried.
    """

    def __init__(
        self,
        workers: int,
        places: int = 1,
        on_shift: Callable[[Shift], None] | None = None,
        *,
        learns: bool = True,
    ) -> None:
        self.pace = Pace(workers)
        self._replicas = [_Replica() for _ in range(workers)]
        self._standing: dict[int, None] = {}
        self.places = places
        self._on_shift = on_shift
        self._learns = learns
        self._ticket = self._came_ns = 0
        self._gap_ns = 0.0
        self.held = self.probes = 0

    def weight(self, worker: int) -> float:
        """Its time relative to the fastest, from its batches and from other processes on its device."""
        replica = self._replicas[worker]
        weight = self.pace.weights[worker]
        if replica.taken and replica.noted_ns > replica.ended_ns:  # more recent than its batches
            return weight / (1.0 - replica.taken)
        return weight

    def note_others(self, worker: int, others: float, now_ns: int) -> None:
        """Note the current share of its device, from 0 to 1, used by other processes."""
        replica = self._replicas[worker]
        replica.taken, replica.noted_ns = min(max(others, 0.0), _MOST_TAKEN), now_ns

    def came(self, now_ns: int) -> None:
        if self._came_ns:
            gap = max(now_ns - self._came_ns, 0)
            self._gap_ns += (gap - self._gap_ns) / _ARRIVALS if self._gap_ns else float(gap)
        self._came_ns = now_ns

    def stands(self, worker: int, now_ns: int) -> None:
        """A worker arrived at the queue."""
        replica = self._replicas[worker]
        replica.standing, replica.since_ns, replica.rung_ns = True, now_ns, 0
        self._standing[worker] = None

    def leaves(self, worker: int, now_ns: int) -> None:
        """A worker left the queue, with a batch (:meth:`took`) or without one."""
        replica = self._replicas[worker]
        replica.standing = False
        self._standing.pop(worker, None)
        replica.back_ns = now_ns + round(self.weight(worker) * self.pace.expected_ns(1))

    def took(self, worker: int, now_ns: int, *, size: int, longest: int) -> int:
        """A worker begins a batch; returns its ticket."""
        self._ticket += 1
        expected = self.weight(worker) * self.pace.expected_ns(size, longest)
        self._replicas[worker].running[self._ticket] = (now_ns, now_ns + round(expected))
        return self._ticket

    def ended(self, worker: int, ticket: int, now_ns: int, *, size: int, longest: int, total: int) -> None:
        """A batch of ``size`` served requests ended; nothing is learned from 0."""
        replica = self._replicas[worker]
        begun = replica.running.pop(ticket, None)
        if begun is None or size < 1 or not self._learns:
            return
        for other in self._replicas:
            other.unseen += 1
        replica.unseen, replica.ended_ns = 0, now_ns
        self.pace.learn(worker, size=size, longest=longest, total=total, took_ns=max(now_ns - begun[0], 1))
        if self._on_shift is not None:
            self._report_shifts(now_ns, self.pace.weights, self._on_shift)

    def looks(self, worker: int) -> None:
        """A worker at the queue is awake."""
        self._replicas[worker].rung_ns = 0

    def ring(self, now_ns: int) -> int | None:
        """The worker to wake now; ``None`` if all are awake, or none is at the queue."""
        worker = self.best_standing()
        if worker is not None:
            self._replicas[worker].rung_ns = max(now_ns, 1)
        return worker

    def best_standing(self) -> int | None:
        """The first of the workers asleep at the queue: one due for a trial, else the fastest."""
        chosen, least = None, (float("inf"), 0.0)
        for worker in self._standing:
            weight, replica = self.weight(worker), self._replicas[worker]
            if replica.rung_ns:  # already waking up
                continue
            if self._to_be_tried(worker, weight):
                return worker
            # Among equals, the one that waited longest on the device that others use least.
            if (weight, replica.taken) < least:
                chosen, least = worker, (weight, replica.taken)
        return chosen

    def decide(self, worker: int, *, waiting: int, most: int, due_ns: int, now_ns: int) -> RoutingDecision:
        """Decide what a worker that is free now takes.

        :param waiting: requests in the queue, at least one; ``most`` of them fill a batch.
        :param due_ns: since when the first of them may leave.
        """
        mine = self.weight(worker)
        if mine == 1.0:
            return RoutingDecision(most)
        each = most if self.places == 1 else 1
        unit = self.pace.expected_ns(min(waiting, each))
        quicker = [other for other in range(len(self._replicas)) if self.weight(other) < mine]
        takes_here = mine * unit * self._worth(quicker, most)
        faster = [
            (free, self.weight(other) * unit)
            for other in quicker
            for free in self._free_in(self._replicas[other], due_ns, now_ns)
        ]
        # A late worker is expected to take as long again.
        late = ((abs(free), takes) for free, takes in faster)
        ahead = left_to_faster(takes_here, late, -(-waiting // each))
        if ahead is not None:
            return RoutingDecision(min(most, waiting - ahead * each), skip=ahead * each)
        if self._to_be_tried(worker, mine):
            return RoutingDecision(1, skip=waiting - 1, probe=True)
        self.held += 1
        # At that time the first of them is so late that it is no longer expected to be sooner.
        flips = min(free + takes_here - takes for free, takes in faster)
        return RoutingDecision(0, again_ns=max(round(flips), LEAST_WAIT_NS))

    def not_now(self, worker: int) -> None:
        """Postpone a trial: there was no suitable request for it."""
        self._replicas[worker].unseen = PROBE_EVERY - PROBE_AGAIN

    def series(self) -> dict[str, float]:
        """The state, as sampled series of the run."""
        shown = range(min(len(self._replicas), _SAMPLED))
        weights = {f"runner.worker_{k}.weight": self.weight(k) for k in shown}
        return {**weights, "runner.left_to_faster": self.held, "runner.probes": self.probes}

    def close(self, now_ns: int) -> None:
        """Report replicas that are still slow at the end."""
        if self._on_shift is not None:
            self._report_shifts(now_ns, [1.0] * len(self._replicas), self._on_shift)

    def _worth(self, quicker: Sequence[int], most: int) -> float:
        """How much of its own time a slow worker's batch is worth to the queue, from 0 to 1.

        A batch on a fast worker delays all later arrivals until the worker runs out of work: the more, the closer the
        fast workers are to their capacity. Half of their load is deducted; in simulations of two and four workers
        this is as good for the mean as all of it, and better for the tail.
        """
        batch = most if self.places == 1 else self.places
        each_ns = self.pace.expected_ns(batch) / batch
        if not self._gap_ns or not each_ns:
            return 1.0
        capacity = sum(1.0 / self.weight(other) for other in quicker) / each_ns
        return max(1.0 - 0.5 / (self._gap_ns * capacity), 0.0) if capacity else 1.0

    def _free_in(self, replica: _Replica, due_ns: int, now_ns: int) -> list[float]:
        """Nanoseconds until each of its places is expected to take a batch; negative if overdue."""
        ends = [end for _, end in replica.running.values()]
        free = self.places - len(ends)
        if replica.standing:
            ends += [replica.rung_ns or max(due_ns, replica.since_ns)] * free
        elif self.places > 1 and ends:  # between two of its steps
            ends += [max(due_ns, replica.ended_ns)] * free
        elif not ends:
            ends += [max(replica.back_ns, due_ns)] * free
        return [end - now_ns for end in ends]

    def _to_be_tried(self, worker: int, weight: float) -> bool:
        unseen = self._replicas[worker].unseen
        if weight == 1.0 or unseen < PROBE_AGAIN:
            return False
        return unseen >= PROBE_EVERY or self.pace.speeds[worker].recovering

    def _report_shifts(self, now_ns: int, weights: Sequence[float], on_shift: Callable[[Shift], None]) -> None:
        for worker, replica in enumerate(self._replicas):
            weight, until_ns = weights[worker], 0
            if weight > 1.0:
                if replica.slow_since_ns:
                    replica.slowest = max(replica.slowest, weight)
                    continue
                replica.slow_since_ns, replica.slowest = now_ns, weight
            elif replica.slow_since_ns:
                until_ns = now_ns
            else:
                continue
            since_ns = replica.slow_since_ns
            on_shift(Shift(worker=worker, weight=replica.slowest, since_ns=since_ns, until_ns=until_ns))
            if until_ns:
                replica.slow_since_ns = 0
