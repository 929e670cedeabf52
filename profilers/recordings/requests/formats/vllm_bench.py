"""The result file of ``vllm bench serve --save-result --save-detailed``: lists with one entry per request.

Fields: ``vllm/benchmarks/serve.py`` of vllm-project/vllm. ``ttfts``, ``itls``, ``input_lens``, ``output_lens`` and
``errors`` since the first release; ``start_times``, ``latencies`` and ``queue_times`` later. Times in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latfix.errors import input_error
from latfix.profilers.recordings.reader import recorded_at
from latfix.profilers.recordings.requests.request_table import RequestTable
from latfix.profilers.recordings.requests.table_rows import TableRows, ns_of
from latfix.profilers.recordings.requests.text_source import (
    LATEST_NS,
    begins_with_object,
    entry_of,
    json_document,
    json_lines,
)
from latfix.stages import Status

NAME = "vllm bench serve --save-detailed"
_EXPECTED = "a result of vllm bench serve"
_S = 1_000_000_000


def knows(head: bytes) -> bool:
    """True if a file begins as a result of vllm bench; one without details is refused when it is read."""
    text = head.lstrip()
    return text.startswith(b"{") and (
        (b'"ttfts"' in text and b'"input_lens"' in text)
        or (b'"request_throughput"' in text and b'"mean_ttft_ms"' in text)
        or (b'"endpoint_type"' in text and b'"num_prompts"' in text and b'"request_rate"' in text)
    )


def read(path: Path) -> RequestTable:
    """The requests of a run.

    :raises InputError: it is damaged, or was saved without details.
    """
    document = _document(path)
    ttfts = _list(document, "ttfts", path)
    n = len(ttfts)
    lists = ("itls", "input_lens", "output_lens", "start_times", "latencies", "queue_times", "errors")
    itls, inputs, outputs, starts, latencies, queued, errors = (_optional(document, each, n, path) for each in lists)
    planned = _open_loop(document)
    rows = TableRows()
    for k in range(n):
        with entry_of(path, f"request {k}", _EXPECTED):
            gaps = [gap for value in itls[k] or () if (gap := ns_of(value, _S)) is not None]
            first = ns_of(ttfts[k], _S)
            failed = bool(errors[k])
            latency = ns_of(latencies[k], _S)
            if latency is None and first is not None:
                latency = first + sum(gaps)
            late = ns_of(queued[k], _S) if planned else None
            start = ns_of(starts[k], _S, LATEST_NS)
            rows.add(
                arrival_ns=(k if start is None else start - (late or 0)),
                latency_ns=None if latency is None or failed else latency + (late or 0),
                status=Status.ERROR if failed else Status.OK,
                first_ns=None if first is None or failed else first + (late or 0),
                parts={"dispatch": late},
                features={"input_tokens": inputs[k], "output_tokens": outputs[k]},
                gaps_ns=[] if failed else gaps,
            )
    notes: tuple[str, ...] = ()
    timed = all(start is not None for start in starts)
    if not timed:
        notes = ("This version of vllm bench serve does not record send times (start_times): only the order of "
                 "requests is known.",)  # fmt: skip
    return rows.table(
        facts={"format": NAME, "model": document.get("model_id"), "request_rate": document.get("request_rate")},
        notes=notes,
        timed=timed,
    )


def _document(path: Path) -> Mapping[str, Any]:
    """The only result of a file, or the last of several, one per line."""
    if begins_with_object(recorded_at(path).head) is not None:
        documents = [document for _, document in json_lines(path, _EXPECTED)]
        return documents[-1]
    document = json_document(path, _EXPECTED)
    if not isinstance(document, dict):
        raise input_error(path, None, f"a {type(document).__name__}", _EXPECTED)
    return document


def _list(document: Mapping[str, Any], name: str, path: Path) -> list[Any]:
    values = document.get(name)
    if not isinstance(values, list) or not values:
        raise input_error(path, None, f"no list {name!r}", _EXPECTED, "save it with --save-result --save-detailed")
    return values


def _optional(document: Mapping[str, Any], name: str, n: int, path: Path) -> list[Any]:
    """A list with one entry per request, of ``None`` if this version does not write it."""
    values = document.get(name)
    if not isinstance(values, list):
        return [None] * n
    if len(values) != n:
        raise input_error(path, None, f"{len(values)} entries in {name!r} and {n} in 'ttfts'", "one per request")
    return values


def _open_loop(document: Mapping[str, Any]) -> bool:
    """True if requests were scheduled at a rate, not sent as soon as others ended."""
    rate = document.get("request_rate")
    return isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < float("inf")
