"""Reads exports of Nsight Systems (``nsys export --type sqlite``)."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from latfix.profilers.recordings.devices.call_and_kernel_kinds import (
    Device,
    Host,
    call_kind,
    code_kind,
    copy_kind,
    is_collective,
)
from latfix.profilers.recordings.devices.device_trace import NOTHING, DeviceTrace, TraceBuilder
from latfix.profilers.recordings.reader import Recorded, damaged

_MAGIC = b"SQLite format 3\0"
_WANTED = "an export of Nsight Systems (nsys export --type sqlite) with the calls of CUDA"
_RUNTIME, _KERNELS, _COPIES = (f"CUPTI_ACTIVITY_KIND_{each}" for each in ("RUNTIME", "KERNEL", "MEMCPY"))
_MEMSETS, _GRAPHS, _SYNCS = (f"CUPTI_ACTIVITY_KIND_{each}" for each in ("MEMSET", "GRAPH_TRACE", "SYNCHRONIZATION"))
#: The lower bits of a thread's global id.
_THREAD_BITS = 24
_PUSH_POP, _START_END = 59, 60
#: Ranges that PyTorch pushes for each operator (``emit_nvtx``, ``--pytorch=autograd-nvtx``).
_OPERATOR = re.compile(r"^\w+::\w+|, (?:op_id|seq) = \d+")
_NUMBERED = re.compile(r", (?:op_id|seq|sizes|input_op_ids) = .*$", re.DOTALL)
#: The export's numbers of ``cudaMemcpyKind`` and of memory kinds.
_DIRECTIONS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
_MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed"}


def is_export(recorded: Recorded) -> bool:
    """True if a file is a database of Nsight Systems."""
    if not recorded.head.startswith(_MAGIC):
        return False
    try:
        with contextlib.closing(_opened(recorded.path)) as database:
            tables = _tables(database)
    except sqlite3.Error:
        return b"CUPTI_ACTIVITY_KIND" in recorded.head or b"TARGET_INFO" in recorded.head
    return "StringIds" in tables and any(
        name.startswith(("CUPTI_ACTIVITY_KIND", "TARGET_INFO", "NVTX_EVENTS")) for name in tables
    )


def read_export(path: Path) -> DeviceTrace:
    """The recording in a database.

    :raises InputError: it is damaged, cut off, or has no CUDA calls.
    """
    try:
        with contextlib.closing(_opened(path)) as database:
            return _Export(database).trace(path)
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        damaged(path, _WANTED, f"a database that is damaged or cut off ({error})", todo="export it again")


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)


def _tables(database: sqlite3.Connection) -> set[str]:
    return {name for (name,) in database.execute("select name from sqlite_master where type in ('table', 'view')")}


class _Export:
    """One export, table by table."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._tables = _tables(database)
        self._strings: dict[int, str] = dict(database.execute("select id, value from StringIds"))
        self._into = TraceBuilder()

    def trace(self, path: Path) -> DeviceTrace:
        into = self._into
        self._calls()
        self._system_calls()
        self._activities(_KERNELS, "demangledName shortName gridX gridY gridZ blockX blockY blockZ", self._kernel)
        self._activities(_COPIES, "bytes copyKind srcKind dstKind", self._copy)
        self._activities(_MEMSETS, "", lambda: (Device.MEMSET, "Memset", 0))
        self._activities(_GRAPHS, "graphId", lambda graph: (Device.KERNEL, f"a whole graph ({graph})", 0))
        self._ranges()
        if not len(into.host) and not len(into.device):
            damaged(path, _WANTED, "a database without them", todo="record with nsys profile --trace cuda,nvtx")
        return DeviceTrace(
            into, dict(self._waits()), (number for _, number in into.correlations), self._device_name()
        )

    def _rows(self, table: str, columns: str) -> Iterable[Any]:
        """Rows with these columns, ``NULL`` for columns that this version of the export lacks."""
        if table not in self._tables:
            return ()
        known = {row[1] for row in self._database.execute(f'pragma table_info("{table}")')}
        wanted = ", ".join(f'"{name}"' if name in known else "null" for name in columns.split())
        return self._database.execute(f'select {wanted} from "{table}"')

    def _correlation(self, process: int, number: Any) -> int:
        return NOTHING if number is None else self._into.correlations[process >> _THREAD_BITS, number]

    def _add_call(self, start: int, end: int, thread: int, kind: Host, name: str, correlation: int = NOTHING) -> None:
        into = self._into
        into.host.add(start, end, into.threads[thread], kind, into.names[name], correlation, 0)

    def _calls(self) -> None:
        for start, end, thread, number, name in self._rows(_RUNTIME, "start end globalTid correlationId nameId"):
            if end is None:
                continue
            text = re.sub(r"_v\d+$", "", self._strings.get(name, "a call"))
            self._add_call(start, end, thread, call_kind(text), text, self._correlation(thread, number))

    def _system_calls(self) -> None:
        for start, end, thread, name in self._rows("OSRT_API", "start end globalTid nameId"):
            text = self._strings.get(name, "a call")
            if end is not None and code_kind(text, frame=False) == Host.OUTSIDE:
                self._add_call(start, end, thread, Host.OUTSIDE, text)

    def _activities(self, table: str, columns: str, describe: Callable[..., tuple[Device, str, int]]) -> None:
        """Add the activities of a table.

        :param describe: from these further columns to the kind, the name and the size.
        """
        into, columns = self._into, f"start end deviceId streamId globalPid correlationId {columns}"
        for start, end, device, stream, process, number, *more in self._rows(table, columns):
            lane, correlation = into.lanes[device, (process, stream)], self._correlation(process, number)
            kind, name, size = describe(*more)
            into.device.add(start, end, lane, kind, into.names[name], correlation, size)

    def _kernel(self, long: int, short: int, *shape: int) -> tuple[Device, str, int]:
        text = self._strings.get(long) or self._strings.get(short) or "a kernel"
        return Device.COLLECTIVE if is_collective(text) else Device.KERNEL, text, self._into.shapes[shape]

    def _copy(self, size: int | None, direction: int, *memory: int) -> tuple[Device, str, int]:
        ends = [_MEMORY.get(each, "Host") for each in memory]
        text = f"Memcpy {_DIRECTIONS.get(direction, '')} ({' -> '.join(ends)})"
        if "Pageable" in ends:
            self._into.pageable.add(self._into.names[text])
        return copy_kind(text), text, size or 0

    def _waits(self) -> Iterator[tuple[int, int]]:
        for device, stream, process, number in self._rows(_SYNCS, "deviceId streamId globalPid correlationId"):
            lane = (device, (process, stream))
            key = (process >> _THREAD_BITS, number)
            if lane in self._into.lanes and key in self._into.correlations:
                yield self._into.correlations[key], self._into.lanes[lane]

    def _ranges(self) -> None:
        into = self._into
        rows = self._rows("NVTX_EVENTS", "start end eventType globalTid text textId")
        for start, end, kind, thread, text, text_id in rows:
            if end is None or kind not in (_PUSH_POP, _START_END):
                continue
            words = text or self._strings.get(text_id) or ""
            if _OPERATOR.search(words):
                words = _NUMBERED.sub("", words)
                self._add_call(start, end, thread, code_kind(words, frame=False), words)
            elif words:
                into.ranges.add(start, end, into.threads[thread], 0, into.names[words], NOTHING, 0)

    def _device_name(self) -> str:
        names = [str(name) for (name,) in self._rows("TARGET_INFO_GPU", "name") if name]
        return names[0] if names else "a device"
