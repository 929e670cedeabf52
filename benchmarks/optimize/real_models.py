"""Pretrained models of ``benchmarks/models``: latfix's plan compared with each obvious single change.

    python benchmarks/models/install.py
    python -m benchmarks.optimize.real_models [--plans-only] [--held-out | NAME …]
    python -m benchmarks.optimize.real_models --summary      the lines of docs/results.md, from the committed results

For each workload ``latfix optimize`` finds a plan. Then the unmodified workload, each change and the plan replay
the traffic in turns, on fresh processes each round. Accuracy is the workload's score, or agreement with the
unmodified model's answers. Results are merged into ``benchmarks/results/real_models.json``, one row per workload
with its commit. Plans are kept with the runs in ``--runs``, and existing ones are reused.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.optimize.alternatives import results_of, whole
from benchmarks.result_file import RESULTS, origin, write_result
from latfix.config.plan import read_plan
from latfix.config.workload_toml import read_spec
from latfix.traffic.io.reader import read_traffic
from latfix.traffic.transforms import slice_time

MODELS = Path(__file__).resolve().parents[1] / "models"
DEVELOPMENT = ("text_encoder", "voice_encoder", "pitch", "voice_activity", "ocr", "denoise")
#: No rule of the search is chosen by these.
HELD_OUT = ("file_type", "text_detection", "chat", "speech_quality", "materials", "antibody", "turn")
ALONE: dict[str, dict[str, Any]] = {
    "int8": {"precision": "int8_dynamic"},
    "bfloat16": {"precision": "bf16"},
    "ONNX Runtime": {"backend": "onnxruntime"},
    "OpenVINO": {"backend": "openvino"},
    "torch.compile": {"compile": "dynamic", "warmup_shapes": 8},
    "no window": {"batch_window_ms": 0.0},
    "batches of 1": {"max_batch_size": 1},
    "one thread": {"intra_op_threads": 1},
    "two workers": {"workers": 2, "intra_op_threads": 1},
}
_PLAN = "latfix"
KEYS = ("p50", "p99", "mean")
#: Of the score, as in each ``workload.toml``.
MAX_DROP = 0.01


def main() -> None:
    """Measure, print, and write the results after each workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", choices=[[], *DEVELOPMENT, *HELD_OUT], metavar="WORKLOAD")
    parser.add_argument("--held-out", action="store_true", help="the held-out ones instead of the others")
    parser.add_argument("--summary", action="store_true", help="measure nothing, and print what is known")
    parser.add_argument("--plans-only", action="store_true", help="only latfix optimize, without the other arms")
    parser.add_argument("--budget", default="5m", help="of latfix optimize")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--duration", type=float, default=60.0, help="seconds of the traffic")
    parser.add_argument("--runs", type=Path, default=Path("latfix-runs/real_models"))
    parser.add_argument("--out", type=Path, default=RESULTS / "real_models.json")
    options = parser.parse_args()
    if options.summary:
        print(summary(json.loads(options.out.read_text(encoding="utf-8"))["workloads"]))
        return
    how = origin() | {"budget": options.budget, "rounds": options.rounds, "seconds": options.duration}
    known = json.loads(options.out.read_text(encoding="utf-8"))["workloads"] if options.out.exists() else {}
    document: dict[str, Any] = {"workloads": known}
    for name in options.workloads or (HELD_OUT if options.held_out else DEVELOPMENT):
        found = how | optimized(name, options) | {"held_out": name in HELD_OUT}
        found["arms"] = {} if options.plans_only else arms(name, options, found.get("settings"))
        document["workloads"][name] = found
        show(name, found)
        write_result(options.out, document)


def optimized(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The result of ``latfix optimize``, its duration and the settings of its plan; or how it failed."""
    run, file = options.runs / name, options.runs / f"{name}.json"
    options.runs.mkdir(parents=True, exist_ok=True)
    started, known = time.monotonic(), file.exists()
    latfix = str(Path(sys.executable).with_name("latfix"))
    command = [latfix, "optimize", str(MODELS / name), "--budget", options.budget]
    command += ["--duration", str(options.duration), "--out", str(run), "--json", str(file)]
    ended = None if known else subprocess.run(command, capture_output=True, text=True, check=False)
    minutes = None if ended is None else (time.monotonic() - started) / 60
    if ended is not None:
        (options.runs / f"{name}.log").write_text(ended.stderr + ended.stdout, encoding="utf-8")
    if not file.exists():
        return {"minutes": minutes, "failed": ended.stderr.strip()[-500:] if ended else ""}
    result = json.loads(file.read_text(encoding="utf-8"))
    kept = {key: result[key] for key in ("verdict", "ratio", "prediction_error")}
    kept["steps"] = [{key: step.get(key) for key in ("fix", "status", "reason")} for step in result["steps"]]
    plan = read_plan(run / result["plan"]) if result["plan"] else None
    settings = plan.settings() if plan else {}
    return {"minutes": minutes, "fixes": [fix.id for fix in plan.fixes] if plan else [], "settings": settings} | kept


def arms(name: str, options: argparse.Namespace, plan: dict[str, Any] | None) -> dict[str, Any]:
    """Each arm's latencies, accuracy and ratios to the unmodified workload, or why it did not run."""
    spec = read_spec(MODELS / name)
    traffic = read_traffic(spec.traffic, mapping=spec.traffic_map)
    traffic = slice_time(traffic, 0, min(options.duration, traffic.duration_s + 1e-3))
    changes = ALONE | ({_PLAN: plan} if plan else {})
    with tempfile.TemporaryDirectory() as scratch:
        trial = whole(spec, traffic, changes, options.rounds, Path(scratch))
    base = {"after": trial.summary.to_json(), "accuracy": trial.base.accuracy} if trial.summary else {}
    return ({trial.base.name: base} if base else {}) | results_of(trial)


def best_alone(found: dict[str, Any]) -> dict[str, float]:
    """Ratios of the single change with the lowest p99 among those that keep the score, 1 if none is better."""
    arms = {name: arm for name, arm in found["arms"].items() if "failed" not in arm}
    least = arms["as it is"]["accuracy"] - MAX_DROP
    kept = [ratios(arm) for name, arm in arms.items() if name in ALONE and arm["accuracy"] >= least]
    return min([*kept, dict.fromkeys(KEYS, 1.0)], key=lambda each: each["p99"])


def ratios(arm: dict[str, Any]) -> dict[str, float]:
    """An arm over the first deployment."""
    return {key: float(arm["ratio"][key]["value"]) for key in KEYS}


def summary(workloads: dict[str, Any]) -> str:
    """Rows of Markdown: for each model the plan over the first deployment, and over the best single change.

    Ends with geometric means. Earlier measurements of a model (``NAME@COMMIT``) do not count.
    """
    now = {name: found for name, found in workloads.items() if "@" not in name and _PLAN in found["arms"]}
    plan = {name: ratios(found["arms"][_PLAN]) for name, found in now.items()}
    over_best = {name: {key: plan[name][key] / best_alone(found)[key] for key in KEYS} for name, found in now.items()}
    mean = {key: geometric_mean(each[key] for each in plan.values()) for key in KEYS}
    mean_over_best = {key: geometric_mean(each[key] for each in over_best.values()) for key in KEYS}
    rows = [(name, plan[name], over_best[name]) for name in now]
    rows.append((f"geometric mean of {len(now)}", mean, mean_over_best))
    lines = [
        "| | " + " | ".join(f"{key} of the plan" for key in KEYS) + " | p99 over that of the best single change |"
    ]
    lines.append("|---" * (len(KEYS) + 2) + "|")
    for name, each, best in rows:
        lines.append(f"| {name} | " + " | ".join(f"x{each[key]:.3f}" for key in KEYS) + f" | x{best['p99']:.3f} |")
    return "\n".join(lines)


def show(name: str, found: dict[str, Any]) -> None:
    """One table: milliseconds, ratios of p99, accuracy."""
    print(f"\n{name}: {found.get('verdict', 'failed')} in {found['minutes'] or 0:.1f} min, {found.get('fixes', [])}")
    error = (found.get("prediction_error") or {}).get("p99", {}).get("final_error")
    print(f"  error of the predicted p99: {'unknown' if error is None else f'{error:.0%}'}")
    print(f"  {'':<16}{'p50':>9}{'p99':>9}{'mean':>9}  {'accuracy':>8}  p99 over as it is")
    for arm, each in found["arms"].items():
        if "failed" in each:
            print(f"  {arm:<16}did not run: {each['failed'][:90]}")
            continue
        times = "".join(f"{_ms(each['after']['latency_ms'][key]):>9}" for key in ("p50", "p99", "mean"))
        ratio = each.get("ratio", {}).get("p99")
        ratio_text = "{:.2f} [{:.2f}, {:.2f}]".format(ratio["value"], *ratio["ci95"]) if ratio else ""
        print(f"  {arm:<16}{times}  {each['accuracy']:>8.4f}  {ratio_text}", flush=True)


def _ms(value: float | None) -> str:
    return "lost" if value is None else f"{value:.1f}"


if __name__ == "__main__":
    main()
