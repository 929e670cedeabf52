"""Spans with columns: CSV or JSON, one span per row or object: trace, span, parent, service, operation, times.

Data sets of traces (Nezha, FSE 2023), Zipkin's JSON (openzipkin/zipkin-api), Datadog's (search of spans), what
OpenTelemetry's exporter to the console prints, exports of Honeycomb and of tables of spans. Columns have several
known names; in objects, the last part of a dotted name counts. Times are dates, or numbers with the unit in the
column's name or guessed from their size since 1970. A duration without a unit has the unit of the begin. A server's
span may share the id of its client's (Zipkin).
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from latfix.arrays import Ints
from latfix.errors import input_error
from latfix.formatting import shown
from latfix.profilers.recordings.reader import damaged, opened, recorded_at
from latfix.profilers.recordings.requests.spans.span_table import SpanRows, SpanTable
from latfix.profilers.recordings.requests.text_source import (
    LATEST_NS,
    NOTHING,
    UNITS_NS,
    BadLines,
    begins_with_object,
    entry_of,
    epoch_units,
    flat,
    instant_ns,
    json_objects,
    json_values,
    unit_of,
)

NAME = "spans in CSV or JSON (Zipkin, Datadog)"
_EXPECTED = "a table of spans with a trace, a span, a parent, a service, a begin and an end"
_NAMES: dict[str, tuple[str, ...]] = {
    "trace": ("traceid",),
    "span": ("spanid", "id"),
    "parent": ("parentid", "parentspanid"),
    "service": ("localendpointservicename", "resourceattributesservicename", "servicename", "service", "podname",
                "pod", "cmdbid"),
    "operation": ("operationname", "operation", "resourcename", "name", "spanname", "method"),
    "start": ("starttimeunixnano", "startns", "starttime", "starttimestamp", "start", "timestamp", "starttimems",
              "startus"),
    "end": ("endtimeunixnano", "endns", "endtime", "endtimestamp", "end", "endus"),
    "duration": ("durationns", "durationus", "durationms", "duration"),
    "kind": ("spankind", "kind"),
    "failed": ("error", "statusstatuscode"),
}  # fmt: skip
_NEEDED = {"trace", "span", "service", "start"}
#: Before the first span in a list, a list of lists, or an answer of Datadog's search.
_BEGIN = re.compile(r'\s*(?:\[\s*|\{\s*"data"\s*:\s*\[\s*)*(?=\{)')
_PARENT = re.compile(rb'"(?:[^"]*[._])?parent_?(?:span_?)?id"', re.I)
#: The suffix that a replica set and a pod add to the name of their deployment.
_POD = re.compile(r"-[a-z0-9]{5,10}-[a-z0-9]{5}$|-[0-9]{1,3}$")
_UNIT_NAMES = {1: "ns", 1_000: "us", 1_000_000: "ms", 1_000_000_000: "s"}
_CALLS = ("client", "producer")
_NOT_FAILED = (*NOTHING, "unset", "ok")
#: Added to the id of a server's span that shares its client's.
_SERVER = "/server"
_ROOTS = ("", "root", "0", "none", "null", "nan", "-1", "0000000000000000")


def knows(head: bytes) -> bool:
    """True if the header, or the first object, has the columns of spans. Only spans have parents."""
    if _is_json(head):
        first = _first_object(head)
        columns = set(_columns(flat(first))) if first and _PARENT.search(head) else set()
    else:
        columns = set(_columns(head.partition(b"\n")[0].decode("utf-8", "replace").split(",")))
        columns = columns if "parent" in columns else set()
    return columns >= _NEEDED and bool({"end", "duration"} & columns)


def _is_json(head: bytes) -> bool:
    return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")


def _first_object(head: bytes) -> dict[str, Any] | None:
    text = head.decode("utf-8", "replace").lstrip("\ufeff")
    begin = _BEGIN.match(text)
    with contextlib.suppress(ValueError, RecursionError):
        value = json.JSONDecoder().raw_decode(text, begin.end() if begin else 0)[0]
        return value if isinstance(value, dict) else None
    return None


def read(path: Path) -> SpanTable:
    """All spans of a file.

    :raises InputError: it is damaged, cut off, or without spans.
    """
    bad = BadLines(path, _EXPECTED)
    head = recorded_at(path).head
    is_json = _is_json(head)
    frame = _objects(path, head) if is_json else _rows(path)
    columns = _columns(frame.columns)
    if is_json:  # spans that did not end have no duration
        known = (frame[columns["start"]] != "") & (frame[columns["end" if "end" in columns else "duration"]] != "")
        if not known.all():
            bad.add(int(np.flatnonzero(~known)[0]) + 1, "a span without its times", int((~known).sum()))
            bad.check(int(known.sum()))
        frame = frame[known]
    start, unit = _times(path, frame[columns["start"]], columns["start"])
    if "end" in columns:
        end, _ = _times(path, frame[columns["end"]], columns["end"])
    else:
        length, unit = _times(path, frame[columns["duration"]], columns["duration"], unit)
        end = start + length
    rows, pods = SpanRows(), columns["service"].lower().startswith("pod")
    names = ("trace", "span", "parent", "service", "operation", "kind", "failed")
    cells = {name: frame[columns[name]].tolist() if name in columns else [""] * len(frame) for name in names}
    _part_shared(cells)
    spans = zip(*cells.values(), start.tolist(), end.tolist(), strict=True)
    for line, (trace, span, parent, service, operation, kind, error, begin, over) in enumerate(spans, 2):
        with entry_of(path, "a span", _EXPECTED, None if is_json else line):
            rows.add(
                trace=trace,
                span=span,
                parent="" if parent.lower() in _ROOTS else parent,
                service=_POD.sub("", service) if pods else service,
                operation=operation,
                start_ns=begin,
                end_ns=over,
                calls=kind.lower().endswith(_CALLS),
                failed=error.strip().lower() not in _NOT_FAILED,
            )
    lengths = {"durations are in": _UNIT_NAMES[unit]} if "end" not in columns else {}
    table = rows.table(format=NAME, **lengths)
    return replace(table, notes=(*table.notes, *bad.notes()), has_status="failed" in columns)


def _part_shared(cells: Mapping[str, list[str]]) -> None:
    """Give servers' spans that share the id of their client's an id of their own, and the client's as parent."""
    trace, span, parent, service = (cells[name] for name in ("trace", "span", "parent", "service"))
    kind = [text.lower() for text in cells["kind"]]
    clients = {(trace[k], span[k]) for k, each in enumerate(kind) if each.endswith("client")}
    servers = {(trace[k], span[k]): k for k, each in enumerate(kind) if each.endswith("server")}
    shared = {key: service[k] for key, k in servers.items() if key in clients}
    for k in range(len(span)):
        if shared.get((trace[k], parent[k])) == service[k]:
            parent[k] += _SERVER
    for key in shared:
        parent[servers[key]] = span[servers[key]]
        span[servers[key]] += _SERVER


def _rows(path: Path) -> Any:
    """The rows of CSV, as texts."""
    import pandas as pd

    try:
        with opened(path, _EXPECTED) as file:
            frame = pd.read_csv(file, dtype=str, keep_default_na=False, skipinitialspace=True)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        damaged(path, _EXPECTED, error)
    if not isinstance(frame.index, pd.RangeIndex):  # the header lacks a name, and pandas takes the first for none
        raise input_error(path, 2, "more cells than the header has names", _EXPECTED)
    frame.columns = [_plain(name) for name in frame.columns]
    if not set(_columns(frame.columns)) >= _NEEDED | {"parent"}:
        raise input_error(path, 1, "a header with unbalanced quotes", _EXPECTED)
    if not len(frame):
        raise input_error(path, 1, "a header without spans", _EXPECTED)
    return frame


def _objects(path: Path, head: bytes) -> Any:
    """The spans of JSON, as texts."""
    import pandas as pd

    if begins_with_object(head):
        entries: Any = [value for _, value in json_objects(path, _EXPECTED)]
    else:
        entries = json_values(path, _EXPECTED)
    if len(entries) == 1:
        entries = entries[0].get("data", entries) if isinstance(entries[0], dict) else entries[0]
    with entry_of(path, "a span", _EXPECTED):
        spans = [flat(span) for each in entries for span in (each if isinstance(each, list) else [each])]
    wanted = _columns(dict.fromkeys(name for span in spans for name in span)).values()
    texts = {name: ["" if (value := span.get(name)) is None else str(value) for span in spans] for name in wanted}
    return pd.DataFrame(texts, dtype=object)  # Arrow's texts hold no half of a surrogate pair


def _columns(names: Iterable[str]) -> dict[str, str]:
    """The columns' names in the file, by meaning. A whole name counts before the last part of a dotted one."""
    there: dict[str, str] = {}
    plain = [_plain(name) for name in names]
    for name in (*plain, *plain):
        whole = re.sub(r"[^a-z]", "", name.lower())
        there.setdefault(re.sub(r"[^a-z]", "", name.rpartition(".")[2].lower()) if whole in there else whole, name)
    result = {}
    for meaning, known in _NAMES.items():
        column = next((there[name] for name in known if name in there), None)
        if column is not None:
            result[meaning] = column
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
            with entry_of(path, f"{shown(text, 40)} in {name!r}", "a number, or a date in ISO 8601", line):
                result.append(instant_ns(text))
        return np.array(result, np.int64), 1
    named = UNITS_NS["ns"] if name.lower().endswith("nano") else unit_of(name)
    unit = named or unit or int(epoch_units(numbers.median()))
    bad = np.flatnonzero(~(np.abs(numbers.to_numpy(np.float64)) <= LATEST_NS // unit))
    if len(bad):
        where = f"{shown(column.iloc[int(bad[0])], 40)} in {name!r}"
        raise input_error(path, int(bad[0]) + 2, where, "a number", "the file may be cut off; record it again")
    if numbers.dtype.kind == "i":
        return numbers.to_numpy(np.int64) * unit, unit
    return np.rint(numbers.to_numpy(np.float64) * unit).astype(np.int64), unit
