"""The typical run of ``make demo``: the command several times, and the output of the run with the median p99 ratio.

    python -m benchmarks.optimize.typical_run [--runs 5]      about four minutes a run; needs a quiet machine

Writes ``benchmarks/results/demo.json`` after each run: ``runs`` with the ratios of each, ``output`` and ``result`` of
the typical one. README shows that output; ``tests/benchmarks/test_typical_run.py`` compares them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.result_file import RESULTS, latfix_command, write_result

#: As in the Makefile.
DEMO = ("optimize", "recommender", "--duration", "30", "--budget", "180s")
_COLUMNS = "80"


def main() -> int:
    """Run, write, and print the typical output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="an odd number")
    parser.add_argument("--out", type=Path, default=RESULTS / "demo.json")
    options = parser.parse_args()
    if options.runs < 1 or options.runs % 2 == 0:
        parser.error(f"--runs {options.runs}: expected an odd number, so that one run is the median")
    runs: list[dict[str, Any]] = []
    for number in range(1, options.runs + 1):
        runs.append(demo())
        document = summary(runs)
        write_result(options.out, document)
        last = document["runs"][-1]
        print(f"{number} of {options.runs}: p99 x{last['p99']:.3f}, {last['verdict']}", flush=True)
    print("\n".join(document["output"]))
    print(f"\nmedian of {options.runs}: p99 x{document['median']['p99']:.3f}; README.md shows this output")
    return 0


def demo() -> dict[str, Any]:
    """One run: what it printed, in lines, and its document."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "optimization.json"
        command = [*latfix_command(*DEMO), "--out", str(Path(scratch) / "demo"), "--json", str(file)]
        environment = {**os.environ, "COLUMNS": _COLUMNS}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
        output = done.stdout.replace(scratch, "latfix-runs").splitlines()
        return {"output": output, "result": json.loads(file.read_text(encoding="utf-8"))}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Ratios of each run, and output and result of the one with the median p99 ratio (of two, the better)."""
    by_p99 = sorted(runs, key=lambda run: ratio_of(run["result"]))
    typical = by_p99[(len(runs) - 1) // 2]
    each = [
        {key: ratio_of(run["result"], key) for key in ("mean", "p50", "p99")} | {"verdict": run["result"]["verdict"]}
        for run in runs
    ]
    return {
        "command": f"latfix {' '.join(DEMO)}",
        "runs": each,
        "median": {"p99": ratio_of(typical["result"])},
        **typical,
    }


def ratio_of(result: dict[str, Any], key: str = "p99") -> float:
    """After over before; 1 if the run found no plan."""
    ratio = (result.get("ratio") or {}).get(key) or {}
    return float(ratio.get("value") or 1.0)


if __name__ == "__main__":
    sys.exit(main())
