"""A p99 caused by stalls of torch's caching allocator: found by the diagnosis, removed by a pool.

A synthetic service: a model on the GPU that keeps caches of conversations and occasionally needs large pieces,
within a memory limit in which everything fits. Under torch's defaults the allocator must repeatedly release its
cached memory (``num_alloc_retries``). The same traffic is replayed unmodified, with memory reserved at the start
(``memory.pool``), and with expandable segments, and compared with the predictions of the laboratory's models.

Run by ``test_parts.py`` in a separate process.
"""

from __future__ import annotations

import json
import shutil
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.commands import LATFIX, run
from benchmarks.gpu.parts import Part, each_lacks, lacks, measure_here, no_time
from latfix.profilers.allocator_lab.compare_policies import ARENAS, compare
from latfix.profilers.allocator_lab.synthetic_trace import Traffic, generate
from latfix.profilers.allocator_lab.trace import AllocationTrace
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.shared.device_memory_facts import calls, facts, worker_growth_mib

#: Runs of the service, and the number of checks.
RUNS = ("defaults", "memory.pool", "memory.device_allocator")
SHOWN = 5
_MIB = 1 << 20
#: Maximum of caches and working memory together, and the memory limit: a quarter more.
IN_USE = 24 << 30
LIMIT = IN_USE * 5 // 4
#: One request in fifty stalls, and nothing fails, wherever the libraries' own pieces lie.
TURNS, RATE = 600, 60.0
SEED = 2
#: Weights, and memory of the libraries.
_BESIDE = 256 * _MIB
#: Minimum time of a replay in addition to its traffic: starting, loading, and the diagnosis.
_BESIDE_S = 10.0

ADAPTER = """
import torch
from latfix import Request, Workload
from latfix.profilers.allocator_lab.trace import read_trace

class Conversations(torch.nn.Module):
    def __init__(self, path, device, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width, width, device=device) / width**0.5)
        self.turns = {}
        for event in read_trace(path).events:
            self.turns.setdefault(int(event.t_us // 1000), []).append(event)
        self.turn, self.held = 0, {}

    def forward(self, x):
        # The libraries' workspaces are allocated by the first product: before the trace's pieces, not among them.
        y = x @ self.weight
        for _ in range(x.shape[0]):
            for event in self.turns.get(self.turn, ()):
                if event.is_free:
                    self.held.pop(event.key, None)
                else:
                    self.held[event.key] = torch.empty(event.size, dtype=torch.uint8, device=x.device)
            self.turn += 1
        for _ in range(4):
            y = torch.tanh(y @ self.weight)
        return y[:, :4]

class Fragmenting(Workload):
    def load(self, device):
        torch.manual_seed(0)
        width = 4096 if str(device).startswith("cuda") else 64
        self.width = width
        return Conversations(self.folder / "trace.jsonl", device, width).eval()

    def prepare(self, request):
        return torch.full((self.width,), 0.01)

    def evaluate(self, predict):
        return 1.0
"""


def traffic_of_allocations(turns: int = TURNS, in_use: int = IN_USE) -> AllocationTrace:
    """The service's allocations: every request fits, and small pieces lie between large ones."""
    want = Traffic(turns=turns, capacity=in_use, filled=0.5, piece=in_use * 48 // 1024, large=0.12, large_each=4)
    return generate(SEED, want)


def write_workload(folder: Path, trace: AllocationTrace, *, turns: int, device: str, share: float) -> Path:
    """The service's folder.

    :param share: of the device's memory that it may use.
    """
    from latfix.profilers.allocator_lab.trace import write_trace

    folder.mkdir(parents=True)
    write_trace(folder / "trace.jsonl", trace)
    (folder / "adapter.py").write_text(textwrap.dedent(ADAPTER).lstrip(), encoding="utf-8")
    rows = "".join(json.dumps({"arrival_s": k / RATE, "turn": k}) + "\n" for k in range(turns))
    (folder / "traffic.jsonl").write_text(rows, encoding="utf-8")
    (folder / "workload.toml").write_text(
        "[workload]\n"
        'name = "fragmenting"\nentry = "adapter:Fragmenting"\ntraffic = "traffic.jsonl"\n'
        f'[runner]\ndevice = "{device}"\nmax_batch_size = 1\nwarmup_requests = 5\n'
        f"device_memory_share = {share:.6f}\n",
        encoding="utf-8",
    )
    return folder


def with_settings(folder: Path, name: str, **settings: object) -> Path:
    """A copy of a workload's folder with more settings of the runner."""
    other = folder.with_name(name)
    # A run leaves compiled modules of the adapter.
    shutil.copytree(folder, other, ignore=shutil.ignore_patterns("__pycache__"))
    lines = "".join(f"{key} = {value}\n" for key, value in settings.items())
    with (other / "workload.toml").open("a", encoding="utf-8") as file:
        file.write(lines)
    return other


def diagnose(workload: Path, deadline: float) -> dict[str, Any]:
    """Relevant results of ``latfix diagnose``; ``failed`` or ``skipped`` has the reason if there are none."""
    out = workload.with_name(f"{workload.name}-run")
    left = deadline - time.monotonic()
    if left < TURNS / RATE + _BESIDE_S:
        return no_time(left, TURNS / RATE + _BESIDE_S)
    ended = run([*LATFIX, "diagnose", str(workload), "--out", str(out)], left)
    if ended.why or not (out / "diagnosis.json").exists():
        return {"failed": f"latfix diagnose: {ended.why}", "output": ended.output[-2000:]}
    return figures(RunRecord.load(out), json.loads((out / "diagnosis.json").read_text(encoding="utf-8")))


def figures(record: RunRecord, diagnosis: Mapping[str, Any]) -> dict[str, Any]:
    """A run's latency, its diagnosis, and its device calls."""
    causes = {cause["cause"]: cause for cause in diagnosis["causes"]}
    counted = calls(record)
    read = record.batches["device_read"] > 0
    return {
        "latency_ms": diagnosis["latency_ms"],
        "requests": diagnosis["requests"],
        "verdict": diagnosis["verdict"],
        "excess_ms": diagnosis["tail"]["excess_ms"],
        "unexplained_ms": diagnosis["tail"]["unexplained_ms"],
        "memory_causes": {
            name: {key: cause[key] for key in ("tail_ms", "ci95_ms", "named", "evidence")}
            for name, cause in causes.items()
            if name.startswith("memory.")
        },
        "retries": counted.retries,
        "device_calls": counted.total,
        "batches": len(read),
        "batches_read": int(read.sum()),
        "batches_with_retries": int((record.batches["alloc_retries"] > 0).sum()),
        "device_memory": dict(facts(record)),
        "calibration": {name: value for name, value in record.meta.calibration.items() if name.startswith("device_")},
        "reading_us": _reading_us(record.meta.overhead),
        "overhead": dict(record.meta.overhead),
        "reserve_mb": worker_growth_mib(record),
    }


def _reading_us(overhead: Mapping[str, Any]) -> float | None:
    """Microseconds of one reading of the allocator's counters."""
    readings, requests = overhead.get("device_readings", 0), TURNS
    return overhead["device_readings_us_per_request"] * requests / readings if readings else None


def expected(trace: AllocationTrace) -> list[dict[str, Any]]:
    """The models' predictions for the same allocations."""
    return [result.to_json() for result in compare(trace, LIMIT, ("", "expandable_segments:True", ARENAS[0]))]


def measure(part: Part, deadline: float, device: str = "cuda:0") -> None:
    """Run all of it while time allows.

    :param part: receives the three runs, the models' predictions, and ``shown``.
    :param deadline: on the clock of ``time.monotonic``.
    """
    import torch

    if not torch.cuda.is_available():
        part.put("skipped", "no CUDA device here")
        return
    _, total = torch.cuda.mem_get_info(device)
    if total < 2 * LIMIT:
        part.put("skipped", f"the device has {total >> 30} GiB; {2 * LIMIT >> 30} are needed")
        return
    trace = traffic_of_allocations()
    part.attempt("models", lambda: expected(trace))
    share = (LIMIT + _BESIDE) / total
    folder = write_workload(part.runs() / "defaults", trace, turns=TURNS, device=device, share=share)
    replays(part, folder, deadline)
    part.attempt("shown", lambda: shown(part.found))


def replays(part: Part, folder: Path, deadline: float) -> None:
    """The three runs, independent of each other's success."""
    before = part.attempt("defaults", lambda: diagnose(folder, deadline))
    if lacks(before):
        part.put("memory.pool", {"skipped": "the size to reserve is known only from the first run"})
    else:
        ahead = {"reserve_mb": before["reserve_mb"]}
        part.attempt("memory.pool", lambda: diagnose(with_settings(folder, "reserved", **ahead), deadline))
    env = '{ PYTORCH_ALLOC_CONF = "expandable_segments:True" }'
    part.attempt("memory.device_allocator", lambda: diagnose(with_settings(folder, "expandable", env=env), deadline))


def shown(found: Mapping[str, Any]) -> dict[str, bool]:
    """The checks and their results, without those that could not be made."""
    before, after = found["defaults"], found["memory.pool"]
    if lacks(before):
        return {}
    caused = before["memory_causes"].get("memory.fragmentation", {})
    result = {
        "p99 caused by retries": before["retries"] > 0 and bool(caused.get("named")),
        "it is the verdict": before["verdict"] == "memory.fragmentation",
    }
    if not lacks(after):
        left = after["memory_causes"].get("memory.fragmentation", {})
        result["retries gone with the pool"] = after["retries"] == 0
        result["cause gone with the pool"] = not left.get("named", False)
        result["p99 lower with the pool"] = _p99(after) < _p99(before)
    return result


def _p99(run: Mapping[str, Any]) -> float:
    """Infinite where p99 falls among lost requests."""
    p99 = run["latency_ms"]["p99"]
    return float("inf") if p99 is None else float(p99)


def problems(found: Mapping[str, Any]) -> list[str]:
    """Objections to the measurement."""
    if "skipped" in found:
        return [f"skipped: {found['skipped']}"]
    lines = each_lacks(found, RUNS)
    looked_at = found.get("shown") or {}
    lines += [f"not shown: {what}" for what, right in looked_at.items() if not right]
    if len(looked_at) < SHOWN:
        lines.append(f"{len(looked_at)} of {SHOWN} checks were made")
    return lines


if __name__ == "__main__":
    measure_here(measure)
