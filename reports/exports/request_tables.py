"""Requests as rows, in CSV and in Parquet: the columns of ``requests.parquet``, also of a run that was killed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from latfix.formatting import visible
from latfix.run_record.chunked_record import RecordSource
from latfix.run_record.run_record import request_tables, write_parts

#: A spreadsheet takes a text that begins so for a formula.
_FORMULA = ("=", "+", "-", "@")
_LONGEST = 32_000


def write_parquet(source: RecordSource, file: BinaryIO) -> None:
    """All columns, texts as they were recorded."""
    write_parts(file, request_tables(source.folder))


def csv_pieces(source: RecordSource) -> Iterator[str]:
    """A line of names, then one a request. Texts are printable, and none is a formula to a spreadsheet."""
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
