"""Lines of the user's code in slow units of work against typical ones, from sampled stacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from latfix.arrays import Ints
from latfix.profilers.code_lines.stack_samples import SERIES
from latfix.profilers.evidence.units import Evidence, Unit
from latfix.profilers.probes.gil_probe import PERIOD_S, WAIT_SERIES
from latfix.results.diagnosis import CodeLine

#: Units that run the user's Python, by the role of the thread that they are on.
_UNITS = {"prepare": ("prepare",), "worker": ("collate", "compute", "finish")}
#: Slow: the slowest twentieth of a unit's kind; typical: its quicker half.
_SLOW, _TYPICAL = 0.95, 0.5
#: Fewer looks into slow units, or less time, say nothing.
_FEWEST, _LEAST_MS = 3, 0.05
_LINES = 12
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<")


@dataclass(frozen=True, slots=True)
class _Looks:
    """Looks at one kind of unit, each with the row of the unit that it fell into and the time that it stands for."""

    row: Ints
    stack: Ints
    spent_ns: Ints


def slow_lines(evidence: Evidence, stacks: Sequence[Sequence[str]], workload_folder: str) -> tuple[CodeLine, ...]:
    """The lines that slow units spend longer on than typical ones, the largest difference first.

    :param stacks: of ``run.json``, the innermost frame first.
    :param workload_folder: whose files are the user's own.
    """
    if not stacks:
        return ()
    own = [_own_line(stack, workload_folder) for stack in stacks]
    found = [line for role, units in _UNITS.items() for name in units for line in _of_unit(evidence, role, name, own)]
    found.sort(key=lambda line: line.typical_ms - line.slow_ms)
    return tuple(found[:_LINES])


def _of_unit(
    evidence: Evidence, role: str, name: str, own: Sequence[tuple[str, int, str, str]]
) -> Iterator[CodeLine]:
    unit = evidence.units[name]
    looks = _looks(evidence, role, unit)
    long = unit.wall[unit.wall > 0]
    if not len(looks.row) or not len(long):
        return
    slow = unit.wall >= np.quantile(long, _SLOW)
    typical = (unit.wall > 0) & (unit.wall <= np.quantile(long, _TYPICAL))
    lines: dict[tuple[str, int, str, str], list[int]] = {}
    for k, stack in enumerate(looks.stack.tolist()):
        if 0 <= stack < len(own):
            lines.setdefault(own[stack], []).append(k)
    for (file, line, function, inside), places in lines.items():
        rows, spent = looks.row[places], looks.spent_ns[places]
        of_slow, of_typical = slow[rows], typical[rows]
        slow_ms = float(spent[of_slow].sum()) / max(int(slow.sum()), 1) / 1e6
        typical_ms = float(spent[of_typical].sum()) / max(int(typical.sum()), 1) / 1e6
        if np.count_nonzero(of_slow) >= _FEWEST and slow_ms - typical_ms >= _LEAST_MS:
            yield CodeLine(
                unit=name,
                file=file,
                line=line,
                function=function,
                inside=inside,
                slow_ms=slow_ms,
                typical_ms=typical_ms,
                looks=int(np.count_nonzero(of_slow)),
            )


def _looks(evidence: Evidence, role: str, unit: Unit) -> _Looks:
    """Each stands for the time since the look before, as far as that lies in its unit."""
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
    return _Looks(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def _own_line(stack: Sequence[str], workload_folder: str) -> tuple[str, int, str, str]:
    """File, line and function of the innermost frame of the user's own, and what it was in, if not itself."""
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
