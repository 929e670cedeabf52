"""Reads traces of ``torch.profiler`` (Kineto's JSON, CUDA and HIP) as a stream."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

from latfix.formatting import shown
from latfix.profilers.recordings.devices.call_and_kernel_kinds import (
    Device,
    Host,
    call_kind,
    code_kind,
    copy_kind,
    is_collective,
)
from latfix.profilers.recordings.devices.device_trace import NOTHING, Columns, DeviceTrace, TraceBuilder
from latfix.profilers.recordings.reader import Recorded, damaged, opened

_CHUNK = 1 << 22
#: The longest event or other value, in characters.
_LONGEST = 1 << 28
_WANTED = "a trace of torch.profiler (JSON with traceEvents)"
_BLANKS = re.compile(r"[ \t\r\n,]*")
_KNOWN = re.compile(
    rb'"(?:traceEvents|deviceProperties|baseTimeNanoseconds|cuda_runtime_version|hip_runtime_version)"\s*:'
)
_EVENTS_ALONE = re.compile(rb'\[\s*\{[^{}]{0,400}"ph"\s*:')
_MALFORMED = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
_GPU = {"kernel": Device.KERNEL, "gpu_memcpy": Device.COPY, "gpu_memset": Device.MEMSET}
_RUNTIME = frozenset(("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime"))
_RANGES = frozenset(("user_annotation", "cpu_annotation"))


def is_trace(file: Recorded) -> bool:
    """True if a file is such a trace."""
    head = file.head.lstrip()
    return (head[:1] == b"{" and _KNOWN.search(head) is not None) or _EVENTS_ALONE.match(head) is not None


def read_trace(path: Path) -> DeviceTrace:
    """The trace in a file.

    :raises InputError: it is damaged or cut off, or holds no event with a duration.
    """
    into = _Collected()
    try:
        with opened(path, _WANTED, text=False) as file:
            for key, value in _members(_Text(file)):
                if key == "traceEvents":
                    into.add(value)
                else:
                    into.head[key] = value
    except _CutOff as error:
        damaged(path, _WANTED, f"a trace that is cut off ({error})")
    except KeyError as error:
        damaged(path, _WANTED, f"a damaged trace (event {into.events:,} has no {error})")
    except _MALFORMED as error:
        damaged(path, _WANTED, f"a damaged trace (event {into.events:,}: {error})")
    if not len(into.tables.host) and not len(into.tables.device):
        damaged(
            path, _WANTED, "a trace without a call of the host or an activity of a device", todo="record it again"
        )
    return into.done()


class _CutOff(Exception):
    """The file ends within a value."""


class _Text:
    """A window that moves forward over a long text."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._text, self._at, self._ended = file, "", 0, False
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode
        # Numbers with a decimal point stay text: a float does not hold nanoseconds since 1970 exactly.
        self._scan: Callable[[str, int], tuple[Any, int]]
        self._scan = json.JSONDecoder(parse_float=str, strict=False).scan_once  # type: ignore[attr-defined]

    def peek(self) -> str:
        """The next character, without blanks and commas; empty at the end."""
        while True:
            self._at = _BLANKS.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def skip(self, character: str) -> None:
        """Skip the next character, which must be this one."""
        result = self.peek()
        if not result:
            raise _CutOff(f"it ends before an expected {character}")
        if result != character:
            raise ValueError(f"{result!r} instead of {character}")
        self._at += 1

    def value(self) -> Any:
        if not self.peek():
            raise _CutOff("it ends between values")
        while True:
            try:
                value, end = self._scan(self._text, self._at)
            except (StopIteration, json.JSONDecodeError) as error:
                if len(self._text) - self._at > _LONGEST:
                    raise ValueError(f"no value at {self._text[self._at : self._at + 40]!r}") from error
                if not self._more():
                    if isinstance(error, json.JSONDecodeError) and error.pos < len(self._text) - 1:
                        raise ValueError(f"{error.msg} at {self._text[error.pos : error.pos + 40]!r}") from error
                    raise _CutOff("it ends within a value") from error
                continue
            self._at = end
            return value

    def _more(self) -> bool:
        if self._ended:
            return False
        read = self._file.read(max(_CHUNK, len(self._text) - self._at))
        self._ended = not read
        self._text = self._text[self._at :] + self._decode(read, self._ended)
        self._at = 0
        return not self._ended


def _members(text: _Text) -> Iterator[tuple[str, Any]]:
    """Keys and values of the document, each event separately."""
    if text.peek() == "[":
        yield from _events(text)
        return
    text.skip("{")
    while (mark := text.peek()) != "}":
        if not mark:
            raise _CutOff("it ends before the last brace")
        key = text.value()
        text.skip(":")
        if key == "traceEvents" and text.peek() == "[":
            yield from _events(text)
        else:
            yield key, text.value()
    text.skip("}")
    if text.peek():
        raise ValueError("more after its end: several traces belong into a folder")


def _events(text: _Text) -> Iterator[tuple[str, Any]]:
    text.skip("[")
    while (mark := text.peek()) != "]":
        if not mark:
            raise _CutOff("it ends within traceEvents")
        yield "traceEvents", text.value()
    text.skip("]")


def nanoseconds(value: Any) -> int:
    """Whole nanoseconds of microseconds, given as an integer or as text with a decimal point."""
    if isinstance(value, int):
        return value * 1000
    text = str(value)
    whole, _, part = text.partition(".")
    if part.isdigit() and whole.lstrip("-").isdigit():
        digits = int((part + "000")[:3])
        return int(whole) * 1000 + (-digits if whole.startswith("-") else digits)
    try:
        return int(Decimal(text) * 1000)
    except (ArithmeticError, ValueError) as error:
        raise ValueError(f"the time {shown(value, 30)}") from error


def _ends(event: Any) -> tuple[int, int]:
    start = nanoseconds(event["ts"])
    return start, start + nanoseconds(event.get("dur", 0))


def _name(event: Any) -> str:
    name = event["name"]
    if not isinstance(name, str):
        raise ValueError(f"the name {shown(name, 40)}, which is no text")
    return name


class _Collected:
    """Events, sorted into tables."""

    def __init__(self) -> None:
        self.head: dict[str, Any] = {}
        self.tables = TraceBuilder()
        self._waits: dict[int, Any] = {}
        self.events = 0

    def add(self, event: Any) -> None:
        """Add an event; events without a duration, such as flows, are left out."""
        self.events += 1
        if not isinstance(event, dict) or not isinstance(event.get("args") or {}, dict):
            raise ValueError(f"{shown(event, 40)} is no event")
        if event.get("ph") != "X":
            return
        category = str(event.get("cat") or "").lower()
        if category in _GPU:
            self._add_device(event, _GPU[category])
        elif category == "cuda_sync":
            self._add_wait(event["args"])
        elif category in _RUNTIME:
            self._add_on_thread(self.tables.host, event, call_kind(_name(event)))
        elif category in _RANGES:
            self._add_on_thread(self.tables.ranges, event, 0)
        elif category in ("cpu_op", "operator", "python_function"):
            kind = code_kind(_name(event), frame=category == "python_function")
            self._add_on_thread(self.tables.host, event, kind)

    def _add_device(self, event: Any, kind: Device) -> None:
        args, name, into = event.get("args") or {}, _name(event), self.tables
        if kind == Device.KERNEL and is_collective(name):
            kind = Device.COLLECTIVE
        lane = into.lanes[args.get("device", event.get("pid")), args.get("stream", event.get("tid"))]
        if kind == Device.COPY:
            kind, size = copy_kind(name), int(args.get("bytes") or 0)
        elif kind == Device.MEMSET:
            size = 0
        else:
            shape = (*(args.get("grid") or ()), *(args.get("block") or ()))
            size = into.shapes[(*shape, args.get("In msg nelems"), args.get("Group size"))]
        number = into.names[name]
        if kind == Device.COPY and "pageable" in name.lower():
            into.pageable.add(number)
        into.device.add(*_ends(event), lane, kind, number, self._correlation(args), size)

    def _add_on_thread(self, into: Columns, event: Any, kind: int) -> None:
        correlation = self._correlation(event.get("args") or {}) if kind >= Host.LAUNCH else NOTHING
        thread = self.tables.threads[event.get("pid"), event.get("tid")]
        into.add(*_ends(event), thread, kind, self.tables.names[_name(event)], correlation, 0)

    def _add_wait(self, args: Any) -> None:
        correlation = self._correlation(args)
        stream = args.get("wait_on_stream", args.get("stream", -1))
        if correlation != NOTHING and stream != -1:
            self._waits[correlation] = (args.get("device"), stream)

    def _correlation(self, args: Any) -> int:
        number = args.get("correlation")
        return NOTHING if number is None else self.tables.correlations[number]

    def done(self) -> DeviceTrace:
        into = self.tables
        waits = {number: into.lanes[lane] for number, lane in self._waits.items() if lane in into.lanes}
        numbers = (each for each in into.correlations if isinstance(each, int))
        return DeviceTrace(into, waits, numbers, self._device_name(), events=self.events)

    def _device_name(self) -> str:
        properties = self.head.get("deviceProperties")
        known = [each for each in properties if isinstance(each, dict)] if isinstance(properties, list) else []
        used = {str(device) for device, _ in self.tables.lanes}
        names = [str(each.get("name")) for each in known if each.get("name")]
        chosen = [str(each["name"]) for each in known if each.get("name") and str(each.get("id")) in used]
        return (chosen or names or ["a device" if self.tables.lanes else ""])[0]
