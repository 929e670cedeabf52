"""Request logs of a simulated first-come, first-served service, each with one planted cause."""

from __future__ import annotations

import heapq

import numpy as np

from latfix.profilers.recordings.requests.request_table import RequestTable

TYPICAL_NS = 20e6


def simulated(kind: str, seed: int, *, servers: int = 1, n: int = 4000, load: float = 0.35) -> RequestTable:
    """``quiet``, ``burst``, ``big``, ``drift``, ``dependency`` or ``stall``."""
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
    stalls = np.sort(rng.uniform(0, arrival[-1], 12)) if kind == "stall" else np.zeros(0)
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
