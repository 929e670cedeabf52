"""GPU faults, injected one at a time: which cause a diagnosis names, and that it names none without a fault.

A small service; one request in twenty-five is hit, which the record does not show except for copies. Each fault is a
class of its adapter, except the neighbor: another process that loads the device periodically.

A run without observations names nothing, either: so the required evidence in the record is checked first.
"""

from __future__ import annotations

import contextlib
import json
import random
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.commands import LATFIX, run
from benchmarks.gpu.parts import lacks
from latfix.run_record.run_meta import RunMeta

#: By fault, the cause that must be named; none without a fault.
EXPECTED = {
    "Quiet": "",
    "Pageable": "transfer.copy",
    "Synchronizing": "transfer.sync",
    "Launching": "dispatch.launch",
    "Neighbor": "gpu.contention",
}
_SECONDS = 8.0
_RATE = 120.0
#: Time limit for the neighbor's first product.
_READY_S = 60.0
#: The evidence that a record must contain.
_LEAST_OK = 0.99
_LEAST_PROFILES = 8
_OTHERS = "others_sm_util"
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
        x = rows.repeat(1, 8, 1)  # otherwise the device would wait for the host in every batch
        for layer in self.layers:
            x = torch.relu(layer(x))
        if mark.dtype == torch.int32:  # known on the host without asking the device
            if self.fault == "Synchronizing":
                for _ in range(80):
                    if x.sum().item() < 0:
                        x = x + 1.0
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
b = a @ a
torch.cuda.synchronize()
print("ready", flush=True)
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
    rng, at, lines = random.Random(5), 0.0, list[str]()
    while at < _SECONDS:
        at += rng.expovariate(_RATE)
        lines.append(json.dumps({"arrival_s": round(at, 6), "id": str(len(lines))}))
    (folder / "traffic.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def planted(fault: str, folder: Path, seconds: float) -> dict[str, Any]:
    """The result of a run with a fault: if its cause was named, the named causes, and the milliseconds of the tail.

    :param folder: an empty one.
    """
    deadline = time.monotonic() + seconds
    if fault != "Neighbor":
        return _diagnosed(folder, fault, deadline)
    with neighbor(_LOAD, min(_READY_S, seconds)) as process:
        result = _diagnosed(folder, fault, deadline)
        if process.poll() is not None and "failed" not in result:
            result["evidence_missing"].append(f"the neighbor had ended with {process.returncode} before the run")
            result["right"] = False
        return result


def problems(fault: str, found: Mapping[str, Any]) -> list[str]:
    """Objections to a run; none if the device does not report the evidence."""
    if reason := lacks(found):
        return [f"{fault}: {reason}"]
    if found["evidence_missing"]:
        return [f"{fault}: no evidence: {'; '.join(found['evidence_missing'])}"]
    if found["right"] or found.get("cannot_be_told"):
        return []
    return [f"{fault}: expected {found['expected']}, named {', '.join(found['named']) or 'nothing'}"]


def _diagnosed(folder: Path, fault: str, deadline: float) -> dict[str, Any]:
    from latfix.run_record.run_record import RunRecord
    from latfix.runners.measure.compute_pace import typical_batches

    write_workload(folder, fault)
    out = folder / "run"
    ended = run([*LATFIX, "diagnose", str(folder), "--out", str(out)], deadline - time.monotonic())
    if not (out / "diagnosis.json").exists():
        return {"failed": f"latfix diagnose: {ended.why}", "output": ended.output[-1500:]}
    record = RunRecord.load(out)
    document = json.loads((out / "diagnosis.json").read_text(encoding="utf-8"))
    missing = missing_evidence(record.meta, record.counts())
    if ended.why:
        missing.insert(0, f"latfix diagnose: {ended.why}")
    return {
        **judged(fault, document, missing, others_reported=any(name.endswith(_OTHERS) for name in series_of(record))),
        "verdict": document["verdict"],
        "latency_ms": document["latency_ms"],
        "tail": document["tail"],
        "causes": [
            {key: cause[key] for key in ("cause", "tail_ms", "ci95_ms", "named", "evidence")}
            for cause in document["causes"][:6]
        ],
        # A profiler that is stopped and started again may show nothing of a batch.
        "profiles": {
            "asked": len(typical_batches(record)),
            "found": len(record.meta.device_profile),
            "launches": [work.launches for work in record.meta.device_profile],
        },
    }


def series_of(record: Any) -> set[str]:
    """The sampled series of a record."""
    return {str(name) for name in record.samples["series"]}


def judged(fault: str, document: Mapping[str, Any], missing: list[str], *, others_reported: bool) -> dict[str, Any]:
    """Judge a diagnosis of a fault. It is not right if the record lacks evidence.

    :param document: ``diagnosis.json``.
    :param missing: of :func:`missing_evidence`.
    :param others_reported: the device reported the use by other processes. In a container it may not: then the
        neighbor cannot be named, and ``right`` is ``None``.
    """
    expected = EXPECTED[fault]
    named = [cause["cause"] for cause in document["causes"] if cause["named"]]
    of_device = [cause for cause in named if cause.startswith(("transfer.", "dispatch.", "gpu."))]
    result: dict[str, Any] = {
        "expected": expected or "none of the device's",
        "right": (expected in named if expected else not of_device) and not missing,
        "named": named,
        "evidence_missing": missing,
    }
    if fault == "Neighbor" and not missing and expected not in named and not others_reported:
        result |= {"right": None, "cannot_be_told": f"NVML does not tell this process from others: no {_OTHERS}"}
    return result


def missing_evidence(meta: RunMeta, counts: Mapping[str, int]) -> list[str]:
    """The evidence that a run lacks.

    :param counts: measured requests by how they ended.
    """
    missing = []
    scheduled, done = meta.scheduled or 0, counts.get("ok", 0)
    if not scheduled or done < _LEAST_OK * scheduled:
        missing.append(f"{done} of {scheduled} requests ended ok")
    if not meta.device.startswith("cuda"):
        missing.append(f"the device was {meta.device}")
    profiled = len(meta.device_profile)
    if profiled < _LEAST_PROFILES:
        missing.append(f"{profiled} batches were profiled, {_LEAST_PROFILES} are needed")
    if meta.device_profile_failure:
        missing.append(f"profiling failed: {meta.device_profile_failure}")
    missing += [f"{name} was not measured" for name in ("copy_in_ns", "copy_out_ns") if name not in meta.calibration]
    nvml = str(meta.probes.get("nvml", "NVML: not read"))
    if "not read" in nvml:
        missing.append(nvml)
    return missing


@contextlib.contextmanager
def neighbor(program: str, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """Run another process; yields when it reports that it is working.

    :param program: prints ``ready`` when it is working.
    :param seconds: time limit for that.
    :raises RuntimeError: it does not report in time.
    """
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None, "it is a pipe"
    try:
        heard, _, _ = select.select([process.stdout], [], [], max(seconds, 0.0))
        if not heard or process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the neighbor was not at work within {seconds:.0f} s (exit code {process.poll()})")
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
