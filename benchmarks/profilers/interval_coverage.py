"""How often a cause's 95 % interval contains the mean over simulated runs.

    python -m benchmarks.profilers.interval_coverage                          80 runs of each kind and length
    python -m benchmarks.profilers.interval_coverage --runs 20 --requests 400 1500

Runs of one kind differ only by their seed: which requests are hit, and how hard. An interval should contain the
mean of the kind's estimates, the expected result of another run of the same service. The simulator is that of the
tests. ``latfix selftest`` compares with the truth of each run instead.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.result_file import write_result
from latfix.profilers.diagnose import diagnose
from latfix.statistics.distributions import wilson_interval

_SIMULATOR = Path(__file__).resolve().parents[2] / "tests" / "profilers" / "conftest.py"
_FIRST_SEED = 1000

Rows = npt.NDArray[np.float64]


def _faults(seed: int, n: int, kind: str, share: float, ms: float) -> dict[int, tuple[str, float]]:
    """Log-normal faults on a share of the requests, drawn at random."""
    rng = np.random.default_rng(seed)
    return {int(k): (kind, ms * math.exp(0.5 * rng.standard_normal())) for k in np.flatnonzero(rng.random(n) < share)}


def _lengths(seed: int, n: int) -> npt.NDArray[np.int64]:
    return (50 * np.random.default_rng(seed).lognormal(0, 1, n)).astype(np.int64) + 1


#: By kind: the cause of its faults, and the simulator's plan for a seed and a number of requests.
KINDS: dict[str, tuple[str, Callable[[int, int], dict[str, Any]]]] = {
    "collections": ("python.gc", lambda s, n: {"rate": 25, "compute_faults": _faults(s, n, "gc", 0.02, 40)}),
    "no core": ("host.contention", lambda s, n: {"rate": 40, "prepare_faults": _faults(s, n, "runq", 0.03, 20)}),
    "page faults": (
        "memory.page_faults",
        lambda s, n: {"rate": 30, "compute_faults": _faults(s, n, "faults", 0.03, 25)},
    ),
    "long inputs": ("input.size", lambda s, n: {"rate": 25, "lengths": _lengths(s, n)}),
    "a dependency": (
        "external.dependency",
        lambda s, n: {
            "rate": 60,
            "max_batch": 8,
            "window": 3.0,
            "prepare_faults": _faults(s, n, "blocked", 0.02, 40),
        },
    ),
    "slow cores": ("host.slowdown", lambda s, n: {"rate": 25, "compute_faults": _faults(s, n, "cpu", 0.02, 30)}),
}


def main() -> None:
    """Simulate, and print or write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=80, help="runs of each kind and length")
    parser.add_argument("--requests", type=int, nargs="*", default=[400, 1_500, 6_000])
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    arguments = parser.parse_args()
    simulator = _load_simulator()
    results = []
    for requests in arguments.requests:
        held = total = 0
        for kind, (cause, plan) in KINDS.items():
            rows = np.array(
                [_estimate(simulator, cause, plan, _FIRST_SEED + k, requests) for k in range(arguments.runs)]
            )
            result = {"kind": kind, "cause": cause, "requests": requests, **_covered(rows)}
            held, total = held + round(result["held"] * len(rows)), total + len(rows)
            print(
                f"{requests:>6} requests, {kind:<13} {result['mean_ms']:6.1f} ms in the mean "
                f"(sd {result['sd_ms']:.1f}): "
                f"held {result['held']:.0%}, all below {result['below']:.0%}, all above {result['above']:.0%}",
                flush=True,
            )
            results.append(result)
        low, high = wilson_interval(held, total)
        print(
            f"{requests:>6} requests, all kinds: {held} of {total}, {held / total:.1%} [{low:.1%}, {high:.1%}]",
            flush=True,
        )
    found = {"numpy": np.__version__, "first_seed": _FIRST_SEED, "runs": arguments.runs, "results": results}
    write_result(arguments.out, found)


def _load_simulator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("simulator", _SIMULATOR)
    assert spec is not None and spec.loader is not None, _SIMULATOR
    module = importlib.util.module_from_spec(spec)
    sys.modules["simulator"] = module  # its dataclasses look up their module there
    spec.loader.exec_module(module)
    return module


def _estimate(
    simulator: ModuleType, cause: str, plan: Callable[[int, int], dict[str, Any]], seed: int, requests: int
) -> tuple[float, float, float]:
    """The cause's tail milliseconds in one run, and their interval; zeros if the run does not show it."""
    run = simulator.Plan(n=requests, seed=seed, **plan(seed, requests))
    found = [each for each in diagnose(simulator._Run(run).record()).causes if each.cause == cause]
    return (found[0].tail_ms, *found[0].ci95_ms) if found else (0.0, 0.0, 0.0)


def _covered(rows: Rows) -> dict[str, float]:
    estimate, low, high = rows.T
    truth = float(estimate.mean())
    return {
        "mean_ms": truth,
        "sd_ms": float(estimate.std()),
        "width_ms": float((high - low).mean()),
        "held": float(np.mean((low <= truth) & (truth <= high))),
        "below": float(np.mean(high < truth)),
        "above": float(np.mean(low > truth)),
    }


if __name__ == "__main__":
    main()
