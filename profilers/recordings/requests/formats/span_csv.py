"""Spans a row of CSV, as data sets of traces have them (Nezha, FSE 2023): trace, span, parent, pod, operation, times.

Columns go by several names; times are nanoseconds, or what their size since 1970 says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from latfix.errors import input_error
from latfix.profilers.recordings.reader import CUT_OFF, damaged
from latfix.profilers.recordings.requests.span_rows import SpanRows
from latfix.profilers.recordings.requests.span_table import SpanTable
from latfix.profilers.recordings.requests.text_source import UNITS_NS, epoch_unit, open_text, unit_of

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
#: What a replica set and a pod add to the name of their deployment.
_POD = re.compile(r"-[a-z0-9]{5,10}-[a-z0-9]{5}$|-[0-9]{1,3}$")
_ROOTS = ("", "root", "0", "none", "null", "nan", "-1", "0000000000000000")


def knows(head: bytes) -> bool:
    """Whether the header is one."""
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
        with open_text(path) as file:
            frame = pd.read_csv(file, dtype=str, keep_default_na=False)
    except CUT_OFF as error:
        damaged(path, _EXPECTED, f"compressed data that ends too soon ({error})")
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        damaged(path, _EXPECTED, error)
    columns = _columns(",".join(frame.columns))
    if not len(frame):
        raise input_error(path, 1, "a header without spans", _EXPECTED)
    start = _times(path, frame[columns["start"]], columns["start"], whole=True)
    if "end" in columns:
        end = _times(path, frame[columns["end"]], columns["end"], whole=True)
    else:
        end = start + _times(path, frame[columns["duration"]], columns["duration"], whole=False)
    rows, pods = SpanRows(), columns["service"].lower().startswith("pod")
    operation = frame[columns["operation"]] if "operation" in columns else [""] * len(frame)
    names = (frame[columns[name]] for name in ("trace", "span", "parent", "service"))
    for trace, span, parent, service, name, begin, over in zip(
        *names, operation, start.tolist(), end.tolist(), strict=True
    ):
        rows.add(
            trace=trace,
            span=span,
            parent="" if parent.lower() in _ROOTS else parent,
            service=_POD.sub("", service) if pods else service,
            operation=name,
            start_ns=begin,
            end_ns=over,
        )
    return rows.table(format=NAME)


def _columns(header: str) -> dict[str, str]:
    """By meaning, the column's name in the file."""
    there: Mapping[str, str] = {
        re.sub(r"[^a-z]", "", name.lower()): name.strip('\ufeff\r\n "') for name in header.split(",")
    }
    found = {}
    for meaning, names in _NAMES.items():
        known = next((there[name] for name in names if name in there), None)
        if known is not None:
            found[meaning] = known
    return found


def _times(path: Path, column: object, name: str, *, whole: bool) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Nanoseconds: moments where ``whole``, lengths otherwise."""
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce")  # type: ignore[call-overload]
    bad = np.flatnonzero(pd.isna(numbers))
    if len(bad):
        found = f"{column[int(bad[0])]!r} in {name!r}"  # type: ignore[index]
        raise input_error(path, int(bad[0]) + 2, found, "a number", "the file may be cut off; record it again")
    unit = UNITS_NS["ns"] if name.lower().endswith("nano") else unit_of(name)
    if unit is None:
        unit = epoch_unit(float(numbers.max())) if whole else UNITS_NS["us"]
    if numbers.dtype.kind == "i":
        return np.asarray(numbers.to_numpy(np.int64) * unit)
    return np.asarray(np.rint(numbers.to_numpy(np.float64) * unit), dtype=np.int64)
