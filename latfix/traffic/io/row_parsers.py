"""Parses JSON Lines, CSV and Parquet into :class:`~latfix.traffic.io.raw_table.RawTable`, for any columns."""

from __future__ import annotations

import csv
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from latfix.errors import input_error
from latfix.files.strict_json import finite_number, refuse_constant
from latfix.formatting import shown
from latfix.traffic.io.file_source import Source
from latfix.traffic.io.raw_table import Problems, RawTable
from latfix.traffic.value_parsers import EXACT_FLOAT_LIMIT, is_utf8

#: A file with more keys than this is assumed to have data in place of keys.
MAX_COLUMNS = 1000
#: Keys whose numbers are parsed as exact decimals if a float cannot hold their nanoseconds.
EXACT_KEYS = ("arrival_s", "timestamp")

_ONE_OBJECT = "one JSON object a line"
_FIELD_LIMIT = 2**31 - 1
_CSV_LOCK = threading.Lock()
#: Of each column of Parquet that are read at a time, if not all.
_BUFFER_BYTES = 1 << 16


def read_table(source: Source, *, skip_bad_lines: bool) -> RawTable:
    """The rows of ``source`` as columns; rows that do not parse are recorded in the table's problems.

    :raises InputError: a row does not parse and ``skip_bad_lines`` is False, or the file as a whole is bad.
    """
    if source.kind == "parquet":
        return next(parquet_tables(io.BytesIO(source.data), source.path))
    text = _decode(source, skip_bad_lines)
    if looks_like_json(text):
        return _read_jsonl(source, text, skip_bad_lines)
    return _read_csv(source, text, skip_bad_lines)


def _decode(source: Source, skip_bad_lines: bool) -> str:
    data = source.data.removeprefix(b"\xef\xbb\xbf")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if skip_bad_lines:
            return data.decode(errors="surrogateescape")  # each row is checked when it is parsed
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        raise input_error(source.path, line, f"byte 0x{byte:02x}, which is not UTF-8", "UTF-8 text") from error


def looks_like_json(text: str) -> bool:
    """True if the first line starts an object or array, or most of the first lines do (the rest are bad)."""
    head = [line.strip() for line in text[:65536].split("\n", 40)[:40]]
    lines = [line for line in head if line]
    begun = sum(line.startswith("{") for line in lines)
    return bool(lines) and (lines[0][0] in "{[" or 2 * begun > len(lines))


# --- JSON Lines -------------------------------------------------------------------------------------------


def _exact_decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent beyond Decimal's range; the float is 0.0
        return Decimal(float(text))


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs.

    :raises ValueError: a key is there twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {shown(twice)} twice")
    return found


_DECODER = json.JSONDecoder(parse_float=finite_number, parse_constant=refuse_constant, object_pairs_hook=_each_once)
_EXACT_DECODER = json.JSONDecoder(parse_float=_exact_decimal, parse_constant=refuse_constant)


def _read_jsonl(source: Source, text: str, skip_bad_lines: bool) -> RawTable:
    problems = Problems(str(source.path))
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    keys: dict[str, None] = {}
    for number, line in enumerate(text.split("\n"), 1):
        row = _json_object(line, number, problems)
        if row is not None:
            rows.append(row)
            lines.append(number)
            keys.update(dict.fromkeys(row))
        elif problems.by_line and not skip_bad_lines:
            problems.raise_first()
        if len(keys) > MAX_COLUMNS:
            raise input_error(
                source.path, number, f"more than {MAX_COLUMNS} different keys", "the same few keys on every line"
            )
    columns = {key: [row.get(key) for row in rows] for key in keys}
    return RawTable(container="jsonl", columns=columns, lines=lines, problems=problems)


def _json_object(line: str, number: int, problems: Problems) -> dict[str, Any] | None:
    """The object on ``line``; ``None`` for a blank line, and for a bad one, which is recorded."""
    stripped = line.strip(" \t\r")
    if not stripped:
        return None
    if not is_utf8(stripped):
        problems.add(number, "bytes that are not UTF-8", "UTF-8 text")
        return None
    try:
        row = _DECODER.decode(stripped)
    except json.JSONDecodeError as error:
        array = "write the array's elements one a line" if stripped == "[" else ""
        problems.add(number, f"{shown(stripped)}, not JSON ({error.msg}, column {error.colno})", _ONE_OBJECT, array)
        return None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).split(";")[0]
        problems.add(number, f"{shown(stripped)}, not usable ({reason})", _ONE_OBJECT)
        return None
    if not isinstance(row, dict):
        todo = "write the array's elements one a line" if isinstance(row, list) else ""
        problems.add(number, shown(stripped), _ONE_OBJECT, todo)
        return None
    if "\\u" in stripped and not is_utf8(json.dumps(row, ensure_ascii=False)):
        problems.add(number, "half of a surrogate pair", "text that UTF-8 can hold")
        return None
    if any(type(row.get(key)) is float and abs(row[key]) >= EXACT_FLOAT_LIMIT for key in EXACT_KEYS):
        exact = _EXACT_DECODER.decode(stripped)
        row.update({key: exact[key] for key in EXACT_KEYS if key in exact})
    return row


# --- CSV --------------------------------------------------------------------------------------------------


@contextmanager
def _long_cells() -> Iterator[None]:
    """Allow long cells: the csv module's process-wide limit is 128 KiB, which payloads exceed."""
    with _CSV_LOCK:
        before = csv.field_size_limit(_FIELD_LIMIT)
        try:
            yield
        finally:
            csv.field_size_limit(before)


def _read_csv(source: Source, text: str, skip_bad_lines: bool) -> RawTable:
    problems = Problems(str(source.path))
    rows: list[list[str]] = []
    lines: list[int] = []
    header: list[str] | None = None
    with _long_cells():
        for number, cells in _csv_rows(text, problems):
            if header is None:
                header = _csv_header(source, number, cells)
            elif cells is not None and len(cells) == len(header) and all(map(is_utf8, cells)):
                rows.append(cells)
                lines.append(number)
            elif cells is not None and len(cells) != len(header):
                problems.add(number, f"{len(cells)} cells", f"{len(header)}, as in the header")
            elif cells is not None:
                problems.add(number, "bytes that are not UTF-8", "UTF-8 text")
            if problems.by_line and not skip_bad_lines:
                problems.raise_first()
    if header is None:
        raise input_error(source.path, None, "an empty file", "a CSV header")
    values = list(zip(*rows, strict=True)) or [()] * len(header)
    columns = {name: list(column) for name, column in zip(header, values, strict=True)}
    return RawTable(container="csv", columns=columns, lines=lines, problems=problems, json_payload=True)


def _csv_rows(text: str, problems: Problems) -> Iterator[tuple[int, list[str] | None]]:
    """Rows that are not blank, with their first line; ``None`` for one that does not parse."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        start = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problems.add(start, f"a row that is not CSV ({error})", 'cells separated by commas, quoted with "')
            yield start, None
            continue
        if cells and any(cells):
            yield start, cells


def _csv_header(source: Source, line: int, cells: list[str] | None) -> list[str]:
    expected = "a CSV header that names every column once"
    if cells is None or not all(map(is_utf8, cells)):
        raise input_error(source.path, line, "a first line that is not UTF-8 CSV", expected)
    names = [cell.strip() for cell in cells]
    if len(names) > MAX_COLUMNS:
        raise input_error(source.path, line, f"{len(names)} columns", f"at most {MAX_COLUMNS}")
    for position, name in enumerate(names, 1):
        if not name:
            raise input_error(source.path, line, f"no name for column {position}", expected)
        if names.index(name) != position - 1:
            raise input_error(source.path, line, f"column {shown(name)} twice", expected)
    return names


# --- Parquet ----------------------------------------------------------------------------------------------


def parquet_tables(file: Any, path: Path, rows: int = 0) -> Iterator[RawTable]:
    """The rows of Parquet as tables of at most so many rows each; by default all in one.

    :raises InputError: the file is damaged, or has too many columns or two of one name.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    at = 1
    try:
        parquet = pq.ParquetFile(file, buffer_size=_BUFFER_BYTES if rows else 0)
        names = parquet.schema_arrow.names
        if not 1 <= len(names) <= MAX_COLUMNS:
            raise input_error(path, None, f"{len(names)} columns", f"1 to {MAX_COLUMNS}")
        if len(set(names)) != len(names):
            raise input_error(path, None, "a column name twice", "column names that differ")
        parts = parquet.iter_batches(rows, use_threads=False) if rows else (parquet.read(use_threads=False),)
        for part in parts:
            columns = {name: part[name].to_pylist() for name in names}
            lines = list(range(at, at + part.num_rows))
            at += part.num_rows
            yield RawTable(
                container="parquet",
                columns=columns,
                lines=lines,
                problems=Problems(str(path), by_row=True),
                json_payload=True,
            )
    except (pa.ArrowException, OSError, ValueError, OverflowError, KeyError) as error:
        reason = " ".join(str(error).split())[:120]
        raise input_error(path, None, f"a damaged Parquet file ({reason})", "a whole one") from error
