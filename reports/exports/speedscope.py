"""A speedscope file: stages of mean requests, sampled Python stacks, and the batches of each worker over time.

Format: https://www.speedscope.app/file-format-schema.json. Frames are written last, when all are known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

import numpy as np

from latfix import __version__
from latfix.formatting import visible
from latfix.reports.charts.flame_graph import frame_name
from latfix.reports.exports.chrome_trace import BATCH_PARTS
from latfix.reports.exports.hdr_log import places_of
from latfix.results.diagnosis import StackTime
from latfix.run_record.chunked_record import RecordSource
from latfix.run_record.schema import Columns
from latfix.stages import STAGES, Status, stage_label

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_TAIL = 0.99
#: Prefix of the sample series that hold the stack of a thread.
_STACK = "stack."


def speedscope(source: RecordSource, stacks: Sequence[StackTime] = ()) -> Iterator[str]:
    """The document, in pieces.

    :param stacks: time in sampled stacks, of slow and of typical work.
    """
    frames: dict[str, int] = {}
    head: dict[str, object] = {"$schema": _SCHEMA, "exporter": f"latfix {__version__}", "activeProfileIndex": 0}
    head["name"] = visible(source.meta.workload, limit=200)
    yield f'{json.dumps(head)[:-1]},"profiles":['
    python = chain(_python(source, frames, stacks), _stacks_over_time(source, frames))
    for number, profile in enumerate(chain(_means(source, frames), _workers(source, frames), python)):
        yield from chain([",\n"] if number else [], profile)
    yield f'],\n"shared":{{"frames":{json.dumps([{"name": frame} for frame in frames])}}}}}\n'


def _place(frames: dict[str, int], name: str) -> int:
    return frames.setdefault(name, len(frames))


def _means(source: RecordSource, frames: dict[str, int]) -> Iterator[list[str]]:
    """Two profiles, the mean request and the mean of the slowest 1 %: stages by nanoseconds."""
    counts = np.zeros(0, np.int64)
    for rows in _answered(source, ("latency_ns",)):
        found = np.bincount(places_of(rows["latency_ns"]))
        counts = np.pad(counts, (0, max(len(found) - len(counts), 0)))
        counts[: len(found)] += found
    # p99 to three digits: all requests in its counter belong to the tail.
    rank = int(np.searchsorted(np.cumsum(counts), _TAIL * counts.sum(), side="left"))
    for title, least in (("mean of all requests", 0), ("mean of the slowest 1 %", rank)):
        sums, number = np.zeros(len(STAGES), np.int64), 0
        for rows in _answered(source, ("latency_ns", *(f"{stage}_ns" for stage in STAGES))):
            slow = places_of(rows["latency_ns"]) >= least
            sums += [int(rows[f"{stage}_ns"][slow].sum()) for stage in STAGES]
            number += int(np.count_nonzero(slow))
        means = (sums // max(number, 1)).tolist()
        labels = [stage_label(stage, outside=source.meta.is_http) for stage in STAGES]
        stacks = [[_place(frames, "request"), _place(frames, label)] for label in labels]
        yield _sampled(title, stacks, means)


def _python(source: RecordSource, frames: dict[str, int], stacks: Sequence[StackTime]) -> Iterator[list[str]]:
    """Profiles of the sampled Python of slow and of typical units, by nanoseconds."""
    for unit in dict.fromkeys(time.unit for time in stacks):
        some = [time for time in stacks if time.unit == unit]
        samples = [_stack(source, frames, time.frames) for time in some]
        yield _sampled(f"Python of slow {unit}", samples, [round(time.slow_ms * 1e6) for time in some])
        yield _sampled(f"Python of typical {unit}", samples, [round(time.typical_ms * 1e6) for time in some])


def _stacks_over_time(source: RecordSource, frames: dict[str, int]) -> Iterator[list[str]]:
    """A profile of the sampled Python of each thread over time.

    A sample covers the time since the previous one, at most the median period.
    """
    stacks = source.meta.stacks
    seen: dict[str, list[tuple[int, int]]] = {}
    for rows in source.table("samples") if stacks else ():
        for t, series, value in zip(*(rows[name].tolist() for name in ("t_ns", "series", "value")), strict=True):
            if series.startswith(_STACK) and value in range(len(stacks)):
                seen.setdefault(series.removeprefix(_STACK), []).append((t, int(value)))
    gaps = [later - sooner for times in seen.values() for (sooner, _), (later, _) in pairwise(times)]
    period = int(np.median(gaps)) if gaps else 0
    for thread, times in seen.items():
        samples: list[list[int]] = []
        weights: list[int] = []
        last = 0
        for t, stack in times:
            begun = max(last, t - period)
            samples += [[], _stack(source, frames, stacks[stack])]
            weights += [begun - last, max(t - begun, 0)]
            last = max(last, t)
        yield _sampled(f"Python of {visible(thread, limit=40)} over time", samples, weights)


def _stack(source: RecordSource, frames: dict[str, int], names: Sequence[str]) -> list[int]:
    """The indexes of a stack's frames, outermost first."""
    known = (visible(frame_name(name, source.meta.workload_folder), limit=300) for name in reversed(names))
    return [_place(frames, name) for name in known]


def _sampled(title: str, stacks: list[list[int]], weights: list[int]) -> list[str]:
    known = {"type": "sampled", "name": title, "unit": "nanoseconds", "startValue": 0, "endValue": sum(weights)}
    return [json.dumps({**known, "samples": stacks, "weights": weights})]


def _answered(source: RecordSource, names: tuple[str, ...]) -> Iterator[Columns]:
    """Columns of measured requests that ended ``ok``."""
    for rows in source.scan((*names, "status", "warmup")):
        keep = (rows["warmup"] == 0) & (rows["status"] == Status.OK)
        yield {name: rows[name][keep] for name in names}


def _workers(source: RecordSource, frames: dict[str, int]) -> Iterator[Iterator[str]]:
    """A profile of each worker's batches over time; one pass over the batches per worker."""
    workers: set[int] = set()
    latest = 0
    for rows in source.table("batches"):
        workers.update(np.unique(rows["worker"]).tolist())
        latest = max(latest, int(rows["finish_end_ns"].max(initial=0)))
    for worker in sorted(workers):
        yield _worker(source, frames, worker, latest)


def _worker(source: RecordSource, frames: dict[str, int], worker: int, latest: int) -> Iterator[str]:
    known = {"type": "evented", "name": f"worker {worker}", "unit": "nanoseconds"}
    now, between = 0, ""
    yield f'{json.dumps(known)[:-1]},"startValue":0,"endValue":{latest},"events":['
    for rows in source.table("batches"):
        keep = rows["worker"] == worker
        columns = [rows[name][keep].tolist() for name in ("size", "open_ns", *(end for _, end in BATCH_PARTS))]
        for size, opened, *ends in zip(*columns, strict=True):
            now = begun = max(now, opened)  # times in a profile must not decrease
            whole = _place(frames, f"batch of {size}")
            yield f'{between}{{"type":"O","frame":{whole},"at":{begun}}}'
            between = ",\n"
            for (name, _), end in zip(BATCH_PARTS, ends, strict=True):
                if end > now:
                    frame = _place(frames, name)
                    yield f',{{"type":"O","frame":{frame},"at":{now}}},{{"type":"C","frame":{frame},"at":{end}}}'
                    now = end
            yield f',{{"type":"C","frame":{whole},"at":{now}}}'
    yield "]}"
