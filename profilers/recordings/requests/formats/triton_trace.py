"""Triton's ``trace.json``, and the export of its load generator.

``trace.json`` holds timestamps of inference requests in nanoseconds.
Fields: docs/user_guide/trace.md of triton-inference-server/server. A trace may be written as several objects with one
``id``; files written with ``log-frequency`` end in ``.json.N``. Traces with a ``parent_id`` are the models of an
ensemble.

perf_analyzer's ``--profile-export-file`` holds, for each request, when it was sent and each response (nanoseconds).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from latfix.errors import input_error
from latfix.formatting import shown
from latfix.profilers.recordings.requests.request_table import RequestTable, TableRows, ns_of
from latfix.profilers.recordings.requests.text_source import LATEST_NS, entry_of, json_document
from latfix.stages import Status

NAME = "Triton trace.json"
EXPORT = "perf_analyzer's profile export"
_EXPECTED = "Triton's trace with timestamps (trace-config level=TIMESTAMPS)"


def knows(head: bytes) -> bool:
    text = head.lstrip()
    return text.startswith(b"[") and b'"timestamps"' in text and (b'"ns"' in text or b'"model_name"' in text)


@dataclass(slots=True)
class _Trace:
    model: str = ""
    parent: bool = False
    tensors: float = 0.0
    times: dict[str, int] = field(default_factory=dict)


def read(path: Path) -> RequestTable:
    """The outermost requests, with their wait in the scheduler's queue.

    :raises InputError: it is damaged, or has no request with a begin and an end.
    """
    document = json_document(path, _EXPECTED)
    if not isinstance(document, list):
        raise input_error(path, None, f"a {type(document).__name__}", _EXPECTED)
    traces: dict[Any, _Trace] = {}
    for entry in document:
        if isinstance(entry, dict) and "id" in entry:
            with entry_of(path, f"trace {shown(entry['id'], 20)}", _EXPECTED):
                _merge(traces.setdefault(entry["id"], _Trace()), entry)
    rows, unfinished = TableRows(), 0
    for name, trace in traces.items():
        times = trace.times
        if trace.parent or "REQUEST_START" not in times:
            continue
        if "REQUEST_END" not in times:
            unfinished += 1
            continue
        rows.add(
            arrival_ns=times["REQUEST_START"],
            latency_ns=times["REQUEST_END"] - times["REQUEST_START"],
            status=Status.OK,
            name=str(name),
            route=trace.model,
            parts={"queue": _between(times, "QUEUE_START", "COMPUTE_START")},
            stages={
                name: _between(times, begin, end)
                for name, begin, end in (
                    ("compute input", "COMPUTE_START", "COMPUTE_INPUT_END"),
                    ("compute", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"),
                    ("compute output", "COMPUTE_OUTPUT_START", "COMPUTE_END"),
                )
            },
            features={"elements": trace.tensors or None},
        )
    if not len(rows):
        raise input_error(path, None, "no trace with REQUEST_START and REQUEST_END", _EXPECTED)
    notes = (f"{unfinished} requests have no REQUEST_END and are left out.",) if unfinished else ()
    return rows.table(facts={"format": NAME, "unfinished": unfinished}, notes=notes, has_status=False)


def _merge(trace: _Trace, entry: Mapping[str, Any]) -> None:
    trace.model = str(entry.get("model_name") or trace.model)
    trace.parent |= entry.get("parent_id") is not None
    if entry.get("activity") == "TENSOR_QUEUE_INPUT" and isinstance(tensor := entry.get("tensor"), dict):
        trace.tensors += _elements(str(tensor.get("shape", "")))
    for stamp in entry.get("timestamps") or ():
        if isinstance(stamp, dict) and isinstance(at := stamp.get("ns"), int) and abs(at) <= LATEST_NS:
            trace.times.setdefault(str(stamp.get("name")), at)


def _elements(shape: str) -> float:
    return math.prod(float(size) if size.strip().isdigit() else 0.0 for size in shape.split(","))


def _between(times: Mapping[str, int], begin: str, end: str) -> int | None:
    if begin not in times or end not in times:
        return None
    return ns_of(max(times[end] - times[begin], 0), 1)


def knows_export(head: bytes) -> bool:
    """True if a file begins as perf_analyzer's export."""
    text = head.lstrip()
    return text.startswith(b"{") and b'"experiments"' in text and b'"response_timestamps"' in text


def read_export(path: Path) -> RequestTable:
    """The requests of the experiment that has most of them: several experiments are several loads.

    A request without a response failed.

    :raises InputError: it is damaged, or has no request.
    """
    document, expected = json_document(path, EXPORT), f"{EXPORT} with requests"
    with entry_of(path, "the list of experiments", expected):
        experiments: list[list[Any]] = [each["requests"] for each in document["experiments"]]
        requests = max(experiments, key=len, default=[])
    rows = TableRows()
    for number, request in enumerate(requests):
        with entry_of(path, f"request {number}", expected):
            sent, answers = request["timestamp"], request["response_timestamps"]
            gaps = [ns_of(later - earlier, 1) for earlier, later in pairwise(answers)]
            rows.add(
                arrival_ns=sent,
                latency_ns=ns_of(answers[-1] - sent, 1) if answers else None,
                status=Status.OK if answers else Status.ERROR,
                first_ns=ns_of(answers[0] - sent, 1) if gaps else None,
                gaps_ns=[gap for gap in gaps if gap is not None],
            )
    if not requests:
        raise input_error(path, None, "no requests", expected)
    more = "The file holds several experiments; only the one with most requests is read."
    return rows.table(facts={"format": EXPORT}, notes=(more,) if len(experiments) > 1 else ())
