"""Custom logs: CSV or JSON Lines whose columns are known by name or by ``--map``.

``--map ROLE[_UNIT]=COLUMN`` or an expression over columns. Roles: ``latency``, ``arrival`` or ``end``, ``queue``,
``first`` (time to the first chunk), ``dispatch``, ``status``, ``cancelled`` (the client left), ``route``, ``server``,
``id``, ``user``. Any other name with a unit of time is a dependency that was waited for (``db_ms=…``), without one a
feature that measures work. The unit comes from the role (``latency_ms``), else from the column (``duration_us``),
else from the value (``"12.5ms"``, ``"1m2.3s"``), else, for times since 1970, from the size of the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from latfix.errors import input_error
from latfix.profilers.recordings.reader import recorded_at
from latfix.profilers.recordings.requests.columns import csv_table, json_table
from latfix.profilers.recordings.requests.columns.column_roles import EXPECTED, PER_REQUEST
from latfix.profilers.recordings.requests.columns.column_values import cells_of
from latfix.profilers.recordings.requests.columns.mapped_requests import EXPECTED_ROW, Blocks, read_blocks
from latfix.profilers.recordings.requests.columns.usual_names import FIGURE
from latfix.profilers.recordings.requests.request_table import RequestTable
from latfix.profilers.recordings.requests.text_source import BadLines, OtherLines
from latfix.traffic.derived_features import parse_map_option

NAME = "CSV or JSON Lines with a latency (--map latency=COLUMN)"
_MAPPING = 'ROLE=COLUMN or ROLE=EXPRESSION, as in latency_ms=took or size="bytes / 1000"'


def knows(head: bytes) -> bool:
    """True if a file begins as JSON Lines, as a list of objects, or as CSV with a header."""
    return json_table.knows(head) or csv_table.knows(head)


def read(path: Path, mapping: Sequence[str]) -> RequestTable:
    """The requests of a log.

    :raises InputError: no column is a latency, the mapping names a missing one, or most lines are unusable.
    """
    bad, others = BadLines(path, EXPECTED_ROW), OtherLines()
    columns, blocks, notes = _opened(path, bad, others)
    table = read_blocks(path, columns, parse_map_option(mapping, _MAPPING), blocks, bad)
    if len(table) == 1 and any(map(FIGURE.search, columns)):
        raise input_error(path, 1, "figures of many requests", EXPECTED, PER_REQUEST)
    return replace(table, notes=(*table.notes, *others.notes(), *notes))


def columns_with(path: Path, fits: Callable[[str], bool]) -> tuple[str, ...]:
    """The names of the columns that have a text that fits, where the first one is; empty if none has."""
    columns, blocks, _ = _opened(path, BadLines(path, EXPECTED_ROW), OtherLines())
    for block, _ in blocks(tuple(columns), (), columns):
        found = [name for name in columns if any(isinstance(x, str) and fits(x) for x in cells_of(block[name]))]
        if found:
            return tuple(found)
    return ()


def _opened(path: Path, bad: BadLines, others: OtherLines) -> tuple[Mapping[str, Any], Blocks, Iterable[str]]:
    """The columns with one value of each, what reads them in blocks, and notes."""
    if json_table.is_json(recorded_at(path).head):
        return (
            json_table.columns_of(path),
            lambda wanted, _needed, marks: json_table.blocks_of(path, wanted, marks, bad, others),
            (),
        )
    columns = csv_table.columns_of(path)
    return (
        columns,
        lambda wanted, _needed, _marks: csv_table.blocks_of(path, tuple(columns), wanted, bad, others),
        csv_table.notes_on(columns),
    )
