"""``latfix diagnose http://…`` against real services on loopback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.cli.app import main
from latfix.errors import EXIT_INPUT, EXIT_RUNNER
from latfix.profilers.evidence.outside.serving_processes import served_by
from latfix.profilers.services.listening_processes import descendants
from latfix.run_record.run_record import RunRecord
from latfix.runners.http_target import http_session
from latfix.runners.http_target.address import Trust, parse_address
from latfix.traffic.sent_ids import sent_id, trace_of
from tests.runners.http_target.conftest import Plant

OF_A_CROWD = ("host.contention", "observer")


def write_arrivals(path: Path, at: np.ndarray, **fields: Any) -> Path:
    """Traffic with these arrivals; a field is a value, or a function of the request's number."""
    with path.open("w", encoding="utf-8") as file:
        for k, arrival_s in enumerate(np.round(np.sort(at), 6).tolist()):
            values = {name: value(k) if callable(value) else value for name, value in fields.items()}
            file.write(json.dumps({"arrival_s": arrival_s, **values}) + "\n")
    return path


def write_traffic(path: Path, requests: int, gap_s: float, **fields: Any) -> Path:
    return write_arrivals(path, np.cumsum(np.random.default_rng(4).exponential(gap_s, requests)), **fields)


def causes_of(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The causes by their ids, which sum to the tail's excess."""
    assert sum(each["tail_ms"] for each in found["causes"]) == pytest.approx(found["tail"]["excess_ms"])
    return {each["cause"]: each for each in found["causes"]}


def largest(found: dict[str, Any]) -> str:
    """The largest cause, except for those of which a crowded machine adds as much."""
    others = {name: each["tail_ms"] for name, each in causes_of(found).items() if name not in OF_A_CROWD}
    return max(others, key=lambda name: others[name])


def diagnose(tmp_path: Path, *words: str) -> tuple[int, dict[str, Any], RunRecord]:
    code = main(["diagnose", *words, "--out", str(tmp_path / "run"), "--json", str(tmp_path / "d.json")])
    found = json.loads((tmp_path / "d.json").read_text(encoding="utf-8"))
    return code, found, RunRecord.load(tmp_path / "run")


@pytest.mark.slow
def test_a_slow_dependency_is_named_from_outside_and_two_runs_compare(tmp_path: Path, planted: Plant) -> None:
    service = planted("dependency")
    traffic = write_traffic(tmp_path / "t.jsonl", 200, 0.02, payload={"x": 1})
    words = (service.at(), "--traffic", str(traffic), "--slowest", "2")
    code, found, record = diagnose(tmp_path, *words, "--pid", str(service.pid))
    assert code == 0
    assert found["source"] == {"kind": "http", "path": service.at(), "unit": "request"}
    assert largest(found) == "external.dependency"
    assert found["stages_ms"]["queue"]["mean"] is None
    rows = record.requests
    stages = ("dispatch", "prepare", "compute", "finish")
    assert np.array_equal(np.sum([rows[f"{stage}_ns"] for stage in stages], axis=0), rows["latency_ns"])
    assert (rows["dispatch_ns"] >= 0).all()
    assert found["service"]["process"]["pid"] == service.pid
    assert [record.meta.http[name] for name in ("accepts", "beside")] == [True, []]
    again = tmp_path / "again"
    again.mkdir()
    assert diagnose(again, *words[:3], "--limit", "60")[0] == 0
    assert main(["compare", str(tmp_path / "run"), str(again / "run")]) == 0
    assert main(["report", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "first_byte" in page


@pytest.mark.slow
def test_a_process_that_does_not_serve_is_no_evidence(tmp_path: Path, planted: Plant) -> None:
    service, other = planted("dependency"), planted("steady")
    traffic = write_traffic(tmp_path / "t.jsonl", 150, 0.025, payload={"x": 1})
    _, found, record = diagnose(tmp_path, service.at(), "--traffic", str(traffic), "--pid", str(other.pid))
    assert record.meta.http["accepts"] is False and str(service.pid) in record.meta.http["listening"]
    assert any("--pid is wrong" in note and f"{service.pid} (" in note for note in found["notes"])
    assert largest(found) == "unexplained"


@pytest.mark.slow
def test_streams_have_a_first_token_and_gaps(tmp_path: Path, planted: Plant) -> None:
    service = planted("stream")
    traffic = write_traffic(tmp_path / "t.jsonl", 30, 0.05, output_tokens=6, input_tokens=10)
    address = service.at("/v1/chat/completions")
    code, found, record = diagnose(
        tmp_path, address, "--traffic", str(traffic), "--slo", "ttft<60s", "--slo", "gap<0.001ms"
    )
    assert code == 0
    streams = found["service"]["streams"]
    assert (streams["requests"], streams["output_tokens"]) == (30, 180)
    assert set(record.requests["chunks"].tolist()) == {6}
    assert (record.requests["first_token_ns"] >= record.requests["latency_ns"] - record.requests["finish_ns"]).all()
    assert streams["gap_ms"]["p50"] >= 10  # the service sleeps so long in between
    assert found["service"]["goodput"]["share"] == 0


@pytest.mark.slow
def test_errors_and_timeouts_are_counted_with_how_long_they_waited(tmp_path: Path, planted: Plant) -> None:
    service = planted("unstable")
    traffic = write_traffic(tmp_path / "t.jsonl", 70, 0.03, payload={})
    _, found, record = diagnose(tmp_path, service.at(), "--traffic", str(traffic), "--timeout", "0.5")
    counts = found["requests"]
    assert counts["error"] >= 14
    assert counts["timeout"] >= 1
    assert sum(counts[name] for name in ("ok", "error", "timeout", "shed")) == 70
    waited = record.requests["latency_ns"][record.requests["status"] == 2]
    assert (waited >= 500_000_000).all()
    assert any("HTTP 500" in message for message in record.errors.values())


@pytest.mark.slow
def test_secrets_stay_out_of_the_record(tmp_path: Path, planted: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "hunter2hunter2")
    service = planted("steady")
    traffic = write_traffic(tmp_path / "t.jsonl", 20, 0.01, payload={})
    address = service.at("/predict?key=hunter2hunter2")
    words = ("--traffic", str(traffic), "--header", "Authorization: Bearer $SECRET_KEY", "--no-keep-alive")
    code, found, record = diagnose(tmp_path, address, *words)
    assert code == 0
    assert (record.requests["new_connection"] == 1).all()
    assert found["service"]["connections"] == 20
    for file in (tmp_path / "run").iterdir():
        assert b"hunter2" not in file.read_bytes(), file.name


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["http://127.0.0.1:{closed}/x"], "found no service on"),
        (["http://no-such-host.invalid/x"], "no host"),
        (["grpc://127.0.0.1:8001"], "found no model"),
        (["http://127.0.0.1:{closed}/x", "--body", "{{oops"], "no JSON"),
        (["http://127.0.0.1:{closed}/x", "--pid", "999999999"], "no process"),
        (["http://127.0.0.1:{closed}/x", "--slo", "p99<1"], "--slo"),
        (["http://127.0.0.1:{closed}/x", "--plan", "plan.toml"], "--plan"),
        (["http://127.0.0.1:{closed}/x", "--header", "nonsense"], "--header"),
        (["http://127.0.0.1:{closed}/x", "--timeout", "0"], "--timeout"),
        (["recommender", "--pid", "1"], "--pid"),
    ],
)
def test_an_invalid_command_is_one_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], found: str
) -> None:
    with socket.socket() as taken:  # bound but not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        traffic = write_traffic(tmp_path / "t.jsonl", 3, 0.01, payload={})
        filled = [word.format(closed=taken.getsockname()[1]) for word in words]
        assert main(["diagnose", *filled, "--traffic", str(traffic), "--out", str(tmp_path / "run")]) == EXIT_INPUT
    error = capsys.readouterr().err.strip()
    assert found in error
    assert "\n" not in error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "code", "reason"),
    [
        ("refusing", EXIT_INPUT, "HTTP 404 Not Found"),
        ("broken", EXIT_RUNNER, 'HTTP 500 Internal Server Error: {"error": "no weights for '),
    ],
)
def test_a_service_that_fails_on_every_request_ends_the_replay_early(
    tmp_path: Path, planted: Plant, capsys: pytest.CaptureFixture[str], fault: str, code: int, reason: str
) -> None:
    traffic = write_traffic(tmp_path / "t.jsonl", 3000, 0.01, payload={})
    out = tmp_path / "run"
    assert main(["diagnose", planted(fault).at(), "--traffic", str(traffic), "--out", str(out)]) == code
    assert reason in capsys.readouterr().err.splitlines()[-1]
    assert len(RunRecord.load(out).requests["index"]) < 1000


@pytest.mark.slow
def test_a_service_that_only_limits_its_rate_is_not_the_request_s_fault(
    tmp_path: Path, planted: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    traffic = write_traffic(tmp_path / "t.jsonl", 60, 0.01, payload={})
    out = str(tmp_path / "run")
    assert main(["diagnose", planted("limiting").at(), "--traffic", str(traffic), "--out", out]) == EXIT_RUNNER
    assert "no request ended ok; the first failure: HTTP 429 Too Many Requests" in capsys.readouterr().err


@pytest.mark.slow
def test_an_address_without_tls(
    tmp_path: Path, planted: Plant, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_session, "_CONNECT_S", 0.5)
    service = planted("steady")
    traffic = write_traffic(tmp_path / "t.jsonl", 3, 0.01, payload={})
    address = service.at().replace("http:", "https:")
    assert main(["diagnose", address, "--traffic", str(traffic), "--out", str(tmp_path / "run")]) == EXIT_INPUT
    assert "the TLS handshake failed" in capsys.readouterr().err


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize(("fault", "cause"), [("lock", "service.lock"), ("interpreter", "python.gil")])
def test_waits_between_threads_are_seen_from_outside(tmp_path: Path, planted: Plant, fault: str, cause: str) -> None:
    service = planted(fault)
    traffic = write_traffic(tmp_path / "t.jsonl", 200, 0.025, payload={})
    _, found, _ = diagnose(tmp_path, service.at(), "--traffic", str(traffic), "--pid", str(service.pid))
    causes = {name: each for name, each in causes_of(found).items() if name not in OF_A_CROWD}
    if fault == "interpreter":  # who holds its lock computes for as long as others wait
        own = [causes.pop(name)["tail_ms"] for name in ("service.compute", "unexplained") if name in causes]
        assert sum(own) < 2 * causes[cause]["tail_ms"]
    assert causes[cause]["named"]
    assert max(causes, key=lambda name: causes[name]["tail_ms"]) == cause


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"payload": {"x": [0.5, 1.5], "k": 3}}, 0),  # a batch of one is made
        ({"payload": {"x": [[0.5, 1.5], [2, 3]], "k": [[3], [4]]}}, 0),
        ({"k": 3}, EXIT_INPUT),  # features alone do not give x
        ({"payload": {"x": [[0.5, 1.5], [2]], "k": 3}}, EXIT_INPUT),
        ({"payload": {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}}, EXIT_INPUT),
    ],
)
def test_kserve_tensors_follow_the_metadata(
    tmp_path: Path, planted: Plant, fields: dict[str, Any], code: int
) -> None:
    traffic = write_traffic(tmp_path / "t.jsonl", 20, 0.02, **fields)
    address = planted("kserve").at("/v2/models/m/infer")
    assert main(["diagnose", address, "--traffic", str(traffic), "--out", str(tmp_path / "run")]) == code


@pytest.mark.slow
def test_what_the_services_metrics_report_is_in_the_ledger(tmp_path: Path, planted: Plant) -> None:
    service = planted("reporting_queue")
    traffic = write_traffic(tmp_path / "t.jsonl", 260, 0.02, output_tokens=3)
    code, found, _ = diagnose(tmp_path, service.at("/v1/chat/completions"), "--traffic", str(traffic))
    assert code == 0
    assert largest(found) == "service.queue"
    evidence = causes_of(found)["service.queue"]["evidence"]
    assert "measured by interval, not by request (vllm:request_queue_time_seconds" in evidence
    parts = {each["part"]: each for each in found["service"]["parts"]}
    assert parts["queue"]["slow_ms"] > 2 * parts["queue"]["typical_ms"]
    slow = sum(each["slow_ms"] for each in parts.values())
    assert parts["queue"]["slow_ms"] > 0.5 * slow
    assert slow >= found["latency_ms"]["p99"] * 0.999
    assert main(["report", str(tmp_path / "run")]) == 0
    assert "queue" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_metrics_are_read_unless_that_is_turned_off(planted: Plant) -> None:
    address = parse_address(planted("reporting_queue").at())
    found = [http_session.find_metrics(address, {}, option, Trust()) for option in (None, "off")]
    assert found == [address.at("/metrics").url, None]


@pytest.mark.slow
def test_the_services_log_is_joined_by_request(
    tmp_path: Path, planted: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "server.jsonl"
    log.write_text('{"ts": 1, "request_id": "r0", "status": 200, "queue_ms": 0, "db_ms": 1, "duration_ms": 1}\n')
    service = planted("logging_requests", str(log))
    traffic = write_traffic(tmp_path / "t.jsonl", 200, 0.02, payload={})
    words = (service.at(), "--traffic", str(traffic), "--percentile", "95")
    joining = ("--server-log", str(log), "--server-map", "db_ms=db_ms")
    code, found, record = diagnose(tmp_path, *words, *joining)
    assert code == 0
    by_cause = causes_of(found)
    assert max(by_cause, key=lambda name: by_cause[name]["tail_ms"]) == "external.dependency"
    dependency = by_cause["external.dependency"]
    assert dependency["class"] == "measured"
    assert "for db, measured by request (server.jsonl)" in dependency["evidence"]
    assert "service.queue" in by_cause
    truth = {each["request_id"]: each for each in map(json.loads, log.read_text().splitlines())}
    rows = record.requests
    slow = rows["index"][rows["latency_ns"] >= np.quantile(rows["latency_ns"], 0.95)]
    sent = [truth[sent_id(record.meta.http["run"], record.traffic.ids[k])] for k in slow.tolist()]
    parts = {each["part"]: each["slow_ms"] for each in found["service"]["parts"]}
    assert parts["queue"] == pytest.approx(np.mean([each["queue_ms"] for each in sent]), rel=0.1)
    assert parts["dependency"] == pytest.approx(np.mean([each["db_ms"] for each in sent]), rel=0.1)
    assert any("1 request in server.jsonl" in note for note in found["notes"])
    again = tmp_path / "again"
    again.mkdir()
    assert diagnose(again, *words, "--limit", "60", *joining)[0] == 0  # with other ids, so only its own are joined
    log.write_text('{"ts": 1, "trace_id": "abc-1", "queue_ms": 0, "duration_ms": 1}\n')
    capsys.readouterr()
    assert main(["report", str(tmp_path / "run"), "--server-log", str(log)]) == EXIT_INPUT
    error = capsys.readouterr().err.strip()
    assert "\n" not in error
    assert "such as 'abc-1'" in error and sent_id(record.meta.http["run"], record.traffic.ids[0]) in error


@pytest.mark.slow
def test_spans_are_joined_by_the_trace_that_was_sent(tmp_path: Path, planted: Plant) -> None:
    """Also by a service whose clock is a day behind."""
    service = planted("dependency")
    traffic = write_traffic(tmp_path / "t.jsonl", 200, 0.02, payload={})
    _, alone, record = diagnose(tmp_path, service.at(), "--traffic", str(traffic))
    assert "external.dependency" not in causes_of(alone)  # nothing shows it
    for name, offset_s in (("now", 0), ("yesterday", -86_400)):
        run = shutil.copytree(tmp_path / "run", tmp_path / name)
        file = _spans(tmp_path / f"{name}.json", record, offset_s)
        code = main(["report", str(run), "--server-log", str(file), "--json", str(tmp_path / "r.json")])
        found = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
        assert code == 0
        assert found["verdict"] == "external.dependency"
        parts = {each["part"]: each["typical_ms"] for each in found["service"]["parts"]}
        assert parts["queue"] == pytest.approx(0.5, abs=0.01)
        assert parts["compute"] == pytest.approx(3.0, abs=0.01)
        assert parts["network"] == pytest.approx(0.2, abs=0.2)
        assert "for db" in causes_of(found)["external.dependency"]["evidence"]
        assert sum("Without a partner" in note for note in found["notes"]) == 1


def _spans(file: Path, record: RunRecord, offset_s: int) -> Path:
    """Spans of the service for each request that was sent, and of one that was not."""
    spans = []
    for row, k in enumerate(record.requests["index"].tolist()):
        trace, client = trace_of(record.meta.http["run"], record.traffic.ids[k])
        took, wait = int(record.requests["compute_ns"][row]) - 200_000, 3_000_000
        begin = 10**18 + offset_s * 10**9 + int(record.requests["arrival_ns"][row])
        inside = ("S", client, "api", "POST /predict", 0, took), ("Q", "S", "api", "queue", 0, 500_000)
        called = ("C", "S", "api", "SELECT", 500_000, took - wait), ("D", "C", "db", "query", 700_000, took - wait)
        spans += [_span(trace, client, begin, *each) for each in (*inside, *called)]
    spans.append(_span("f" * 32, "e" * 16, 10**18, "S", "", "api", "GET /health", 0, 1_000_000))
    file.write_text("\n".join(json.dumps(each) for each in spans) + "\n", encoding="utf-8")
    return file


def _span(
    trace: str, client: str, at: int, name: str, parent: str, service: str, operation: str, begin: int, end: int
) -> dict[str, Any]:
    """A span of a request as a line of OTLP; its name and its parent's are made unique by the client's span."""
    ids = {"traceId": trace, "spanId": name + client, "parentSpanId": parent + client if len(parent) == 1 else parent}
    times = {"startTimeUnixNano": str(at + begin), "endTimeUnixNano": str(at + end)}
    span = {**ids, **times, "name": operation, "kind": 3 if name == "C" else 2}
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}


#: Three forked processes share a listening socket; each notes the ids of the requests that it served.
_FORKED = """
import os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm, wbufsize = "HTTP/1.1", True, -1

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        log.write(f"{self.headers['X-Request-Id']} {os.getpid()}\\n")
        sum(range(100_000))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *words):
        pass

log = open(sys.argv[2], "a", buffering=1)
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, os.getpid(), flush=True)
os.fork() and os.fork()
server.serve_forever()
"""


@pytest.mark.slow
def test_the_process_that_served_each_request_is_found(tmp_path: Path, planted: Plant) -> None:
    """A burst opens several connections, which are then kept alive."""
    (tmp_path / "forked.py").write_text(_FORKED, encoding="utf-8")
    service = planted("forked", str(tmp_path / "log"), script=str(tmp_path / "forked.py"))
    try:
        at = np.concatenate([np.zeros(12), 0.5 + np.arange(150) * 0.02])
        traffic = write_arrivals(tmp_path / "t.jsonl", at, payload={"x": 1})
        _, found, record = diagnose(tmp_path, service.at(), "--traffic", str(traffic), "--pid", str(service.pid))
        served = dict(line.split() for line in (tmp_path / "log").read_text().splitlines())
    finally:
        for child in descendants(service.pid).keys() - {service.pid}:
            os.kill(child, signal.SIGKILL)
    run = record.meta.http["run"]
    truth = np.array([int(served[sent_id(run, record.traffic.ids[k])]) for k in record.requests["index"]])
    known = served_by(record)
    assert np.array_equal(known[known > 0], truth[known > 0]) and np.mean(known > 0) > 0.9
    if len(set(truth)) > 1:  # else one process accepted all connections
        assert [one["pid"] for one in found["service"]["processes"]] == sorted(set(truth))
