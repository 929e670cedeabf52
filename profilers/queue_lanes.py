"""Many replays of one queue at once: every replay, and every busy cycle of it, is a lane of arrays.

A queue that runs empty forgets what was before, so that its busy cycles can be replayed side by side. One step
takes up the next batch of every lane; the number of steps is the length of the longest cycle, not of the run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Cycles that turn out to run into each other are joined and replayed again, so many times at most.
_JOINS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """A queue served first come, first served, under ``p`` variants of its service.

    :param workers: servers that take from the one queue.
    :param max_batch: most requests that a server takes at once.
    :param window: ``(p,)`` nanoseconds that a batch is held open after its head came.
    :param reference: ``(max_batch + 1,)`` nanoseconds of service by batch size.
    """

    workers: int
    max_batch: int
    window: Floats
    reference: Floats


def taken_up(lanes: Lanes, ready: Floats, load: Floats, cycle_starts: Ints) -> tuple[Floats, Floats]:
    """When each request's batch was taken up and finished.

    :param ready: ``(p, n)`` when requests reach the queue, ascending in each row.
    :param load: ``(p, n)`` service that each brings to its batch beyond the reference.
    :param cycle_starts: positions before which the queue is thought to have run empty; 0 first.
    :returns: two arrays ``(p, n)`` of nanoseconds.
    """
    p, n = ready.shape
    opened, ended = np.full((p, n), np.nan), np.empty((p, n))
    if not n:
        return opened, ended
    if lanes.workers == 1 and lanes.max_batch == 1:
        service = lanes.reference[1] + load
        before = np.cumsum(service, axis=1) - service
        opened = np.maximum.accumulate(ready - before, axis=1) + before
        return opened, opened + service
    # With one shape for every row one position fits all rows; positions are flat from here on.
    starts = np.unique(np.concatenate([[0], cycle_starts]))
    for attempt in range(_JOINS + 1):
        if attempt == _JOINS:
            starts = np.zeros(1, np.int64)
        last = _run(lanes, ready, load, starts, opened, ended)
        # What a cycle left running when the next one begins would have made that one wait.
        running = np.any(last[:, :-1] > ready[:, starts[1:]], axis=0)
        if not running.any():
            break
        starts = starts[np.concatenate([[True], ~running])]
    return opened, ended


def _run(lanes: Lanes, ready: Floats, load: Floats, starts: Ints, opened: Floats, ended: Floats) -> Floats:
    """Fill ``opened`` and ``ended``; returns when each cycle of each row was over, ``(p, cycles)``."""
    p, n = ready.shape
    most = lanes.max_batch
    flat, running = ready.ravel(), np.concatenate([np.zeros((p, 1)), np.cumsum(load, axis=1)], axis=1).ravel()
    ends = np.append(starts[1:], n)
    row = np.repeat(np.arange(p), len(starts))
    base = row * n
    at = base + np.tile(starts, p)
    stop = base + np.tile(ends, p)
    lane = np.arange(len(at))
    window = lanes.window[row]
    free = np.full((len(at), lanes.workers), -np.inf)
    last = np.full(len(at), -np.inf)
    head = np.zeros(p * n, dtype=bool)
    flat_open, flat_end = np.empty(p * n), np.empty(p * n)
    while len(at):
        server = np.argmin(free, axis=1) if lanes.workers > 1 else np.zeros(len(at), np.int64)
        pick = np.arange(len(at))
        begin = np.maximum(flat[at], free[pick, server])
        top = np.minimum(at + most, stop)
        upto = _bisect(flat, begin, at + 1, top)
        close = begin
        held = (window > 0) & (upto < at + most)
        if held.any():
            due = flat[at] + window
            held &= due > begin
            later = np.where(held, _bisect(flat, due, upto, top), upto)
            full = later - at == most
            close = np.where(held, np.where(full, flat[later - 1], due), begin)
            upto = later
        end = close + lanes.reference[upto - at] + running[upto + row] - running[at + row]
        head[at] = True
        flat_open[at], flat_end[at] = begin, end
        free[pick, server] = end
        last[lane] = np.maximum(last[lane], end)
        more = upto < stop
        at, stop, row, lane = upto[more], stop[more], row[more], lane[more]
        window, free = window[more], free[more]
    came = np.maximum.accumulate(np.where(head, np.arange(p * n), 0))
    opened[:], ended[:] = flat_open[came].reshape(p, n), flat_end[came].reshape(p, n)
    return last.reshape(p, len(starts))


def _bisect(values: Floats, limit: Floats, low: Ints, high: Ints) -> Ints:
    """In each lane, the first position in ``[low, high]`` whose value exceeds the limit; values ascend there."""
    low, high = low.copy(), high.copy()
    span = int((high - low).max(initial=0))
    while span > 0:
        middle = (low + high) // 2
        open_ = low < high
        inside = open_ & (values[np.minimum(middle, len(values) - 1)] <= limit)
        low = np.where(inside, middle + 1, low)
        high = np.where(open_ & ~inside, middle, high)
        span //= 2
    return low
