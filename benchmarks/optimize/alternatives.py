"""latfix's plan compared with obvious alternatives: each alone, and every combination of a few.

    latfix optimize recommender --out run          finds a plan
    python -m benchmarks.optimize.alternatives recommender --plan run/plan.toml --rounds 3 --out results.json
    python -m benchmarks.optimize.alternatives recommender --plan run/plan.toml --exhaustive --out results.json

All arms replay the whole traffic in turns, on fresh processes each round, like ``latfix try``. Ratios are relative to
the unmodified workload, with 95 % intervals. ``--exhaustive`` replays every combination of a few settings on the
screening windows instead, to show how close the plan is to the best one. Arms that cannot run report the reason.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.result_file import write_result
from latfix.config.plan import read_plan
from latfix.config.workload_toml import WorkloadSpec, load_spec
from latfix.errors import LatfixError
from latfix.results.comparison import Trial
from latfix.run_record.run_record import RunRecord
from latfix.runners.optimize.screening_decision import compare_windows, joined
from latfix.runners.optimize.screening_windows import screening_windows
from latfix.runners.replay.arm import Arm
from latfix.runners.replay.run_session import new_folder
from latfix.runners.replay.runner_process import OnEvent
from latfix.runners.side_by_side.ideas import AS_IT_IS, Idea, idea_of_changes
from latfix.runners.side_by_side.replay_in_turns import SideBySide
from latfix.traffic.io.reader import read_traffic
from latfix.traffic.schedule import Traffic
from latfix.traffic.transforms import scale_time, slice_time

#: Obvious changes, each alone.
ALONE: dict[str, dict[str, Any]] = {
    "torch.compile": {"compile": "dynamic", "warmup_shapes": 8},
    "int8": {"precision": "int8_dynamic"},
    "bf16": {"precision": "bf16"},
    "batches twice as large": {},
    "ONNX Runtime": {"backend": "onnxruntime"},
    "one thread an operator": {"intra_op_threads": 1},
}
#: The settings of the exhaustive search.
SPACE: dict[str, tuple[dict[str, Any], ...]] = {
    "precision": ({}, {"precision": "int8_dynamic"}),
    "batches": ({}, {"max_batch_size": 1}),
    "window": ({}, {"batch_window_ms": 0.0}),
    "workers": ({}, {"workers": 2, "intra_op_threads": 1}),
}
#: The budget, as a multiple of the traffic that all replays send: a share of it limits the start of each arm.
_SLOWER = 3.0
_KEYS = ("mean", "p50", "p95", "p99")


def main() -> None:
    """Replay, and print or write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload")
    parser.add_argument("--plan", type=Path, required=True, help="of latfix optimize")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--duration", type=float, default=30.0, help="seconds of the traffic")
    parser.add_argument("--exhaustive", action="store_true")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    arguments = parser.parse_args()
    spec = load_spec(arguments.workload)
    traffic = read_traffic(spec.traffic, mapping=spec.traffic_map)
    traffic = slice_time(traffic, 0, min(arguments.duration, traffic.duration_s + 1e-3))
    planned = read_plan(arguments.plan)
    changes = {"latfix": planned.settings()}
    if arguments.exhaustive:
        changes |= {"+".join(names): change for names, change in combinations()}
    else:
        changes |= ALONE
        changes["batches twice as large"] = {"max_batch_size": 2 * spec.settings.max_batch_size}
    with tempfile.TemporaryDirectory() as scratch:
        if arguments.exhaustive:
            results = screened(spec, traffic, changes, Path(scratch))
        else:
            results = results_of(whole(spec, traffic, changes, arguments.rounds, Path(scratch)))
    document = {
        "workload": spec.name,
        "seconds": arguments.duration,
        "fixes": [fix.id for fix in planned.fixes],
        "exhaustive": arguments.exhaustive,
        "arms": results,
    }
    write_result(arguments.out, document)


def combinations() -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every combination of the space except the first settings, with the names of its changes."""
    for chosen in itertools.product(*SPACE.values()):
        names = tuple(name for name, change in zip(SPACE, chosen, strict=True) if change)
        if names:
            yield names, {key: value for change in chosen for key, value in change.items()}


def whole(
    spec: WorkloadSpec, traffic: Traffic, changes: dict[str, dict[str, Any]], rounds: int, folder: Path
) -> Trial:
    """Each change and the unmodified workload on the whole traffic, all in each round."""
    base = Idea(name=AS_IT_IS, spec=spec, settings=spec.settings)
    ideas = [base, *(idea_of_changes(name, base, change) for name, change in changes.items())]
    budget_s = _SLOWER * rounds * len(ideas) * traffic.duration_s
    return SideBySide(
        ideas, traffic, folder, budget_s=budget_s, rounds=rounds, watch=_quiet, say=lambda _: None
    ).run()


def results_of(trial: Trial) -> dict[str, Any]:
    """For each arm, its comparison and accuracy, or why it did not run."""
    found: dict[str, Any] = {}
    for idea in trial.ideas:
        if idea.comparison is None:
            found[idea.name] = {"failed": idea.failure}
            print(f"{idea.name:<28} did not run: {idea.failure}")
            continue
        found[idea.name] = idea.comparison.to_json() | {"accuracy": idea.accuracy}
        ratios = ", ".join(_ratio_text(key, idea.comparison.ratio[key]) for key in ("mean", "p99"))
        print(f"{idea.name:<28} {ratios}", flush=True)
    return found


def screened(
    spec: WorkloadSpec, traffic: Traffic, changes: dict[str, dict[str, Any]], folder: Path
) -> dict[str, Any]:
    """Every change on the screening windows, each in turns with the unmodified workload."""

    def arm_of(name: str, change: dict[str, Any]) -> Arm:
        return Arm(name, spec, spec.settings.with_overrides(change), (), folder / "runner.log")

    def replay(arm: Arm, part: Traffic) -> RunRecord:
        return arm.replay(new_folder(folder / arm.label), part, _quiet, seed=0)

    base = arm_of("as it is", {})
    baseline = replay(base, traffic)
    windows = screening_windows(traffic, baseline)
    results: dict[str, Any] = {}
    for name, change in changes.items():
        arm = arm_of(name, change)
        try:
            for each in (base, arm):
                if not each.settled:
                    each.prime(baseline.folder)
                    for window in windows:  # as in latfix optimize: first uses are not caused by a setting
                        replay(each, scale_time(window, 2.0))
                    each.settled = True
            pairs = []
            for k, window in enumerate(windows):
                records = {each.label: replay(each, window) for each in ((base, arm) if k % 2 == 0 else (arm, base))}
                pairs.append((records[base.label], records[arm.label]))
        except LatfixError as error:
            results[name] = {"failed": error.message}
            print(f"{name:<44} did not run: {error.message}", flush=True)
            continue
        finally:
            arm.close()
        compared = compare_windows(*joined(pairs), 0)
        results[name] = {key: compared.ratio[key].to_json() for key in _KEYS}
        ratios = ", ".join(_ratio_text(key, compared.ratio[key]) for key in ("mean", "p99"))
        print(f"{name:<44} {ratios}", flush=True)
    base.close()
    return results


def _ratio_text(key: str, ratio: Any) -> str:
    return f"{key} x{ratio.value:.3f} [{ratio.lo:.3f}, {ratio.hi:.3f}]"


@contextlib.contextmanager
def _quiet(*_: Any) -> Iterator[OnEvent]:
    yield lambda _: None


if __name__ == "__main__":
    main()
