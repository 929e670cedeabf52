"""OpenTelemetry spans in OTLP's JSON: a request is a trace, its stages are the children of its root span.

One ``ExportTraceServiceRequest`` per line, as the collector's file exporter writes and its ``otlpjsonfile`` receiver
reads (opentelemetry-proto, trace/v1/trace.proto; ids in hexadecimal, 64-bit integers as strings). Warm-up is
excluded. Times count from ``started`` in ``run.json``, the only wall clock of a record.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterator
from itertools import islice

from latfix import __version__
from latfix.errors import input_error
from latfix.formatting import visible
from latfix.reports.exports.request_slices import RequestSlice, request_slices
from latfix.run_record.chunked_record import RecordSource
from latfix.run_record.run_meta import RUN_FILE

#: Requests per line.
_PER_LINE = 500
_INTERNAL, _SERVER, _ERROR = 1, 2, 2
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def otlp_lines(source: RecordSource) -> Iterator[str]:
    """The lines, each with its line break.

    :raises InputError: ``run.json`` has no start time.
    """
    zero, run = started_ns(source), _run_id(source)
    resource = json.dumps({"attributes": resource_of(source)})
    scope = json.dumps({"name": "latfix", "version": __version__})
    measured = (each for each in request_slices(source) if each.index >= 0)
    while some := list(islice(measured, _PER_LINE)):
        spans = ",".join(span for each in some for span in _spans(each, zero, run))
        inside = f'"scopeSpans":[{{"scope":{scope},"spans":[{spans}]}}]'
        yield f'{{"resourceSpans":[{{"resource":{resource},{inside}}}]}}\n'


def started_ns(source: RecordSource) -> int:
    """Start of the run's clock, in nanoseconds since 1970.

    :raises InputError: ``run.json`` has no start time.
    """
    try:
        started = datetime.datetime.fromisoformat(source.meta.started)
        since = (started if started.tzinfo else started.replace(tzinfo=datetime.UTC)) - _EPOCH
    except ValueError as error:
        found = f"started {visible(source.meta.started, limit=40)!r}"
        raise input_error(source.folder / RUN_FILE, None, found, "a time such as 2026-01-02T03:04:05Z") from error
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000


def _run_id(source: RecordSource) -> str:
    """Eight bytes in hexadecimal that tell traces of different runs apart."""
    known = f"{source.meta.started}\0{source.meta.workload}\0{source.folder.resolve().name}"
    return hashlib.sha256(known.encode(errors="surrogatepass")).hexdigest()[:16]


def resource_of(source: RecordSource) -> list[object]:
    """Attributes of the service that was measured."""
    meta = source.meta
    known = {"service.name": meta.workload or "latfix", "host.name": meta.origin.get("host", "")}
    known |= {"latfix.device": meta.device, "latfix.traffic": meta.traffic_sha256 or ""}
    return [text_attribute(key, value) for key, value in known.items() if value]


def text_attribute(key: str, value: object) -> dict[str, object]:
    """An attribute whose value is text from outside, made printable."""
    return {"key": key, "value": {"stringValue": visible(value, limit=600)}}


def _number(key: str, value: int) -> dict[str, object]:
    return {"key": key, "value": {"intValue": str(value)}}


def _spans(each: RequestSlice, zero: int, run: str) -> Iterator[str]:
    trace = f'"traceId":"{run}{each.index + 1:016x}"'
    root = f"{1:016x}"
    attributes = [text_attribute("latfix.request.id", each.id), text_attribute("latfix.status", each.status)]
    if each.batch_id >= 0:
        attributes += [_number("latfix.batch", each.batch_id), _number("latfix.worker", each.worker)]
    when = _when(zero + each.arrival_ns, each.latency_ns)
    more = f'"attributes":{json.dumps(attributes)}'
    if each.status != "ok":
        more += f',"status":{json.dumps({"code": _ERROR, "message": each.error or each.status})}'
    yield f'{{{trace},"spanId":"{root}","name":"request","kind":{_SERVER},{when},{more}}}'
    for number, (stage, at, took) in enumerate(each.stages, start=2):
        same = f'{trace},"spanId":"{number:016x}","parentSpanId":"{root}"'
        yield f'{{{same},"name":"{stage}","kind":{_INTERNAL},{_when(zero + at, took)}}}'


def _when(at: int, took: int) -> str:
    return f'"startTimeUnixNano":"{at}","endTimeUnixNano":"{at + took}"'
