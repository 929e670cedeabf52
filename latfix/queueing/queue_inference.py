"""Infers the queue behind arrivals and ends, of a log or of a service seen from outside, if they confirm it.

With a fixed number of servers and first-come, first-served order, a request begins when it has arrived and a server
is free, which the ends of earlier requests show. The remainder of its latency is service. The log confirms a number
of servers if requests that waited have the same service as requests that found the service idle. Otherwise no queue
is assumed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.queueing.replay_lanes import lindley

_CANDIDATES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 64, 96, 128)
#: Requests from which the number of servers is inferred; how many must have waited, and found a free server.
_SAMPLE, _LEAST_WAITED, _LEAST_FREE = 60_000, 30, 3
#: Largest factor between services with and without a wait, beyond what chance produces; the mean over quantiles.
#: A busy machine may serve more slowly, but hardly faster: then the waits are too long.
_ALIKE, _FASTER = 1.3, 1.15
_QUANTILES = np.linspace(0.1, 0.9, 17)
#: A number of servers this close to the best one (logarithm of the factor) is preferred if it is smaller.
_AS_GOOD = 0.02
#: Largest share of the requests that waited which may end before a server was free for them.
_TOO_EARLY = 0.02
#: Least extra latency of requests that waited, as a share of their wait.
_SHOWN = 0.5
#: Shuffles that show what chance produces, and the most services of each group that are compared.
_SHUFFLES, _COMPARED = 4, 4_000
#: Coarsest resolution of arrivals, as a share of the median latency.
_FINE = 0.5
_AT_ONCE = 500_000
#: First tokens this close come from one batch of prompts; the middle half of batches may differ by this factor.
_SAME_MOMENT_NS, _ONE_LENGTH = 2_000_000, 1.5
#: Parts of the log within which services are compared, and the least requests with a free server in each.
_PARTS, _LEAST_IDLE = 12, 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A first-come, first-served queue.

    :param servers: requests that are served at once.
    :param wait_ns: ``(n,)`` before service.
    :param waited: share of requests that waited.
    :param misfit: largest factor between quantiles of service with and without a wait.
    :param slot_ns: time for which a request occupies a server; ``None`` for its whole service.
    """

    servers: int
    wait_ns: Ints
    waited: float
    misfit: float
    slot_ns: float | None = None


def infer_queue(arrival: Ints, latency: Ints, resolution_ns: int) -> Queue | None:
    """The queue that a log shows; ``None`` if no request waited or no number of servers fits.

    :param arrival: ``(n,)`` at the queue; ``latency`` ``(n,)`` nanoseconds.
    :param resolution_ns: of both.
    """
    if not (arrival[1:] >= arrival[:-1]).all():
        order = np.argsort(arrival, kind="stable")
        queue = infer_queue(arrival[order], latency[order], resolution_ns)
        if queue is None:
            return None
        wait = np.empty_like(queue.wait_ns)
        wait[order] = queue.wait_ns
        return replace(queue, wait_ns=wait)
    n = min(len(arrival), _SAMPLE)
    if n < _LEAST_WAITED + _LEAST_FREE or resolution_ns > _FINE * float(np.median(latency[:n])):
        return None
    sample, took = arrival[:n], latency[:n]
    met = in_flight(sample, took)
    fits = [(servers, fit) for servers in _CANDIDATES if (fit := _misfit(sample, took, met, servers, resolution_ns))]
    if not fits:
        return None
    best = min(misfit for _, (misfit, _) in fits)
    servers, (misfit, excess) = next(each for each in fits if each[1][0] <= best + _AS_GOOD)
    if excess > 0:
        return None
    wait = starts(arrival, arrival + latency, servers)
    wait -= arrival
    np.clip(wait, 0, latency, out=wait)
    return Queue(servers=servers, wait_ns=wait, waited=float(np.mean(wait > 0)), misfit=math.exp(misfit))


def infer_prompt_queue(arrival: Ints, first_ns: Ints) -> Queue | None:
    """The queue before the first token of streams; ``None`` if no request waited or the recording shows no queue.

    An engine computes prompts in batches, one after the other: the first tokens of a batch come at one moment. A
    request that arrives before the batch ahead is done waits for it, and is then served for the duration of a batch,
    which must be about the same for all.

    :param arrival: ``(n,)`` ascending; ``first_ns`` ``(n,)`` from the arrival to the first token.
    """
    token = arrival + first_ns
    order = np.argsort(token, kind="stable")
    ends = token[order]
    batch = np.concatenate([[0], np.cumsum(np.diff(ends) > _SAME_MOMENT_NS)]) if len(ends) else np.zeros(0, np.int64)
    last = np.append(np.flatnonzero(np.diff(batch)), len(ends) - 1)
    ahead = np.concatenate([[arrival[0] if len(arrival) else 0], ends[last]])[batch]
    begin = np.empty(len(ends), np.int64)
    begin[order] = np.maximum(ahead, arrival[order])
    wait = begin - arrival
    service, waited = token - begin, wait > 0
    if np.count_nonzero(waited) < _LEAST_WAITED:
        return None
    low, middle, high = np.quantile(service[waited], (0.25, 0.5, 0.75))
    if low <= 0 or high > _ONE_LENGTH * low or float(np.median(wait[waited])) < middle:
        return None
    earliest, latest = np.quantile(first_ns[waited], (0.1, 0.9))
    if latest - earliest < middle:  # a queue spreads the times to the first token
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
    """``(n,)`` earlier requests that had not ended when each arrived."""
    ended = np.sort(arrival + latency)
    return np.asarray(np.arange(len(arrival)) - np.searchsorted(ended, arrival, side="right"), dtype=np.int64)


def _misfit(arrival: Ints, latency: Ints, met: Ints, servers: int, resolution_ns: int) -> tuple[float, float] | None:
    """How much services differ with and without a wait; ``None`` if the number of servers is impossible.

    With too few servers, requests end before one was free for them. With too many, a part of the wait counts as
    service. Requests that found a free server must not slow each other down either.

    :returns: logarithms of the factor, and of its excess over the limit, chance and rounding.
    """
    waited = met >= servers
    if np.count_nonzero(waited) < _LEAST_WAITED or np.count_nonzero(~waited) < _LEAST_FREE:
        return None
    wait = np.maximum(starts(arrival, arrival + latency, servers) - arrival, 0)
    if np.mean((latency - wait < -2 * resolution_ns)[waited]) > _TOO_EARLY:
        return None
    # Waits must show in the latency: requests that are served side by side seem to wait too.
    if np.median(latency[waited]) - np.median(latency[~waited]) < _SHOWN * np.median(wait[waited]):
        return None
    few = ~waited & (met <= np.median(met[~waited]))
    typical = _trend(latency, met, few)
    service = np.maximum((latency - wait) / typical, 1e-3)
    rounded = resolution_ns / float(np.median(typical))
    if float(np.quantile((wait / typical)[waited], 0.9)) < 1:
        rounded = 0.0  # without a queue, waits shorter than a service may look like one
    apart = [_apart(service[few], service[waited], rounded)]
    if np.count_nonzero(shared := ~waited & ~few) >= _LEAST_FREE:
        apart.append(_apart(service[few], service[shared], rounded))
    return max(factor for factor, _ in apart), max(excess for _, excess in apart)


def _apart(one: Floats, other: Floats, rounded: float) -> tuple[float, float]:
    """The mean distance of the logarithms of quantiles, and its excess over the limit, chance and rounding."""
    one, other = (values[:: max(len(values) // _COMPARED, 1)] for values in (one, other))

    def distances(first: Floats, second: Floats, tolerance: float) -> Floats:
        """Positive where the second are larger."""
        left, right = np.quantile(first, _QUANTILES), np.quantile(second, _QUANTILES)
        low, high = np.minimum(left, right), np.maximum(left, right)
        return np.asarray(np.sign(right - left) * np.log(np.maximum(high - tolerance, low) / low))

    together, rng = np.concatenate([one, other]), np.random.default_rng(0)
    shuffled = [np.split(rng.permutation(together), [len(one)]) for _ in range(_SHUFFLES)]
    chance = float(np.mean([np.abs(distances(first, second, 0.0)) for first, second in shuffled]))
    found, beyond = distances(one, other, 0.0), distances(one, other, rounded)
    limit = math.log(_FASTER if beyond.mean() < 0 else _ALIKE)
    return float(np.abs(found).mean()), float(np.abs(beyond).mean()) - chance - limit


def _trend(latency: Ints, met: Ints, free: Bools) -> Floats:
    """``(n,)`` the service around each request, from requests that found a free server: it may change with time.

    If these met more and more others, the change may be a queue, so one value holds for all.
    """
    n, rows = len(latency), np.flatnonzero(free)
    parts = np.array_split(rows, max(min(_PARTS, len(rows) // _LEAST_IDLE), 1))
    if np.ptp([float(met[part].mean()) for part in parts]) > _ALIKE - 1 + 0.5 * float(met[rows].mean()):
        parts = [rows]
    middles = [float(part.mean()) for part in parts]
    return np.asarray(np.interp(np.arange(n), middles, [float(np.median(latency[part])) for part in parts]))


def starts(arrival: Ints, end: Ints, servers: int) -> Ints:
    """``(n,)`` when each request's service began: all but ``servers - 1`` of the earlier requests had ended."""
    if servers == 1:
        free = np.maximum.accumulate(end)
        return np.asarray(np.maximum(arrival, np.concatenate([arrival[:1], free[:-1]])), dtype=np.int64)
    begin = np.empty(len(arrival), np.int64)
    least = int(arrival[0]) if len(arrival) else 0
    busy = [least] * servers  # the latest ends so far; the smallest is when a server was last free
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


def served_from(arrival: Ints, service: Ints, servers: int) -> Ints:
    """``(n,)`` when each request's service begins, first come, first served."""
    busy = [int(arrival[0]) if len(arrival) else 0] * servers
    begin = []
    for came, takes in zip(arrival.tolist(), service.tolist(), strict=True):
        begin.append(max(came, busy[0]))
        heapreplace(busy, begin[-1] + takes)
    return np.array(begin, np.int64)


def waits_at_reference(arrival: Ints, service_ns: float, servers: int) -> Ints:
    """``(n,)`` the wait of each request if every service took the same (Lindley 1952; Kiefer and Wolfowitz 1955).

    With equal services the next free server is the one that served ``servers`` requests ago, so every
    ``servers``-th request forms a line of its own.
    """
    wait = np.zeros(len(arrival), np.int64)
    for line in range(servers):
        rows = slice(line, None, servers)
        came = arrival[rows].astype(np.float64)
        begin, _ = lindley(came, np.full(len(came), service_ns))
        wait[rows] = np.maximum(np.rint(begin - came), 0)
    return wait


def chance_wait_ns(n: int, span_ns: float, service_ns: float, servers: int, tail: float, seed: int) -> Floats:
    """The tail's mean wait with independent arrivals at the same rate, from chance alone: 39 of 40 runs stay below.

    :param tail: share of requests in the tail.
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
