"""Reading recorded traffic of any known format, recognized by its content."""

from __future__ import annotations

import io
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from latfix.errors import InputError, input_error
from latfix.formatting import shown
from latfix.traffic.derived_features import map_columns, parse_mapping
from latfix.traffic.io.file_source import Source, read_source
from latfix.traffic.io.metadata_sidecar import Sidecar, embedded_sidecar, read_sidecar
from latfix.traffic.io.native_format import read_native
from latfix.traffic.io.published_formats import PUBLISHED, PublishedFormat
from latfix.traffic.io.raw_table import RawTable
from latfix.traffic.io.row_parsers import read_table
from latfix.traffic.parsed_fields import Fields, feature_array, fill_ids
from latfix.traffic.schedule import Traffic
from latfix.traffic.value_parsers import MAX_SECONDS, NS_PER_S


def read_traffic(path: Path, *, mapping: Mapping[str, str] | None = None, skip_bad_lines: bool = False) -> Traffic:
    """Recorded traffic from a file of any known format, recognized by its content.

    Native JSON Lines, CSV and Parquet; Azure LLM inference, BurstGPT and Mooncake files as published; each
    optionally gzipped. Arrivals keep their full resolution in nanoseconds. Published arrivals become relative
    to the first; native ``arrival_s`` is kept. Rows out of order are sorted stably.

    :param mapping: features to derive, by name, as expressions over features.
    :param skip_bad_lines: leave malformed lines out and count them in ``metadata["skipped_lines"]``.
    :raises InputError: the file or one of its lines is malformed; names file and line.
    """
    path = Path(path)
    parse_mapping(mapping or {})
    source = read_source(path)
    table = read_table(source, skip_bad_lines=skip_bad_lines)
    known = format_of(table, path)
    if not table.lines:
        table.problems.raise_first()
        raise input_error(path, None, "no requests", "at least one")
    sidecar, stale = _sidecar_of(source)
    fields = read_fields(table, known, sidecar.kinds)
    if mapping:
        fields.features = map_columns(
            fields.features,
            len(table.lines),
            mapping,
            lambda row, found, expected: table.problems.add(table.lines[row], found, expected),
            path,
        )
    if not skip_bad_lines:
        table.problems.raise_first()
    fields = _without_bad_rows(table, fields, path)
    metadata = _metadata(source, table, fields, mapping or {}, sidecar)
    if stale:
        metadata["sidecar"] = "ignored: the file has changed since it was written"
    return _assemble(fields, metadata)


def format_of(table: RawTable, path: Path) -> PublishedFormat | None:
    """The published format with these columns; ``None`` for the native one.

    :raises InputError: it is neither.
    """
    columns = table.columns
    if "arrival_s" in columns:
        return None
    if "chat_id" in columns and "hash_ids" in columns:
        todo = "rename timestamp to arrival_s: these timestamps are seconds, not Mooncake's milliseconds"
        raise input_error(path, None, "the columns of a Qwen-Bailian trace", _known_formats(), todo)
    for known in PUBLISHED:
        if set(known.columns) <= set(columns):
            return known
    if not columns:
        table.problems.raise_first()
    names = ", ".join(shown(name, 40) for name in list(columns)[:12]) + (", …" if len(columns) > 12 else "")
    line = 1 if table.container == "csv" else None
    todo = f"make traffic of a log of requests: latfix traffic import {shlex.quote(str(path))}"
    raise input_error(path, line, f"the columns {names or '(none)'}", _known_formats(), todo)


def read_fields(table: RawTable, known: PublishedFormat | None, kinds: Mapping[str, str]) -> Fields:
    """The table's fields in its format; problems are added to the table."""
    if known is None:
        return read_native(table, kinds)
    fields = known.read(table)
    fields.notes = {"format": known.name, "citation": known.citation, **fields.notes}
    return fields


def _known_formats() -> str:
    known = "; ".join(f"{known.name} ({', '.join(known.columns)})" for known in PUBLISHED)
    return f"those of a known format: native (arrival_s); {known}"


def _without_bad_rows(table: RawTable, fields: Fields, path: Path) -> Fields:
    bad = table.problems.by_line
    if bad:
        fields = fields.kept([row for row, line in enumerate(table.lines) if line not in bad])
        table.lines = [line for line in table.lines if line not in bad]
    if not table.lines:
        message = min(bad.items())[1].message
        raise InputError(f"{path}: found no usable line among {len(bad)}; the first: {message}")
    if not fields.relative:
        _make_relative(table, fields)
    return fields


def _make_relative(table: RawTable, fields: Fields) -> None:
    first = min(fields.arrival_ns)
    fields.arrival_ns = [arrival - first for arrival in fields.arrival_ns]
    longest = max(fields.arrival_ns)
    if longest > MAX_SECONDS * NS_PER_S:
        line = table.lines[fields.arrival_ns.index(longest)]
        span = f"{longest / NS_PER_S:.3g} s after the first arrival"
        raise input_error(table.problems.file, line, span, f"traffic of at most {MAX_SECONDS:.0e} s")


def _sidecar_of(source: Source) -> tuple[Sidecar, bool]:
    """What latfix recorded about this file when it wrote it, and True if that was ignored as stale."""
    if source.kind == "parquet":
        return embedded_sidecar(io.BytesIO(source.data), source.path), False
    sidecar = read_sidecar(source.path)
    if sidecar is None:
        return Sidecar(), False
    if sidecar.sha256 != source.sha256:
        return Sidecar(), True
    return sidecar, False


def _metadata(
    source: Source, table: RawTable, fields: Fields, mapping: Mapping[str, str], sidecar: Sidecar
) -> dict[str, Any]:
    out_of_order = sum(
        later < earlier for earlier, later in zip(fields.arrival_ns, fields.arrival_ns[1:], strict=False)
    )
    before = dict(sidecar.metadata)
    transforms = before.pop("transforms", [])
    metadata: dict[str, Any] = {
        "source": source.path.name,
        "sha256": source.sha256,
        "compressed": source.compressed,
        **fields.notes,
        "rows": len(table.lines),
        "out_of_order": out_of_order,
        "skipped_lines": len(table.problems.by_line),
        "mapping": dict(mapping),
        "transforms": transforms if isinstance(transforms, list) else [],
    }
    if table.problems.by_line:
        metadata["skipped"] = table.problems.skipped()
    if before:
        metadata["written_from"] = before
        if "citation" in before:
            metadata.setdefault("citation", before["citation"])
    return metadata


def _assemble(fields: Fields, metadata: Mapping[str, Any]) -> Traffic:
    arrival = np.array(fields.arrival_ns, dtype=np.int64)
    if metadata["out_of_order"]:
        order = np.argsort(arrival, kind="stable")
        arrival = arrival[order]
        fields = fields.kept(order.tolist())
    return Traffic(
        arrival_ns=arrival,
        ids=fill_ids(fields.ids),
        priority=np.array(fields.priority, dtype=np.int8),
        sessions=fields.sessions,
        deadline_ms=np.array(fields.deadline_ms, dtype=np.float64),
        features={name: feature_array(column) for name, column in fields.features.items()},
        payloads=fields.payloads,
        metadata=metadata,
    )
