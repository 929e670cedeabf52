"""CPU time per request of each sample in each precision, alone and in batches, interleaved; with the score.

For each workload, the same requests run through the model in float32, dynamic int8 and bfloat16 on one thread: (a)
one by one, (b) in batches of eight in order of arrival, (c) in batches of eight sorted by length. Figures are
medians over interleaved rounds, relative to float32 one by one. Scores are the workload's own.

    python -m benchmarks.optimize.variants [--requests 64] [--rounds 3] [recommender assistant vision]
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.result_file import RESULTS, write_result
from latfix.config.workload_toml import read_spec, samples
from latfix.runners.calls.model_call import call_model
from latfix.runners.calls.tensor_tree import elements_and_length, move, tensors_of
from latfix.runners.engine.worker import ModelInstance
from latfix.runners.measure.accuracy import evaluate
from latfix.runners.service.loaded_service import Service
from latfix.settings import Precision, RunnerSettings
from latfix.traffic.io.reader import read_traffic

PRECISIONS: tuple[Precision, ...] = ("default", "int8_dynamic", "bf16")
BATCH = 8


def batches_of(inputs: list[Any]) -> dict[str, list[list[Any]]]:
    """The three ways of batching."""
    by_length = sorted(inputs, key=lambda value: elements_and_length(tensors_of(value), 0)[0])
    eights = range(0, len(inputs), BATCH)
    return {
        "one by one": [[value] for value in inputs],
        "eights, as they arrive": [inputs[k : k + BATCH] for k in eights],
        "eights, by length": [by_length[k : k + BATCH] for k in eights],
    }


def cpu_ms(instance: ModelInstance, batches: list[list[Any]]) -> float:
    """CPU milliseconds of this process for all batches: collate and model."""
    start = time.process_time_ns()
    with torch.no_grad():
        for batch in batches:
            call_model(instance.model, move(instance.collate(batch), "cpu", instance.dtype))
    return (time.process_time_ns() - start) / 1e6


def measure(name: str, requests: int, rounds: int) -> dict[str, Any]:
    """All variants of one sample."""
    spec = read_spec(samples()[name])
    traffic = read_traffic(spec.traffic)
    services: dict[Precision, Service] = {}
    for precision in PRECISIONS:
        settings = RunnerSettings(precision=precision, intra_op_threads=1, max_batch_size=BATCH)
        service = services[precision] = Service(spec.folder, spec.entry, settings)
        service.load()
    step = max(len(traffic) // requests, 1)
    picked = [traffic.request(k) for k in range(0, step * requests, step)][:requests]
    inputs = [services["default"].models.adapter.prepare(request) for request in picked]
    ways = batches_of(inputs)
    times: dict[Precision, dict[str, list[float]]] = {p: {way: [] for way in ways} for p in PRECISIONS}
    for number in range(rounds + 1):
        for way, batches in ways.items():
            for precision, service in services.items():
                spent = cpu_ms(service.models.instances[0], batches) / len(inputs)
                if number:  # the first round warms up
                    times[precision][way].append(spent)
    unit = statistics.median(times["default"]["one by one"])
    return {
        "float32_one_by_one_ms": unit,
        "ratio": {p: {way: statistics.median(spent) / unit for way, spent in of.items()} for p, of in times.items()},
        "score": {p: evaluate(service, traffic, None).score for p, service in services.items()},
    }


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workloads", nargs="*", default=["recommender", "assistant", "vision"])
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "variants.json")
    options = parser.parse_args()
    results: dict[str, Any] = {"requests": options.requests, "rounds": options.rounds, "workloads": {}}
    for name in options.workloads:
        found = results["workloads"][name] = measure(name, options.requests, options.rounds)
        print(f"{name}: float32 one by one {found['float32_one_by_one_ms']:.1f} ms of CPU a request")
        for precision in PRECISIONS:
            ratios = "  ".join(f"{way} {value:.2f}" for way, value in found["ratio"][precision].items())
            print(f"  {precision:14}{ratios}   score {found['score'][precision]:.4f}")
    write_result(options.out, results)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
