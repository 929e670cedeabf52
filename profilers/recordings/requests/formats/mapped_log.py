"""Custom logs: CSV or JSON Lines whose columns are known by name or by ``--map``.

``--map ROLE[_UNIT]=COLUMN`` or an expression over columns. Roles: ``latency``, ``arrival`` or ``end``, ``queue``,
``first`` (time to the first chunk), ``dispatch``, ``status``, ``cancelled`` (the client left), ``route``, ``server``,
``id``, ``user``. Any other name with a unit of time is a dependency that was waited for (``db_ms=…``), without one a
feature that measures work. The unit comes from the role (``latency_ms``), else from the column (``duration_us``),
else from the value (``"12.5ms"``, ``"1m2.3s"``), else, for times since 1970, from the size of the numbers.
"""

from __future__ import annotations

import csv as plain_csv
import io
import json
import math
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from latfix.arrays import Ints
from latfix.errors import InputError, input_error
from latfix.formatting import shown
from latfix.profilers.recordings.reader import damaged, opened, recorded_at
from latfix.profilers.recordings.requests.possible_inputs import possible_inputs, says_no_input
from latfix.profilers.recordings.requests.request_table import (
    CANCELLED,
    UNKNOWN,
    RequestTable,
    http_status,
    routes_of,
)
from latfix.profilers.recordings.requests.text_source import (
    LATEST_NS,
    LONGEST_NS,
    NOTHING,
    UNITS_NS,
    BadLines,
    OtherLines,
    begins_with_object,
    column_name,
    decimals_ns,
    epoch_units,
    flat,
    instants_ns,
    json_document,
    json_object,
    lines_of,
    map_option,
    resolution_ns,
    route_of,
    unit_of,
)
from latfix.queueing.queue_inference import infer_queue
from latfix.stages import Status
from latfix.traffic.derived_features import parse_map_option
from latfix.traffic.feature_expressions import Expression

NAME = "CSV or JSON Lines with a latency (--map latency=COLUMN)"
_EXPECTED = "a table of requests with a latency and a time"
EXPECTED_ROW = "a request with a latency and a time (numbers, or dates in ISO 8601)"
#: Columns by name, and the line of each row.
Block = tuple[Mapping[str, Any], Sequence[int]]
_TIMES = ("latency", "queue", "first", "dispatch")
_MOMENTS = ("arrival", "end")
#: Times since 1970: the first chunk and the begin of service, too, may have one of those.
_INSTANTS = (*_MOMENTS, "first_at", "begun_at")
_OTHERS = ("status", "cancelled", "route", "server", "id", "user")
#: Usual names of columns, without their unit.
_LATENCY = re.compile(
    r"(e2e_?|total_?|req(uest)?_?|resp(onse)?_?)?(latenc(y|ies)|durations?|elapsed|resp(onse)?_?times?|req(uest)?_?times?)",
    re.I,
)
_AT = r"(_?(at|times?|ts|time_?stamps?))?"
_ARRIVAL = re.compile(
    r"(@?time_?stamps?|ts|time|date(time)?|asctime|"
    rf"((t|ts|time)_)?(arrivals?|arrived|start(ed)?|begin|request_start|receiv(ed)?|submit(ted)?|creat(ed)?|enqueued?){_AT}|"
    r"req(uest)?_?(date_?)?(time(_?(stamp|epoch))?|ts))(_UTC)?",
    re.I,
)
#: Moments before a wait for service, and those after it.
_SUBMITTED = re.compile(
    rf"((t|ts|time)_)?(arrivals?|arrived|receiv(ed)?|submit(ted)?|creat(ed)?|enqueued?){_AT}", re.I
)
_BEGUN = re.compile(rf"((t|ts|time)_)?(start(ed)?|begin|began|dispatch(ed)?){_AT}", re.I)
#: Moments of which a name does not say whether the request began or ended; a logger's are its end: it writes a line,
#: with a level, when the latency is known.
_WRITTEN = re.compile(r"@?time_?stamps?|ts|time|date(time)?|asctime", re.I)
_LEVELS = {"trace", "debug", "info", "notice", "warn", "warning"}
_LEVEL = {"level", "lvl", "levelname", "log.level", "loglevel", "@l"}
_END = re.compile(
    rf"((t|ts|time)_)?(end(ed)?|finish(ed)?|completed?|done|succeeded){_AT}|msec|time_(iso8601|local)", re.I
)
_QUEUE = re.compile(r"(queue|queued|queueing|wait)(_?(time|delay|duration))?", re.I)
_FIRST = re.compile(
    r"ttft|time_to_first_(token|byte|chunk)|(completion_start|first_token)(_?(time|at|timestamp))?", re.I
)
#: Of a latency, too, if no column has a usual one.
_WHOLE = re.compile(
    r"total(_?time)?|took|lat|time_?taken|((process|handl|serv)(ing)?|generation|inference|execution|exec|run|wall|"
    r"round_?trip)_?time|end_?to_?end(_?latency)?",
    re.I,
)
#: If nothing else is, and only one column is called so.
_ONLY = re.compile(r"\w*(latency|duration|elapsed)\w*", re.I)
_STATUS = re.compile(r"(http_?|response_?)?status(_?code)?|(response_?)?code|outcome|result", re.I)
_ROUTE = re.compile(r"route|path|endpoint|uri|url|operation|model|handler", re.I)
_ID = re.compile(r"(x_)?((http_)?(request|req|correlation|trace)_?)?id", re.I)
_SERVER = re.compile(
    r"(upstream|backend|server|host|pod|instance|replica|node|worker|target|machine|container|shard|gpu)"
    r"(_?(addr(ess)?|host|ip|id|name))?",
    re.I,
)
_USER = re.compile(r"(user|session|client|vu|customer)(_?(id|name))?", re.I)
_WORK = re.compile(r"(^|_)(size|bytes|tokens|length|len|elements|items|count|pixels)(_|$)", re.I)
#: Before the names of columns that may be inputs of the work, and how many are read.
_POSSIBLE, _MOST_POSSIBLE = "possible.", 24
_NGINX = ("request_time", "upstream_response_time")
#: Writers with columns without a unit: some columns that identify each, and its mapping as in ``--map``. JMeter, ghz,
#: vegeta, hey, oha, ApacheBench; Heroku, lograge; access logs in JSON of Envoy (Istio), Traefik, Caddy, Kong, Echo,
#: Cloudflare, Azure's Application Gateway and gRPC in Go; Elastic's schema; Serilog, pino, AWS Lambda's reports in
#: CloudWatch, Application Insights; Ollama's answers.
_WRITERS: tuple[tuple[set[str], Mapping[str, str]], ...] = (
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
      "upstream_ms": "upstream_service_time", "size": "bytes_received"}),
    ({"StartUTC", "Duration"},
     {"latency_ns": "Duration", "arrival": "StartUTC", "status": "DownstreamStatus", "route": "RequestPath",
      "origin_ns": "OriginDuration", "size": "RequestContentSize", "server": "ServiceAddr"}),
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
#: Durations in Go's format; in that of Python and .NET, with days; in that of ISO 8601, without them.
_SPAN = re.compile(r"([0-9.]+) ?(h|ms|µs|μs|us|ns|m|s)")
_CLOCK = re.compile(r"(?:(\d+)(?: days?,? |\.))?(\d+):([0-5]\d):([0-5]\d(?:\.\d+)?)")
_OF_ISO = re.compile(r"PT(?=\d)(?:\d+H)?(?:\d+M)?(?:[0-9.]+S)?")
_SPAN_NS = {**UNITS_NS, "µs": 1_000, "μs": 1_000, "m": 60_000_000_000, "h": 3_600_000_000_000}
_ANSWERED, _NO_ANSWER = (re.compile(rf"\s*{code}(\.0)?\s*") for code in ("2[0-9]{2}", "0+"))
#: A code of HTTP, and the reason that may follow it.
_CODE = re.compile(r"([1-5][0-9]{2})(\.0)?(\s.*)?")
_OK = ("ok", "success", "succeeded", "true", "completed", "done", "0", "")
_ENDS = {"timeout": Status.TIMEOUT, "timed_out": Status.TIMEOUT, "deadline_exceeded": Status.TIMEOUT,
         "shed": Status.SHED, "rejected": Status.SHED, "cancelled": CANCELLED, "canceled": CANCELLED,
         "aborted": CANCELLED}  # fmt: skip
#: JMeter's column that shows that a row is a transaction, and how it begins then.
_MESSAGE, _SUM = "responseMessage", "Number of samples in transaction"
#: Of the results of hey and oha.
_UNANSWERED = "The file has no rows of requests without an answer (refused, timed out): see what its writer counted."
#: The name of a column whose name was there before.
_COPY = re.compile(r"#\d+$")
_AT_ONCE, _LOOKED_AT, _FIRST_ROWS, _FIRST_RECORDS = 100_000, 100, 10, 1_000
#: Requests that show whether a time is that of the end.
_COMPARED = 20_000
#: Share of lines whose requests ended before that of the line before, from which a time may be the end.
_OUT_OF_ORDER = 0.01
#: How far local time goes back, give or take the time between two requests.
_HOUR_NS, _APART_NS = 3_600 * 10**9, 300 * 10**9
_LIST = re.compile(rb"\s*\[\s*\{\s*\"")
#: A list of objects within a document.
_LIST_WITHIN = re.compile(rb"\"\s*:\s*\[\s*\{\s*\"")
#: A list of times within one.
_COLUMN_WITHIN = re.compile(rb"(latenc|duration|elapsed|_times?)[^\"]*\"\s*:\s*\[\s*[\d\"]", re.I)
#: Names of figures of many requests.
_FIGURE = re.compile(r"(^|[._ ])(p\(?\d\d|mean|median|avg|average)", re.I)
#: Part of most names of times.
_TIME = re.compile(r"time|dur|lat|took|elapsed", re.I)
PER_REQUEST = "give a result with one row per request (k6, Gatling, JMeter, vegeta, hey -o csv, oha, ab -g)"
#: Nanoseconds from 1970 to 1990: smaller times have another origin.
_LEAST_SINCE_1970 = 631_152_000 * 10**9
_IN_NAMES = re.compile(r"^[^\W\d](?!.*: )[\w@.\- /()\[\]%#:+]*$|^@[\w.]+$")


@dataclass(frozen=True, slots=True)
class Role:
    """The role of a column or expression.

    :param unit_ns: of times; ``None`` to guess it from the size of the numbers.
    :param sized: the unit was guessed so: of times since 1970, each number has that of its own size.
    :param by_name: the column's name was recognized; nobody gave its role.
    """

    name: str
    source: Expression | str
    unit_ns: int | None = None
    sized: bool = False
    by_name: bool = False

    @property
    def is_possible(self) -> bool:
        """True if the column may be an input of the work, for all that its name says."""
        return self.name.startswith(_POSSIBLE)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.source,) if isinstance(self.source, str) else self.source.names


def knows(head: bytes) -> bool:
    """True if a file begins as JSON Lines, as a list of objects, or as CSV with a header."""
    if begins_with_object(head) is not None or _LIST.match(head):
        return True
    if _is_document(head):
        return _LIST_WITHIN.search(head) is not None or _COLUMN_WITHIN.search(head) is not None
    names, values = _first_rows(head)
    named = [name for name in map(str.strip, names) if name]  # an index column has no name
    has_latency = any(_LATENCY.fullmatch(bare(name)) and _unit(name) is not None for name in named)
    blanks = len(named) > 1 and _delimiter(_header_line(head.decode("utf-8", "replace"))[1]) == " "
    return (
        (has_latency if blanks else len(named) > 1 or has_latency)
        and len(values) in (0, len(names))
        and all(map(_IN_NAMES.match, named))
    )


def _is_document(head: bytes) -> bool:
    """True if a file begins as one JSON object, not as one per line."""
    return head.lstrip()[:1] == b"{" and (begins_with_object(head) is None or b"\n" not in head.strip())


def columns_with(path: Path, fits: Callable[[str], bool]) -> tuple[str, ...]:
    """The names of the columns that have a text that fits, where the first one is; empty if none has."""
    by_line, first_values = _header(path)
    names, ignored = tuple(first_values), (BadLines(path, EXPECTED_ROW), OtherLines())
    json_blocks, csv_blocks = _json_blocks(path, names, names, *ignored), _csv_blocks(path, names, names, *ignored)
    for block, _ in json_blocks if by_line else csv_blocks:
        cells = ((name, map(_plain, block[name])) for name in names)
        found = tuple(name for name, each in cells if any(isinstance(cell, str) and fits(cell) for cell in each))
        if found:
            return found
    return ()


def read(path: Path, mapping: Sequence[str]) -> RequestTable:
    """The requests of a log.

    :raises InputError: no column is a latency, the mapping names a missing one, or most lines are unusable.
    """
    by_line, first_values = _header(path)
    bad, others = BadLines(path, EXPECTED_ROW), OtherLines()

    def blocks(wanted: Sequence[str], _needed: Collection[str], marks: Collection[str]) -> Iterator[Block]:
        if by_line:
            return _json_blocks(path, wanted, marks, bad, others)
        return _csv_blocks(path, tuple(first_values), wanted, bad, others)

    table = read_blocks(path, first_values, _parsed(mapping), blocks, bad)
    if len(table) == 1 and any(map(_FIGURE.search, first_values)):
        raise input_error(path, 1, "figures of many requests", _EXPECTED, PER_REQUEST)
    unanswered = (_UNANSWERED,) if "DNS+dialup" in first_values else ()
    table = replace(table, notes=(*table.notes, *others.notes(), *unanswered))
    named = {name: _COPY.sub("", name) for name in first_values}
    copies = [name for name, whole in named.items() if whole and whole != name and whole in named]
    if by_line or not copies:
        return table
    twice = ", ".join(dict.fromkeys(named[name] for name in copies))
    note = f"The header has {twice} more than once: the first is read; the others are named {', '.join(copies[:3])}."
    return replace(table, notes=(*table.notes, note))


def _parsed(mapping: Sequence[str]) -> dict[str, str]:
    """Options as a mapping of roles.

    :raises InputError: one is no ``ROLE=COLUMN``.
    """
    for option in mapping:
        name, equals, source = option.partition("=")
        if not equals or not name.strip() or not source.strip():
            raise InputError(
                f"--map: found {shown(option)}; expected ROLE=COLUMN or ROLE=EXPRESSION, as in latency_ms=took or "
                'size="bytes / 1000"'
            )
    return parse_map_option(mapping)


def read_blocks(
    path: Path,
    first_values: Mapping[str, Any],
    mapping: Mapping[str, str],
    blocks: Callable[[Sequence[str], Collection[str], Collection[str]], Iterator[Block]],
    bad: BadLines,
) -> RequestTable:
    """The requests of a table that is read in blocks.

    :param first_values: by column, one of its values.
    :param blocks: yields the wanted columns, block by block. Lines without one of the needed columns are no requests
        in text, lines with none of the marks (a latency or an end, and a status) in JSON.
    :raises InputError: as :func:`read`.
    """
    names = tuple(first_values)
    roles = roles_of(path, first_values, mapping)
    wanted = tuple(dict.fromkeys(column for role in roles for column in role.columns))
    needed = {column for role in roles if role.name in ("latency", *_MOMENTS) for column in role.columns}
    length = "latency" if any(role.name == "latency" for role in roles) else "end"
    marks = {column for role in roles if role.name in (length, "status") for column in role.columns}
    columns: dict[str, list[Any]] = {role.name: [] for role in roles}
    total, timed = 0, roles
    for block, lines in blocks(wanted, needed, marks):
        timed = [_with_unit(role, block) for role in timed]
        values = {role.name: _values(role, block) for role in timed}
        good = _usable(values)
        left = np.flatnonzero(~good)
        if len(left):
            result = ", ".join(f"{name} {shown(_plain(block[name][int(left[0])]), 20)}" for name in wanted[:2])
            bad.add(int(lines[int(left[0])]), result, len(left))
        for name, column in values.items():
            columns[name].append(column[good])
        total += len(good) - len(left)
    if not total and not bad.count:
        raise input_error(path, 1, "no requests", _EXPECTED)
    bad.check(total)
    table, states = _with_possible(
        _table(roles, {name: np.concatenate(parts) for name, parts in columns.items()}, bad)
    )
    given = {name.rpartition("_")[0] if _unit(name) else name for name in mapping}
    if not table.timed and set(names) - {column for role in roles if not role.is_possible for column in role.columns}:
        note = "No column is known as a time: name one with --map arrival=COLUMN or --map end=COLUMN."
        table = replace(table, notes=(*table.notes, note))
    known = [role for role in roles if not role.is_possible or role.source in table.possible]
    return replace(
        table,
        unread=_unused(names, known),
        notes=(*table.notes, *_without(table, given), *_of_states(states), *_only(roles)),
    )


def _with_possible(table: RequestTable) -> tuple[RequestTable, list[str]]:
    """The table with the columns that may be inputs only; those that the latency follows, but that may not."""
    columns = {name.removeprefix(_POSSIBLE): x for name, x in table.possible.items()}
    inputs, states = possible_inputs(table, columns, {name: unit for name in columns if (unit := _unit(name))})
    return replace(table, possible=inputs), states


def _only(roles: Sequence[Role]) -> Iterator[str]:
    """A note if the latency is a column with an unusual name, the only one of a duration."""
    column = next(role.source for role in roles if role.name in ("latency", "end"))
    by_name = any(role.by_name and role.name == "latency" for role in roles)
    if by_name and isinstance(column, str) and not any(each.fullmatch(bare(column)) for each in (_LATENCY, _WHOLE)):
        yield f"{column} is read as the latency of a request: use --map latency={column}, or another column."


def _of_states(names: Sequence[str]) -> Iterator[str]:
    if names:
        yield (
            f"Not used as an input of the work: {', '.join(names[:6])}. Latency follows it, but it follows the load, "
            "the time or the latency itself. If it measures a request's work, add "
            f"{map_option(names[0])}."
        )


def _without(table: RequestTable, given: Collection[str]) -> Iterator[str]:
    """A note on each mapped part or feature that not all requests have."""
    for name, values in table.features.items():
        without = int(np.count_nonzero(~np.isfinite(values)))
        if without and name in given:
            yield f"--map {name} is no number in {without:,} of {len(values):,} requests: counted as 0 there."
    for name, column in table.parts.items():
        missing = int(np.count_nonzero(table.ok & (column < 0)))
        if missing and name in given:
            yield (
                f"{name} is missing, negative or no number in {missing:,} of {len(column):,} requests: counted as no "
                "time there."
            )


def _plain(value: Any) -> Any:
    return value.as_py() if hasattr(value, "as_py") else value


def _unused(names: Sequence[str], roles: Sequence[Role]) -> str:
    """A note on unread columns with a unit of time, which may be waits; empty if there are none."""
    used = {column for role in roles for column in role.columns}
    left = [name for name in names if name not in used and _unit(name) is not None]
    if not left:
        return ""
    unit = next(name for name, length_ns in UNITS_NS.items() if length_ns == _unit(left[0]))
    return (
        f"Not read: {', '.join(left[:6])}. If a column is a wait within the latency, add it with, for instance, "
        f"--map {shlex.quote(f'{column_name(bare(left[0]))}_{unit}={left[0]}')}."
    )


def _header(path: Path) -> tuple[bool, dict[str, Any]]:
    """True if the file is JSON, and by column the first value."""
    head = recorded_at(path).head
    result: dict[str, Any] = {}
    if head.lstrip()[:1] in (b"{", b"["):
        for _, record in islice(_records(path), _FIRST_RECORDS):
            for name, value in flat(record or {}).items():
                result[name] = value if result.get(name) is None else result[name]
        return True, result
    names, values = _first_rows(head)
    for k, name in enumerate(map(str.strip, names)):
        result[name if name not in result else f"{name}#{k + 1}"] = values[k] if k < len(values) else ""
    return False, result


def _first_rows(head: bytes) -> tuple[list[str], list[str]]:
    text = head.decode("utf-8", "replace").replace("\x00", "\ufffd")
    before, header = _header_line(text)
    names = next(plain_csv.reader(io.StringIO(header, newline=""), delimiter=_delimiter(header)), [])
    rest = "".join(text.splitlines(keepends=True)[before:])
    rows = plain_csv.reader(io.StringIO(rest, newline=""), delimiter=_delimiter(header))
    first = list(islice(rows, _FIRST_ROWS))
    # The first rows may lack fields, or have too many.
    return names, next((row for row in first if len(row) == len(names)), first[0] if first else [])


def _cells(line: str) -> int:
    return line.count(_delimiter(line))


def _header_line(text: str) -> tuple[int, str]:
    """How many lines are before the rows of a table, and the one with the names of its columns.

    Comments may come before it, or be it, and Excel's line with the delimiter.
    """
    comment = ""
    for count, line in enumerate(text.split("\n"), 1):
        if not line.startswith(("#", "sep=")):
            named = comment.startswith("#") and line[:1].isdigit() and _cells(line) == _cells(comment.strip("# \r"))
            return (count - 1, comment.strip("# \r")) if named else (count, line.rstrip("\r"))
        comment = line
    return 1, ""


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Objects with their line numbers (in a list their positions); ``None`` for other values."""
    head = recorded_at(path).head
    if _LIST.match(head) or _is_document(head):
        value = json_document(path, _EXPECTED)
        for number, row in enumerate(value if isinstance(value, list) else _rows_within(value), 1):
            yield number, row if isinstance(row, dict) else None
        return
    for number, line in lines_of(path):
        yield number, json_object(line)


def _rows_within(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The requests of the longest list of them in a document, by the list's name; else the document."""
    lists = {
        name: value
        for name, value in flat(document).items()
        if isinstance(value, list) and value and isinstance(value[0], dict) and _has_times(value[0])
    }
    name = max(lists, key=lambda each: len(lists[each]), default="")
    return [{name: row} for row in lists[name]] if lists else _rows_of_columns(document) or [document]


def _rows_of_columns(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of lists that are as long as that of a latency, or of an end; empty if there is none."""
    lists = {name: value for name, value in flat(document).items() if isinstance(value, list) and len(value) > 1}
    lengths = [
        len(value)
        for name, value in lists.items()
        if not isinstance(value[0], list) and any(each.fullmatch(bare(name)) for each in (_LATENCY, _WHOLE, _END))
    ]
    alike = {name: value for name, value in lists.items() if len(value) == max(lengths, default=0)}
    return [dict(zip(alike, row, strict=True)) for row in zip(*alike.values(), strict=True)]


def _has_times(record: Mapping[str, Any]) -> bool:
    """True if an object has a latency and a time, or a begin and an end."""
    names = [*map(bare, flat(record))]
    has_latency, *moments = (any(map(pattern.fullmatch, names)) for pattern in (_LATENCY, _ARRIVAL, _END))
    return (has_latency and any(moments)) or all(moments)


def _delimiter(line: str) -> str:
    most = max(",;\t|", key=line.count)
    return most if most in line else " "


def roles_of(path: Path, columns: Mapping[str, Any], mapping: Mapping[str, str]) -> list[Role]:
    """The roles of columns: from the mapping, then from a known writer, then from their names.

    :param columns: by name, a value of each.
    :raises InputError: a latency or a column is missing, or the latency's unit is unknown.
    """
    names = tuple(columns)
    roles = [_mapped(path, name, source, names) for name, source in mapping.items()]
    taken = {role.name for role in roles}
    for known, meaning in _WRITERS:
        if known <= set(names):
            usual = [
                _mapped(path, name, column, names)
                for name, column in meaning.items()
                if column in names or " + " in column  # of columns that identify the writer
            ]
            roles += [role for role in usual if role.name not in taken]
            taken = {role.name for role in roles}
    used = {column for role in roles for column in role.columns}
    for role, pattern in (("latency", _LATENCY), ("latency", _WHOLE), ("latency", _ONLY), ("arrival", _ARRIVAL),
                          ("end", _END), ("begun_at", _BEGUN), ("queue", _QUEUE), ("first", _FIRST),
                          ("status", _STATUS), ("route", _ROUTE), ("id", _ID), ("user", _USER),
                          ("server", _SERVER)):  # fmt: skip
        if role in taken or (role in _MOMENTS and "latency" in taken and taken & set(_MOMENTS)):
            continue
        others = [each for each in names if each not in used and pattern.fullmatch(bare(each))]
        if "latency" not in taken:  # which a begin and an end give, but not the time of a line
            others = sorted(others, key=lambda name: _WRITTEN.fullmatch(bare(name)) is not None)
        if role == "arrival":
            others = sorted(others, key=lambda name: _SUBMITTED.fullmatch(bare(name)) is None)
        if role == "begun_at" and not any(_was_submitted(each) for each in roles):
            continue
        column = next((each for each in others if _may_be(role, each, columns)), None)
        if pattern is _ONLY and len(others) > 1:
            continue
        if column is not None and (pattern not in (_WHOLE, _ONLY, _QUEUE, _FIRST) or _has_unit(column, columns)):
            if role == "arrival" and (used & set(_NGINX) or _is_logged(column, names)):
                role = "end"  # nginx, too, writes a line when the request ends
            roles.append(Role(role, column, _unit(column), by_name=True))
            taken.add(role)
            used.add(column)
    roles = [_as_written(role, columns) for role in roles]
    if not any(name in mapping for name in taken - {*_TIMES, *_MOMENTS, *_OTHERS}):
        others = [name for name in names if name not in used and column_name(name) not in taken]
        work = [name for name in others if _WORK.search(bare(name)) and not says_no_input(bare(name))]
        roles += [Role(column_name(name), name) for name in work]
        possible = [name for name in others if name not in work and _may_be_input(name, columns)]
        roles += [Role(_POSSIBLE + name, name) for name in possible[:_MOST_POSSIBLE]]
    return _checked(path, roles, names)


def _may_be_input(name: str, columns: Mapping[str, Any]) -> bool:
    """True for a column of numbers, of which the first may be missing, whose name does not say otherwise."""
    value = columns[name]
    return bool(name) and not says_no_input(bare(name)) and (value in (None, "") or math.isfinite(_number(value, 1)))


def _was_submitted(role: Role) -> bool:
    """True if a request is known to have been there before its service began."""
    return role.name == "arrival" and role.by_name and _SUBMITTED.fullmatch(bare(_source(role))) is not None


def _may_be(role: str, name: str, columns: Mapping[str, Any]) -> bool:
    """False for a date as latency, one without a unit beside a begin and an end, and a logger's level as status."""
    if role != "latency":
        return role != "status" or str(columns[name]).lower() not in _LEVELS
    if _has_unit(name, columns):
        return not _is_date(columns[name]) and not _is_long(name, columns[name])
    names = [each for each in map(bare, columns) if not _WRITTEN.fullmatch(each)]
    return not all(any(map(pattern.fullmatch, names)) for pattern in (_ARRIVAL, _END))


def _has_unit(name: str, columns: Mapping[str, Any]) -> bool:
    """True if a time needs no unit: its column has one, or the value is written with one or as a date."""
    value = columns[name]
    return _unit(name) is not None or _is_date(value) or (isinstance(value, str) and math.isfinite(_span_ns(value)))


def _is_long(name: str, value: Any) -> bool:
    """True if a number is too long for a duration, as a time since 1970 is."""
    return _number(value, 1) * (_unit(name) or 1) > LONGEST_NS


def _is_date(value: Any) -> bool:
    return isinstance(value, str) and int(instants_ns([value])[0]) != UNKNOWN


def dependencies_among(names: Sequence[str]) -> dict[str, str]:
    """The mapping of columns that are durations and have the usual name of no role."""
    usual = (_LATENCY, _ARRIVAL, _END, _QUEUE, _FIRST)
    return {
        name: name for name in names if _unit(name) and not any(pattern.fullmatch(bare(name)) for pattern in usual)
    }


def _is_logged(column: str, names: Sequence[str]) -> bool:
    return _WRITTEN.fullmatch(bare(column)) is not None and not _LEVEL.isdisjoint(map(str.lower, names))


def _as_written(role: Role, columns: Mapping[str, Any]) -> Role:
    """The role with nanoseconds as unit if it has none and its values are written with units; else unmodified.

    A first chunk with a date, or a time since 1970, is a moment.
    """
    if role.name == "first" and isinstance(role.source, str):
        value = columns[role.source]
        if _is_date(value) or _is_long(role.source, value) or re.search("(_at|stamp)$", bare(role.source), re.I):
            return replace(role, name="first_at")
    if role.unit_ns is not None or role.name not in (*_TIMES, *_INSTANTS):
        return role
    values = [value for name in role.columns if (value := columns.get(name)) not in (None, "")]
    written = [isinstance(value, str) and math.isfinite(_span_ns(value)) for value in values]
    return replace(role, unit_ns=1) if written and all(written) else role


def _checked(path: Path, roles: list[Role], names: Sequence[str]) -> list[Role]:
    by_name = {role.name: role for role in roles}
    there = ", ".join(sorted(names, key=lambda name: _TIME.search(name) is None)[:12])
    figures = [name for name in names if _FIGURE.search(name)]
    summary = f"these are figures of many requests: {PER_REQUEST}"
    if "latency" not in by_name and not {"arrival", "end"} <= set(by_name):
        todo = summary if figures else "name the latency: --map latency_ms=COLUMN"
        if {"log", "stream"} <= set(names):
            todo = "Docker has wrapped the lines of a log: unwrap them with jq -j .log FILE"
        if "data.resultType" in names:
            todo = "Loki has wrapped the lines of a log: unwrap them with jq -r '.data.result[].values[][1]' FILE"
        if {"__REALTIME_TIMESTAMP", "MESSAGE"} <= set(names):
            todo = "journald has wrapped the lines of a log: unwrap them with jq -r .MESSAGE FILE"
        raise input_error(path, 1, f"columns {there}" if names else "no columns", _EXPECTED, todo)
    for name in _TIMES:
        if name in by_name and by_name[name].unit_ns is None:
            column = _source(by_name[name])
            percentiles = [figure for figure in figures if re.search(r"\bp\(?\d\d", figure, re.I)]
            todo = f"give its unit: --map {name}_ms={column} (ns, us, ms or s)"
            todo = summary if len(percentiles) > 1 else todo
            raise input_error(path, 1, f"{name} {column!r} without a unit", "a unit in its name", todo)
    return roles


def _mapped(path: Path, name: str, text: str, names: Sequence[str]) -> Role:
    base, _, last = name.rpartition("_")
    unit = UNITS_NS.get(last) if base else None
    role = base if unit is not None else name
    source: Expression | str = text if text in names else Expression.parse(text, f"--map {name}")
    if not isinstance(source, str) and not source.names:
        raise InputError(f"--map {name}: found {text!r}; expected a column of {path}, or an expression over columns")
    missing = [each for each in Role(role, source).columns if each not in names]
    if missing:
        there = ", ".join(names[:12])
        raise InputError(f"--map {name}: found no column {missing[0]!r} in {path}; expected one of: {there}")
    if role in _OTHERS and not isinstance(source, str):
        raise InputError(f"--map {name}: found the expression {text!r}; expected a column of {path}")
    if unit is None and isinstance(source, str) and (role in _TIMES or role in _MOMENTS):
        unit = _unit(source)
    if unit is not None and role not in (*_TIMES, *_MOMENTS):
        return Role(f"part.{role}", source, unit)
    return Role(role, source, unit)


def bare(name: str) -> str:
    """A column's name without the objects around it and without its unit."""
    last = name.rpartition(".")[2].strip()
    words = re.sub(r"[^0-9A-Za-z]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", last)).strip("_")
    base, _, unit = words.rpartition("_")
    return base if base and unit.lower() in UNITS_NS else words


def _unit(name: str) -> int | None:
    last = name.rpartition(".")[2].strip(")] ")
    return unit_of(re.sub(r"[^0-9A-Za-z]+", "_", last)) or (UNITS_NS["s"] if last in _NGINX else None)


def _json_blocks(
    path: Path, wanted: Sequence[str], marks: Collection[str], bad: BadLines, others: OtherLines
) -> Iterator[Block]:
    block: dict[str, list[Any]] = {name: [] for name in wanted}
    lines: list[int] = []
    nested = any("." in name for name in wanted)
    for number, record in _records(path):
        if record is None:
            bad.add(number, "no object")
            continue
        record = flat(record) if nested else record
        if not any(name in record for name in marks):
            others.add(others.first or json.dumps(record))
            continue
        lines.append(number)
        for name in wanted:
            block[name].append(record.get(name))
        if len(lines) >= _AT_ONCE:
            yield block, lines
            block, lines = {name: [] for name in wanted}, []
    if lines:
        yield block, lines


def _csv_blocks(
    path: Path, names: Sequence[str], wanted: Sequence[str], bad: BadLines, others: OtherLines
) -> Iterator[Block]:
    import pyarrow as pa
    from pyarrow import csv

    def skip(row: Any) -> str:
        bad.add((row.number or 0) + before, shown(row.text or "", 40))
        return "skip"

    before, header = _header_line(recorded_at(path).head.decode("utf-8", "replace"))
    delimiter = _delimiter(header)
    at, skipped = before + 1, bad.count
    has_sums = {"elapsed", _MESSAGE} <= set(names)
    included = list(dict.fromkeys((*wanted, _MESSAGE) if has_sums else wanted))
    with opened(path, _EXPECTED) as file:
        try:
            for _ in range(before):
                file.readline()
            lines = _CountedLines(file)
            reader = csv.open_csv(
                lines,
                read_options=csv.ReadOptions(column_names=list(names), block_size=1 << 23, use_threads=False),
                parse_options=csv.ParseOptions(
                    delimiter=delimiter, newlines_in_values=True, invalid_row_handler=skip
                ),
                convert_options=csv.ConvertOptions(
                    include_columns=included,
                    column_types=dict.fromkeys(included, pa.string()),
                    strings_can_be_null=False,
                    check_utf8=False,
                ),
            )
            for batch in reader:
                numbers: Sequence[int] = range(at, at + batch.num_rows)
                at += batch.num_rows
                if has_sums:
                    batch, numbers = _without_sums(batch, numbers, others)
                if batch.num_rows:
                    yield {name: _with_points(batch.column(name)) for name in wanted}, numbers
        except pa.ArrowInvalid as error:
            if "Empty CSV" in str(error):
                return
            damaged(path, _EXPECTED, error)
    if lines.count > at - 1 - before + bad.count - skipped:  # empty lines, or values of several lines
        _find_unclosed_quotes(path, delimiter.encode(), len(names), bad)


def _without_sums(rows: Any, numbers: Sequence[int], others: OtherLines) -> tuple[Any, Sequence[int]]:
    """JMeter's rows without those of transactions, if the samples that they sum up are there too."""
    import pyarrow.compute as pc

    own = pc.invert(pc.starts_with(rows.column(_MESSAGE), _SUM))
    if own.true_count in (0, len(own)):
        return rows, numbers
    others.add(f"{_SUM} …", own.false_count)
    return rows.filter(own), np.array(numbers)[own.to_numpy(zero_copy_only=False)].tolist()


def _with_points(column: Any) -> Any:
    """A column with decimal points for decimal commas, and without commas that separate thousands.

    Those are in numbers of four digits and more only, before three digits each.
    """
    import pyarrow.compute as pc

    def number(pattern: str) -> Any:
        return pc.match_substring_regex(column, pattern)

    commas, whole = number(r"^\s*-?\d+,\d+\s*$"), number(r"^\s*-?\d+\s*$")
    thousands, points = number(r"^\s*-?[1-9]\d{0,2}(,\d{3})+(\.\d+)?\s*$"), number(r"^\s*-?\d+\.\d+\s*$")
    empty = pc.equal(column, "")
    numbers = len(column) - empty.true_count
    three = thousands.true_count >= commas.true_count and (points.true_count or whole.true_count)
    if thousands.true_count and three and thousands.true_count + whole.true_count + points.true_count == numbers:
        return pc.replace_substring(column, ",", "")
    if not commas.true_count or commas.true_count + whole.true_count < numbers:
        return column
    return pc.replace_substring_regex(column, r"^\s*(-?\d+),(\d+)\s*$", r"\1.\2")


class _CountedLines(io.RawIOBase):
    """Passes a file on, and counts its lines."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.count = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.count += data.count(b"\n")
        return data


def _find_unclosed_quotes(path: Path, delimiter: bytes, cells: int, bad: BadLines) -> None:
    """Count the rows that a quote hides because it is not closed in its own row.

    A text of several lines ends with a quote before a delimiter or the end of a line; a row's own quote does not.
    """
    closes = re.compile(rb'(?:[^"]|"")*"\s*(?:' + re.escape(delimiter) + rb"|$)")
    begun, hidden = 0, 0

    def count() -> None:
        if hidden:
            bad.add(begun, "a quote that is not closed, which hides the rows after it", hidden)

    with opened(path, _EXPECTED) as file:
        for number, line in enumerate(file, 1):
            hidden += bool(begun) and line.count(delimiter) >= cells - 1
            if line.count(b'"') % 2:
                if begun and not closes.match(line):
                    count()
                begun, hidden = 0 if begun else number, 0
    count()


def _values(role: Role, block: Mapping[str, Any]) -> Any:
    if role.name in _OTHERS:
        column = block[role.columns[0]]
        words = column.to_pylist() if hasattr(column, "to_pylist") else column
        texts = ["" if word is None else str(word) for word in words]
        few: Collection[str] = () if role.name in ("id", "user") else set(texts)
        alike = {word: route_of(word) if role.name == "route" else word for word in few}
        return np.array([alike.get(word, word) for word in texts], dtype=object)
    if role.name in _INSTANTS and isinstance(role.source, str) and not len(_few_numbers(role, block)):
        return instants_ns(block[role.columns[0]])
    numbers = _numbers_of(role, block)
    if role.is_possible:
        wrong = np.flatnonzero(~np.isfinite(numbers))
        numbers = numbers.astype(np.float64)
        numbers[wrong] = [
            math.nan if _plain(block[role.columns[0]][k]) in (None, "") else math.inf for k in wrong.tolist()
        ]
        return numbers
    units = _units(role, numbers)
    scaled = _scaled(role, numbers, units)
    if role.name not in _INSTANTS or not isinstance(role.source, str) or numbers.dtype == np.int64:
        return scaled
    unit = role.unit_ns or UNITS_NS["s"]
    exact = decimals_ns(block[role.source], unit)
    return np.where((exact >= 0) & (scaled != UNKNOWN) & (units == unit), exact, scaled)


def _numbers_of(role: Role, block: Mapping[str, Any]) -> Any:
    """The numbers of a role's column or expression, in the role's unit."""
    unit = role.unit_ns or 1
    if isinstance(role.source, str):
        return _numbers(block[role.source], unit)
    return role.source.of_columns({name: _numbers(block[name], unit).astype(np.float64) for name in role.columns})


def _units(role: Role, numbers: Any) -> Any:
    """Nanoseconds of the unit of a role's numbers, one for all or one for each."""
    return epoch_units(numbers) if role.sized else role.unit_ns or UNITS_NS["s"]


def _few_numbers(role: Role, block: Mapping[str, Any]) -> Any:
    """The finite numbers among a role's first ones; empty if they are dates."""
    numbers = _numbers_of(role, {name: block[name][:_LOOKED_AT] for name in role.columns})
    finite = numbers[np.isfinite(numbers)]
    return finite if 2 * len(finite) >= len(numbers) else finite[:0]


def _with_unit(role: Role, block: Mapping[str, Any]) -> Role:
    """The role with the unit of times that are numbers: the same in all blocks, and not that of a wrong one."""
    if role.name not in _INSTANTS or role.unit_ns is not None or not len(few := _few_numbers(role, block)):
        return role
    typical = float(np.median(few))
    unit = int(epoch_units(typical))
    return replace(role, unit_ns=unit, sized=typical * unit >= _LEAST_SINCE_1970)


def _scaled(role: Role, numbers: Any, unit: Any) -> Any:
    """Times in whole nanoseconds, :data:`UNKNOWN` if invalid; features, NaN if they are no finite number."""
    if role.unit_ns is None and role.name not in _INSTANTS:
        return np.where(np.isfinite(numbers), numbers, np.nan)
    most = LATEST_NS if role.name in _INSTANTS else LONGEST_NS
    with np.errstate(invalid="ignore"):
        bad = ~np.isfinite(numbers) | (numbers < 0) | (numbers > most // unit)
    amount = np.where(bad, 0, numbers)
    scaled = amount * unit if amount.dtype == np.int64 else np.rint(amount * unit).astype(np.int64)
    return np.where(bad, UNKNOWN, scaled)


def _numbers(column: Any, unit_ns: int) -> Any:
    """Numbers, as integers if all are whole: a float does not hold nanoseconds since 1970 exactly.

    :param unit_ns: the unit to which durations with one of their own are converted.
    """
    if hasattr(column, "to_pylist"):
        import pyarrow as pa
        import pyarrow.compute as pc

        given = pc.if_else(pc.equal(column, ""), None, column)
        for kind in (pa.int64(), pa.float64()):
            try:
                return pc.cast(given, kind).to_numpy(zero_copy_only=False)
            except pa.ArrowInvalid:
                continue
        column = column.to_pylist()
    if all(type(value) is int and abs(value) < 1 << 62 for value in column):
        return np.array(column, np.int64)
    return np.array([_number(value, unit_ns) for value in column])


def _number(value: Any, unit_ns: int) -> float:
    if isinstance(value, bool) or value is None:
        return float("nan")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return _span_ns(value) / unit_ns if isinstance(value, str) else float("nan")


def _span_ns(text: str) -> float:
    """Nanoseconds of ``12.5ms``, ``1m2.3s``, ``PT1.5S``, ``0:00:01.5``, ``0 days 00:00:01.5``; NaN if it is none."""
    if clock := _CLOCK.fullmatch(text.strip()):
        days, hours, minutes, seconds = (float(part or 0) for part in clock.groups())
        return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * UNITS_NS["s"]
    if _OF_ISO.fullmatch(text):
        text = text.removeprefix("PT").lower()
    if _SPAN.sub("", text).strip():
        return float("nan")
    try:
        spans = _SPAN.findall(text)
        return sum(float(amount) * _SPAN_NS[unit] for amount, unit in spans) if spans else float("nan")
    except ValueError:  # 1.2.3
        return float("nan")


def _latency(values: Mapping[str, Any]) -> Any:
    """``(n,)`` nanoseconds, :data:`UNKNOWN` if not known."""
    if "latency" in values:
        return values["latency"]
    begin, end = values["arrival"], values["end"]
    return np.where((begin >= 0) & (end >= begin) & (end - begin <= LONGEST_NS), end - begin, UNKNOWN)


def _usable(values: Mapping[str, Any]) -> Any:
    """True for rows with the times they need; a request that did not end ok needs no latency and no end."""
    good = _latency(values) >= 0
    if "status" in values:
        good = good | (statuses_of(values["status"]) != Status.OK)
    needed = next((values[name] for name in _MOMENTS if name in values), None)
    return good if needed is None else good & (needed >= 0)


def _table(roles: Sequence[Role], columns: Mapping[str, Any], bad: BadLines) -> RequestTable:
    latency = _latency(columns)
    moments = next((columns[name] for name in _MOMENTS if name in columns), None)
    ends = "arrival" not in columns
    if moments is None:
        arrival = np.arange(len(latency), dtype=np.int64)
    else:
        ends = ends or _shows_ends(roles, moments, latency)
        arrival = moments - np.maximum(latency, 0) if ends else moments
    parts = {name.removeprefix("part."): column for name, column in columns.items()
             if name.startswith("part.") or name in ("queue", "dispatch")}  # fmt: skip
    plain = (*_TIMES, *_INSTANTS, *_OTHERS)
    features = {
        name: column
        for name, column in columns.items()
        if name not in plain and not name.startswith(("part.", _POSSIBLE))
    }
    first = columns.get("first")
    if "first_at" in columns:
        first = np.where(columns["first_at"] >= arrival, columns["first_at"] - arrival, UNKNOWN)
    if "begun_at" in columns and "queue" not in parts:
        begun = columns["begun_at"]
        parts["queue"] = np.where(begun >= arrival, begun - arrival, UNKNOWN)
    status = statuses_of(columns["status"]) if "status" in columns else np.zeros(len(latency), np.int8)
    if "cancelled" in columns:
        status[[word.strip().lower() not in NOTHING for word in columns["cancelled"]]] = CANCELLED
    return RequestTable(
        arrival_ns=arrival,
        latency_ns=latency,
        status=status,
        parts=parts,
        first_ns=first,
        features=features,
        possible={name: column for name, column in columns.items() if name.startswith(_POSSIBLE)},
        **routes_of(list(columns.get("route", ()))),
        **routes_of(list(columns.get("server", ())), "server"),
        ids=tuple(columns["id"].tolist()) if "id" in columns else (),
        user=_users(columns["user"].tolist()) if "user" in columns else None,
        resolution_ns=1 if moments is None else resolution_ns(moments),
        timed=moments is not None,
        has_status="status" in columns,
        facts={
            "format": "log with columns of its own",
            "columns": ", ".join(
                f"{'end' if ends and role.name == 'arrival' else role.name} = {_source(role)}"
                for role in roles
                if not role.is_possible
            ),
            "bad_lines": bad.count,
        },
        notes=(*bad.notes(), *(() if moments is None else _guessed(roles, moments, latency, ends))),
    ).sorted()


def _users(names: Sequence[str]) -> Ints:
    """Numbers of users; -1 without a name."""
    place: dict[str, int] = {}
    return np.array([place.setdefault(name, len(place)) if name not in ("", "-") else -1 for name in names], np.int64)


def _may_be_end(roles: Sequence[Role]) -> bool:
    """True if the time was read as the arrival, but its name may be that of an end."""
    role = next(role for role in roles if role.name in _MOMENTS)
    return role.by_name and role.name == "arrival" and _WRITTEN.fullmatch(bare(_source(role))) is not None


def _shows_ends(roles: Sequence[Role], moments: Ints, latency: Ints) -> bool:
    """True if times whose name does not say so are those of ends: as such, they show a queue."""
    known = np.flatnonzero(latency >= 0)[:_COMPARED]
    if not _may_be_end(roles) or not len(known):
        return False
    arrival, took = moments[known] - latency[known], latency[known]
    order = np.argsort(arrival, kind="stable")
    unit = max(resolution_ns(moments), resolution_ns(took))
    return infer_queue(arrival[order], took[order], unit) is not None


def _guessed(roles: Sequence[Role], moments: Ints, latency: Ints, ends: bool) -> Iterator[str]:
    """Notes if the unit of times is assumed (it can be guessed only if they count from 1970), if they step back as
    local time does, and if they are or may be ends: lines in their order, but not in that of ends, may be either."""
    role = next(role for role in roles if role.name in _MOMENTS)
    name = _source(role)
    if role.unit_ns is None and len(moments) and int(moments.max()) < _LEAST_SINCE_1970:
        yield (
            f"{name} has no unit and does not count from 1970: read as seconds; use --map {role.name}_ms={name} for "
            "another unit."
        )
    back = np.flatnonzero(np.diff(moments) < -_HOUR_NS + _APART_NS)
    if len(back) == 1 and int(moments[back[0]] - moments[back[0] + 1]) < _HOUR_NS + _APART_NS:
        yield (
            f"{name} goes back by an hour after {int(back[0]) + 1:,} requests, as local time does when summer ends: "
            "two hours are read as one. Use times in UTC, or with their zone."
        )
    if ends and role.name == "arrival":
        yield (
            f"{name} is read as the time at which a request ended, since it shows a queue so. If it is the arrival, "
            f"use --map arrival={name}."
        )
    elif _may_be_end(roles):
        in_order = np.diff(moments)
        in_order = in_order if int(in_order.sum()) >= 0 else -in_order
        earlier = np.abs(np.diff(moments + latency)) * (np.diff(moments + latency) < 0) > resolution_ns(moments)
        if len(in_order) and in_order.min() >= 0 and _OUT_OF_ORDER < np.mean(earlier) < 1 - _OUT_OF_ORDER:
            yield (
                f"{name} is read as the time of arrival. If a line was written when its request ended, use --map "
                f"end={name}."
            )


def _source(role: Role) -> str:
    return role.source if isinstance(role.source, str) else role.source.source


def statuses_of(words: Sequence[str]) -> npt.NDArray[np.int8]:
    """The statuses that words or HTTP codes stand for. Beside codes of HTTP, 0 is no answer."""
    ends = {word: _status(word.strip().lower()) for word in set(words)}
    if any(map(_ANSWERED.fullmatch, ends)):
        ends |= {word: Status.ERROR for word in ends if _NO_ANSWER.fullmatch(word)}
    return np.array([ends[word] for word in words], np.int8)


def _status(word: str) -> int:
    if code := _CODE.fullmatch(word):
        return http_status(int(code[1]))
    return Status.OK if word in _OK else _ENDS.get(word, Status.ERROR)
