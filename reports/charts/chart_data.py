"""Data of the charts: arrays from a run's record, downsampled so that a page stays small."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from latfix.arrays import Bools, Floats
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import SERVER_EVENT
from latfix.stages import STAGES, Status
from latfix.statistics.censored import Outcomes, outcomes_of

Rows = npt.NDArray[np.intp]
#: Shares of slower requests, the latency in ms there, and the number of requests.
Curve = tuple[Floats, Floats, int]

#: Most points in a scatter; it always includes the slowest.
POINTS = 3000
_SLOWEST = 1000
_WINDOWS = 60
_CURVE = 400
_SPANS = 240
_EVENTS = 300
#: Endings of sampled counters; their slope per second is drawn.
_COUNTERS = ("_ns", "_us", "flt")
#: Sampled series to draw: by axis, label and factor of each.
_MACHINE: Mapping[str, Mapping[str, tuple[str, float]]] = {
    "memory, MiB": {
        "process.rss_bytes": ("process", 2.0**-20),
        "cuda.allocated_bytes": ("tensors", 2.0**-20),
        "cuda.reserved_bytes": ("reserved by the allocator", 2.0**-20),
        "nvml.memory_used_bytes": ("used on the device", 2.0**-20),
    },
    "pieces, MiB": {
        "cuda.inactive_split_bytes": ("free, inside blocks in use", 2.0**-20),
        "cuda.largest_free_block_bytes": ("largest free block", 2.0**-20),
    },
    "heap, MiB": {
        "malloc.used_bytes": ("in use", 2.0**-20),
        "malloc.free_bytes": ("free, in the arenas", 2.0**-20),
        "malloc.mmapped_bytes": ("mapped separately", 2.0**-20),
    },
    "page faults/s": {"process.minflt": ("minor", 1.0), "process.majflt": ("major", 1.0)},
    "cores": {
        "host.cpu_busy_ns": ("busy on the machine", 1e-9),
        "process.cpu_ns": ("used by the service", 1e-9),
        "host.steal_ns": ("taken by the hypervisor", 1e-9),
    },
    "waiting, %": {
        "pressure.cpu_some_us": ("some task of the machine for a core", 1e-4),
        "pressure.memory_some_us": ("for memory", 1e-4),
        "pressure.io_some_us": ("for storage", 1e-4),
        "cgroup.throttled_ns": ("the service, for its quota", 1e-7),
    },
    "GPU, %": {"nvml.gpu_util": ("busy", 1.0), "nvml.others_sm_util": ("busy for other processes", 1.0)},
    "clock, MHz": {"nvml.sm_clock_mhz": ("SM", 1.0), "nvml.mem_clock_mhz": ("memory", 1.0)},
    "power, W": {"nvml.power_w": ("power", 1.0)},
    "°C": {"nvml.temperature_c": ("temperature", 1.0)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """Latency by scheduled arrival.

    :param arrival_s: of the drawn points; ``latency_ms`` likewise.
    :param total: number of requests that ended ok.
    :param failed_s: arrivals of requests that did not end ok, downsampled.
    :param failed: number of requests that did not end ok.
    :param rows: rows of the record behind the points; ``failed_rows`` likewise.
    """

    arrival_s: Floats
    latency_ms: Floats
    total: int
    failed_s: Floats
    failed: int
    rows: Rows
    failed_rows: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Percentiles over windows of equal length; NaN in windows with too few requests.

    :param edges_s: ``(k + 1,)``.
    """

    edges_s: Floats
    p50_ms: Floats
    p99_ms: Floats


def measured_ok(record: RunRecord) -> Bools:
    """Mask of the measured requests that ended ok."""
    return np.asarray(record.measured & (record.requests["status"] == Status.OK))


def scatter(record: RunRecord) -> Scatter:
    """Measured requests by arrival: the slowest, and every k-th of the others."""
    ok = measured_ok(record)
    answered, failed = np.flatnonzero(ok), np.flatnonzero(record.measured & ~ok)
    arrival = record.requests["arrival_ns"] / 1e9
    latency = record.requests["latency_ns"] / 1e6
    rows = answered[_thin(latency[answered])]
    failed_rows = failed[:: max(1, -(-len(failed) // 500))]
    return Scatter(
        arrival_s=arrival[rows],
        latency_ms=latency[rows],
        total=record.counts()["ok"],
        failed_s=arrival[failed_rows],
        failed=len(failed),
        rows=rows,
        failed_rows=failed_rows,
    )


def _thin(latency: Floats) -> Rows:
    if len(latency) <= POINTS:
        return np.arange(len(latency))
    slowest = np.argpartition(latency, -_SLOWEST)[-_SLOWEST:]
    step = -(-len(latency) // (POINTS - _SLOWEST))
    return np.union1d(slowest, np.arange(0, len(latency), step))


def windows(record: RunRecord) -> Windows:
    """p50 and p99 over at most 60 windows, each of about a hundred requests or more."""
    arrival = record.requests["arrival_ns"][record.measured] / 1e9
    waited, status = (record.requests[name][record.measured] for name in ("latency_ns", "status"))
    if not len(arrival):
        return Windows(edges_s=np.zeros(1), p50_ms=np.zeros(0), p99_ms=np.zeros(0))
    low, high = float(arrival.min()), float(arrival.max())
    number = int(np.clip(len(arrival) // 100, 1, _WINDOWS))
    edges = np.linspace(low, high if high > low else low + 1e-3, number + 1)
    slot = np.clip(np.searchsorted(edges, arrival, side="right") - 1, 0, number - 1)
    order = np.argsort(slot, kind="stable")
    bounds = np.searchsorted(slot[order], np.arange(number + 1))
    values = np.full((2, number), np.nan)
    for k in range(number):
        inside = order[bounds[k] : bounds[k + 1]]
        window = Outcomes.of(waited[inside], status[inside])
        if len(window) >= 5:
            found = np.array(window.percentiles_ns((50, 99))) / 1e6
            values[:, k] = np.where(np.isfinite(found), found, np.nan)
    return Windows(edges_s=edges, p50_ms=values[0], p99_ms=values[1])


def percentile_curve(record: RunRecord) -> Curve:
    """Latency by percentile.

    Lost requests count as slower than all others, so the curve ends at the slowest answer.
    """
    outcomes = outcomes_of(record)
    count = len(outcomes)
    latency = np.sort(outcomes.series_ns / 1e6)
    if not count:
        return np.zeros(0), np.zeros(0), 0
    slower = np.geomspace(1.0, 1.0 / count, num=min(_CURVE, max(2 * count, 2))) if count > 1 else np.array([1.0])
    rank = np.clip(np.ceil((1 - slower) * count - 1e-9).astype(np.int64), 0, count - 1)
    answered = np.isfinite(latency[rank])
    return slower[answered], latency[rank][answered], count


def stage_profile(record: RunRecord) -> tuple[list[str], Floats]:
    """Mean milliseconds of each stage over all, typical (p45–p55) and slow requests.

    :returns: names of the groups, and ``(groups, stages)``. Each row sums to that group's mean latency.
    """
    ok = measured_ok(record)
    latency = record.requests["latency_ns"][ok]
    if not len(latency):
        return [], np.zeros((0, len(STAGES)))
    p45, p55, p95, p99 = np.percentile(latency, [45, 55, 95, 99])
    masks = [
        ("all requests", np.ones(len(latency), dtype=bool)),
        ("typical (p45–p55)", (latency >= p45) & (latency <= p55)),
        ("p95 to p99", (latency >= p95) & (latency <= p99)),
        ("slowest 1 %", latency >= p99),
    ]
    stages = np.stack([record.requests[f"{stage}_ns"][ok] / 1e6 for stage in STAGES], axis=1)
    kept = [(name, mask) for name, mask in masks if mask.any()]
    return [name for name, _ in kept], np.stack([stages[mask].mean(axis=0) for _, mask in kept])


def arrival_rate(record: RunRecord) -> tuple[Floats, Floats]:
    """Scheduled arrivals a second in windows of equal length: edges in seconds, and rates."""
    arrival = record.requests["arrival_ns"][record.measured] / 1e9
    if not len(arrival):
        return np.zeros(1), np.zeros(0)
    low, high = float(arrival.min()), float(arrival.max())
    number = int(np.clip(len(arrival) // 20, 1, 120))
    edges = np.linspace(low, high if high > low else low + 1e-3, number + 1)
    counts, _ = np.histogram(arrival, bins=edges)
    return edges, counts / np.diff(edges)


def in_flight(record: RunRecord) -> tuple[Floats, Floats]:
    """Requests inside the service over time: the maximum in each of at most 600 windows."""
    rows = record.requests
    arrival = np.sort(rows["arrival_ns"][record.measured])
    end = np.sort((rows["arrival_ns"] + rows["latency_ns"])[record.measured])
    if not len(arrival):
        return np.zeros(0), np.zeros(0)
    inside = np.arange(1, len(arrival) + 1) - np.searchsorted(end, arrival, side="right")
    seconds = arrival / 1e9
    if len(seconds) <= 600:
        return seconds, np.asarray(inside, dtype=np.float64)
    starts = np.linspace(0, len(seconds), 601).astype(np.int64)[:-1]
    return seconds[starts], np.maximum.reduceat(inside, starts).astype(np.float64)


def queue_depth(record: RunRecord) -> tuple[Floats, Floats]:
    """Sampled requests in the queue since the first one came: the maximum in each of at most 240 spans."""
    since = int(record.requests["arrival_ns"][record.measured].min(initial=np.iinfo(np.int64).max))
    rows = np.flatnonzero((record.samples["series"] == "runner.queue_depth") & (record.samples["t_ns"] >= since))
    at, depth = (np.asarray(record.samples[name][rows], dtype=np.float64) for name in ("t_ns", "value"))
    if not len(at):
        return at, depth
    starts = np.unique(np.linspace(0, len(at), min(len(at), _SPANS) + 1).astype(np.int64)[:-1])
    return at[starts] / 1e9, np.maximum.reduceat(depth, starts)


def batch_sizes(record: RunRecord) -> tuple[Floats, Floats]:
    """Mean number of requests of the batches closed in each of at most 240 spans of time."""
    rows = np.flatnonzero(record.batches["warmup"] == 0)
    at, size = record.batches["close_ns"][rows], record.batches["size"][rows].astype(np.float64)
    last = int(at.max(initial=0))
    return _by_span(at, size, np.linspace(0, last, _SPANS + 1), rises=False) if last else (np.zeros(0), np.zeros(0))


def machine_series(record: RunRecord) -> dict[str, list[tuple[str, Floats, Floats]]]:
    """Samples of memory, cores and devices: by axis, lines as label, seconds and values."""
    last = int((record.requests["arrival_ns"] + record.requests["latency_ns"]).max(initial=0))
    edges = np.linspace(0, last, _SPANS + 1)
    names = record.samples["series"]
    panels: dict[str, list[tuple[str, Floats, Floats]]] = {}
    for name in sorted(set(names.tolist())):
        device = re.search(r"\.(\d+)\.", name)
        plain = name.replace(device[0], ".", 1) if device else name
        axis = next((axis for axis, series in _MACHINE.items() if plain in series), None)
        if axis is None or not last:
            continue
        label, factor = _MACHINE[axis][plain]
        rows = np.flatnonzero(names == name)
        at, values = (record.samples[column][rows] for column in ("t_ns", "value"))
        seconds, drawn = _by_span(at, values * factor, edges, rises=plain.endswith(_COUNTERS))
        if np.any(drawn):
            panels.setdefault(axis, []).append((f"{label}, {device[1]}" if device else label, seconds, drawn))
    return {axis: panels[axis] for axis in _MACHINE if axis in panels}


def _by_span(at: npt.NDArray[np.int64], values: Floats, edges: Floats, *, rises: bool) -> tuple[Floats, Floats]:
    """Means of the samples in each span, with their mean time in seconds.

    :param rises: the series is a counter; return its slope per second.
    """
    good = np.isfinite(values) & (at >= 0) & (at <= edges[-1])
    at, values = at[good], values[good]
    slot = np.searchsorted(edges, at, side="left")
    inside = np.bincount(slot, minlength=len(edges) + 1)
    means = np.bincount(slot, values, minlength=len(edges) + 1) / np.maximum(inside, 1)
    moments = np.bincount(slot, at, minlength=len(edges) + 1) / np.maximum(inside, 1) / 1e9
    seen = np.flatnonzero(inside[: len(edges)])
    if not rises:
        return moments[seen], means[seen]
    passed = np.diff(moments[seen])
    return moments[seen][1:], np.maximum(np.diff(means[seen]) / np.where(passed > 0, passed, np.inf), 0.0)


def event_spans(record: RunRecord) -> dict[str, list[tuple[float, float]]]:
    """The longest events by kind, as begin and length in seconds; without the parts of each request."""
    kinds = record.events["kind"].astype(str)
    found = {}
    for kind in np.unique(kinds[~np.isin(kinds, ("span", SERVER_EVENT))]).tolist():
        rows = np.flatnonzero((kinds == kind) & (record.events["t_ns"] >= 0))
        rows = rows[np.argsort(record.events["duration_ns"][rows], kind="stable")[-_EVENTS:]]
        begin, length = (record.events[name][rows] / 1e9 for name in ("t_ns", "duration_ns"))
        if len(rows):
            found[kind] = list(zip(begin.tolist(), length.tolist(), strict=True))
    return found
