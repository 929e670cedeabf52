"""The record of a run as columns, read from a run's folder in any state.

A folder holds ``run.json`` from the start, ``segments/`` while the runner writes (appended at least once a second,
plain binary rows and JSON lines), and Parquet files made from them after a run that ended. The folder of a killed
runner has only segments; :meth:`RunRecord.load` reads either, and reports which.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from latfix.arrays import Bools, Ints
from latfix.errors import InputError
from latfix.files.atomic_write import replacement
from latfix.files.parquet_reader import ROW_GROUP, ParquetRows, arrow_file
from latfix.files.parquet_types import check_type, read_column
from latfix.run_record.run_meta import RUN_FILE, RunMeta, read_meta
from latfix.run_record.schema import BATCH_DTYPE, EVENT_FIELDS, REQUEST_DTYPE, SAMPLE_FIELDS, Columns
from latfix.run_record.segments import Segment, segment_lines, segment_names
from latfix.run_record.validation import RequestCheck, check_batches, check_detail, damaged
from latfix.stages import STAGES, STATUS_NAMES, Status, status_counts
from latfix.traffic.schedule import Traffic

SEGMENTS = "segments"
SCHEDULE = "traffic.parquet"
#: Required columns of ``requests.parquet``; other missing columns are read as zero.
ESSENTIAL = ("index", "arrival_ns", *(f"{stage}_ns" for stage in STAGES), "latency_ns", "status", "batch_id", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One replay: its requests, batches, samples and events.

    :param folder: where it was read from.
    :param meta: the content of ``run.json``.
    :param requests: columns of :data:`latfix.run_record.schema.REQUEST_DTYPE`, sorted by schedule index, warm-up
        requests first. ``errors`` holds their messages by index.
    :param batches: columns of :data:`latfix.run_record.schema.BATCH_DTYPE`, sorted by batch id.
    :param events: columns of :data:`latfix.run_record.schema.EVENT_FIELDS`, sorted by time; ``detail`` parsed.
    :param samples: columns of :data:`latfix.run_record.schema.SAMPLE_FIELDS`, sorted by time.
    :param traffic: the replayed schedule; ``index`` of a request points into it.
    :param errors: message of each failed request, by schedule index.
    :param partial: the runner did not reach its end (killed, interrupted, failed).
    :param first_index: schedule index of the first entry of ``traffic``; above zero in a piece of a record.
    :param totals: if these requests are a selection, the number in the whole run by status.
    :param begins: the first request is the first of the run, or of a live service since its warm-up.
    """

    folder: Path
    meta: RunMeta
    requests: Columns
    batches: Columns
    events: Columns
    samples: Columns
    traffic: Traffic
    errors: Mapping[int, str] = field(default_factory=dict)
    partial: bool = False
    first_index: int = 0
    totals: Mapping[str, int] | None = None
    begins: bool = True

    @classmethod
    def load(cls, folder: Path) -> RunRecord:
        """Read a run's folder, complete or not; or the parts that a live service writes.

        :raises InputError: the folder is not a run's, or nothing readable is in it.
        """
        from latfix.run_record import live_record

        if not (folder / RUN_FILE).exists() and live_record.live_parts(folder):
            return live_record.load_live(folder)
        meta = read_meta(folder)
        with damaged(folder):
            record = cls._read(folder, meta)
        check = RequestCheck(folder, len(record.traffic))
        check.see(record.requests)
        check_batches(folder, record.batches)
        return replace(record, partial=is_partial(meta, check.measured, len(record.traffic)))

    @classmethod
    def _read(cls, folder: Path, meta: RunMeta) -> RunRecord:
        segments = folder / SEGMENTS
        if (folder / "requests.parquet").exists():
            requests, errors = _read_requests_parquet(folder / "requests.parquet")
            batches = _read_parquet(folder / "batches.parquet", ("batch_id", "size"), BATCH_DTYPE.names or ())
            events = _read_parquet(folder / "events.parquet", EVENT_FIELDS)
            events["detail"] = parsed_details(folder / "events.parquet", events["detail"])
            samples = _read_parquet(folder / "samples.parquet", SAMPLE_FIELDS)
        elif segments.is_dir():
            names = segment_names(meta)
            requests = _request_segment(folder, meta).columns()
            batches = Segment(segments / "batches.bin", BATCH_DTYPE, "batch_id", names["batches"]).columns()
            events, samples, errors = segment_lines(segments)
        else:
            raise InputError(
                f"{folder}: found no requests.parquet and no segments/; expected the folder of a run; "
                "pass the folder that latfix diagnose wrote"
            )
        from latfix.traffic.io.stored_schedule import load_schedule

        return cls(
            folder=folder,
            meta=meta,
            requests=requests,
            batches=batches,
            events=events,
            samples=samples,
            traffic=load_schedule(folder / SCHEDULE),
            errors=errors,
        )

    @property
    def measured(self) -> Bools:
        """``(n,)`` which rows of ``requests`` are not warm-up."""
        return np.asarray(self.requests["warmup"] == 0)

    def counts(self) -> dict[str, int]:
        """The number of measured requests of the run by status."""
        if self.totals is not None:
            return dict(self.totals)
        status = self.requests["status"][self.measured]
        return status_counts(np.bincount(status, minlength=len(STATUS_NAMES)).tolist())

    def latencies_ns(self) -> Ints:
        """Latencies of the measured requests that ended ``ok``, in order of arrival."""
        keep = self.measured & (self.requests["status"] == Status.OK)
        return np.asarray(self.requests["latency_ns"][keep], dtype=np.int64)

    def slowest(self, count: int = 20) -> list[int]:
        """Rows of the slowest measured requests of any status, the slowest first."""
        rows = np.flatnonzero(self.measured)
        order = np.argsort(-self.requests["latency_ns"][rows], kind="stable")
        return [int(row) for row in rows[order[:count]]]

    def unrecorded(self) -> int:
        """The number of scheduled requests without a row: in flight or not yet sent when the run stopped."""
        scheduled = len(self.traffic) if self.meta.scheduled is None else self.meta.scheduled
        return scheduled - sum(self.counts().values())


class Throughput:
    """Requests ended ``ok`` per second, from the first scheduled arrival to the last end of a measured request."""

    def __init__(self) -> None:
        self.served, self._first_ns, self._last_ns = 0, 2**62, -(2**62)

    def add(self, rows: Columns) -> None:
        """Count requests of the run."""
        measured = rows["warmup"] == 0
        arrival = rows["arrival_ns"][measured]
        self.served += int(np.count_nonzero(rows["status"][measured] == Status.OK))
        self._first_ns = min(self._first_ns, int(arrival.min(initial=self._first_ns)))
        self._last_ns = max(self._last_ns, int((arrival + rows["latency_ns"][measured]).max(initial=self._last_ns)))

    @property
    def seconds(self) -> float:
        """From the first arrival to the last end; 0 if nothing was measured."""
        return max(self._last_ns - self._first_ns, 0) / 1e9

    @property
    def rps(self) -> float:
        """Requests per second; 0 if nothing was measured."""
        return self.served / self.seconds if self.seconds > 0 else 0.0


def throughput_rps(records: Sequence[RunRecord]) -> float:
    """:class:`Throughput` of several runs together."""
    runs = [Throughput() for _ in records]
    for run, record in zip(runs, records, strict=True):
        run.add(record.requests)
    seconds = sum(run.seconds for run in runs)
    return sum(run.served for run in runs) / seconds if seconds > 0 else 0.0


def is_partial(meta: RunMeta, measured: int, scheduled: int) -> bool:
    """True if a run did not reach its end, or lost rows: a complete one has a row for every request.

    :param measured: requests with a row, without warm-up.
    """
    return meta.state != "complete" or measured < scheduled


def finalize(folder: Path) -> None:
    """Convert ``segments/`` to the Parquet files of the contract and remove it.

    Parquet files are moved into place before the segments are deleted, so that a crash at any time leaves one of
    the two readable.
    """
    if not (folder / SEGMENTS).is_dir():
        return
    import pyarrow as pa

    meta = read_meta(folder)
    names = segment_names(meta)
    events, samples, errors = segment_lines(folder / SEGMENTS)
    batches = Segment(folder / SEGMENTS / "batches.bin", BATCH_DTYPE, "batch_id", names["batches"])
    requests = _request_segment(folder, meta)
    starts = range(0, max(len(batches), 1), ROW_GROUP)
    tables = {
        "batches": (pa.table(batches.columns(first, first + ROW_GROUP)) for first in starts),
        "events": iter([pa.table({**events, "detail": [json.dumps(detail) for detail in events["detail"]]})]),
        "samples": iter([pa.table(dict(samples))]),
        "requests": _request_tables(requests, folder / SCHEDULE, errors),
    }
    for name, parts in tables.items():  # requests last: its presence implies that the others exist
        with replacement(folder / f"{name}.parquet") as temporary, arrow_file(temporary, "wb") as file:
            write_parts(file, parts)
    for path in (folder / SEGMENTS).iterdir():
        path.unlink()
    (folder / SEGMENTS).rmdir()


def replace_events(folder: Path, kind: str, events: Columns) -> None:
    """Put events in place of all of their kind in a run's folder whose segments were converted.

    :param events: columns as in :data:`latfix.run_record.schema.EVENT_FIELDS`.
    """
    import pyarrow as pa

    path = folder / "events.parquet"
    with damaged(folder):
        known = _read_parquet(path, EVENT_FIELDS)
    others = np.asarray(known["kind"], dtype=object) != kind
    new = {**events, "detail": np.array([json.dumps(detail) for detail in events["detail"]], dtype=object)}
    both = {name: np.concatenate([known[name][others], new[name]]) for name in EVENT_FIELDS}
    order = np.argsort(both["t_ns"], kind="stable")
    with replacement(path) as temporary, arrow_file(temporary, "wb") as file:
        write_parts(file, iter([pa.table({name: column[order] for name, column in both.items()})]))


def write_parts(where: BinaryIO, parts: Iterator[Any]) -> None:
    """Write Arrow tables as one Parquet file; at least one, which defines the columns."""
    import pyarrow.parquet as pq

    first = next(parts)
    with pq.ParquetWriter(where, first.schema) as writer:
        for table in chain([first], parts):
            writer.write_table(table.cast(first.schema), row_group_size=ROW_GROUP)


def request_tables(folder: Path) -> Iterator[Any]:
    """The rows of ``requests.parquet`` as Arrow tables, at least one; for a killed run, from its segments.

    :raises InputError: the folder is not a run's, or is damaged.
    """
    meta, path = read_meta(folder), folder / "requests.parquet"
    with damaged(folder):
        if path.exists():
            rows = ParquetRows(path, ESSENTIAL)
            yield rows.rows(0, 0)
            yield from (rows.group(k) for k in range(len(rows.bounds) - 1))
        else:
            requests = _request_segment(folder, meta)
            yield from _request_tables(requests, folder / SCHEDULE, segment_lines(folder / SEGMENTS)[2])


def _request_segment(folder: Path, meta: RunMeta) -> Segment:
    """Rows of requests; for a run that did not end properly, including those that were in flight."""
    path, names = folder / SEGMENTS / "requests.bin", segment_names(meta)["requests"]
    segment = Segment(path, REQUEST_DTYPE, "index", names)
    if meta.state in ("running", "failed") and len(segment):
        segment.add(_in_flight(segment.columns(), folder / SCHEDULE))
    return segment


def _in_flight(rows: Columns, schedule: Path) -> Columns:
    """Requests that had arrived by the last recorded end and have no row: they were in flight.

    Their stages are unknown, so all of their wait is assigned to ``queue``.
    """
    from latfix.traffic.io.stored_schedule import load_schedule

    measured = rows["warmup"] == 0
    arrival = np.asarray(load_schedule(schedule).arrival_ns)
    last = int((rows["arrival_ns"] + rows["latency_ns"])[measured].max(initial=0))
    missing = arrival < last
    index = rows["index"][measured]
    missing[index[(index >= 0) & (index < len(arrival))]] = False
    if (rows["status"] == Status.UNFINISHED).any():  # the runner ended the record itself
        missing[:] = False
    (index,) = np.nonzero(missing)
    waited, none, status = last - arrival[index], np.full(len(index), -1), np.full(len(index), int(Status.UNFINISHED))
    stages = {"index": index, "arrival_ns": arrival[index], "queue_ns": waited, "latency_ns": waited}
    return {**stages, "status": status, "batch_id": none, "prepare_thread": none}


def _request_tables(requests: Segment, schedule: Path, errors: Mapping[int, str]) -> Iterator[Any]:
    from latfix.traffic.io.stored_schedule import ScheduleFile

    stored = ScheduleFile(schedule, texts=True)
    scheduled = max(len(stored), 1)
    for first in range(0, max(len(requests), 1), ROW_GROUP):
        rows = requests.columns(first, first + ROW_GROUP)
        index = rows["index"]
        position = np.where(index < 0, (-index - 1) % scheduled, index)
        low, high = (int(position.min()), int(position.max()) + 1) if len(position) else (0, 0)
        if high > len(stored):
            raise InputError(
                f"{schedule.parent}: found requests that are not in {SCHEDULE}; expected what latfix wrote"
            )
        yield _requests_table(rows, stored.part(low, high), position - low, errors)


def feature_column(name: str) -> str:
    """The column of ``requests.parquet`` that holds a feature: its name, prefixed if that is taken."""
    taken = set(REQUEST_DTYPE.names or ()) | {"id", "error", "priority", "session"}
    return f"feature.{name}" if name in taken or name.startswith("feature.") else name


def _requests_table(rows: Columns, traffic: Traffic, position: Ints, errors: Mapping[int, str]) -> Any:
    import pyarrow as pa

    columns: dict[str, Any] = {
        "id": pa.array([traffic.ids[k] for k in position.tolist()], pa.string()),
        **{name: rows[name] for name in REQUEST_DTYPE.names or ()},
        "status": pa.array([STATUS_NAMES[code] for code in rows["status"].tolist()], pa.string()),
        "warmup": rows["warmup"].astype(bool),
        "error": pa.array([errors.get(k) for k in rows["index"].tolist()], pa.string()),
    }
    kinds = {"i": pa.int64(), "f": pa.float64(), "O": pa.string()}
    for name, column in traffic.features.items():
        values = column[position].tolist()
        columns[feature_column(name)] = pa.array(values, kinds[column.dtype.kind], from_pandas=True)
    return pa.table(columns)


def _read_requests_parquet(path: Path) -> tuple[Columns, dict[int, str]]:
    names = REQUEST_DTYPE.names or ()
    table = ParquetRows(path, ESSENTIAL, (*names, "error")).whole()
    columns = request_columns(path, table, names)
    return columns, request_errors(path, table, columns["index"])


def request_columns(path: Path, table: Any, names: Sequence[str]) -> Columns:
    """Columns of requests as numbers, from an Arrow table or record batch of ``requests.parquet``.

    Columns that another version of latfix did not write are zero.

    :param path: the file, for messages.
    :raises InputError: a column is not as latfix writes it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    present = set(table.schema.names)
    columns: Columns = {}
    for name in names:
        if name not in present:
            columns[name] = np.zeros(table.num_rows, dtype=np.int64)
        elif name == "status":
            check_type(path, name, table.column(name).type, rows=table.num_rows)
            codes = pc.index_in(table.column(name).cast(pa.string()), value_set=pa.array(STATUS_NAMES))
            if codes.null_count:
                raise InputError(f"{path}: found a status that is none of {', '.join(STATUS_NAMES)}")
            columns[name] = codes.to_numpy(zero_copy_only=False).astype(np.int64)
        else:
            columns[name] = read_column(path, table, name)
    return columns


def request_errors(path: Path, table: Any, index: Ints) -> dict[int, str]:
    """Messages of failed requests by schedule index, from an Arrow table of ``requests.parquet``.

    :raises InputError: they are not texts.
    """
    import pyarrow.compute as pc

    check_type(path, "error", table.column("error").type, rows=table.num_rows)
    failed = pc.is_valid(table.column("error"))
    which = np.flatnonzero(failed.to_numpy(zero_copy_only=False))
    if not len(which):
        return {}
    messages = table.column("error").filter(failed).to_pylist()
    return {int(index[k]): message for k, message in zip(which.tolist(), messages, strict=True)}


def _read_parquet(path: Path, names: tuple[str, ...], more: tuple[str, ...] = ()) -> Columns:
    """The columns ``names`` and ``more``; missing ones of ``more`` are zero."""
    wanted = tuple(dict.fromkeys((*names, *more)))
    return plain_columns(path, ParquetRows(path, names, wanted).whole(), wanted)


def plain_columns(path: Path, table: Any, names: Sequence[str]) -> Columns:
    """Columns of an Arrow table of batches, events or samples; zeros for missing ones.

    :param path: the file, for messages.
    :raises InputError: a column is not as latfix writes it.
    """
    present = set(table.schema.names)
    absent = np.zeros(table.num_rows, dtype=np.int64)
    return {name: read_column(path, table, name) if name in present else absent for name in names}


def parsed_details(path: Path, texts: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Details of events, each a JSON object.

    :param path: the file, for messages.
    :raises InputError: one is not.
    """
    details = np.empty(len(texts), dtype=object)
    for k, text in enumerate(texts.tolist()):
        try:
            details[k] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: found {text[:40]!r} as detail of an event; expected JSON") from error
        check_detail(path, details[k])
    return details
