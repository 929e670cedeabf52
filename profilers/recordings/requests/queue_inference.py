"""The queue behind a log that only knows arrivals and ends: inferred where the log itself bears it out.

Where requests are served first come, first served by a fixed number of servers, each begins when it has arrived and
a server is free: the ends of those before it say when. What is left of its latency is then its service. Whether that
is so can be seen: requests that met an idle service show what service takes without any queue, and those that waited
must, by the assumed number of servers, have been served as long as they were. Where no number of servers bears that
out, no queue is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heapreplace

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.queueing.replay_lanes import lindley

_CANDIDATES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 64, 96, 128)
#: Requests that the number of servers is learned from, and those that must have waited and met an idle service.
_LEARNED, _LEAST_WAITED, _LEAST_IDLE = 60_000, 30, 30
#: By what factor quantiles of service may differ between those who waited and those who met an idle server.
_ALIKE = 1.3
_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
#: Of a typical latency, the share that arrivals must be known to.
_FINE = 0.5
_AT_ONCE = 500_000
#: First tokens that close come at one moment; half of all batches of prompts differ by at most this factor.
_SAME_MOMENT_NS, _ONE_LENGTH = 2_000_000, 1.5
#: Stretches of the log that services are compared within.
_PARTS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue served first come, first served.

    :param servers: how many requests are served at once.
    :param wait_ns: ``(n,)`` before service.
    :param waited: share of requests that waited.
    :param misfit: by what factor the two services differ most.
    :param slot_ns: what one request keeps a server for; ``None`` for its whole service.
    """

    servers: int
    wait_ns: Ints
    waited: float
    misfit: float
    slot_ns: float | None = None


def infer_queue(arrival: Ints, latency: Ints, resolution_ns: int) -> Queue | None:
    """The queue that a log shows; ``None`` where nobody waited, or no number of servers bears it out.

    :param arrival: ``(n,)`` ascending; ``latency`` ``(n,)`` nanoseconds.
    :param resolution_ns: to which arrivals are known.
    """
    n = min(len(arrival), _LEARNED)
    if n < 2 * _LEAST_IDLE or resolution_ns > _FINE * float(np.median(latency[:n])):
        return None
    sample, took = arrival[:n], latency[:n]
    met = in_flight(sample, took)
    fits = [
        (misfit, servers) for servers in _CANDIDATES if (misfit := _misfit(sample, took, met, servers)) is not None
    ]
    if not fits:
        return None
    misfit, servers = min(fits)
    if misfit > _ALIKE:
        return None
    wait = starts(arrival, arrival + latency, servers)
    wait -= arrival
    np.clip(wait, 0, latency, out=wait)
    return Queue(servers=servers, wait_ns=wait, waited=float(np.mean(wait > 0)), misfit=misfit)


def infer_prompt_queue(arrival: Ints, first_ns: Ints) -> Queue | None:
    """The queue before the first token of streams; ``None`` where nobody waited, or the recording does not show one.

    An engine computes the prompts of some requests together, a batch after the other: their first tokens come at one
    moment. Whoever had come before the batch ahead was done waited for it, and was then served as long as a batch
    takes, which must be about the same for all.

    :param arrival: ``(n,)`` ascending; ``first_ns`` ``(n,)`` from the arrival to the first token.
    """
    came = arrival + first_ns
    order = np.argsort(came, kind="stable")
    ends = came[order]
    batch = np.concatenate([[0], np.cumsum(np.diff(ends) > _SAME_MOMENT_NS)]) if len(ends) else np.zeros(0, np.int64)
    last = np.append(np.flatnonzero(np.diff(batch)), len(ends) - 1)
    ahead = np.concatenate([[arrival[0] if len(arrival) else 0], ends[last]])[batch]
    begin = np.empty(len(ends), np.int64)
    begin[order] = np.maximum(ahead, arrival[order])
    wait = begin - arrival
    service, waited = came - begin, wait > 0
    if np.count_nonzero(waited) < _LEAST_WAITED:
        return None
    low, middle, high = np.quantile(service[waited], (0.25, 0.5, 0.75))
    if low <= 0 or high > _ONE_LENGTH * low or float(np.median(wait[waited])) < middle:
        return None
    earliest, latest = np.quantile(first_ns[waited], (0.1, 0.9))
    if latest - earliest < middle:  # first tokens that all take the same came in no queue, however close they are
        return None
    if (
        np.count_nonzero(~waited) >= _LEAST_IDLE
        and not 1 / _ALIKE < float(np.median(service[~waited])) / middle < _ALIKE
    ):
        return None
    each = float(np.mean(np.bincount(batch)))
    return Queue(
        servers=1, wait_ns=wait, waited=float(np.mean(waited)), misfit=float(high / low), slot_ns=float(middle) / each
    )


def in_flight(arrival: Ints, latency: Ints) -> Ints:
    """``(n,)`` how many earlier requests had not ended when each arrived."""
    ended = np.sort(arrival + latency)
    return np.asarray(np.arange(len(arrival)) - np.searchsorted(ended, arrival, side="right"), dtype=np.int64)


def _misfit(arrival: Ints, latency: Ints, met: Ints, servers: int) -> float | None:
    """By what factor service with and without a wait differ, for a number of servers; ``None`` if nobody waited."""
    waited = met >= servers
    free = (met == 0) if np.count_nonzero(met == 0) >= _LEAST_IDLE else ~waited
    if np.count_nonzero(waited) < _LEAST_WAITED or np.count_nonzero(free) < _LEAST_IDLE:
        return None
    begin = starts(arrival, arrival + latency, servers)
    service = (latency - np.maximum(begin - arrival, 0)) / _course(latency, free)
    alone, behind = (np.quantile(service[rows], _QUANTILES) for rows in (free, waited))
    beside = ~waited & (met > 0)
    if (behind <= 0).any() or (alone <= 0).any():
        return None
    misfit = float(np.exp(np.abs(np.log(behind / alone)).max()))
    if np.count_nonzero(beside) >= _LEAST_WAITED:  # with a server free for it, company must not slow a request down
        together = np.quantile(service[beside], _QUANTILES)
        misfit = max(misfit, float(np.exp(np.abs(np.log(together / alone)).max())))
    return misfit


def _course(latency: Ints, free: Bools) -> Floats:
    """``(n,)`` what service took around each request by those who met a free server: services may slow with time."""
    n, rows = len(latency), np.flatnonzero(free)
    parts = np.array_split(rows, max(min(_PARTS, len(rows) // _LEAST_IDLE), 1))
    middles = [float(part.mean()) for part in parts]
    return np.asarray(np.interp(np.arange(n), middles, [float(np.median(latency[part])) for part in parts]))


def starts(arrival: Ints, end: Ints, servers: int) -> Ints:
    """``(n,)`` when each request was taken up: it had come, and all but ``servers - 1`` of those before had ended."""
    if servers == 1:
        free = np.maximum.accumulate(end)
        return np.asarray(np.maximum(arrival, np.concatenate([arrival[:1], free[:-1]])), dtype=np.int64)
    begin = np.empty(len(arrival), np.int64)
    least = int(arrival[0]) if len(arrival) else 0
    busy = [least] * servers  # the latest ends so far; the smallest of them is when a server was last free
    heapify(busy)
    for first in range(0, len(arrival), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        begun = []
        for came, ended in zip(arrival[part].tolist(), end[part].tolist(), strict=True):
            free_at = busy[0]
            begun.append(came if came > free_at else free_at)
            if ended > free_at:
                heapreplace(busy, ended)
        begin[part] = begun
    return begin


def waits_at_reference(arrival: Ints, service_ns: float, servers: int) -> Ints:
    """``(n,)`` what each would wait if every service took the same (Lindley 1952; Kiefer and Wolfowitz 1955).

    With equal services, the server that is free next is the one that was taken up ``servers`` requests ago, so that
    every ``servers``-th request waits in a line of its own.
    """
    wait = np.zeros(len(arrival), np.int64)
    for line in range(servers):
        rows = slice(line, None, servers)
        came = arrival[rows].astype(np.float64)
        begin, _ = lindley(came, np.full(len(came), service_ns))
        wait[rows] = np.maximum(np.rint(begin - came), 0)
    return wait


def cycle_begins(wait: Ints) -> Bools:
    """``(n,)`` whether each found the queue empty."""
    return np.asarray(wait <= 0)


def grew_for_good(arrival: Ints, wait: Ints, lasting_ns: float) -> Bools:
    """``(n,)`` whether the backlog in which each waited grew for so long that it is no burst's."""
    if not len(wait):
        return np.zeros(0, bool)
    begins = cycle_begins(wait)
    begins[0] = True
    first = np.flatnonzero(begins)
    cycle = np.cumsum(begins) - 1
    peak = np.maximum.reduceat(wait, first)
    at_peak = np.flatnonzero(wait >= peak[cycle])
    last = np.zeros(len(first), np.int64)
    last[cycle[at_peak]] = at_peak
    grew = (arrival[last] - arrival[first] >= lasting_ns) & (peak > 0)
    return np.asarray(grew[cycle])


def chance_wait_ns(n: int, span_ns: float, service_ns: float, servers: int, tail: float, seed: int) -> Floats:
    """What independent callers at the same rate make the slowest wait by chance: 39 of 40 runs stay below.

    :param tail: the share of requests that the tail holds.
    """
    runs, many = 40, int(min(n, 4_000))
    rng = np.random.default_rng(seed)
    gap = span_ns / max(n - 1, 1)
    means = np.zeros(runs)
    for run in range(runs):
        arrival = np.minimum(np.cumsum(rng.exponential(gap, many)), 2.0**62).astype(np.int64)
        wait = np.sort(waits_at_reference(arrival, service_ns, servers))
        means[run] = wait[int(many * (1 - tail)) :].mean() if many else 0.0
    return np.asarray(np.quantile(means, 0.975))
