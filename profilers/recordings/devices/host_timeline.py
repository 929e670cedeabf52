"""The innermost call, operator or frame of each host thread at every moment."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from latfix.profilers.recordings.devices.call_and_kernel_kinds import Host
from latfix.profilers.recordings.devices.device_trace import NOTHING, Intervals

#: Kinds that are shown separately within a call of the runtime.
_WITHIN_CALLS = (Host.FIRST_USE, Host.COMPILE, Host.ALLOC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One thread as stretches that do not overlap; between them nothing was recorded.

    :param start: nanoseconds; ``end`` likewise. Lists, as scalar lookups in them are faster than in arrays.
    :param row: in the table of intervals.
    """

    start: list[int]
    end: list[int]
    row: list[int]


def host_timelines(table: Intervals) -> Callable[[int], Timeline]:
    """The timeline of each thread, made on first use.

    :param table: calls, operators and frames, or ranges.
    """

    @cache
    def of(thread: int) -> Timeline:
        rows = np.flatnonzero(table.place == thread)
        starts, ends, kinds = (each[rows].tolist() for each in (table.start, table.end, table.kind))
        pieces: list[tuple[int, int, int]] = []
        stack: list[tuple[int, int, bool]] = []  # end, row, True for a call
        at = 0
        for start, end, kind, row in zip(starts, ends, kinds, rows.tolist(), strict=True):
            # What ends before this does not enclose it: stamps that were rounded overlap the next ones.
            while stack and stack[-1][0] < end:
                until, ended, _ = stack.pop()
                at = _emit(pieces, at, min(until, start), ended)
            inside_call = bool(stack) and stack[-1][2]
            if inside_call and kind not in _WITHIN_CALLS:
                continue
            if stack:
                _emit(pieces, at, start, stack[-1][1])
            at = max(at, start) if stack else start
            stack.append((end, row, Host.LAUNCH <= kind <= Host.OTHER_CALL))
        while stack:
            at = _emit(pieces, at, *stack.pop()[:2])
        return Timeline(start=[p[0] for p in pieces], end=[p[1] for p in pieces], row=[p[2] for p in pieces])

    return of


def _emit(pieces: list[tuple[int, int, int]], at: int, end: int, row: int) -> int:
    if end > at:
        pieces.append((at, end, row))
    return max(at, end)


def stretches(timeline: Timeline, start: int, end: int) -> list[tuple[int, int, int]]:
    """The stretches of an interval in order: begin, end, row; row :data:`NOTHING` for gaps."""
    first = bisect_right(timeline.end, start)
    result: list[tuple[int, int, int]] = []
    at = start
    for k in range(first, len(timeline.start)):
        begin, stop = timeline.start[k], timeline.end[k]
        if begin >= end:
            break
        if begin > at:
            result.append((at, begin, NOTHING))
        at = max(at, begin)
        result.append((at, min(stop, end), timeline.row[k]))
        at = min(stop, end)
    if at < end:
        result.append((at, end, NOTHING))
    return result
