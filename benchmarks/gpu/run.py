"""All that needs a GPU, in one go and within nine minutes: doctor, tests, allocator, a diagnosis of each sample.

Writes ``benchmarks/results/gpu.json`` with machine, versions and date, and beside it ``nvml.jsonl``: the calls of
NVML and their answers while the first sample ran, for tests on machines without a GPU. Without a GPU it says so and
exits 3.

    python benchmarks/gpu/run.py [--out DIR]
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latfix.profilers.nvml import Nvml
from latfix.profilers.nvml_calls import LiveNvml, NvmlRefused, RecordingNvml

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 9 * 60.0
PROGRAM = "import sys; from latfix.cli.app import main; sys.exit(main())"
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
    from latfix.runners.session import versions

    deadline = time.monotonic() + LIMIT_S
    results: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "doctor": doctor(deadline),
        "tests": run([sys.executable, "-m", "pytest", "-q", "tests/gpu"], deadline),
        "fragmentation": fragmentation(deadline),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    with recorded_nvml(options.out / "nvml.jsonl"):
        results["samples"] = {SAMPLES[0]: diagnose(SAMPLES[0], deadline)}
    results["samples"] |= {name: diagnose(name, deadline) for name in SAMPLES[1:]}
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


def doctor(deadline: float) -> dict[str, Any]:
    """What ``latfix doctor`` finds on the machine; it changes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "doctor.json"
        result = run([sys.executable, "-c", PROGRAM, "doctor", "--json", str(file)], deadline)
        if file.exists():
            result["findings"] = json.loads(file.read_text(encoding="utf-8"))["findings"]
    return result


def fragmentation(deadline: float) -> dict[str, Any]:
    """The models of the allocator beside the allocator: counts on one trace, setting by setting."""
    from latfix.errors import LatfixError
    from latfix.profilers.fragmentation.generator import Traffic, generate
    from latfix.profilers.fragmentation.laboratory import SETTINGS, policy_of, replay
    from latfix.profilers.fragmentation.trace import write_trace
    from latfix.runners.fragmentation_device import play_apart

    capacity = 4 << 30
    trace = generate(1, Traffic(turns=1500, capacity=capacity))
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        write_trace(path, trace)
        for setting in SETTINGS:
            if deadline - time.monotonic() < 60:
                found[setting] = {"skipped": "the time was up"}
                continue
            try:
                device: dict[str, Any] = play_apart(path, capacity, setting)
            except LatfixError as error:
                device = {"failed": error.message}
            found[setting] = {
                "device": device,
                "model": replay(trace, capacity, policy_of(setting, capacity), setting).to_json(),
            }
    return found


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


def diagnose(name: str, deadline: float) -> dict[str, Any]:
    """``latfix diagnose`` of a sample on the GPU, with the figures of its diagnosis."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-c", PROGRAM, "diagnose", name, "--device", "cuda", "--out", str(out)]
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
