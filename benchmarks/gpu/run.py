"""Everything that needs a GPU, in one go and within nine minutes: tests, then a diagnosis of each sample.

Writes ``benchmarks/results/gpu.json`` with machine, versions and date. Without a GPU it says so and exits 3.

    python benchmarks/gpu/run.py [--out DIR]
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 9 * 60.0
SAMPLES = ("recommender", "assistant", "vision")


def main() -> int:
    """Run what time allows and write the results; the exit code says whether all of it passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("no CUDA device here: nothing was run")
        return 3
    from latfix.runners.child import machine

    deadline = time.monotonic() + LIMIT_S
    results: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "tests": run([sys.executable, "-m", "pytest", "-q", "tests/gpu"], deadline),
        "samples": {name: diagnose(name, deadline) for name in SAMPLES},
    }
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "gpu.json"
    file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(f"written to {file}")
    codes = [results["tests"]["exit_code"], *(sample["exit_code"] for sample in results["samples"].values())]
    return 0 if all(code == 0 for code in codes) else 1


def run(command: list[str], deadline: float) -> dict[str, Any]:
    """A command's exit code and the end of what it printed; 124 where its time was up."""
    left = deadline - time.monotonic()
    if left < 5:
        return {"exit_code": 124, "output": "not started: the time was up"}
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=left, check=False)
    except subprocess.TimeoutExpired as error:
        return {"exit_code": 124, "output": f"stopped after {error.timeout:.0f} s"}
    return {"exit_code": done.returncode, "output": (done.stdout + done.stderr)[-3000:]}


def diagnose(name: str, deadline: float) -> dict[str, Any]:
    """``latfix diagnose`` of a sample on the GPU, with the figures of its diagnosis."""
    program = "import sys; from latfix.cli.app import main; sys.exit(main())"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-c", program, "diagnose", name, "--device", "cuda", "--out", str(out)]
        result = run(command, deadline)
        if (out / "diagnosis.json").exists():
            document = json.loads((out / "diagnosis.json").read_text(encoding="utf-8"))
            for key in ("latency_ms", "stages_ms", "verdict", "sentence", "overhead", "requests"):
                result[key] = document[key]
            meta = json.loads((out / "run.json").read_text(encoding="utf-8"))
            result["probes"] = meta.get("probes")
    return result


if __name__ == "__main__":
    sys.exit(main())
