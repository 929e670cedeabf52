"""vLLM: results of ``vllm bench serve --save-result --save-detailed``, and the iterations in the server's log.

Results have lists with one entry per request: ``ttfts``, ``itls``, ``input_lens``, ``output_lens``, ``errors`` from
the first release on; ``start_times``, ``latencies``, ``queue_times`` later (``vllm/benchmarks/serve.py``). Those of
embeddings have ``latencies``, but no ``ttfts``. Seconds.

The log has one line per step among others: ``Iteration(7): 2 context requests, 7957 context tokens, 43 generation
requests, 43 generation tokens, iteration elapsed time: 1125.94 ms, …``, after the logger's ``INFO 11-22 10:00:00
[file.py:1]`` and, in newer versions, ``Engine 000:``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from latfix.errors import input_error
from latfix.profilers.recordings.requests.request_table import EngineSteps, RequestTable, TableRows, ns_of
from latfix.profilers.recordings.requests.text_source import LATEST_NS, LONGEST_NS, entry_of, json_objects, lines_of
from latfix.stages import Status

BENCH = "vllm bench serve --save-detailed"
_RESULT = "a result of vllm bench serve"
_S = 1_000_000_000
STEPS = "vLLM iteration log"
_LOG = "vLLM's log with its iterations"
_STEP = re.compile(
    r"Iteration\((\d+)\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests, "
    r"(\d+) generation tokens, iteration elapsed time: ([0-9.]+) ms"
)
_STAMP = re.compile(r"(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")


def knows_bench(head: bytes) -> bool:
    """True if a file begins as a result of vllm bench; one without details is refused when it is read."""
    text = head.lstrip()
    return text.startswith(b"{") and (
        (b'"ttfts"' in text and b'"input_lens"' in text)
        or (b'"request_throughput"' in text and b'"mean_ttft_ms"' in text)
        or (b'"endpoint_type"' in text and b'"num_prompts"' in text and b'"request_rate"' in text)
    )


def read_bench(path: Path) -> RequestTable:
    """The requests of a run.

    :raises InputError: it is damaged, or was saved without details.
    """
    *_, (_, document) = json_objects(path, _RESULT)  # the last of several, one per line
    n = len(_list(document, "ttfts" if "ttfts" in document or "latencies" not in document else "latencies", path))
    lists = ("ttfts", "itls", "input_lens", "output_lens", "start_times", "latencies", "queue_times", "errors")
    ttfts, itls, inputs, outputs, starts, latencies, queued, errors = (
        _optional(document, each, n, path) for each in lists
    )
    planned = _open_loop(document)
    rows = TableRows()
    for k in range(n):
        with entry_of(path, f"request {k}", _RESULT):
            gaps = [gap for value in itls[k] or () if (gap := ns_of(value, _S)) is not None]
            first = ns_of(ttfts[k], _S)
            latency = ns_of(latencies[k], _S) or (first + sum(gaps) if first else None)
            failed = bool(errors[k]) or not (latency or outputs[k])  # the reason of a failure may be an empty text
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
        notes = ("The file has no send times (start_times, from newer versions of vllm bench serve): only the "
                 "order of requests is known.",)  # fmt: skip
    return rows.table(
        facts={"format": BENCH, "model": document.get("model_id"), "request_rate": document.get("request_rate")},
        notes=notes,
        timed=timed,
    )


def _list(document: Mapping[str, Any], name: str, path: Path) -> list[Any]:
    values = document.get(name)
    if not isinstance(values, list) or not values:
        raise input_error(
            path,
            None,
            f"no list {name!r}",
            _RESULT,
            "save it with --save-result --save-detailed (SGLang: --output-details)",
        )
    return values


def _optional(document: Mapping[str, Any], name: str, n: int, path: Path) -> list[Any]:
    """A list with one entry per request, of ``None`` if this version does not write it."""
    values = document.get(name)
    if not isinstance(values, list):
        return [None] * n
    if len(values) != n:
        raise input_error(path, None, f"{len(values)} entries in {name!r} and {n} in others", "one per request")
    return values


def _open_loop(document: Mapping[str, Any]) -> bool:
    """True if requests were scheduled at a rate, not sent as soon as others ended."""
    rate = document.get("request_rate")
    return isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < float("inf")


def knows_steps(head: bytes) -> bool:
    """True if a step is among the first lines."""
    return _STEP.search(head.decode("utf-8", "replace")) is not None


def read_steps(path: Path, *, year: int | None = None) -> EngineSteps:
    """The steps. Their ends are the log's times, to the second or better; without times, steps are put end to end.

    :param year: of times without one.
    :raises InputError: no line is a step.
    """
    ends: list[int] = []
    lengths: list[int] = []
    prefill: list[int] = []
    streams: list[int] = []
    dated = True
    for number, line in lines_of(path):
        step = _STEP.search(line)
        if step is None:
            continue
        stamp = _STAMP.search(line[: step.start()])
        dated &= stamp is not None
        with entry_of(path, "a step", _LOG, number):
            ends.append(_instant(stamp, year) if stamp is not None else 0)
            lengths.append(min(round(float(step[6]) * 1e6), LONGEST_NS))
            prefill.append(min(int(step[3]), LONGEST_NS))
            streams.append(min(int(step[4]), LONGEST_NS))
    if not ends:
        raise input_error(path, None, "no line with Iteration(N)", _LOG)
    length = np.array(lengths, np.int64)
    end = np.array(ends, np.int64) if dated else np.cumsum(length)
    return EngineSteps(
        end_ns=end, length_ns=length, prefill_tokens=np.array(prefill, np.int64), streams=np.array(streams, np.int64)
    )


def _instant(stamp: re.Match[str], year: int | None) -> int:
    when = int(stamp[1]) if stamp[1] else year or datetime.now(UTC).year
    month, day, hour, minute, second = (int(stamp[k]) for k in range(2, 7))
    if not stamp[1] and (month, day) == (2, 29):
        when -= when % 4  # the latest year with this day
    moment = datetime(when, month, day, hour, minute, second, tzinfo=UTC)
    return int(moment.timestamp()) * 10**9 + int((stamp[7] or "0").ljust(9, "0"))
