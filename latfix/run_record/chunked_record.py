"""A run's folder read in pieces: any stretch of requests with its batches, events and samples, in bounded memory.

Files are sorted (requests by schedule index, batches by id, events and samples by time), so a stretch takes a few
row groups of each. The latest row groups are cached: a forward scan reads each once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from latfix.arrays import Ints
from latfix.files.parquet_reader import PARQUET, ParquetRows, arrow_file, unreadable
from latfix.files.parquet_types import check_type
from latfix.files.regular_file import check_regular
from latfix.run_record.run_meta import RunMeta, read_meta
from latfix.run_record.run_record import (
    ESSENTIAL,
    SCHEDULE,
    RunRecord,
    is_partial,
    parsed_details,
    plain_columns,
    request_columns,
    request_errors,
)
from latfix.run_record.schema import BATCH_DTYPE, EVENT_FIELDS, REQUEST_DTYPE, SAMPLE_FIELDS, Columns
from latfix.run_record.validation import RequestCheck, check_batches, check_times, damaged
from latfix.stages import STAGES
from latfix.traffic.io.stored_schedule import ScheduleFile

TableName = Literal["batches", "events", "samples"]

#: Samples this long before and after a stretch belong to it, because counters are compared between readings.
SAMPLES_AROUND_NS = 5_000_000_000
#: Runs with more requests are processed in chunks.
LARGE = 150_000
_NEVER = -(2**62)


class RecordSource(Protocol):
    """A record that can be read in stretches."""

    @property
    def meta(self) -> RunMeta:
        """The content of ``run.json``."""

    @property
    def folder(self) -> Path:
        """The folder that it was read from."""

    @property
    def partial(self) -> bool:
        """True if the runner did not reach its end."""

    def __len__(self) -> int:
        """Requests with a row, warm-up included."""

    def scan(self, names: Sequence[str]) -> Iterator[Columns]:
        """Some columns of all rows in order, in blocks of any size."""

    def stretch(self, first: int, last: int) -> RunRecord:
        """Rows ``first`` up to ``last`` with their batches, events, samples and schedule; no payloads."""

    def table(self, name: TableName) -> Iterator[Columns]:
        """All rows of one of the other tables in order, in blocks of any size."""

    def event_totals(self) -> Mapping[str, tuple[int, int]]:
        """By kind of event, the number in the run and the longest duration in nanoseconds."""

    def errors(self) -> Mapping[int, str]:
        """The message of each failed request, by schedule index."""

    def notes(self) -> Columns:
        """The run's events of kind ``note``."""


class RecordFile:
    """The Parquet files of a run that ended; see :class:`RecordSource`.

    :raises InputError: the folder is not a run's, has segments instead of Parquet, or a file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta = read_meta(folder)
        names = (*(REQUEST_DTYPE.names or ()), "error")
        self._requests = ParquetRows(folder / "requests.parquet", ESSENTIAL, names)
        self._batches = ParquetRows(folder / "batches.parquet", ("batch_id", "size"), BATCH_DTYPE.names)
        self._events = ParquetRows(folder / "events.parquet", EVENT_FIELDS, EVENT_FIELDS)
        self._samples = ParquetRows(folder / "samples.parquet", SAMPLE_FIELDS, SAMPLE_FIELDS)
        for file in (self._requests, self._batches, self._events, self._samples):
            for name in file.read:
                check_type(file.path, name, file.schema.field(name).type, rows=len(file))
        with damaged(folder):
            self._schedule = ScheduleFile(folder / SCHEDULE)
            self._event_ends = [self._latest_end(k) for k in range(len(self._events.bounds) - 1)]
            opening = self._samples.rows(0, int(self._samples.bounds[:2][-1]))
            self._opening = first_readings(_plain(self._samples, opening, SAMPLE_FIELDS))
            self.partial = is_partial(self.meta, self._check(), len(self._schedule))

    def __len__(self) -> int:
        return len(self._requests)

    def _check(self) -> int:
        """Validate all rows; returns the number that are not warm-up."""
        check = RequestCheck(self.folder, len(self._schedule))
        for rows in self.scan(("index", "status", "latency_ns", *(f"{stage}_ns" for stage in STAGES))):
            check.see(rows)
        names = ("batch_id", "size", "worker")
        parts = self._batches.batches([name for name in names if name in self._batches.names])
        found = [_plain(self._batches, part, names) for part in parts]
        if found:
            check_batches(self.folder, {name: np.concatenate([part[name] for part in found]) for name in names})
        times = [name for name in self._batches.names if name.endswith("_ns")]
        for part in self._batches.batches(times):
            check_times(self.folder, _plain(self._batches, part, times))
        return check.measured

    def scan(self, names: Sequence[str]) -> Iterator[Columns]:
        present = [name for name in names if name in self._requests.names]
        for batch in self._requests.batches(present):
            yield request_columns(self._requests.path, batch, names)

    def stretch(self, first: int, last: int) -> RunRecord:
        """Rows ``first`` up to ``last`` with their batches, events, samples and schedule; no payloads."""
        with damaged(self.folder):
            return self._stretch(first, last)

    def _stretch(self, first: int, last: int) -> RunRecord:
        path, table = self._requests.path, self._requests.rows(first, last)
        requests = request_columns(path, table, REQUEST_DTYPE.names or ())
        begin, end = span_of(requests)
        low, high = scheduled_rows(requests, len(self._schedule))
        return RunRecord(
            folder=self.folder,
            meta=self.meta,
            requests=requests,
            batches=self._batches_of(requests["batch_id"]),
            events=self._events_in(begin, end),
            samples=self._samples_in(begin, end),
            traffic=self._schedule.part(low, high),
            errors=request_errors(path, table, requests["index"]),
            partial=self.partial,
            first_index=low,
            begins=first == 0,
        )

    def table(self, name: TableName) -> Iterator[Columns]:
        file, names = {
            "batches": (self._batches, BATCH_DTYPE.names),
            "events": (self._events, EVENT_FIELDS),
            "samples": (self._samples, SAMPLE_FIELDS),
        }[name]
        for k in range(len(file.bounds) - 1):
            rows = _plain(file, file.group(k), names)
            if name == "events":
                rows["detail"] = parsed_details(file.path, rows["detail"])
            yield rows

    def event_totals(self) -> Mapping[str, tuple[int, int]]:
        totals: dict[str, tuple[int, int]] = {}
        for k in range(len(self._events.bounds) - 1):
            part = totals_of(_plain(self._events, self._events.group(k), ("kind", "duration_ns")))
            for kind, (count, longest) in part.items():
                known = totals.get(kind, (0, 0))
                totals[kind] = known[0] + count, max(known[1], longest)
        return totals

    def errors(self) -> Mapping[int, str]:
        found: dict[int, str] = {}
        for rows in self._requests.batches(("index", "error")):
            index = request_columns(self._requests.path, rows, ("index",))["index"]
            found |= request_errors(self._requests.path, rows, index)
        return found

    def notes(self) -> Columns:
        groups = range(len(self._events.bounds) - 1)
        parts = [notes_of(_plain(self._events, self._events.group(k), EVENT_FIELDS)) for k in groups]
        if not parts:
            return _plain(self._events, self._events.rows(0, 0), EVENT_FIELDS)
        found = {name: np.concatenate([part[name] for part in parts]) for name in EVENT_FIELDS}
        found["detail"] = parsed_details(self._events.path, found["detail"])
        return found

    def _batches_of(self, ids: Ints) -> Columns:
        names = BATCH_DTYPE.names or ()
        wanted = np.unique(ids[ids >= 0])
        if not len(wanted):
            return _plain(self._batches, self._batches.rows(0, 0), names)
        found = _plain(self._batches, self._batches.between("batch_id", int(wanted[0]), int(wanted[-1])), names)
        return kept(found, np.isin(found["batch_id"], wanted))

    def _events_in(self, begin: int, end: int) -> Columns:
        lasting = [k for k, latest in enumerate(self._event_ends) if latest > begin]
        first = int(self._events.bounds[lasting[0]]) if lasting else len(self._events)
        groups = [k for k in lasting if self._events.range_of(k, "t_ns")[0] < end]
        last = int(self._events.bounds[groups[-1] + 1]) if groups else first
        found = _plain(self._events, self._events.rows(first, last), EVENT_FIELDS)
        inside = (found["t_ns"] < end) & (found["t_ns"] + found["duration_ns"] > begin)
        found = kept(found, inside)
        found["detail"] = parsed_details(self._events.path, found["detail"])
        return found

    def _samples_in(self, begin: int, end: int) -> Columns:
        low, high = begin - SAMPLES_AROUND_NS, end + SAMPLES_AROUND_NS
        found = _plain(self._samples, self._samples.between("t_ns", low, high), SAMPLE_FIELDS)
        return with_opening(kept(found, (found["t_ns"] >= low) & (found["t_ns"] <= high)), self._opening)

    def _latest_end(self, group: int) -> int:
        rows = _plain(self._events, self._events.group(group), ("t_ns", "duration_ns"))
        return int((rows["t_ns"] + rows["duration_ns"]).max(initial=_NEVER))


def open_record(folder: Path) -> RunRecord | RecordFile:
    """A run's record: in memory, or as files if it has more than :data:`LARGE` requests.

    :raises InputError: the folder is not a run's, or nothing readable is in it.
    """
    return RecordFile(folder) if is_large(folder, LARGE) else RunRecord.load(folder)


def is_large(folder: Path, limit: int) -> bool:
    """True if a run's folder holds Parquet files of more than ``limit`` requests.

    :raises InputError: they cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "requests.parquet"
    check_regular(path, PARQUET, folders=False)
    try:
        return path.exists() and pq.read_metadata(arrow_file(path)).num_rows > limit
    except (OSError, pa.ArrowException) as error:
        raise unreadable(path, error) from error


def totals_of(events: Columns) -> dict[str, tuple[int, int]]:
    """By kind, the number of events and the longest duration in nanoseconds."""
    kinds = events["kind"].astype(str)
    return {
        str(kind): (int(np.count_nonzero(kinds == kind)), int(events["duration_ns"][kinds == kind].max()))
        for kind in np.unique(kinds)
    }


def notes_of(events: Columns) -> Columns:
    """Events of kind ``note``."""
    return kept(events, np.flatnonzero(events["kind"] == "note"))


def span_of(requests: Columns) -> tuple[int, int]:
    """From the first arrival to the last end of some requests, nanoseconds."""
    arrival, latency = requests["arrival_ns"], requests["latency_ns"]
    return (int(arrival.min()), int((arrival + latency).max())) if len(arrival) else (0, 0)


def scheduled_rows(requests: Columns, scheduled: int) -> tuple[int, int]:
    """The part of the schedule that some requests belong to; warm-up repeats its beginning."""
    index = requests["index"]
    warmed = int(-index.min(initial=0))
    measured = index[index >= 0]
    low = 0 if warmed or not len(measured) else int(measured.min())
    high = max(int(measured.max(initial=-1)) + 1, min(warmed, scheduled))
    return low, min(high, scheduled)


def kept(columns: Columns, rows: npt.NDArray[Any]) -> Columns:
    """Some rows of columns."""
    return {name: values[rows] for name, values in columns.items()}


def first_readings(samples: Columns) -> Columns:
    """The first reading of each series."""
    if not len(samples["series"]):
        return samples
    _, first = np.unique(samples["series"].astype(str), return_index=True)
    return kept(samples, np.sort(first))


def with_opening(samples: Columns, opening: Columns) -> Columns:
    """Samples, preceded by the run's first reading of each series that they lack: some are read only once."""
    if not len(opening["series"]):
        return samples
    missing = ~np.isin(opening["series"].astype(str), np.unique(samples["series"].astype(str)))
    return {name: np.concatenate([opening[name][missing], values]) for name, values in samples.items()}


def _plain(file: ParquetRows, table: Any, names: Sequence[str] | None) -> Columns:
    """Columns of an Arrow table; zeros for missing ones."""
    return plain_columns(file.path, table, names or ())
