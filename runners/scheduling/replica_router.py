"""Which of several replicas serves what waits, where they are not equally fast.

Free workers that take whatever waits are simple and never idle, but one that is three times slower takes every batch
that it is free for, also where a fast one would have been free a moment later and done with it sooner (the
slow-server problem: Larsen and Agrawala 1983; Lin and Kumar, Optimal control of a queueing system with two
heterogeneous servers, 1984). A slow server is worth using above a length of the queue.

Here that length follows from what is known: a free worker takes a batch where it is expected to end it no later than
the faster ones would, each of which takes from the head of the queue whenever it is free. Where they would end the
first few sooner, it leaves them those and takes what comes behind. What a batch on a fast worker costs those that
come later counts, too, so that less is left to it under load.

How long a worker is waited for is bounded: one that is overdue is expected to take as long again as it is late, so
that nobody is left to it for more than twice the time by which it is faster, dead or alive.

Nothing here has a clock or a lock: every method takes the time, and its caller keeps threads apart.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from latfix.runners.scheduling.replica_speed import Pace

#: Batches of the others after which one that is not used is given a request, to see whether it is still slow; and
#: after one that it was quick with.
PROBE_EVERY, PROBE_AGAIN = 200, 20
#: A worker that holds back looks again after so long at least.
LEAST_WAIT_NS = 200_000
#: Workers whose weight is sampled, ten times a second each; of others, notes tell when they were slow.
_SAMPLED = 32
#: Arrivals over which their rate is averaged.
_ARRIVALS = 64
#: The share of a device that others are thought to have at most.
_MOST_TAKEN = 0.9


@dataclass(frozen=True, slots=True)
class Choice:
    """What a free worker does.

    :param take: so many requests at most; 0 to leave what waits to faster ones.
    :param skip: requests at the head that are left to them.
    :param again_ns: after which it looks again, where it takes none.
    :param probe: it is given one to see how fast it is.
    """

    take: int
    skip: int = 0
    again_ns: int = 0
    probe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A replica was slower than the fastest for a while.

    :param weight: how many times, at most.
    :param until_ns: 0 while it lasts.
    """

    worker: int
    weight: float
    since_ns: int
    until_ns: int = 0


@dataclass(slots=True)
class _Replica:
    """One worker as the router sees it.

    :param running: by ticket, when a batch was taken and when it is expected to end.
    :param standing: before the queue, since ``since_ns``.
    :param rung_ns: when it was woken, until it looks; 0 where it was not.
    :param back_ns: when one that is neither standing nor running is expected back.
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
    """How many of the batches that wait would be ended by faster places sooner than here; ``None`` for all.

    :param mine_ns: in which one would be ended here.
    :param faster: of each faster place, in how many nanoseconds it is free, and how long a batch takes there.
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
    """Who is where, how fast everybody is, and what a free worker does.

    :param places: batches that a worker can have under way; more than one where requests join between steps.
    :param on_shift: called when a replica becomes slow, and when it has recovered.
    :param learns: otherwise all count as equally fast, so that a free worker takes what waits.
    :ivar held: how often a free worker left to faster ones what waited; ``probes`` how often one was tried.
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
        """How many times longer it takes than the fastest, by its batches and by who else is on its device."""
        replica = self._replicas[worker]
        weight = self.pace.weights[worker]
        if replica.taken and replica.noted_ns > replica.ended_ns:  # newer than its batches
            return weight / (1.0 - replica.taken)
        return weight

    def note_others(self, worker: int, others: float, now_ns: int) -> None:
        """The share of its device that other processes had, from 0 to 1, as of now."""
        replica = self._replicas[worker]
        replica.taken, replica.noted_ns = min(max(others, 0.0), _MOST_TAKEN), now_ns

    def came(self, now_ns: int) -> None:
        """A request was put into the queue."""
        if self._came_ns:
            gap = max(now_ns - self._came_ns, 0)
            self._gap_ns += (gap - self._gap_ns) / _ARRIVALS if self._gap_ns else float(gap)
        self._came_ns = now_ns

    def stands(self, worker: int, now_ns: int) -> None:
        """A worker came before the queue."""
        replica = self._replicas[worker]
        replica.standing, replica.since_ns, replica.rung_ns = True, now_ns, 0
        self._standing[worker] = None

    def leaves(self, worker: int, now_ns: int) -> None:
        """It left the queue, with a batch (:meth:`took`) or with none."""
        replica = self._replicas[worker]
        replica.standing = False
        self._standing.pop(worker, None)
        replica.back_ns = now_ns + round(self.weight(worker) * self.pace.expected_ns(1))

    def took(self, worker: int, now_ns: int, *, size: int, longest: int) -> int:
        """It begins a batch; returns its ticket."""
        self._ticket += 1
        expected = self.weight(worker) * self.pace.expected_ns(size, longest)
        self._replicas[worker].running[self._ticket] = (now_ns, now_ns + round(expected))
        return self._ticket

    def ended(self, worker: int, ticket: int, now_ns: int, *, size: int, longest: int, total: int) -> None:
        """A batch ended.

        :param size: requests that were served in it; none is nothing to learn from.
        """
        replica = self._replicas[worker]
        begun = replica.running.pop(ticket, None)
        if begun is None or size < 1 or not self._learns:
            return
        for other in self._replicas:
            other.unseen += 1
        replica.unseen, replica.ended_ns = 0, now_ns
        self.pace.learn(worker, size=size, longest=longest, total=total, took_ns=max(now_ns - begun[0], 1))
        if self._on_shift is not None:
            self._report_shifts(now_ns)

    def looks(self, worker: int) -> None:
        """A worker that stands there is awake."""
        self._replicas[worker].rung_ns = 0

    def ring(self, now_ns: int) -> int | None:
        """Who of those before the queue is to be woken now; ``None`` where all have been, or nobody stands there."""
        worker = self.best_standing()
        if worker is not None:
            self._replicas[worker].rung_ns = max(now_ns, 1)
        return worker

    def best_standing(self) -> int | None:
        """Who of those asleep before the queue comes first: one that is to be tried, or else the fastest."""
        chosen, least = None, (float("inf"), 0.0)
        for worker in self._standing:
            weight, replica = self.weight(worker), self._replicas[worker]
            if replica.rung_ns:  # it is on its way
                continue
            if self._to_be_tried(worker, weight):
                return worker
            # Of equals, the one that has stood the longest, whose device others use least.
            if (weight, replica.taken) < least:
                chosen, least = worker, (weight, replica.taken)
        return chosen

    def decide(self, worker: int, *, waiting: int, most: int, due_ns: int, now_ns: int) -> Choice:
        """What a worker does that could take a batch now.

        :param waiting: requests in the queue, at least one; ``most`` of them make a batch.
        :param due_ns: since when the first of them may leave.
        """
        mine = self.weight(worker)
        if mine == 1.0:
            return Choice(most)
        each = most if self.places == 1 else 1
        unit = self.pace.expected_ns(min(waiting, each))
        quicker = [other for other in range(len(self._replicas)) if self.weight(other) < mine]
        takes_here = mine * unit * self._worth(quicker, most)
        faster = [
            (free, self.weight(other) * unit)
            for other in quicker
            for free in self._free_in(self._replicas[other], due_ns, now_ns)
        ]
        # Whoever is late is expected to take as long again.
        late = ((abs(free), takes) for free, takes in faster)
        ahead = left_to_faster(takes_here, late, -(-waiting // each))
        if ahead is not None:
            return Choice(min(most, waiting - ahead * each), skip=ahead * each)
        if self._to_be_tried(worker, mine):
            return Choice(1, skip=waiting - 1, probe=True)
        self.held += 1
        # From then on the first of them is so late that it is not expected to be sooner.
        flips = min(free + takes_here - takes for free, takes in faster)
        return Choice(0, again_ns=max(round(flips), LEAST_WAIT_NS))

    def not_now(self, worker: int) -> None:
        """A trial was put off: there was nothing that it could be given."""
        self._replicas[worker].unseen = PROBE_EVERY - PROBE_AGAIN

    def series(self) -> dict[str, float]:
        """Its state, as sampled series of the run."""
        shown = range(min(len(self._replicas), _SAMPLED))
        found = {f"runner.worker_{k}.weight": self.weight(k) for k in shown}
        return {**found, "runner.left_to_faster": self.held, "runner.probes": self.probes}

    def close(self, now_ns: int) -> None:
        """Report replicas that are slow to the end."""
        for worker, replica in enumerate(self._replicas):
            if replica.slow_since_ns and self._on_shift is not None:
                self._on_shift(self._shift(worker, replica, now_ns))
                replica.slow_since_ns = 0

    def _worth(self, quicker: Sequence[int], most: int) -> float:
        """How much of its own time a slow worker's batch is worth to the queue, from 0 to 1.

        A batch that a fast worker serves holds up all that come before it has run out of work: the more, the closer
        the fast ones are to their capacity. Half of their load is taken off, which in simulations of two and four
        workers is as good for the mean as all of it, and better for the tail.
        """
        batch = most if self.places == 1 else self.places
        each_ns = self.pace.expected_ns(batch) / batch
        if not self._gap_ns or not each_ns:
            return 1.0
        capacity = sum(1.0 / self.weight(other) for other in quicker) / each_ns
        return max(1.0 - 0.5 / (self._gap_ns * capacity), 0.0) if capacity else 1.0

    def _free_in(self, replica: _Replica, due_ns: int, now_ns: int) -> list[float]:
        """In how many nanoseconds each of its places is expected to take something; below 0 where that is past."""
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

    def _report_shifts(self, now_ns: int) -> None:
        for worker, replica in enumerate(self._replicas):
            weight = self.pace.weights[worker]
            if weight > 1.0 and not replica.slow_since_ns:
                replica.slow_since_ns, replica.slowest = now_ns, weight
                assert self._on_shift is not None, "asked before"
                self._on_shift(self._shift(worker, replica, 0))
            elif weight > 1.0:
                replica.slowest = max(replica.slowest, weight)
            elif replica.slow_since_ns:
                assert self._on_shift is not None, "asked before"
                self._on_shift(self._shift(worker, replica, now_ns))
                replica.slow_since_ns = 0

    @staticmethod
    def _shift(worker: int, replica: _Replica, until_ns: int) -> Shift:
        return Shift(worker=worker, weight=replica.slowest, since_ns=replica.slow_since_ns, until_ns=until_ns)
