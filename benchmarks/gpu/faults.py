"""Faults of a GPU, planted one at a time: what a diagnosis names, and that it names none where there is none.

A small service in a folder of its own; one request in twenty-five is hit, and but for copies nothing that the record
holds of it says so. Each fault is a class of its adapter, but the neighbor, which is another process that loads the
device every other while.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: By fault, the cause that has to be named; none where the run is left alone.
EXPECTED = {
    "Quiet": "",
    "Pageable": "transfer.copy",
    "Synchronizing": "transfer.sync",
    "Launching": "dispatch.launch",
    "Neighbor": "gpu.contention",
}
_SECONDS = 8.0
_RATE = 120.0
_PROGRAM = "import sys; from latfix.cli.app import main; sys.exit(main())"
_ADAPTER = '''"""A service on a GPU with planted faults; written by benchmarks/gpu/faults.py."""
import zlib
import torch
from latfix import Workload

WIDTH = 2048


class Net(torch.nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.fault = fault
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(16))

    def forward(self, rows, extra, mark):
        x = rows
        for layer in self.layers:
            x = torch.relu(layer(x))
        if mark.dtype == torch.int32:  # known on the host without asking the device
            if self.fault == "Synchronizing":
                for _ in range(80):
                    x = x + 0.0 * float(x.sum().item())
            if self.fault == "Launching":
                for _ in range(1500):
                    x = x + 0.0
        return x.mean(1)


class Quiet(Workload):
    def load(self, device):
        torch.manual_seed(0)
        return Net(type(self).__name__).eval().to(device)

    def prepare(self, request):
        hit = zlib.crc32(request.id.encode()) % 25 == 0
        size = 8 << 20 if hit and type(self).__name__ == "Pageable" else 8
        mark = torch.zeros(1, dtype=torch.int32 if hit else torch.int64)
        return {"rows": torch.full((64, WIDTH), 0.01), "extra": torch.zeros(size), "mark": mark}


class Pageable(Quiet):
    pass


class Synchronizing(Quiet):
    pass


class Launching(Quiet):
    pass


class Neighbor(Quiet):
    pass
'''
_LOAD = """
import time, torch
a = torch.randn(8192, 8192, device="cuda")
while True:
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        b = a @ a
        torch.cuda.synchronize()
    time.sleep(2.5)
"""


def write_workload(folder: Path, fault: str) -> None:
    """The service with one fault."""
    (folder / "service.py").write_text(_ADAPTER, encoding="utf-8")
    pinned = "false" if fault == "Pageable" else "true"
    (folder / "workload.toml").write_text(
        f'[workload]\nname = "{fault.lower()}"\nentry = "service:{fault}"\ntraffic = "traffic.jsonl"\n'
        f'[runner]\ndevice = "cuda"\nwarmup_shapes = 4\nwarmup_requests = 50\npinned_staging = {pinned}\n',
        encoding="utf-8",
    )
    rng, at, lines = random.Random(5), 0.0, []
    while at < _SECONDS:
        at += rng.expovariate(_RATE)
        lines.append(json.dumps({"arrival_s": round(at, 6), "id": str(len(lines))}))
    (folder / "traffic.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def measure(deadline: float) -> dict[str, Any]:
    """By fault: whether its cause was named, what was, and the milliseconds of the tail."""
    found: dict[str, Any] = {}
    for fault, expected in EXPECTED.items():
        if deadline - time.monotonic() < 20:
            found[fault] = {"skipped": "the time was up"}
            continue
        with tempfile.TemporaryDirectory() as name, _neighbor(fault == "Neighbor"):
            found[fault] = _diagnosed(Path(name), fault, expected, deadline)
    return found


def _diagnosed(folder: Path, fault: str, expected: str, deadline: float) -> dict[str, Any]:
    write_workload(folder, fault)
    out = folder / "run"
    command = [sys.executable, "-c", _PROGRAM, "diagnose", str(folder), "--out", str(out)]
    limit = max(deadline - time.monotonic(), 5.0)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": "the time was up"}
    if not (out / "diagnosis.json").exists():
        return {"failed": (done.stdout + done.stderr)[-1500:]}
    document = json.loads((out / "diagnosis.json").read_text(encoding="utf-8"))
    named = [cause["cause"] for cause in document["causes"] if cause["named"]]
    of_device = [cause for cause in named if cause.startswith(("transfer.", "dispatch.", "gpu."))]
    return {
        "expected": expected or "none of the device's",
        "right": expected in named if expected else not of_device,
        "verdict": document["verdict"],
        "named": named,
        "latency_ms": document["latency_ms"],
        "tail": document["tail"],
        "causes": [
            {key: cause[key] for key in ("cause", "tail_ms", "ci95_ms", "named", "evidence")}
            for cause in document["causes"][:6]
        ],
    }


@contextlib.contextmanager
def _neighbor(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", _LOAD])
    try:
        yield
    finally:
        process.kill()
        process.wait()
