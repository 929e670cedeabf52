"""Replays a queue with the recorded batches: membership and order stay, only times move.

For orders and limits that a record cannot reproduce (by expected work as the service estimated it, batch limits that
a controller moved, requests that join between steps). With fixed membership, a batch closes at

    open = max(end of the worker's last batch, first arrival)
    close = max(open + how long it was held, arrival of every member that joined while it was open)

and ends after its service. This recursion of maxima and sums along each worker's batches is solved at once by a
running maximum (Lindley 1952; Baccelli, Cohen, Olsder and Quadrat, Synchronization and Linearity, 1992). It has no
jumps: no request can miss its batch.

The first arrival is taken over all requests that the worker has yet to serve, in this batch or a later one. Members
that waited when their batch was taken up do not delay it in a replay in which it is taken up sooner. They overtook
others because there was a backlog: if the batch waited for them, the requests behind it would wait for one that came
after them, and the backlog's cause would be attributed to traffic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.queueing.queue_simulator import Policy
from latfix.queueing.replay_lanes import cycle_starts, lindley
from latfix.queueing.start_derivatives import Served


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Batches as recorded: ``n`` requests in ``m`` batches that have members.

    :param members: requests of the batches, grouped; ``first`` ``(m,)`` where each group begins.
    :param worker: ``(m,)`` the worker that ran it.
    :param opened: ``(m,)`` when it was opened, which orders a worker's batches.
    :param hold: ``(m,)`` nanoseconds that it was held open; 0 if it closed because it was full, or at once.
    :param joined: for each of ``members``, True if it arrived while its batch was open.
    """

    members: Ints
    first: Ints
    worker: Ints
    opened: Floats
    hold: Floats
    joined: Bools

    @classmethod
    def of(cls, batch_of: Ints, worker: Ints, opened: Ints, due: Ints, arrival: Ints) -> Recorded:
        """From a record's columns.

        :param batch_of: ``(n,)`` row of the request's batch, -1 without one.
        :param worker: of all batches; ``opened`` when a worker took it up, ``due`` when it had to close.
        :param arrival: ``(n,)`` when requests reached the queue.
        """
        members = np.flatnonzero(batch_of >= 0)
        members = members[np.argsort(batch_of[members], kind="stable")]
        rows, first = np.unique(batch_of[members], return_index=True)
        if not len(members):
            nothing = np.zeros(0)
            return cls(
                members=members, first=first, worker=rows, opened=nothing, hold=nothing, joined=nothing.astype(bool)
            )
        last = np.maximum.reduceat(arrival[members], first)
        joined = arrival[members] > opened[batch_of[members]]
        timed = due[rows] > np.maximum(opened[rows], last)
        return cls(
            members=members,
            first=first.astype(np.int64),
            worker=worker[rows],
            opened=opened[rows].astype(np.float64),
            hold=np.where(timed, due[rows] - opened[rows], 0).astype(np.float64),
            joined=np.asarray(joined, dtype=bool),
        )

    @property
    def size(self) -> Ints:
        """``(m,)`` how many requests each batch had."""
        return np.diff(np.append(self.first, len(self.members)))

    def chains(self) -> list[Ints]:
        """Each worker's batches, in the order in which it ran them."""
        order = np.lexsort((self.opened, self.worker))
        if not len(order):
            return []
        return np.split(order, np.flatnonzero(np.diff(self.worker[order])) + 1)

    def serve(
        self, policy: Policy, arrival: Floats, arrival_moves: Floats, extra: Floats, window_column: int, alpha: float
    ) -> Served:
        """One replay with derivatives, as by :func:`latfix.queueing.start_derivatives.serve_each`.

        Requests without a batch are taken up when they arrive, and add nothing.
        """
        columns = extra.shape[1]
        ended, end_moves = arrival.copy(), arrival_moves.copy()
        begun, open_moves = arrival.copy(), arrival_moves.copy()
        if not len(self.first):
            return Served(open=begun, end=ended, open_moves=open_moves, end_moves=end_moves)
        at = arrival[self.members]
        joined = np.where(self.joined, at, -np.inf)  # the last below is minus infinity if no member joined
        first, last = np.minimum.reduceat(at, self.first), np.maximum.reduceat(joined, self.first)
        # The members that arrived first, and that joined last; arbitrary if none joined.
        opener = self._sorted(at)[self.first]
        latest = self._sorted(joined)[self.first + self.size - 1]
        brought = np.add.reduceat(extra[self.members], self.first, axis=0)
        held = (alpha if window_column >= 0 else 1.0) * self.hold
        service = (
            policy.reference[np.minimum(self.size, len(policy.reference) - 1)] + alpha * brought.sum(axis=1) + held
        )
        if window_column >= 0:
            brought[:, window_column] += self.hold
        opened, end = np.empty(len(first)), np.empty(len(first))
        opened_moves, ended_moves = np.empty((len(first), columns)), np.empty((len(first), columns))
        for chain in self.chains():
            source = _first_to_come(first[chain])
            come, come_moves = first[chain][source], arrival_moves[opener[chain][source]]
            opens = np.maximum(come, last[chain] - held[chain])
            bound = opens > come
            moves = np.where(bound[:, None], arrival_moves[latest[chain]], come_moves)
            if window_column >= 0:
                moves[bound, window_column] -= self.hold[chain][bound]
            served, slack = lindley(opens, service[chain])
            begin = cycle_starts(slack)
            running = np.concatenate([np.zeros((1, columns)), np.cumsum(brought[chain], axis=0)])
            end[chain] = served + service[chain]
            ended_moves[chain] = running[1:] - running[begin] + moves[begin]
            free = np.concatenate([[-np.inf], end[chain][:-1]])
            before = np.concatenate([np.zeros((1, columns)), ended_moves[chain][:-1]])
            waits = free > come
            opened[chain] = np.where(waits, free, come)
            opened_moves[chain] = np.where(waits[:, None], before, come_moves)
        batch = np.repeat(np.arange(len(first)), self.size)
        begun[self.members], ended[self.members] = opened[batch], end[batch]
        open_moves[self.members], end_moves[self.members] = opened_moves[batch], ended_moves[batch]
        return Served(open=begun, end=ended, open_moves=open_moves, end_moves=end_moves)

    def _sorted(self, values: Floats) -> Ints:
        """Members by batch, in the order of ``values``."""
        return self.members[np.lexsort((values, np.repeat(np.arange(len(self.first)), self.size)))]


def _first_to_come(first: Floats) -> Ints:
    """For each batch of a chain, which of it and its successors has the member that arrived first."""
    backward = first[::-1]
    newest = np.where(backward <= np.minimum.accumulate(backward), np.arange(len(first)), 0)
    return np.asarray(len(first) - 1 - np.maximum.accumulate(newest)[::-1], dtype=np.int64)
