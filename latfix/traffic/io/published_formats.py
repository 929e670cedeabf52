"""Traffic formats as published: Azure LLM inference, BurstGPT, Mooncake.

Each format is recognized by its columns, in any container. Arrivals become relative to the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from latfix.formatting import shown
from latfix.traffic.io.raw_table import RawTable, instants
from latfix.traffic.parsed_fields import NORMAL, FeatureColumn, Fields
from latfix.traffic.value_parsers import CalendarReader, Unreadable, count, instant_ns

#: Published files may count from 1970; the span is checked after arrivals are made relative.
_EPOCH_SECONDS = 10**11
_NS_PER_MS = 10**6


@dataclass(frozen=True, slots=True)
class PublishedFormat:
    """A published format.

    :param name: as recorded in the metadata.
    :param columns: those that identify it; all must be present.
    :param read: converts a table with those columns to fields.
    :param citation: requested by the owners, with the license.
    """

    name: str
    columns: tuple[str, ...]
    read: Callable[[RawTable], Fields]
    citation: str


def _azure(table: RawTable) -> Fields:
    arrivals = table.convert("TIMESTAMP", CalendarReader(), 0)
    return _fields(table, arrivals, _tokens(table, "ContextTokens", "GeneratedTokens"))


def _burstgpt(table: RawTable) -> Fields:
    """Read BurstGPT. Its first release has no session and no elapsed time; only conversations have a session."""
    features = _tokens(table, "Request tokens", "Response tokens")
    for column, feature in (("Model", "model"), ("Log Type", "log_type")):
        if column in table.columns:
            features[feature] = table.convert(column, _text, None)
    if "Elapsed time" in table.columns:
        features["elapsed_s"] = table.convert("Elapsed time", _seconds, None)
    fields = _fields(table, instants(table, "Timestamp", max_seconds=_EPOCH_SECONDS), features)
    if "Session ID" in table.columns:
        fields.sessions = table.convert("Session ID", _session, None)
    fields.notes["failed_requests"] = features["output_tokens"].count(0)
    return fields


def _mooncake(table: RawTable) -> Fields:
    features = _tokens(table, "input_length", "output_length")
    fields = _fields(table, instants(table, "timestamp", unit=_NS_PER_MS, max_seconds=_EPOCH_SECONDS), features)
    if "hash_ids" in table.columns:
        blocks = table.convert("hash_ids", _hash_ids, None)
        features["prefix_blocks"] = [None if ids is None else len(ids) for ids in blocks]
        fields.payloads = [None if ids is None else {"hash_ids": ids} for ids in blocks]
    return fields


def _tokens(table: RawTable, given: str, made: str) -> dict[str, FeatureColumn]:
    return {"input_tokens": table.convert(given, count, 0), "output_tokens": table.convert(made, count, 0)}


def _fields(table: RawTable, arrival_ns: list[int], features: dict[str, FeatureColumn]) -> Fields:
    rows = len(table.lines)
    return Fields(
        arrival_ns=arrival_ns,
        relative=False,
        ids=[None] * rows,
        priority=[NORMAL] * rows,
        sessions=[None] * rows,
        deadline_ms=[math.nan] * rows,
        features=features,
        payloads=[None] * rows,
    )


def _seconds(value: Any) -> float | None:
    return None if value in (None, "") else instant_ns(value) / 1e9


def _text(value: Any) -> str | None:
    if value in (None, ""):
        return None
    if not isinstance(value, str) or "\x00" in value:
        raise Unreadable(shown(value), "a text")
    return value


def _session(value: Any) -> str | None:
    """A session's id; whole numbers may be written as ``12.0``, if the column once had gaps."""
    if value in (None, "") or (isinstance(value, float) and math.isnan(value)):
        return None
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else _text(value)
    return text.removesuffix(".0") if text else None


def _hash_ids(value: Any) -> list[int] | None:
    if value is None:
        return None
    if isinstance(value, list) and all(type(item) is int for item in value):
        return value
    raise Unreadable(shown(value), "a list of whole numbers")


#: In the order in which they are tried.
PUBLISHED: tuple[PublishedFormat, ...] = (
    PublishedFormat(
        "azure-llm-inference",
        ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
        _azure,
        "Patel et al., Splitwise: Efficient generative LLM inference using phase splitting, ISCA 2024; "
        "Azure Public Dataset, CC-BY 4.0",
    ),
    PublishedFormat(
        "burstgpt",
        ("Timestamp", "Request tokens", "Response tokens"),
        _burstgpt,
        "Wang et al., BurstGPT: A real-world workload dataset to optimize LLM serving systems, 2024; CC-BY 4.0",
    ),
    PublishedFormat(
        "mooncake",
        ("timestamp", "input_length", "output_length"),
        _mooncake,
        "Qin et al., Mooncake: Trading more storage for less computation, FAST 2025; Apache-2.0",
    ),
)
