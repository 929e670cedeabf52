"""How often ``latfix gate`` decides correctly about an unchanged or slower service within its budget.

    python -m benchmarks.gates.gate_power --simulated 400
        short rounds of queues on simulated machines (gate_worlds.py), with the command's repeated looks

Each round replays one of four parts of the traffic, with the machine's pace from compute in turns. The results are
merged into the results file.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gates.gate_worlds import WORLDS, Bench, Floats, World, bisect
from benchmarks.result_file import RESULTS, earlier_result, write_result
from latfix.runners.replay.run_session import versions
from latfix.statistics.control_variate import Control, fit_control
from latfix.statistics.distributions import normal_quantile, wilson_interval
from latfix.statistics.group_sequential import FIRST_LOOK, look_level
from latfix.statistics.score_bounds import Rounds, log_ratios

PARTS = 4
#: Rounds that fit into budgets of three and five minutes.
ROUNDS = {"3m": 16, "5m": 28}
QUANTILES: dict[str, float | None] = {"mean": None, "p50": 0.5, "p99": 0.99}
REQUESTS = (100,)
SIMULATED = ("steady", "drift", "neighbors", "restarts 4 %", "rare pauses")


@dataclass(frozen=True, slots=True)
class GateCase:
    """A gate ``metric<=baseline*limit`` on a service whose metric is truly ``factor`` times the baseline's."""

    metric: str
    limit: float
    rounds: int
    factor: float = 1.0
    of: str = "mean"

    @property
    def name(self) -> str:
        """The name of its line in the results."""
        change = "unchanged" if self.factor == 1 else f"{self.of} x{self.factor:g}"
        return f"{change}: {self.metric}<=baseline*{self.limit:g}, {self.rounds} rounds"


GATE_CASES = (
    GateCase("mean", 1.1, ROUNDS["3m"]),
    GateCase("p50", 1.1, ROUNDS["3m"]),
    GateCase("mean", 1.0, ROUNDS["3m"]),
    GateCase("p99", 1.0, ROUNDS["5m"]),
    GateCase("mean", 1.0, ROUNDS["3m"], 1.1, "mean"),
    GateCase("p99", 1.0, ROUNDS["5m"], 1.3, "p99"),
)


def decided(base: list[Floats], new: list[Floats], drift: Floats | None, case: GateCase) -> tuple[str, int]:
    """``passed``, ``failed`` or ``undecided``, and after how many rounds, from the decision bounds and the limit.

    A bound is beyond the limit if both tests reject the limit itself.
    """
    q, shift = QUANTILES[case.metric], math.log(case.limit)
    whole, medians = Rounds.of(base, new, paired=True), log_ratios(base, new, 0.5)
    for count in range(FIRST_LOOK, case.rounds + 1):
        level = look_level(count, case.rounds, last=count == case.rounds)
        rounds = first(whole, new, count, None if drift is None else fit_control(medians[:count], drift[:count]))
        mean, half = rounds.between(q, level)
        if abs(mean - shift) <= half:
            continue
        side = math.copysign(1, mean - shift)
        if side * rounds.score(q, shift) > normal_quantile(1 - level):
            return "failed" if side > 0 else "passed", count
    return "undecided", case.rounds


def first(whole: Rounds, new: list[Floats], count: int, control: Control | None) -> Rounds:
    """The first rounds only. The correction of a round does not move its blocks."""
    end = sum(len(each) for each in new[:count])
    shifts = np.zeros(count) if control is None else control.shifts
    return replace(
        whole,
        base=whole.base[:end],
        new=np.concatenate([each * math.exp(-by) for each, by in zip(new[:count], shifts, strict=True)]),
        base_rounds=whole.base_rounds[:count],
        new_rounds=whole.new_rounds[:count],
        blocks=whole.blocks[whole.blocks < end],
        control=control,
    )


def service_factor(world: World, requests: int, case: GateCase) -> float:
    """The factor on service times that makes the metric ``case.factor`` times as high."""
    if case.factor == 1:
        return 1.0
    quiet, q = replace(world, restart=0.0, lottery=0.0, neighbor=0.0, drift=0.0), QUANTILES[case.of]

    def figure(factor: float) -> float:
        parts = [Bench(quiet, requests, np.random.default_rng(k), factor).rounds(1)[1][0] for k in range(200)]
        every = np.concatenate(parts)
        return float(every.mean() if q is None else np.quantile(every, q))

    usual = figure(1.0)
    return bisect(lambda factor: figure(factor) / usual - case.factor, 1.0, 1.6)


def simulate(world: World, requests: int, case: GateCase, many: int, *, controlled: bool) -> dict[str, Any]:
    """Shares of comparisons by outcome."""
    factor, took = service_factor(world, requests, case), 0
    counts = dict.fromkeys(("passed", "failed", "undecided"), 0)
    for seed in range(many):
        bench = Bench(world, requests, np.random.default_rng([seed, requests]), factor)
        base, new, drift = bench.controlled_rounds(case.rounds, parts=PARTS)
        found, rounds = decided(base, new, drift if controlled else None, case)
        counts[found] += 1
        took += rounds
    return {
        **counts,
        "comparisons": many,
        "mean_rounds": round(took / many, 1),
        "failed_ci95": [round(end, 4) for end in wilson_interval(counts["failed"], many)],
    }


def main() -> int:
    """Run the requested part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--simulated", type=int, default=0, help="comparisons of each line")
    parser.add_argument("--requests", type=int, nargs="+", default=list(REQUESTS), help="of one replay")
    parser.add_argument("--worlds", nargs="+", choices=list(WORLDS), default=list(SIMULATED))
    parser.add_argument("--out", type=Path, default=RESULTS / "gate_power.json")
    options = parser.parse_args()
    document = earlier_result(options.out)
    for name in options.worlds if options.simulated else ():
        for requests in options.requests:
            for case in GATE_CASES:
                for controlled in (True, False):
                    found = simulate(WORLDS[name], requests, case, options.simulated, controlled=controlled)
                    how = "controlled" if controlled else "plain"
                    by = document.setdefault("simulated", {}).setdefault(name, {}).setdefault(str(requests), {})
                    by.setdefault(case.name, {})[how] = found
                    shown = ", ".join(f"{key} {found[key]}" for key in ("passed", "failed", "undecided"))
                    print(f"{name:<14}{requests:>4}  {case.name:<48}{how:<11}{shown}", flush=True)
        write_result(options.out, document | {"versions": versions()}, levels=5)
    return 0


if __name__ == "__main__":
    sys.exit(main())
