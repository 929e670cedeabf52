"""Lines of the user's code in slow units of work compared with typical ones, from sampled stacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from latfix.arrays import Ints
from latfix.profilers.code_lines.stack_samples import SERIES
from latfix.profilers.evidence.units import Evidence, Unit
from latfix.profilers.probes.gil_probe import PERIOD_S, WAIT_SERIES
from latfix.results.diagnosis import CodeLine, StackTime

#: Units that run the user's Python, by the role of their thread.
_UNITS = {"prepare": ("prepare",), "worker": ("collate", "compute", "finish")}
#: Slow: the slowest twentieth of a kind of unit; typical: its faster half.
_SLOW, _TYPICAL = 0.95, 0.5
#: Least samples in slow units, and least difference, of a line.
_FEWEST, _LEAST_MS = 3, 0.05
_LINES = 12
#: Share of the sampled time that is at the main line.
_MOSTLY = 0.5
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<")


def stack_times(evidence: Evidence, stacks: Sequence[Sequence[str]]) -> tuple[StackTime, ...]:
    """Time in each sampled stack, of slow and of typical units.

    :param stacks: of ``run.json``, innermost frame first.
    """
    if not stacks:
        return ()
    return tuple(
        time for role, units in _UNITS.items() for name in units for time in _of_unit(evidence, role, name, stacks)
    )


def _of_unit(evidence: Evidence, role: str, name: str, stacks: Sequence[Sequence[str]]) -> Iterator[StackTime]:
    unit = evidence.units[name]
    row, stack, spent_ns = _looks(evidence, role, unit)
    long = unit.wall[unit.wall > 0]
    if not len(row) or not len(long):
        return
    known = (stack >= 0) & (stack < len(stacks))
    slow = unit.wall >= np.quantile(long, _SLOW)
    typical = (unit.wall > 0) & (unit.wall <= np.quantile(long, _TYPICAL))
    means_ms = []
    for units in (slow, typical):
        inside = known & units[row]
        spent = np.bincount(stack[inside], spent_ns[inside], minlength=len(stacks))
        means_ms.append(spent / max(int(units.sum()), 1) / 1e6)
    seen = np.bincount(stack[known & slow[row]], minlength=len(stacks))
    for k in np.unique(stack[known]).tolist():
        yield StackTime(
            unit=name,
            frames=tuple(stacks[k]),
            slow_ms=float(means_ms[0][k]),
            typical_ms=float(means_ms[1][k]),
            looks=int(seen[k]),
        )


def slow_lines(times: Sequence[StackTime], workload_folder: str) -> tuple[CodeLine, ...]:
    """The lines on which slow units spend more time than typical ones, the largest difference first.

    :param workload_folder: the folder with the user's own files.
    """
    lines: dict[tuple[str, tuple[str, int, str, str]], list[StackTime]] = {}
    for time in times:
        lines.setdefault((time.unit, _own_line(time.frames, workload_folder)), []).append(time)
    found = [
        CodeLine(
            unit=unit,
            file=file,
            line=line,
            function=function,
            inside=inside,
            slow_ms=sum(time.slow_ms for time in parts),
            typical_ms=sum(time.typical_ms for time in parts),
            looks=sum(time.looks for time in parts),
        )
        for (unit, (file, line, function, inside)), parts in lines.items()
    ]
    found = [line for line in found if line.looks >= _FEWEST and line.slow_ms - line.typical_ms >= _LEAST_MS]
    found.sort(key=lambda line: line.typical_ms - line.slow_ms)
    return tuple(found[:_LINES])


def main_line(evidence: Evidence, name: str, weight: Ints) -> str:
    """``svc.py:13 (Ranker.prepare)``: the user's line with most of the sampled time of a kind of unit; else empty.

    :param weight: of each unit called ``name``, such as its excess.
    """
    stacks, home = evidence.setup.stacks, evidence.setup.workload_folder
    role = next(role for role, units in _UNITS.items() if name in units)
    row, stack, spent_ns = _looks(evidence, role, evidence.units[name])
    inside = (weight[row] > 0) & (stack >= 0) & (stack < len(stacks))
    spent = np.bincount(stack[inside], spent_ns[inside] * (weight[row[inside]] / 1e9), minlength=len(stacks))
    lines, functions = dict[str, float](), dict[str, str]()
    for k in np.unique(stack[inside]).tolist():
        file, line, function, _ = _own_line(stacks[k], home)
        place = f"{file}:{line}"
        lines[place] = lines.get(place, 0.0) + float(spent[k])
        functions[place] = min(functions.get(place, function), function, key=len)  # not a comprehension on the line
    most = max(lines, key=lambda place: lines[place], default="")
    if np.count_nonzero(inside) < _FEWEST or lines[most] <= _MOSTLY * sum(lines.values()):
        return ""
    return f"{most} ({functions[most]})"


def _looks(evidence: Evidence, role: str, unit: Unit) -> tuple[Ints, Ints, Ints]:
    """Of each stack sample in a kind of unit: the unit's row, the stack, and the time that the sample represents.

    That is the time since the previous one, as far as it is in the unit.
    """
    ticks = evidence.series(WAIT_SERIES)[0]
    found = [(np.zeros(0, np.int64),) * 3]
    for thread in np.unique(unit.thread[unit.thread >= 0]).tolist():
        at, stack = evidence.series(f"{SERIES}{role}.{thread}")
        rows = np.flatnonzero((unit.thread == thread) & (unit.end > unit.start))
        rows = rows[np.argsort(unit.start[rows], kind="stable")]
        if not len(at) or not len(rows):
            continue
        place = np.searchsorted(unit.start[rows], at, side="right") - 1
        row = rows[np.maximum(place, 0)]
        inside = (place >= 0) & (at < unit.end[row])
        due = ticks[np.maximum(np.searchsorted(ticks, at, side="right") - 1, 0)] if len(ticks) else at
        spent = np.minimum(np.maximum(at - due, 0) + int(PERIOD_S * 1e9), at - unit.start[row])
        found.append((row[inside], stack.astype(np.int64)[inside], spent[inside]))
    rows, stacks, times = (np.concatenate(columns) for columns in zip(*found, strict=True))
    return rows, stacks, times


def _own_line(stack: Sequence[str], workload_folder: str) -> tuple[str, int, str, str]:
    """File, line and function of the user's innermost frame, and the frame that it called into, if any."""
    frames = [_frame(text) for text in stack] or [("?", 0, "?")]
    home = workload_folder.rstrip("/") + "/"
    own = next((k for k, (file, _, _) in enumerate(frames) if workload_folder and file.startswith(home)), None)
    if own is None:
        own = next((k for k, (file, _, _) in enumerate(frames) if not _is_library(file)), 0)
    file, line, function = frames[own]
    inside = f"{Path(frames[0][0]).name} {frames[0][2]}" if own else ""
    return file.removeprefix(home) if workload_folder else file, line, function, inside


def _frame(text: str) -> tuple[str, int, str]:
    place, _, function = text.rpartition(" ")
    file, _, line = place.rpartition(":")
    return file, int(line) if line.isdigit() else 0, function


def _is_library(file: str) -> bool:
    return any(part in file if part != "<" else file.startswith("<") for part in _LIBRARIES)
