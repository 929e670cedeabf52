"""Finds the steps of a recording."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from latfix.errors import input_error
from latfix.formatting import clipped, shown
from latfix.profilers.recordings.devices.call_and_kernel_kinds import CALLS, Host
from latfix.profilers.recordings.devices.device_trace import DeviceTrace, Intervals

_PROFILER_STEP = re.compile(r"ProfilerStep\s*#?\s*\d+")
_STEP_LIKE = re.compile(r"(?<![A-Za-z])(?:step|iteration|iter|decode_step|batch|request)(?![A-Za-z])", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")
#: Outermost calls of a name, or ranges within one, are steps if there are at least so many and they cover this share.
_LEAST_CALLS, _LEAST_COVERED = 3, 0.5


@dataclass(slots=True, kw_only=True)
class Step:
    """One step on one thread, in nanoseconds."""

    name: str
    thread: int
    start: int
    end: int

    @property
    def length(self) -> int:
        """In nanoseconds."""
        return self.end - self.start


def find_steps(trace: DeviceTrace, pattern: str, path: Path) -> tuple[tuple[Step, ...], str]:
    """The steps that match a regular expression, or that the recording itself shows, and what they are, in words.

    In this order: ``ProfilerStep#``, ranges named step, iteration or similar, outermost ranges of a recurring kind,
    outermost calls that recur, the whole recording.

    :param pattern: of ``--step``; empty for none.
    :raises InputError: nothing matches.
    """
    ranges = _named(trace, trace.ranges)
    if pattern:
        wanted = re.compile(pattern)
        for table in (trace.ranges, trace.host):
            result = _outermost(_named(trace, table, wanted))
            if result:
                return result, f"--step {pattern}"
        names = ", ".join(shown(step.name, 40) for step in ranges[:5]) or "none"
        raise input_error(path, None, f"nothing that --step {shown(pattern)} matches", f"a name such as {names}")
    for description, named in (("ProfilerStep#", _PROFILER_STEP), ("ranges named as steps", _STEP_LIKE)):
        result = _repeated([step for step in ranges if named.search(step.name)])
        if result:
            return result, description
    top = _outermost(ranges)
    kinds = Counter(_kind(step.name) for step in top)
    if len(top) == 1:
        return top, "the one range"
    covered: Counter[str] = Counter()
    for step in top:
        covered[_kind(step.name)] += step.length
    if top and kinds[most := max(kinds, key=lambda kind: covered[kind])] > 1:
        steps = tuple(step for step in top if _kind(step.name) == most)
        return steps, f"ranges named {clipped(steps[0].name, 40)}"
    return _recurring_calls(trace) or _whole(trace)


def _kind(name: str) -> str:
    """A name without its numbers: ``decode #3`` and ``decode #4`` are of one kind."""
    return _DIGITS.sub("#", name)


def _named(trace: DeviceTrace, table: Intervals, wanted: re.Pattern[str] | None = None) -> list[Step]:
    fits = [wanted is None or wanted.search(name) is not None for name in trace.names]
    chosen = np.flatnonzero(np.array(fits, dtype=bool)[table.name]) if len(table) else np.zeros(0, dtype=np.int64)
    return [
        Step(
            name=trace.names[table.name[k]],
            thread=int(table.place[k]),
            start=int(table.start[k]),
            end=int(table.end[k]),
        )
        for k in chosen
    ]


def _outermost(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps that lie within no other of the same thread, without empty ones."""
    reached: dict[int, int] = {}
    kept = []
    for step in sorted(steps, key=lambda each: (each.start, -each.end)):
        if step.length > 0 and step.start >= reached.get(step.thread, step.start):
            kept.append(step)
            reached[step.thread] = step.end
    return tuple(kept)


def _repeated(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The outermost steps; if one encloses others of one kind, such as a loop, the latter."""
    result = _outermost(steps)
    inside = _outermost([step for step in steps if step is not result[0]]) if len(result) == 1 else ()
    recur = len(inside) >= _LEAST_CALLS and len({_kind(step.name) for step in inside}) == 1
    covered = sum(step.length for step in inside)
    return inside if recur and covered >= _LEAST_COVERED * result[0].length else result


def _recurring_calls(trace: DeviceTrace) -> tuple[tuple[Step, ...], str] | None:
    """Outermost calls of the busiest thread, if one recurs and covers most of the recording."""
    host = trace.host
    code = np.isin(host.kind, (Host.OPERATOR, Host.FRAME))
    thread = _busiest_thread(trace)
    chosen = np.flatnonzero(code & (host.place == thread))
    if not len(chosen):
        return None
    start, end = host.start[chosen], host.end[chosen]
    reached = np.maximum.accumulate(np.concatenate([[np.iinfo(np.int64).min], end[:-1]]))
    top = np.flatnonzero(start >= reached)  # no earlier call encloses them
    kinds, kind, counts = np.unique(host.name[chosen[top]], return_inverse=True, return_counts=True)
    lengths = np.bincount(kind, end[top] - start[top])
    best = int(np.argmax(lengths))
    if counts[best] < _LEAST_CALLS or lengths[best] < _LEAST_COVERED * int(end.max() - start.min()):
        return None
    name = trace.names[int(kinds[best])]
    steps = tuple(
        Step(name=f"{clipped(name, 60)} #{k}", thread=thread, start=int(start[row]), end=int(end[row]))
        for k, row in enumerate(top[kind == best].tolist())
    )
    return steps, f"calls of {clipped(name, 60)}"


def _busiest_thread(trace: DeviceTrace) -> int:
    """The thread with the most launches, or the most intervals if there are no launches."""
    host = trace.host
    if not len(host):
        return 0
    launches = host.place[(host.kind == Host.LAUNCH) | (host.kind == Host.GRAPH_LAUNCH)]
    return int(np.argmax(np.bincount(launches if len(launches) else host.place)))


def _whole(trace: DeviceTrace) -> tuple[tuple[Step, ...], str]:
    thread = _busiest_thread(trace)
    host = trace.host
    mine = host.place == thread
    tables = [table for table in (host, trace.device, trace.ranges) if len(table)]
    start, end = min(int(table.start[0]) for table in tables), max(int(table.end.max()) for table in tables)
    if (working := mine & np.isin(host.kind, CALLS)).any():
        start, end = int(host.start[working].min()), int(host.end[working].max())
    elif mine.any():
        start, end = int(host.start[mine].min()), int(host.end[mine].max())
    name = "the whole recording"
    return (Step(name=name, thread=thread, start=start, end=max(end, start + 1)),), name
