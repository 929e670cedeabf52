"""Trace events for Perfetto and Chrome: requests by stage, batches by worker, events, counters.

Format: "Trace Event Format" (Google), JSON object form. Times are microseconds from the first recorded time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

from latfix import __version__
from latfix.formatting import visible
from latfix.reports.exports.request_slices import RequestSlice, request_slices
from latfix.run_record.chunked_record import RecordSource, TableName

REQUESTS, WORKERS, EVENTS, COUNTERS = 1, 2, 3, 4
_PROCESSES = {REQUESTS: "requests", WORKERS: "workers", EVENTS: "events", COUNTERS: "counters"}
#: Parts of a batch; each starts at the end of the previous one.
BATCH_PARTS = (
    ("window", "close_ns"),
    ("collate", "collated_ns"),
    ("h2d", "h2d_end_ns"),
    ("compute", "compute_end_ns"),
    ("d2h", "d2h_end_ns"),
    ("finish", "finish_end_ns"),
)


def chrome_trace(source: RecordSource) -> Iterator[str]:
    """The document, in pieces."""
    zero = _earliest(source)
    head = {"workload": visible(source.meta.workload), "started": visible(source.meta.started), "zero_ns": zero}
    yield f'{{"displayTimeUnit":"ms","otherData":{json.dumps({"latfix": __version__, **head})},"traceEvents":[\n'
    parts = chain(_names(source), _requests(source, zero), _batches(source, zero), _events(source, zero))
    yield next(parts)
    for event in chain(parts, _counters(source, zero)):
        yield f",\n{event}"
    yield "\n]}\n"


def _earliest(source: RecordSource) -> int:
    """The first recorded time: trace viewers do not accept times below zero."""
    first = [int(rows["arrival_ns"].min()) for rows in source.scan(("arrival_ns",)) if len(rows["arrival_ns"])]
    tables: tuple[tuple[TableName, str], ...] = (("batches", "open_ns"), ("events", "t_ns"), ("samples", "t_ns"))
    for table, column in tables:  # sorted by time
        first += [int(rows[column].min()) for rows in islice(source.table(table), 1) if len(rows[column])]
    return min(first, default=0)


def _us(ns: int) -> str:
    """Microseconds, exact to the nanosecond."""
    whole, rest = divmod(max(ns, 0), 1000)
    return f"{whole}.{rest:03d}"


def _names(source: RecordSource) -> Iterator[str]:
    for pid, name in _PROCESSES.items():
        yield _metadata("process_name", pid, 0, {"name": f"latfix {name}"})
        yield _metadata("process_sort_index", pid, 0, {"sort_index": pid})
    for worker, device in enumerate(source.meta.worker_devices):
        yield _metadata("thread_name", WORKERS, worker, {"name": f"worker {worker}, {visible(device, limit=40)}"})
    for role, threads in source.meta.threads.items():
        for thread in threads:
            yield _metadata("thread_name", EVENTS, thread, {"name": f"{visible(role, limit=40)} {thread}"})


def _metadata(name: str, pid: int, tid: int, args: Mapping[str, Any]) -> str:
    return f'{{"ph":"M","name":"{name}","pid":{pid},"tid":{tid},"args":{json.dumps(args)}}}'


def _requests(source: RecordSource, zero: int) -> Iterator[str]:
    """Nested asynchronous slices, named by status: viewers put slices of one name on the same rows."""
    for each in request_slices(source):
        same = f'"cat":"request","id":"{each.index}","pid":{REQUESTS},"tid":0'
        begin, end = _us(each.arrival_ns - zero), _us(each.arrival_ns + each.latency_ns - zero)
        name = _title(each)
        yield f'{{"ph":"b","name":"{name}",{same},"ts":{begin},"args":{_request_args(each)}}}'
        for stage, at, took in each.stages:
            yield f'{{"ph":"b","name":"{stage}",{same},"ts":{_us(at - zero)}}}'
            yield f'{{"ph":"e","name":"{stage}",{same},"ts":{_us(at + took - zero)}}}'
        yield f'{{"ph":"e","name":"{name}",{same},"ts":{end}}}'


def _title(each: RequestSlice) -> str:
    if each.index < 0:
        return "warm-up"
    return "request" if each.status == "ok" else f"request, {each.status}"


def _request_args(each: RequestSlice) -> str:
    args: dict[str, Any] = {"id": each.id, "status": each.status, "latency_ms": each.latency_ns / 1e6}
    if each.batch_id >= 0:
        args |= {"batch": each.batch_id, "worker": each.worker}
    return json.dumps({**args, "error": each.error} if each.error else args)


def _batches(source: RecordSource, zero: int) -> Iterator[str]:
    names = ("batch_id", "worker", "size", "first_shape", "retried", "open_ns", *(end for _, end in BATCH_PARTS))
    for rows in source.table("batches"):
        for batch, worker, size, first, retried, opened, *ends in zip(
            *(rows[name].tolist() for name in names), strict=True
        ):
            args = {"batch": batch, "size": size, "first_shape": bool(first), "retried": bool(retried)}
            yield _complete(f"batch of {size}", WORKERS, worker, opened - zero, ends[-1] - opened, args)
            begun = opened
            for (name, _), end in zip(BATCH_PARTS, ends, strict=True):
                if end > begun:
                    yield _complete(name, WORKERS, worker, begun - zero, end - begun, {})
                    begun = end


def _complete(name: str, pid: int, tid: int, at: int, took: int, args: Mapping[str, Any]) -> str:
    place = f'"pid":{pid},"tid":{tid},"ts":{_us(at)},"dur":{_us(took)}'
    return f'{{"ph":"X","name":{json.dumps(name)},{place},"args":{json.dumps(args)}}}'


def _events(source: RecordSource, zero: int) -> Iterator[str]:
    names = ("t_ns", "duration_ns", "kind", "thread", "request", "batch_id", "detail")
    for rows in source.table("events"):
        for t, took, kind, thread, request, batch, detail in zip(
            *(rows[name].tolist() for name in names), strict=True
        ):
            args = {visible(key, limit=60): _plain(value) for key, value in detail.items()}
            args |= {name: k for name, k in (("request", request), ("batch", batch)) if k >= 0}
            yield _complete(visible(kind, limit=40), EVENTS, thread, t - zero, took, args)


def _plain(value: object) -> object:
    """A value that every JSON reader accepts."""
    if isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return visible(value, limit=2000)


def _counters(source: RecordSource, zero: int) -> Iterator[str]:
    for rows in source.table("samples"):
        times, series, values = (rows[name].tolist() for name in ("t_ns", "series", "value"))
        for t, name, value in zip(times, series, values, strict=True):
            if math.isfinite(value):
                same = f'"ph":"C","pid":{COUNTERS},"tid":0,"ts":{_us(t - zero)}'
                yield f'{{{same},"name":{json.dumps(visible(name, limit=120))},"args":{{"value":{value!r}}}}}'
