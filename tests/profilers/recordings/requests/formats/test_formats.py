"""Small handmade files of each format are read correctly."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.errors import InputError
from latfix.profilers.recordings.detect import detect, diagnose_recording
from latfix.profilers.recordings.reader import ReadOptions, recorded_at
from latfix.profilers.recordings.requests.formats import (
    aiperf,
    guidellm,
    har,
    jaeger_spans,
    otlp_spans,
    span_columns,
    triton_trace,
    vllm,
)
from latfix.profilers.recordings.requests.readers import read_requests
from latfix.profilers.recordings.requests.request_table import CANCELLED
from latfix.profilers.recordings.requests.spans.dependencies import account_for_spans
from latfix.profilers.recordings.requests.spans.span_table import own_times
from latfix.stages import Status

S, MS = 1_000_000_000, 1_000_000
START = 1_763_800_000 * S


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "recording"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def table_of(tmp_path: Path, content: str | bytes, *mapping: str, pattern: str = "") -> Any:
    """The requests of a log, whose format is recognized by its content."""
    return read_requests(written(tmp_path, content), ReadOptions(mapping=mapping, pattern=pattern))


def aiperf_lines() -> str:
    def record(k: int, **changes: Any) -> dict[str, Any]:
        metadata = {"x_request_id": f"r{k}", "request_start_ns": START + k * S, "benchmark_phase": "profiling"}
        metrics = {
            "request_latency": {"value": 50.5, "unit": "ms"},
            "time_to_first_token": {"value": 20.25, "unit": "ms"},
            "inter_chunk_latency": {"value": [10.0, 20.0], "unit": "ms"},
            "input_sequence_length": {"value": 550, "unit": "tokens"},
            "output_sequence_length": {"value": 3, "unit": "tokens"},
        }
        return {"metadata": metadata | changes, "metrics": metrics, "error": None}

    cancelled = record(1, was_cancelled=True) | {
        "metrics": {},
        "error": {"code": 499, "type": "RequestCancellationError"},
    }
    old = record(2, timestamp_ns=START + 2 * S, credit_phase="profiling")
    del old["metadata"]["request_start_ns"], old["metadata"]["benchmark_phase"]
    old["metrics"]["ttft"] = old["metrics"].pop("time_to_first_token")
    return "\n".join(map(json.dumps, [record(0), cancelled, old, record(3, benchmark_phase="warmup")]))


def test_aiperf(tmp_path: Path) -> None:
    table = aiperf.read(written(tmp_path, aiperf_lines()))
    assert table.arrival_ns.tolist() == [0, S, 2 * S]
    assert table.latency_ns.tolist() == [50_500_000, -1, 50_500_000]
    assert table.status.tolist() == [Status.OK, CANCELLED, Status.OK]
    assert table.first_ns is not None and table.first_ns.tolist() == [20_250_000, -1, 20_250_000]
    assert table.gaps is not None
    assert table.gaps.start_ns.tolist()[:2] == [20_250_000, 30_250_000]
    assert table.start_unix_ns == START


def vllm_document(**changes: Any) -> dict[str, Any]:
    return {
        "endpoint_type": "openai",
        "model_id": "m",
        "num_prompts": 3,
        "request_rate": 2.0,
        "input_lens": [10, 20, 30],
        "output_lens": [3, 3, 0],
        "ttfts": [0.1, 0.2, 0.0],
        "itls": [[0.01, 0.02], [0.01, 0.01], []],
        "errors": ["", "", "Internal Server Error"],
    } | changes


def test_vllm_bench(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(vllm_document(start_times=[5.0, 5.5, 6.0], queue_times=[0.0, 0.25, 0.0])))
    table = vllm.read_bench(path)
    assert table.arrival_ns.tolist() == [0, S // 4, S]  # from when it was due
    assert table.latency_ns.tolist() == [130 * MS, 470 * MS, -1]
    assert table.parts["dispatch"].tolist() == [0, 250 * MS, 0]
    assert table.status.tolist() == [0, 0, Status.ERROR]
    path.write_text(json.dumps(vllm_document(errors=[""] * 3)))  # a failure without a reason
    assert vllm.read_bench(path).status.tolist() == [0, 0, Status.ERROR]
    silent = vllm_document(errors=[""] * 3, output_lens=[3, 3, 8])  # no chunk with a token: how long is unknown
    path.write_text(json.dumps(silent))
    table = vllm.read_bench(path)
    assert table.status.tolist() == [0, 0, 0] and table.latency_ns.tolist()[2] == -1
    path.write_text(json.dumps(vllm_document()))
    assert not vllm.read_bench(path).timed
    embedded = {"endpoint_type": "openai-embeddings", "num_prompts": 2, "request_rate": "inf"}
    embedded |= {"latencies": [0.25, 0.5], "queue_times": [0, 0], "errors": ["", ""], "input_lens": [4, 5]}
    path.write_text(json.dumps(embedded))
    assert vllm.read_bench(path).latency_ns.tolist() == [250 * MS, 500 * MS]
    path.write_text(
        json.dumps({"endpoint_type": "openai", "num_prompts": 1, "request_rate": "inf", "mean_ttft_ms": 1.0})
    )
    with pytest.raises(InputError, match="--save-detailed"):
        vllm.read_bench(path)


def test_guidellm_in_both_layouts(tmp_path: Path) -> None:
    old = {"request_id": "a", "start_time": 100.0, "end_time": 101.5, "first_token_time": 100.25, "prompt_tokens": 8,
           "output_tokens": 16}  # fmt: skip
    times = {"request_start": 101.0, "request_end": 102.0, "first_token_iteration": 101.1, "targeted_start": 100.5}
    new = {"request_id": "b", "info": {"timings": times}, "input_metrics": {"text_tokens": 4},
           "output_metrics": {"text_tokens": 2}}  # fmt: skip
    groups = {"successful": [old, new], "incomplete": [dict(old, request_id="c")], "errored": []}
    path = tmp_path / "benchmarks.json"
    path.write_text(
        json.dumps({"benchmarks": [{"type_": "x", "config": {"strategy": {"type_": "poisson"}}, "requests": groups}]})
    )
    table = guidellm.read(path)
    assert dict(zip(table.ids, table.latency_ns.tolist(), strict=True)) == {"a": 1500 * MS, "c": -1, "b": 1500 * MS}
    assert table.status.tolist() == [0, CANCELLED, 0]
    assert table.parts["dispatch"].tolist() == [-1, -1, 500 * MS]
    assert table.features["input_tokens"].tolist() == [8.0, 8.0, 4.0]
    # The part of a sweep without a schedule: all requests are due at its begin.
    config = {"strategy": {"type_": "throughput"}, "profile": {"type_": "sweep", "strategy_type": "constant"}}
    path.write_text(json.dumps({"benchmarks": [{"type_": "x", "config": config, "requests": groups}]}))
    table = guidellm.read(path)
    assert dict(zip(table.ids, table.latency_ns.tolist(), strict=True))["b"] == 1_000 * MS
    assert "dispatch" not in table.parts


def triton_document() -> list[dict[str, Any]]:
    names = [
        "REQUEST_START",
        "QUEUE_START",
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
    ]
    result: list[dict[str, Any]] = []
    for k in range(2):
        stamps = [{"name": name, "ns": k * S + place * MS} for place, name in enumerate(names)]
        result.append({"id": k, "model_name": "simple", "model_version": 1, "timestamps": stamps})
        result.append({"id": k, "timestamps": [{"name": "REQUEST_END", "ns": k * S + 9 * MS}]})
    return result


def test_triton(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(
        json.dumps(
            [
                *triton_document(),
                {"id": 7, "model_name": "simple", "timestamps": [{"name": "REQUEST_START", "ns": 3}]},
            ]
        )
    )
    table = triton_trace.read(path)
    assert table.latency_ns.tolist() == [9 * MS, 9 * MS]
    assert table.parts["queue"].tolist() == [MS, MS]
    assert table.stages["compute"].tolist() == [MS, MS]
    assert not table.has_status
    assert table.notes == ("1 requests have no REQUEST_END and are left out.",)


def perf_analyzer_document() -> dict[str, Any]:
    requests = [{"timestamp": k * S, "response_timestamps": [k * S + 3 * MS, k * S + 9 * MS]} for k in range(3)]
    once = {"experiment": {"mode": "concurrency", "value": 1}, "requests": requests[:1], "window_boundaries": []}
    return {"experiments": [once, {**once, "requests": [*requests, {**requests[0], "response_timestamps": []}]}]}


def test_perf_analyzer(tmp_path: Path) -> None:
    table = triton_trace.read_export(written(tmp_path, json.dumps(perf_analyzer_document())))
    assert table.latency_ns.tolist() == [9 * MS, -1, 9 * MS, 9 * MS]
    assert table.first_ns is not None and table.first_ns.tolist() == [3 * MS, -1, 3 * MS, 3 * MS]
    assert table.gaps is not None and set(table.gaps.length_ns.tolist()) == {6 * MS}
    assert table.status.tolist() == [Status.OK, Status.ERROR, Status.OK, Status.OK]
    assert "several experiments" in table.notes[0]


STEP = (
    "(EngineCore pid=1) INFO 11-22 10:00:0{0} [core.py:1] {1}Iteration({0}): 2 context requests, "
    "7957 context tokens, 43 generation requests, 43 generation tokens, "
    "iteration elapsed time: 1125.94 ms, GPU KV cache usage: 0.1%\n"
)


def test_vllm_iterations(tmp_path: Path) -> None:
    log = "INFO 11-22 10:00:00 [api.py:3] ready\n" + STEP.format(1, "") + STEP.format(2, "Engine 000: ")
    steps = vllm.read_steps(written(tmp_path, log), year=2026)
    assert steps.length_ns.tolist() == [1_125_940_000] * 2
    assert steps.prefill_tokens.tolist() == [7957, 7957]
    assert int(np.diff(steps.end_ns)[0]) == S


def otlp_document() -> dict[str, Any]:
    def batch(service: str, *spans: dict[str, Any]) -> dict[str, Any]:
        attributes = [{"key": "service.name", "value": {"stringValue": service}}]
        return {"resource": {"attributes": attributes}, "scopeSpans": [{"spans": list(spans)}]}

    def span(name: str, parent: str, begin: int, end: int, kind: int = 1, **attributes: str) -> dict[str, Any]:
        return {
            "traceId": "ab" * 16,
            "spanId": name * 16,
            "parentSpanId": parent * 16,
            "name": f"call {name}",
            "kind": kind,
            "startTimeUnixNano": str(START + begin * MS),
            "endTimeUnixNano": str(START + end * MS),
            "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()],
            "status": {"code": 2 if name == "d" else 1},
        }

    database = {"db.system": "postgresql"}
    return {
        "resourceSpans": [
            batch("api", span("a", "", 0, 100, 2), span("b", "a", 10, 60, 3), span("c", "a", 60, 90, 3, **database)),
            batch("model", span("d", "b", 15, 55, 2)),
        ]
    }


def check_spans(table: Any) -> None:
    """Milliseconds of each service or path in the only request."""
    assert {cause.id for cause in account_for_spans(table).causes[:-2]} == {
        "service.api", "network.model", "service.model", "service.postgresql"
    }  # fmt: skip
    assert (own_times(table).own_ns / MS).tolist() == [20, 10, 30, 40]


def test_otlp_in_json_and_by_lines(tmp_path: Path) -> None:
    check_spans(otlp_spans.read(written(tmp_path, json.dumps(otlp_document(), indent=1))))
    batches = otlp_document()["resourceSpans"]
    lines = "\n".join(json.dumps({"resourceSpans": [batch]}) for batch in batches)
    check_spans(otlp_spans.read(written(tmp_path, lines)))


@pytest.mark.parametrize("around", ["trace", "result"])
def test_otlp_in_the_answers_of_tempo_and_jaeger(tmp_path: Path, around: str) -> None:
    text = json.dumps({around: otlp_document()}).replace("ab" * 16, base64.b64encode(b"\xab" * 16).decode())
    table = otlp_spans.read(written(tmp_path, text))
    check_spans(table)
    assert table.traces == ("ab" * 16,)


def field(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(payload)) + payload


def varint(value: int) -> bytes:
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*result, value])


def otlp_bytes() -> bytes:
    """The document in protocol buffers (opentelemetry/proto/trace/v1/trace.proto)."""

    def pair(attribute: dict[str, Any]) -> bytes:
        return field(1, attribute["key"].encode()) + field(2, field(1, attribute["value"]["stringValue"].encode()))

    whole = b""
    for batch in otlp_document()["resourceSpans"]:
        resource = field(1, b"".join(field(1, pair(each)) for each in batch["resource"]["attributes"]))
        spans = b""
        for span in batch["scopeSpans"][0]["spans"]:
            body = field(1, bytes.fromhex(span["traceId"])) + field(2, span["spanId"][:8].encode())
            body += field(4, span["parentSpanId"][:8].encode()) if span["parentSpanId"] else b""
            body += field(5, span["name"].encode()) + bytes([6 << 3]) + varint(span["kind"])
            for number, key in ((7, "startTimeUnixNano"), (8, "endTimeUnixNano")):
                body += bytes([number << 3 | 1]) + int(span[key]).to_bytes(8, "little")
            body += b"".join(field(9, pair(each)) for each in span["attributes"])
            body += field(15, bytes([3 << 3]) + varint(span["status"]["code"]))
            spans += field(2, body)
        whole += field(1, resource + field(2, spans))
    return whole


@pytest.mark.parametrize("before", [b"", None], ids=["one message", "with its length before it"])
def test_otlp_in_protocol_buffers(tmp_path: Path, before: bytes | None) -> None:
    message = otlp_bytes()
    path = tmp_path / "spans.pb"
    path.write_bytes((len(message).to_bytes(4, "big") if before is None else before) + message)
    assert otlp_spans.knows_protobuf(path.read_bytes())
    check_spans(otlp_spans.read_protobuf(path))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="invalid or cut off message"):
        otlp_spans.read_protobuf(path)


def test_spans_of_a_serving_engine_are_requests_with_a_remainder(tmp_path: Path) -> None:
    parts = {"e2e": 0.5, "time_to_first_token": 0.1155, "time_in_queue": 0.00006, "time_in_model_prefill": 0.0578,
             "time_in_model_decode": 0.38}  # fmt: skip
    attributes = [{"key": f"gen_ai.latency.{key}", "value": {"doubleValue": value}} for key, value in parts.items()]
    attributes.append({"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": "512"}})
    span = {"traceId": "ab" * 16, "spanId": "c" * 16, "name": "llm_request", "kind": 2, "attributes": attributes}
    times = {"startTimeUnixNano": str(START), "endTimeUnixNano": str(START + 500 * MS)}
    spans = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span | times]}]}]})
    document = diagnose_recording(written(tmp_path, spans), ReadOptions()).to_json()
    assert document["source"]["kind"] == "requests"
    assert document["latency_ms"]["p50"] == pytest.approx(500)
    stages = {name: stage["mean"] for name, stage in document["stages_ms"].items()}
    assert stages["queue"] == pytest.approx(0.06)
    assert stages["prefill"] == pytest.approx(57.8)
    assert stages["other"] == pytest.approx(500 - 0.06 - 57.8 - 380)  # the remainder


def test_jaeger(tmp_path: Path) -> None:
    def span(name: str, parent: str, begin: int, end: int, process: str, kind: str, **tags: str) -> dict[str, Any]:
        references = [{"refType": "CHILD_OF", "traceID": "t", "spanID": parent}] if parent else []
        listed = [
            {"key": key, "type": "string", "value": value} for key, value in {"span.kind": kind, **tags}.items()
        ]
        return {"traceID": "t", "spanID": name, "operationName": name, "references": references,
                "startTime": START // 1000 + begin * 1000, "duration": (end - begin) * 1000, "tags": listed,
                "processID": process}  # fmt: skip

    spans = [
        span("a", "", 0, 100, "p1", "server"),
        span("b", "a", 10, 60, "p1", "client"),
        span("c", "a", 60, 90, "p1", "client", **{"peer.service": "postgresql"}),
        span("d", "b", 15, 55, "p2", "server"),
    ]
    processes = {"p1": {"serviceName": "api"}, "p2": {"serviceName": "model"}}
    document = {"data": [{"traceID": "t", "spans": spans, "processes": processes}]}
    check_spans(jaeger_spans.read(written(tmp_path, json.dumps(document))))


def har_document() -> dict[str, Any]:
    def entry(k: int, status: int, **changes: Any) -> dict[str, Any]:
        timings = {"blocked": 3.0, "dns": -1, "connect": 2.0, "ssl": 1.0, "send": 0.5, "wait": 40.0, "receive": 4.5}
        request = {"method": "POST", "url": f"https://a.example/users/{k}?q=1", "bodySize": 100 * k}
        started = f"2026-01-02T03:04:0{k}.250Z"
        return {"startedDateTime": started, "time": 50.0, "request": request, "response": {"status": status},
                "timings": timings} | changes  # fmt: skip

    given_up = entry(3, 0, time=0, timings={"send": -1, "wait": -1, "receive": -1})
    posted = {"method": "POST", "url": "/b", "bodySize": -1, "postData": {"text": "größe"}}
    log = {"version": "1.2", "creator": {"name": "Browser"}, "entries": [entry(2, 429), entry(1, 200), given_up]}
    return {"log": log | {"entries": [*log["entries"], entry(4, 200, request=posted)]}}


def test_har(tmp_path: Path) -> None:
    path = tmp_path / "x.har"
    path.write_text("\ufeff" + json.dumps(har_document()), encoding="utf-8")
    table = har.read(path)
    assert table.arrival_ns.tolist() == [0, S, 2 * S, 3 * S]
    assert table.latency_ns.tolist() == [50 * MS, 50 * MS, -1, 50 * MS]
    assert table.status.tolist() == [Status.OK, Status.SHED, CANCELLED, Status.OK]
    assert table.parts["network.connect"].tolist()[:2] == [2 * MS, 2 * MS]
    assert table.parts["client.queue"].tolist()[:2] == [3 * MS, 3 * MS]
    assert table.parts["network.transfer"].tolist()[:2] == [5 * MS, 5 * MS]
    assert table.stages["wait"].tolist() == [40 * MS, 40 * MS, -1, 40 * MS]
    assert table.features["request_bytes"].tolist() == [100, 200, 300, 7]
    assert set(table.routes) == {"POST /users/*", "POST /b"}
    assert diagnose_recording(path, ReadOptions()).latency_ms["p50"] == pytest.approx(50)
    far = har_document()
    far["log"]["entries"][0] |= {"time": 1e300, "timings": {"wait": 10**400, "send": 1.0}}
    path.write_text(json.dumps(far))
    assert sorted(har.read(path).latency_ns.tolist()) == [-1, -1, 50 * MS, 50 * MS]
    far["log"]["entries"][0]["startedDateTime"] = "0001-01-01T00:00:00+14:00"
    path.write_text(json.dumps(far))
    with pytest.raises(InputError, match="too far from 1970"):
        har.read(path)
    broken = har_document()
    del broken["log"]["entries"][1]["startedDateTime"]
    path.write_text(json.dumps(broken))
    with pytest.raises(InputError, match=r"log.entries\[1\] without 'startedDateTime'"):
        har.read(path)


@pytest.mark.parametrize(
    ("slow", "cause"),
    [
        ({"blocked": 300.0}, "client.queue"),
        ({"dns": 40.0, "connect": 200.0, "ssl": 90.0}, "network.connect"),
        ({"wait": 400.0}, "service.first_byte"),
        ({"receive": 500.0}, "network.transfer"),
    ],
    ids=["queue", "connection", "first byte", "transfer"],
)
def test_a_browser_knows_where_a_slow_request_spent_its_time(
    tmp_path: Path, slow: dict[str, float], cause: str
) -> None:
    rng = np.random.default_rng(3)
    entries = []
    for k, wait in enumerate(rng.lognormal(4, 0.1, 400).tolist()):
        timings = {"blocked": 1.5, "dns": -1, "connect": -1, "ssl": -1, "send": 0.2, "wait": wait, "receive": 2.0}
        timings |= slow if rng.random() < 0.08 else {}
        total = sum(max(each, 0) for name, each in timings.items() if name != "ssl")
        started = (datetime(2026, 1, 2, tzinfo=UTC) + timedelta(milliseconds=170 * k)).isoformat()
        request = {"method": "GET", "url": "https://a.example/a", "bodySize": 0}
        entries.append({"startedDateTime": started, "time": total, "request": request, "response": {"status": 200},
                        "timings": timings})  # fmt: skip
    result = diagnose_recording(written(tmp_path, json.dumps({"log": {"entries": entries}})), ReadOptions())
    assert result.verdict == cause and result.ledger.conservation_error_ns() == 0
    assert next(each.tail_share for each in result.causes if each.cause == cause) > 0.9
    assert abs(result.unexplained_ms) < 1


def test_a_handshake_may_be_counted_beside_the_connection(tmp_path: Path) -> None:
    """As Firefox does."""
    document = har_document()
    document["log"]["entries"][1]["time"] = 51.0
    assert har.read(written(tmp_path, json.dumps(document))).parts["network.connect"].tolist()[:2] == [3 * MS, 2 * MS]


def test_span_columns(tmp_path: Path) -> None:
    path = tmp_path / "spans.csv"
    path.write_text(
        "TraceID,SpanID,ParentID,PodName,OperationName,StartTimeUnixNano,EndTimeUnixNano,Duration\n"
        "t,a,root,front-end-579b9bff58-t2dbm,get,1661141427557321048,1661141427557331048,10\n"
        "t,b,a,db-0,query,1661141427557322048,1661141427557324048,2\n"
    )
    path.write_text(path.read_text() + path.read_text().partition("\n")[2])  # exported twice
    table = span_columns.read(path)
    assert table.notes == ("2 repeated spans, counted once.",)
    assert table.services == ("front-end", "db")
    assert table.end_ns.tolist() == [10_000, 3_000]
    path.write_text(path.read_text() + "t,c,a,db-0,query,16611414")
    with pytest.raises(InputError, match=r"spans.csv:6"):
        span_columns.read(path)


def zipkin_spans() -> list[dict[str, Any]]:
    """A front end calls a store, whose span has the id of the front end's call; the store calls a database."""
    rows = [("1", None, "SERVER", "front", 0, 100), ("2", "1", "CLIENT", "front", 10, 80),
            ("2", "1", "SERVER", "store", 20, 60), ("3", "2", "CLIENT", "store", 30, 40)]  # fmt: skip
    return [
        {"traceId": "t", "id": span, **({"parentId": parent} if parent else {}), "kind": kind, "name": "get",
         "timestamp": 1763800000000000 + begin, "duration": length, "localEndpoint": {"serviceName": service},
         "remoteEndpoint": {"serviceName": "other"}}
        for span, parent, kind, service, begin, length in rows
    ]  # fmt: skip


@pytest.mark.parametrize("writer", ["zipkin", "traces", "lines", "datadog", "console"])
def test_spans_in_json(tmp_path: Path, writer: str) -> None:
    spans = zipkin_spans()
    texts = {
        "zipkin": json.dumps(spans),
        "traces": json.dumps([spans], indent=1),
        "lines": "\n".join(map(json.dumps, [*spans, {**spans[0], "id": "9", "duration": None}])),
        "datadog": json.dumps({"data": [{"id": f"event {k}", "type": "spans", "attributes": {
            "trace_id": "t", "span_id": str(k), "parent_id": str(k - 1) if k > 1 else "0",
            "service": span["localEndpoint"]["serviceName"], "resource_name": "get", "custom": {
                "span": {"kind": span["kind"].lower()}},
            "start_timestamp": f"2026-01-02T03:04:05.{span['timestamp'] % 1000:06}Z",
            "end_timestamp": f"2026-01-02T03:04:05.{span['timestamp'] % 1000 + span['duration']:06}Z"}}
            for k, span in enumerate(spans, 1)]}),
        "console": "\n".join(json.dumps({
            "name": "get", "context": {"trace_id": "0xt", "span_id": f"0x{k}", "trace_state": "[]"},
            "kind": f"SpanKind.{span['kind']}", "parent_id": f"0x{k - 1}" if k > 1 else None,
            "start_time": f"2026-01-02T03:04:05.{span['timestamp'] % 1000:06}Z",
            "end_time": f"2026-01-02T03:04:05.{span['timestamp'] % 1000 + span['duration']:06}Z",
            "status": {"status_code": "UNSET" if k > 1 else "ERROR"}, "attributes": {}, "events": [], "links": [],
            "resource": {"attributes": {
                "service.instance.id": "i", "service.name": span["localEndpoint"]["serviceName"]}}}, indent=4)
            for k, span in enumerate(spans, 1)),
    }  # fmt: skip
    path = written(tmp_path, texts[writer])
    assert diagnose_recording(path, ReadOptions()).source.kind == "spans"  # type: ignore[union-attr]
    with pytest.raises(InputError, match="found spans"):
        read_requests(path, ReadOptions())
    table = span_columns.read(path)
    assert table.parent.tolist() == [-1, 0, 1, 2]
    assert [table.services[code] for code in table.service] == ["front", "front", "store", "store"]
    assert table.calls.tolist() == [False, True, False, True]
    assert table.start_ns.tolist() == [0, 10_000, 20_000, 30_000]
    assert table.end_ns.tolist() == [100_000, 90_000, 80_000, 70_000]
    assert ("1 line was left out" in " ".join(table.notes)) is (writer == "lines")
    assert table.failed.tolist() == [writer == "console", False, False, False]


def test_a_log_that_names_spans_is_no_recording_of_spans() -> None:
    line = {"trace_id": "t", "span_id": "s", "service": "api", "time": "2026-01-02T03:04:05Z", "duration_ms": 5}
    assert not span_columns.knows(json.dumps(line).encode())


HISTOGRAM = """# HELP vllm:e2e_request_latency_seconds Histogram of e2e request latency in seconds.
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{le="0.5",model_name="m"} 90.0
vllm:e2e_request_latency_seconds_bucket{le="1.0",model_name="m"} 99.0
vllm:e2e_request_latency_seconds_bucket{le="+Inf",model_name="m"} 100.0
vllm:e2e_request_latency_seconds_count{model_name="m"} 100.0
vllm:e2e_request_latency_seconds_sum{model_name="m"} 40.0
vllm:request_queue_time_seconds_bucket{le="0.1",model_name="m"} 100.0
vllm:request_queue_time_seconds_bucket{le="+Inf",model_name="m"} 100.0
vllm:request_queue_time_seconds_count{model_name="m"} 100.0
vllm:request_queue_time_seconds_sum{model_name="m"} 2.0
"""


def test_prometheus_histograms_allow_bounds_and_means(tmp_path: Path) -> None:
    document = diagnose_recording(written(tmp_path, HISTOGRAM), ReadOptions()).to_json()
    assert document["latency_ms"]["mean"] == pytest.approx(400)
    assert document["latency_ms"]["p99"] == pytest.approx(1000)
    assert document["latency_ms"]["p99_9"] is None and document["latency_ms"]["max"] is None
    assert document["latency_ci95_ms"]["p99"] == [500.0, 1000.0]
    assert document["stages_ms"]["vllm:request_queue_time_seconds"]["mean"] == pytest.approx(20)
    assert document["verdict"] == "inconclusive" and document["causes"] == []
    assert document["requests"]["error"] is None


def test_prometheus_histograms_with_other_bounds_scraped_twice(tmp_path: Path) -> None:
    name = "request_latency_seconds"
    first = [f'{name}_bucket{{route="/a",le="{le}"}} {n}' for le, n in (("0.1", 50), ("1", 90), ("+Inf", 90))]
    last = [f'{name}_bucket{{route="/a",le="{le}"}} {n}' for le, n in (("0.1", 500), ("1", 900), ("+Inf", 900))]
    other = [f'{name}_bucket{{route="/b",le="{le}"}} {n}' for le, n in (("0.5", 0), ("5", 100), ("+Inf", 100))]
    lines = [*first, *last, *other, f'{name}_count{{route="/b"}} 10']  # the number is cut off
    document = diagnose_recording(written(tmp_path, "\n".join(lines)), ReadOptions()).to_json()
    assert document["requests"]["ok"] == 1000
    assert document["latency_ci95_ms"]["p50"] == [0, 100] and document["latency_ci95_ms"]["p99"] == [500, 5000]


@pytest.mark.parametrize(("counts", "words"), [((0, 90, 100), "lies above 1,000 ms"), ((95, 90, 100), "decrease")])
def test_prometheus_histograms_without_a_bound_or_out_of_order(
    counts: tuple[int, ...], words: str, tmp_path: Path
) -> None:
    text = "".join(f'x_seconds_bucket{{le="{le}"}} {n}\n' for le, n in zip(("0.1", "1", "+Inf"), counts, strict=True))
    if words == "decrease":
        with pytest.raises(InputError, match=words):
            diagnose_recording(written(tmp_path, text), ReadOptions())
    else:
        assert words in diagnose_recording(written(tmp_path, text), ReadOptions()).sentence


NGINX = (
    '10.0.0.1 - bob [22/Nov/2026:10:00:0{0} +0100] "GET /v1/items/{0}?q=a HTTP/1.1" {1} 1024 "-" "curl/8 (x)" {2}\n'
)


def test_nginx_combined_followed_by_times(tmp_path: Path) -> None:
    lines = [NGINX.format(k, 200 if k else 502, f"{512 + k} 0.25{k} 0.250") for k in range(4)]
    table = table_of(tmp_path, "".join(lines))
    assert table.latency_ns.tolist() == [250 * MS, 251 * MS, 252 * MS, 253 * MS]
    assert table.arrival_ns.tolist() == [0, S - MS, 2 * S - 2 * MS, 3 * S - 3 * MS]  # a line is written at the end
    assert table.parts["client"].tolist() == [0, MS, 2 * MS, 3 * MS]
    assert table.features["request_bytes"].tolist() == [512, 513, 514, 515]
    assert table.status.tolist() == [Status.ERROR, 0, 0, 0]
    assert table.start_unix_ns == 1795338000 * S - 250 * MS


def test_nginx_with_named_times(tmp_path: Path) -> None:
    lines = [NGINX.format(k, 200, f'rt=0.30{k} uct="0.001" uht="0.2" urt="0.200"') for k in range(3)]
    table = table_of(tmp_path, "".join(lines))
    assert table.latency_ns.tolist() == [300 * MS, 301 * MS, 302 * MS]
    assert table.parts["client"].tolist() == [100 * MS, 101 * MS, 102 * MS]


def test_nginx_ingress(tmp_path: Path) -> None:
    behind = "{0} 0.1{0}0 [default-web-80] [] 10.1.2.3:8080 2048 0.1{0}0 200 abcdef{0}"
    table = table_of(tmp_path, "".join(NGINX.format(k, 200, behind.format(k)) for k in range(3)))
    assert table.latency_ns.tolist() == [100 * MS, 110 * MS, 120 * MS]


def test_apache_followed_by_microseconds(tmp_path: Path) -> None:
    table = table_of(tmp_path, "".join(NGINX.format(k, 200, 2500 + k) for k in range(3)))
    assert table.latency_ns.tolist() == [2_500_000, 2_501_000, 2_502_000]
    assert table.arrival_ns.tolist() == [0, S, 2 * S]


def test_apache_with_a_fraction_of_the_second(tmp_path: Path) -> None:
    """``%{%d/%b/%Y:%T}t.%{usec_frac}t %{%z}t``"""
    lines = (NGINX.format(k, 200, 2500).replace(" +", f".{250 * k:03}000 +", 1) for k in range(3))
    assert table_of(tmp_path, "".join(lines)).arrival_ns.tolist() == [0, S + 250 * MS, 2 * S + 500 * MS]


@pytest.mark.parametrize(
    ("behind", "first_ns", "words"),
    [
        ("- 25.{0}00 ms", 25 * MS, "morgan: latency in milliseconds, a line has the time when it ended"),
        ("0.02{0}s", 20 * MS, "morgan: latency in seconds"),
        ("**0/2500{0}**", 25 * MS, "Apache: latency in microseconds"),
        ("2{0}", 20 * MS, "Tomcat or Jetty: latency in milliseconds (whole numbers this small are no microseconds)"),
        ("25{0}", MS // 4, "Apache: latency in microseconds (if they are milliseconds, as %D of Tomcat"),
    ],
)
def test_the_unit_of_a_latency_behind_a_line(tmp_path: Path, behind: str, first_ns: int, words: str) -> None:
    table = table_of(tmp_path, "".join(NGINX.format(k, 200, behind.format(k)) for k in range(5)))
    assert int(table.latency_ns.min()) == first_ns
    assert words in table.notes[-1]


@pytest.mark.parametrize(
    ("unit_us", "stamp_ends", "when"),
    [
        (1, False, "when it arrived, to the second."),  # Apache, Jetty
        (1, True, "if it is when it ended, as in gunicorn's logs"),
        (1_000, False, "when it arrived, to the second."),  # Jetty's logLatency
        (1_000, True, "when it ended, to the second."),  # Tomcat
    ],
)
def test_the_order_of_lines_shows_whether_their_times_are_those_of_ends(
    tmp_path: Path, unit_us: int, stamp_ends: bool, when: str
) -> None:
    """Lines are written as requests end; some take several seconds."""
    rng, n = np.random.default_rng(3), 900
    took = rng.integers(20_000, 60_000, n) + np.where(rng.random(n) < 0.1, 3_000_000, 0)  # microseconds
    came = np.sort(rng.uniform(0, 9e7, n)).astype(np.int64)
    text = ""
    for k in np.argsort(came + took).tolist():
        at = int(came[k] + took[k] * stamp_ends) // 1_000_000
        stamp = f"[22/Nov/2026:10:{at // 60:02}:{at % 60:02} +0000]"
        text += f'127.0.0.1 - - {stamp} "POST /v1 HTTP/1.1" 200 12 "-" "agent" {took[k] // unit_us}\n'
    table = table_of(tmp_path, text)
    assert when in table.notes[-1]
    if unit_us == 1 and stamp_ends:  # the note's way leads there
        pattern = re.search("--pattern '(.*)'", table.notes[-1])
        assert pattern
        table = table_of(tmp_path, text, pattern=pattern[1])
    logged = table.arrival_ns + table.latency_ns * stamp_ends
    assert ((logged - logged[0]) % S == 0).all()


def test_whole_seconds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"mostly 0; expected microseconds; log a finer unit"):
        table_of(tmp_path, "".join(NGINX.format(k, 200, k // 4) for k in range(5)))


def test_a_log_behind_syslog_is_an_access_log(tmp_path: Path) -> None:
    table = table_of(
        tmp_path, "".join(f"<190>Nov 22 10:00:0{k} web nginx: {NGINX.format(k, 200, '0.25')}" for k in range(3))
    )
    assert table.latency_ns.tolist() == [250 * MS] * 3


def test_envoy(tmp_path: Path) -> None:
    line = (
        '[2026-11-22T10:00:0{0}.31{0}Z] "POST /v1/predict HTTP/2" 200 - 15{0} 87 22{0} 200 "10.0.35.28" '
        '"agent one" "cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2" "locations" "tcp://10.0.2.1:80"\n'
    )
    table = table_of(tmp_path, "".join(line.format(k) for k in range(3)))
    assert table.latency_ns.tolist() == [220 * MS, 221 * MS, 222 * MS]
    assert table.arrival_ns.tolist() == [0, S + MS, 2 * (S + MS)]
    assert table.features["request_bytes"].tolist() == [150, 151, 152]
    assert table.resolution_ns == MS
    istio = line.replace("200 - 15", '200 - via_upstream - "-" 15')
    assert (
        table_of(tmp_path, "".join(istio.format(k) for k in range(3))).latency_ns.tolist()
        == table.latency_ns.tolist()
    )


@pytest.mark.parametrize(
    "line",
    [
        '[2026-11-22T10:00:0{0}.310Z] "POST /a HTTP/2" 200 - 150 87 220 200 "-" "agent" "id" "10.0.9.9:80" '
        '"10.0.2.{0}:80"\n',
        '[2026-11-22T10:00:0{0}.310Z] "POST /a HTTP/2" 200 - via_upstream - "-" 150 87 220 200 "-" "agent" "id" '
        '"shop" "tcp://10.0.2.{0}:80" outbound|80||shop 10.0.1.7:4444 10.0.1.7:80 10.0.1.9:5555 - default\n',
        '10.0.0.9 - - [22/Nov/2026:10:00:0{0} +0000] "GET /a HTTP/1.1" 200 87 "-" "agent" 310 0.220 [shop-80] [] '
        "10.0.2.{0}:80 87 0.200 200 cc21d9b0\n",
    ],
    ids=["envoy", "istio", "ingress-nginx"],
)
def test_the_server_that_a_proxy_chose(tmp_path: Path, line: str) -> None:
    table = table_of(tmp_path, "".join(line.format(k) for k in (1, 2, 1)))
    chosen = [table.servers[code].removeprefix("tcp://") for code in table.server]
    assert chosen == ["10.0.2.1:80", "10.0.2.1:80", "10.0.2.2:80"]  # in order of arrival


def test_addresses_of_clients_are_no_servers(tmp_path: Path) -> None:
    line = '10.0.0.9 - - [22/Nov/2026:10:00:00 +0000] "GET /a HTTP/1.1" 200 87 "-" "agent" 310 0.220 10.1.1.1:{0}\n'
    few, many = (table_of(tmp_path, "".join(map(line.format, range(1000, 1000 + n)))) for n in (500, 501))
    assert len(few.servers) == 500 and many.server is None and many.servers == ()


def test_the_server_that_traefik_chose(tmp_path: Path) -> None:
    line = '{{"StartUTC": "2026-11-22T10:00:0{0}.5Z", "Duration": 250000000, "ServiceAddr": "10.0.2.{0}:80"}}\n'
    table = table_of(tmp_path, "".join(line.format(k) for k in (1, 2)))
    assert [table.servers[code] for code in table.server] == ["10.0.2.1:80", "10.0.2.2:80"]


def test_of_several_upstreams_the_last_answered(tmp_path: Path) -> None:
    line = (
        '10.0.0.9 - - [22/Nov/2026:10:00:0{0} +0000] "GET /a HTTP/1.1" 200 87 "-" "agent" 310 0.220 [shop-80] [] '
        "{1} 87 {2} 200 cc21d9b0\n"
    )
    both, one = ("10.0.2.1:80, 10.0.2.2:80", "0.100, 0.100"), ("10.0.2.1:80", "0.200")
    table = table_of(tmp_path, "".join(line.format(k, *(both if k == 2 else one)) for k in range(4)))
    assert sorted(table.servers[code] for code in table.server) == ["10.0.2.1:80"] * 3 + ["10.0.2.2:80"]


def test_time_with_earlier_upstreams_is_a_part_of_its_own(tmp_path: Path) -> None:
    begin = '10.1.2.3 - - [22/Nov/2026:10:{0:02}:{1:02} +0000] "POST /a HTTP/1.1" 200 500 "-" "curl" '
    line = begin + '{2} "{3}" "{4}" "{5}"\n'
    one = ("0.03{}", "0.03{}", "10.0.0.1{}:8080", "200")
    two = ("1.04{}", "1.000, 0.03{}", "10.0.0.12:8080, 10.0.0.1{}:8080", "502, 200")
    text = "".join(
        line.format(k // 60, k % 60, *(each.format(k % 2) for each in (two if k % 40 == 7 else one)))
        for k in range(2000)
    )
    table = table_of(tmp_path, text)
    assert sorted(table.servers) == ["10.0.0.10:8080", "10.0.0.11:8080"]
    assert table.parts["retry"].tolist().count(S) == 50 == np.count_nonzero(table.parts["retry"])
    assert table.attempts == ("one upstream", "two upstreams, the first answered 502")
    cause = next(each for each in diagnose_recording(written(tmp_path, text), ReadOptions()).causes if each.named)
    assert cause.cause == "dependency.retry" and cause.tail_share > 0.95
    assert "100 % of the slowest were sent to two upstreams, the first answered 502 (2.50 % of" in cause.evidence


@pytest.mark.parametrize(
    "behind",
    [
        '0.2 0.2 "app-{0}.svc.local:8080"',
        "0.2 0.2 unix:/run/app-{0}.sock",
        "rt=0.2 urt=0.2 upstream=10.0.0.{0}:80",
        'rt=0.2 upstream_addr="10.0.0.{0}:80" urt=0.2',
        "rt=0.2 urt=0.2 upstream_addr=app-{0}",
        "0.2 0.2 [::{0}]:80",
        '0.2 "0.1, 0.1" "10.0.0.7:80, 10.0.0.{0}:80"',
    ],
)
def test_a_server_has_an_address_a_name_a_socket_or_a_key(tmp_path: Path, behind: str) -> None:
    table = table_of(tmp_path, "".join(NGINX.format(k, 200, behind.format(k % 2 + 1)) for k in range(4)))
    assert len(table.servers) == 2 and all(re.search(r"\b[12]\b", name) for name in table.servers)
    assert not any("=" in name or name != name.strip() or "," in name for name in table.servers)
    assert [name[-6:] for name in table.servers] == [table.servers[code][-6:] for code in table.server[:2]]


@pytest.mark.parametrize(
    "row",
    [
        {"time_iso8601": "{at}", "request_time": "0.250", "upstream_response_time": "0.200"},
        {"start_time": "{at}", "response_code": 200, "duration": 250, "x_envoy_upstream_service_time": "200"},
        {"start_time": "{at}", "response_code": 200, "duration": 250, "upstream_service_time": 200},
        {"StartUTC": "{at}", "Duration": 250 * MS, "OriginDuration": 200 * MS, "DownstreamStatus": 200},
    ],
    ids=["nginx", "envoy", "istio", "traefik"],
)
def test_time_beyond_the_upstream_s_is_the_client_s_in_json_too(tmp_path: Path, row: dict[str, Any]) -> None:
    rows = [json.dumps(row).replace("{at}", f"2026-11-22T10:00:0{k}.000Z") + "\n" for k in range(4)]
    table = table_of(tmp_path, "".join(rows))
    assert {name: part.tolist() for name, part in table.parts.items()} == {"client": [50 * MS] * 4}
    assert not table.unread and not table.possible
    # AND what a user says of a column holds
    upstream = next(name for name in row if name.endswith(("response_time", "service_time", "OriginDuration")))
    unit = {"StartUTC": "ns", "start_time": "ms"}.get(next(iter(row)), "s")
    table = table_of(tmp_path, "".join(rows), f"db_{unit}={upstream}")
    assert {name: part.tolist() for name, part in table.parts.items()} == {"db": [200 * MS] * 4}


def test_a_line_of_hypercorn_has_the_version_alone(tmp_path: Path) -> None:
    line = NGINX.format(7, 200, 250_000).replace("HTTP/1.1", "1.1")
    table = table_of(tmp_path, f"[2026-11-22 09:00:07 +0000] [12687] [INFO] {line}" * 2)
    assert table.latency_ns.tolist() == [250 * MS, 250 * MS] and table.status.tolist() == [Status.OK] * 2


def test_the_time_that_a_container_puts_before_a_line_is_when_it_was_written(tmp_path: Path) -> None:
    envoy = (
        '2026-11-22T10:00:10.000000001Z stdout F [2026-11-22T10:00:0{0}.310Z] "POST /a HTTP/2" 200 - via_upstream - '
        '"-" 150 87 22{0} 200 "-" "agent" "cc21d9b0" "locations" "10.0.2.1:80"\n'
    )
    table = table_of(tmp_path, "".join(envoy.format(k) for k in range(3)))  # written together
    assert table.latency_ns.tolist() == [220 * MS, 221 * MS, 222 * MS]
    assert table.arrival_ns.tolist() == [0, S, 2 * S]
    apache = "2026-11-22T09:00:0{}.512345678Z stdout F {}"
    table = table_of(tmp_path, "".join(apache.format(k, NGINX.format(k, 200, 250_000)) for k in range(3)))
    assert table.start_unix_ns == 1795338000 * S + 512_345_678 - 250 * MS
    assert table.resolution_ns == 1


def test_a_bad_line_is_counted_and_reported(tmp_path: Path) -> None:
    lines = [NGINX.format(k, 200, "0.250") for k in range(4)]
    table = table_of(tmp_path, "".join([*lines[:2], "half a li\n", *lines[2:], NGINX.format(5, "-", "0.1")]))
    assert len(table) == 4
    assert table.notes[0].startswith("2 lines were left out, the first in line 3")


@pytest.mark.parametrize("place", [1, 4])
def test_a_line_that_is_cut_off_within_quotes_does_not_hide_the_next_one(tmp_path: Path, place: int) -> None:
    lines = [NGINX.format(k, 200, "0.250") for k in range(4)]
    cut = NGINX.format(9, 200, "0.250").partition("(x)")[0]
    table = table_of(tmp_path, "".join([*lines[:place], cut + "\n" * (place < 4), *lines[place:]]))
    assert len(table) == 4
    assert table.notes[0].startswith(f"1 line was left out, the first in line {place + 1}")


def test_a_log_without_latency_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"add \$request_time"):
        table_of(tmp_path, "".join(NGINX.format(k, 200, "").replace(" \n", "\n") for k in range(3)))


def test_columns_with_known_names(tmp_path: Path) -> None:
    text = "ts,latency_ms,input_tokens,status,model\n" + "".join(
        f"{1763800000 + k}.5,{10 + k},{100 * k},{'ok' if k else 'timeout'},m{k % 2}\n" for k in range(4)
    )
    table = table_of(tmp_path, text)
    assert table.latency_ns.tolist() == [10 * MS, 11 * MS, 12 * MS, 13 * MS]
    assert table.arrival_ns.tolist() == [0, S, 2 * S, 3 * S]
    assert table.features["input_tokens"].tolist() == [0, 100, 200, 300]
    assert table.status.tolist() == [Status.TIMEOUT, 0, 0, 0]
    assert table.routes == ("m0", "m1")


def parquet_bytes(**columns: Any) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    out = pa.BufferOutputStream()
    parquet.write_table(pa.table(columns), out)
    return bytes(out.getvalue())


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_columns_of_parquet(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    import pyarrow as pa

    begun = datetime(2026, 11, 22, 10, tzinfo=UTC)
    content = parquet_bytes(
        start=[begun, begun + timedelta(seconds=1), begun + timedelta(seconds=2)],
        took=[timedelta(milliseconds=250), timedelta(milliseconds=300), None],
        http=[{"request": {"bytes": k}, "headers": ["a"]} for k in (7, 8, 9)],
        status=pa.array([200.0, 500.0, None]),
        route=pa.array(["/a", "/b", "/b"]).dictionary_encode(),
        raw=[b"\xff"] * 3,
        db_ms=pa.array([1.5, 2.5, None], pa.float32()),
    )
    table = table_of(tmp_path, compress(content), "size=http.request.bytes", "latency=took", "db_ms=db_ms")
    assert table.latency_ns.tolist() == [250 * MS, 300 * MS]
    assert table.arrival_ns.tolist() == [0, S]
    assert table.features["size"].tolist() == [7, 8]
    assert table.parts["db"].tolist() == [1_500_000, 2_500_000]
    assert table.status.tolist() == [Status.OK, Status.ERROR] and table.routes == ("/a", "/b")
    assert table.notes[0].startswith("1 line was left out, the first in line 3")


def test_parquet_of_several_blocks_and_of_none(tmp_path: Path) -> None:
    n = 70_000
    table = table_of(tmp_path, parquet_bytes(latency_ms=[*range(n)], arrival_s=[*range(n)]))
    assert table.latency_ns.tolist() == [k * MS for k in range(n)]
    with pytest.raises(InputError, match="found no requests"):
        table_of(tmp_path, parquet_bytes(latency_ms=[], arrival_s=[]))
    with pytest.raises(InputError, match=r"found columns bytes, route; .*--map latency_ms=COLUMN"):
        table_of(tmp_path, parquet_bytes(bytes=[1], route=["/a"]))


def test_json_lines_with_a_mapping(tmp_path: Path) -> None:
    lines = [
        json.dumps({"when": f"2026-11-22T10:00:0{k}Z", "took": {"total": 0.25, "db": 20}, "request_bytes": k})
        for k in range(3)
    ]
    table = table_of(
        tmp_path, "\n".join([*lines, '{"when": "2026-']), "latency_s=took.total", "end=when", "db_ms=took.db",
        "size=request_bytes * 2",
    )  # fmt: skip
    assert table.latency_ns.tolist() == [250 * MS] * 3
    assert table.parts["db"].tolist() == [20 * MS] * 3
    assert table.features["size"].tolist() == [0, 2, 4]
    assert table.notes[0].startswith("1 line was left out, the first in line 4")


@pytest.mark.parametrize(
    ("text", "mapping", "words"),
    [
        ("a,b\n1,2\n", (), "--map latency_ms=COLUMN"),
        ("Type,Name,Median Response Time\nGET,/,5\n", (), "figures of many requests: give a result with one row"),
        ('{"url": "x", "duration": 10.02, "latency": {"p50": 3, "p99": 12}}\n', (), "figures of many requests: give"),
        ('{"log": "{}\\n", "stream": "stdout", "time": "2026"}\n', (), "Docker has wrapped the lines of a log"),
        ('{"error_severity": "LOG", "backend_type": "x", "message": "m"}\n', (), "PostgreSQL has wrapped"),
        ('{"events": [{"timestamp": 1, "message": "m"}], "searchedLogStreams": []}', (), "CloudWatch has wrapped"),
        ('{"__REALTIME_TIMESTAMP": "1", "MESSAGE": "{}"}\n', (), "journald has wrapped the lines of a log"),
        ('{"a": 1, "b": 1, "timeTaken": 1}\n', (), "found columns timeTaken, a, b"),
        ("ts,duration\n1,2\n", (), "--map latency_ms=duration"),
        ("ts,latency_ms\n1,2\n", ("latency_ms=lat",), "found no column 'lat'"),
        ("ts,latency_ms\nx,y\nz,w\n", (), "recording:2: found"),
        ("ts,latency_ms\n", (), "found no requests"),
        ("ts,latency_ms\n1,2\n", ("latency_ms=exec('x')",), "expected numbers"),
    ],
)
def test_an_incomplete_log_is_refused(tmp_path: Path, text: str, mapping: tuple[str, ...], words: str) -> None:
    with pytest.raises(InputError) as raised:
        table_of(tmp_path, text, *mapping)
    assert words in raised.value.message


WRITERS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "aiperf": ("requests", lambda: aiperf_lines().encode()),
    "har": ("requests", lambda: json.dumps(har_document()).encode()),
    "vllm": ("requests", lambda: json.dumps(vllm_document(start_times=[5.0, 5.5, 6.0])).encode()),
    "triton": ("requests", lambda: json.dumps(triton_document(), indent=1).encode()),
    "perf_analyzer": ("requests", lambda: json.dumps(perf_analyzer_document()).encode()),
    "steps": ("requests", lambda: "".join(STEP.format(k, "") for k in range(9)).encode()),
    "otlp": ("spans", lambda: json.dumps(otlp_document(), indent=1).encode()),
    "otlp protobuf": ("spans", otlp_bytes),
    "prometheus": ("requests", HISTOGRAM.encode),
    "nginx": ("requests", lambda: "".join(NGINX.format(k, 200, "0.250") for k in range(9)).encode()),
    "csv": ("requests", lambda: b"ts,latency_ms\n" + b"".join(b"%d,5\n" % k for k in range(9))),
    "parquet": ("requests", lambda: parquet_bytes(ts=[*range(9)], latency_ms=["5"] * 9)),
}


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("writer", WRITERS)
def test_each_format_is_recognized_by_its_content(tmp_path: Path, writer: str, compressed: bool) -> None:
    kind, write = WRITERS[writer]
    path = written(tmp_path, gzip.compress(write()) if compressed else write())
    result = diagnose_recording(path, ReadOptions())
    assert result.source is not None and result.source.kind == kind
    assert result.source.path == str(path)
    json.dumps(result.to_json(), allow_nan=False)


#: Formats whose files may end after any line.
BY_LINE = {"prometheus", "steps", "nginx", "csv"}


@pytest.mark.parametrize(
    ("writer", "compressed"),
    [*((name, True) for name in WRITERS), *((name, False) for name in WRITERS if name not in BY_LINE)],
)
def test_a_cut_off_file_is_refused_in_one_line(tmp_path: Path, writer: str, compressed: bool) -> None:
    whole = WRITERS[writer][1]()
    path = written(tmp_path, gzip.compress(whole, 0)[:-12] if compressed else whole[: len(whole) * 3 // 4])
    with pytest.raises(InputError) as raised:
        diagnose_recording(path, ReadOptions())
    assert str(path) in raised.value.message and "\n" not in raised.value.message


def test_a_first_row_with_too_many_fields_is_left_out(tmp_path: Path) -> None:
    table = table_of(tmp_path, "ts,latency_ms\n1763800000,10,x\n1763800001,11\n1763800002,12\n")
    assert table.latency_ns.tolist() == [11 * MS, 12 * MS]
    assert table.notes[0].startswith("1 line was left out, the first in line 2")


def test_parts_that_are_no_times_are_noted(tmp_path: Path) -> None:
    rows = [f"{1763800000 + k},{10 + k},{('3', '-1', 'NaN', '', '99')[k]}" for k in range(5)]
    table = table_of(tmp_path, "\n".join(["ts,latency_ms,db", *rows]), "db_ms=db")
    assert table.notes == ("db is missing, negative or no number in 3 of 5 requests: counted as no time there.",)
    result = diagnose_recording(tmp_path / "recording", ReadOptions(mapping=("db_ms=db",)))
    assert any("longer than the whole latency in 1 request of 5" in note for note in result.notes)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\x01\x02",
        b"just a text\nof two lines\n",
        b"{}",
        b"[]",
        b"null",
        pytest.param(b"[" * 200_000, id="["),
    ],
)
def test_unknown_files_are_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InputError):
        diagnose_recording(written(tmp_path, content), ReadOptions())


def test_a_log_of_requests_with_the_engines_steps(tmp_path: Path) -> None:
    (tmp_path / "profile_export.jsonl").write_text(aiperf_lines())
    (tmp_path / "server.log").write_text(
        "".join(STEP.format(k, "").replace("11-22 10:00:0", "2025-11-22 08:26:4") for k in range(5))
    )
    assert detect(recorded_at(tmp_path)) is not None
    result = diagnose_recording(tmp_path, ReadOptions())
    assert result.source is not None and result.source.read["steps"] == 5


_SPAN = {"traceId": "a", "spanId": "b", "startTimeUnixNano": "1", "endTimeUnixNano": "5", "name": "n"}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"resourceSpans": "x"}, "a value of another type than is usual there"),
        ({"resourceSpans": [{"scopeSpans": [{"spans": ["x"]}]}]}, "a value of another type than is usual there"),
        (
            {"resourceSpans": [{"scopeSpans": [{"spans": [{**_SPAN, "startTimeUnixNano": "noon"}]}]}]},
            "the value 'noon', which is no number",
        ),
    ],
)
def test_a_malformed_span_is_described_in_plain_words(tmp_path: Path, document: Any, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"found a span that is malformed ({words})")):
        otlp_spans.read(written(tmp_path, json.dumps(document)))


@pytest.mark.parametrize("text", ['{"data": []}', '{"data":null,"total":0}'])
def test_an_answer_of_jaeger_without_a_trace_says_so(tmp_path: Path, text: str) -> None:
    assert jaeger_spans.knows(text.encode())
    with pytest.raises(InputError, match="found no spans; expected Jaeger's JSON"):
        jaeger_spans.read(written(tmp_path, text))


def test_users_of_a_log_are_read(tmp_path: Path) -> None:
    rows = "".join(f"{k},5,u{k % 3}\n" for k in range(9))
    assert table_of(tmp_path, f"ts,latency_ms,user_id\n{rows}9,5,-\n").user.tolist() == [0, 1, 2] * 3 + [-1]


def test_columns_with_one_name_are_noted(tmp_path: Path) -> None:
    notes = table_of(tmp_path, "ts,latency_ms,db_ms,db_ms\n" + "1,5,1,2\n" * 3).notes
    assert any("db_ms more than once" in note and "db_ms#4" in note for note in notes)


def test_a_mapping_without_a_role_says_what_one_looks_like(tmp_path: Path) -> None:
    text = "ts,latency_ms,x\n" + "1,5,1\n" * 3
    with pytest.raises(InputError, match="found 'x/0'; expected ROLE=COLUMN or ROLE=EXPRESSION"):
        table_of(tmp_path, text, "x/0")
    assert "--map y is no number in 3 of 3 requests: counted as 0 there." in table_of(tmp_path, text, "y=x/0").notes
