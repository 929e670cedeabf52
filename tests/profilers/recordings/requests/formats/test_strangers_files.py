"""Unusual files: other writers, encodings, zones, retries, lost requests, and all kinds of damage."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import shlex
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.errors import InputError
from latfix.profilers.recordings.detect import diagnose_recording
from latfix.profilers.recordings.reader import ReadOptions
from latfix.profilers.recordings.requests.formats import access_log, mapped_log, otlp_spans, span_columns
from latfix.profilers.recordings.requests.request_table import CANCELLED
from latfix.profilers.recordings.requests.row_checks import with_checked_rows
from latfix.profilers.recordings.requests.text_source import instant_ns
from latfix.profilers.services.prometheus_metrics import parse_metrics
from latfix.stages import Status
from tests.profilers.recordings.requests.formats.test_formats import (
    HISTOGRAM,
    MS,
    NGINX,
    STEP,
    WRITERS,
    S,
    aiperf_lines,
    field,
    otlp_document,
    table_of,
    vllm_document,
    written,
)
from tests.profilers.recordings.requests.simulated_log import simulated


def zstandard(data: bytes) -> bytes:
    import pyarrow as pa

    return bytes(pa.compress(data, codec="zstd", asbytes=True))


@pytest.mark.parametrize("pack", [zstandard, bz2.compress, lzma.compress], ids=["zstd", "bz2", "xz"])
def test_compression(tmp_path: Path, pack: Any) -> None:
    for writer in ("nginx", "csv", "otlp"):
        whole = pack(WRITERS[writer][1]())
        path = written(tmp_path, whole).rename(tmp_path / os.fsdecode(b"caf\xe9"))
        assert diagnose_recording(path, ReadOptions()).source is not None
        with pytest.raises(InputError, match="recording"):
            diagnose_recording(written(tmp_path, whole[: len(whole) * 2 // 3]), ReadOptions())


def test_gzip_of_several_members_that_begins_with_an_empty_one(tmp_path: Path) -> None:
    packed = gzip.compress(b"") + gzip.compress(WRITERS["nginx"][1]())
    assert diagnose_recording(written(tmp_path, packed), ReadOptions()).source is not None


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("writer", ["nginx", "csv", "otlp", "aiperf", "prometheus"])
def test_byte_order_marks_and_utf16_are_read(tmp_path: Path, writer: str, encoding: str) -> None:
    text = WRITERS[writer][1]().decode().replace("\n", "\r\n")
    result = diagnose_recording(written(tmp_path, text.encode(encoding)), ReadOptions())
    plain = diagnose_recording(written(tmp_path, text), ReadOptions())
    assert result.to_json()["latency_ms"] == plain.to_json()["latency_ms"]


def test_bytes_that_are_not_utf8_are_replaced(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = "".join(NGINX.format(k, 200, "0.250") for k in range(4)).replace("items", "größe")
    table = table_of(tmp_path, lines.encode("latin-1") + b"\xff bad\n")
    assert len(table) == 4 and table.notes[0].startswith("1 line was left out")
    log = "ts,latency_ms,route\n1763800000,5,größe\n1763800001,6,b\n"
    assert len(table_of(tmp_path, log.encode("latin-1")).routes) == 2
    assert capfd.readouterr().err == ""


def test_the_zone_may_change_within_a_log(tmp_path: Path) -> None:
    before, after = (NGINX.format(k, 200, "0.250") for k in (1, 1))
    table = table_of(tmp_path, before.replace("+0100", "+0200") + after)
    assert table.arrival_ns.tolist() == [0, 3600 * S]


@pytest.mark.parametrize("times", ["0.5, 0.25", "0.5 : 0.25"])
def test_retried_requests_are_kept(tmp_path: Path, times: str) -> None:
    quoted = [NGINX.format(k, 200, 'rt=0.300 urt="0.200"') for k in range(3)]
    table = table_of(tmp_path, "".join([*quoted, NGINX.format(3, 200, f'rt=0.800 urt="{times}"')]))
    assert table.latency_ns.max() == 800 * MS and table.parts["client"].tolist()[-1] == 50 * MS
    bare = "12 0.{0}00 [default-web-80] [] 10.1.2.3:8080 2048 0.{0}00 200 abcdef"
    several = "12 0.800 [default-web-80] [] 10.1.2.3:8080, 10.1.2.4:8080 0, 2048 0.500, 0.250 502, 200 abcdef"
    lines = [*(NGINX.format(k, 200, bare.format(1)) for k in range(3)), NGINX.format(4, 200, several)]
    table = table_of(tmp_path, "".join(lines))
    assert table.latency_ns.tolist() == [100 * MS] * 3 + [800 * MS]
    assert table.parts["client"].tolist()[-1] == 50 * MS
    assert not any("left out" in note for note in table.notes)


def test_nginx_with_dates_in_iso_8601(tmp_path: Path) -> None:
    line = '2026-11-22T10:00:0{0}+01:00 10.0.0.1 "GET /a HTTP/1.1" 200 512 "-" "curl" 0.12{0} 0.120 0.001 0.000\n'
    table = table_of(tmp_path, "".join(line.format(k) for k in range(4)))
    assert table.latency_ns.tolist() == [120 * MS, 121 * MS, 122 * MS, 123 * MS]
    assert table.arrival_ns.tolist()[1] == S - MS and table.resolution_ns == S


def test_bytes_in_and_out_are_not_a_latency(tmp_path: Path) -> None:
    lines = "".join(NGINX.format(k, 200, f"{300 + k} {1024 + 250 + k}") for k in range(4))
    with pytest.raises(InputError, match="without a latency"):
        table_of(tmp_path, lines)


def test_more_routes_than_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "_MOST_ROUTES", 2)
    lines = [NGINX.format(k, 200, "0.250").replace("items", f"a{chr(103 + k)}") for k in range(5)]
    traffic = table_of(tmp_path, "".join(lines)).traffic("x")
    assert set(traffic.features["route"]) == {"GET /v1/ag/*", "GET /v1/ah/*", "other"}


OTHER_WRITERS = {
    "jmeter": ("timeStamp,elapsed,label,responseCode,success,bytes,Latency,Connect\n"
               "1763800000123,250,home,200,true,10,200,5\n1763800000623,900,home,500,false,10,200,5\n"),
    "vegeta": "".join(json.dumps({"attack": "", "seq": k, "code": 200 - 200 * k, "latency": 250_000_000 + k,
                                  "timestamp": f"2026-01-02T03:04:05.{1 + 5 * k}23456789+01:00",
                                  "error": "refused" * k}) + "\n" for k in range(2)),
    "ghz": json.dumps({"count": 2, "average": 5, "histogram": [{"mark": 0.1, "count": 1}] * 9, "details": [
        {"timestamp": f"2026-01-02T03:04:05.{1 + 5 * k}00Z", "latency": 250_000_000, "error": "",
         "status": ("OK", "Unavailable")[k]} for k in range(2)]}, indent=2),
    "hey": ("response-time,DNS+dialup,DNS,Request-write,Response-delay,Response-read,status-code,offset\n"
            "0.2500,0.0010,0.0,0.0,0.1,0.0,200,0.1000\n0.9,0.0010,0.0,0.0,0.1,0.0,500,0.6000\n"),
    "oha": ("request-start,DNS,DNS+dialup,Response-delay,request-duration,bytes,status\n"
            "0.1000,0.0001,0.0002,0.2,0.2500,5,200\n0.6000,0.0001,0.0002,0.2,0.9,5,500\n"),
    "kong": "".join(json.dumps({"latencies": {"request": 250, "kong": 2, "proxy": 248}, "request": {"uri": "/a"},
                                "started_at": 1763800000100 + 500 * k, "response": {"status": 200 + 300 * k}}) + "\n"
                    for k in range(2)),
    "elastic": "".join(json.dumps({"@timestamp": f"2026-01-02T03:04:05.{1 + 5 * k}00Z", "url": {"path": "/a"},
                                   "event": {"duration": 250_000_000},
                                   "http": {"response": {"status_code": 200 + 300 * k}}}) + "\n" for k in range(2)),
    "lograge": "".join(f"time=2026-01-02T03:04:05.{1 + 5 * k}00Z method=GET path=/a controller=A action=b "
                       f"status={200 + 300 * k} duration=250.00 view=1.2 db=9.0\n" for k in range(2)),
    "google": "".join(json.dumps({"httpRequest": {"latency": "0.250000s", "status": 200 + 300 * k},
                                  "timestamp": f"2026-01-02T03:04:05.{1 + 5 * k}00Z"}) + "\n" for k in range(2)),
    "envoy": "".join(json.dumps({"start_time": f"2026-01-02T03:04:05.{1 + 5 * k}00Z", "duration": 250, "path": "/a",
                                 "response_code": 200 + 300 * k, "upstream_service_time": "200"}) + "\n"
                     for k in range(2)),
    "traefik": "".join(json.dumps({"StartUTC": f"2026-01-02T03:04:05.{1 + 5 * k}00000000Z", "Duration": 250_000_000,
                                   "DownstreamStatus": 200 + 300 * k, "RequestPath": "/a"}) + "\n" for k in range(2)),
    "caddy": "".join(json.dumps({"ts": 1763800000.5 + k * 0.5, "duration": 0.25, "status": 200 + 300 * k,
                                 "request": {"uri": "/a?b=1", "method": "GET"}}) + "\n" for k in range(2)),
    "nginx": "".join(json.dumps({"time_local": f"02/Jan/2026:03:04:0{k} +0000", "request_time": "0.250",
                                 "status": str(200 + 300 * k), "uri": f"/a/{k}"}) + "\n" for k in range(2)),
    "serilog": "".join(json.dumps({"@t": f"2026-01-02T03:04:05.{2 + 5 * k}0000000Z", "@mt": "HTTP {Elapsed} ms",
                                   "Elapsed": 250.0, "StatusCode": 200 + 300 * k}) + "\n" for k in range(2)),
    "pino": "".join(json.dumps({"level": 30, "time": 1763800000100 + 500 * k, "req": {"url": "/a"},
                                "res": {"statusCode": 200 + 300 * k}, "responseTime": 250}) + "\n" for k in range(2)),
    "insights": "timestamp [UTC],name,success,resultCode,duration,performanceBucket\n" + "".join(
        f'"1/2/2026, 3:04:05.{1 + 5 * k}00 PM",GET /a,True,{200 + 300 * k},250,<1s\n' for k in range(2)),
    "python": "".join(json.dumps({"asctime": f"2026-01-02 03:04:05,{2 + 5 * k}00", "levelname": "INFO",
                                  "status": 200 + 300 * k, "duration_ms": 250}) + "\n" for k in range(2)),
    "cloudflare": "".join(json.dumps({"EdgeStartTimestamp": 1763800000100000000 + S * k // 2,
                                      "EdgeEndTimestamp": 1763800000350000000 + S * k // 2,
                                      "EdgeResponseStatus": 200 + 300 * k}) + "\n"
                          for k in range(2)),
    "azure": "".join(json.dumps({"time": f"2026-01-02T03:04:05.{2 + 5 * k}00Z", "properties": {
        "timeTaken": 250, "httpStatus": 200 + 300 * k, "clientIP": "1.2.3.4"}}) + "\n" for k in range(2)),
    "azure, version 2": "".join(json.dumps({"timeStamp": f"2026-01-02T03:04:05.{2 + 5 * k}00+00:00", "properties": {
        "timeTaken": 0.25, "httpStatus": 200 + 300 * k, "serverRouted": "1.2.3.4:80"}}) + "\n" for k in range(2)),
    "grpc": "".join(json.dumps({"level": "info", "ts": 1763800000.5 + k * 0.5, "grpc.time_ms": 250.0,
                                "grpc.code": ("OK", "Internal")[k]}) + "\n" for k in range(2)),
    "litellm": "".join(json.dumps({"level": "INFO", "timestamp": f"2026-01-02T03:05:0{k}Z", "response_time": 0.3,
                                   "status": ("success", "failure")[k], "startTime": 1763800000 + k / 2,
                                   "endTime": 1763800000.25 + k / 2}) + "\n" for k in range(2)),
    "echo": "".join(json.dumps({"time": f"2026-01-02T03:04:05.{3 + 5 * k}00000000Z", "status": 200 + 300 * k,
                                "latency": 250_000_000, "latency_human": "250ms"}) + "\n" for k in range(2)),
    "mongo": "".join(json.dumps({"t": {"$date": f"2026-01-02T03:04:05.{2 + 5 * k}00+00:00"}, "s": "I", "id": 51803,
                                 "attr": {"ns": "a.b", "durationMillis": 250},
                                 "status": 200 + 300 * k}) + "\n" for k in range(2)),
    "api gateway": "".join(json.dumps({"requestTime": "02/Jan/2026:03:04:05 +0000", "responseLatency": "250",
                                       "requestTimeEpoch": 1763800000100 + 500 * k, "status": str(200 + 300 * k),
                                       "integrationLatency": "200"}) + "\n" for k in range(2)),
    "curl": "".join(json.dumps({"time_total": 0.25, "time_starttransfer": 0.2, "time_namelookup": 0, "size_upload": 7,
                                "http_code": 200 + 300 * k, "ts": 1763800000 + k / 2}) + "\n" for k in range(2)),
    "kibana": '"@timestamp","duration_ms",status\n' + "".join(
        f'"Jan 2, 2026 @ 03:04:05.{2 + 5 * k}00",250.000,{200 + 300 * k}\n' for k in range(2)),
    "mail's date": "date,latency_ms,status\n" + "".join(
        f'"Fri, 02 Jan 2026 03:04:05.{2 + 5 * k} GMT",250,{200 + 300 * k}\n' for k in range(2)),
    "pandas": ",start,latency,status\n" + "".join(
        f"{k},2026-01-02 03:04:05.{2 + 5 * k}00000,0 days 00:00:00.250000,{200 + 300 * k}\n" for k in range(2)),
    "dotnet": "Started|Duration|Status\n" + "".join(
        f"2026-01-02T03:04:05.{2 + 5 * k}000000Z|00:00:00.2500000|{200 + 300 * k}\n" for k in range(2)),
    "java": "".join(json.dumps({"startedAt": f"2026-01-02T03:04:05.{2 + 5 * k}Z", "duration": "PT0.25S",
                                "status": 200 + 300 * k}) + "\n" for k in range(2)),
    "apisix": "".join(json.dumps({"start_time": 1763800000100 + 500 * k, "latency": 250.0, "upstream_latency": 240,
                                  "apisix_latency": 10.0, "response": {"status": 200 + 300 * k}}) + "\n"
                      for k in range(2)),
    "kubernetes": "".join(json.dumps({"requestReceivedTimestamp": f"2026-01-02T03:04:05.{2 + 5 * k}00000Z",
                                      "stageTimestamp": f"2026-01-02T03:04:05.{2 + 5 * k}50000Z", "requestURI": "/a",
                                      "stage": "ResponseComplete", "responseStatus": {"code": 200 + 300 * k}}) + "\n"
                          for k in range(2)).replace(".250000Z", ".450000Z").replace(".750000Z", ".950000Z"),
    "clickhouse": '"type","query_start_time_microseconds","query_duration_ms","exception_code"\n' + "".join(
        f'"QueryFinish","2026-01-02 03:04:05.{2 + 5 * k}00000",250,{241 * k}\n' for k in range(2)),
    "inference-perf": json.dumps([{"start_time": 5.5 + k / 2, "end_time": 5.75 + k / 2, "info": {"input_tokens": 7},
                                   "error": {"error_type": "ClientError", "error_msg": "x"} if k else None}
                                  for k in range(2)]),
    "columns": json.dumps({"model": "m", "start_times": [5.5, 6.0], "latencies_ms": [250, 900.5],
                           "status": [200, 500]}),
    "columns, indented": json.dumps({"p99_ms": 9, "runs": {"start_times": [5.5, 6], "durations_ms": [250, 900.5],
                                                           "status": [200, 500]}}, indent=1),
    "akamai": "".join(json.dumps({"reqTimeSec": f"1763800000.{2 + 5 * k}", "turnaroundLatencyMSec": "250",
                                  "statusCode": 200 + 300 * k}) + "\n" for k in range(2)),
    "celery": "".join(json.dumps({"received": 1763800000 + k / 2, "started": 1763800000.05 + k / 2, "runtime": 0.2,
                                  "succeeded": 1763800000.25 + k / 2, "status": 200 + 300 * k}) + "\n"
                      for k in range(2)),
    "model server": "created_at,inference_time_ms,status\n" + "".join(
        f"2026-01-02T03:04:05.{2 + 5 * k},250,{200 + 300 * k}\n" for k in range(2)),
    "go": json.dumps([{"time": f"2026-01-02 03:04:05,{1 + 5 * k}00", "latency": "250ms", "status": 200 + 300 * k}
                      for k in range(2)]),
}  # fmt: skip


@pytest.mark.parametrize("writer", OTHER_WRITERS)
def test_columns_of_other_writers(tmp_path: Path, writer: str) -> None:
    table = table_of(tmp_path, OTHER_WRITERS[writer])
    assert table.latency_ns[0] == 250 * MS
    assert table.arrival_ns[1] == (S if writer == "nginx" else S // 2)
    assert table.status.tolist() == [Status.OK, Status.ERROR]
    assert any("no rows of requests without an answer" in note for note in table.notes) == (writer in ("hey", "oha"))


@pytest.mark.parametrize(
    ("errors", "lost"),
    [
        (["", "", "429", "Refused"], [Status.SHED, Status.ERROR]),
        (["false", "false", "true", "²"], [Status.ERROR] * 2),
        (["None", "-", "0", "null"], []),
        (["0.0", "0.5", "1.5", "2.5"], []),
    ],
    ids=["codes and names", "flags", "nothing", "amounts"],
)
def test_a_column_of_errors_says_which_requests_did_not_end_ok(
    tmp_path: Path, errors: list[str], lost: list[Status]
) -> None:
    table = table_of(tmp_path, "ts,latency_ms,error\n" + "".join(f"{k},5,{word}\n" for k, word in enumerate(errors)))
    assert table.status.tolist() == [Status.OK] * (4 - len(lost)) + lost


def test_the_only_timestamp_is_the_arrival_and_no_moment_is_called_a_wait(tmp_path: Path) -> None:
    """As Cloudflare's Workers write it; a version with the name of an id."""
    lines = [
        json.dumps({"EventTimestampMs": 1763800000000 + k, "WallTimeMs": 5, "CPUTimeMs": 1, "Version": {"ID": "v1"}})
        for k in range(3)
    ]
    table = table_of(tmp_path, "\n".join(lines))
    assert table.arrival_ns.tolist() == [0, MS, 2 * MS]
    result = diagnose_recording(written(tmp_path, "\n".join(lines)), ReadOptions())
    assert result.ledger.ids == ()
    unread = table_of(tmp_path, "ts,latency_ms,sent_ms,db_ms\n1,5,1763800000000,1\n").unread
    assert "db_ms" in unread and "sent_ms" not in unread
    assert not table_of(tmp_path, "a_timestamp,b_timestamp,latency_ms\n1,2,5\n").timed


def test_latencies_of_0_far_from_all_others_are_noted() -> None:
    def noted(latency_ms: list[int]) -> bool:
        latency = np.array(latency_ms, np.int64) * MS
        table = replace(simulated("quiet", 1, n=len(latency)), latency_ns=latency)
        return any("latencies are 0" in note for note in with_checked_rows(table).notes)

    assert noted([0, 20, 25] * 20)
    assert not noted([0, 1, 2] * 20), "some took less than the unit"
    assert not noted([20, 25] * 30)


@pytest.mark.parametrize("names", ["submit_time,start_time,end_time", "t_start,t_received,t_done"])
def test_a_begin_after_the_arrival_is_the_end_of_a_wait(tmp_path: Path, names: str) -> None:
    rows = "2.5,2.0,3.0\n" if names.startswith("t_") else "2.0,2.5,3.0\n"
    table = table_of(tmp_path, f"{names}\n{rows}" + "4.0,4.0,5.0\n")
    assert table.latency_ns.tolist() == [S, S] and table.parts["queue"].tolist() == [S // 2, 0]


def test_a_job_that_only_starts_and_ends_has_no_measured_wait(tmp_path: Path) -> None:
    table = table_of(tmp_path, "start_time,end_time\n2.0,3.0\n4.0,5.0\n")
    assert table.latency_ns.tolist() == [S, S] and not table.parts
    assert not table_of(tmp_path, "timestamp,start,latency_ms\n2.0,2.5,900\n4.0,4.5,900\n").parts


def test_a_list_of_begins_and_ends_and_a_first_token_since_1970(tmp_path: Path) -> None:
    """As trtllm-bench writes them."""
    moments = {"start_timestamp_ns": 1763800000 * S, "end_timestamp_ns": 1763800001 * S}
    request = {"id": 1, **moments, "first_token_timestamp_ns": 1763800000 * S + 250 * MS, "num_input_tokens": 7}
    table = table_of(tmp_path, json.dumps({"engine": {"m": 1}, "request_info": {"requests": [request]}}))
    assert table.latency_ns.tolist() == [S]
    assert table.first_ns is not None and table.first_ns.tolist() == [250 * MS]


@pytest.mark.parametrize(
    "before",
    ["# of a model\n# in 2026\nts_s,latency_ms\n", "# a model\n# ts_s,latency_ms\n", "sep=,\nts_s,latency_ms\n"],
)
def test_comments_before_a_table(tmp_path: Path, before: str) -> None:
    table = table_of(tmp_path, before + "0.5,12\n1.0,13\n" + "x,y\n")
    assert table.latency_ns.tolist() == [12 * MS, 13 * MS]
    assert table.notes[0].startswith(f"1 line was left out, the first in line {before.count(chr(10)) + 3}:")


@pytest.mark.parametrize(
    "text",
    [
        "| ts | latency_ms |\n|---|---:|\n| 0.5 | 12 |\n| 1.5 | 13 |\n| x | y |\n",
        " ts  | latency_ms \n-----+------------\n 0.5 |         12\n 1.5 |         13\n x   |          y\n(2 rows)\n",
        "+-----+------------+\n| ts  | latency_ms |\n+-----+------------+\n"
        "| 0.5 | 12         |\n| 1.5 | 13         |\n"
        "| x   | y          |\n+-----+------------+\n2 rows in set (0.00 sec)\n",
    ],
    ids=["Markdown", "psql", "MySQL"],
)
def test_the_rules_of_a_drawn_table_are_no_rows(tmp_path: Path, text: str) -> None:
    table = table_of(tmp_path, text)
    assert table.latency_ns.tolist() == [12 * MS, 13 * MS] and table.arrival_ns.tolist() == [0, S]
    line = text[: text.index("x")].count("\n") + 1
    assert table.notes[0].startswith(f"1 line was left out, the first in line {line}: found latency_ms 'y', ts 'x'")


def test_a_table_of_numpy_with_blanks(tmp_path: Path) -> None:
    table = table_of(tmp_path, "# req_ts latency_ms side\n5.0e-01 2.5e+02 1.0e+00\n1.5e+00 9.0e+02 2.0e+00\n")
    assert table.latency_ns.tolist() == [250 * MS, 900 * MS] and table.arrival_ns.tolist() == [0, S]
    with pytest.raises(InputError, match="unknown format"):
        diagnose_recording(written(tmp_path, "server is up now\nGET took 5 ms\n"), ReadOptions())


def test_times_of_day_are_times(tmp_path: Path) -> None:
    table = table_of(tmp_path, "time,latency_ms\n09:59:59.500,12\n10:00:01.25,13\n")
    assert table.arrival_ns.tolist() == [0, 1750 * MS]
    assert not any("has no unit" in note for note in table.notes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1763800000.5,12\n1763800001.5,13\n", "without a header"),
        (json.dumps({"data": {"resultType": "streams", "result": []}}), "Loki has wrapped"),
        ("       Value     Percentile TotalCount 1/(1-Percentile)\n\n 1.021 0.0 1 1.00\n", "summary of a load test"),
        ("Date,@duration,@http.status\n1,2,3\n", "--map latency_ms=@duration"),
    ],
    ids=["numbers", "Loki", "hgrm", "Datadog"],
)
def test_what_to_do_with_what_is_no_table_yet(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        diagnose_recording(written(tmp_path, text), ReadOptions())


def test_the_only_duration_is_the_latency_and_named_in_a_note(tmp_path: Path) -> None:
    table = table_of(tmp_path, "ts,model_latency_ms,n\n1763800000,5,2\n1763800001,6,3\n")
    assert table.latency_ns.tolist() == [5 * MS, 6 * MS]
    assert any("model_latency_ms is read as the latency" in note for note in table.notes)
    ended = table_of(tmp_path, "stamp,latency_ms\n1763800000,5\n1763800001,6\n", "end=stamp")
    assert ended.latency_ns.tolist() == [5 * MS, 6 * MS] and ended.notes == ()
    with pytest.raises(InputError, match="--map latency_ms=COLUMN"):
        table_of(tmp_path, "ts,model_latency_ms,disk_latency_ms\n1763800000,5,2\n")


def test_a_unit_with_a_capital_prefix_is_no_second(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"startTimeSec": 1763800000 + k, "totalTimeMSec": 5 + k}) + "\n" for k in range(2))
    assert table_of(tmp_path, lines).latency_ns.tolist() == [5 * MS, 6 * MS]


@pytest.mark.parametrize("servers", [1, 4])
@pytest.mark.parametrize("seed", [11, 12])
@pytest.mark.parametrize("ends", [True, False])
def test_times_that_may_be_of_arrival_or_of_end_are_those_that_show_a_queue(
    tmp_path: Path, servers: int, seed: int, ends: bool
) -> None:
    queued = simulated("quiet", seed, servers=servers, load=0.7)
    stamp = queued.arrival_ns + ends * queued.latency_ns
    lines = sorted(zip((stamp // 1000).tolist(), (queued.latency_ns // 1000).tolist(), strict=True))
    text = "timestamp_us,latency_us\n" + "".join(f"{at},{took}\n" for at, took in lines)
    table = table_of(tmp_path, text)
    assert any("read as the time at which a request ended" in note for note in table.notes) == ends
    assert ("end = timestamp_us" in table.facts["columns"]) == ends
    assert int(np.abs(np.sort(table.arrival_ns) - queued.arrival_ns).max()) < 3_000_000


@pytest.mark.parametrize("kinds", [("QueryStart", "QueryFinish"), ("1", "2")], ids=["names", "numbers"])
def test_a_query_of_clickhouse_has_a_row_as_it_begins_and_one_as_it_ends(
    tmp_path: Path, kinds: tuple[str, str]
) -> None:
    header = "type,query_start_time_microseconds,query_duration_ms,exception_code\n"
    rows = [
        f"{kind},2026-01-02 03:04:{k:02}.100000,{250 * (kind == kinds[1])},0\n" for k in range(6) for kind in kinds
    ]
    table = table_of(tmp_path, header + "".join(rows))
    assert table.latency_ns.tolist() == [250 * MS] * 6
    assert f"Skipped 6 other lines, the first: '{kinds[0]}'." in table.notes


def test_a_request_of_kubernetes_counts_when_it_ended(tmp_path: Path) -> None:
    begin = {"requestReceivedTimestamp": "2026-01-02T03:04:05.000000Z", "requestURI": "/a"}
    ends = {"RequestReceived": "05.000100Z", "ResponseComplete": "05.250000Z"}
    lines = [begin | {"stage": stage, "stageTimestamp": f"2026-01-02T03:04:{end}"} for stage, end in ends.items()]
    assert table_of(tmp_path, "\n".join(map(json.dumps, lines))).latency_ns.tolist() == [250 * MS]


def test_answers_of_ollama(tmp_path: Path) -> None:
    """All durations are nanoseconds, and the last part of an answer was created at its end."""
    answer = {"created_at": "2026-01-02T03:04:05.5Z", "done": True, "eval_count": 25, "prompt_eval_count": 9}
    durations = {"total_duration": 250_000_000, "load_duration": 10_000_000, "eval_duration": 200_000_000}
    table = table_of(tmp_path, json.dumps(answer | durations))
    assert table.latency_ns.tolist() == [250 * MS] and table.parts["load"].tolist() == [10 * MS]
    assert table.features["output_tokens"].tolist() == [25]


def test_a_feature_is_read_from_one_column(tmp_path: Path) -> None:
    """Caddy's ``size`` is that of the answer."""
    line = {"ts": 1763800000.5, "duration": 0.25, "status": 200, "request": {"uri": "/a"}, "bytes_read": 7, "size": 9}
    assert table_of(tmp_path, json.dumps(line)).features["size"].tolist() == [7]


def test_a_begin_and_an_end_need_no_unit_and_the_first_chunk_may_be_a_date(tmp_path: Path) -> None:
    """As Langfuse and LiteLLM export them."""
    whole = {"startTime": "2026-01-02T03:04:05.000Z", "endTime": "2026-01-02T03:04:06.500Z", "latency": 1.5}
    starts = ("2026-01-02T03:04:05.250Z", None)
    table = table_of(tmp_path, json.dumps([{**whole, "completionStartTime": start} for start in starts]))
    assert table.latency_ns.tolist() == [1500 * MS] * 2
    assert table.first_ns is not None and table.first_ns.tolist() == [250 * MS, -1]


def test_the_level_of_a_logger_is_no_status(tmp_path: Path) -> None:
    lines = [{"status": "info", "duration_ms": 250, "http": {"status_code": 200 + 300 * k}} for k in range(2)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    assert table_of(tmp_path, text).status.tolist() == [Status.OK, Status.ERROR]


def test_figures_of_many_requests_are_no_request(tmp_path: Path) -> None:
    """As bombardier writes them, with the duration of the test."""
    figures = {"result": {"timeTakenSeconds": 10, "latency": {"mean": 1234, "percentiles": {"99": 4000}}}}
    with pytest.raises(InputError, match=r"figures of many requests.*one row per request"):
        table_of(tmp_path, json.dumps(figures))


def test_transactions_of_jmeter_are_no_further_requests(tmp_path: Path) -> None:
    header = "timeStamp,elapsed,label,responseCode,responseMessage,threadName,success\n"
    samples = [f"{1763800000000 + 500 * k},{250 + k},home,200,OK,t,true\n" for k in range(3)]
    whole = '1763800000000,1251,a,200,"Number of samples in transaction : 3, number of failing samples : 0",t,true\n'
    table = table_of(tmp_path, "".join([header, *samples, whole]))
    assert table.latency_ns.tolist() == [250 * MS, 251 * MS, 252 * MS]
    assert "Skipped 1 other line, the first: 'Number of samples in transaction" in " ".join(table.notes)
    assert table_of(tmp_path, header + whole).latency_ns.tolist() == [1_251 * MS]  # recorded as one sample


@pytest.mark.parametrize("level", [{}, {"level": "info"}])
def test_a_logger_writes_a_line_when_a_request_ended(tmp_path: Path, level: dict[str, str]) -> None:
    lines = [json.dumps({**level, "ts": 1763800000.5 + k, "latency_ms": 250 if k % 2 else 1900}) for k in range(9)]
    table = table_of(tmp_path, "\n".join(lines))
    assert table.start_unix_ns == 1763800000 * S + (500 if not level else 500 - 1900) * MS
    assert any("If a line was written when its request ended" in note for note in table.notes) is not bool(level)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("arrival_s;latency_ms\n0,5;10,25\n1,0;11\n", [10.25, 11.0]),
        ('arrival_s,latency_ms\n0.5,"1,234"\n1.0,"2,345"\n', [1.234, 2.345]),
        ('arrival_s,latency_ms\n0.5,"1,234"\n1.0,12\n2.0,13\n', [1234.0, 12.0, 13.0]),  # separates thousands
        ("arrival_s;latency_ms\n0,5;1.234,5\n1;12\n2;13,5\n", [1234.5, 12.0, 13.5]),  # points do
        ('arrival_s,latency_ms\n0.5,"1,234.5"\n1.0,12.25\n2.0,13\n', [1234.5, 12.25, 13.0]),
        ("latency_ms\n12\n13.5\n", [12.0, 13.5]),
    ],
)
def test_decimal_commas_and_a_single_column(tmp_path: Path, text: str, milliseconds: list[float]) -> None:
    assert (table_of(tmp_path, text).latency_ns / MS).tolist() == milliseconds


def test_a_date_is_no_latency(tmp_path: Path) -> None:
    line = {"requestTime": "02/Jan/2026:03:04:05 +0000", "responseLatency": 25}
    with pytest.raises(InputError, match="found latency 'responseLatency' without a unit"):
        table_of(tmp_path, json.dumps(line))


def test_local_time_at_the_end_of_summer_is_noted(tmp_path: Path) -> None:
    hours = [f"2026-10-25 02:{minute:02d}:00" for minute in (57, 58, 59, 0, 1, 2)]
    table = table_of(tmp_path, "end,latency_ms\n" + "".join(f"{hour},12\n" for hour in hours))
    assert any("goes back by an hour after 3 requests" in note for note in table.notes)


def test_a_log_without_a_known_time_says_how_to_name_one(tmp_path: Path) -> None:
    table = table_of(tmp_path, "when,latency_ms\n5,12\n6,13\n")
    assert not table.timed and any("--map end=COLUMN" in note for note in table.notes)


@pytest.mark.parametrize("indent", [None, 1])
def test_the_longest_list_of_requests_in_a_document_is_read(tmp_path: Path, indent: int | None) -> None:
    rows = [{"start": k, "latency_ms": 9 + k} for k in range(3)]
    whole = {"start": 0, "duration_s": 60, "latency_ms": {"p99": 5}}
    document = {**whole, "worst": rows[:1], "data": {"rows": rows}}
    table = table_of(tmp_path, json.dumps(document, indent=indent))
    assert table.latency_ns.tolist() == [9 * MS, 10 * MS, 11 * MS] and table.arrival_ns.tolist() == [0, S, 2 * S]
    assert table_of(tmp_path, json.dumps(rows[0])).latency_ns.tolist() == [9 * MS]


@pytest.mark.parametrize(
    ("text", "latency_ms"),
    [("ts,total_ms,db_ms\n5,9,1\n", 9), ("ts,took_ms\n5,9\n", 9), ("ts,total_ms,latency_ms\n5,9,8\n", 8)],
)
def test_the_whole_is_the_latency_if_nothing_else_is(tmp_path: Path, text: str, latency_ms: int) -> None:
    assert table_of(tmp_path, text).latency_ns.tolist() == [latency_ms * MS]


@pytest.mark.parametrize("begin", ["startedAt", "submitted", "created_at", "enqueued_at", "arrived", "begin_time"])
@pytest.mark.parametrize("took", ["req_latency_ms", "respTimeMs", "elapsed_ms"])
def test_usual_names_of_times(tmp_path: Path, begin: str, took: str) -> None:
    table = table_of(tmp_path, f"{begin},{took}\n1763800000.5,9\n1763800001.5,8\n")
    assert table.timed and table.latency_ns.tolist() == [9 * MS, 8 * MS]
    table = table_of(tmp_path, f"{begin},ended_at\n1763800000.5,1763800000.6\n1763800001.5,1763800001.7\n")
    assert table.latency_ns.tolist() == [100 * MS, 200 * MS]


@pytest.mark.parametrize("column", ["store_us", "store (s)", "storeMs"])
def test_the_mapping_of_an_unread_column_has_its_unit(tmp_path: Path, column: str) -> None:
    text = f"latency_ms,{column}\n9,1\n9,2\n"
    (option,) = shlex.split(table_of(tmp_path, text).unread.rpartition("--map ")[2].rstrip("."))
    unit = {"store_us": 1_000, "store (s)": S, "storeMs": MS}[column]
    assert table_of(tmp_path, text, option).parts["store"].tolist() == [unit, 2 * unit]


def test_apachebench_s_table(tmp_path: Path) -> None:
    head = "starttime\tseconds\tctime\tdtime\tttime\twait\n"
    rows = "".join(f"Fri Jan 02 03:04:0{k} 2026\t{1767323040 + k}\t1\t9\t{10 + k}\t8\n" for k in (2, 1))
    table = table_of(tmp_path, head + rows)
    assert table.latency_ns.tolist() == [11 * MS, 12 * MS] and table.arrival_ns.tolist() == [0, S]
    assert table.parts["connect"].tolist() == [MS, MS] and not table.has_status


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-02 03:04:05,250", 0.25),
        ("2026-01-02 03:04:05.250 +0000", 0.25),
        ("2026-01-02 03:04:05 UTC", 0.0),
        ("[02/Jan/2026:04:04:05 +0100]", 0.0),
        ("2026-01-02T03:04Z", -5.0),
        ("20260102T030405.5Z", 0.5),
        ("1/2/2026, 3:04:05.250 AM", 0.25),
        ("1/2/2026 3:04:05 PM", 43_200.0),
        ("02.01.2026 03:04:05", 0.0),
    ],
)
def test_dates(text: str, seconds: float) -> None:
    assert instant_ns(text) == int(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()) * S + int(seconds * S)


@pytest.mark.parametrize("value", ["1m2.5s", "62.5 s", "62500000µs"])
def test_durations_with_their_units(tmp_path: Path, value: str) -> None:
    table = table_of(tmp_path, f"ts,duration\n1763800000,{value}\n1763800001,5ms\n")
    assert table.latency_ns.tolist() == [62_500 * MS, 5 * MS]


def test_begin_and_end_are_a_latency_to_the_nanosecond(tmp_path: Path) -> None:
    begin = 1_763_800_000_123_456_789
    for text in (
        f",start_ns,end_ns\n0,{begin},{begin + 1_000_001}\n1,{begin + 7},{begin + 9}\n",  # with an index like pandas
        f'{{"start_ns":{begin},"end_ns":{begin + 1_000_001}}}\n{{"start_ns":{begin + 7},"end_ns":{begin + 9}}}\n',
    ):
        table = table_of(tmp_path, text)
        assert table.latency_ns.tolist() == [1_000_001, 2]
        assert table.arrival_ns.tolist() == [0, 7]


def test_lost_requests_without_a_latency_are_counted(tmp_path: Path) -> None:
    lines = [{"ts": 1763800000 + k, "status": 200, "latency_ms": 5} for k in range(3)]
    lost = {"ts": 1763800000, "status": 504, "error": "no answer", "latency_ms": None}
    result = diagnose_recording(written(tmp_path, "\n".join(map(json.dumps, [lost, *lines]))), ReadOptions())
    assert result.requests["timeout"] == 1 and result.requests["ok"] == 3
    for first in (lost, {"ts": 1763800000, "status": 504}):  # fields missing in the first line are in the others
        assert len(table_of(tmp_path, "\n".join(map(json.dumps, [first, *lines])))) == 4


def test_arrivals_from_coarse_ends_are_coarse(tmp_path: Path) -> None:
    table = table_of(tmp_path, "end,latency_ms\n" + "".join(f"{1763800000 + k},{5 + k}\n" for k in range(5)))
    assert table.resolution_ns == S


def test_an_assumed_unit_is_noted(tmp_path: Path) -> None:
    table = table_of(tmp_path, "time,latency_ms\n1.5,5\n2.5,6\n")
    assert any("read as seconds; use --map arrival_ms=time" in note for note in table.notes)
    assert table_of(tmp_path, "time,latency_ms\n1.5,5\n", "arrival_ms=time").notes == ()


def test_cells_with_line_breaks_and_a_repeated_name(tmp_path: Path) -> None:
    out = io.StringIO()
    csv.writer(out).writerows([["ts", "latency_ms", "prompt", "ts", "p (%)"], [1763800000, 5, 'a\n"b", c', 1, 2]])
    assert table_of(tmp_path, out.getvalue()).latency_ns.tolist() == [5 * MS]


@pytest.mark.parametrize("closed", [True, False])
def test_rows_behind_a_quote_that_is_not_closed_are_counted(tmp_path: Path, closed: bool) -> None:
    rows = [f"{1763800000 + k},5,/x" for k in range(40)]
    rows[10] = rows[10].replace("/x", '"/x')
    if closed:  # by the next such row
        rows[14] = rows[14].replace("/x", '"/x')
    text = "ts,latency_ms,path\n" + "\n".join(rows) + "\n"
    if closed:
        table = table_of(tmp_path, text)
        assert len(table) == 36 and any("4 lines were left out, the first in line 12" in note for note in table.notes)
    else:
        with pytest.raises(InputError, match=":12: found a quote that is not closed"):
            table_of(tmp_path, text)


def test_a_mapping_without_a_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--map latency_ms: found '5'"):
        table_of(tmp_path, '{"a": 1}\n', "latency_ms=5")


def test_exemplars_after_samples_are_not_values(tmp_path: Path) -> None:
    """OpenMetrics: a time with a fraction, and an exemplar after the value."""
    text = HISTOGRAM.replace("90.0\n", '90.0 1763800000.123 # {trace_id="ab"} 0.67 1763800000.1\n')
    document = diagnose_recording(written(tmp_path, text), ReadOptions()).to_json()
    assert document["latency_ci95_ms"]["p99"] == [500.0, 1000.0]
    assert parse_metrics('a_total{b="c}"} 17 # {trace_id="ab"} 0.67\nb{quantile="0.5"} 3\n') == {"a_total": 17}


@pytest.mark.parametrize("unit", [1_000, 1_000_000], ids=["us", "ms"])
def test_a_duration_without_a_unit_has_that_of_the_begin(tmp_path: Path, unit: int) -> None:
    begin = 1_763_800_000 * S // unit
    text = f"traceId,spanId,parentId,service,startTime,duration\nt,a,,api,{begin},50\nt,b,a,db,{begin + 10},20\n"
    table = span_columns.read(written(tmp_path, text))
    assert (table.end_ns - table.start_ns).tolist() == [50 * unit, 20 * unit]
    dated = text.replace(str(begin + 10), "2025-11-22T08:26:40.5Z").replace(str(begin), "2025-11-22T08:26:40Z")
    if unit == 1_000_000:
        dated = dated.replace("duration", "duration_ms")
        assert span_columns.read(written(tmp_path, dated)).start_ns.tolist() == [0, S // 2]


@pytest.mark.parametrize("hour", ["08:26:4", "12:26:4"])
def test_steps_without_a_year_get_that_of_the_requests(tmp_path: Path, hour: str) -> None:
    (tmp_path / "profile_export.jsonl").write_text(aiperf_lines())
    (tmp_path / "server.log").write_text("".join(STEP.format(k, "").replace("10:00:0", hour) for k in range(5)))
    result = diagnose_recording(tmp_path, ReadOptions())
    assert result.source is not None
    assert ("steps" in result.source.read) == (hour == "08:26:4")
    assert any("another time zone" in note for note in result.notes) == (hour != "08:26:4")


def test_a_folder_of_logs_is_refused_naming_one(tmp_path: Path) -> None:
    for k in range(2):
        (tmp_path / f"access.log.{k}").write_bytes(WRITERS["nginx"][1]())
    with pytest.raises(InputError, match=r"2 recordings that are read one at a time, the first access.log.0"):
        diagnose_recording(tmp_path, ReadOptions())


def test_spans_from_1970_on_sum_exactly(tmp_path: Path) -> None:
    document = otlp_document()
    document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["startTimeUnixNano"] = "3"
    result = diagnose_recording(written(tmp_path, json.dumps(document)), ReadOptions())
    assert result.ledger.conservation_error_ns() == 0


def seconds(n: int) -> list[str]:
    return [f"{1763800000 + k},{5 + k}" for k in range(n)]


def test_one_wrong_time_does_not_change_the_unit_of_all(tmp_path: Path) -> None:
    for wrong in ("9e18,5", "inf,5"):
        table = table_of(tmp_path, "\n".join(["ts,latency_ms", *seconds(4), wrong]))
        assert table.arrival_ns.tolist() == [0, S, 2 * S, 3 * S]
    spans = [f"t,{k},,api,{1763800000 + k},{1763800001 + k}" for k in range(4)]
    text = "\n".join(["traceId,spanId,parentId,service,start,end", *spans, f"t,x,,api,{9 * 10**18},1763800001"])
    with pytest.raises(InputError, match=r":6: found '9000000000000000000' in 'start'"):
        span_columns.read(written(tmp_path, text))


def test_spans_with_half_of_a_surrogate_pair_and_a_very_long_number(tmp_path: Path) -> None:
    span = {"traceId": "a", "id": "b", "name": "GET \ud83d", "timestamp": 1_763_000_000_000_000, "duration": 5_000}
    span |= {"localEndpoint": {"serviceName": "api"}, "parentId": None}
    path = tmp_path / "spans.json"
    path.write_text(json.dumps([[span]]))
    assert diagnose_recording(path, ReadOptions()).latency_ms["max"] == 5
    path.write_text(json.dumps([[span | {"timestamp": "9" * 5000}]]))
    with pytest.raises(InputError) as caught:
        diagnose_recording(path, ReadOptions())
    assert len(caught.value.message) < 400


def test_a_part_needs_a_unit_and_a_status_a_column(tmp_path: Path) -> None:
    text = "ts,latency_ms,wait,code\n1763800000,5,2,200\n"
    with pytest.raises(InputError, match=r"queue 'wait' without a unit.*--map queue_ms=wait"):
        table_of(tmp_path, text, "queue=wait")
    with pytest.raises(InputError, match=r"--map status: found the expression 'code \+ wait'; expected a column"):
        table_of(tmp_path, text, "status=code + wait")


def test_lost_requests_need_no_end_and_a_begin_in_1970_is_none(tmp_path: Path) -> None:
    begin = 1_763_800_000 * S
    rows = [{"start_ns": begin + k, "end_ns": begin + k + MS, "status": 200} for k in range(3)]
    lost = {"start_ns": begin + 9, "end_ns": None, "status": 504}
    unset = {"start_ns": 0, "end_ns": begin, "status": 200}
    table = table_of(tmp_path, "\n".join(map(json.dumps, [*rows, lost, unset])))
    assert table.status.tolist() == [Status.OK] * 3 + [Status.TIMEOUT]
    assert table.latency_ns.tolist() == [MS] * 3 + [-1]
    assert any("1 line was left out, the first in line 5" in note for note in table.notes)


def test_cells_without_a_name_and_names_with_a_number_are_no_copies(tmp_path: Path) -> None:
    text = "ts,latency_ms,stage#1,stage#2,,\n" + "1763800000,5,1,2,,\n" * 2
    assert table_of(tmp_path, text).notes == ()


def test_texts_of_several_lines_with_commas_are_no_rows(tmp_path: Path) -> None:
    out = io.StringIO()
    text = 'Write a poem, please,\nof roses, violets, and sugar,\nbut short, sweet, and "new"'
    csv.writer(out).writerows([["ts", "latency_ms", "prompt"], *([1763800000 + k, 5, text] for k in range(4))])
    table = table_of(tmp_path, out.getvalue())
    assert len(table) == 4 and table.notes == ()


def test_the_number_of_a_bad_line_counts_the_others(tmp_path: Path) -> None:
    good, bad = json.dumps({"ts": 1763800000, "latency_ms": 5}), json.dumps({"ts": None, "latency_ms": 5})
    assert "first in line 5" in table_of(tmp_path, f"{good}\n\n\n{good}\n{bad}\n").notes[0]
    text = "started\nGET 5 1763800000\nready\n\nGET 5 soon\nGET 6 1763800001\n"
    notes = table_of(tmp_path, text, pattern=r"GET (?P<latency_ms>\d+) (?P<end>\S+)").notes
    assert "first in line 5" in notes[0] and notes[-1] == "Skipped 2 other lines, the first: 'started'."
    several = NGINX.format(4, "-", 'rt=0.800 urt="0.5, 0.25"')
    lines = [*(NGINX.format(k, 200, 'rt=0.300 urt="0.200"') for k in range(3)), several.replace("urt", "x urt")]
    assert "first in line 4" in table_of(tmp_path, "".join(lines)).notes[0]


def test_a_request_without_an_answer_did_not_end_ok(tmp_path: Path) -> None:
    rows = "ts,latency_ms,status\n1763800000,5,200\n1763800001,60000,0\n"
    assert table_of(tmp_path, rows).status.tolist() == [Status.OK, Status.ERROR]
    assert table_of(tmp_path, rows.replace("200", "0")).status.tolist() == [Status.OK, Status.OK]  # no codes of HTTP
    line = '[2026-11-22T10:00:0{0}.310Z] "POST /a HTTP/2" {1} {2} 150 87 220 200 "-" "-" "-" "-" "-"\n'
    log = "".join(line.format(*each) for each in ((0, 200, "-"), (1, 0, "DC"), (2, 503, "UF")))
    assert table_of(tmp_path, log).status.tolist() == [Status.OK, CANCELLED, Status.SHED]


def test_an_outage_as_long_as_a_block_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_log, "_AT_ONCE", 2)
    rows = [{"ts": 1763800000 + k, "latency_ms": 5, "status": 200 * (k > 3)} for k in range(6)]
    table = table_of(tmp_path, "\n".join(map(json.dumps, rows)))
    assert table.status.tolist() == [Status.ERROR] * 4 + [Status.OK] * 2


def test_other_lines_of_a_program_s_log_are_skipped_and_counted(tmp_path: Path) -> None:
    served = [json.dumps({"level": 30, "time": 1763800000100 + k, "responseTime": 5, "res": {"statusCode": 200}})
              for k in range(3)]  # fmt: skip
    lost = json.dumps({"level": 50, "time": 1763800000200, "res": {"statusCode": 503}})
    other = json.dumps({"level": 30, "time": 1763800000000, "msg": "ready"})
    table = table_of(tmp_path, "\n".join([*[other] * 200, *served, lost]))
    assert table.status.tolist() == [Status.OK] * 3 + [Status.SHED]
    assert table.notes == (f"Skipped 200 other lines, the first: {other!r}.",)


def test_codes_with_their_reasons(tmp_path: Path) -> None:
    words = ("200 OK", "404 Not Found", "503 Service Unavailable", "504 Gateway Timeout", "500 Internal Server Error")
    rows = "".join(f"{1763800000 + k},5,{word}\n" for k, word in enumerate(words))
    table = table_of(tmp_path, f"ts,latency_ms,status\n{rows}")
    assert table.status.tolist() == [Status.OK, Status.OK, Status.SHED, Status.TIMEOUT, Status.ERROR]


@pytest.mark.parametrize("half", ["", ".5"])
def test_times_since_1970_in_several_units(tmp_path: Path, half: str) -> None:
    times = (f"1763800000{half}", "1763800001500", "1763800002", "1763800003500000000")
    table = table_of(tmp_path, "ts,latency_ms\n" + "".join(f"{time},5\n" for time in times))
    begin = 500 * MS if half else 0
    assert (table.arrival_ns + begin).tolist() == [begin, 1_500 * MS, 2 * S, 3_500 * MS]


@pytest.mark.parametrize("role", ["latency", "latency_ms", "latency_s"])
def test_a_sum_of_durations_with_their_units(tmp_path: Path, role: str) -> None:
    text = "ts,took,held\n1763800000,5ms,0.02s\n1763800001,5ms,30ms\n"
    assert table_of(tmp_path, text, f"{role}=took + held").latency_ns.tolist() == [25 * MS, 35 * MS]


def test_some_durations_with_a_unit_of_their_own(tmp_path: Path) -> None:
    text = "ts,latency_ms\n1763800000,12.5\n1763800001,1.2s\n1763800002,300us\n"
    assert table_of(tmp_path, text).latency_ns.tolist() == [12_500_000, 1_200 * MS, 300_000]


def test_sizes_that_are_no_finite_number_are_none(tmp_path: Path) -> None:
    table = table_of(tmp_path, "ts,latency_ms,size\n1763800000,5,inf\n1763800001,6,7\n")
    assert np.isnan(table.features["size"]).tolist() == [True, False]
    record = json.loads(aiperf_lines().splitlines()[0])
    record["metrics"]["input_sequence_length"]["value"] = 10**400
    table = table_of(tmp_path, json.dumps(record) + "\n")
    assert len(table) == 1 and np.isnan(table.features["input_tokens"]).all()


def test_a_line_of_many_megabytes_is_described(tmp_path: Path) -> None:
    lines = [NGINX.format(k % 10, 200, "0.25") for k in range(300)]
    with pytest.raises(InputError, match="found a line of several MiB"):
        table_of(tmp_path, "".join([*lines, "x" * 40_000_000, "\n", *lines]))


def test_a_first_line_of_any_length(tmp_path: Path) -> None:
    long = "x" * 100_000
    rows = [{"ts": 1763800000 + k, "latency_ms": 5, "prompt": long} for k in range(2)]
    assert len(table_of(tmp_path, "\n".join(map(json.dumps, rows)))) == 2
    document = otlp_document()
    document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["name"] = long
    lines = "\n".join(json.dumps({"resourceSpans": [batch]}) for batch in document["resourceSpans"])
    assert len(otlp_spans.read(written(tmp_path, lines))) == 4
    one = vllm_document(start_times=[5.0, 5.5, 6.0], generated_texts=[long] * 3)
    assert len(table_of(tmp_path, json.dumps(one) + "\n" + json.dumps(one) + "\n")) == 3


def test_spans_with_blanks_after_commas_or_too_many_cells(tmp_path: Path) -> None:
    header = "traceId, spanId, parentId, service, startTime, duration"
    text = f"{header}\nt, a, , api, 1763800000000, 50\nt, b, a, db, 1763800000010, 20\n"
    assert span_columns.read(written(tmp_path, text)).parent.tolist() == [-1, 0]
    with pytest.raises(InputError, match=":2: found more cells than the header has names"):
        span_columns.read(written(tmp_path, f"{header}\n" + "t,a,,api,1763800000000,50,extra\n" * 2))


def test_a_number_longer_than_its_message_allows(tmp_path: Path) -> None:
    attribute = field(1, b"x") + field(2, bytes([4 << 3]) + b"\xff" * 9 + b"\x7f")  # a double as a varint of 70 bits
    times = b"".join(bytes([number << 3 | 1]) + number.to_bytes(8, "little") for number in (7, 8))
    span = field(1, b"t" * 16) + field(2, b"s" * 8) + times + field(9, attribute)
    message = field(1, field(1, field(1, field(1, b"service.name"))) + field(2, field(2, span)))
    with pytest.raises(InputError, match="invalid or cut off message"):
        otlp_spans.read_protobuf(written(tmp_path, message))


def test_a_histogram_without_a_sum_has_no_mean(tmp_path: Path) -> None:
    text = "".join(line + "\n" for line in HISTOGRAM.splitlines() if "_sum" not in line)
    document = diagnose_recording(written(tmp_path, text), ReadOptions(percentile=97.0)).to_json()
    assert document["latency_ms"]["mean"] is None
    assert document["sentence"].startswith("p97 of vllm:e2e_request_latency_seconds lies between 500 ms and 1,000 ms")


@pytest.mark.parametrize("apart", [1, 2, 3, 5, 7])
def test_requests_like_clockwork_have_a_diagnosis(tmp_path: Path, apart: int) -> None:
    text = "ts,latency_ms\n" + "".join(f"{1763800000000 + 10 * apart * k},5\n" for k in range(300))
    assert diagnose_recording(written(tmp_path, text), ReadOptions()).verdict == "steady"


def test_no_ratio_to_a_median_of_zero(tmp_path: Path) -> None:
    text = "ts,latency_ms\n" + "".join(f"{1763800000 + 7 * k},{9 * (k % 10 == 0)}\n" for k in range(400))
    assert "p95 is 9.00 ms, the median is 0" in diagnose_recording(written(tmp_path, text), ReadOptions()).sentence


NONSENSE: tuple[Any, ...] = (None, "x", -1, 1e300, 10**30, float("nan"), True, [], {}, ["a"], {"a": 1}, -(10**19))
WORDS = ("", "x", "-1", "1e300", "9" * 30, "nan", "inf", "\udcff", '"', "2026-13-45", "00", ",", "\x00", "{", "1.2.3")


def values_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, each in inside:
        yield from values_in(each, (*path, key))


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copied = dict(document) if isinstance(document, dict) else list(document)
    copied[path[0]] = changed(copied[path[0]], path[1:], value)
    return copied


def damaged_copies(whole: bytes) -> Iterator[str]:
    """Copies with one value of a document replaced by nonsense; of other texts with a replaced or removed part.

    Of Parquet one byte is another.
    """
    text = whole.decode("utf-8", "surrogateescape")
    rng = np.random.default_rng(1)
    if whole.startswith(b"PAR1"):
        for at in rng.integers(4, len(whole) - 4, 500).tolist():
            yield (whole[:at] + rng.bytes(1) + whole[at + 1 :]).decode("utf-8", "surrogateescape")
        return
    try:
        lines = [json.loads(line) for line in ([text] if text[0] == "[" or "\n " in text else text.splitlines())]
    except ValueError:
        for _ in range(150):
            at = int(rng.integers(0, min(len(text), 900)))
            yield text[:at] + str(rng.choice(WORDS)) + text[at + int(rng.integers(0, 8)) :]
        return
    cases = [(path, value) for path in values_in(lines[0]) for value in NONSENSE]
    for k in rng.permutation(len(cases))[:150].tolist():
        yield "\n".join(map(json.dumps, [changed(lines[0], *cases[k]), *lines[1:]]))
    yield text.replace("1", "1" * 5000, 1)


@pytest.mark.parametrize("writer", [name for name in WRITERS if "protobuf" not in name])
def test_damage_is_refused_in_one_line_or_the_diagnosis_sums(tmp_path: Path, writer: str) -> None:
    read = 0
    for text in damaged_copies(WRITERS[writer][1]()):
        try:
            result = diagnose_recording(written(tmp_path, text.encode("utf-8", "surrogateescape")), ReadOptions())
        except InputError as error:
            assert "\n" not in error.message and "recording" in error.message
        else:
            json.dumps(result.to_json(), allow_nan=False)
            assert not len(result.ledger.latency_ns) or result.ledger.conservation_error_ns() == 0
            read += 1
    assert read
