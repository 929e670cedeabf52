"""Recordings of a live service: rows of ``latfix.record``, and the engine's record of ``load_runner``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import add
from pathlib import Path
from typing import Any

import numpy as np

from latfix.arrays import Bools, Ints
from latfix.cause_catalogue import CATALOGUE
from latfix.errors import input_error
from latfix.formatting import count
from latfix.profilers.diagnose import diagnose as diagnose_record
from latfix.profilers.recordings.reader import Reader, ReadOptions, Recorded, opened
from latfix.profilers.recordings.requests.readers import diagnose_table
from latfix.profilers.recordings.requests.request_table import (
    UNKNOWN,
    RequestTable,
    ns_of,
    number_or_nan,
    routes_of,
    statuses_of,
)
from latfix.profilers.recordings.requests.text_source import LATEST_NS, BadLines, begins_with_object, json_object
from latfix.profilers.services.server_advice import ONE_LOOP, THREADS
from latfix.results.diagnosis import Diagnosis, Source
from latfix.run_record.live_record import live_parts, load_live

#: A request is quick up to this multiple of the median latency. A waiting request waits for something outside if this
#: share of the requests that arrive while it waits is quick.
_USUAL, _PASSED = 2, 0.75
_EXPECTED = "a row of latfix.record"
#: The most requests that a row stands for: far more than a busy service answers between two writes of rows.
_MOST_WEIGHT = 1 << 20
#: The most requests in memory: each needs some hundred bytes, but only its row's on disk.
_MOST_REQUESTS = 5_000_000
_TIMES = ("start_ns", "latency_ns", "weight", "in_flight")
#: Counters that are parts of a latency, in order of priority, with the cause of each.
_CAUSES = {"throttled_ns": "host.throttle", "runq_ns": "host.contention", "gc_ns": "python.gc"}
_COUNTERS = ("cpu_ns", "waited_ns", *_CAUSES)
_WHOLE = (*_TIMES, *_COUNTERS, "thread")
#: An event loop serves the requests if more than this share of the overlapping ones began on a busy thread.
_INTERLEAVED = 0.2


def diagnose(recorded: Recorded, options: ReadOptions, *, last_s: float | None = None) -> Diagnosis:
    """The diagnosis of rows of :class:`latfix.record`, while the service runs or later.

    :param last_s: read the last seconds only.
    :raises InputError: there is no request yet.
    """
    files = [file.path for file in recorded.files if knows(file.head)]
    return diagnose_table(read(files, last_s=last_s), recorded.path, options, kind=READER.kind)


def diagnose_runner(recorded: Recorded, options: ReadOptions, *, last_s: float | None = None) -> Diagnosis:
    """The diagnosis of a record of ``load_runner(record=...)``, with all stamps of the engine.

    :param last_s: read the last seconds only.
    :raises InputError: there is no request yet.
    """
    record = load_live(recorded.path, last_s=last_s)
    diagnosis = diagnose_record(record, percentile=options.percentile, seed=options.seed)
    read = {"format": RUNNER.reads, "requests": len(record.traffic), "since": record.meta.started}
    source = Source(kind=RUNNER.kind, path=str(recorded.path), read=read)
    return replace(diagnosis, seen=tuple(CATALOGUE), source=source)


RUNNER = Reader(
    kind="live",
    reads="what load_runner(record=...) wrote",
    knows=lambda recorded: bool(recorded.inside) and bool(live_parts(recorded.path)),
    read=diagnose_runner,
)
READER = Reader(
    kind="live",
    reads="what latfix.record wrote",
    knows=lambda recorded: any(knows(file.head) for file in recorded.files),
    read=diagnose,
)


def knows(head: bytes) -> bool:
    """True if a file begins with a row of ``latfix.record``."""
    row = begins_with_object(head)
    return row is not None and row.keys() >= {*_TIMES, *_COUNTERS, "spans_ns", "features"}


@dataclass(slots=True)
class _Columns:
    """Columns that grow row by row."""

    times: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in _WHOLE})
    status: list[str] = field(default_factory=list)
    route: list[str] = field(default_factory=list)
    spans: list[Mapping[str, int | None]] = field(default_factory=list)
    features: list[Mapping[str, float]] = field(default_factory=list)

    def add(self, row: Mapping[str, Any] | None) -> bool:
        """Append a row. Returns False if it is invalid."""
        if row is None or not _sound(row):
            return False
        for name, column in self.times.items():
            value = row.get(name)
            column.append(value if isinstance(value, int) and 0 <= value <= LATEST_NS else UNKNOWN)
        self.status.append(str(row.get("status", "ok")))
        self.route.append(str(row.get("route", "")))
        self.spans.append({name: ns_of(value, 1) for name, value in _object(row, "spans_ns")})
        self.features.append({name: number_or_nan(value) for name, value in _object(row, "features")})
        return True


def read(files: Sequence[Path], *, last_s: float | None = None) -> RequestTable:
    """The requests of all segments.

    :param last_s: keep the requests of the last seconds of the recording only.
    :raises InputError: there is no request, or most lines are invalid.
    """
    columns = _Columns()
    starts, latencies = columns.times["start_ns"], columns.times["latency_ns"]
    bad = BadLines(files[0], _EXPECTED)
    since, read_back = 0, set[str]()
    for path in sorted(files, reverse=last_s is not None):  # the time at which it was begun is in its name
        if _process(path) in read_back:
            continue
        first = len(starts)
        for number, line in _lines(path):
            if not columns.add(json_object(line)):
                bad.add(number, repr(line[:40]))
        if last_s is not None and len(starts) > first:
            since = max(starts) - int(last_s * 1e9)
            if min(map(add, starts[first:], latencies[first:])) < since:  # rows are in the order of their ends
                read_back.add(_process(path))
    if not columns.status and not bad.count:
        raise input_error(files[0], None, "no requests yet", _EXPECTED)
    bad.check(len(columns.status))
    return _table(columns, since, bad, len(set(map(_process, files))))


def _process(path: Path) -> str:
    return path.name.partition(".")[0].rpartition("-")[2]


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Complete lines: the last one may be unfinished, as its process still writes it or was killed."""
    with opened(path, _EXPECTED) as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n") and line.strip():
                yield number, line


def _sound(row: Mapping[str, Any]) -> bool:
    values = [row.get(name) for name in _TIMES]
    whole = all(isinstance(value, int) and 0 <= value < 1 << 62 for value in values)
    return whole and 0 < row["weight"] <= _MOST_WEIGHT


def _object(row: Mapping[str, Any], name: str) -> Iterable[tuple[str, Any]]:
    value = row.get(name)
    return value.items() if isinstance(value, dict) else ()


def _table(columns: _Columns, since: int, bad: BadLines, processes: int) -> RequestTable:
    times = {name: np.array(column, np.int64) for name, column in columns.times.items()}
    rows = np.flatnonzero(times["start_ns"] >= since)
    weight = times["weight"][rows]
    every = rows[_by_request(weight)]
    kept, total = len(rows), int(weight.sum())
    names = sorted({name for features in columns.features for name in features})
    sampled = bool((weight > 1).any())
    notes = list(bad.notes())
    if sampled:
        notes.append(
            f"{count(kept)} rows are kept of {count(total)} requests: the slow ones, and a sample of the others in "
            "which each row is weighted by the requests it stands for."
        )
    if len(every) < total:
        notes.append(
            f"{count(len(every))} of {count(total)} requests, evenly spread, are used: all need much memory."
        )
    if not (times["cpu_ns"] >= 0).any():
        notes.append("Requests ended on other threads than they began on, so their thread counters are unknown.")
    parts, waited = _parts(columns, times)
    has_waits = bool((times["waited_ns"] >= 0).any())
    table = RequestTable(
        arrival_ns=times["start_ns"],
        latency_ns=times["latency_ns"],
        status=statuses_of(columns.status),
        parts=parts,
        idle_ns=waited if has_waits else None,
        idle_alone=_by_itself(times) if has_waits else None,
        stages={"cpu": times["cpu_ns"]} if (times["cpu_ns"] >= 0).any() else {},
        features={name: np.array([each.get(name, np.nan) for each in columns.features]) for name in names},
        **routes_of(columns.route),
        sampled=sampled,
        facts={
            "format": READER.reads,
            "rows": kept,
            "processes": processes,
            "in flight at most": int(times["in_flight"].max()),
            **_served_by(times),
        },
        notes=tuple(notes),
    )
    return table.take(every).sorted()


def _by_request(weight: Ints) -> Ints:
    """The row of each request, as a sampled row stands for several; of one in k if they are too many."""
    total = int(weight.sum())
    step = max(-(-total // _MOST_REQUESTS), 1)
    first = np.arange(0, total, step)
    # One at random of each k: rows may alternate with the same period.
    chosen = np.minimum(first + np.random.default_rng(0).integers(0, step, len(first)), total - 1)
    return np.asarray(np.searchsorted(np.cumsum(weight), chosen, side="right"), dtype=np.int64)


def _served_by(times: Mapping[str, Ints]) -> dict[str, str]:
    """Whether an event loop or threads serve overlapping requests; empty if none overlap."""
    rows = np.flatnonzero(times["thread"] >= 0)
    rows = rows[np.lexsort((times["start_ns"][rows], times["thread"][rows]))]
    overlapping = np.count_nonzero(times["in_flight"][rows] > 1)
    if not overlapping:
        return {}
    thread, start = times["thread"][rows], times["start_ns"][rows]
    same = thread[1:] == thread[:-1]
    interleaved = np.count_nonzero(same & (start[1:] < (start + times["latency_ns"][rows])[:-1]))
    return {"served by": ONE_LOOP if interleaved > _INTERLEAVED * overlapping else THREADS}


def _parts(columns: _Columns, times: Mapping[str, Ints]) -> tuple[dict[str, Ints], Ints]:
    """Measured parts that do not overlap, declared spans first; and the remaining waits."""
    left = times["latency_ns"].copy()
    parts: dict[str, Ints] = {}

    def claim(amount: Ints) -> Ints:
        nonlocal left
        claimed = np.clip(amount, 0, left)
        left = left - claimed
        return claimed

    for name in sorted({name for spans in columns.spans for name in spans}):
        parts[name] = claim(np.array([spans.get(name) or 0 for spans in columns.spans], np.int64))
    # Waits come before collections: a collection during a wait costs nothing.
    waited = claim(times["waited_ns"] - (times["latency_ns"] - left))
    for name, cause in _CAUSES.items():
        throttled = np.maximum(times["throttled_ns"], 0) if name == "runq_ns" else 0
        if (times[name] >= 0).any():  # unknown is not zero
            parts[cause] = claim(times[name] - throttled)
    return {name: part for name, part in parts.items() if part.any()}, waited


def _by_itself(times: Mapping[str, Ints]) -> Bools:
    """True for requests that waited for no other request: alone in the service, or passed by later, quick requests.

    Any other idle request may have waited for a lock or a pool that a served request held.
    """
    start, latency = times["start_ns"], times["latency_ns"]
    most = int(_USUAL * np.median(latency[_by_request(times["weight"])]))
    order = np.argsort(start, kind="stable")
    arrived = np.append(0, np.cumsum(times["weight"][order]))
    quick = np.append(0, np.cumsum((times["weight"] * (latency <= most))[order]))
    # Requests that arrived when this one was already late, early enough to pass it.
    first, last = (np.searchsorted(start[order], at) for at in (start + most, start + latency - most))
    last = np.maximum(last, first)
    passed = quick[last] - quick[first]
    return np.asarray(
        (times["in_flight"] == 1) | ((passed > 0) & (passed >= _PASSED * (arrived[last] - arrived[first])))
    )
