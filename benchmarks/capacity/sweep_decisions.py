"""Answers of ``latfix sweep`` for services whose largest load is known: the figures of docs/capacity.md.

Each service is swept as by the command, with a budget of five minutes; processes and time are simulated
(sweep_world.py). The true largest load is where the median of the percentile over many replays of the same requests,
each in a fresh process, crosses the limit.

    python -m benchmarks.capacity.sweep_decisions --seeds 20     # some 10 minutes
    python -m benchmarks.capacity.sweep_decisions --settling     # waits after an empty start, on M/M/1
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.capacity.sweep_world import SweepWorld, make_traffic
from benchmarks.result_file import write_result
from latfix.capacity.max_load import LargestLoad
from latfix.capacity.objective import LatencyObjective
from latfix.capacity.service_moments import relaxation_time
from latfix.capacity.sweep_traffic import Part, part_of, plan_requests, point_seconds
from latfix.config.workload_toml import WorkloadSpec
from latfix.runners.replay.runner_process import OnEvent
from latfix.runners.sweep.sweep import Sweep
from latfix.runners.sweep.sweep_state import Options, Setting
from latfix.settings import RunnerSettings
from latfix.statistics.change_points import rising_level
from latfix.traffic.schedule import Traffic

BUDGET_S, PERCENTILE, RECORDED, REQUESTS = 300.0, 99.0, 15.0, 600
#: Replays per load for the truth, and the spacing of its loads.
_TRUE_REPLAYS, _TRUE_STEP = 15, 1.08
_BATCHES = RunnerSettings(max_batch_size=8, batch_window_ms=10.0)
SPEC = WorkloadSpec(name="simulated", folder=Path(), entry="a:B", traffic=Path("t"))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kind of service.

    :param limit: seconds at :data:`PERCENTILE`.
    :param world: fields of :class:`SweepWorld`; ``bursts`` as :func:`make_traffic` takes them.
    """

    limit: float
    settings: RunnerSettings = _BATCHES
    bursts: float = 2.0
    world: Mapping[str, float] = field(default_factory=dict)


_SERVICE = {"fixed": 0.010, "each": 0.020, "noise": 0.02, "restart": 0.03}
CASES: dict[str, Case] = {
    "quiet machine": Case(limit=0.3, world=_SERVICE),
    "slower under load": Case(limit=0.3, world={**_SERVICE, "drift": 0.15}),
    "noisy batches": Case(limit=0.3, world={**_SERVICE, "noise": 0.15, "restart": 0.05}),
    "restarts differ": Case(limit=0.3, world={**_SERVICE, "restart": 0.12}),
    "one by one": Case(limit=0.3, settings=RunnerSettings(), world={**_SERVICE, "noise": 0.1}),
    "far below capacity": Case(limit=0.1, world={**_SERVICE, "fixed": 0.002, "each": 0.004}),
    "independent arrivals": Case(limit=0.25, bursts=1.0, world=_SERVICE),
}


@dataclass(frozen=True)
class Swept:
    """One sweep and the truth, in multiples of the recorded rate.

    :param predicted: errors of the percentile that was predicted before each replay, as factors.
    """

    truth: float
    largest: LargestLoad
    rate: float
    replays: int
    seconds: float
    predicted: tuple[float, ...]

    @property
    def holds(self) -> bool:
        """True if the interval contains the true largest load."""
        return (self.largest.lo or 0.0) <= self.truth * self.rate <= (self.largest.hi or math.inf)

    @property
    def width(self) -> float:
        """Width of the interval, as a factor."""
        return (self.largest.hi or math.inf) / max(self.largest.lo or 0.0, 1e-9)

    @property
    def off(self) -> float:
        """Error of the answer, as a factor."""
        ratio = (self.largest.rps or math.inf) / (self.truth * self.rate)
        return max(ratio, 1 / ratio)


def swept(case: Case, seed: int) -> Swept:
    """Sweep one service."""
    world = SweepWorld(**{**case.world, "recorded": RECORDED, "seed": seed})
    traffic = make_traffic(REQUESTS, RECORDED, seed=seed, bursts=case.bursts)
    target = LatencyObjective(percentile=PERCENTILE, limit=case.limit)
    count = plan_requests(RECORDED, (1.0, 1.0, 1.0), 1, BUDGET_S, target)
    shortest_s, longest_s = point_seconds(BUDGET_S, 1)
    part = part_of(traffic, count, shortest_s=shortest_s, longest_s=longest_s)
    with tempfile.TemporaryDirectory() as folder:
        sweep = Sweep(
            SPEC,
            part,
            [Setting(number=0, values={}, settings=case.settings)],
            Path(folder),
            Options(loads=(), budget_s=BUDGET_S, target=target, seed=seed),
            watch=_unwatched,
            say=lambda _: None,
            keep=lambda _: None,
            new_arm=world.arm,
            clock=lambda: world.now,
        )
        outcome = sweep.run()
    largest = outcome.answers[0].largest
    assert largest is not None
    before = [
        (one.predicted[0], float(np.percentile(one.point.latency, PERCENTILE)))
        for one in outcome.measured
        if one.predicted is not None and not one.point.cut
    ]
    return Swept(
        truth=_truth(case, world, replace(part, longest_s=math.inf)),
        largest=largest,
        rate=part.recorded,
        replays=len(outcome.measured),
        seconds=world.now,
        predicted=tuple(max(a / b, b / a) for a, b in before),
    )


def _truth(case: Case, world: SweepWorld, part: Part) -> float:
    """Where the median of the percentile over replays, made monotone in load, crosses the limit."""
    rng, loads, levels = np.random.default_rng(world.seed), [0.2], [-math.inf]
    while levels[-1] < math.log(2 * case.limit):
        loads.append(loads[-1] * _TRUE_STEP)
        traffic = part.at(loads[-1])
        paces = np.exp(world.restart * rng.standard_normal(_TRUE_REPLAYS))
        records = [
            world.replay(traffic, case.settings, pace, int(rng.integers(1 << 40)))
            for pace in (paces / np.median(paces))
        ]
        found = [np.percentile(record.latencies_ns() / 1e9, PERCENTILE) for record in records]
        levels.append(math.log(float(np.median(found))))
    return math.exp(np.interp(math.log(case.limit), rising_level(np.array(levels[1:])), np.log(loads[1:])))


@contextmanager
def _unwatched(label: str, traffic: Traffic, folder: Path) -> Iterator[OnEvent]:
    del label, traffic, folder
    yield lambda _: None


def table(names: list[str], seeds: int) -> dict[str, dict[str, Any]]:
    """By kind of service: how often intervals contain the truth, their width and cost.

    :returns: of each service the figures of its line; factors are the median and the largest.
    """
    rows: dict[str, dict[str, Any]] = {}
    widths = {"service": -22, "holds": 7, "found": 7, "width": 14, "off by": 14, "foretold off": 14, "replays": 9}
    print("".join(f"{head:<{-wide}}" if wide < 0 else f"{head:>{wide}}" for head, wide in widths.items()) + "   min")
    for name in names:
        every = [swept(CASES[name], seed) for seed in range(seeds)]
        wide, offs = ([getattr(one, key) for one in every] for key in ("width", "off"))
        row = rows[name] = {
            "holds": sum(one.holds for one in every),
            "found": sum(one.largest.status == "found" for one in every),
            "width": [round(float(each), 2) for each in (np.median(wide), max(wide))],
            "off": [round(float(each), 2) for each in (np.median(offs), max(offs))],
            "predicted_off": round(float(np.median([factor for one in every for factor in one.predicted])), 2),
            "replays": round(float(np.mean([one.replays for one in every])), 1),
            "minutes": round(float(np.mean([one.seconds for one in every])) / 60, 1),
        }
        print(
            f"{name:<22}{row['holds']:>4}/{seeds}{row['found']:>4}/{seeds}"
            f"{row['width'][0]:>7.2f}, {row['width'][1]:>5.2f}{row['off'][0]:>7.2f}, {row['off'][1]:>5.2f}"
            f"{row['predicted_off']:>14.2f}{row['replays']:>9.1f}{row['minutes']:>6.1f}",
            flush=True,
        )
    return rows


def waits(load: float, requests: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Waits of one M/M/1 replay from an empty start, in order of arrival; mean service time is 1."""
    arrival = np.cumsum(rng.exponential(1 / load, requests))
    service = rng.exponential(1.0, requests)
    before = np.cumsum(service) - service
    return np.asarray(np.maximum.accumulate(arrival - before) + before - arrival, dtype=np.float64)


def settled(load: float, times: float, replays: int, seed: int) -> float:
    """Mean wait over this many relaxation times after an empty start, relative to the steady one."""
    rng = np.random.default_rng(seed)
    requests = max(1, round(times * relaxation_time(load, 1.0) * load))
    return float(np.mean([waits(load, requests, rng).mean() for _ in range(replays)])) * (1 - load) / load


def main() -> int:
    """Print one of the tables, and write the first."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--services", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--settling", action="store_true")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    if not options.settling:
        rows = table(options.services, options.seeds)
        write_result(options.out, {"seeds": options.seeds, "services": rows})
        return 0
    print("load  relaxation times watched   mean wait over the steady one")
    for load in (0.8, 0.9):
        for times in (1, 3, 10, 20):
            print(f"{load:>4g} {times:>26} {settled(load, times, 3000, 0):>31.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
