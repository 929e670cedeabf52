"""Spans of a serving engine as requests: vLLM writes one span a request, its parts in attributes, in seconds.

Attributes: ``SpanAttributes`` in vllm/tracing of vllm-project/vllm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latfix.profilers.recordings.requests.request_table import RequestTable
from latfix.profilers.recordings.requests.span_rows import ENGINE_LATENCY
from latfix.profilers.recordings.requests.span_table import SpanTable
from latfix.profilers.recordings.requests.table_rows import TableRows, ns_of

_S = 1_000_000_000


def are_engine_spans(spans: SpanTable) -> bool:
    """Whether a recording is mostly a serving engine's requests, and nothing called them."""
    return bool(spans.engine) and 2 * len(spans.engine) >= len(spans)


def requests_of(spans: SpanTable) -> RequestTable:
    """The engine's requests: the wait in its queue, prefill and decode, and what is in none of them."""
    rows = TableRows()
    for start_ns, attributes in spans.engine:
        rows.add(
            arrival_ns=start_ns,
            latency_ns=_time(attributes, ENGINE_LATENCY),
            first_ns=_time(attributes, "gen_ai.latency.time_to_first_token"),
            name=str(attributes.get("gen_ai.request.id", "")),
            parts={"queue": _time(attributes, "gen_ai.latency.time_in_queue")},
            stages={
                "prefill": _time(attributes, "gen_ai.latency.time_in_model_prefill"),
                "decode": _time(attributes, "gen_ai.latency.time_in_model_decode"),
            },
            features={
                "input_tokens": _number(attributes, "gen_ai.usage.prompt_tokens"),
                "output_tokens": _number(attributes, "gen_ai.usage.completion_tokens"),
            },
        )
    return rows.table(facts={**spans.facts, "spans": len(spans)}, has_status=False)


def _number(attributes: Mapping[str, Any], name: str) -> float | None:
    try:
        return float(attributes[name])
    except (KeyError, TypeError, ValueError):
        return None


def _time(attributes: Mapping[str, Any], name: str) -> int | None:
    return ns_of(_number(attributes, name), _S)
