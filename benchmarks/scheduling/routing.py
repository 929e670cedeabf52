"""Weighted routing compared with pulling workers, with one replica slower than the others.

    python -m benchmarks.scheduling.routing --out benchmarks/results/routing.json

Three parts:

1. Simulated time: the service's queue and router serve the same traffic both ways, with one replica slowed by a
   factor, at several shares of the replicas' total capacity. Ratios of weighted over pull are geometric means over
   seeds, with 95 % intervals from a bootstrap of the seeds.
2. Real engines and threads, whose replicas sleep for different times, so that the cores do not matter. Pulling runs
   twice; its difference from itself is the machine's noise.
3. The cost of a request in the queue, both ways.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.result_file import earlier_result, write_result
from benchmarks.scheduling.simulated_routing import SimulatedRouting
from latfix.adapter_api import Workload
from latfix.profilers.probes.stage_recorder import EventLog, StageRecorder
from latfix.queueing.queue_simulator import Offered
from latfix.request import Request
from latfix.runners.engine.engine import Engine
from latfix.runners.engine.worker import ModelInstance
from latfix.runners.scheduling.batch_queue import BatchQueue
from latfix.runners.scheduling.replica_router import Router
from latfix.runners.scheduling.routed_queue import RoutedQueue
from latfix.settings import RunnerSettings

Floats = npt.NDArray[np.float64]
MS = 1_000_000
BASE_MS = 10.0
#: Replicas, by service time relative to the fastest.
REPLICAS: tuple[tuple[float, ...], ...] = ((1, 1), (1, 2), (1, 3), (1, 8), (1, 1, 1, 1), (1, 1, 1, 3), (1, 1, 1, 8))
LOADS = (0.3, 0.6, 0.8, 0.9)
_KEYS = ("mean", "p50", "p99")


def figures(latency_ms: Floats) -> dict[str, float]:
    """Mean and percentiles in milliseconds."""
    return {
        "mean": float(latency_ms.mean()),
        "p50": float(np.percentile(latency_ms, 50)),
        "p99": float(np.percentile(latency_ms, 99)),
    }


def ratio(pairs: Sequence[tuple[float, float]], seed: int = 0) -> dict[str, Any]:
    """Geometric mean of second over first, with a 95 % interval from a bootstrap of the pairs."""
    logs = np.log([after / before for before, after in pairs])
    rng = np.random.default_rng(seed)
    means = logs[rng.integers(0, len(logs), (2000, len(logs)))].mean(axis=1)
    low, high = np.exp(np.percentile(means, [2.5, 97.5]))
    return {"value": round(float(np.exp(logs.mean())), 4), "ci95": [round(float(low), 4), round(float(high), 4)]}


def simulated(factors: Sequence[float], load: float, seed: int, *, weighted: bool, requests: int) -> dict[str, Any]:
    """One run in simulated time: memoryless arrivals, sizes varying by a fifth, noise of a tenth."""
    rng = np.random.default_rng(seed)
    capacity = sum(1.0 / factor for factor in factors) / (BASE_MS / 1000)
    at = np.cumsum(rng.exponential(1.0 / (load * capacity), requests))
    size = rng.lognormal(-0.02, 0.2, requests)
    noise = np.random.default_rng(seed + 10_000)
    traffic = [
        Offered(arrival_ns=int(when * 1e9), length=max(int(100 * one), 1)) for when, one in zip(at, size, strict=True)
    ]

    def service(worker: int, members: Sequence[Offered], _now: int) -> int:
        return int(BASE_MS * MS * factors[worker] * members[0].length / 100 * noise.lognormal(0, 0.1))

    run = SimulatedRouting(workers=len(factors), service=service, weighted=weighted).run(traffic)
    return {**figures(run.latency_ns() / MS), "slow_share": run.shares(len(factors))[-1]}


def simulate_all(seeds: int, requests: int) -> list[dict[str, Any]]:
    """Every set of replicas at every load."""
    found = []
    for factors in REPLICAS:
        for load in LOADS:
            runs = [
                [simulated(factors, load, seed, weighted=weighted, requests=requests) for weighted in (False, True)]
                for seed in range(seeds)
            ]
            row: dict[str, Any] = {"replicas": list(factors), "load": load, "seeds": seeds, "requests": requests}
            row["ratio"] = {key: ratio([(pull[key], weighted[key]) for pull, weighted in runs]) for key in _KEYS}
            for k, name in enumerate(("pull", "weighted")):
                keys = (*_KEYS, "slow_share")
                row[name] = {key: round(float(np.mean([run[k][key] for run in runs])), 3) for key in keys}
            found.append(row)
            summary = ", ".join(
                f"{key} ×{row['ratio'][key]['value']:.3f} {row['ratio'][key]['ci95']}" for key in _KEYS
            )
            print(f"{list(factors)} at {load}: {summary}", flush=True)
    return found


class _Adapter(Workload):
    def prepare(self, request: Request) -> Any:
        import torch

        return torch.tensor([float(request.id)])


def _sleeping(ms: float) -> Callable[[Any], Any]:
    def model(x: Any) -> Any:
        time.sleep(ms / 1000)
        return x

    return model


def served(ms: Sequence[float], gaps_s: Floats, routing: str) -> tuple[Floats, float]:
    """Latencies of a real engine in milliseconds, open-loop, and the slowest replica's share of the batches."""
    n = len(gaps_s)
    requests = [Request(id=str(k), arrival_s=0.0) for k in range(n)]
    adapter, recorder = _Adapter(), StageRecorder(n)
    engine = Engine(
        adapter=adapter,
        instances=[ModelInstance(adapter, _sleeping(one), "cpu", None, adapter.collate, set()) for one in ms],
        settings=RunnerSettings().with_overrides({"workers": len(ms), "routing": routing}),
        recorder=recorder,
        events=EventLog(),
        request_of=requests.__getitem__,
    )
    engine.start()
    at = time.perf_counter() + 0.05 + np.cumsum(gaps_s)
    for slot, when in enumerate(at.tolist()):
        time.sleep(max(when - time.perf_counter(), 0.0))
        recorder.scheduled_ns[slot] = int(when * 1e9)
        engine.submit(slot)
    engine.drain()
    engine.shutdown()
    rows, batches = recorder.drain_requests(), recorder.drain_batches()
    return rows["latency_ns"] / MS, float((batches["worker"] == len(ms) - 1).mean())


def real(rounds: int, requests: int) -> list[dict[str, Any]]:
    """Real threads, the arms in turns; ratios by round, including pulling over pulling."""
    found = []
    arms = ("pull", "weighted", "pull again")
    for ms, rate in (((6.0, 6.0), 180.0), ((6.0, 24.0), 110.0), ((6.0, 6.0, 6.0, 24.0), 300.0)):
        runs: dict[str, list[dict[str, float]]] = {arm: [] for arm in arms}
        for number in range(rounds):
            gaps = np.random.default_rng(number).exponential(1.0 / rate, requests)
            for arm in (*arms[number % 3 :], *arms[: number % 3]):
                latency, share = served(ms, gaps, arm.split()[0])
                runs[arm].append({**figures(latency), "slow_share": share})
        row: dict[str, Any] = {"sleep_ms": list(ms), "rate": rate, "rounds": rounds, "requests": requests}
        for name, arm in (("ratio", "weighted"), ("ratio_of_pull_again", "pull again")):
            pairs = list(zip(runs["pull"], runs[arm], strict=True))
            row[name] = {key: ratio([(one[key], other[key]) for one, other in pairs]) for key in _KEYS}
        for arm in arms:
            keys = (*_KEYS, "slow_share")
            row[arm] = {key: round(float(np.mean([run[key] for run in runs[arm]])), 3) for key in keys}
        found.append(row)
        print(f"{list(ms)} ms at {rate}/s: {row['ratio']}; pull again: {row['ratio_of_pull_again']}", flush=True)
    return found


def cost_us(rounds: int = 20_000) -> dict[str, float]:
    """Microseconds to enqueue and dequeue one request on one thread, including learning."""
    plain = BatchQueue(max_batch_size=1, window_ns=0)
    routed = RoutedQueue(router=Router(4), workers=4, max_batch_size=1, window_ns=0)

    def pull(k: int) -> None:
        now = time.perf_counter_ns()
        plain.put(rank=0, slot=k, enqueued_ns=now, length=100)
        plain.take(now)

    def weighted(k: int) -> None:
        now = time.perf_counter_ns()
        routed.put(rank=0, slot=k, enqueued_ns=now, length=100)
        routed.door(k % 4).take(now)

    found = {}
    for name, one in (("pull", pull), ("weighted", weighted), ("pull again", pull), ("weighted again", weighted)):
        took = []
        for k in range(rounds):
            begun = time.perf_counter_ns()
            one(k)
            took.append(time.perf_counter_ns() - begun)
        found[name] = round(float(np.median(took)) / 1e3, 2)
    print(f"one request through the queue, median µs: {found}")
    return found


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--requests", type=int, default=3000, help="of a simulated run")
    parser.add_argument("--rounds", type=int, default=8, help="of real engines")
    parser.add_argument("--real-requests", type=int, default=600)
    parser.add_argument("--parts", nargs="+", choices=("cost_us", "simulated", "real"), help="all by default")
    parser.add_argument("--out", type=Path, help="parts that are not measured keep their results")
    options = parser.parse_args()
    document = earlier_result(options.out)
    document["ratio"] = "weighted over pull, geometric mean, 95 % interval"
    parts: dict[str, Callable[[], Any]] = {
        "cost_us": cost_us,
        "simulated": lambda: simulate_all(options.seeds, options.requests),
        "real": lambda: real(options.rounds, options.real_requests),
    }
    for name in options.parts or parts:
        document[name] = parts[name]()
    write_result(options.out, document)


if __name__ == "__main__":
    main()
