"""Chunks of a large record: where it is cut, and the contents of a chunk.

An empty queue has no memory, so a record is cut where the service was idle. A service that is never idle is cut
anyway, and the backlog carries over (:mod:`chunked.chunk_ledgers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from latfix.arrays import Bools, Ints
from latfix.run_record.chunked_record import (
    SAMPLES_AROUND_NS,
    RecordSource,
    TableName,
    first_readings,
    kept,
    notes_of,
    scheduled_rows,
    span_of,
    totals_of,
    with_opening,
)
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import Columns
from latfix.traffic.schedule import Traffic

_NEVER = -(2**62)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Rows ``first`` up to ``last`` of a record.

    :param reach_ns: when the last of all earlier requests ended; after the chunk's first arrival if ``busy``.
    :param busy: the service was busy at the cut.
    """

    first: int
    last: int
    reach_ns: int
    busy: bool


class Cutter:
    """Cuts a stream of rows into chunks.

    :param size: least requests per chunk; at most twice as many if the service is not idle.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._chunks: list[Chunk] = []
        self._first, self._reach_then, self._busy = 0, _NEVER, False
        self._row, self._reach, self._largest = 0, _NEVER, _NEVER
        self._border: tuple[int, int] | None = None

    def add(self, arrival: Ints, end: Ints, batch_id: Ints) -> None:
        """Take the next rows: arrival, end and batch of each request."""
        if not len(arrival):
            return
        reach = np.maximum.accumulate(np.concatenate([[self._reach], end]))
        largest = np.maximum.accumulate(np.concatenate([[self._largest], batch_id]))
        coming = np.minimum.accumulate(np.where(batch_id >= 0, batch_id, 2**62)[::-1])[::-1]
        idle = np.flatnonzero(reach[:-1] <= arrival)
        border = np.flatnonzero(largest[:-1] < coming)
        done = self._row + len(arrival)
        while self._first + self._size < done:
            begun = self._first
            cut = self._next(idle, border, reach, done)
            if cut is None:
                break
            row, reached, busy = cut
            self._chunks.append(Chunk(first=begun, last=row, reach_ns=self._reach_then, busy=self._busy))
            self._first, self._reach_then, self._busy, self._border = row, reached, busy, None
        self._row, self._reach, self._largest = done, int(reach[-1]), int(largest[-1])

    def chunks(self) -> list[Chunk]:
        """All chunks; the last has the remaining rows."""
        if self._row == self._first:
            return self._chunks
        return [*self._chunks, Chunk(first=self._first, last=self._row, reach_ns=self._reach_then, busy=self._busy)]

    def _next(self, idle: Ints, border: Ints, reach: Ints, done: int) -> tuple[int, int, bool] | None:
        least, most = self._first + self._size, self._first + 2 * self._size
        at = int(np.searchsorted(idle, least - self._row))
        if at < len(idle) and idle[at] + self._row <= most:
            return int(idle[at]) + self._row, int(reach[idle[at]]), False
        near = border[(border + self._row > least) & (border + self._row <= most)]
        if len(near):
            self._border = int(near[-1]) + self._row, int(reach[near[-1]])
        if done <= most:
            return None
        if self._border is None:
            self._border = most, int(reach[most - self._row])
        return *self._border, True


class WholeRecord:
    """A record in memory as a :class:`chunked_record.RecordSource`."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self.meta, self.folder, self.partial = record.meta, record.folder, record.partial
        self._opening = first_readings(record.samples)

    def __len__(self) -> int:
        return len(self._record.requests["index"])

    def scan(self, names: Sequence[str]) -> Iterator[Columns]:
        yield {name: self._record.requests[name] for name in names}

    def stretch(self, first: int, last: int) -> RunRecord:
        """Rows ``first`` up to ``last`` with their batches, events and samples; the record itself for all rows."""
        whole = self._record
        if first == 0 and last == len(self):
            return whole
        requests = {name: values[first:last] for name, values in whole.requests.items()}
        begin, end = span_of(requests)
        low, high = scheduled_rows(requests, len(whole.traffic))
        inside = (whole.events["t_ns"] < end) & (whole.events["t_ns"] + whole.events["duration_ns"] > begin)
        when = whole.samples["t_ns"]
        near = (when >= begin - SAMPLES_AROUND_NS) & (when <= end + SAMPLES_AROUND_NS)
        return replace(
            whole,
            requests=requests,
            batches=kept(whole.batches, np.isin(whole.batches["batch_id"], requests["batch_id"])),
            events=kept(whole.events, inside),
            samples=with_opening(kept(whole.samples, near), self._opening),
            traffic=replace(whole.traffic.rows(np.arange(low, high)), payloads=[None] * (high - low)),
            first_index=low + whole.first_index,
            begins=whole.begins and first == 0,
        )

    def table(self, name: TableName) -> Iterator[Columns]:
        tables = {"batches": self._record.batches, "events": self._record.events, "samples": self._record.samples}
        yield tables[name]

    def event_totals(self) -> Mapping[str, tuple[int, int]]:
        return totals_of(self._record.events)

    def errors(self) -> Mapping[int, str]:
        return self._record.errors

    def notes(self) -> Columns:
        return notes_of(self._record.events)


def sample_of(source: RecordSource, chunks: Sequence[Chunk], stretches: int, rows: int) -> RunRecord:
    """Stretches spread evenly over a record, joined into one, to learn baselines from.

    Every stretch begins where a chunk does; the first is the run's beginning. Requests are renumbered.
    """
    chosen = np.unique(np.linspace(0, len(chunks) - 1, min(stretches, len(chunks))).round().astype(np.int64))
    starts = [chunks[k] for k in chosen.tolist()]
    return joined([source.stretch(chunk.first, min(chunk.first + rows, chunk.last)) for chunk in starts])


def joined(parts: Sequence[RunRecord]) -> RunRecord:
    """Parts of one record, in order of time, as one record whose requests are numbered from zero."""
    index, scheduled = [], 0
    for part in parts:
        own = part.requests["index"]
        index.append(np.where(own >= 0, own - part.first_index + scheduled, own))
        scheduled += len(part.traffic)
    requests = stacked([part.requests for part in parts]) | {"index": np.concatenate(index)}
    batches = stacked([part.batches for part in parts])
    events = _distinct(stacked([part.events for part in parts]), ("t_ns", "duration_ns", "thread"))
    return replace(
        parts[0],
        requests=requests,
        batches=kept(batches, np.unique(batches["batch_id"], return_index=True)[1]),
        events=events | {"request": _renumbered(events["request"], parts)},
        samples=_distinct(stacked([part.samples for part in parts]), ("t_ns", "series")),
        traffic=Traffic.joined([part.traffic for part in parts]),
        errors={key: text for part in parts for key, text in part.errors.items()},
        first_index=0,
    )


def _renumbered(index: Ints, parts: Sequence[RunRecord]) -> Ints:
    """Schedule indices in the joined record; -1 for those in no part."""
    first, count = (
        np.array(of) for of in zip(*((part.first_index, len(part.traffic)) for part in parts), strict=True)
    )
    at = np.maximum(np.searchsorted(first, index, side="right") - 1, 0)
    inside = (index >= first[at]) & (index < (first + count)[at])
    return np.where(inside, index - first[at] + (np.cumsum(count) - count)[at], -1)


def stacked(parts: Sequence[Columns]) -> Columns:
    """The rows of all parts, one part after the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _distinct(columns: Columns, keys: tuple[str, ...]) -> Columns:
    """Rows in order of time, without those that two parts share."""
    seen: set[tuple[Any, ...]] = set()
    keep = np.zeros(len(columns["t_ns"]), dtype=bool)
    for k, row in enumerate(zip(*(columns[key].tolist() for key in keys), strict=True)):
        if row not in seen:
            seen.add(row)
            keep[k] = True
    columns = kept(columns, keep)
    return kept(columns, np.argsort(columns["t_ns"], kind="stable"))


def before_first_idle(chunk: Chunk, record: RunRecord) -> Bools:
    """True for requests of a chunk before its first idle time: the backlog at the cut may still delay them."""
    arrival = record.requests["arrival_ns"]
    if not chunk.busy:
        return np.zeros(len(arrival), dtype=bool)
    end = arrival + record.requests["latency_ns"]
    reach = np.maximum.accumulate(np.concatenate([[chunk.reach_ns], end]))[:-1]
    idle = np.flatnonzero(reach <= arrival)
    return np.asarray(np.arange(len(arrival)) < (idle[0] if len(idle) else len(arrival)))
