"""Lengths of the stages by the runner's events, beside those of the same batches by ``torch.profiler``.

Each batch is profiled on its own, with its events recorded as in a run; what the profiler costs is in both.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BATCHES = 40
_KINDS = {"copy_in": ("gpu_memcpy", "HtoD"), "compute": ("kernel", ""), "copy_out": ("gpu_memcpy", "DtoH")}
_COLUMNS = {"copy_in": "copy_in_ns", "compute": "device_ns", "copy_out": "copy_out_ns"}


def measure(workload: str, profile: str, deadline: float) -> dict[str, Any]:
    """By stage, the median ratio of the events' length to the profiler's, and the largest deviation."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    from latfix.profilers.recorder import StageRecorder
    from latfix.runners.compute import Collated
    from latfix.runners.device.clock import DeviceClock
    from latfix.runners.device.flights import Flights
    from latfix.runners.service import Service
    from latfix.spec import load_spec
    from latfix.traffic.formats import read_traffic

    spec = load_spec(workload, profile=profile)
    service = Service(spec.folder, spec.entry, spec.settings.with_overrides({"pinned_staging": True}))
    service.load()
    instance, size = service.models.instances[0], spec.settings.max_batch_size
    assert instance.accelerator is not None, "this is for a GPU"
    traffic = read_traffic(spec.traffic, mapping=spec.traffic_map)
    recorder, clock = StageRecorder(2 * BATCHES), DeviceClock()
    flights = Flights(instance.accelerator, instance, clock, recorder, overlap=False)
    ratios: dict[str, list[float]] = {stage: [] for stage in _KINDS}
    with instance.guard():
        for k in range(BATCHES + 3):
            if time.monotonic() > deadline:
                break
            inputs = [
                service.models.adapter.prepare(traffic.request((k * size + j) % len(traffic))) for j in range(size)
            ]
            batch_id = recorder.new_batch()
            collated = Collated(instance.collate(inputs), (), 0, ())
            with profiled(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
                flights.land(flights.launch(batch_id, collated))
            flights.resolve()
            if k < 3:  # first uses
                continue
            for stage, told in _spans(seen).items():
                ours = recorder.batch[_COLUMNS[stage]][batch_id]
                if told > 0:
                    ratios[stage].append(ours / told)
    return {
        stage: {
            "batches": len(found),
            "median": statistics.median(found) if found else None,
            "least": min(found, default=None),
            "largest": max(found, default=None),
        }
        for stage, found in ratios.items()
    } | {"clock_slack_us": clock.slack_ns / 1e3}


def _spans(seen: Any) -> dict[str, float]:
    """Nanoseconds from the begin of the first to the end of the last event of each kind."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(file))
        events: Sequence[Mapping[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    found = {}
    for stage, (category, part) in _KINDS.items():
        mine = [event for event in events if event.get("cat") == category and part in str(event.get("name"))]
        begin = min((float(event["ts"]) for event in mine), default=0.0)
        end = max((float(event["ts"]) + float(event.get("dur", 0.0)) for event in mine), default=0.0)
        found[stage] = (end - begin) * 1e3
    return found
