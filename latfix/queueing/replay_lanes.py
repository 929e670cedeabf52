"""Many replays of one queue at once: every replay, and every busy cycle of it, is a lane of arrays.

A queue that runs empty forgets its past, so its busy cycles can be replayed side by side. One step takes up the next
batch of every lane; the number of steps is the length of the longest cycle, not of the run. The measurement suggests
where the queue ran empty; cycles that merge in a variant are joined, and only those are replayed again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfix.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """A queue served first come, first served, under ``p`` variants of its service.

    :param workers: servers of the one queue.
    :param max_batch: most requests that a server takes at once.
    :param window: ``(p,)`` nanoseconds that a batch is held open after its head arrived.
    :param reference: ``(max_batch + 1,)`` nanoseconds of service by batch size.
    """

    workers: int
    max_batch: int
    window: Floats
    reference: Floats


def lindley(ready: Floats, service: Floats) -> tuple[Floats, Floats]:
    """One server without batching: when each job begins, and the slack that separates busy cycles.

    Jobs are served in order along the last axis. ``begin = max(ready, end of the previous job)`` (Lindley 1952)
    is a running maximum of the slack ``ready - all service before``.
    """
    before = np.cumsum(service, axis=-1) - service
    slack = ready - before
    return np.maximum.accumulate(slack, axis=-1) + before, slack


def cycle_starts(slack: Floats) -> Ints:
    """For each job, along the last axis, the job that began its busy cycle: one whose slack is a new maximum."""
    n = slack.shape[-1]
    fresh = np.ones(slack.shape, dtype=bool)
    fresh[..., 1:] = slack[..., 1:] >= np.maximum.accumulate(slack, axis=-1)[..., :-1]
    return np.maximum.accumulate(np.where(fresh, np.arange(n), 0), axis=-1)


def service_starts(lanes: Lanes, ready: Floats, load: Floats, cycle_starts: Ints) -> tuple[Floats, Floats]:
    """When each request's batch is taken up and finished.

    :param ready: ``(p, n)`` when requests reach the queue, ascending in each row.
    :param load: ``(p, n)`` service that each adds to its batch beyond the reference.
    :param cycle_starts: positions before which the queue is expected to be empty; 0 first.
    :returns: two arrays ``(p, n)`` of nanoseconds.
    """
    p, n = ready.shape
    if not n:
        return np.empty((p, 0)), np.empty((p, 0))
    if lanes.workers == 1 and lanes.max_batch == 1:
        service = lanes.reference[1] + load
        opened, _ = lindley(ready, service)
        return opened, opened + service
    at_hand = _AtHand.of(lanes, ready, load)
    starts = np.unique(np.concatenate([[0], cycle_starts]))
    last, again, reach = np.empty((p, len(starts))), np.ones(len(starts), dtype=bool), 1
    while again.any():
        last[:, again] = _run(lanes, at_hand, starts[again], np.append(starts[1:], n)[again])
        # A cycle that still runs when the next one begins would delay it: they are one.
        running = np.flatnonzero(np.any(last[:, :-1] > ready[:, starts[1:]], axis=0))
        joined = np.zeros(len(starts), dtype=bool)
        for ahead in range(1, reach + 1):
            joined[np.minimum(running + ahead, len(starts) - 1)] = True
        joined[0] = False
        again = np.zeros(len(starts), dtype=bool)
        again[np.maximum.accumulate(np.where(joined, 0, np.arange(len(starts))))[joined]] = True
        starts, last, again, reach = starts[~joined], last[:, ~joined], again[~joined], 2 * reach
    return at_hand.results(n)


@dataclass(frozen=True, slots=True, kw_only=True)
class _AtHand:
    """Rows of all variants laid end to end, each followed by infinite times.

    :param ready: flat, ``stride`` per variant; ``running`` the total load before each position.
    :param head: where a batch begins; ``opened`` and ``ended`` are stored at its head.
    """

    variants: int
    stride: int
    ready: Floats
    running: Floats
    head: Bools
    opened: Floats
    ended: Floats

    @classmethod
    def of(cls, lanes: Lanes, ready: Floats, load: Floats) -> _AtHand:
        p, n = ready.shape
        stride = n + lanes.max_batch + 1
        padded, running = np.full((p, stride), np.inf), np.zeros((p, stride))
        padded[:, :n] = ready
        np.cumsum(load, axis=1, out=running[:, 1 : n + 1])
        size = p * stride
        return cls(
            variants=p,
            stride=stride,
            ready=padded.ravel(),
            running=running.ravel(),
            head=np.zeros(size, dtype=bool),
            opened=np.empty(size),
            ended=np.empty(size),
        )

    def forget(self, starts: Ints, ends: Ints) -> None:
        """Remove the batches of cycles."""
        steps = np.zeros(self.stride + 1, np.int64)
        steps[starts] += 1
        steps[ends] -= 1
        inside = np.cumsum(steps[:-1]) > 0
        self.head.reshape(self.variants, self.stride)[:, inside] = False

    def results(self, n: int) -> tuple[Floats, Floats]:
        """When each request's batch was taken up and finished, ``(p, n)``."""
        heads = np.flatnonzero(self.head)
        size = np.diff(np.append(heads, len(self.head)))
        shape = self.variants, self.stride
        opened, ended = (np.repeat(values[heads], size).reshape(shape)[:, :n] for values in (self.opened, self.ended))
        return opened, ended


def _run(lanes: Lanes, at_hand: _AtHand, starts: Ints, ends: Ints) -> Floats:
    """Replay cycles of every variant; returns when each was over, ``(p, cycles)``.

    A cycle that overruns takes requests from the next one, and is then over later than that begins.
    """
    p, most = at_hand.variants, lanes.max_batch
    ready, running, reference = at_hand.ready, at_hand.running, lanes.reference
    at_hand.forget(starts, ends)
    row = np.repeat(np.arange(p), len(starts))
    at = (np.arange(p)[:, None] * at_hand.stride + starts).ravel()
    stop = (np.arange(p)[:, None] * at_hand.stride + ends).ravel()
    lane = np.arange(len(at))
    held_open = bool((lanes.window > 0).any()) and most > 1
    window = lanes.window[row] if held_open else np.zeros(len(at))
    free = np.full((len(at), lanes.workers), -np.inf)
    last = np.full(len(at), -np.inf)
    several = lanes.workers > 1
    while len(at):
        came = ready[at]
        if several:
            server, pick = np.argmin(free, axis=1), np.arange(len(at))
            begin = np.maximum(came, free[pick, server])
        else:
            begin = np.maximum(came, free[:, 0])
        upto = _beyond(ready, begin, at + 1, most - 1)
        close = begin
        if held_open:
            close, upto = _hold(ready, at, upto, begin, came + window, most)
        end = close + reference[upto - at] + (running[upto] - running[at])
        at_hand.head[at] = True
        at_hand.opened[at], at_hand.ended[at] = begin, end
        if several:
            free[pick, server] = end
            last[lane] = np.maximum(last[lane], end)
        else:
            free[:, 0] = end
            last[lane] = end
        more = upto < stop
        if more.all():
            at = upto
        else:
            at, stop, lane, free = upto[more], stop[more], lane[more], free[more]
            window = window[more] if held_open else window
    return last.reshape(p, len(starts))


def _hold(ready: Floats, at: Ints, upto: Ints, begin: Floats, due: Floats, most: int) -> tuple[Floats, Ints]:
    """Hold batches open until they are full or due; returns when each closes, and where its members end."""
    held = (upto < at + most) & (due > begin)
    later = np.where(held, _beyond(ready, due, at + 1, most - 1), upto)
    full = held & (later - at == most)
    return np.where(full, ready[later - 1], np.where(held, due, begin)), later


def _beyond(values: Floats, limit: Floats, low: Ints, most: int) -> Ints:
    """In each lane, the first of ``most`` positions from ``low`` whose value exceeds the limit, or one past them."""
    step = 1 << max(most.bit_length() - 1, 0) if most else 0
    position, high = low, low + most
    while step:
        ahead = position + step
        fits = (ahead <= high) & (values[np.minimum(ahead, high) - 1] <= limit)
        position = np.where(fits, ahead, position)
        step >>= 1
    return position
