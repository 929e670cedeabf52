"""Infers the queue behind arrivals and ends, of a log or of a service seen from outside, if they confirm it.

With a fixed number of servers and first-come, first-served order, a request begins when it has arrived and a server
is free, which the ends of earlier requests show. The remainder of its latency is service. The log confirms a number
of servers if requests that waited have the same service as requests that found the service idle. Time before and
after a server, such as in an event loop, is told from service: a wait hides it. If none found it idle, the order of
ends shows the number: a request is overtaken only by those served beside it. Otherwise no queue is assumed.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heapreplace

import numpy as np

from latfix.arrays import Bools, Floats, Ints, ranks
from latfix.queueing.closed_loop import in_flight
from latfix.queueing.replay_lanes import lindley

_CANDIDATES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 64, 96, 128)
#: Requests from which the number of servers is inferred; how many must have waited, and found a free server.
_SAMPLE, _LEAST_WAITED, _LEAST_FREE = 60_000, 30, 3
#: Largest factor between services with and without a wait, beyond what chance produces; the mean over quantiles.
#: A busy machine may serve more slowly, but hardly faster: then the waits are too long.
_ALIKE, _FASTER = 1.3, 1.15
#: The same however coarse the times are.
_ALIKE_ROUNDED = 3.0
#: If no more requests than this share found a free server, they are those of one moment: the factor must be smaller.
_RARELY_FREE = 0.05
_QUANTILES = np.linspace(0.1, 0.9, 17)
#: A number of servers this close to the best one (logarithm of the factor) is preferred if it is smaller.
_AS_GOOD = 0.02
#: Rounds in which the time outside of servers is approached, up to so many servers; least and most such time, as a
#: share of the latency: short visits of a few requests are also found where latency wanders.
_ROUNDS, _FEW_SERVERS, _OUTSIDE = 12, 8, (0.02, 0.8)
#: Largest share of the requests that waited which may end before a server was free for them.
_TOO_EARLY = 0.02
#: Waits up to this multiple of the resolution may come from rounding.
_ROUNDING = 3
#: Least extra latency of requests that waited, as a share of their wait, and in standard errors of a median.
_SHOWN, _BEYOND_NOISE = 0.5, 2.0
#: Shuffles that show what chance produces, and the most services of each group that are compared.
_SHUFFLES, _COMPARED = 4, 4_000
#: Coarsest resolution of arrivals, as a share of the median latency.
_FINE = 0.5
#: Requests that are gone through at once: they fit into the cache.
_AT_ONCE = 1 << 14
#: Requests by which one may move among arrivals closer than the resolution.
_SWAPS = 64
#: Without a request that found a free server: the quantile of requests overtaken at once that gives the servers; the
#: least share of requests that overtook so many, times the servers; in-flight requests per server at least.
_MOST_OVERTAKEN, _EDGE, _CROWDED = 0.999, 0.2, 8
#: A few may be overtaken before they reach the queue: the quantile without them, and how many times as frequent the
#: edge must be as what lies beyond.
_NEARLY_MOST, _STRAYS = 0.98, 10
#: Parts of the log that must each show the servers.
_SPLIT = 4
#: There, gaps between ends that repeat this well (correlation) show servers with equal services, which end in turns.
_REPEATS = 0.4
#: Ends closer than this part of the mean gap are those of a batch, if more than such a share of all is.
_TOGETHER, _BATCHED = 0.05, 0.2
#: Gaps between ends whose deviation is below this part of their mean are equal.
_UNEQUAL = 0.1
#: The largest correlation between the times that so many successive ends and so many arrivals take, in any rhythm.
_FOLLOWED, _FOLLOWS = 8, 0.3
#: Least length of a stretch of requests that waited, and spans in all of them, to compare their ends with their
#: arrivals; the number of servers from which there must be as many.
_LEAST_STRETCH, _LEAST_SPANS, _MANY_SERVERS = 12, 60, 8
#: A correlation of services with the number in flight is certain from so many standard errors; less is enough for
#: waits that are too long if there are other signs.
_SURE, _LESS = 3.5, 0.5
#: Services that grow by less than this factor with the number in flight do not depend on it.
_SLIGHT = 1.05
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
    :param misfit: largest factor between quantiles of service with and without a wait; 1 if ``always``.
    :param slot_ns: time for which a request occupies a server; ``None`` for its whole service.
    :param always: no request found a free server.
    :param dependent: services grow with the number in flight: not all of the wait is known.
    :param outside_ns: time of a request before and after its server, which others may occupy then.
    """

    servers: int
    wait_ns: Ints
    waited: float
    misfit: float
    slot_ns: float | None = None
    always: bool = False
    dependent: bool = False
    outside_ns: int = 0


def infer_queue(arrival: Ints, latency: Ints, resolution_ns: int) -> Queue | None:
    """The queue that a log shows; ``None`` if no request waited or no number of servers fits.

    :param arrival: ``(n,)`` at the queue; ``latency`` ``(n,)`` nanoseconds.
    :param resolution_ns: of both.
    """
    n = min(len(arrival), _SAMPLE)
    if n < _LEAST_WAITED + _LEAST_FREE or resolution_ns > _FINE * float(np.median(latency[:n])):
        return None
    end = arrival + latency
    order = _in_order(arrival, end, resolution_ns)
    came = np.minimum.accumulate(arrival[order][::-1])[::-1]  # ascending, by less than the resolution too early
    queue = _infer_in_order(came, end[order] - came, resolution_ns, n)
    if queue is None:
        return None
    wait = np.empty_like(queue.wait_ns)
    wait[order] = came + queue.wait_ns - arrival[order]
    return replace(queue, wait_ns=np.clip(wait, 0, latency))


def _in_order(arrival: Ints, end: Ints, resolution_ns: int) -> Ints:
    """The order of arrivals; of those closer than the resolution, that of their ends.

    The difference of an end and a latency, one of them rounded, does not show which of close arrivals came first.
    """
    order = np.argsort(arrival, kind="stable")
    for _ in range(_SWAPS):
        swapped = False
        for first in (0, 1):
            pairs = order[first : first + (len(order) - first) // 2 * 2].reshape(-1, 2)  # a view
            left, right = pairs.T
            wrong = (end[left] > end[right]) & (arrival[right] - arrival[left] < resolution_ns)
            pairs[wrong] = pairs[wrong][:, ::-1]
            swapped = swapped or bool(wrong.any())
        if not swapped:
            break
    return order


def _infer_in_order(arrival: Ints, latency: Ints, resolution_ns: int, n: int) -> Queue | None:
    """:func:`infer_queue` of ascending arrivals, of which the first ``n`` are compared."""
    sample, took = arrival[:n], latency[:n]
    if (queue := _always_busy(arrival, latency, resolution_ns, n)) is not None:
        return queue
    gaps = np.diff(np.sort(sample + took))
    close_ns = _TOGETHER * float(gaps.mean())
    if resolution_ns <= close_ns and np.mean(gaps <= close_ns) > 2 * _BATCHED:
        return None  # batches
    fits = []
    for station in _stations(sample, took):
        inside = took - station[1]
        if fit := _misfit(sample, inside, in_flight(sample, inside), station[0], resolution_ns):
            fits.append((station, fit))
    best = min((misfit for _, (misfit, _) in fits), default=0.0)
    fitting = next((each for each in fits if each[1][0] <= best + _AS_GOOD), None)
    if fitting is None or fitting[1][1] > 0 or fitting[1][0] > math.log(_ALIKE_ROUNDED):
        return None
    (servers, outside), (misfit, _) = fitting
    wait = starts(arrival, arrival + latency - outside, servers)
    wait -= arrival
    np.clip(wait, 0, latency, out=wait)
    met = in_flight(sample, took - outside)
    if _ends_follow_arrivals(sample, sample + took, wait[:n] > 0, servers):
        return None
    free, behind, lasting = _dependence(took - wait[:n], met, servers, resolution_ns)
    rises = free > _SURE
    if behind < -_SURE or (rises and lasting > _SURE and behind < -_LESS):
        return None
    return Queue(
        servers=servers,
        wait_ns=wait,
        waited=float(np.mean(wait > 0)),
        misfit=math.exp(misfit),
        dependent=rises or behind > _SURE,
        outside_ns=outside,
    )


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


def _stations(arrival: Ints, latency: Ints) -> list[tuple[int, int]]:
    """Numbers of servers, and time outside of them, that are tried; the first that fits is preferred."""
    result = []
    for servers in _CANDIDATES:
        if servers <= _FEW_SERVERS and (outside := _outside_ns(arrival[:_COMPARED], latency[:_COMPARED], servers)):
            result.append((servers, outside))
        result.append((servers, 0))
    return result


def _outside_ns(arrival: Ints, latency: Ints, servers: int) -> int:
    """Time of a request before and after its server; 0 if there is hardly any, or far too much.

    A request that waited ends one service after the one whose server it took: its own time outside passes while that
    is served. Who waited follows from the time outside, so both are approached in turns.
    """
    idle = in_flight(arrival, latency) == 0
    if not idle.any():
        return 0
    alone, outside = float(np.median(latency[idle])), 0
    for _ in range(_ROUNDS):
        before, begin = outside, starts(arrival, arrival + latency - outside, servers)
        waited = begin > arrival
        if np.count_nonzero(waited) < _LEAST_WAITED:
            return 0
        occupied = float(np.median((arrival + latency - outside - begin)[waited]))
        outside = int(np.clip(alone - occupied, 0, alone))
        if outside == before:
            break
    return outside if _OUTSIDE[0] * alone < outside <= _OUTSIDE[1] * alone else 0


def _misfit(arrival: Ints, latency: Ints, met: Ints, servers: int, resolution_ns: int) -> tuple[float, float] | None:
    """How much services differ with and without a wait; ``None`` if the number of servers is impossible.

    With too few servers, requests end before one was free for them. With too many, a part of the wait counts as
    service. Requests that found a free server must not slow each other down either.

    :param latency: without the time outside of servers.
    :returns: logarithms of the factor, and of its excess over the limit, chance and rounding.
    """
    waited = met >= servers
    # What the first requests of a log met is unknown.
    if np.count_nonzero(waited) < _LEAST_WAITED or np.count_nonzero(~waited[servers:]) < _LEAST_FREE:
        return None
    wait = np.maximum(starts(arrival, arrival + latency, servers) - arrival, 0)
    if float(np.quantile(wait[waited], 0.9)) <= _ROUNDING * resolution_ns:
        return None
    if np.mean((latency - wait < -2 * resolution_ns)[waited]) > _TOO_EARLY:
        return None
    # Waits must show in the latency: requests that are served side by side seem to wait too.
    longer = float(np.median(latency[waited]) - np.median(latency[~waited]))
    if longer < max(_SHOWN * float(np.median(wait[waited])), _BEYOND_NOISE * _noise(latency, waited)):
        return None
    few = ~waited & (met <= np.median(met[~waited]))
    typical = np.maximum(_trend(latency, met, few), resolution_ns / 2)  # less than a unit may be written as 0
    service = np.maximum((latency - wait) / typical, 1e-3)
    rounded = resolution_ns / float(np.median(typical))
    if float(np.quantile((wait / typical)[waited], 0.9)) < 1:
        rounded = 0.0  # without a queue, waits shorter than a service may look like one
    apart = [quantiles_apart(service[few], service[waited], rounded)]
    if np.count_nonzero(shared := ~waited & ~few) >= _LEAST_FREE:
        apart.append(quantiles_apart(service[few], service[shared], rounded))
    factor, excess = max(factor for factor, _ in apart), max(excess for _, excess in apart)
    if np.mean(~waited) < _RARELY_FREE:
        excess += math.log(_ALIKE / _FASTER)
    return factor, excess


def _dependence(service: Ints, met: Ints, servers: int, resolution_ns: int) -> tuple[float, float, float]:
    """How services depend on the number in flight, in standard errors: they do not with the right number of servers.

    With queues in series, or a latency that rises and falls without a queue, services of those that found a free
    server grow with it, and the wait of the others is taken to be too long.

    :returns: the correlation for those that found a free server and for those that waited; and, for the former, how
        much the services of neighbors are alike apart from it.
    """

    def related(rows: Bools) -> tuple[float, Floats]:
        """The correlation, and the ranks of services without what it explains."""
        if np.count_nonzero(rows) < _LEAST_WAITED or not np.ptp(met[rows]) or not np.ptp(service[rows]):
            return 0.0, np.zeros(0)
        took, others = (ranks(values[rows]) for values in (service, met))
        took, others = (took - took.mean()) / took.std(), (others - others.mean()) / others.std()
        correlation = float(np.mean(took * others))
        many = met[rows] > np.median(met[rows])
        more, less = (np.median(service[rows][few]) for few in (many, ~many)) if many.any() else (math.inf, 0.0)
        # With equal services, ranks are certain for the least difference.
        sure = correlation * math.sqrt(len(took)) if abs(more - less) > resolution_ns else 0.0
        return sure if more > _SLIGHT * less else min(sure, 0.0), took - correlation * others

    waited = met >= servers
    waited[:servers] = True  # what the first requests of a log met is unknown
    free, left = related(~waited)
    lasting = float(np.mean(left[1:] * left[:-1])) * math.sqrt(len(left)) if len(left) > 1 else 0.0
    return free, related(met >= servers)[0], lasting


def _noise(latency: Ints, waited: Bools) -> float:
    """The standard error of the difference of medians with and without a wait, if both had the same spread."""
    middle_half = float(np.ptp(np.quantile(latency[~waited], (0.25, 0.75))))
    # For normal values: 1.253 standard deviations, of which the middle half spans 1.349.
    return 0.93 * middle_half * math.sqrt(1 / np.count_nonzero(waited) + 1 / np.count_nonzero(~waited))


def _always_busy(arrival: Ints, latency: Ints, resolution_ns: int, n: int) -> Queue | None:
    """The queue of a log in which no request found a free server; ``None`` if the first ``n`` do not show one."""
    sample, end = arrival[:n], arrival[:n] + latency[:n]
    ends = np.sort(end)
    gaps = np.diff(ends)
    if _spans_follow(ends, sample):
        return None
    overtaken = _overtaken(end, 2 * resolution_ns)
    if (servers := _turns(gaps)) <= int(np.quantile(overtaken, _NEARLY_MOST)):
        if np.mean(gaps <= max(resolution_ns, _TOGETHER * float(gaps.mean()))) > _BATCHED:
            return None
        servers = _at_the_edge(overtaken)
    met = in_flight(sample, latency[:n])[servers:]
    if not servers or len(met) < _LEAST_WAITED:
        return None
    if np.quantile(met, 0.05) < servers or np.median(met) < _CROWDED * servers:
        return None
    wait = np.clip(starts(arrival, arrival + latency, servers) - arrival, 0, latency)
    # What the first requests waited for came before the log.
    typical = int(np.median((latency - wait)[servers:]))
    wait[:servers] = np.maximum(latency[:servers] - typical, 0)
    return Queue(servers=servers, wait_ns=wait, waited=float(np.mean(wait > 0)), misfit=1.0, always=True)


def _at_the_edge(overtaken: Ints) -> int:
    """One more than most requests overtake; 0 if the counts do not end there, or not in all parts of the log."""
    for quantile in (_MOST_OVERTAKEN, _NEARLY_MOST):
        servers = int(np.quantile(overtaken, quantile)) + 1
        share = [float(part.mean()) for part in np.array_split(overtaken == servers - 1, _SPLIT)]
        beyond = float(np.mean(overtaken >= servers))
        if quantile == _NEARLY_MOST and sum(share) / _SPLIT < _STRAYS * beyond:
            return 0  # they decline instead
        # Servers may have been added or removed meanwhile.
        if sum(share) / _SPLIT >= _EDGE / servers and min(share) >= _EDGE / _SPLIT / servers:
            return servers
    return 0


def _spans_follow(ends: Ints, arrival: Ints) -> bool:
    """True if ends come in the rhythm of arrivals: requests that are served side by side end as they arrived."""
    ended, arrived = (each[_FOLLOWED:] - each[:-_FOLLOWED] for each in (ends, arrival))
    if len(ended) < 2 or not ended.std() or not arrived.std():
        return False
    return abs(float(np.corrcoef(ended, arrived)[0, 1])) > _FOLLOWS


def _ends_follow_arrivals(arrival: Ints, end: Ints, waited: Bools, servers: int) -> bool:
    """True if requests that seem to have waited end in the rhythm in which they arrived.

    While all servers are busy, they set the rhythm. Without a queue, a latency that rises for a while adds requests
    in flight, too. Many servers are assumed only where such stretches show that they are no coincidence.
    """
    edges = np.flatnonzero(np.diff(waited.astype(np.int8), prepend=0, append=0))
    came, went = list[Floats](), list[Floats]()
    for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if last - first < _LEAST_STRETCH:
            continue
        lag = min(max(_FOLLOWED, 2 * servers), (last - first) // 3)
        for times, spans in ((arrival[first:last], came), (np.sort(end[first:last]), went)):
            span = (times[lag:] - times[:-lag]).astype(np.float64)
            spans.append((span / max(float(span.mean()), 1.0) - 1) * math.sqrt(lag))
    if sum(map(len, came)) < _LEAST_SPANS:
        return servers >= _MANY_SERVERS
    one, other = np.concatenate(came), np.concatenate(went)
    if not one.std() or not other.std():
        return False
    return float(np.corrcoef(one, other)[0, 1]) > _FOLLOWS


def _turns(gaps: Ints) -> int:
    """Servers that end in turns, with equal services or a batch's: gaps between ends repeat after so many. Else 0."""
    if float(gaps.std()) <= _UNEQUAL * float(gaps.mean()):
        return 0  # what repeats in equal gaps is chance
    place = ranks(gaps)
    place = (place - place.mean()) / place.std()
    lags = range(2, min(_CANDIDATES[-1], len(gaps) // _LEAST_WAITED) + 1)
    alike = np.array([float(np.mean(place[lag:] * place[:-lag])) for lag in lags])
    if not len(alike) or alike.max() < _REPEATS:
        return 0
    return lags[int(np.argmax(alike > alike.max() - _REPEATS / 4))]


def _overtaken(end: Ints, tolerance_ns: int) -> Ints:
    """``(n,)`` earlier requests that ended later than each, by more than the tolerance."""
    known: list[int] = []
    result = []
    for ended in end.tolist():
        result.append(len(known) - bisect_right(known, ended + tolerance_ns))
        insort(known, ended)
    return np.array(result, np.int64)


def quantiles_apart(one: Floats, other: Floats, rounded: float, *, limit: float = _ALIKE) -> tuple[float, float]:
    """The mean distance of the logarithms of quantiles, and its excess over the limit, chance and rounding.

    :param limit: a factor; at most :data:`_FASTER` if the second are smaller.
    """
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
    most = math.log(min(limit, _FASTER) if beyond.mean() < 0 else limit)
    return float(np.abs(found).mean()), float(np.abs(beyond).mean()) - chance - most


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
    begin = np.empty(len(arrival), np.int64)
    latest = np.repeat(arrival[:1], servers)  # the latest ends so far; the smallest is when a server was last free
    for first in range(0, len(arrival), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        left = end[part]
        for k in range(servers):
            # An end takes the first place whose end is earlier, which moves to the next place.
            before = np.maximum.accumulate(np.concatenate([latest[k : k + 1], left]))
            left, latest[k] = np.minimum(left, before[:-1]), before[-1]
        begin[part] = np.maximum(arrival[part], before[:-1])
    return begin


def served_from(arrival: Ints, service: Ints, servers: int) -> Ints:
    """``(n,)`` when each request's service begins, first come, first served."""
    busy = [int(arrival[0]) if len(arrival) else 0] * servers
    begin = []
    for came, takes in zip(arrival.tolist(), service.tolist(), strict=True):
        begin.append(max(came, busy[0]))
        heapreplace(busy, begin[-1] + takes)
    return np.array(begin, np.int64)


def waits_at_reference(arrival: Ints, service_ns: float, servers: int, backlog_ns: int = 0) -> Ints:
    """``(n,)`` the wait of each request if every service took the same (Lindley 1952; Kiefer and Wolfowitz 1955).

    With equal services the next free server is the one that served ``servers`` requests ago, so every
    ``servers``-th request forms a line of its own.

    :param backlog_ns: time for which all servers are busy from the first arrival on.
    """
    wait = np.zeros(len(arrival), np.int64)
    for line in range(servers):
        rows = slice(line, None, servers)
        came = arrival[rows].astype(np.float64)
        begin, _ = lindley(np.maximum(came, float(arrival[0]) + backlog_ns), np.full(len(came), service_ns))
        wait[rows] = np.maximum(np.rint(begin - came), 0)
    return wait


def chance_wait_ns(n: int, span_ns: float, waits: Callable[[Ints], Ints], tail: float, seed: int) -> float:
    """The tail's mean wait with independent arrivals at the same rate, from chance alone: 39 of 40 runs stay below.

    :param waits: the wait of each request at its reference, from arrivals.
    :param tail: share of requests in the tail.
    """
    runs, many = 40, int(min(n, 4_000))
    rng = np.random.default_rng(seed)
    gap = span_ns / max(n - 1, 1)
    means = np.zeros(runs)
    for run in range(runs):
        arrival = np.minimum(np.cumsum(rng.exponential(gap, many)), 2.0**62).astype(np.int64)
        wait = np.sort(waits(arrival))
        means[run] = wait[int(many * (1 - tail)) :].mean() if many else 0.0
    return float(np.quantile(means, 0.975))
