"""Text logs: built-in formats, key=value lines, and patterns of the user's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from latfix.errors import InputError
from latfix.profilers.recordings.requests.formats import text_log
from latfix.profilers.recordings.requests.request_table import CANCELLED
from latfix.stages import Status
from tests.profilers.recordings.requests.formats.test_formats import table_of

#: Two requests, as each writer logs them: they end at 10:00:00.250 and 10:00:01.500, after 50 and 200 ms.
HAPROXY = """\
Nov 20 10:00:00 lb haproxy[7]: 10.0.0.1:3 [20/Nov/2026:10:00:00.200] web api/s1 1/0/2/40/50 200 312 - - ---- \
1/1/0/0/0 0/0 "POST /predict?x=1 HTTP/1.1"
Nov 20 10:00:01 lb haproxy[7]: 10.0.0.1:3 [20/Nov/2026:10:00:01.300] web api/s2 1/120/2/60/+200 504 0 - - sH-- \
9/9/8/1/0 0/7 {x} "POST /predict HTTP/1.1"
Nov 20 10:00:02 lb haproxy[7]: backend api has no server available!
"""
ALB = """\
h2 2026-11-20T10:00:00.250000Z app/x/50d 10.0.0.1:2 10.0.0.2:80 0.001 0.048 0.001 200 200 77 312 \
"POST https://h:443/predict HTTP/2.0" "curl" - - arn:x "Root=1" "h" "-" 0 2026-11-20T10:00:00.2Z "forward" "-" "-"
h2 2026-11-20T10:00:01.500000Z app/x/50d 10.0.0.1:2 10.0.0.2:80 0.120 0.080 0.000 504 - 78 0 \
"POST https://h:443/predict HTTP/2.0" "curl" - - arn:x "Root=1" "h" "-" 0 2026-11-20T10:00:01.3Z "forward" "-" "-"
"""
GIN = """\
time=2026-11-20T09:59:59Z level=INFO source=server.go:309 msg="starting llama server"
[GIN] 2026/11/20 - 10:00:00 | 200 |    50.000000ms |       127.0.0.1 | POST     "/api/generate"
[GIN] 2026/11/20 - 10:00:01 | 504 |    200000.00µs |       127.0.0.1 | POST     "/api/generate"
"""
HEROKU = """\
2026-11-20T10:00:00.250+00:00 heroku[router]: at=info method=POST path="/predict" dyno=web.1 connect=1ms \
service=49ms status=200 bytes=312
2026-11-20T10:00:01.500+00:00 heroku[router]: at=error code=H12 desc="Request timeout" method=POST path="/predict" \
dyno=web.1 connect=2ms service=198ms status=504 bytes=0
"""
LOGFMT = """\
time=2026-11-20T10:00:00.250Z level=info msg="request \\"served\\"" duration_ms=50 status=200 tokens=7
time=2026-11-20T10:00:01.500Z level=info msg="request served" duration_ms=200 status=504 tokens=9
"""
TORCHSERVE = """\
2026-11-20 10:00:00,250 [INFO ] BackendWorker-9000 ACCESS_LOG - /127.0.0.1:64003 "POST /predict HTTP/1.1" 200 50
2026-11-20T10:00:01,500 - /127.0.0.1:64003 "POST /predict HTTP/1.1" 504 200
"""
RAY_SERVE = """\
(ServeReplica:default:M pid=7) INFO 2026-11-20 10:00:00,250 default_M r9k0uop3 5708-c1 -- POST /predict 200 50.0ms
INFO 2026-11-20 10:00:01,500 default_M r9k0uop3 5708-c2 -- POST /predict 504 200.0ms
"""
BENTOML = """\
2026-11-20T10:00:00.250+0000 [INFO] [api_server:svc:3] 127.0.0.1:50418 (scheme=http,method=POST,path=/predict,\
type=application/json,length=34) (status=200,type=application/json,length=5) 50.000ms (trace=ab,span=1f,sampled=0)
2026-11-20T10:00:01.500+0000 [INFO] [api_server:svc:3] 127.0.0.1:50418 (scheme=http,method=POST,path=/predict,\
type=,length=) (status=504,type=,length=) 200.000ms (trace=ac,span=2f,sampled=0,service.name=svc)
"""
TGI = """\
2026-11-20T10:00:00.250000Z  INFO generate{parameters=GenerateParameters { stop: [] } total_time="50ms" \
validation_time="412.1µs" queue_time="68.2µs" inference_time="49.5ms" seed="None"}: text_generation_router::server: x
2026-11-20T10:00:01.500000Z  INFO generate{parameters=GenerateParameters { stop: [] } total_time="0.2s" \
validation_time="412.1µs" queue_time="120ms" inference_time="79.5ms" seed="None"}: text_generation_router::server: x
"""
K6 = """\
metric_name,timestamp,metric_value,check,error,error_code,expected_response,group,method,name,proto,scenario,service,\
status,subproto,tls_version,url,extra_tags,metadata
http_reqs,1795168800,1.000000,,,,true,,POST,http://h/predict,HTTP/1.1,default,,200,,,http://h/predict,,
http_req_duration,1795168800,50.000000,,,,true,,POST,http://h/predict,HTTP/1.1,default,,200,,,http://h/predict,,
http_req_duration,1795168801,200.000000,,,,true,,POST,http://h/predict,HTTP/1.1,default,,504,,,http://h/predict,,
"""
VEGETA = """\
1795168800200000000,200,50000000,5,12,,b2s=,,0,POST,http://h/predict,RGF0ZTogeAo=
1795168801300000000,504,200000000,5,0,"504 Gateway Timeout, said h",,,1,POST,http://h/predict,
1795168802300000000,0,100000,0,0,"connection refused",,,2,POST,http://h/predict,
"""
GATLING = (
    "RUN\tsim.Basic\tbasic\t1795168800000\t \t3.9.5\n"
    "REQUEST\t\tpredict\t1795168800200\t1795168800250\tOK\t \n"
    "REQUEST\t\tpredict\t1795168801300\t1795168801500\tKO\tstatus.find.in(200)\n"
)
IIS = """\
#Software: Microsoft Internet Information Services 10.0
#Fields: date time s-ip cs-method cs-uri-stem s-port cs(User-Agent) sc-status sc-substatus time-taken
2026-11-20 10:00:00 10.0.0.2 POST /predict 443 curl/8 200 0 50
2026-11-20 10:00:01 10.0.0.2 POST /predict 443 curl/8 504 0 200
"""
CLOUDFRONT = IIS.replace(" 50\n", " 0.050\n").replace(" 0 200\n", " 0 0.200\n").replace(" ", "\t")
TRAEFIK = """\
10.0.0.1 - - [20/Nov/2026:10:00:00 +0000] "POST /predict HTTP/1.1" 200 12 "-" "curl" 1 "m@docker" "http://h:80" 50ms
10.0.0.1 - - [20/Nov/2026:10:00:01 +0000] "POST /predict HTTP/1.1" 504 12 "-" "curl" 2 "m@docker" "http://h:80" 200ms
"""
K6_JSON = '{"type":"Metric","data":{"name":"http_req_duration"},"metric":"http_req_duration"}\n' + "".join(
    f'{{"metric":"{metric}","type":"Point","data":{{"time":"2026-11-20T10:00:{at}00+00:00","value":{ms},'
    f'"tags":{{"method":"POST","name":"/predict","proto":"HTTP/1.1","status":"{status}"}}}}}}\n'
    for at, ms, status in (("00.2500", 50, 200), ("01.5000", 200.0, 504))
    for metric in ("http_reqs", "http_req_duration")
)
K6_LATER = "".join(
    line.replace('{"metric":"http_req_duration",', "{").replace("}}}\n", '}},"metric":"http_req_duration"}\n')
    for line in K6_JSON.splitlines(keepends=True)
    if '"http_reqs"' not in line
)
SQUID = """\
1795168800.250     50 10.0.0.1 TCP_MISS/200 312 POST http://h/predict - HIER_DIRECT/10.0.0.2 text/html
1795168801.500    200 10.0.0.1 TCP_MISS_ABORTED/504 0 POST http://h/predict - HIER_NONE/- -
"""
UWSGI = """\
*** Starting uWSGI 2.0.21 (64bit) ***
[pid: 7|app: 0|req: 1/1] 10.0.0.1 () {40 vars in 500 bytes} [Fri Nov 20 10:00:00 2026] POST /predict => generated 12 \
bytes in 50 msecs (HTTP/1.1 200) 4 headers in 100 bytes (1 switches on core 0)
[pid: 7|app: 0|req: 2/2] 10.0.0.1 () {40 vars in 500 bytes} [Fri Nov 20 10:00:01 2026] POST /predict => generated 0 \
bytes in 200 msecs (HTTP/1.1 504) 4 headers in 100 bytes (1 switches on core 0)
"""
S3 = """\
79a bucket [20/Nov/2026:10:00:00 +0000] 10.0.0.1 - REQ1 REST.GET.OBJECT k "GET /k?x HTTP/1.1" 200 - 312 312 50 45 \
"-" "aws" - host SigV4 ECDHE AuthHeader b.s3 TLSv1.2 - -
79a bucket [20/Nov/2026:10:00:01 +0000] 10.0.0.1 - REQ2 REST.GET.OBJECT k "GET /k?x HTTP/1.1" 504 E - 312 200 - \
"-" "aws" - host SigV4 ECDHE AuthHeader b.s3 TLSv1.2 - -
"""
RAILS = """\
I, [2026-11-20T10:00:00.200000 #7]  INFO -- : [ab] Started POST "/predict" for 10.0.0.1 at 2026-11-20 10:00:00 +0000
I, [2026-11-20T10:00:00.250000 #7]  INFO -- : [ab] Completed 200 OK in 50ms (Views: 2.1ms | ActiveRecord: 40.5ms (3 \
queries, 0 cached) | GC: 0.0ms)
I, [2026-11-20T10:00:01.500000 #8]  INFO -- : Completed 504 Gateway Timeout in 200ms
"""
LAMBDA = """\
2026-11-20T10:00:00.250000+00:00 2026/11/20/[$LATEST]ab START RequestId: 8f50-1 Version: $LATEST
2026-11-20T10:00:00.250000+00:00 2026/11/20/[$LATEST]ab REPORT RequestId: 8f50-1\tDuration: 50.00 ms\tBilled \
Duration: 51 ms\tMemory Size: 128 MB\tMax Memory Used: 71 MB\tInit Duration: 412.12 ms\t
2026-11-20T10:00:01.500Z\tREPORT RequestId: 8f50-2\tDuration: 200.00 ms\tBilled Duration: 200 ms\tMemory Size: 128 MB
"""
POSTGRES = """\
2026-11-20 10:00:00.250 CET [7] LOG:  duration: 50.000 ms  statement: SELECT a
2026-11-20 10:00:00.900 CET [7] LOG:  duration: 0.100 ms  parse <unnamed>: SELECT a
2026-11-20 10:00:01.500 CET [8] app@shop LOG:  duration: 200.000 ms  execute S_1: SELECT a
\tFROM b
"""
POSTGRES_CSV = """\
2026-11-20 10:00:00.250 CET,"app","shop",7,"h:1",65.7,1,"SELECT",2026-11-20 09:00:00 CET,3/1,0,LOG,00000,"duration: \
50.000 ms",,,,,,,,,"psql","client backend",,0
2026-11-20 10:00:01.500 CET,"app","shop",8,"h:1",65.8,1,"SELECT",2026-11-20 09:00:00 CET,3/1,0,LOG,00000,"duration: \
200.000 ms",,,,,,,,,"psql","client backend",,0
"""
PADDED = """\
end                      latency_ms  status  route
2026-11-20 10:00:00.250  50          200     POST /predict
2026-11-20 10:00:01.500  200         504     POST /predict

"""
PANDAS = """\
                       end duration_ms  code route
0  2026-11-20 10:00:00.250        50.0   200    /a
10 2026-11-20 10:00:01.500       200.0   504    /a
"""
#: Its lines have the time of arrival.
CLASSIC = ALB.replace("h2 ", "").replace("app/x/50d", "my-elb").replace("0.25", "0.20").replace("1.50", "1.30")
LOGS = {"HAProxy": HAPROXY, "AWS": ALB, "AWS classic": CLASSIC,
        "gin": GIN, "Heroku": HEROKU, "logfmt": LOGFMT, "TorchServe": TORCHSERVE, "Ray Serve": RAY_SERVE,
        "BentoML": BENTOML, "TGI": TGI, "k6": K6, "k6 JSON": K6_JSON, "k6 JSON, metric last": K6_LATER,
        "Gatling": GATLING, "Gatling 3.3": GATLING.replace("REQUEST\t", "REQUEST\t7\t"), "Traefik": TRAEFIK,
        "Rails": RAILS, "Lambda": LAMBDA, "PostgreSQL": POSTGRES, "PostgreSQL, CSV": POSTGRES_CSV,
        "column -t": PADDED, "pandas": PANDAS,
        "Squid": SQUID, "uWSGI": UWSGI, "S3": S3,
        "IIS": IIS, "CloudFront": CLOUDFRONT, "vegeta": VEGETA.rpartition("1795168802")[0]}  # fmt: skip
#: Those with times to the second, and how the second request ended if not in time.
TO_THE_SECOND = {"gin", "k6", "IIS", "CloudFront"}
ENDED = dict.fromkeys(("TGI", "Lambda", "PostgreSQL", "PostgreSQL, CSV"), Status.OK)
ENDED |= dict.fromkeys(("Gatling", "Gatling 3.3"), Status.ERROR)


@pytest.mark.parametrize("writer", LOGS)
def test_each_format_gives_the_same_requests(tmp_path: Path, writer: str) -> None:
    table = table_of(tmp_path, LOGS[writer])
    assert table.latency_ns.tolist() == [50_000_000, 200_000_000]
    assert table.status.tolist() == [Status.OK, ENDED.get(writer, Status.TIMEOUT)]
    if writer in ("Traefik", "uWSGI", "S3"):  # times to the second, at which requests arrived
        assert np.diff(table.arrival_ns).tolist() == [1_000_000_000]
        return
    apart = 1_000_000_000 + (-150 if writer in TO_THE_SECOND else 250 - 150) * 1_000_000
    assert np.diff(table.arrival_ns).tolist() == [apart]
    assert not table.routes, "one route is no difference"


def test_the_parts_that_a_proxy_measures_are_parts(tmp_path: Path) -> None:
    assert table_of(tmp_path, HAPROXY).parts["queue"].tolist() == [0, 120_000_000]
    assert table_of(tmp_path, TGI).parts["queue"].tolist() == [68_200, 120_000_000]
    assert table_of(tmp_path, ALB).parts["balancer"].tolist() == [2_000_000, 120_000_000]
    assert table_of(tmp_path, HEROKU).parts["connect"].tolist() == [1_000_000, 2_000_000]
    assert table_of(tmp_path, LOGFMT).features["tokens"].tolist() == [7, 9]


def test_a_request_of_k6_without_an_answer_did_not_end_ok_even_if_none_did(tmp_path: Path) -> None:
    for log in (K6, K6_JSON, K6_LATER):
        lost = log.replace(",200,", ",0,").replace(",504,", ",0,").replace('"200"', '"0"').replace('"504"', '"0"')
        assert table_of(tmp_path, lost).status.tolist() == [Status.ERROR, Status.ERROR]


def test_a_request_of_vegeta_without_an_answer_did_not_end_ok(tmp_path: Path) -> None:
    table = table_of(tmp_path, VEGETA)
    assert table.status.tolist() == [Status.OK, Status.TIMEOUT, Status.ERROR] and table.route is None


def test_commas_between_quotes_do_not_shift_the_cells_of_k6(tmp_path: Path) -> None:
    log = K6.replace("POST,http://h/predict,", 'POST,"http://h/predict?ids=1,2,3,4",')
    log = log.replace(",,,,true,", ',,"lookup h: no such host, ""h""",1101,false,')
    assert table_of(tmp_path, log).status.tolist() == [Status.OK, Status.TIMEOUT]
    more = log.replace(",group,method", ",group,ip,method").replace(",,POST", ",,10.0.0.1,POST")  # with another tag
    assert table_of(tmp_path, more).status.tolist() == [Status.OK, Status.TIMEOUT]


def test_lines_below_another_header_of_fields_are_skipped(tmp_path: Path) -> None:
    more = IIS.replace("cs-uri-stem", "cs-uri-stem cs-uri-query").replace("/predict", "/predict -")
    table = table_of(tmp_path, IIS + more)
    assert table.latency_ns.tolist() == [50_000_000, 200_000_000]
    assert any("Skipped 2 other lines" in note for note in table.notes)


def test_a_request_of_haproxy_whose_client_left_is_cancelled(tmp_path: Path) -> None:
    first = HAPROXY.splitlines(keepends=True)[0]
    ends = ("200 312 - - CD--", "503 0 - - CC--", "-1 0 - - CH--", "-1 0 - - SH--", "200 9 - - SD--")
    table = table_of(tmp_path, first + "".join(first.replace("200 312 - - ----", end) for end in ends))
    assert table.status.tolist() == [Status.OK, CANCELLED, CANCELLED, CANCELLED, Status.ERROR, Status.OK]


def test_other_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    notes = table_of(tmp_path, HAPROXY).notes
    assert any(note.startswith("Skipped 1 other line,") and "has no server" in note for note in notes)
    assert not any("Skipped" in note for note in table_of(tmp_path, IIS).notes)  # its directives


def test_a_line_of_pairs_needs_only_its_times(tmp_path: Path) -> None:
    more = (
        'time=2026-11-20T10:00:02Z level=info msg="request served" duration_ms=30\n'
        "time=2026-11-20T10:00:03Z level=info msg=reload status=done\n"
    )
    table = table_of(tmp_path, LOGFMT + more)
    assert table.latency_ns.tolist() == [50_000_000, 200_000_000, 30_000_000]
    assert table.status[2] == Status.OK and np.isnan(table.features["tokens"][2])
    assert any(note.startswith("Skipped 1 other line,") and "reload" in note for note in table.notes)


def test_colors_of_a_terminal_are_ignored(tmp_path: Path) -> None:
    colored = "\x1b[2m2026-11-20T10:00:0{0}Z\x1b[0m INFO \x1b[36mpath\x1b[0m=/a status=200 duration_ms=3{0}\n"
    table = table_of(tmp_path, "".join(colored.format(k) for k in range(4)))
    assert table.timed and table.latency_ns.tolist() == [30_000_000, 31_000_000, 32_000_000, 33_000_000]


def test_a_pattern_reads_any_format(tmp_path: Path) -> None:
    log = (
        "2026-11-20 10:00:00,250 INFO served /predict in 0.05 s (queued 10 ms, db 30 ms)\n"
        "2026-11-20 10:00:01,500 INFO served /predict in 0.2 s (queued 120 ms, db 60 ms)\n"
        "2026-11-20 10:00:01,600 WARNING disk\n"
    )
    pattern = (
        r"^(?P<end>\S+ \S+) INFO served (?P<route>\S+) in (?P<latency_s>[\d.]+) s "
        r"\(queued (?P<queue_ms>\d+) ms, db (?P<db>\d+) ms\)"
    )
    table = table_of(tmp_path, log, "db_ms=db", pattern=pattern)
    assert table.latency_ns.tolist() == [50_000_000, 200_000_000]
    assert np.diff(table.arrival_ns).tolist() == [1_100_000_000]
    assert {name: part.tolist() for name, part in table.parts.items()} == {
        "queue": [10_000_000, 120_000_000],
        "db": [30_000_000, 60_000_000],
    }


def test_a_group_with_a_unit_is_a_dependency(tmp_path: Path) -> None:
    log = "".join(f"2026-11-20T10:00:0{k}Z Completed 200 in 50ms (db 3{k}ms)\n" for k in range(3))
    pattern = r"^(?P<end>\S+) Completed (?P<status>\d+) in (?P<latency_ms>\d+)ms \(db (?P<db_ms>\d+)ms"
    assert table_of(tmp_path, log, pattern=pattern).parts["db"].tolist() == [30_000_000, 31_000_000, 32_000_000]
    assert set(table_of(tmp_path, log, "store_ms=db_ms", pattern=pattern).parts) == {"store"}


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "expected a regular expression"),
        (r"in (?P<latency_s>[\d.]+) (?=s)", "expected a regular expression"),  # no look-ahead in RE2
        ("in ([0-9.]+) s", "expected named groups"),
        ("(?P<latency_ms>x)", "lines that the pattern matches"),
        (r"(?P<level>INFO)", "name the latency"),
    ],
)
def test_a_pattern_that_does_not_fit_is_refused_in_one_line(tmp_path: Path, pattern: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        table_of(tmp_path, "2026-11-20 10:00:00,250 INFO served in 0.05 s\n", pattern=pattern)
    assert "\n" not in str(raised.value)


def test_an_access_log_with_keys_stays_an_access_log(tmp_path: Path) -> None:
    line = '10.0.0.1 - - [20/Nov/2026:10:00:{:02}] "POST /a HTTP/1.1" 200 5 "-" "c" rt=0.{:03} uct=0.001 urt=0.010\n'
    log = "".join(line.replace("]", " +0000]").format(k, 20 + k) for k in range(30))
    assert table_of(tmp_path, log).facts["format"] == "nginx access log"


def test_prose_is_no_log_of_pairs() -> None:
    assert not text_log.knows(b"a = b\nthe quick brown fox\n")
    assert not text_log.knows(b'{"a=1": "b=2 c=3 d=4"}\n')
