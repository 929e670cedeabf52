"""What ``latfix sweep`` decides of loads whose truth is known, on simulated time: the figures of docs/capacity.md.

Simulated is M/M/1 from an empty start: independent arrivals, exponential service with a mean of 1, whose latency is
exponential with a mean of ``1 / (1 - load)`` once the queue has settled.

    python benchmarks/sweep_decisions.py            # 150 replays a line, under a minute
"""

from __future__ import annotations

import argparse
import math
import sys

import numpy as np
import numpy.typing as npt

from latfix.capacity.objective import Target, decide
from latfix.capacity.queueing_models import relaxation_time

LOADS, PERCENTILES, REQUESTS = (0.3, 0.5, 0.8), (90.0, 95.0, 99.0), (500, 1000, 2000, 4000)


def replay(load: float, requests: int, rng: np.random.Generator) -> tuple[npt.NDArray[np.float64], ...]:
    """Waits and latencies of one replay, in order of arrival."""
    arrival = np.cumsum(rng.exponential(1 / load, requests))
    service = rng.exponential(1.0, requests)
    before = np.cumsum(service) - service
    wait = np.maximum.accumulate(arrival - before) + before - arrival
    return wait, wait + service


def decisions(load: float, percentile: float, requests: int, times: float, replays: int, seed: int) -> list[float]:
    """Shares of replays that are said to meet, and to miss, so many times the true percentile."""
    rng = np.random.default_rng(seed)
    limit = times * math.log(1 / (1 - percentile / 100)) / (1 - load)
    target = Target(percentile=percentile, limit=limit)
    said = []
    for _ in range(replays):
        latency = replay(load, requests, rng)[1]
        said.append(decide([latency], [latency], target).meets)
    return [sum(answer is wanted for answer in said) / replays for wanted in (True, False)]


def settled(load: float, times: float, replays: int, seed: int) -> float:
    """Mean wait over so many relaxation times after an empty start, over the steady one."""
    rng = np.random.default_rng(seed)
    requests = max(1, round(times * relaxation_time(load, 1.0) * load))
    return float(np.mean([replay(load, requests, rng)[0].mean() for _ in range(replays)])) * (1 - load) / load


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replays", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("load  percentile  requests   at the limit: meets, misses   with six times the limit: meets")
    for load in LOADS:
        for percentile in PERCENTILES:
            for requests in REQUESTS:
                at = decisions(load, percentile, requests, 1.0, options.replays, options.seed)
                far = decisions(load, percentile, requests, 6.0, options.replays, options.seed)
                figures = f"{at[0]:>20.0%} {at[1]:>7.0%} {far[0]:>32.0%}"
                print(f"{load:>4g} {percentile:>11g} {requests:>9} {figures}", flush=True)
    print("\nload  relaxation times watched   mean wait over the steady one")
    for load in (0.8, 0.9):
        for times in (1, 3, 10, 20):
            print(
                f"{load:>4g} {times:>26} {settled(load, times, 20 * options.replays, options.seed):>31.2f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
