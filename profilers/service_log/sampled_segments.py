"""Writes rows of requests to disk: sampled, on a separate thread, in rotated segments of bounded total size.

A row is a line of JSON, which ``latfix diagnose --map`` and other tools read too. Sampling keeps requests that are
slow or did not end ok, and every k-th of the others with a ``weight``, the number of requests it stands for. Weights
sum to the number of requests, and slow requests keep their exact rank.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import numbers
import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from latfix.profilers.probes.control_groups import CgroupThrottle
from latfix.profilers.service_log.request_counters import Reading, spent
from latfix.spans import SpanRecord

#: Interval of writing rows; a killed process loses as much.
FLUSH_INTERVAL_S = 0.25
#: Rows that may wait for the disk; further ones are only counted.
_MOST_PENDING = 100_000
#: Rows formatted at a time, before other threads get the interpreter.
_AT_ONCE = 16
#: Segments of a full folder, and the most files of a folder.
_SEGMENTS, _MOST_FILES = 16, 200
#: Names of segments; a user's other files in the folder are not touched.
_SEGMENT = re.compile(r"requests-\d{19}-\d+\.jsonl")
#: Another process's file that was written this recently may still grow to a whole segment.
_LIVE_S = 60.0
_LOGGER = logging.getLogger("latfix")


#: The fields of a :class:`Row`, which is made of them later, off the request's thread.
Finished = tuple[Reading, Reading, str, str, int, Sequence[SpanRecord], Mapping[str, float]]


class Row(NamedTuple):
    """One finished request.

    :param status: ``ok``, ``error``, ``timeout``, ``cancelled``, or an HTTP code.
    :param in_flight: requests in progress when it began, itself included.
    """

    before: Reading
    after: Reading
    status: str
    route: str
    in_flight: int
    spans: Sequence[SpanRecord]
    features: Mapping[str, float]

    @property
    def latency_ns(self) -> int:
        return self.after[0] - self.before[0]


class RowWriter:
    """Writes rows of one process to a folder.

    :param most_bytes: of all segments in the folder, from any process; the oldest are deleted.
    :param rows_per_s: rows kept at most; more requests are sampled.
    """

    def __init__(self, folder: Path, most_bytes: int, rows_per_s: int) -> None:
        self.folder = folder
        self._segment_bytes, self._most_bytes = max(most_bytes // _SEGMENTS, 1), most_bytes
        self._budget = max(int(rows_per_s * FLUSH_INTERVAL_S), 2)
        self._pending: deque[Finished] = deque()
        self._lost = 0
        self._writing = threading.Lock()
        self._file: int | None = None
        self._written = 0
        self._epoch_ns = 0
        self._drains = 0
        self._warned = False
        self._throttle = CgroupThrottle()
        self._throttled: deque[tuple[int, int]] = deque(
            [(time.perf_counter_ns(), self._throttle.throttled_ns())], 256
        )
        self._thread: threading.Thread | None = None

    def add(self, row: Finished) -> None:
        """Append a row; takes some hundred nanoseconds."""
        if self._thread is None:
            self._start()
        if len(self._pending) < _MOST_PENDING:
            self._pending.append(row)
        else:
            self._lost += 1

    def flush(self) -> None:
        """Write all finished requests. A disk error loses rows but does not affect requests."""
        with self._writing:
            rows = [Row(*self._pending.popleft()) for _ in range(len(self._pending))]
            lost, self._lost = self._lost, 0
            self._throttled.append((time.perf_counter_ns(), self._throttle.throttled_ns()))
            if not rows:
                return
            try:
                for text in self._texts(sampled(rows, self._budget, self._drains, lost)):
                    self._write(text)
            except OSError as error:
                self.close()
                if not self._warned:
                    _LOGGER.warning("%s: latfix cannot record there (%s)", self.folder, error.strerror)
                self._warned = True
            self._drains += 1

    def _start(self) -> None:
        """Start the thread with the first row, so that a server that only forks workers keeps one thread."""
        with self._writing:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="latfix-record", daemon=True)
                with contextlib.suppress(RuntimeError):  # the interpreter is exiting: rows are written at exit
                    self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(FLUSH_INTERVAL_S)
            self.flush()

    def _texts(self, rows: Sequence[tuple[Row, int]]) -> Iterator[bytes]:
        for first in range(0, len(rows), _AT_ONCE):
            yield "".join(self._line(row, weight) for row, weight in rows[first : first + _AT_ONCE]).encode()
            time.sleep(0)  # let serving threads run

    def _line(self, row: Row, weight: int) -> str:
        if self._file is None:  # each segment resynchronizes with the wall clock
            self._epoch_ns = time.time_ns() - time.perf_counter_ns()
        cpu_ns, runq_ns, waited_ns, gc_ns = spent(row.before, row.after)
        return (
            json.dumps(
                {
                    "start_ns": self._epoch_ns + row.before[0],
                    "latency_ns": row.latency_ns,
                    "status": row.status,
                    "route": row.route,
                    "weight": weight,
                    "in_flight": row.in_flight,
                    "thread": row.before[5],
                    "cpu_ns": cpu_ns,
                    "runq_ns": runq_ns,
                    "throttled_ns": self._throttled_in(row.before[0], runq_ns),
                    "waited_ns": waited_ns,
                    "gc_ns": gc_ns,
                    "spans_ns": span_times(row.spans),
                    "features": {
                        name: number
                        for name, value in row.features.items()
                        if isinstance(name, str) and math.isfinite(number := _number(value))
                    },
                },
                separators=(",", ":"),
            )
            + "\n"
        )

    def _throttled_in(self, start_ns: int, runq_ns: int | None) -> int | None:
        """The part of a run-queue delay that the cgroup's quota may account for."""
        if not self._throttle.available or runq_ns is None:
            return None
        before = next((total for at, total in reversed(self._throttled) if at <= start_ns), self._throttled[0][1])
        return min(self._throttled[-1][1] - before, runq_ns)

    def _write(self, text: bytes) -> None:
        if self._file is not None and (self._written >= self._segment_bytes or not os.fstat(self._file).st_nlink):
            self.close()
        new = None
        if self._file is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._make_room()
            new = self.folder / f"requests-{time.time_ns()}-{os.getpid()}.jsonl"
            self._file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self._written = 0
        view = memoryview(text)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            if new is not None:  # on a full disk, each attempt would leave an empty one, in place of the oldest
                new.unlink(missing_ok=True)
            raise
        self._written += len(text)

    def _make_room(self) -> None:
        """Remove the oldest segments, so that the folder stays within its bound when the new one is full."""
        now = time.time()
        sizes = []
        for path in sorted(path for path in self.folder.glob("requests-*.jsonl") if _SEGMENT.fullmatch(path.name)):
            try:
                stat = path.stat()
            except FileNotFoundError:  # another process removed it
                continue
            live = now - stat.st_mtime < _LIVE_S and f"-{os.getpid()}." not in path.name
            sizes.append((path, max(stat.st_size, self._segment_bytes) if live else stat.st_size))
        total = sum(size for _, size in sizes)
        while sizes and (total > self._most_bytes - self._segment_bytes or len(sizes) >= _MOST_FILES):
            path, size = sizes.pop(0)
            path.unlink(missing_ok=True)
            total -= size

    def close(self) -> None:
        """Close the current segment, also in a forked process, which would keep it on the disk."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def sampled(rows: Sequence[Row], most: int, turn: int, lost: int = 0) -> list[tuple[Row, int]]:
    """At most ``most`` of the rows, each with its weight: the number of requests it stands for.

    Half of them are the slowest and those that did not end ok; the other half are spread evenly over the rest.

    :param turn: number of this call, which shifts the even spread.
    :param lost: further requests without a row; the even spread stands for them too.
    """
    if len(rows) <= most and not lost:
        return [(row, 1) for row in rows]
    half = most // 2
    slow = sorted(range(len(rows)), key=lambda k: (_is_answered(rows[k].status), -rows[k].latency_ns))[:half]
    chosen = dict.fromkeys(slow, 1)
    rest = [k for k in range(len(rows)) if k not in chosen]
    kept = min(len(rest), most - half)
    for place in range(kept):
        low, high = (len(rest) + lost) * place // kept, (len(rest) + lost) * (place + 1) // kept
        first, last = len(rest) * place // kept, len(rest) * (place + 1) // kept
        chosen[rest[first + turn % (last - first)]] = high - low
    return [(rows[k], chosen[k]) for k in sorted(chosen)]


def _number(value: object) -> float:
    """A feature's value; NaN if it is no number or too large."""
    try:
        return float(value) if isinstance(value, numbers.Real) else math.nan
    except OverflowError:
        return math.nan


def _is_answered(status: str) -> bool:
    """True if a request got its answer, including those to invalid requests."""
    return status == "ok" or (status.startswith("4") and status not in ("408", "429", "499"))


def span_times(spans: Sequence[SpanRecord]) -> dict[str, int]:
    """Nanoseconds by name, whatever a caller gave as one; a moment in several spans is that of the earliest."""
    times: dict[str, int] = {}
    covered = 0
    for span in sorted(spans, key=lambda span: span.start_ns):
        name = str(span.name)
        times[name] = times.get(name, 0) + max(span.end_ns - max(span.start_ns, covered), 0)
        covered = max(covered, span.end_ns)
    return times
