"""Spans and metrics posted to a collector: what arrives, and what a user reads where it is not taken."""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from latfix.errors import InputError
from latfix.gates.evaluate import GateResult
from latfix.gates.syntax import parse_gate
from latfix.profilers.chunked.record_chunks import WholeRecord
from latfix.reports.exports.otlp_http import Collector
from latfix.reports.exports.otlp_metrics import otlp_metrics
from tests.cli.commands.reading.test_export import N, a_run
from tests.cli.conftest import refused
from tests.conftest import cli, succeeded
from tests.reports.conftest import Session
from tests.reports.exports.test_exports import with_batches

Answer = tuple[int, dict[str, Any]]


class Receiver(ThreadingHTTPServer):
    """Keeps what is posted; answers with ``answers``, then with success."""

    def __init__(self, *answers: Answer) -> None:
        self.posted: list[tuple[str, str, bytes]] = []
        self.tokens: list[str | None] = []
        self.answers = list(answers)
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append((self.path, self.headers["Content-Type"], body))
        self.server.tokens.append(self.headers["Authorization"])
        code, document = self.server.answers.pop(0) if self.server.answers else (200, {})
        answer = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_spans_and_metrics_arrive_in_bounded_batches(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("latfix.reports.exports.otlp_spans._PER_LINE", 100)
    run = a_run(tmp_path / "run")
    out = succeeded(cli("export", run, "--to", "otlp", "--endpoint", f"{receiver.endpoint}/"))
    words = f"sent the spans of {run} in 3 batches and the metrics of the diagnosis to {receiver.endpoint}/"
    assert " ".join(out.split()) == words
    assert [path for path, _, _ in receiver.posted] == ["/v1/traces"] * 3 + ["/v1/metrics"]
    assert {kind for _, kind, _ in receiver.posted} == {"application/json"}
    roots = [
        span
        for path, _, body in receiver.posted
        if path == "/v1/traces"
        for span in json.loads(body)["resourceSpans"][0]["scopeSpans"][0]["spans"]
        if "parentSpanId" not in span
    ]
    assert len(roots) == N


def test_metrics_are_opened_by_opentelemetry(session: Session) -> None:
    service = pytest.importorskip("opentelemetry.proto.collector.metrics.v1.metrics_service_pb2", reason="not there")
    json_format = importlib.import_module("google.protobuf.json_format")
    record, diagnosis = session
    source = WholeRecord(with_batches(record))
    found = json_format.Parse(otlp_metrics(diagnosis, source), service.ExportMetricsServiceRequest())
    metrics = {each.name: each for each in found.resource_metrics[0].scope_metrics[0].metrics}
    counts = {
        point.attributes[1].value.string_value: point.as_int for point in metrics["latfix.requests"].sum.data_points
    }
    assert counts == dict(diagnosis.requests)
    (buckets,) = metrics["latfix.request_latency"].histogram.data_points
    assert sum(buckets.bucket_counts) == buckets.count == record.measured.sum()
    assert len(buckets.bucket_counts) == len(buckets.explicit_bounds) + 1
    assert buckets.time_unix_nano >= buckets.start_time_unix_nano > 0


def test_a_busy_collector_is_asked_again_and_a_rejection_is_one_line(receiver: Receiver) -> None:
    waited: list[float] = []
    collector = Collector(receiver.endpoint, sleep=waited.append)
    receiver.answers = [(503, {}), (429, {}), (200, {"partialSuccess": {}})]
    collector.post("traces", "{}")
    assert waited == [1.0, 2.0] and len(receiver.posted) == 3
    for answers, words in (
        ([(200, {"partialSuccess": {"rejectedSpans": "5", "errorMessage": "too\x1b[31m old"}})], "5 rejected: too"),
        ([(404, {})], "found 404 Not Found for /v1/traces; expected an OTLP receiver"),
        ([(503, {})] * 4, "found 503 Service Unavailable"),
    ):
        receiver.answers = list(answers)
        with pytest.raises(InputError) as caught:
            collector.post("traces", "{}")
        assert words in caught.value.message and "\x1b" not in caught.value.message
        assert "\n" not in caught.value.message


def test_headers_of_the_environment_are_sent_and_never_shown(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = "OTEL_EXPORTER_OTLP_HEADERS"
    monkeypatch.setenv(variable, "authorization=Bearer%20secret, content-type=text/plain,")
    Collector(receiver.endpoint).post("traces", "{}")
    assert receiver.tokens == ["Bearer secret"] and receiver.posted[0][1] == "application/json"
    for bad in ("x=1,secret", "x=secret%0d%0aHost:%20y", "=secret", "a b=secret"):
        monkeypatch.setenv(variable, bad)
        with pytest.raises(InputError, match=f"^{variable}: found no header in its part [12]; expected") as caught:
            Collector(receiver.endpoint)
        assert "secret" not in caught.value.message


def test_a_collector_that_is_not_there_is_one_line() -> None:
    with Receiver() as closed:
        endpoint = closed.endpoint
    with pytest.raises(InputError, match=r"^--endpoint http://127\.0\.0\.1:\d+: found no collector \(.*refused"):
        Collector(endpoint).post("traces", "{}")


@pytest.mark.parametrize(
    "text", ["", "localhost:4318", "ftp://h", "http://", "http://h:x", "http://h:99999", "http://h/\n"]
)
def test_an_endpoint_is_an_address(text: str) -> None:
    with pytest.raises(InputError, match="expected an address such as http://localhost:4318"):
        Collector(text)


@pytest.mark.parametrize("more", [("--to", "csv"), ("--to", "otlp", "--out", "x")])
def test_an_endpoint_is_for_spans_alone(more: tuple[str, ...], tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    refused(cli("export", run, *more, "--endpoint", "http://h:4318"), "expected --to otlp, without --out")


def test_an_undecided_gate_has_no_value(ordinary: Session) -> None:
    gates = tuple(
        GateResult(gate=parse_gate(f"p99<{k}00ms"), value=1.0, limit=1.0, passed=passed, reason="")
        for k, passed in enumerate((True, None, False), start=1)
    )
    document = json.loads(otlp_metrics(replace(ordinary[1], gates=gates), WholeRecord(ordinary[0])))
    (gate,) = (
        each
        for each in document["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
        if each["name"] == "latfix.gate_passed"
    )
    assert [point["asInt"] for point in gate["gauge"]["dataPoints"]] == ["1", "0"]
