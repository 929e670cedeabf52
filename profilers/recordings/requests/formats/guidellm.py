"""guidellm's ``benchmarks.json``: one or more benchmarks, each with its requests.

Fields: ``GenerativeRequestStats`` and ``RequestTimings`` of vllm-project/guidellm. Since 0.4 times are in
``info.timings`` and lengths in ``input_metrics`` and ``output_metrics``; before, in the request itself. Times are
seconds since 1970. Gaps between tokens are not recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from latfix.errors import input_error
from latfix.profilers.recordings.requests.request_table import CANCELLED, RequestTable, TableRows, ns_of
from latfix.profilers.recordings.requests.text_source import LATEST_NS, entry_of, json_document
from latfix.stages import Status

NAME = "guidellm benchmarks.json"
_EXPECTED = "guidellm's benchmarks.json with the requests of its benchmarks"
_S = 1_000_000_000
_STATUS = {"successful": Status.OK, "incomplete": CANCELLED, "errored": Status.ERROR}
#: Strategies that schedule each request for a given time.
_SCHEDULED = ("constant", "poisson", "async", "trace", "replay")


def knows(head: bytes) -> bool:
    text = head.lstrip()
    return text.startswith(b"{") and b'"benchmarks"' in text and (b"guidellm" in text or b'"type_"' in text)


def read(path: Path) -> RequestTable:
    """The requests of the benchmark that has most of them: several benchmarks are several loads.

    :raises InputError: it is damaged, or holds no requests.
    """
    document = json_document(path, _EXPECTED)
    benchmarks = document.get("benchmarks") if isinstance(document, dict) else None
    if not isinstance(benchmarks, list) or not benchmarks:
        raise input_error(path, None, "no benchmarks", _EXPECTED)
    with entry_of(path, "a benchmark", _EXPECTED):
        requests, chosen = max(((list(_requests(each)), each) for each in benchmarks), key=lambda run: len(run[0]))
    rows = TableRows()
    for number, (status, request) in enumerate(requests):
        with entry_of(path, f"request {number}", _EXPECTED):
            _add(rows, status, request, _is_scheduled(chosen))
    notes = []
    if len(benchmarks) > 1:
        notes.append(f"The file holds {len(benchmarks)} benchmarks; only the one with most requests is read.")
    if left := len(requests) - len(rows):
        notes.append(f"{left:,} requests without a start time are left out; most likely they were never sent.")
    if not len(rows):
        raise input_error(path, None, "no requests", _EXPECTED, "save the benchmark as JSON with its requests")
    return rows.table(facts={"format": NAME, "benchmarks": len(benchmarks)}, notes=tuple(notes))


def _requests(benchmark: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    groups = benchmark.get("requests")
    for name, status in _STATUS.items():
        for request in groups.get(name) or () if isinstance(groups, dict) else ():
            if isinstance(request, dict):
                yield status, request


def _is_scheduled(benchmark: Mapping[str, Any]) -> bool:
    places = (_object(benchmark, name) for name in ("config", "args", "scheduler"))
    return any(_object(place, "strategy").get("type_") in _SCHEDULED for place in places)  # not that of its profile


def _add(rows: TableRows, status: int, request: Mapping[str, Any], scheduled: bool) -> None:
    info = _object(request, "info") or _object(request, "scheduler_info")
    times = _object(info, "timings") or info.get("request_timings") or {}
    sent = _first(times.get("request_start"), times.get("resolve_start"), request.get("start_time"))
    ended = _first(times.get("request_end"), times.get("resolve_end"), request.get("end_time"))
    token = _first(times.get("first_token_iteration"), times.get("first_iteration"), request.get("first_token_time"))
    due = _first(times.get("targeted_start"), info.get("targeted_start")) if scheduled else None
    start = ns_of(sent, _S, LATEST_NS)
    if start is None:
        return
    planned = ns_of(due, _S, LATEST_NS)
    arrival = start if planned is None or planned > start else planned
    end, first = ns_of(ended, _S, LATEST_NS), ns_of(token, _S, LATEST_NS)
    latency = end - arrival if end is not None and status == Status.OK else None
    rows.add(
        arrival_ns=arrival,
        latency_ns=latency,
        status=status,
        first_ns=first - arrival if first is not None and status == Status.OK else None,
        name=str(request.get("request_id", "")),
        parts={"dispatch": start - arrival if planned is not None else None},
        features={
            "input_tokens": _tokens(request, "input_metrics", "prompt_tokens"),
            "output_tokens": _tokens(request, "output_metrics", "output_tokens"),
        },
    )


def _tokens(request: Mapping[str, Any], group: str, name: str) -> Any:
    metrics = _object(request, group)
    return _first(metrics.get("total_tokens"), metrics.get("text_tokens"), request.get(name))


def _object(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    result = value.get(name)
    return result if isinstance(result, dict) else {}


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
