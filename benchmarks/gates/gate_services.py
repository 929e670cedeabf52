"""Minutes that ``latfix gate`` needs on real services, unchanged and slower.

    python -m benchmarks.gates.gate_services                                     all nine cells, five minutes each
    python -m benchmarks.gates.gate_services --services example --changes 1.3 --budget 2m

The services: ``service``, examples/plain_service.py with uvicorn, started by commands; ``recommender``; and
``example`` of ``latfix init``. A slower copy computes 1.1 or 1.3 times as long. A cell replays rounds until the
budget is spent. Each gate is then decided on these rounds by the code of the command, with their times. If
``--budget`` is above ``--decide`` (five minutes), there are more rounds than one decision needs: 100 draws of them,
in random order, are decided. Draws share rounds, so the number of rounds limits how well their shares are known.

A cell takes its budget and about half a minute, or three minutes with draws.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gates.gate_power import CASES, QUANTILES, decided
from benchmarks.gates.gate_worlds import Floats
from benchmarks.result_file import RESULTS, ROOT, earlier_result, write_result
from latfix.cli.commands.init import write_starter
from latfix.cli.commands.running.gate import places
from latfix.cli.shared.address_flow import AddressOptions, served_arm, spec_of
from latfix.cli.shared.options import parse_budget
from latfix.cli.shared.replay_progress import ReplayLines
from latfix.config.workload_toml import WorkloadSpec, load_spec, read_spec
from latfix.run_record.run_record import RunRecord
from latfix.runners.gate.paired_rounds import Round, Side, cut, part_seconds, replay_rounds
from latfix.runners.replay.arm import Arm
from latfix.stages import Status
from latfix.statistics.control_variate import fit_control
from latfix.statistics.score_bounds import log_ratios
from latfix.traffic.io.reader import read_traffic
from latfix.traffic.schedule import Traffic
from latfix.traffic.transforms import limit

EXAMPLES = ROOT / "examples"
CHANGES = tuple(dict.fromkeys(case.change for case in CASES))
DRAWS = 100
_WARM = 10

#: Of a workload's copy. The model computes, then stays busy for a part of that time.
_LONGER = """

class Longer(torch.nn.Module):
    def __init__(self, model, factor):
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, *inputs, **named):
        import time
        begun = time.perf_counter()
        found = self.model(*inputs, **named)
        until = begun + (time.perf_counter() - begun) * self.factor
        while time.perf_counter() < until:
            pass
        return found


class {name}({name}):
    def load(self, device):
        return Longer(super().load(device), {factor})
"""

Sides = tuple[Side, Side]


def workload_sides(spec: WorkloadSpec, change: float, folder: Path) -> tuple[Sides, Traffic]:
    """A workload and a slower copy of it."""
    specs = [spec, spec]
    if change != 1:
        copy = folder / "slower"
        shutil.copytree(spec.folder, copy)
        file, _, name = spec.entry.partition(":")
        with (copy / f"{file}.py").open("a", encoding="utf-8") as adapter:
            adapter.write(_LONGER.format(name=name, factor=change))
        specs[1] = read_spec(copy)
    base, head = (
        Arm(
            label, each, each.settings.with_overrides({"device": "cpu", "warmup_requests": _WARM}), (), folder / label
        )
        for label, each in zip(("base", "head"), specs, strict=True)
    )
    return (base, head), read_traffic(spec.traffic)


def service_sides(change: float, folder: Path) -> tuple[Sides, Traffic]:
    """The ported service by two commands, and its traffic: texts of about 28 words, 40 per second."""
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(1 / 40, 1600)).round(6).tolist()
    lengths = np.clip(np.exp(rng.normal(3.3, 0.5, 1600)), 1, 96).astype(int)
    texts = [" ".join(rng.choice(["a", "fine", "day", "by", "the", "sea"], size)) for size in lengths]
    rows = [{"arrival_s": at, "payload": text} for at, text in zip(arrivals, texts, strict=True)]
    (folder / "traffic.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = AddressOptions(body='{"text": "{payload}"}', metrics="off")
    start = (
        f"exec {sys.executable} -m uvicorn plain_service:app --app-dir {EXAMPLES} --port {{port}} --log-level warning"
    )
    found = places((f"LONGER=1 {start}", f"LONGER={change} {start}"), "http://127.0.0.1:{port}/rate")
    spec = spec_of(found[0][1], options, folder / "traffic.jsonl", None)
    traffic = read_traffic(spec.traffic)
    base, head = (
        served_arm(label, *place, options, spec, folder, limit(traffic, _WARM), shared=False)
        for label, place in zip(("base", "head"), found, strict=True)
    )
    return (base, head), traffic


def sides(service: str, change: float, folder: Path) -> tuple[Sides, Traffic]:
    """Both arms of a cell, and its traffic."""
    if service == "service":
        return service_sides(change, folder)
    if service == "recommender":
        return workload_sides(load_spec("recommender"), change, folder)
    write_starter(folder / "example")
    return workload_sides(read_spec(folder / "example"), change, folder)


#: A round, and the seconds that it took.
Timed = tuple[Round, float]


def record(arms: Sides, traffic: Traffic, folder: Path, budget_s: float, decide_s: float) -> list[Timed]:
    """Rounds until the budget is spent; each is as long as in a gate with ``decide_s``."""
    until, found = time.monotonic() + budget_s, []
    arms[0].running()
    parts = cut(traffic, part_seconds(traffic, decide_s, arms[0].start_s))
    with contextlib.closing(replay_rounds(*arms, parts, folder, ReplayLines().hidden, seed=0)) as rounds:
        while True:
            begun = time.monotonic()
            one = next(rounds)
            found.append((one, time.monotonic() - begun))
            if time.monotonic() + found[-1][1] > until:
                return found


def latencies(record: RunRecord) -> Floats:
    """Nanoseconds by position in the schedule; NaN if a request did not end ok."""
    rows = record.requests
    ok = record.measured & (rows["status"] == Status.OK)
    found = np.full(len(record.traffic), np.nan)
    found[rows["index"][ok]] = rows["latency_ns"][ok]
    return found


def cell(rounds: list[Timed], change: float, decide_s: float) -> dict[str, Any]:
    """What the rounds decide, by gate."""
    took = np.array([seconds for _, seconds in rounds])
    base, new = ([latencies(getattr(one, arm)) for one, _ in rounds] for arm in ("base", "new"))
    drift, held = np.array([one.drift for one, _ in rounds]), max(int(decide_s / took.mean()), 1)
    orders = [np.arange(len(rounds))]
    if len(rounds) > held:
        orders = [np.random.default_rng(seed).permutation(len(rounds))[:held] for seed in range(DRAWS)]
    found: dict[str, Any] = {"rounds": len(rounds), "round_s": round(float(took.mean()), 1)}
    for key in QUANTILES:
        each = log_ratios(base, new, QUANTILES[key])
        at_pace = each - fit_control(each, drift).shifts
        found[f"{key} of a round"] = {
            "ratio": round(float(np.exp(np.nanmean(each))), 3),
            "spread": round(float(np.nanstd(each, ddof=1)), 3),
            "spread_at_equal_pace": round(float(np.nanstd(at_pace, ddof=1)), 3),
        }
        for case in (case for case in CASES if case.change == change):
            names, minutes = [], []
            for order in orders:
                arms = [base[k] for k in order], [new[k] for k in order]
                name, count = decided(*arms, drift[order], key, case.limit)
                names.append(name)
                minutes.append(float(took[order[:count]].sum()) / 60)
            found[f"{key}<=baseline*{case.limit:g}"] = {
                **{name: names.count(name) / len(names) for name in ("passed", "failed", "undecided")},
                "right": case.right[0],
                "minutes": round(float(np.median(minutes)), 1),
            }
    return found


def main() -> int:
    """Measure the requested cells."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = ("service", "recommender", "example")
    parser.add_argument("--services", nargs="+", choices=names, default=list(names))
    parser.add_argument("--changes", nargs="+", type=float, choices=CHANGES, default=list(CHANGES))
    parser.add_argument("--budget", default="5m", help="of each cell's replays")
    parser.add_argument("--decide", default="5m", help="of one decision")
    parser.add_argument("--out", type=Path, default=RESULTS / "gate_services.json")
    options = parser.parse_args()
    budget_s, decide_s = parse_budget(options.budget), parse_budget(options.decide)
    document = earlier_result(options.out)
    for service in options.services:
        for change in options.changes:
            begun = time.monotonic()
            with tempfile.TemporaryDirectory() as place:
                arms, traffic = sides(service, change, Path(place))
                try:
                    rounds = record(arms, traffic, Path(place), budget_s, min(budget_s, decide_s))
                finally:
                    for arm in arms:
                        arm.close()
                found = cell(rounds, change, min(budget_s, decide_s))
            took = time.monotonic() - begun
            print(f"{service}, x{change:g}: {json.dumps(found, indent=1)}\n{took:.0f} s", flush=True)
            document[f"{service}, x{change:g}"] = {**found, "minutes_taken": round(took / 60, 1)}
            write_result(options.out, document, levels=3)
    return 0


if __name__ == "__main__":
    sys.exit(main())
