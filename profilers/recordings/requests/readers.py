"""The readers of requests and spans, the most specific signature first."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from latfix.errors import InputError, input_error
from latfix.formatting import counted
from latfix.profilers.recordings.reader import Reader, ReadOptions, Recorded, recorded_at
from latfix.profilers.recordings.requests import findings
from latfix.profilers.recordings.requests.columns import parquet_table
from latfix.profilers.recordings.requests.columns.column_roles import PER_REQUEST
from latfix.profilers.recordings.requests.formats import (
    access_log,
    aiperf,
    guidellm,
    har,
    jaeger_spans,
    mapped_log,
    otlp_spans,
    prometheus_histograms,
    span_columns,
    text_log,
    triton_trace,
    vllm,
)
from latfix.profilers.recordings.requests.request_accounts import account_for_requests
from latfix.profilers.recordings.requests.request_table import CANCELLED, EngineSteps, RequestTable
from latfix.profilers.recordings.requests.row_checks import with_checked_rows
from latfix.profilers.recordings.requests.spans.dependencies import account_for_spans
from latfix.profilers.recordings.requests.spans.span_table import SpanTable, roots_of
from latfix.results.diagnosis import Diagnosis, Source
from latfix.stages import STATUS_NAMES, Status
from latfix.statistics.censored import Outcomes

_SERVER_SIDE = "record requests: spans (OpenTelemetry), a proxy's access log, or latfix.record"
#: Files that users often pass but cannot be read, by their first bytes: what they are, and what to do.
_ADVICE: tuple[tuple[re.Pattern[bytes], str], ...] = tuple((re.compile(pattern, re.M), text) for pattern, text in (
    (rb"\AQDSTRM", "a stream of Nsight Systems; import it, then nsys export --type sqlite FILE"),
    (rb"\APK\x03\x04", "a zip archive; unpack it"),
    (rb"\A[\x00-\xff]{1,3}\xff\x81\x03\x01\x01\x06Result\x01",
     "results of vegeta in Go's own encoding; vegeta encode --to json FILE gives what can be read"),
    (rb"\ANVTXREP", "a report of Nsight Systems; nsys export --type sqlite FILE gives what can be read"),
    (rb"\ARunning \S+ test @ |^Summary:\s+(Total|Success rate):|^Requests +\[total|^This is ApacheBench|^Bombarding |"
     rb"^ *Value +Percentile +TotalCount",
     f"a summary of a load test, without single requests; {PER_REQUEST}"),
    (rb"^slot +print_timing|prompt eval time = ", "llama.cpp's log, in which no line has a time and a latency; "
     "--pattern 'total time = +(?P<latency_ms>[0-9.]+) ms' reads latencies alone; " + _SERVER_SIDE),
    (rb"\AType,Name,Request Count,|\ATimestamp,User Count,Type,Name,",
     f"statistics of Locust, without single requests; {PER_REQUEST}"),
    (rb"^# Query_time: ", "MySQL's slow query log, with several lines per query; what can be read: awk '/^# Time/ "
     "{t = $3} /^# Query_time/ {print \"end=\" t, \"latency_s=\" $3, \"lock_s=\" $5, \"rows=\" $9}' FILE "
     "> queries.log, then latfix diagnose queries.log --map lock_s=lock_s"),
    (rb"<testResults\b", "JMeter's results in XML; have it write CSV (jmeter.save.saveservice.output_format=csv)"),
    (rb"\A([-\d.:TZ]+[,;\t| ]){1,50}[-\d.]+\r?\n", "rows of numbers without a header; put a line with their names "
     "before them, such as arrival_s,latency_ms,size"),
    (rb"\AARROW1", "an Arrow file; write it as Parquet, with pandas.read_feather(FILE).to_parquet(...)"),
    (rb'\A\s*\{(?s:.*)"\w*(p\(?\d\d\)?|mean|median|avg|average)\w*"\s*:',
     f"figures of many requests; {PER_REQUEST}"),
    (rb"Avg prompt throughput: |(Decode|Prefill) batch[.,] #", "an inference server's log of its steps, without how "
     f"long each request took; {_SERVER_SIDE}"),
    (rb'"[A-Z]+ \S+ HTTP/[0-9.]+" [1-5][0-9]{2}\b',
     f"requests without how long each took; have the server log it, or {_SERVER_SIDE}"),
    (rb'\A[^{\n]{1,200}\{"[^\n]*\}\r?$', "lines of JSON behind something else; cut that off: sed 's/^[^{]*//' FILE"),
))  # fmt: skip

#: Share of requests that did not end ok from which a note says so.
_MANY_LOST = 0.01
#: Requests, including lost ones, that are ranked for percentiles.
_MOST_RANKED = 2_000_000


def diagnose_table(
    table: RequestTable, path: Path, options: ReadOptions, *, kind: str = "requests", unit: str = "request"
) -> Diagnosis:
    """The diagnosis of a table of requests.

    :param kind: of the diagnosis's source; ``unit`` likewise.
    :raises InputError: it is empty.
    """
    if not len(table):
        raise input_error(path, None, "no requests", "a recording of requests")
    table = with_checked_rows(table)
    ok = int(np.count_nonzero(table.ok))
    q = findings.default_percentile(ok) if options.percentile is None else options.percentile
    accounts = account_for_requests(_with_losses(table, ok), tail_share=1 - q / 100, seed=options.seed)
    return findings.diagnose_accounts(
        accounts,
        options,
        source=Source(kind=kind, path=str(path), unit=unit, read={**table.facts, "requests": len(table)}),
        statuses=_statuses(table, ok),
        offered_ns=table.arrival_ns,
        workload=_name(path),
        outcomes=_lost_outcomes(table, ok),
    )


def _name(path: Path) -> str:
    return path.name.partition(".")[0] or path.name


def _statuses(table: RequestTable, ok: int) -> Mapping[str, int | None]:
    if not table.has_status:
        return {"ok": ok, "error": None, "timeout": None, "shed": None}
    ends = {name: int(np.count_nonzero(table.status == code)) for code, name in enumerate(STATUS_NAMES)}
    counts = {**ends, "unfinished": None}  # a log does not hold requests in flight at its end
    cancelled = int(np.count_nonzero(table.status == CANCELLED))
    return {**counts, "ok": ok, **({"cancelled": cancelled} if cancelled else {})}


def _lost_outcomes(table: RequestTable, ok: int) -> Outcomes | None:
    """All requests that arrived and were not cancelled; a sample of a very large log. ``None`` if all ended ok."""
    arrived = np.flatnonzero(table.status != CANCELLED)
    if len(arrived) == ok:
        return None
    rows = arrived[:: max(len(arrived) // _MOST_RANKED, 1)]
    return Outcomes.of(np.maximum(table.latency_ns[rows], 0), table.status[rows])


def _with_losses(table: RequestTable, ok: int) -> RequestTable:
    notes = list(table.notes)
    cancelled = int(np.count_nonzero(table.status == CANCELLED))
    lost = int(np.count_nonzero(table.status != Status.OK)) - cancelled
    if without := int(np.count_nonzero((table.status == Status.OK) & (table.latency_ns < 0))):
        notes.append(f"{counted(without, 'request')} ended ok without a valid latency: left out.")
    if cancelled:
        notes.append(f"{cancelled:,} requests were cancelled by their client: they are not counted as latencies.")
    return replace(table, notes=(*notes, *_on_lost(lost, ok)))


def _on_lost(lost: int, ok: int) -> tuple[str, ...]:
    """A note if many requests did not end ok."""
    if lost <= _MANY_LOST * (lost + ok):
        return ()
    return (f"{lost:,} requests did not end ok; the causes explain the {ok:,} that did.",)


def _reader(
    kind: str,
    name: str,
    knows: Callable[[bytes], bool],
    diagnose: Callable[[Recorded, ReadOptions], Diagnosis],
    *takes: str,
) -> Reader:
    return Reader(kind=kind, reads=name, knows=lambda file: knows(file.head), read=diagnose, takes=frozenset(takes))


def _reader_of_log(name: str) -> Reader:
    log = _LOGS[name]

    def diagnose(file: Recorded, options: ReadOptions) -> Diagnosis:
        if name in (mapped_log.PARQUET, mapped_log.NAME) and not options.mapping:
            mapped_log.refuse_run(file)
        return diagnose_table(log.read(file, options), file.path, options)

    return _reader("requests", name, log.knows, diagnose, *log.takes)


def read_requests(path: Path, options: ReadOptions) -> RequestTable:
    """The requests of a log in any known format with one entry per request.

    :raises InputError: the format is unknown, or a mapping is given for a format with known fields.
    """
    file = recorded_at(path)
    if not options.pattern and any(knows(file.head) for knows, _ in _SPANS.values()):
        raise input_error(path, None, "spans", "a log with one entry per request, such as a proxy's access log")
    for name, log in _LOGS.items():
        if name == text_log.NAME if options.pattern else log.knows(file.head):
            if options.mapping and "--map" not in log.takes:
                raise InputError(
                    f"{path}: found {name}, whose fields are known; leave out --map, --time and the like"
                )
            return log.read(file, options)
    if advice := advice_on(file.head):
        raise InputError(f"{path}: found {advice}")
    expected = "an access log, Parquet, CSV or JSON Lines of requests, or results of a load generator"
    raise input_error(path, None, "no log of requests", expected, "--pattern REGEX reads any with a request per line")


def advice_on(head: bytes) -> str:
    """What a file is that users often pass but that cannot be read, and what to do; empty for others."""
    return access_log.few_among(head) or next((text for pattern, text in _ADVICE if pattern.search(head)), "")


def read_spans(path: Path) -> SpanTable | None:
    """The spans of a file in any known format of spans; ``None`` if it is another format.

    :raises InputError: it is damaged, cut off, or without spans.
    """
    head = recorded_at(path).head
    return next((read(path) for knows, read in _SPANS.values() if knows(head)), None)


def _diagnose_spans(read: Callable[[Path], SpanTable], recorded: Recorded, options: ReadOptions) -> Diagnosis:
    path = recorded.path
    spans = read(path)
    if otlp_spans.are_engine_spans(spans):
        return diagnose_table(otlp_spans.requests_of(spans), path, options)
    roots = roots_of(spans)
    if not len(roots):
        raise input_error(path, None, "spans without a request", "a span without a parent for each request")
    accounts = account_for_spans(spans)
    failed = int(np.count_nonzero(spans.failed[roots]))
    ok, length_ns = len(roots) - failed, (spans.end_ns - spans.start_ns)[roots]
    facts = {**spans.facts, "spans": len(spans), "services": len(set(spans.service.tolist()))}
    accounts = replace(accounts, notes=(*accounts.notes, *_on_lost(failed, ok)))
    return findings.diagnose_accounts(
        accounts,
        options,
        source=Source(kind="spans", path=str(path), read=facts),
        statuses={"ok": ok, "error": failed if spans.has_status else None, "timeout": None, "shed": None},
        offered_ns=spans.start_ns[roots],
        workload=_name(path),
        outcomes=Outcomes.of(length_ns, np.where(spans.failed[roots], Status.ERROR, Status.OK)) if failed else None,
    )


def _diagnose_steps(recorded: Recorded, options: ReadOptions) -> Diagnosis:
    steps = vllm.read_steps(recorded.path)
    table = RequestTable(
        arrival_ns=np.cumsum(steps.length_ns) - steps.length_ns,
        latency_ns=steps.length_ns,
        status=np.zeros(len(steps.end_ns), np.int8),
        features={
            "prefill_tokens": steps.prefill_tokens.astype(np.float64),
            "generated_tokens": steps.streams.astype(np.float64),
        },
        has_status=False,
        timed=False,
        facts={"format": vllm.STEPS},
    )
    return diagnose_table(table, recorded.path, options, unit="step")


def _parts(recorded: Recorded) -> tuple[list[tuple[Recorded, str]], list[Recorded]]:
    """The files of a folder that are request logs, with their format, and those that are logs of engine steps."""
    steps = [file for file in recorded.inside if vllm.knows_steps(file.head)]
    others = (file for file in recorded.inside if file not in steps)
    named = ((file, next((name for name in _FIXED if _LOGS[name].knows(file.head)), "")) for file in others)
    return [each for each in named if each[1]], steps


def _knows_pair(recorded: Recorded) -> bool:
    tables, steps = _parts(recorded)
    return len(tables) == 1 and len(steps) == 1


def _diagnose_pair(recorded: Recorded, options: ReadOptions) -> Diagnosis:
    tables, steps = _parts(recorded)
    file, name = tables[0]
    table = _LOGS[name].read(file, ReadOptions())
    began = datetime.fromtimestamp((table.start_unix_ns or 0) / 1e9, UTC)
    year = began.year if table.start_unix_ns else None
    return diagnose_table(_with_steps(table, vllm.read_steps(steps[0].path, year=year)), recorded.path, options)


def _with_steps(table: RequestTable, steps: EngineSteps) -> RequestTable:
    """A table with the engine's steps on its clock, if both have dates."""
    if table.start_unix_ns is None or int(steps.end_ns[-1]) < 10**17:
        note = "The engine's steps are not used: they and the requests do not both have dates."
        return replace(table, notes=(*table.notes, note))
    aligned = replace(steps, end_ns=steps.end_ns - table.start_unix_ns)
    if int(aligned.end_ns[-1]) < 0 or int((aligned.end_ns - aligned.length_ns)[0]) > int(table.arrival_ns[-1]):
        note = "The engine's steps are not used: they lie outside the requests' time (another time zone?)."
        return replace(table, notes=(*table.notes, note))
    return replace(table, steps=aligned, facts={**table.facts, "steps": len(steps.end_ns)})


class _Log(NamedTuple):
    """A format with one entry per request: what recognizes and what reads it, and the options that it takes."""

    knows: Callable[[bytes], bool]
    read: Callable[[Recorded, ReadOptions], RequestTable]
    takes: tuple[str, ...] = ()


def _known(knows: Callable[[bytes], bool], read: Callable[[Path], RequestTable], *takes: str) -> _Log:
    """A format whose fields are known."""
    return _Log(knows, lambda file, _options: read(file.path), takes)


_LOGS: Mapping[str, _Log] = {
    mapped_log.PARQUET: _Log(parquet_table.knows, mapped_log.read, ("--map",)),
    har.NAME: _known(har.knows, har.read),
    aiperf.NAME: _known(aiperf.knows, aiperf.read),
    vllm.BENCH: _known(vllm.knows_bench, vllm.read_bench),
    guidellm.NAME: _known(guidellm.knows, guidellm.read),
    triton_trace.NAME: _known(triton_trace.knows, triton_trace.read),
    triton_trace.EXPORT: _known(triton_trace.knows_export, triton_trace.read_export),
    text_log.NAME: _Log(text_log.knows, text_log.read, ("--map", "--pattern")),
    # Some text logs look like one without a latency.
    access_log.NAME: _known(access_log.knows, access_log.read, "--pattern"),
    mapped_log.NAME: _Log(mapped_log.knows, mapped_log.read, ("--map", "--pattern")),
}
#: Those with known fields.
_FIXED = tuple(name for name, log in _LOGS.items() if "--map" not in log.takes)
#: Formats of spans, by name.
_SPANS: Mapping[str, tuple[Callable[[bytes], bool], Callable[[Path], SpanTable]]] = {
    otlp_spans.NAME: (otlp_spans.knows, otlp_spans.read),
    jaeger_spans.NAME: (jaeger_spans.knows, jaeger_spans.read),
    span_columns.NAME: (span_columns.knows, span_columns.read),
    f"{otlp_spans.NAME} in protocol buffers": (otlp_spans.knows_protobuf, otlp_spans.read_protobuf),
}
#: Reads any text log if a pattern is given.
TEXT_LOG = _reader_of_log(text_log.NAME)

READERS: tuple[Reader, ...] = (
    _reader_of_log(mapped_log.PARQUET),
    Reader(
        kind="requests",
        reads="a folder with one of these and vLLM's log with its iterations",
        knows=_knows_pair,
        read=_diagnose_pair,
    ),
    *(_reader_of_log(name) for name in _FIXED if name != access_log.NAME),
    *(_reader("spans", name, knows, partial(_diagnose_spans, read)) for name, (knows, read) in _SPANS.items()),
    _reader("requests", vllm.STEPS, vllm.knows_steps, _diagnose_steps, "--pattern"),
    _reader("requests", prometheus_histograms.NAME, prometheus_histograms.knows, prometheus_histograms.diagnose),
    TEXT_LOG,
    _reader_of_log(access_log.NAME),
    _reader_of_log(mapped_log.NAME),
)
