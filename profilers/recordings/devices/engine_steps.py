"""Steps of an engine with the activity of its threads and device, compared with a reference (LatencyPrism's tables).

A table has one row per step, function and metric: on-CPU, run queue, device compute, copies, summed over all threads.
Such parts overlap, so none is a share of the step. Together they are attributed at most the time that the step lost
against the reference, the most specific part first: a device that is four times slower but hidden behind the host
gets nothing.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from latfix.cause_catalogue import UNEXPLAINED
from latfix.errors import input_error
from latfix.formatting import milliseconds
from latfix.profilers.recordings.devices.step_diagnosis import diagnose_steps
from latfix.profilers.recordings.devices.step_ledger import StepLedger
from latfix.profilers.recordings.reader import Reader, ReadOptions, Recorded, damaged, opened
from latfix.results.diagnosis import Diagnosis, Source

_COLUMNS = ("cycle", "pid", "function_name", "metric_name", "func_type", "mu_pct", "duration")
_ANCHOR, _BEGIN = "anchor_dur_us", "cycle_start_ts"
_WANTED = "a table of engine steps, or a folder with two: the reference and the one in question"
_REFERENCE = re.compile(r"(?<![a-z])(?:normal|baseline|reference|before)", re.IGNORECASE)
#: Parts and their causes, the most specific first. On-CPU time includes spinning waits and system calls, so it gets
#: only what the other parts leave.
_PARTS: tuple[tuple[str, str, str], ...] = (
    ("gpu_memcpy_h2d", "transfer.copy", "copies to the device"),
    ("gpu_memcpy_d2h", "transfer.copy", "copies from the device"),
    ("gpu_comm", "gpu.collective", "collectives"),
    ("gpu_compute", "gpu.slowdown", "device compute"),
    ("gpu_memcpy_d2d", "gpu.slowdown", "copies on the device"),
    ("cpu_sync", "transfer.sync", "waits for the device"),
    ("runq", "host.contention", "run queue"),
    ("oncpu", "host.slowdown", "on-CPU"),
    ("disk_read_and_write", "external.dependency", "reads and writes"),
)
#: The device's clock, and the share of the reference's below which it explains device compute.
_CLOCK, _LOWER = "gpu_sm_frequency", 0.9
#: Minimum growth of a part, as a share of a usual step.
_NOTED = 0.001
_MALFORMED = (ValueError, KeyError, TypeError, OverflowError)


@dataclass(slots=True)
class _Step:
    """One step of one process; parts in nanoseconds, summed over all threads."""

    process: str
    cycle: str
    start: int
    length: int
    parts: Counter[str] = field(default_factory=Counter)
    seen: set[tuple[str, str]] = field(default_factory=set)


@dataclass(slots=True)
class _Table:
    path: Path
    steps: list[_Step]
    clocks: list[float]

    def mean(self, part: str, longest: float = math.inf) -> float:
        """Mean of a part over the steps up to a length, without the first, which the recording cuts off."""
        steps = [step for step in self.steps[1:] if step.length <= longest] or self.steps
        return float(np.mean([step.parts[part] for step in steps]))


def _is_table(file: Recorded) -> bool:
    header = file.head.split(b"\n", 1)[0].decode("utf-8", "replace").strip().split(",")
    return {*_COLUMNS, _ANCHOR, _BEGIN} <= set(header)


def _read(recorded: Recorded, options: ReadOptions) -> Diagnosis:
    tables = [_table(file.path) for file in recorded.files if _is_table(file)]
    if len(tables) > 2:
        raise input_error(
            recorded.path, None, f"{len(tables)} tables of engine steps", "one, or two", "name a folder"
        )
    tables.sort(key=lambda table: (not _REFERENCE.search(table.path.name), table.steps[0].start))
    return _against(tables[0], tables[-1], recorded, options)


READER = Reader(
    kind="engine_steps",
    reads="tables of engine steps (CSV of LatencyPrism), alone or with a reference",
    knows=lambda recorded: any(map(_is_table, recorded.files)),
    read=_read,
)


def _table(path: Path) -> _Table:
    steps: dict[tuple[str, str], _Step] = {}
    clocks: list[float] = []
    rows = None
    try:
        with opened(path, _WANTED) as file, io.TextIOWrapper(file, encoding="utf-8", newline="") as text:
            rows = csv.DictReader(text)
            for row in rows:
                _add(steps, clocks, row)
    except (csv.Error, *_MALFORMED) as error:
        raise input_error(
            path, rows.line_num if rows else 1, f"a row that cannot be read ({error})", _WANTED
        ) from error
    if not steps:
        damaged(path, _WANTED, "a table without a step")
    return _Table(path=path, steps=sorted(steps.values(), key=lambda step: step.start), clocks=clocks)


def _add(steps: dict[tuple[str, str], _Step], clocks: list[float], row: Mapping[str, str]) -> None:
    if None in row.values():
        raise ValueError("too few columns")
    key = row["pid"], row["cycle"]
    if key not in steps:
        steps[key] = _Step(
            process=row["pid"],
            cycle=row["cycle"],
            start=_nanoseconds(row[_BEGIN], 2**62),
            length=_nanoseconds(row[_ANCHOR]),
        )
    step, function = steps[key], (row["func_type"], row["function_name"])
    if function not in step.seen:  # a row for each metric repeats the duration
        step.seen.add(function)
        step.parts[row["func_type"]] += _nanoseconds(row["duration"])
    if row["metric_name"] == _CLOCK and row["mu_pct"]:
        clocks.append(float(row["mu_pct"]))


def _nanoseconds(text: str, most: int = 2**53) -> int:
    value = float(text)
    if not 0 <= value * 1000 <= most:
        raise ValueError(f"{text!r} microseconds")
    return round(value * 1000)


def _against(reference: _Table, table: _Table, recorded: Recorded, options: ReadOptions) -> Diagnosis:
    alone = reference is table
    steps = table.steps if alone else [*reference.steps, *table.steps]
    lengths = np.array([step.length for step in steps], dtype=np.int64)
    if alone:
        quiet, slow = lengths <= np.median(lengths), None
    else:
        quiet = np.arange(len(steps)) < len(reference.steps)
        slow = ~quiet & (lengths > lengths[quiet].max())
        if not slow.any():  # no step is slower than the reference: diagnose the slowest
            slow = ~quiet & (lengths >= lengths[~quiet].max())
    longest = float(np.median(lengths)) if alone else math.inf
    usual = {part: reference.mean(part, longest) for part, _, _ in _PARTS}
    usual_length = float(lengths[quiet].mean())
    causes = dict(_causes_of(reference, table))
    single = len(steps) == 1
    figures = [_figures(step, usual, step.length if single else usual_length, causes) for step in steps]
    result = diagnose_steps(
        figures,
        workload=recorded.path.name,
        device="an engine's process and device",
        source=Source(
            kind=READER.kind,
            path=str(recorded.path),
            unit="step",
            read={"steps": len(table.steps), **({} if alone else {"steps of the reference": len(reference.steps)})},
        ),
        percentile=options.percentile,
        seed=options.seed,
        notes=list(_notes(reference, table)),
        evidence=_evidence(reference, table, causes),
        quiet=None if single else quiet,
        slow=slow,
    )
    # Parts overlap, so there is no ledger of a whole step, only of its loss, which depends on the parts' order.
    causes_found = tuple(
        cause if cause.cause == UNEXPLAINED else replace(cause, evidence_class="modelled") for cause in result.causes
    )
    return replace(result, causes=causes_found, typical=None, slowest=(), stages_ms={})


def _figures(step: _Step, usual: Mapping[str, float], usual_length: float, causes: Mapping[str, str]) -> StepLedger:
    remaining = max(step.length - round(usual_length), 0)
    attributed: Counter[str] = Counter()
    for part, _, _ in _PARTS:
        growth = min(max(step.parts[part] - round(usual[part]), 0), remaining)
        growth = growth if growth >= _NOTED * usual_length else 0
        attributed[causes[part]] += growth
        remaining -= growth
    attributed[UNEXPLAINED] = step.length - sum(attributed.values())
    return StepLedger(
        name=f"step {step.cycle} of process {step.process}",
        thread=0,
        start=step.start,
        end=step.start + step.length,
        causes=attributed,
        growth=attributed,
    )


def _causes_of(reference: _Table, table: _Table) -> Iterator[tuple[str, str]]:
    """The cause of each part: for device compute its clock, if that was lower."""
    lower = bool(reference.clocks and table.clocks) and (
        float(np.median(table.clocks)) < _LOWER * float(np.median(reference.clocks))
    )
    for part, cause, _ in _PARTS:
        yield part, "gpu.clocks" if lower and cause == "gpu.slowdown" else cause


def _evidence(reference: _Table, table: _Table, causes: Mapping[str, str]) -> dict[str, str]:
    result: dict[str, str] = {}
    if reference is table:
        return result
    for part, _, words in _PARTS:
        before, after = reference.mean(part) / 1e6, table.mean(part) / 1e6
        if max(before, after) > 0:
            change = f"{words} {milliseconds(before)} -> {milliseconds(after)} a step, over all threads"
            cause = causes[part]
            result[cause] = f"{result[cause]}; {change}" if cause in result else change
    return result


def _notes(reference: _Table, table: _Table) -> Iterator[str]:
    yield (
        "The parts of these steps are sums over threads, which overlap: a cause is attributed at most the time that "
        "a step lost against the reference; further growth of a part was hidden behind others."
    )
    if reference is not table:
        medians = (np.median([step.length for step in each.steps]) for each in (reference, table))
        before, after = (milliseconds(float(median) / 1e6) for median in medians)
        yield f"Reference: {reference.path.name}; its median step takes {before}, that of {table.path.name} {after}."
