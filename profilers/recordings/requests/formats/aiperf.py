"""AIPerf's ``profile_export.jsonl``: one line per request, with every gap between chunks.

Fields: docs/tutorials/working-with-profile-exports.md of ai-dynamo/aiperf. Releases before 0.2 write
``timestamp_ns``, ``ttft`` and ``credit_phase`` for ``request_start_ns``, ``time_to_first_token`` and
``benchmark_phase``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latfix.errors import input_error
from latfix.profilers.recordings.requests.request_table import CANCELLED, RequestTable, TableRows, ns_of
from latfix.profilers.recordings.requests.text_source import (
    UNITS_NS,
    begins_with_object,
    entry_of,
    first_of,
    flat,
    json_objects,
)
from latfix.stages import Status

NAME = "AIPerf profile_export.jsonl"
_EXPECTED = "a record of AIPerf with metadata and metrics"


def knows(head: bytes) -> bool:
    first = begins_with_object(head)
    if first is None or not isinstance(first.get("metadata"), dict) or "metrics" not in first:
        return False
    return bool({"x_request_id", "session_num", "credit_phase", "benchmark_phase"} & set(first["metadata"]))


def read(path: Path) -> RequestTable:
    """The requests of the profiled phase.

    :raises InputError: a line is no record.
    """
    rows, warmup = TableRows(), 0
    for number, record in json_objects(path, _EXPECTED):
        metadata, metrics = record.get("metadata"), record.get("metrics") or {}
        if not isinstance(metadata, dict) or not isinstance(metrics, dict):
            raise input_error(path, number, "a line without metadata or metrics", _EXPECTED)
        if metadata.get("benchmark_phase", metadata.get("credit_phase")) == "warmup":
            warmup += 1
            continue
        with entry_of(path, "a request", _EXPECTED, number):
            _add(rows, metadata, flat(metrics), record.get("error"))
    notes = (f"{warmup} requests of the warm-up phase are left out.",) if warmup else ()
    return rows.table(facts={"format": NAME}, notes=notes)


def _add(rows: TableRows, metadata: Mapping[str, Any], metrics: Mapping[str, Any], error: Any) -> None:
    start: Any = metadata.get("request_start_ns", metadata.get("timestamp_ns"))
    status = _status(metadata, error)
    latency = _time(metrics, "request_latency")
    if latency is None and status != CANCELLED and isinstance(ended := metadata.get("request_end_ns"), int):
        latency = ended - start
    rows.add(
        arrival_ns=start,
        latency_ns=None if status == CANCELLED else latency,
        status=status,
        first_ns=_time(metrics, "time_to_first_token", "ttft"),
        name=str(metadata.get("x_request_id", "")),
        features={
            "input_tokens": metrics.get("input_sequence_length.value"),
            "output_tokens": first_of(metrics, "output_sequence_length.value", "output_token_count.value"),
        },
        gaps_ns=_gaps(metrics),
    )


def _status(metadata: Mapping[str, Any], error: Any) -> int:
    kind = str(error.get("type", "")) if isinstance(error, dict) else ""
    if metadata.get("was_cancelled") or "Cancel" in kind:
        return CANCELLED
    if error is None:
        return Status.OK
    return Status.TIMEOUT if "Timeout" in kind else Status.ERROR


def _time(metrics: Mapping[str, Any], *names: str) -> int | None:
    name = next((each for each in names if f"{each}.value" in metrics), "")
    return ns_of(metrics.get(f"{name}.value"), _unit_ns(metrics, name))


def _unit_ns(metrics: Mapping[str, Any], name: str) -> int:
    return UNITS_NS.get(str(metrics.get(f"{name}.unit", "ms")), 1_000_000)


def _gaps(metrics: Mapping[str, Any]) -> list[int]:
    unit, values = _unit_ns(metrics, "inter_chunk_latency"), metrics.get("inter_chunk_latency.value")
    return [gap for value in values if (gap := ns_of(value, unit)) is not None] if isinstance(values, list) else []
