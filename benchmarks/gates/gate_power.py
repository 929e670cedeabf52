"""How often ``latfix gate`` decides correctly about an unchanged or slower service within a budget of five minutes.

    python -m benchmarks.gates.gate_power [--comparisons 100] [--worlds steady drift] [--statistics mean p99]
        short rounds of queues on simulated machines (gate_worlds.py), decided by the code of the command

Every line is one world, statistic, change and limit: shares of comparisons that were decided right, wrong, or not,
and the median of the minutes until the end, merged into the results file. ``--seed 1000000`` gives other comparisons
than those in the file, for development.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gates.gate_worlds import WORLDS, Bench, Floats, World, bisect
from benchmarks.result_file import RESULTS, earlier_result, write_result
from latfix.runners.replay.run_session import versions
from latfix.statistics.bootstrap_ratio import ROUNDS_ALONE, arm_ratios
from latfix.statistics.control_variate import fit_control
from latfix.statistics.decision import Rule
from latfix.statistics.distributions import wilson_interval
from latfix.statistics.group_sequential import FIRST_LOOK, look_level
from latfix.statistics.score_bounds import between, log_ratios

#: Parts of the traffic, replayed in turn.
PARTS = 4
#: Rounds and requests of a replay in five minutes, of a service that starts in 3 s and gets 42 requests per second
#: (latfix.runners.gate.paired_rounds).
MINUTES, ROUNDS, REQUESTS = 5.0, 28, 100
#: Resamples of the interval of fewer than eight rounds; the command draws 400.
REPLICATES = 100
QUANTILES: dict[str, float | None] = {"mean": None, "p50": 0.5, "p95": 0.95, "p99": 0.99}
SIMULATED = ("steady", "drift", "neighbors", "restarts 4 %", "frequent pauses", "rare pauses")


@dataclass(frozen=True, slots=True)
class GateCase:
    """A gate ``statistic<=baseline*limit`` on a service whose statistic is truly ``change`` times the baseline's."""

    change: float
    limit: float

    @property
    def name(self) -> str:
        """The name of its line in the results."""
        return f"x{self.change:g}, limit x{self.limit:g}"

    @property
    def right(self) -> tuple[str, ...]:
        """The outcomes that are no error; a service at the limit passes."""
        return ("failed",) if self.change > self.limit else ("passed",)


CASES = (GateCase(1.0, 1.1), GateCase(1.0, 1.0), GateCase(1.1, 1.0), GateCase(1.3, 1.0), GateCase(1.3, 1.1))


def decided(base: list[Floats], new: list[Floats], drift: Floats, key: str, limit: float) -> tuple[str, int]:
    """``passed``, ``failed`` or ``undecided``, and after how many of the rounds, which are all that the budget holds.

    The bounds, which take long, are computed only where the rounds alone, a part of them, would decide.
    """
    each, most = log_ratios(base, new, QUANTILES[key]), len(base)
    for count in range(min(FIRST_LOOK, most), most + 1):
        level = look_level(count, most, last=count == most)
        some, control = each[:count], drift[:count]
        if count >= FIRST_LOOK:
            plain = count < ROUNDS_ALONE
            alone = between(some, level) if plain else fit_control(some, control).between(some, level)
            if abs(alone[0] - math.log(limit)) <= alone[1]:
                continue
        rule, arms = Rule(level=level), (base[:count], new[:count])
        found = arm_ratios(*arms, seed=0, replicates=REPLICATES, keys=[key], rule=rule, control=control)
        low, high = found[key].bounds
        if high <= limit or low > limit:
            return "passed" if high <= limit else "failed", count
    return "undecided", most


def service_factor(world: World, key: str, change: float) -> float:
    """The factor on service times that makes the statistic ``change`` times as high."""
    if change == 1:
        return 1.0
    quiet, q = replace(world, restart=0.0, lottery=0.0, neighbor=0.0, drift=0.0), QUANTILES[key]

    def figure(factor: float) -> float:
        parts = [Bench(quiet, REQUESTS, np.random.default_rng(k), factor).rounds(1)[1][0] for k in range(200)]
        every = np.concatenate(parts)
        return float(every.mean() if q is None else np.quantile(every, q))

    usual = figure(1.0)
    return bisect(lambda factor: figure(factor) / usual - change, 1.0, 1.6)


def simulate(world: World, key: str, many: int, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines of one statistic."""
    for change in dict.fromkeys(case.change for case in CASES):
        factor = service_factor(world, key, change)
        found: dict[GateCase, list[tuple[str, int]]] = {case: [] for case in CASES if case.change == change}
        for number in range(many):
            bench = Bench(world, REQUESTS, np.random.default_rng([seed + number, REQUESTS]), factor)
            base, new, drift = bench.controlled_rounds(ROUNDS, parts=PARTS)
            for case, outcomes in found.items():
                outcomes.append(decided(base, new, drift, key, case.limit))
        for case, outcomes in found.items():
            yield case.name, line(case, outcomes)


def line(case: GateCase, outcomes: list[tuple[str, int]]) -> dict[str, Any]:
    """Shares and minutes of the comparisons of one case."""
    many, names = len(outcomes), [name for name, _ in outcomes]
    right = sum(name in case.right for name in names)
    wrong = many - right - names.count("undecided")
    rounds = float(np.median([count for _, count in outcomes]))
    return {
        "right": right / many,
        "wrong": wrong / many,
        "undecided": names.count("undecided") / many,
        "minutes": round(rounds * MINUTES / ROUNDS, 1),
        "comparisons": many,
        "wrong_ci95": [round(end, 4) for end in wilson_interval(wrong, many)],
    }


def main() -> int:
    """Simulate the requested worlds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--comparisons", type=int, default=100, help="of each line")
    parser.add_argument("--worlds", nargs="+", choices=list(WORLDS), default=list(SIMULATED))
    parser.add_argument("--statistics", nargs="+", choices=list(QUANTILES), default=list(QUANTILES))
    parser.add_argument("--seed", type=int, default=0, help="of the first comparison")
    parser.add_argument("--out", type=Path, default=RESULTS / "gate_power.json")
    options = parser.parse_args()
    print(f"{'':<28}{'gate':<24}right  wrong  undecided  minutes")
    document = earlier_result(options.out)
    for world in options.worlds:
        for key in options.statistics:
            lines = {}
            for name, found in simulate(WORLDS[world], key, options.comparisons, options.seed):
                shares = "".join(f"{100 * found[share]:>7.1f}" for share in ("right", "wrong", "undecided"))
                print(f"{world:<18}{key:<10}{name:<24}{shares}{found['minutes']:>11}", flush=True)
                lines[name] = found
            document[f"{world}, {key}"] = lines
        write_result(options.out, document | {"versions": versions()}, levels=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
