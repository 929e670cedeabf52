"""Rows of ended requests: packed at once, written by a separate thread because a disk may be slow."""

from __future__ import annotations

import json
import os
import struct
from collections import deque
from pathlib import Path
from typing import Any

from latfix.profilers.probes.own_thread import OwnThread
from latfix.run_record.run_record import SEGMENTS
from latfix.run_record.schema import REQUEST_DTYPE
from latfix.runners.replay.open_loop import take_priority

_FLUSH_S = 0.25
_NAMES: tuple[str, ...] = REQUEST_DTYPE.names or ()
_WRITTEN = (
    "index",
    "arrival_ns",
    "dispatch_ns",
    "prepare_ns",
    "compute_ns",
    "finish_ns",
    "latency_ns",
    "status",
    "send_ns",
    "http_status",
    "new_connection",
    "client_port",
    "sent_bytes",
    "received_bytes",
    "chunks",
    "output_tokens",
    "first_token_ns",
)
_BLANK = [-1 if name in ("batch_id", "prepare_thread") else 0 for name in _NAMES]
_PLACES = tuple(_NAMES.index(name) for name in _WRITTEN)


class RequestLog(OwnThread):
    """Appends to ``segments/`` of a run's folder.

    :param t0_ns: the schedule's zero on the monotonic clock; times in rows and events are relative to it.
    :ivar ended: number of requests.
    :raises OSError: from :meth:`close`, if writing failed.
    """

    def __init__(self, folder: Path, t0_ns: int) -> None:
        super().__init__("segments")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        segments = folder / SEGMENTS
        self._rows_file = os.open(segments / "requests.bin", flags, 0o644)
        self._events_file = os.open(segments / "events.jsonl", flags, 0o644)
        self._pack = struct.Struct(f"<{len(_NAMES)}q").pack
        self._rows: deque[bytes] = deque()
        self._events: deque[bytes] = deque()
        self.t0_ns = t0_ns
        self.ended = 0
        self._error: OSError | None = None
        self.__enter__()

    def add(self, values: tuple[int, ...]) -> None:
        """Add an ended request: values in the order of :data:`_WRITTEN`, the planned time on the monotonic clock."""
        row = _BLANK.copy()
        for place, value in zip(_PLACES, values, strict=True):
            row[place] = value
        row[_PLACES[1]] -= self.t0_ns
        self._rows.append(self._pack(*row))
        self.ended += 1

    def event(self, kind: str, start_ns: int, duration_ns: int, request: int, detail: dict[str, Any]) -> None:
        """Add an event of a request; see :data:`latfix.run_record.schema.EVENT_KINDS`."""
        line = json.dumps([start_ns - self.t0_ns, duration_ns, kind, 0, request, -1, detail], separators=(",", ":"))
        self._events.append(line.encode() + b"\n")

    def close(self) -> None:
        self.__exit__()
        os.close(self._rows_file)
        os.close(self._events_file)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        take_priority()  # while it holds the interpreter lock, it must not wait for a core
        last = False
        while not last and self._error is None:
            last = self._stop.wait(_FLUSH_S)
            try:
                self._flush()
            except OSError as error:
                self._error = error

    def _flush(self) -> None:
        # Events first: an error's row points to its message.
        for waiting, file in ((self._events, self._events_file), (self._rows, self._rows_file)):
            rest = memoryview(b"".join([waiting.popleft() for _ in range(len(waiting))]))
            while rest:
                rest = rest[os.write(file, rest) :]
