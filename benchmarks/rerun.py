"""List committed results that are older than the code they measure, and repeat the cheap ones.

    python -m benchmarks.rerun           `make results`: repeat cheap ones, show the commands of the others
    python -m benchmarks.rerun --list    measure nothing

A result is stale if a tenth of the lines that it measures changed since its measurement. ``commit`` in the result is
that of the measurement (the oldest, if there are several), which ``commit_from`` found elsewhere if the measurement
did not write it. Without a commit, changes are counted from the commit of the file on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.result_file import RESULTS, ROOT, git

_OPTIMIZER = ("runners/optimize", "runners/fixes", "runners/measure", "runners/backends", "profilers/forecast")
_DIAGNOSIS = ("profilers/attribution", "profilers/causes", "profilers/evidence", "profilers/probes")
_ENGINE = ("runners/engine", "runners/scheduling", "runners/calls")
#: Share of the measured lines that must have changed for a result to be stale.
_STALE = 0.1
#: The tree without files, which every git repository knows.
_EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A file of ``benchmarks/results``.

    :param command: writes it; ``{python}`` and ``{file}`` are placeholders.
    :param measures: folders whose change makes it stale.
    :param cheap: it takes about a minute.
    """

    command: str
    measures: tuple[str, ...]
    cheap: bool = False


#: Run a command of latfix, and keep the document of its ``--json``.
_LATFIX = "{python} -m benchmarks.result_file {file} latfix"
_SCALE = "{python} -m benchmarks.profilers.attribution_scale --requests"
_ALTERNATIVES = "{python} -m benchmarks.optimize.alternatives recommender --plan PLAN --rounds 3 --out {file}"
_PRETRAINED = "{python} -m benchmarks.optimize.real_models NAME --budget 5m"
CATALOGUE = {
    "alternatives.json": Result(command=_ALTERNATIVES, measures=_OPTIMIZER),
    "alternatives-exhaustive.json": Result(command=f"{_ALTERNATIVES} --exhaustive", measures=_OPTIMIZER),
    "attribution.json": Result(
        command="{python} -m benchmarks.profilers.attribution DIR --out {file}", measures=_DIAGNOSIS
    ),
    "attribution_scale.json": Result(
        command=f"{_SCALE} 100000 200000 1000000 10000000 --out {{file}}",
        measures=(*_DIAGNOSIS, "profilers/chunked"),
    ),
    "demo.json": Result(
        command="{python} -m benchmarks.optimize.typical_run --runs 5 --out {file}", measures=_OPTIMIZER
    ),
    "gate_power.json": Result(
        command="{python} -m benchmarks.gates.gate_power",
        measures=("latfix/statistics", "runners/gate"),
    ),
    "gate_services.json": Result(
        command="{python} -m benchmarks.gates.gate_services --out {file}",
        measures=("latfix/statistics", "runners/gate"),
    ),
    "gates.json": Result(
        command="{python} -m benchmarks.gates.gates --simulated 2000 --planted-simulated 200 --ended-simulated 300 "
        "--rounds 40",
        measures=("latfix/statistics", "latfix/gates"),
    ),
    "gpu.json": Result(  # needs a GPU
        command="{python} -m pytest benchmarks/gpu --out DIR", measures=("runners/gpu", "profilers/gpu")
    ),
    "house.json": Result(  # three commands, whose names are in the file
        command="{python} -m benchmarks.profilers.attribution_scale --requests 1000000",
        measures=(*_DIAGNOSIS, *_ENGINE),
    ),
    **{
        f"{name}_replay.json": Result(
            command=f"{{python}} -m benchmarks.replay.http_replay {options}--json {{file}}",
            measures=("runners/http_target",),
            cheap=name == "grpc",
        )
        for name, options in {"http": "--aiperf AIPERF --guidellm GUIDELLM ", "grpc": "--grpc "}.items()
    },
    "model_plans.json": Result(command=f"{_PRETRAINED} --plans-only", measures=_OPTIMIZER),
    **{
        f"optimize-{name}.json": Result(command=f"{_LATFIX} optimize {name}", measures=_OPTIMIZER)
        for name in ("assistant", "recommender", "vision")
    },
    "large_recordings.json": Result(
        command="{python} -m benchmarks.profilers.large_recordings --trace TRACE --out {file}",
        measures=("profilers/recordings",),
    ),
    "probe_cost.json": Result(
        command="{python} -m benchmarks.profilers.probe_cost --blocks 20", measures=("profilers/probes", *_ENGINE)
    ),
    "queue_inference.json": Result(
        command="{python} -m benchmarks.profilers.queue_inference", measures=("latfix/queueing",), cheap=True
    ),
    "real_models.json": Result(command=f"{_PRETRAINED} --duration 30 --rounds 2", measures=_OPTIMIZER),
    **{
        f"recording_cost{kind}.json": Result(
            command=f"{{python}} -m benchmarks.profilers.recording_cost {options}--out {{file}}",
            measures=("profilers/service_log",),
            cheap=True,
        )
        for kind, options in {"": "--work 0 --pause 0 ", "_cold": ""}.items()
    },
    "replay_fidelity.json": Result(
        command="{python} -m benchmarks.replay.replay_fidelity --seconds 4 --rounds 3 --loadgen FOLDER",
        measures=("runners/replay", *_ENGINE),
    ),
    "routing.json": Result(
        command="{python} -m benchmarks.scheduling.routing --out {file}",
        measures=("runners/scheduling", "latfix/queueing"),
    ),
    "selftest.json": Result(command=f"{_LATFIX} selftest --out DIR", measures=_DIAGNOSIS),
    "selftest-quiet.json": Result(
        command=f"{_LATFIX} selftest --cause quiet --seed 2000 --repeat 2", measures=_DIAGNOSIS
    ),
    "selftest-medium.json": Result(
        command=f"{_LATFIX} selftest --seed 7000 --intensity medium --out DIR", measures=_DIAGNOSIS
    ),
    "selftest-fresh.json": Result(
        command=f"{_LATFIX} selftest --seed 5000 --intensity weak --intensity medium --out DIR", measures=_DIAGNOSIS
    ),
    **{
        f"{name}.json": Result(
            command=f"{{python}} -m benchmarks.live.servers --rates {rates} --seconds 4 --rounds 2 --out {{file}}",
            measures=("runners/live", *_ENGINE),
        )
        for name, rates in {"servers": "100 200 300 400 500", "servers_high": "600 800 1000 1200 1500"}.items()
    },
    "sweep_decisions.json": Result(
        command="{python} -m benchmarks.capacity.sweep_decisions --seeds 3 --out {file}",
        measures=("runners/sweep", "latfix/capacity"),
    ),
    "variants.json": Result(
        command="{python} -m benchmarks.optimize.variants", measures=("runners/model_transforms",)
    ),
}


def main() -> int:
    """List stale results, and repeat the cheap ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="measure nothing")
    failed = 0
    options = parser.parse_args()
    for name, result in CATALOGUE.items():
        commit = commit_of(RESULTS / name)
        since = commit or git("log", "-1", "--format=%H", "--", str(RESULTS / name))
        changes = len(git("rev-list", "--no-merges", f"{since}..HEAD", "--", *result.measures).split())
        share = changed_share(since, result.measures) if changes else 0.0
        stale = share >= _STALE
        command = result.command.format(python=sys.executable, file=f"benchmarks/results/{name}")
        since_then = f"{changes} commits since, {100 * share:.0f} % of the code changed" if changes else "as measured"
        print(f"{name:<30} {commit[:8] or 'unknown':<8}  {'stale: ' * stale}{since_then}", flush=True)
        if stale and (options.list or not result.cheap):
            print(f"    {command.replace(sys.executable, 'python')}")
        elif stale:
            failed |= subprocess.run(command, shell=True, cwd=ROOT, check=False).returncode
            cited = git("grep", "-l", f"results/{name}", "--", "docs", "README.md").split()
            print(f"    measured again; update the figures in {', '.join(cited) or 'no document'}")
    return int(bool(failed))


def changed_share(commit: str, folders: Sequence[str]) -> float:
    """Share of the lines of Python in some folders that were written or removed since a commit; at most 1."""
    return min(_changed_lines(commit, folders) / max(_changed_lines(_EMPTY_TREE, folders), 1), 1.0)


def _changed_lines(commit: str, folders: Sequence[str]) -> int:
    rows = git("diff", "--numstat", commit, "HEAD", "--", *(f"{folder}/*.py" for folder in folders)).splitlines()
    return sum(max(map(int, row.split("\t")[:2])) for row in rows)


def commit_of(file: Path) -> str:
    """The commit at which a result was measured, the oldest of its parts; empty if it names none that is here."""
    known = set(_commits(json.loads(file.read_text(encoding="utf-8"))))
    listed = git("rev-list", "--ignore-missing", "--topo-order", "--no-walk=sorted", *known) if known else ""
    return listed.split()[-1] if listed else ""


def _commits(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        if isinstance(commit := part.get("commit"), str):
            yield commit
        for each in part.values():
            yield from _commits(each)
    elif isinstance(part, list):
        for each in part:
            yield from _commits(each)


if __name__ == "__main__":
    sys.exit(main())
