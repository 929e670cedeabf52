"""How often the queue behind a log of arrivals and ends is inferred with the right number of servers.

    python -m benchmarks.profilers.queue_inference [--seeds 10]

Simulated services: first come, first served, 1 to 16 servers, 3,000 requests, times in microseconds; services of
five distributions, with a mean of about 10 ms; loads below and above capacity, a burst, and an excerpt in which no
request found a free server. Services whose requests share 1 to 8 cores evenly. And services without a queue, whose
latency of 50 or 150 ms rises and falls over seconds. Prints and writes how often the number of servers or cores was
right (cores within a quarter), how often none was inferred, and how often it was wrong; and in how many of the other
logs sharing was inferred, and in how many of all logs batches, of which there are none.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.result_file import RESULTS, write_result
from latfix.arrays import Floats, Ints
from latfix.queueing.inference.batch_inference import infer_rule
from latfix.queueing.inference.queue_inference import infer_queue
from latfix.queueing.inference.sharing_inference import infer_sharing

Log = tuple[Ints, Ints]

#: Services without a queue: rates per second, seconds of latency, seconds over which it changes, by how much
#: (standard deviation of the logarithm), and scatter of single requests.
WANDERING = ((100, 300), (0.05, 0.15), (2, 10, 30), (0.2, 0.5), (0.02, 0.1, 0.3))
_N, _SERVERS = 3000, (1, 2, 3, 6, 16)
#: Seconds of service.
SERVICES: dict[str, Callable[[np.random.Generator], Floats]] = {
    "exponential": lambda rng: rng.exponential(0.01, _N),
    "lognormal, 0.5": lambda rng: rng.lognormal(np.log(0.01), 0.5, _N),
    "lognormal, 1": lambda rng: rng.lognormal(np.log(0.006), 1.0, _N),
    "10 % nine times as long": lambda rng: np.where(rng.random(_N) < 0.1, 0.05, 0.0055) * rng.uniform(0.9, 1.1, _N),
    "25 % five times as long": lambda rng: np.where(rng.random(_N) < 0.25, 0.03, 0.0055) * rng.uniform(0.9, 1.1, _N),
}
_CORES, _RIGHT = (1, 2, 4, 8), 1.25
#: Loads of services whose requests share cores; with drift at the end, when each needs twice as much as at first.
SHARED_LOADS = {"0.5": 0.5, "0.8": 0.8, "0.4 and a burst": 0.4, "0.8, drift": 0.8, "0.6, 1.1 for a third": 0.6}
#: Loads; with a burst, a tenth of the requests come within 100 ms; of an excerpt, only the second half is seen.
LOADS = {"0.7 and a burst": 0.7, "0.85": 0.85, "0.95": 0.95, "1.05": 1.05, "1.2, an excerpt": 1.2}


def main() -> None:
    """Simulate, infer, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=RESULTS / "queue_inference.json")
    options = parser.parse_args()
    cases = [(servers, seed) for servers in _SERVERS for seed in range(options.seeds)]
    found = {
        f"{service}; load {load}": dict(Counter(outcome(service, load, *case) for case in cases))
        for service in SERVICES
        for load in LOADS
    }
    total = sum((Counter(each) for each in found.values()), Counter())
    without = Counter(outcome_without_queue(*case) for case in itertools.product(*WANDERING, range(options.seeds)))
    kinds = itertools.product(SERVICES, LOADS, cases)
    queued = [queued_log(service, load, *case) for service, load, case in kinds]
    wandering = [wandering_log(*case) for case in itertools.product(*WANDERING, range(options.seeds))]
    shared_kinds = itertools.product(SERVICES, SHARED_LOADS, _CORES, range(options.seeds))
    figures = {
        "all": total,
        "no queue": without,
        "shared cores": Counter(outcome_of_sharing(*kind) for kind in shared_kinds),
        "sharing, with a queue": Counter(map(inferred_sharing, queued)),
        "sharing, without": Counter(map(inferred_sharing, wandering)),
        "batches": Counter("none" if infer_rule(*log, 1000) is None else "wrong" for log in queued + wandering),
    }
    for name, counts in {**found, **figures}.items():
        print(f"{name:<50} {dict(counts)}")
    write_result(options.out, {**figures, **found})


def outcome(service: str, load: str, servers: int, seed: int) -> str:
    """``right``, ``none`` or ``wrong``."""
    queue = infer_queue(*queued_log(service, load, servers, seed), 1000)
    return "none" if queue is None else "right" if queue.servers == servers else "wrong"


def queued_log(service: str, load: str, servers: int, seed: int) -> Log:
    """Arrivals and latencies of servers behind one queue, nanoseconds."""
    rng = np.random.default_rng(seed)
    took = SERVICES[service](rng)
    arrival = np.cumsum(rng.exponential(float(took.mean()) / servers / LOADS[load], _N))
    if "burst" in load:
        arrival[: _N // 10] = arrival[_N // 2] + rng.uniform(0, 0.1, _N // 10)
        arrival = np.sort(arrival)
    free, ends = [0.0] * servers, []
    for came, takes in zip(arrival.tolist(), took.tolist(), strict=True):
        ends.append(max(came, free[0]) + takes)
        heapq.heapreplace(free, ends[-1])
    at, end = (np.rint(1e6 * np.asarray(times)).astype(np.int64) * 1000 for times in (arrival, ends))
    seen = slice(_N // 2 if "excerpt" in load else 0, None)
    return at[seen], (end - at)[seen]


def outcome_of_sharing(service: str, load: str, cores: int, seed: int) -> str:
    """``right``, ``none`` or ``wrong``: also a queue."""
    log = shared_log(service, load, cores, seed)
    if infer_queue(*log, 1000) is not None:
        return "wrong"
    sharing = infer_sharing(*log, 1000)
    return "none" if sharing is None else "right" if 1 / _RIGHT < sharing.cores / cores < _RIGHT else "wrong"


def inferred_sharing(log: Log) -> str:
    """``none`` or ``wrong``, of a log without sharing."""
    return "none" if infer_queue(*log, 1000) is not None or infer_sharing(*log, 1000) is None else "wrong"


def shared_log(service: str, load: str, cores: int, seed: int) -> Log:
    """Arrivals and latencies of requests that share cores evenly, nanoseconds."""
    rng = np.random.default_rng(seed)
    need = SERVICES[service](rng)
    gaps = rng.exponential(float(need.mean()) / cores / SHARED_LOADS[load], _N)
    if "third" in load:
        gaps[_N // 3 : 2 * _N // 3] *= SHARED_LOADS[load] / 1.1
    if "drift" in load:
        need *= np.linspace(0.5, 1, _N)
    arrival = np.cumsum(gaps)
    if "burst" in load:
        arrival[: _N // 20] = arrival[_N // 2] + rng.uniform(0, 0.1, _N // 20)
        arrival = np.sort(arrival)
    received, now, ends = 0.0, 0.0, np.zeros(_N)  # what each of those there received since the start
    there: list[tuple[float, int]] = []
    for row in [*range(_N), -1]:
        until = arrival[row] if row >= 0 else math.inf
        while there:
            speed = min(1.0, cores / len(there))
            ended = now + (there[0][0] - received) / speed
            if ended > until:
                received += (until - now) * speed
                break
            now, received = ended, there[0][0]
            ends[heapq.heappop(there)[1]] = ended
        now = until
        if row >= 0:
            heapq.heappush(there, (received + need[row], row))
    at, end = (np.rint(1e6 * times).astype(np.int64) * 1000 for times in (arrival, ends))
    return at, end - at


def outcome_without_queue(rate: float, base_s: float, slow_s: float, spread: float, jitter: float, seed: int) -> str:
    """``none``, which is right, or ``wrong``."""
    return (
        "none" if infer_queue(*wandering_log(rate, base_s, slow_s, spread, jitter, seed), 1000) is None else "wrong"
    )


def wandering_log(rate: float, base_s: float, slow_s: float, spread: float, jitter: float, seed: int) -> Log:
    """Arrivals and latencies of a service without a queue, whose latency rises and falls, nanoseconds."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1 / rate, _N))
    steps = rng.normal(0, 1, int(arrival[-1] / 0.05) + 2)
    level, kept = np.zeros(len(steps)), math.exp(-0.05 / slow_s)
    for k in range(1, len(steps)):
        level[k] = kept * level[k - 1] + math.sqrt(1 - kept**2) * steps[k]
    rises = np.interp(arrival, 0.05 * np.arange(len(steps)), level)
    took = base_s * np.exp(spread * rises) * rng.lognormal(0, jitter, _N)
    at, latency = (np.rint(1e6 * times).astype(np.int64) * 1000 for times in (arrival, took))
    return at, latency


if __name__ == "__main__":
    main()
