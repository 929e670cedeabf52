"""The stage recorder: stamps in preallocated columns, and segments on disk at least once a second.

At each boundary a measured thread writes only one integer to a preallocated column. A separate thread turns finished
rows into segments. A stamp is written once, by the thread that crosses the boundary; adjacent stages share it, so a
request's stages sum to its latency exactly.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.arrays import Ints
from latfix.profilers.probes.own_thread import OwnThread
from latfix.profilers.probes.thread_counters import Account, ThreadCounters
from latfix.run_record.schema import BATCH_DTYPE, BATCH_TIMES, PROCESS_ACCOUNT, REQUEST_DTYPE, THREAD_ACCOUNT, Columns
from latfix.stages import STAGES, Status

#: Boundaries of a request that its own threads stamp; the others are its batch's.
_OWN_STAMPS: tuple[str, ...] = ("handed", "submitted", "prepare_start", "enqueued", "taken", "finish_start", "end")
_PLAIN: tuple[str, ...] = (
    "status",
    "batch_id",
    "prepare_thread",
    "prepare_wake_runq_ns",
    "intake_runq_ns",
    "prepare_span_ns",
    "finish_span_ns",
    "input_elements",
    "input_length",
    "input_width",
    "bucket_length",
)
_ACCOUNTS: tuple[str, ...] = (*THREAD_ACCOUNT, *PROCESS_ACCOUNT)
FLUSH_INTERVAL_S = 0.5


class _Log:
    """Rows of all threads, in memory until the next flush. Appending is atomic and takes a microsecond.

    :param most: number of latest rows to keep, for logs without a flush; ``None`` keeps all.
    """

    def __init__(self, most: int | None = None) -> None:
        self._rows: deque[tuple[Any, ...]] = deque(maxlen=most)

    def drain(self, t0_ns: int) -> str:
        """All rows since the last call as JSON Lines, with times from ``t0_ns``."""
        lines = []
        while self._rows:
            at_ns, *rest = self._rows.popleft()
            lines.append(json.dumps([at_ns - t0_ns, *rest]) + "\n")
        return "".join(lines)


class EventLog(_Log):
    def add(
        self,
        kind: str,
        start_ns: int,
        duration_ns: int,
        *,
        thread: int = 0,
        request: int = -1,
        batch_id: int = -1,
        detail: Mapping[str, Any],
    ) -> None:
        """Log an event; ``start_ns`` is on the clock of ``time.perf_counter_ns``."""
        self._rows.append((start_ns, duration_ns, kind, thread, request, batch_id, detail))


class SampleLog(_Log):
    def add(self, t_ns: int, series: str, value: float) -> None:
        """Log one reading; ``t_ns`` is on the clock of ``time.perf_counter_ns``."""
        self._rows.append((t_ns, series, value))


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch that has not ended.

    :param worker: whose thread serves it.
    :param since_ns: when it had closed and the one before it had ended, on the clock of the stamps.
    :param first_of_worker: no batch of its worker has ended; ``first_of_shape``: none of its shape.
    """

    batch_id: int
    worker: int
    size: int
    since_ns: int
    first_of_worker: bool
    first_of_shape: bool


class StageRecorder:
    """Stamps of ``warmup`` + ``requests`` requests and of their batches.

    Requests are addressed by slot: warm-up first, then the schedule in order. Columns are memoryviews over
    preallocated arrays; writing one integer costs some tens of nanoseconds and allocates nothing.

    :param requests: measured requests in the schedule.
    :param warmup: requests before them, recorded and marked as warm-up.
    """

    #: Rows are written with a delay, so late values may be added until then.
    defers = True

    def __init__(self, requests: int, warmup: int = 0) -> None:
        self.slots = requests + warmup
        self.warmup = warmup
        self.t0_ns = 0
        self.scheduled_ns = np.zeros(self.slots, dtype=np.int64)
        names = [*_OWN_STAMPS, *_PLAIN]
        names += [f"{part}_{name}" for part in ("prepare", "finish") for name in _ACCOUNTS]
        self._columns: Columns = {name: np.zeros(self.slots, dtype=np.int64) for name in names}
        self._columns["batch_id"].fill(-1)
        self._columns["prepare_thread"].fill(-1)
        self._views = {name: memoryview(column.data) for name, column in self._columns.items()}
        self.handed = self._views["handed"]
        self.submitted = self._views["submitted"]
        self.intake_runq = self._views["intake_runq_ns"]
        self.prepare_start = self._views["prepare_start"]
        self.enqueued = self._views["enqueued"]
        self.taken = self._views["taken"]
        self.finish_start = self._views["finish_start"]
        self.batch_id = self._views["batch_id"]
        self.prepare_thread = self._views["prepare_thread"]
        self.prepare_wake = self._views["prepare_wake_runq_ns"]
        self.prepare_span = self._views["prepare_span_ns"]
        self.finish_span = self._views["finish_span_ns"]
        self.input_elements = self._views["input_elements"]
        self.input_length = self._views["input_length"]
        self.input_width = self._views["input_width"]
        self.bucket_length = self._views["bucket_length"]
        self._accounts = {
            part: tuple(self._views[f"{part}_{name}"] for name in _ACCOUNTS) for part in ("prepare", "finish")
        }
        # After a failed batch each member gets its own batch: at most two batches per request.
        room = 2 * self.slots + 16
        self._batches: Columns = {name: np.zeros(room, dtype=np.int64) for name in BATCH_DTYPE.names or ()}
        #: One view a column of :data:`latfix.run_record.schema.BATCH_DTYPE`, by batch id.
        self.batch = {name: memoryview(column.data) for name, column in self._batches.items()}
        self._batch_accounts = {
            "collate": tuple(self.batch[f"collate_{name}"] for name in _ACCOUNTS),
            "compute": (
                *(self.batch[f"compute_{name}"] for name in THREAD_ACCOUNT),
                self.batch["process_cpu_ns"],
                *(self.batch[f"compute_{name}"] for name in PROCESS_ACCOUNT[1:]),
            ),
        }
        self._next_batch = 0
        self._batch_lock = threading.Lock()
        self._done: deque[int] = deque()
        self._done_batches: deque[int] = deque()
        self.completed = 0
        #: Called before rows are read: they add values that are known only after a batch has ended.
        self.resolvers: list[Callable[[], None]] = []
        #: Counters of the threads on the requests' path, for the cost of reading them.
        self.counters: list[ThreadCounters] = []
        self._complete_lock = threading.Lock()
        self._cut = False

    def index_of(self, slot: int) -> int:
        """The schedule index of a slot: from 0 for measured requests, -1, -2, … for warm-up."""
        return slot - self.warmup if slot >= self.warmup else -1 - slot

    def new_batch(self) -> int:
        with self._batch_lock:
            self._next_batch += 1
            return self._next_batch - 1

    def account(self, part: str, slot: int, spent: Account) -> None:
        """Store the counters of thread and process for this request's own ``prepare`` or ``finish``.

        :param spent: in the order of :data:`THREAD_ACCOUNT`, then :data:`PROCESS_ACCOUNT`.
        """
        for view, value in zip(self._accounts[part], spent, strict=True):
            view[slot] = value

    def batch_values(self, batch_id: int, values: Mapping[str, int]) -> None:
        """Set columns of a batch's row; its stamps must be set before any member is done."""
        views = self.batch
        for name, value in values.items():
            views[name][batch_id] = value

    def batch_account(self, part: str, batch_id: int, spent: Account) -> None:
        """Store the counters of the worker's thread and the process for a batch's ``collate`` or ``compute``."""
        for view, value in zip(self._batch_accounts[part], spent, strict=True):
            view[batch_id] = value

    def batch_done(self, batch_id: int, finish_end_ns: int) -> None:
        """Complete a batch's row, after its last member was finished."""
        self.batch["batch_id"][batch_id] = batch_id
        self.batch["finish_end_ns"][batch_id] = finish_end_ns
        self._done_batches.append(batch_id)

    def request_done(self, slot: int, status: int, end_ns: int) -> None:
        """A request ended at ``end_ns``; call once, after the stamps of its batch, if any, are set."""
        with self._complete_lock:
            if self._cut:  # already recorded as in flight
                return
            self._views["status"][slot] = status
            self._views["end"][slot] = end_ns
            self._done.append(slot)
            self.completed += 1

    def arrived(self, at_ns: Ints) -> None:
        """Set when each measured request arrived (0 for never), including those not yet taken in by the service."""
        self._columns["handed"][self.warmup :] = at_ns

    def cut(self, now_ns: int, status: Status = Status.UNFINISHED) -> int:
        """End the record and give open requests a status, by default in flight. Returns their number."""
        with self._complete_lock:
            self._cut = True
            inside = np.flatnonzero((self._columns["handed"] > 0) & (self._columns["end"] == 0))
            self._columns["status"][inside] = status
            self._columns["end"][inside] = now_ns
            self._done.extend(inside.tolist())
        return len(inside)

    def open_batches(self, begun_before_ns: int, places: int = 1) -> list[OpenBatch]:
        """Batches that have not ended, of the workers with one that closed before a time.

        :param places: of each worker, by which the record numbers them if requests join between steps.
        """
        names = ("close_ns", "finish_end_ns", "worker")
        closed, finished, place = (self._batches[name][: self._next_batch] for name in names)
        unfinished = np.flatnonzero((closed > 0) & (finished == 0))
        worker = place[unfinished] // places
        old = set(worker[closed[unfinished] < begun_before_ns].tolist())
        before = {number: int(finished[place // places == number].max(initial=0)) for number in old}
        return [
            OpenBatch(
                batch_id=k,
                worker=number,
                size=int(self._batches["size"][k]),
                since_ns=max(int(closed[k]), before[number]),
                first_of_worker=not before[number],
                first_of_shape=bool(self._batches["first_shape"][k]),
            )
            for k, number in zip(unfinished.tolist(), worker.tolist(), strict=True)
            if number in old
        ]

    def first_shapes_ns(self) -> npt.NDArray[np.int64]:
        """Durations of the batches that were the first of their shape and have ended."""
        names = ("first_shape", "close_ns", "finish_end_ns")
        first, closed, finished = (self._batches[name][: self._next_batch] for name in names)
        return np.asarray((finished - closed)[(first > 0) & (finished > 0)], dtype=np.int64)

    def open_prepares(self, begun_before_ns: int) -> list[tuple[int, int, int]]:
        """Requests in a ``prepare`` that began before a time: schedule index, thread, begin."""
        begin, thread = self._columns["prepare_start"], self._columns["prepare_thread"]
        running = (
            (begin > 0) & (begin < begun_before_ns) & (self._columns["enqueued"] == 0) & (self._columns["end"] == 0)
        )
        return [
            (self.index_of(k), int(thread[k]), int(begin[k]))
            for k in np.flatnonzero(running & (thread >= 0)).tolist()
        ]

    def drain_requests(self) -> npt.NDArray[Any]:
        """Rows of :data:`latfix.run_record.schema.REQUEST_DTYPE` of requests that ended since the last call."""
        slots = np.array([self._done.popleft() for _ in range(len(self._done))], dtype=np.int64)
        self._resolve()
        return self._rows(slots)

    def drain_batches(self) -> npt.NDArray[Any]:
        """Rows of :data:`latfix.run_record.schema.BATCH_DTYPE` of batches that ended since the last call."""
        ids = np.array([self._done_batches.popleft() for _ in range(len(self._done_batches))], dtype=np.int64)
        self._resolve()
        rows = np.zeros(len(ids), dtype=BATCH_DTYPE)
        for name, column in self._batches.items():
            rows[name] = column[ids] - (self.t0_ns if name in BATCH_TIMES else 0)
        return rows

    def _resolve(self) -> None:
        for resolver in self.resolvers:
            resolver()

    def _rows(self, slots: Ints) -> npt.NDArray[Any]:
        rows = np.zeros(len(slots), dtype=REQUEST_DTYPE)
        column = {name: values[slots] for name, values in self._columns.items()}
        batch = column["batch_id"]
        known = np.maximum(batch, 0)
        end = column["end"]

        def boundary(stamps: Ints) -> Ints:
            # A boundary that was not reached (shed, failed, timed out) is set to the end: later stages are 0.
            return np.where(stamps == 0, end, np.minimum(stamps, end))

        def of_batch(name: str) -> Ints:
            return np.where(batch >= 0, self._batches[name][known], 0)

        stamps = [
            self.scheduled_ns[slots],
            boundary(column["handed"]),
            boundary(column["enqueued"]),
            boundary(column["taken"]),
            boundary(of_batch("collated_ns")),
            boundary(of_batch("h2d_end_ns")),
            boundary(of_batch("compute_end_ns")),
            boundary(of_batch("d2h_end_ns")),
            end,
        ]
        for k, stage in enumerate(STAGES):
            rows[f"{stage}_ns"] = stamps[k + 1] - stamps[k]
        rows["index"] = np.where(slots < self.warmup, -1 - slots, slots - self.warmup)
        rows["arrival_ns"] = stamps[0] - self.t0_ns
        rows["latency_ns"] = end - stamps[0]
        rows["warmup"] = slots < self.warmup
        rows["intake_ns"] = boundary(column["submitted"]) - stamps[1]
        rows["prepare_wait_ns"] = boundary(column["prepare_start"]) - stamps[1]
        rows["finish_wait_ns"] = boundary(column["finish_start"]) - stamps[7]
        for name in _PLAIN:
            rows[name] = column[name]
        for part in ("prepare", "finish"):
            for name in _ACCOUNTS:
                rows[f"{part}_{name}"] = column[f"{part}_{name}"]
        return rows


class SegmentWriter(OwnThread):
    """Appends finished rows to ``segments/`` on a separate thread.

    :param folder: the run's folder; ``segments/`` must exist in it.
    :raises OSError: from :meth:`check` and at exit, if writing failed.
    """

    def __init__(self, folder: Path, recorder: StageRecorder, events: EventLog, samples: SampleLog) -> None:
        super().__init__("segments")
        self._recorder, self._events, self._samples = recorder, events, samples
        segments = folder / "segments"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._files = {
            name: os.open(segments / name, flags, 0o644)
            for name in ("requests.bin", "batches.bin", "events.jsonl", "samples.jsonl")
        }
        self.error: OSError | None = None

    def __exit__(self, *_: object) -> None:
        """Write the remaining rows and close the files."""
        super().__exit__()
        try:
            if self.error is None:
                self.flush()
        finally:
            for fd in self._files.values():
                os.close(fd)

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_INTERVAL_S):
            try:
                self.flush()
            except OSError as error:
                self.error = error
                return
            self.cpu_ns = time.thread_time_ns()

    def flush(self) -> None:
        """Write rows that ended since the last call, batches first: a request's row refers to its batch."""
        t0 = self._recorder.t0_ns
        _write_all(self._files["batches.bin"], self._recorder.drain_batches().tobytes())
        _write_all(self._files["requests.bin"], self._recorder.drain_requests().tobytes())
        _write_all(self._files["events.jsonl"], self._events.drain(t0).encode())
        _write_all(self._files["samples.jsonl"], self._samples.drain(t0).encode())

    def check(self) -> None:
        """Raise the error that stopped the thread, if any."""
        if self.error is not None:
            raise self.error


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
