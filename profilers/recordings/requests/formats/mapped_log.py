"""Custom logs: Parquet, CSV or JSON Lines whose columns are known by name or by ``--map``.

``--map ROLE[_UNIT]=COLUMN`` or an expression over columns. Roles: ``latency``, ``arrival`` or ``end``, ``queue``,
``first`` (time to the first chunk), ``dispatch``, ``status``, ``cancelled`` (the client left), ``route``, ``server``,
``id``, ``user``. Any other name with a unit of time is a dependency that was waited for (``db_ms=…``), without one a
feature that measures work. The unit comes from the role (``latency_ms``), else from the column (``duration_us``),
else from the value (``"12.5ms"``, ``"1m2.3s"``), else, for times since 1970, from the size of the numbers.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from latfix.errors import InputError, input_error
from latfix.profilers.recordings.reader import ReadOptions, Recorded
from latfix.profilers.recordings.requests.columns import csv_table, parquet_table
from latfix.profilers.recordings.requests.columns.column_roles import EXPECTED, PER_REQUEST, Block, cells_of
from latfix.profilers.recordings.requests.columns.mapped_requests import EXPECTED_ROW, Blocks, read_blocks
from latfix.profilers.recordings.requests.columns.usual_names import ARRIVAL, END, FIGURE, LATENCY, WHOLE, is_called
from latfix.profilers.recordings.requests.request_table import RequestTable
from latfix.profilers.recordings.requests.text_source import (
    BadLines,
    begins_with_object,
    flat,
    json_document,
    json_object,
    lines_of,
)
from latfix.run_record.run_meta import RUN_FILE
from latfix.run_record.run_record import ESSENTIAL
from latfix.traffic.derived_features import parse_map_option

PARQUET = "Parquet with a latency (--map latency=COLUMN)"
NAME = "CSV or JSON Lines with a latency (--map latency=COLUMN)"
_MAPPING = 'ROLE=COLUMN or ROLE=EXPRESSION, as in latency_ms=took or size="bytes / 1000"'
_AT_ONCE, _FIRST_RECORDS = 100_000, 1_000
_LIST = re.compile(rb"\s*\[\s*\{\s*\"")
#: Within a document: a list of objects, or of times.
_WITHIN = re.compile(rb"\"\s*:\s*\[\s*\{\s*\"|(?i:latenc|duration|elapsed|_times?)[^\"]*\"\s*:\s*\[\s*[\d\"]")


def knows(head: bytes) -> bool:
    """True if a file begins as Parquet, JSON Lines, a list of objects, a document with requests, or CSV."""
    if parquet_table.knows(head) or begins_with_object(head) is not None or _LIST.match(head):
        return True
    return _WITHIN.search(head) is not None if _is_document(head) else csv_table.knows(head)


def read(file: Recorded, options: ReadOptions) -> RequestTable:
    """The requests of a log.

    :raises InputError: no column is a latency, the mapping names a missing one, or most lines are unusable.
    """
    bad = BadLines(file.path, EXPECTED_ROW)
    columns, blocks, notes = _opened(file, bad)
    mapping = parse_map_option(options.mapping, _MAPPING)
    table = read_blocks(file.path, columns, mapping, blocks, bad, times_only=options.times_only)
    if len(table) == 1 and any(map(FIGURE.search, columns)):
        raise input_error(file.path, 1, "figures of many requests", EXPECTED, PER_REQUEST)
    return replace(table, notes=(*table.notes, *bad.notes_on_others(), *notes))


def refuse_run(file: Recorded) -> None:
    """Refuse a table of a run's folder, or one exported from it: the run itself has been diagnosed.

    :raises InputError: it is one.
    """
    path = file.path
    beside = (path.parent / RUN_FILE).is_file()
    if (beside and path.suffix == ".parquet") or {*ESSENTIAL} <= {*_opened(file, BadLines(path, EXPECTED_ROW))[0]}:
        whole = shlex.quote(str(path.parent)) if beside else "FOLDER, the one with its run.json"
        raise InputError(
            f"{path}: found a table of a run that latfix recorded; show the run with latfix report {whole} (to read "
            "its requests as a log all the same: --map latency=latency_ns --map arrival=arrival_ns)"
        )


def columns_with(file: Recorded, fits: Callable[[str], bool]) -> tuple[str, ...]:
    """The names of the columns that have a text that fits, where the first one is; empty if none has."""
    columns, blocks, _ = _opened(file, BadLines(file.path, EXPECTED_ROW))
    for block, _ in blocks(tuple(columns), (), columns):
        found = [name for name in columns if any(isinstance(x, str) and fits(x) for x in cells_of(block[name]))]
        if found:
            return tuple(found)
    return ()


def _opened(file: Recorded, bad: BadLines) -> tuple[Mapping[str, Any], Blocks, Iterable[str]]:
    """The columns with one value of each, what reads them in blocks, and notes."""
    if parquet_table.knows(file.head):
        columns = parquet_table.columns_of(file.path)
        return columns, lambda wanted, _needed, _marks: parquet_table.blocks_of(file.path, wanted), ()
    if file.head.lstrip()[:1] in (b"{", b"["):
        return _first_values(file), lambda wanted, _, marks: _json_blocks(file, wanted, marks, bad), ()
    columns = csv_table.columns_of(file.head)
    names = tuple(columns)
    return (
        columns,
        lambda wanted, _needed, _marks: csv_table.blocks_of(file, names, wanted, bad),
        csv_table.notes_on(names),
    )


def _first_values(file: Recorded) -> dict[str, Any]:
    """By column of JSON, the first value that is not null in a thousand objects."""
    result: dict[str, Any] = {}
    for _, record in islice(_records(file), _FIRST_RECORDS):
        for name, value in flat(record or {}).items():
            result[name] = value if result.get(name) is None else result[name]
    return result


def _json_blocks(file: Recorded, wanted: Sequence[str], marks: Collection[str], bad: BadLines) -> Iterator[Block]:
    """The wanted columns, block by block; objects with none of the marks are no requests."""
    block: dict[str, list[Any]] = {name: [] for name in wanted}
    lines: list[int] = []
    nested = any("." in name for name in wanted)
    for number, record in _records(file):
        if record is None:
            bad.add(number, "no object")
            continue
        record = flat(record) if nested else record
        if not any(name in record for name in marks):
            bad.skip(bad.first_other or json.dumps(record))
            continue
        lines.append(number)
        for name in wanted:
            block[name].append(record.get(name))
        if len(lines) >= _AT_ONCE:
            yield block, lines
            block, lines = {name: [] for name in wanted}, []
    if lines:
        yield block, lines


def _is_document(head: bytes) -> bool:
    """True if a file begins as one JSON object, not as one per line."""
    return head.lstrip()[:1] == b"{" and (begins_with_object(head) is None or b"\n" not in head.strip())


def _records(file: Recorded) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Objects with their line numbers (in a list their positions); ``None`` for other values."""
    if _LIST.match(file.head) or _is_document(file.head):
        value = json_document(file.path, EXPECTED)
        for number, row in enumerate(value if isinstance(value, list) else _rows_within(value), 1):
            yield number, row if isinstance(row, dict) else None
        return
    for number, line in lines_of(file.path):
        yield number, json_object(line)


def _rows_within(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The requests of the longest list of them in a document, by the list's name; else the document."""
    lists = {
        name: value
        for name, value in flat(document).items()
        if isinstance(value, list) and value and isinstance(value[0], dict) and _has_times(value[0])
    }
    name = max(lists, key=lambda each: len(lists[each]), default="")
    return [{name: row} for row in lists[name]] if lists else _rows_of_columns(document) or [document]


def _rows_of_columns(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of lists that are as long as that of a latency, or of an end; empty if there is none."""
    lists = {name: value for name, value in flat(document).items() if isinstance(value, list) and len(value) > 1}
    lengths = [
        len(value)
        for name, value in lists.items()
        if not isinstance(value[0], list) and is_called(name, LATENCY, WHOLE, END)
    ]
    alike = {name: value for name, value in lists.items() if len(value) == max(lengths, default=0)}
    return [dict(zip(alike, row, strict=True)) for row in zip(*alike.values(), strict=True)]


def _has_times(record: Mapping[str, Any]) -> bool:
    """True if an object has a latency and a time, or a begin and an end."""
    names = [*flat(record)]
    has_latency, *moments = (any(is_called(name, usual) for name in names) for usual in (LATENCY, ARRIVAL, END))
    return (has_latency and any(moments)) or all(moments)
