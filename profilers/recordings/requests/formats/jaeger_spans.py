"""Jaeger's JSON from its query service or the "download" of its UI: ``{"data": [{"spans": …}]}``.

Fields: model/json of jaegertracing/jaeger. ``startTime`` and ``duration`` in microseconds; the service in
``processes`` by ``processID``, or in the span's own ``process``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latfix.errors import input_error
from latfix.profilers.recordings.requests.spans.span_table import SpanRows, SpanTable
from latfix.profilers.recordings.requests.text_source import entry_of, json_document

NAME = "Jaeger JSON"
_EXPECTED = "Jaeger's JSON with data[].spans[]"
_US = 1_000
#: The query service's answer without a trace.
_NOTHING_FOUND = re.compile(rb'\{\s*"data"\s*:\s*(\[\s*\]|null)')


def knows(head: bytes) -> bool:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    known = b'"traceID"' in text and (b'"spans"' in text or b'"spanID"' in text)
    return text[:1] in (b"{", b"[") and (known or _NOTHING_FOUND.match(text) is not None)


def read(path: Path) -> SpanTable:
    """All spans of a file.

    :raises InputError: it is damaged, cut off, or without spans.
    """
    document = json_document(path, _EXPECTED)
    traces = document.get("data", [document]) if isinstance(document, dict) else document
    rows = SpanRows()
    with entry_of(path, "a span", _EXPECTED):
        for trace in traces or ():
            for span in trace.get("spans") or ():
                _add(rows, span, trace.get("processes") or {})
    if not len(rows):
        raise input_error(path, None, "no spans", _EXPECTED)
    return rows.table(format=NAME)


def _add(rows: SpanRows, span: Mapping[str, Any], processes: Mapping[str, Any]) -> None:
    tags = {str(tag.get("key")): tag.get("value") for tag in span.get("tags") or ()}
    process = span.get("process") or processes.get(str(span.get("processID"))) or {}
    start = round(float(span["startTime"])) * _US
    rows.add(
        trace=str(span.get("traceID", "")),
        span=str(span["spanID"]),
        parent=_parent(span),
        service=str(process.get("serviceName", "")),
        operation=str(span.get("operationName", "")),
        start_ns=start,
        end_ns=start + round(float(span["duration"])) * _US,
        calls=tags.get("span.kind") in ("client", "producer"),
        attributes=tags,
        failed=tags.get("error") in (True, "true") or tags.get("otel.status_code") == "ERROR",
    )


def _parent(span: Mapping[str, Any]) -> str:
    references = span.get("references") or ()
    for kind in ("CHILD_OF", "FOLLOWS_FROM"):
        for reference in references:
            if reference.get("refType") == kind:
                return str(reference.get("spanID", ""))
    return str(span.get("parentSpanID") or "")
