"""OpenTelemetry spans: OTLP in JSON, one document or one per line, and in protocol buffers.

Fields: opentelemetry/proto/trace/v1/trace.proto. The collector's file exporter writes one
``ExportTraceServiceRequest`` per line; in protocol buffers, each message with its length in four bytes before it.
Tempo uses ``batches`` for ``resourceSpans``, and ids in base 64. vLLM writes one span per request, with its parts as
attributes in seconds (``SpanAttributes`` in vllm/tracing of vllm-project/vllm).
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from latfix.errors import input_error
from latfix.files.protobuf_wire import WireError, fields
from latfix.profilers.recordings.reader import opened
from latfix.profilers.recordings.requests.request_table import RequestTable, TableRows, ns_of
from latfix.profilers.recordings.requests.spans.span_table import ENGINE_LATENCY, SpanRows, SpanTable
from latfix.profilers.recordings.requests.text_source import entry_of, json_objects, number_of

NAME = "OpenTelemetry spans (OTLP)"
_EXPECTED = "spans in OTLP (resourceSpans)"
_S = 1_000_000_000
_TOP = ("resourceSpans", "batches")
#: The objects around them in the answers of Tempo's second and Jaeger's third interface.
_AROUND = ("trace", "result")
_CALLS = (3, 4, "SPAN_KIND_CLIENT", "SPAN_KIND_PRODUCER")
_FAILED = (2, "STATUS_CODE_ERROR")


def knows(head: bytes) -> bool:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return text.startswith(b"{") and (b'"resourceSpans"' in text or (b'"batches"' in text and b'"spanId"' in text))


def read(path: Path) -> SpanTable:
    """All spans of a file.

    :raises InputError: it is damaged, cut off, or without spans.
    """
    rows = SpanRows()
    for number, document in json_objects(path, _EXPECTED):
        with entry_of(path, "a span", _EXPECTED, number):
            _add_document(rows, document)
    if not len(rows):
        raise input_error(path, None, "no spans", _EXPECTED)
    return rows.table(format=NAME)


def _add_document(rows: SpanRows, document: Mapping[str, Any]) -> None:
    document = next((inside for name in _AROUND if isinstance(inside := document.get(name), dict)), document)
    for name in _TOP:
        for batch in document.get(name) or ():
            resource = attributes_of((batch.get("resource") or {}).get("attributes"))
            service = str(resource.get("service.name", ""))
            for scope in batch.get("scopeSpans") or batch.get("instrumentationLibrarySpans") or ():
                for span in scope.get("spans") or ():
                    _add_span(rows, span, service)


def _add_span(rows: SpanRows, span: Mapping[str, Any], service: str) -> None:
    rows.add(
        trace=_hexadecimal(str(span["traceId"])),
        span=str(span["spanId"]),
        parent=str(span.get("parentSpanId") or ""),
        service=service,
        operation=str(span.get("name", "")),
        start_ns=int(span["startTimeUnixNano"]),
        end_ns=int(span["endTimeUnixNano"]),
        calls=span.get("kind") in _CALLS,
        attributes=attributes_of(span.get("attributes")),
        failed=(span.get("status") or {}).get("code") in _FAILED,
    )


def _hexadecimal(trace: str) -> str:
    """A trace's id of 16 bytes in hexadecimal digits, as clients send it."""
    return base64.b64decode(trace).hex() if len(trace) == 24 and trace.endswith("==") else trace


def attributes_of(pairs: Any) -> dict[str, Any]:
    """Attributes by name, with the one value that is set."""
    result: dict[str, Any] = {}
    for pair in pairs or ():
        value = pair.get("value")
        if isinstance(value, dict):
            value = next(iter(value.values()), None)
        result[str(pair.get("key"))] = value
    return result


def knows_protobuf(head: bytes) -> bool:
    """True if a file begins as OTLP in protocol buffers: nested messages down to a trace's id of 16 bytes."""
    return any(
        body[:1] == b"\x0a" and b"\x0a\x10" in body[:4096] and b"service.name" in body[:8192]
        for body in (head, head[4:])
    )


def read_protobuf(path: Path) -> SpanTable:
    """All spans of a file in protocol buffers.

    :raises InputError: it is damaged, cut off, or without spans.
    """
    with opened(path, _EXPECTED, text=False) as file:
        data = memoryview(file.read())
    rows = SpanRows()
    try:
        for message in _messages(data):
            for batch in _each(message, 1):
                _add_batch(rows, batch)
    except (WireError, KeyError, ValueError, OverflowError) as error:
        raise input_error(path, None, f"an invalid or cut off message ({error})", _EXPECTED) from error
    if not len(rows):
        raise input_error(path, None, "no spans", _EXPECTED)
    return rows.table(format=NAME)


def _messages(data: memoryview) -> Iterator[memoryview]:
    """The only message of a file, or the messages that each follow their length."""
    if bytes(data[:1]) == b"\x0a":
        yield data
        return
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        if length == 0 or at + 4 + length > len(data):
            raise WireError(f"{length} bytes announced, {len(data) - at - 4} left")
        yield data[at + 4 : at + 4 + length]
        at += 4 + length


def _each(message: memoryview, number: int) -> Iterator[memoryview]:
    return (field.data for field in fields(message) if field.number == number)


def _add_batch(rows: SpanRows, batch: memoryview) -> None:
    resource = {key: value for part in _each(batch, 1) for key, value in map(_pair, _each(part, 1))}
    service = str(resource.get("service.name", ""))
    for scope in _each(batch, 2):
        for span in _each(scope, 2):
            known = {field.number: field for field in fields(span) if field.number != 9}
            status = {field.number: field.value for field in fields(known[15].data)} if 15 in known else {}
            rows.add(
                trace=bytes(known[1].data).hex(),
                span=bytes(known[2].data).hex(),
                parent=bytes(known[4].data).hex() if 4 in known else "",
                service=service,
                operation=bytes(known[5].data).decode("utf-8", "replace") if 5 in known else "",
                start_ns=known[7].value,
                end_ns=known[8].value,
                calls=6 in known and known[6].value in _CALLS,
                attributes=dict(map(_pair, _each(span, 9))),
                failed=status.get(3) in _FAILED,
            )


def _pair(message: memoryview) -> tuple[str, Any]:
    known = {field.number: field for field in fields(message)}
    key = bytes(known[1].data).decode("utf-8", "replace") if 1 in known else ""
    value: Any = None
    for field in fields(known[2].data) if 2 in known else ():
        if field.number == 1:
            value = bytes(field.data).decode("utf-8", "replace")
        elif field.number == 4:
            value = struct.unpack("<d", field.value.to_bytes(8, "little"))[0]
        else:
            value = field.value
    return key, value


def are_engine_spans(spans: SpanTable) -> bool:
    """True if at least half of the spans are requests of a serving engine."""
    return bool(spans.engine) and 2 * len(spans.engine) >= len(spans)


def requests_of(spans: SpanTable) -> RequestTable:
    """The engine's requests, with the wait in its queue, prefill and decode."""
    rows = TableRows()
    for start_ns, attributes in spans.engine:
        rows.add(
            arrival_ns=start_ns,
            latency_ns=_engine_time(attributes, ENGINE_LATENCY),
            first_ns=_engine_time(attributes, "gen_ai.latency.time_to_first_token"),
            name=str(attributes.get("gen_ai.request.id", "")),
            parts={"queue": _engine_time(attributes, "gen_ai.latency.time_in_queue")},
            stages={
                "prefill": _engine_time(attributes, "gen_ai.latency.time_in_model_prefill"),
                "decode": _engine_time(attributes, "gen_ai.latency.time_in_model_decode"),
            },
            features={
                "input_tokens": number_of(attributes.get("gen_ai.usage.prompt_tokens"), 1),
                "output_tokens": number_of(attributes.get("gen_ai.usage.completion_tokens"), 1),
            },
        )
    return rows.table(facts={**spans.facts, "spans": len(spans)}, has_status=False)


def _engine_time(attributes: Mapping[str, Any], name: str) -> int | None:
    return ns_of(number_of(attributes.get(name), 1), _S)
