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
from latfix.profilers.recordings.requests.text_source import LATEST_NS, entry_of, first_of, flat, json_document
from latfix.stages import Status

NAME = "guidellm benchmarks.json"
_EXPECTED = "guidellm's benchmarks.json with the requests of its benchmarks"
_S = 1_000_000_000
_STATUS = {"successful": Status.OK, "incomplete": CANCELLED, "errored": Status.ERROR}
#: Where the times of a request are.
_TIMES = ("info.timings.", "scheduler_info.request_timings.", "info.", "scheduler_info.", "")
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
    known = flat(benchmark, depth=2)  # not that of its profile
    return any(known.get(f"{place}.strategy.type_") in _SCHEDULED for place in ("config", "args", "scheduler"))


def _add(rows: TableRows, status: int, request: Mapping[str, Any], scheduled: bool) -> None:
    known = flat(request)

    def at(*names: str) -> int | None:
        return ns_of(first_of(known, *(f"{place}{name}" for name in names for place in _TIMES)), _S, LATEST_NS)

    start = at("request_start", "resolve_start", "start_time")
    if start is None:
        return
    end = at("request_end", "resolve_end", "end_time") if status == Status.OK else None
    first = at("first_token_iteration", "first_iteration", "first_token_time") if status == Status.OK else None
    planned = at("targeted_start") if scheduled else None
    arrival = start if planned is None or planned > start else planned
    rows.add(
        arrival_ns=arrival,
        latency_ns=None if end is None else end - arrival,
        status=status,
        first_ns=None if first is None else first - arrival,
        name=str(request.get("request_id", "")),
        parts={"dispatch": start - arrival if planned is not None else None},
        features={
            f"{kind}_tokens": first_of(
                known, f"{kind}_metrics.total_tokens", f"{kind}_metrics.text_tokens", f"{before}_tokens"
            )
            for kind, before in (("input", "prompt"), ("output", "output"))
        },
    )
