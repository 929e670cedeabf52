"""Request logs of a simulated first-come, first-served service, each with one planted cause."""

from __future__ import annotations

import heapq

import numpy as np

from latfix.profilers.recordings.requests.request_table import RequestTable

TYPICAL_NS = 20e6


def simulated(
    kind: str, seed: int, *, servers: int = 1, n: int = 4000, load: float = 0.35, moments: int = 12
) -> RequestTable:
    """``quiet``, ``burst``, ``big``, ``drift``, ``dependency`` or ``stall``, at so many moments."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(TYPICAL_NS / servers / load, n))
    size = rng.lognormal(0.0, 0.2, n)
    if kind == "big":
        size[rng.random(n) < 0.02] *= 15
    if kind == "burst":
        for first in rng.integers(0, n - 100, 5).tolist():
            arrival[first : first + 80] = arrival[first] + np.sort(rng.uniform(0, 6 * TYPICAL_NS / servers, 80))
        arrival = np.sort(arrival)
    service = TYPICAL_NS * (0.3 + 0.7 * size) * rng.lognormal(0.0, 0.05, n)
    if kind == "drift":
        service *= 1 + np.linspace(0, 1.0, n)
    dependency = np.zeros(n)
    if kind == "dependency":
        dependency = rng.lognormal(np.log(2e6), 0.2, n)
        dependency[rng.random(n) < 0.03] += 150e6
    stalls = np.sort(rng.uniform(0, arrival[-1], moments)) if kind == "stall" else np.zeros(0)
    ended = served(arrival, service + dependency, servers, stalls)
    arrived = np.rint(arrival - arrival[0]).astype(np.int64)
    return RequestTable(
        arrival_ns=arrived,
        latency_ns=np.rint(ended - arrival[0]).astype(np.int64) - arrived,
        status=np.zeros(n, np.int8),
        features={"size": np.rint(size * 1000)},
        parts={"db": np.rint(dependency).astype(np.int64)} if kind == "dependency" else {},
    )


def served(
    arrival: np.ndarray[tuple[int], np.dtype[np.float64]],
    service: np.ndarray[tuple[int], np.dtype[np.float64]],
    servers: int,
    stalls: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    free = [0.0] * servers
    ended = np.zeros(len(arrival))
    for row, (came, takes) in enumerate(zip(arrival.tolist(), service.tolist(), strict=True)):
        begun = max(came, heapq.heappop(free))
        end = begun + takes
        for stall in stalls.tolist():
            if begun < stall + 400e6 and end > stall:
                end += stall + 400e6 - max(stall, begun)
        heapq.heappush(free, end)
        ended[row] = end
    return ended


def batched(
    timer: str,
    seed: int = 3,
    *,
    workers: int = 1,
    limit: int = 8,
    window_ms: float = 5.0,
    load: float = 0.6,
    stalls: int = 0,
    slow: float = 0.0,
    late: float = 0.0,
    resolution_ns: int = 1_000,
    squares: bool = False,
    n: int = 4000,
) -> RequestTable:
    """A service that computes batches in 10 ms and 1 ms a request.

    :param timer: starts as the first request arrives (``arrival``), as a worker is free (``worker``), or with batches
        that line up for a worker (``batcher``).
    :param load: as a share of what full batches serve.
    :param stalls: moments at which the batch in computation stops for 40 ms.
    :param slow: share of requests that need 40 ms more.
    :param late: share of answers that are sent 1.5 ms late.
    :param squares: each request also needs 1 ms times the square of its ``side``.
    """
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential((10e6 / limit + 1e6) / workers / load, n))
    moments, extra = rng.uniform(0, arrival[-1], stalls), 40e6 * (rng.random(n) < slow)
    side = np.round(rng.lognormal(-0.5, 0.5, n), 3) if squares else np.zeros(n)
    extra = extra + 1e6 * side**2
    free, ended, first = [0.0] * workers, np.zeros(n), 0
    while first < n:
        idle, came = heapq.heappop(free), float(arrival[first])
        due = {"arrival": came, "worker": max(came, idle), "batcher": came}[timer] + 1e6 * window_ms
        closed = max(due, idle) if timer == "arrival" else due
        last = min(int(np.searchsorted(arrival, closed, "right")), first + limit)
        begin = max(idle, float(arrival[last - 1]) if last == first + limit else closed)
        size = last - first
        end = begin + (10e6 + 1e6 * size) * float(rng.lognormal(0, 0.05)) + float(extra[first:last].sum())
        end += 40e6 * np.count_nonzero((moments > begin) & (moments < end))
        heapq.heappush(free, end)
        ended[first:last] = end + 50e3 * np.arange(size) + rng.uniform(0, 30e3, size)
        first = last
    ended += 1.5e6 * (rng.random(n) < late)
    at, out = (((times - arrival[0]) // resolution_ns).astype(np.int64) * resolution_ns for times in (arrival, ended))
    features = {"side": side} if squares else {}
    status = np.zeros(n, np.int8)
    return RequestTable(
        arrival_ns=at, latency_ns=out - at, status=status, resolution_ns=resolution_ns, features=features
    )
