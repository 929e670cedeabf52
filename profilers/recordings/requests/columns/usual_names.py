"""What columns are usually called: names by role, units in names, and the columns of known writers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from latfix.profilers.recordings.requests.text_source import UNITS_NS, unit_of


def _named(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.I)


#: Names without their unit, in whole.
LATENCY = _named(
    r"(e2e_?|total_?|req(uest)?_?|resp(onse)?_?)?(latenc(y|ies)|durations?|elapsed|resp(onse)?_?times?|req(uest)?_?times?)"
)
_AT = r"(_?(at|times?|ts|time_?stamps?))?"
ARRIVAL = _named(
    r"(@?time_?stamps?|ts|time|date(time)?|asctime|"
    rf"((t|ts|time)_)?(arrivals?|arrived|start(ed)?|begin|request_start|receiv(ed)?|submit(ted)?|creat(ed)?|enqueued?){_AT}|"
    r"req(uest)?_?(date_?)?(time(_?(stamp|epoch))?|ts))(_UTC)?"
)
#: Moments before a wait for service, and those after it.
SUBMITTED = _named(rf"((t|ts|time)_)?(arrivals?|arrived|receiv(ed)?|submit(ted)?|creat(ed)?|enqueued?){_AT}")
BEGUN = _named(rf"((t|ts|time)_)?(start(ed)?|begin|began|dispatch(ed)?){_AT}")
#: Moments of which a name does not say whether the request began or ended.
WRITTEN = _named(r"@?time_?stamps?|ts|time|date(time)?|asctime")
END = _named(rf"((t|ts|time)_)?(end(ed)?|finish(ed)?|completed?|done|succeeded){_AT}|msec|time_(iso8601|local)")
QUEUE = _named(r"(queue|queued|queueing|wait)(_?(time|delay|duration))?")
FIRST = _named(r"ttft|time_to_first_(token|byte|chunk)|(completion_start|first_token)(_?(time|at|timestamp))?")
#: Of a latency, too, if no column has a usual one.
WHOLE = _named(
    r"total(_?time)?|took|lat|time_?taken|((process|handl|serv)(ing)?|generation|inference|execution|exec|run|wall|"
    r"round_?trip)_?time|end_?to_?end(_?latency)?"
)
#: A latency, and the time of a request, if nothing else is, and only one column is called so.
ONLY = _named(r"\w*(latency|duration|elapsed)\w*")
ONLY_TIME = _named(r"\w*time_?stamp\w*")
STATUS = _named(r"(http_?|response_?)?status(_?code)?|(response_?)?code|outcome|result")
#: What went wrong; nothing if the request ended ok.
ERROR = _named(r"err(or)?(_?(type|code|msg|message))?|exception(_?(type|code))?")
ROUTE = _named(r"route|path|endpoint|uri|url|operation|model|handler")
ID = _named(r"(x_)?((http_)?(request|req|correlation|trace)_?)?id")
USER = _named(r"(user|session|client|vu|customer)(_?(id|name))?")
SERVER = _named(
    r"(upstream|backend|server|host|pod|instance|replica|node|worker|target|machine|container|shard|gpu)"
    r"(_?(addr(ess)?|host|ip|id|name))?"
)
#: Values of a row's kind that say that a request began: another row says that it ended.
BEGINS = ("QueryStart", "1", "RequestReceived", "ResponseStarted")
#: Roles with these names, in the order in which they are looked for.
USUAL: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("latency", LATENCY), ("latency", WHOLE), ("latency", ONLY), ("arrival", ARRIVAL), ("end", END),
    ("begun_at", BEGUN), ("queue", QUEUE), ("first", FIRST), ("status", STATUS), ("status", ERROR), ("route", ROUTE),
    ("id", ID), ("arrival", ONLY_TIME), ("user", USER), ("server", SERVER),
)  # fmt: skip
#: Those of times that need a unit.
WITH_UNIT = (WHOLE, ONLY, QUEUE, FIRST)
#: Parts of names: of amounts of work; of figures of many requests; of most times.
WORK = _named(r"(^|_)(size|bytes|tokens|length|len|elements|items|count|pixels)(_|$)")
FIGURE = _named(r"(^|[._ ])(p\(?\d\d|mean|median|avg|average)")
TIME = _named(r"time|dur|lat|took|elapsed")
NGINX = ("request_time", "upstream_response_time")
#: Writers with columns without a unit: some columns that identify each, and its mapping as in ``--map``. JMeter, ghz,
#: vegeta, hey, oha, ApacheBench; Heroku, lograge; access logs in JSON of Envoy (Istio), Traefik, Caddy, Kong,
#: APISIX, Echo, Cloudflare, Azure's Application Gateway and gRPC in Go; Kubernetes' audit; ClickHouse's queries;
#: nginx's JSON; Elastic's schema; Serilog, pino, AWS Lambda's reports in CloudWatch, Application Insights; Ollama's
#: answers.
WRITERS: tuple[tuple[set[str], Mapping[str, str]], ...] = (
    ({"timeStamp", "elapsed", "label"},
     {"latency_ms": "elapsed", "arrival_ms": "timeStamp", "status": "success", "route": "label",
      "user": "threadName"}),
    ({"details.timestamp", "details.latency", "details.status"},
     {"latency_ns": "details.latency", "arrival": "details.timestamp", "status": "details.status"}),
    ({"attack", "seq", "latency", "timestamp"}, {"latency_ns": "latency", "arrival": "timestamp", "status": "error"}),
    ({"response-time", "DNS+dialup", "offset"},
     {"latency_s": "response-time", "arrival_s": "offset", "status": "status-code", "connect_s": "DNS+dialup"}),
    ({"request-start", "request-duration", "DNS+dialup"},
     {"latency_s": "request-duration", "arrival_s": "request-start", "status": "status", "connect_s": "DNS+dialup"}),
    ({"starttime", "seconds", "ctime", "ttime"},
     {"latency_ms": "ttime", "arrival_s": "seconds", "connect_ms": "ctime"}),
    ({"apisix_latency", "upstream_latency", "latency"},
     {"latency_ms": "latency", "arrival_ms": "start_time", "status": "response.status", "route": "request.uri",
      "upstream_ms": "upstream_latency", "size": "request.size", "server": "upstream"}),
    ({"requestReceivedTimestamp", "stageTimestamp"},
     {"arrival": "requestReceivedTimestamp", "end": "stageTimestamp", "status": "responseStatus.code",
      "route": "requestURI", "row_kind": "stage"}),
    ({"query_duration_ms", "query_start_time_microseconds"},
     {"latency_ms": "query_duration_ms", "arrival": "query_start_time_microseconds", "status": "exception_code",
      "route": "query_kind", "size": "read_rows", "row_kind": "type"}),
    ({"controller", "action", "duration"},
     {"latency_ms": "duration", "status": "status", "route": "path", "db_ms": "db"}),
    ({"latencies.request", "latencies.proxy", "started_at"},
     {"latency_ms": "latencies.request", "arrival_ms": "started_at", "status": "response.status",
      "route": "request.uri", "upstream_ms": "latencies.proxy", "size": "request.size"}),
    ({"@timestamp", "event.duration"},
     {"latency_ns": "event.duration", "end": "@timestamp", "status": "http.response.status_code",
      "route": "url.path", "size": "http.request.body.bytes"}),
    ({"start_time", "duration", "response_code"},
     {"latency_ms": "duration", "arrival": "start_time", "status": "response_code", "route": "path",
      "size": "bytes_received"}),
    *(({"start_time", "duration", "response_code", upstream}, {"client_ms": f"duration - {upstream}"})
      for upstream in ("upstream_service_time", "x_envoy_upstream_service_time")),
    ({"StartUTC", "Duration"},
     {"latency_ns": "Duration", "arrival": "StartUTC", "status": "DownstreamStatus", "route": "RequestPath",
      "size": "RequestContentSize", "server": "ServiceAddr"}),
    ({"StartUTC", "Duration", "OriginDuration"}, {"client_ns": "Duration - OriginDuration"}),
    ({*NGINX}, {"latency_s": "request_time", "client_s": "request_time - upstream_response_time"}),
    ({"dyno", "connect", "service"},
     {"latency_ms": "connect + service", "end": "line_time", "status": "status", "route": "path",
      "connect_ms": "connect"}),
    ({"@t", "Elapsed"},
     {"latency_ms": "Elapsed", "end": "@t", "status": "StatusCode", "route": "RequestPath"}),
    ({"responseTime", "res.statusCode"},
     {"latency_ms": "responseTime", "end": "time", "status": "res.statusCode", "route": "req.url"}),
    ({"@timestamp", "@duration"}, {"latency_ms": "@duration", "end": "@timestamp", "id": "@requestId"}),
    ({"duration", "resultCode", "performanceBucket"},
     {"latency_ms": "duration", "status": "resultCode", "route": "name"}),
    ({"EdgeStartTimestamp", "EdgeEndTimestamp"},
     {"arrival": "EdgeStartTimestamp", "end": "EdgeEndTimestamp", "status": "EdgeResponseStatus",
      "route": "ClientRequestURI", "size": "ClientRequestBytes"}),
    *(({"properties.timeTaken", *of_version},
       {f"latency_{unit}": "properties.timeTaken", "end": end, "status": "properties.httpStatus",
        "route": "properties.requestUri", "size": "properties.receivedBytes", "server": "properties.serverRouted"})
      for unit, end, of_version in (("s", "timeStamp", {"properties.serverRouted"}), ("ms", "time", set[str]()))),
    ({"total_duration", "eval_duration", "created_at"},
     {"latency_ns": "total_duration", "end": "created_at", "load_ns": "load_duration", "size": "prompt_eval_count",
      "output_tokens": "eval_count"}),
    ({"t.$date", "attr.durationMillis"},
     {"latency_ms": "attr.durationMillis", "end": "t.$date", "route": "attr.ns", "id": "id"}),
    ({"responseLatency", "requestTimeEpoch"},
     {"latency_ms": "responseLatency", "arrival_ms": "requestTimeEpoch", "integration_ms": "integrationLatency",
      "route": "resourcePath"}),
    ({"time_total", "time_starttransfer", "time_namelookup"},
     {"latency_s": "time_total", "connect_s": "time_connect", "status": "http_code", "size": "size_upload"}),
    ({"grpc.time_ms"}, {"latency_ms": "grpc.time_ms", "status": "grpc.code", "route": "grpc.method"}),
    ({"latency", "latency_human"}, {"latency_ns": "latency", "end": "time", "route": "uri", "size": "bytes_in"}),
    ({"ts", "duration", "request.uri"},
     {"latency_s": "duration", "end": "ts", "status": "status", "route": "request.uri", "size": "bytes_read"}),
)  # fmt: skip


def bare(name: str) -> str:
    """A column's name without the objects around it and without its unit."""
    last = name.rpartition(".")[2].strip()
    words = re.sub(r"[^0-9A-Za-z]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", last)).strip("_")
    base, _, unit = words.rpartition("_")
    return base if base and unit.lower() in UNITS_NS else words


def is_called(name: str, *usual: re.Pattern[str]) -> bool:
    """True if a column has one of these usual names."""
    words = bare(name)
    return any(pattern.fullmatch(words) for pattern in usual)


def unit_in(name: str) -> int | None:
    """Nanoseconds of the unit of a column, by its name."""
    last = name.rpartition(".")[2].strip(")] ")
    return unit_of(re.sub(r"[^0-9A-Za-z]+", "_", last)) or (UNITS_NS["s"] if last in NGINX else None)
