"""A recording of a device as columns: host intervals by thread, device activities by lane, ranges."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from latfix.arrays import Ints
from latfix.formatting import counted, shown
from latfix.profilers.recordings.devices.call_and_kernel_kinds import CALLS, Device, Host

#: No correlation, no launch, no previous activity.
NOTHING = -1
#: Times whose differences 64 bits hold.
_FIRST_NS, _LAST_NS = -(2**57), 2**63 - 2**57


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Intervals of one table, in order of begin. Times in nanoseconds.

    :param start: ``(n,)``; ``end`` likewise, never before ``start``.
    :param place: ``(n,)`` thread of the host, or lane (device and stream).
    :param kind: ``(n,)`` :class:`Host` or :class:`Device`; 0 for ranges.
    :param name: ``(n,)`` index into ``names``.
    :param correlation: ``(n,)``; :data:`NOTHING` for none.
    :param size: ``(n,)`` bytes of a copy; of a kernel a number for its shape.
    """

    start: Ints
    end: Ints
    place: Ints
    kind: Ints
    name: Ints
    correlation: Ints
    size: Ints

    def __len__(self) -> int:
        return len(self.start)


class Columns:
    """Collects intervals one by one."""

    def __init__(self) -> None:
        self._columns = [array("q") for _ in range(7)]
        self.reversed = 0

    def add(self, start: int, end: int, place: int, kind: int, name: int, correlation: int, size: int) -> None:
        """Append an interval; an end before the begin is set to the begin, and counted.

        :raises ValueError: a time is too far from the others.
        """
        if not (_FIRST_NS < start < _LAST_NS and _FIRST_NS < end < _LAST_NS):
            raise ValueError(f"a time from {shown(start, 30)} to {shown(end, 30)} ns")
        self.reversed += end < start
        for column, value in zip(
            self._columns, (start, max(start, end), place, kind, name, correlation, size), strict=True
        ):
            column.append(value)

    def __len__(self) -> int:
        return len(self._columns[0])

    def done(self) -> Intervals:
        """All intervals, sorted by begin, the longer first."""
        columns = [np.frombuffer(column, dtype=np.int64) for column in self._columns]
        order = np.lexsort((-columns[1], columns[0]))
        start, end, place, kind, name, correlation, size = (column[order] for column in columns)
        return Intervals(start=start, end=end, place=place, kind=kind, name=name, correlation=correlation, size=size)


class Numbering(dict[Any, int]):
    """Consecutive numbers for names, threads, lanes and correlations, in order of first use."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


class TraceBuilder:
    """Collects the tables of a trace."""

    def __init__(self) -> None:
        self.host, self.device, self.ranges = Columns(), Columns(), Columns()
        self.names, self.threads, self.lanes = Numbering(), Numbering(), Numbering()
        self.correlations, self.shapes = Numbering(), Numbering()
        self.pageable: set[int] = set()


class DeviceTrace:
    """One recording of one process or machine.

    :param numbers: all correlations as the runtime counts them; ``read`` further counts for ``source.read``.
    :ivar host: calls of the runtime, operators, frames.
    :ivar device: kernels, copies, memsets, collectives.
    :ivar ranges: ranges that the program named: steps, annotations, NVTX.
    :ivar waits: by correlation, the lane (or :data:`NOTHING` for all) that a call waited for, if recorded.
    :ivar names: of all intervals, by their number; ``lanes`` likewise, as (device, stream).
    :ivar pageable: numbers of the names of copies from or to pageable memory.
    :ivar first_correlation: the smallest correlation; the runtime counts them from the process's start.
    :ivar notes: for the reader of the diagnosis.
    :ivar lacks_kernels: True if kernels were launched but none was recorded: the device's waits are unknown.
    :ivar lacks_calls: True if the device worked but no call was recorded: the host's waits are unknown.
    """

    def __init__(
        self, built: TraceBuilder, waits: Mapping[int, int], numbers: Iterable[int], device_name: str, **read: Any
    ) -> None:
        self.host, self.device, self.ranges = built.host.done(), built.device.done(), built.ranges.done()
        self.names: list[str] = list(built.names)
        self.lanes: list[tuple[Any, Any]] = list(built.lanes)
        self.pageable = frozenset(built.pageable)
        self.waits, self.device_name, self.read = waits, device_name, read
        self.first_correlation = min(numbers, default=NOTHING)
        backward = built.host.reversed + built.device.reversed + built.ranges.reversed
        note = f"{counted(backward, 'interval')} with an end before the begin: read with length 0."
        self.notes = (note,) if backward else ()
        launched = np.isin(self.host.kind, (Host.LAUNCH, Host.GRAPH_LAUNCH)).any()
        kernels = np.isin(self.device.kind, (Device.KERNEL, Device.COLLECTIVE)).any()
        self.lacks_kernels = bool(launched and not kernels)
        self.lacks_calls = bool(len(self.device)) and not np.isin(self.host.kind, CALLS).any()

    def counts(self) -> dict[str, Any]:
        """Counts of intervals by kind, for ``source.read``."""
        kinds = np.bincount(self.device.kind, minlength=len(Device))
        calls = np.bincount(self.host.kind, minlength=len(Host))
        counts = {
            "kernels": int(kinds[Device.KERNEL] + kinds[Device.COLLECTIVE]),
            "collectives": int(kinds[Device.COLLECTIVE]),
            "copies": int(kinds[Device.COPY] + kinds[Device.OWN_COPY]),
            "memsets": int(kinds[Device.MEMSET]),
            "launches": int(calls[Host.LAUNCH]),
            "graph launches": int(calls[Host.GRAPH_LAUNCH]),
            "waits": int(calls[Host.SYNC]),
            "allocator calls": int(calls[Host.ALLOC]),
            "Python frames": int(calls[Host.FRAME]),
            "streams": len(self.lanes),
        }
        return {**self.read, **{name: number for name, number in counts.items() if number}}
