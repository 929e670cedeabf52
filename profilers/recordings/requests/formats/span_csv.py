"""Spans in CSV, one per row, as in data sets of traces (Nezha, FSE 2023): trace, span, parent, pod, operation, times.

Columns have several known names. Times are dates, or numbers with the unit in the column's name or guessed from their
size since 1970. A duration without a unit has the unit of the begin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from latfix.arrays import Ints
from latfix.errors import input_error
from latfix.profilers.recordings.reader import damaged, opened
from latfix.profilers.recordings.requests.spans.span_rows import SpanRows
from latfix.profilers.recordings.requests.spans.span_table import SpanTable
from latfix.profilers.recordings.requests.text_source import (
    LATEST_NS,
    UNITS_NS,
    entry_of,
    epoch_unit,
    instant_ns,
    unit_of,
)

NAME = "spans in CSV"
_EXPECTED = "a table of spans with a trace, a span, a parent, a service, a begin and an end"
_NAMES: dict[str, tuple[str, ...]] = {
    "trace": ("traceid",),
    "span": ("spanid",),
    "parent": ("parentid", "parentspanid"),
    "service": ("servicename", "service", "podname", "pod", "cmdbid"),
    "operation": ("operationname", "operation", "name", "spanname", "method"),
    "start": ("starttimeunixnano", "startns", "starttime", "start", "timestamp", "starttimems", "startus"),
    "end": ("endtimeunixnano", "endns", "endtime", "end", "endus"),
    "duration": ("durationns", "durationus", "durationms", "duration"),
}
#: The suffix that a replica set and a pod add to the name of their deployment.
_POD = re.compile(r"-[a-z0-9]{5,10}-[a-z0-9]{5}$|-[0-9]{1,3}$")
_UNIT_NAMES = {1: "ns", 1_000: "us", 1_000_000: "ms", 1_000_000_000: "s"}
_ROOTS = ("", "root", "0", "none", "null", "nan", "-1", "0000000000000000")


def knows(head: bytes) -> bool:
    """True if the header has the columns of spans."""
    columns = _columns(head.partition(b"\n")[0].decode("utf-8", "replace"))
    return {"trace", "span", "parent", "service", "start"} <= set(columns) and bool(
        {"end", "duration"} & set(columns)
    )


def read(path: Path) -> SpanTable:
    """All spans of a file.

    :raises InputError: it is damaged, cut off, or without spans.
    """
    import pandas as pd

    try:
        with opened(path, _EXPECTED) as file:
            frame = pd.read_csv(file, dtype=str, keep_default_na=False, skipinitialspace=True)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        damaged(path, _EXPECTED, error)
    if not isinstance(frame.index, pd.RangeIndex):  # the header lacks a name, and pandas takes the first for none
        raise input_error(path, 2, "more cells than the header has names", _EXPECTED)
    frame.columns = [_plain(name) for name in frame.columns]
    columns = _columns(",".join(frame.columns))
    if not {"trace", "span", "parent", "service", "start"} <= set(columns):
        raise input_error(path, 1, "a header with unbalanced quotes", _EXPECTED)
    if not len(frame):
        raise input_error(path, 1, "a header without spans", _EXPECTED)
    start, unit = _times(path, frame[columns["start"]], columns["start"])
    if "end" in columns:
        end, _ = _times(path, frame[columns["end"]], columns["end"])
    else:
        length, unit = _times(path, frame[columns["duration"]], columns["duration"], unit)
        end = start + length
    rows, pods = SpanRows(), columns["service"].lower().startswith("pod")
    operation = frame[columns["operation"]].tolist() if "operation" in columns else [""] * len(frame)
    names = (frame[columns[name]].tolist() for name in ("trace", "span", "parent", "service"))
    cells = zip(*names, operation, start.tolist(), end.tolist(), strict=True)
    for line, (trace, span, parent, service, name, begin, over) in enumerate(cells, 2):
        with entry_of(path, "a span", _EXPECTED, line):
            rows.add(
                trace=trace,
                span=span,
                parent="" if parent.lower() in _ROOTS else parent,
                service=_POD.sub("", service) if pods else service,
                operation=name,
                start_ns=begin,
                end_ns=over,
            )
    lengths = {"durations are in": _UNIT_NAMES[unit]} if "end" not in columns else {}
    return rows.table(format=NAME, **lengths)


def _columns(header: str) -> dict[str, str]:
    """The columns' names in the file, by meaning."""
    there: Mapping[str, str] = {re.sub(r"[^a-z]", "", name.lower()): _plain(name) for name in header.split(",")}
    result = {}
    for meaning, names in _NAMES.items():
        known = next((there[name] for name in names if name in there), None)
        if known is not None:
            result[meaning] = known
    return result


def _plain(name: str) -> str:
    return name.strip('\ufeff\r\n "')


def _times(path: Path, column: Any, name: str, unit: int | None = None) -> tuple[Ints, int]:
    """Nanoseconds, and the unit read: that of the column's name, else ``unit``, else guessed from the size."""
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce")
    if numbers.isna().mean() > 0.5:  # dates
        result = []
        for line, text in enumerate(column, 2):
            with entry_of(path, f"{text!r} in {name!r}", "a number, or a date in ISO 8601", line):
                result.append(instant_ns(text))
        return np.array(result, np.int64), 1
    unit = UNITS_NS["ns"] if name.lower().endswith("nano") else unit_of(name) or unit or epoch_unit(numbers.median())
    bad = np.flatnonzero(~(np.abs(numbers.to_numpy(np.float64)) <= LATEST_NS // unit))
    if len(bad):
        where = f"{column.iloc[int(bad[0])]!r} in {name!r}"
        raise input_error(path, int(bad[0]) + 2, where, "a number", "the file may be cut off; record it again")
    if numbers.dtype.kind == "i":
        return numbers.to_numpy(np.int64) * unit, unit
    return np.rint(numbers.to_numpy(np.float64) * unit).astype(np.int64), unit
