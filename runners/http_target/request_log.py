"""Rows of requests as they end, packed at once and written in pieces small enough not to hold up the schedule."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

from latfix.run_record.run_record import SEGMENTS
from latfix.run_record.schema import REQUEST_DTYPE

#: Written at a time.
_PIECE = 1 << 16
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
    "sent_bytes",
    "received_bytes",
    "chunks",
    "output_tokens",
    "first_token_ns",
)
_BLANK = [-1 if name in ("batch_id", "prepare_thread") else 0 for name in _NAMES]
_PLACES = tuple(_NAMES.index(name) for name in _WRITTEN)


class RequestLog:
    """Appends to ``segments/`` of a run's folder.

    :param t0_ns: the schedule's zero on the monotonic clock; times in rows and events count from it.
    :ivar ended: requests.
    """

    def __init__(self, folder: Path, t0_ns: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        segments = folder / SEGMENTS
        self._rows_file = os.open(segments / "requests.bin", flags, 0o644)
        self._events_file = os.open(segments / "events.jsonl", flags, 0o644)
        self._pack = struct.Struct(f"<{len(_NAMES)}q").pack
        self._rows = bytearray()
        self._events = bytearray()
        self.t0_ns = t0_ns
        self.ended = 0

    @property
    def pending(self) -> bool:
        """Whether there is something to write."""
        return bool(self._rows or self._events)

    def add(self, values: tuple[int, ...]) -> None:
        """A request ended.

        :param values: in the order of :data:`_WRITTEN`; the planned time on the monotonic clock.
        """
        row = _BLANK.copy()
        for place, value in zip(_PLACES, values, strict=True):
            row[place] = value
        row[_PLACES[1]] -= self.t0_ns
        self._rows += self._pack(*row)
        self.ended += 1

    def event(self, kind: str, start_ns: int, duration_ns: int, request: int, detail: dict[str, Any]) -> None:
        """Something happened in a request; see :data:`latfix.run_record.schema.EVENT_KINDS`."""
        line = json.dumps([start_ns - self.t0_ns, duration_ns, kind, 0, request, -1, detail], separators=(",", ":"))
        self._events += line.encode() + b"\n"

    def write_some(self) -> None:
        """Write a piece of what is pending."""
        # Events first: an error's row points to its message.
        for buffer, file in ((self._events, self._events_file), (self._rows, self._rows_file)):
            if buffer:
                del buffer[: os.write(file, bytes(buffer[:_PIECE]))]

    def close(self) -> None:
        """Write the rest."""
        while self.pending:
            self.write_some()
        os.close(self._rows_file)
        os.close(self._events_file)
