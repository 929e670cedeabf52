"""All that needs a GPU, in one go and within nine minutes.

Doctor, tests, ceilings of the card and what the samples reach of them, stages by events and by the profiler, planted
faults, the allocator's stalls, what the probes cost, and `latfix optimize` of each sample in its profile `gpu`.

Writes ``benchmarks/results/gpu.json`` with machine, versions and date, and beside it ``nvml.jsonl``: the calls of
NVML and their answers while a sample ran, for tests on machines without a GPU. Without a GPU it says so and exits 3.
It has not been run on one yet.

    python benchmarks/gpu/run.py [--out DIR] [--only PART ...]
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu import faults, fragmentation, stages
from latfix.profilers.nvml import Nvml
from latfix.profilers.nvml_calls import LiveNvml, NvmlRefused, RecordingNvml

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 9 * 60.0
#: By how much a stage's length may differ from the profiler's, at the median.
_AGREEMENT = 0.02
PROGRAM = "import sys; from latfix.cli.app import main; sys.exit(main())"
SAMPLES = ("recommender", "vision", "assistant")
#: Parts in the order in which they are run, and the seconds that each may take at most.
PARTS: dict[str, float] = {
    "doctor": 30.0,
    "tests": 110.0,
    "ceilings": 40.0,
    "stages": 30.0,
    "faults": 90.0,
    "fragmentation": 60.0,
    "probes": 45.0,
    "samples": LIMIT_S,
}


def main() -> int:
    """Run what time allows and write the results; the exit code says whether all of it passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("no CUDA device here: nothing was run")
        return 3
    from latfix.runners.child import machine
    from latfix.runners.session import versions

    options.out.mkdir(parents=True, exist_ok=True)
    file, deadline = options.out / "gpu.json", time.monotonic() + LIMIT_S
    results: dict[str, Any] = {
        "command": "python benchmarks/gpu/run.py",
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "parts": {},
    }
    measure: dict[str, Callable[[float], Any]] = {
        "doctor": doctor,
        "tests": tests,
        "ceilings": ceilings,
        "stages": lambda until: stages.measure("recommender", "gpu", until),
        "faults": faults.measure,
        "fragmentation": fragmentation.measure,
        "probes": probes,
        "samples": lambda until: samples(until, options.out),
    }
    for part in options.only:
        begun = time.monotonic()
        print(f"{part} ...", flush=True)
        try:
            found = measure[part](min(deadline, begun + PARTS[part]))
        except Exception as error:  # noqa: BLE001 - what the other parts find must not be lost with it
            found = {"failed": f"{type(error).__name__}: {error}"}
        results["parts"][part] = {"seconds": round(time.monotonic() - begun, 1), "found": found}
        file.write_text(json.dumps(results, indent=2, default=str) + "\n", encoding="utf-8")
        print(json.dumps(found, default=str)[:600], flush=True)
    print(f"written to {file}")
    return 0 if all(_passed(name, part["found"]) for name, part in results["parts"].items()) else 1


def _passed(name: str, found: Any) -> bool:
    """Whether a part shows what it is to show; one that was not run to its end does not."""
    if not isinstance(found, dict) or "failed" in found:
        return False
    if name in ("doctor", "tests", "probes"):
        return bool(found["exit_code"] == 0)
    if name == "stages":
        medians = [found[stage]["median"] for stage in ("copy_in", "compute", "copy_out")]
        return all(median is not None and abs(median - 1) <= _AGREEMENT for median in medians)
    if name == "faults":
        return all(each.get("right") for each in found.values())
    if name == "samples":
        return all(each["exit_code"] in (0, 1, 3) and "verdict" in each for each in found.values())
    return True


def tests(deadline: float) -> dict[str, Any]:
    """All tests that need a GPU."""
    return run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu"], deadline)


def ceilings(deadline: float) -> dict[str, Any]:
    """What the card reaches, and what the samples' batches need of it."""
    from benchmarks.gpu.ceilings import hot_path, rates

    found: dict[str, Any] = {"rates": rates()}
    for name in SAMPLES[:2]:  # the assistant's work depends on how long its answers are
        if time.monotonic() < deadline:
            found[name] = hot_path(name, "gpu", found["rates"])
    return found


def probes(deadline: float) -> dict[str, Any]:
    """What latfix's probes cost a service on the GPU: the same requests with and without them, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "probes.json"
        command = [sys.executable, "benchmarks/probe_cost.py", "vision", "--blocks", "4", "--seconds", "3"]
        result = run([*command, "--out", str(file)], deadline)
        if file.exists():
            result["found"] = json.loads(file.read_text(encoding="utf-8"))
    return result


def samples(deadline: float, out: Path) -> dict[str, Any]:
    """Each sample in its profile for a GPU: before, after, and each fix's own share."""
    found: dict[str, Any] = {}
    for k, name in enumerate(SAMPLES):
        left = (deadline - time.monotonic()) / (len(SAMPLES) - k)
        with recorded_nvml(out / "nvml.jsonl") if k == 0 else contextlib.nullcontext():
            found[name] = optimized(name, left - 8)
    return found


def optimized(name: str, seconds: float) -> dict[str, Any]:
    """``latfix optimize`` of a sample within so many seconds."""
    if seconds < 20:
        return {"exit_code": 124, "output": "not started: the time was up"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "optimization.json"
        command = [sys.executable, "-c", PROGRAM, "optimize", name, "--profile", "gpu", "--duration", "6"]
        command += ["--budget", f"{seconds:.0f}s", "--out", str(Path(folder) / "run"), "--json", str(file)]
        result = run(command, time.monotonic() + seconds + 30)
        if file.exists():
            document = json.loads(file.read_text(encoding="utf-8"))
            result |= {key: document[key] for key in ("verdict", "before", "after", "ratio", "steps")}
    return result


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


def doctor(deadline: float) -> dict[str, Any]:
    """What ``latfix doctor`` finds on the machine; it changes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "doctor.json"
        result = run([sys.executable, "-c", PROGRAM, "doctor", "--json", str(file)], deadline)
        if file.exists():
            result["findings"] = json.loads(file.read_text(encoding="utf-8"))["findings"]
    return result


@contextlib.contextmanager
def recorded_nvml(path: Path) -> Iterator[None]:
    """Poll NVML twice a second on a thread of its own, and write down what it was asked and answered."""
    stop = threading.Event()

    def poll(reader: Nvml) -> None:
        while not stop.wait(0.5):
            reader.read()

    with path.open("w", encoding="utf-8") as file:
        try:
            calls = RecordingNvml(LiveNvml(), file)
        except NvmlRefused as error:
            print(f"NVML does not answer: {error}")
            yield
            return
        thread = threading.Thread(target=poll, args=(Nvml(calls, 0),), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            calls.close()


if __name__ == "__main__":
    sys.exit(main())
