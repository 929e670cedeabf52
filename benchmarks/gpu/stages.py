"""Durations of the stages by the runner's events, compared with ``torch.profiler`` on the same batches.

One profile covers all batches, with their events recorded as in a run; both include the profiler's cost. The first
calls after its start take several times as long and are left out. An event before the first copy passes while the
host still prepares the copy, so short copies differ by that time. Therefore a second workload with identical
batches copies 64 MiB per request in and out.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.parts import Part, each_lacks, lacks, measure_here, no_time

BATCHES = 40
_FIRST = 3
#: Marks a batch in the profile, by its number.
_MARK = "latfix.batch."
_KINDS = {"copy_in": ("gpu_memcpy", "HtoD"), "compute": ("kernel", ""), "copy_out": ("gpu_memcpy", "DtoH")}
#: The workload with identical batches, which must all show the same kernels.
_ALIKE = "copies"
STAGED = ("recommender", _ALIKE)
_LEAST_BATCHES = 10
#: Allowed median difference of a stage's duration from the profiler's: a share, or nanoseconds, because an event
#: before the first copy or kernel passes while the host still prepares it: for 90 microseconds under the profiler.
_AGREEMENT = 0.02
_ALLOWED_NS: Mapping[str, float] = {"copy_in": 120_000.0, "compute": 50_000.0, "copy_out": 10_000.0}
_COLUMNS = {"copy_in": "copy_in_ns", "compute": "device_ns", "copy_out": "copy_out_ns"}
_ADAPTER = '''"""Large copies in and out, and some milliseconds in between; written by benchmarks/gpu/stages.py."""
import torch
from latfix import Workload

NUMBERS = 16 << 20


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(1))

    def forward(self, rows):
        for _ in range(32):
            rows = rows * self.factor
        return rows


class Copies(Workload):
    def load(self, device):
        self.row = torch.full((NUMBERS,), 0.5)
        return Net().eval().to(device)

    def prepare(self, request):
        return self.row
'''


def measure(part: Part, deadline: float) -> None:
    """The stages of a sample's batches, and of large copies.

    :param deadline: on the clock of ``time.monotonic``.
    """
    from latfix.config.workload_toml import load_spec

    with tempfile.TemporaryDirectory() as name:
        write_copies(Path(name))
        workloads = {"recommender": ("recommender", "gpu"), "copies": (name, "")}
        for k, (label, (workload, profile)) in enumerate(workloads.items()):
            left = (deadline - time.monotonic()) / (len(workloads) - k)
            if left < 5:
                part.put(label, no_time(left, 5))
                continue
            spec = load_spec(workload, profile=profile)
            part.attempt(label, lambda spec=spec, left=left: _measured(spec, time.monotonic() + left))  # type: ignore[misc]


def problems(found: Mapping[str, Any]) -> list[str]:
    """Objections to the measurement."""
    lines = each_lacks(found, STAGED)
    for name in STAGED:
        workload = found.get(name, {})
        if lacks(workload):
            continue
        for stage, allowed in _ALLOWED_NS.items():
            if problem := _off(workload["stages"][stage], allowed):
                lines.append(f"{name}, {stage}: {problem}")
        seen = workload["sessions"]
        if seen["found"] < seen["asked"]:
            lines.append(f"{name}: {seen['asked'] - seen['found']} of {seen['asked']} batches show no kernel")
        least, most = seen["least_kernels"], seen["most_kernels"]
        if name == _ALIKE and least != most:
            lines.append(f"{name}: like batches show {least} to {most} kernels: the profiler lost some")
    return lines


def _off(stage: Mapping[str, Any], allowed_ns: float) -> str:
    if stage["batches"] < _LEAST_BATCHES:
        return f"only {stage['batches']} batches, {_LEAST_BATCHES} are needed"
    off, told = abs(stage["difference_ns"]), stage["told_ns"]
    if off > max(_AGREEMENT * told, allowed_ns):
        return f"the events are {off / 1e3:.1f} µs off the profiler's {told / 1e3:.1f} µs"
    return ""


def write_copies(folder: Path) -> None:
    """The workload of large copies."""
    (folder / "copies.py").write_text(_ADAPTER, encoding="utf-8")
    rows = "".join(json.dumps({"arrival_s": k * 0.1}) + "\n" for k in range(8))
    (folder / "traffic.jsonl").write_text(rows, encoding="utf-8")
    (folder / "workload.toml").write_text(
        '[workload]\nname = "copies"\nentry = "copies:Copies"\ntraffic = "traffic.jsonl"\n'
        '[runner]\ndevice = "cuda"\nmax_batch_size = 4\n',
        encoding="utf-8",
    )


def _measured(spec: Any, deadline: float) -> dict[str, Any]:
    """By stage, the difference of the events' duration from the profiler's; and the kernels in the profiles."""
    from torch.profiler import ProfilerActivity, record_function
    from torch.profiler import profile as profiled

    from latfix.profilers.probes.stage_recorder import StageRecorder
    from latfix.runners.gpu.async_batches import Collated, Flights
    from latfix.runners.gpu.device_clock import DeviceClock
    from latfix.runners.service.loaded_service import Service
    from latfix.traffic.io.reader import read_traffic

    service = Service(spec.folder, spec.entry, spec.settings.with_overrides({"pinned_staging": True}))
    service.load()
    instance, size = service.models.instances[0], spec.settings.max_batch_size
    assert instance.accelerator is not None, "this workload needs a GPU"
    traffic = read_traffic(spec.traffic, mapping=spec.traffic_map)
    recorder, clock = StageRecorder(2 * BATCHES), DeviceClock()
    flights = Flights(instance, clock, recorder, overlap=False)
    batches = list[int]()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with instance.guard(), profiled(activities=activities, acc_events=True) as seen:
        for k in range(BATCHES + _FIRST):
            if time.monotonic() > deadline:
                break
            inputs = [
                service.models.adapter.prepare(traffic.request((k * size + j) % len(traffic))) for j in range(size)
            ]
            batch_id = recorder.new_batch()
            collated = Collated(instance.collate(inputs), (), 0, ())
            with record_function(f"{_MARK}{batch_id}"):
                flights.land(flights.launch(batch_id, collated))
            if k >= _FIRST:  # first uses
                batches.append(batch_id)
    flights.resolve()
    pairs: dict[str, list[tuple[float, float]]] = {stage: [] for stage in _KINDS}
    kernels: list[int] = []
    events = _events(seen)
    for batch_id in batches:
        own = within(events, f"{_MARK}{batch_id}")
        kernels.append(sum(event.get("cat") == "kernel" for event in own))
        for stage, told in spans(own).items():
            if told > 0:
                pairs[stage].append((float(recorder.batch[_COLUMNS[stage]][batch_id]), told))
    return {
        "stages": {stage: compared(found) for stage, found in pairs.items()},
        "sessions": sessions(kernels),
        "clock_slack_us": clock.slack_ns / 1e3,
    }


def within(events: Sequence[Mapping[str, Any]], mark: str) -> list[Mapping[str, Any]]:
    """Events of a trace of ``torch.profiler`` that began in a marked range of the host."""
    ranges = [event for event in events if event.get("name") == mark and event.get("cat") == "user_annotation"]
    if not ranges:
        return []
    begin = float(ranges[0]["ts"])
    end = begin + float(ranges[0]["dur"])
    return [event for event in events if "ts" in event and begin <= float(event["ts"]) <= end]


def spans(events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Nanoseconds from the begin of the first to the end of the last event of each kind in a profile.

    :param events: of a trace of ``torch.profiler``, in microseconds.
    """
    found = {}
    for stage, (category, part) in _KINDS.items():
        mine = [event for event in events if event.get("cat") == category and part in str(event.get("name"))]
        if mine:
            begin = min(float(event["ts"]) for event in mine)
            end = max(float(event["ts"]) + float(event.get("dur", 0.0)) for event in mine)
            found[stage] = (end - begin) * 1e3
    return found


def compared(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """A stage's durations by the events and by the profiler, in nanoseconds, with medians and extremes.

    :param pairs: by batch, the events' and the profiler's.
    """
    if not pairs:
        return {"batches": 0}
    off = [ours - told for ours, told in pairs]
    return {
        "batches": len(pairs),
        "told_ns": statistics.median(told for _, told in pairs),
        "difference_ns": statistics.median(off),
        "least_difference_ns": min(off),
        "largest_difference_ns": max(off),
        "ratio": statistics.median(ours / told for ours, told in pairs),
    }


def sessions(kernels: Sequence[int]) -> dict[str, Any]:
    """The number of profiled batches, of those with a kernel, and the minimum and maximum number of kernels.

    :param kernels: by batch.
    """
    return {
        "asked": len(kernels),
        "found": sum(count > 0 for count in kernels),
        "least_kernels": min(kernels, default=0),
        "most_kernels": max(kernels, default=0),
        "kernels": list(kernels),
    }


def _events(seen: Any) -> list[Mapping[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(file))
        events: list[Mapping[str, Any]] = json.loads(file.read_text(encoding="utf-8", errors="replace"))[
            "traceEvents"
        ]
    return events


if __name__ == "__main__":
    measure_here(measure)
