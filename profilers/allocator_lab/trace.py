"""Allocation traffic: allocations and frees in order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latfix.errors import InputError, input_error
from latfix.files.decompressed import CUT_OFF, open_decompressed
from latfix.files.regular_file import check_regular
from latfix.formatting import visible

#: Most bytes of one allocation.
MOST_BYTES = 1 << 50
#: Most microseconds.
_MOST_US = 1 << 63
_WANTED = "a file of torch.cuda.memory._dump_snapshot or latfix fragmentation --out"


@dataclass(frozen=True, slots=True)
class Event:
    """One allocation or free.

    :param key: identifies the allocation; its free has the same.
    :param size: requested bytes; 0 for a free.
    :param stream: that uses the memory; caching allocators keep memory by stream.
    :param t_us: microseconds since the start.
    """

    key: int
    size: int
    stream: int = 0
    t_us: float = 0.0

    @property
    def is_free(self) -> bool:
        return self.size == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A shortage of memory: cached segments are given back while the program waits, then a new one is requested.

    :param t_us: since the begin of the history; ``lasted_us`` from the first segment given back to the new one.
    :param size: bytes requested from the device; ``freed`` given back before.
    :param is_retry: True if segments were given back; ``is_failure`` if the device had no room even then.
    """

    t_us: float
    lasted_us: float
    size: int
    freed: int
    is_retry: bool
    is_failure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationTrace:
    """Allocation traffic.

    :param events: in order. A key is allocated before it is freed, and freed once.
    :param source: description of its origin.
    :param recorded: counts of the real allocator: ``retries``, ``ooms``, ``device_allocs``, ``device_frees``,
        ``peak_reserved``; empty if unknown.
    :param setting: ``PYTORCH_ALLOC_CONF`` of the recorded process; empty for torch's defaults, or if unknown.
    :param device: number of the recorded device.
    :param stalls: recorded stalls; empty if not recorded.
    """

    events: Sequence[Event]
    source: str
    recorded: dict[str, int] = field(default_factory=dict)
    setting: str = ""
    device: int = 0
    stalls: tuple[Stall, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """The most allocated bytes at any time."""
        live: dict[int, int] = {}
        now = peak = 0
        for event in self.events:
            if event.is_free:
                now -= live.pop(event.key, 0)
            else:
                live[event.key] = event.size
                now += event.size
                peak = max(peak, now)
        return peak

    @property
    def largest(self) -> int:
        return max((event.size for event in self.events), default=0)


def read_trace(path: Path) -> AllocationTrace:
    """Read a trace: JSON lines of :func:`write_trace`, or a dump of torch's memory history.

    :raises InputError: the file cannot be read, or an entry is invalid.
    """
    from latfix.profilers.allocator_lab.torch_snapshot import is_snapshot, read_snapshot

    try:
        check_regular(path, _WANTED)
        with open_decompressed(path) as file:
            head = file.read(2)
            text = "" if is_snapshot(head) else (head + file.read()).decode()
    except (*CUT_OFF, UnicodeDecodeError) as error:
        unread = isinstance(error, OSError) and error.strerror
        result = "cannot read it" if unread else "found neither JSON lines nor a pickled snapshot"
        raise InputError(f"{path}: {result} ({unread or error}); expected {_WANTED}") from error
    if is_snapshot(head):
        return read_snapshot(path)
    events = list(_checked(path, _lines(path, text.split("\n"))))
    if not events:
        raise InputError(f"{path}: found no allocation; expected one JSON object a line")
    return AllocationTrace(events=events, source=path.name)


def write_trace(path: Path, trace: AllocationTrace) -> None:
    """Write JSON lines: ``{"t_us", "alloc", "bytes", "stream"}`` and ``{"t_us", "free"}``."""
    with path.open("w", encoding="utf-8") as file:
        for event in trace.events:
            entry: dict[str, Any] = {"t_us": event.t_us}
            entry |= {"free": event.key} if event.is_free else {"alloc": event.key, "bytes": event.size}
            if event.stream:
                entry["stream"] = event.stream
            file.write(json.dumps(entry) + "\n")


def _lines(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, Event]]:
    expected = 'an object with "alloc" and "bytes", or with "free"'
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise input_error(path, number, f"no JSON ({error})", expected) from error
        except RecursionError as error:
            raise input_error(path, number, "values nested too deeply", expected) from error
        if not isinstance(entry, dict) or ("alloc" in entry) == ("free" in entry):
            raise input_error(path, number, _short(entry), expected)
        is_free = "free" in entry
        key, stream, t_us = entry["free" if is_free else "alloc"], entry.get("stream", 0), entry.get("t_us", 0.0)
        size: Any = 0 if is_free else entry.get("bytes")
        for name, value in (("free" if is_free else "alloc", key), ("stream", stream)):
            if not _is_whole(value):
                raise input_error(path, number, f"{name} = {_short(value)}", "a whole number")
        if not is_free and not (_is_whole(size) and 0 < size <= MOST_BYTES):
            raise input_error(path, number, f"bytes = {_short(size)}", "a whole number above 0, at most 2^50")
        # The comparison also refuses NaN, and integers too large for a float.
        if isinstance(t_us, bool) or not isinstance(t_us, int | float) or not abs(t_us) <= _MOST_US:
            raise input_error(path, number, f"t_us = {_short(t_us)}", "microseconds")
        yield number, Event(key=key, size=size, stream=stream, t_us=float(t_us))


def _checked(path: Path, events: Iterable[tuple[int, Event]]) -> Iterator[Event]:
    live: set[int] = set()
    for number, event in events:
        if event.is_free:
            if event.key not in live:
                raise input_error(path, number, f"free {event.key}", "a number that is allocated at that time")
            live.discard(event.key)
        else:
            if event.key in live:
                raise input_error(path, number, f"alloc {event.key}", "a number that is not allocated at that time")
            live.add(event.key)
        yield event


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _short(value: object) -> str:
    try:
        text = json.dumps(value)
    except RecursionError:  # reading it needed less stack
        return "values nested too deeply"
    return visible(text, limit=60)
