"""Requests as CSV and Parquet: the columns of ``requests.parquet``, also for a run that was killed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from latfix.formatting import visible
from latfix.run_record.chunked_record import RecordSource
from latfix.run_record.run_record import request_tables, write_parts

#: Text with these prefixes is a formula to a spreadsheet.
_FORMULA = ("=", "+", "-", "@")
_LONGEST = 32_000


def write_parquet(source: RecordSource, file: BinaryIO) -> None:
    """All columns, with texts as recorded."""
    write_parts(file, request_tables(source.folder))


def csv_pieces(source: RecordSource) -> Iterator[str]:
    """A header line, then a line per request. Texts are made printable and safe for spreadsheets."""
    import pyarrow as pa
    from pyarrow import csv

    for number, table in enumerate(request_tables(source.folder)):
        sink = pa.BufferOutputStream()
        csv.write_csv(_printable(table), sink, csv.WriteOptions(include_header=number == 0))
        yield sink.getvalue().to_pybytes().decode()


def _printable(table: Any) -> Any:
    import pyarrow as pa

    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        shown = [None if text is None else _cell(text) for text in column.to_pylist()] if is_text else column
        columns[_cell(name)] = pa.array(shown, pa.string()) if is_text else shown
    return pa.table(columns)


def _cell(text: str) -> str:
    shown = visible(text, limit=_LONGEST)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown
