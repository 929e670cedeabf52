"""Parquet as columns of texts: those of objects have dotted names; lists and bytes are left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from latfix.profilers.recordings.reader import damaged, opened
from latfix.profilers.recordings.requests.columns.column_roles import EXPECTED, Block

_FIRST_ROWS = 1_000


def knows(head: bytes) -> bool:
    """True if a file begins as Parquet."""
    return head.startswith(b"PAR1")


def columns_of(path: Path) -> dict[str, str]:
    """By column, its first value in a thousand rows that is not empty.

    :raises InputError: the file is damaged or cut off.
    """
    result: dict[str, str] = {}
    for block in islice(_blocks(path), 2):
        for name, column in block.items():
            result[name] = next(filter(None, column[:_FIRST_ROWS].to_pylist()), "")
    return result


def blocks_of(path: Path, wanted: Sequence[str]) -> Iterator[Block]:
    """The wanted columns, block by block, with the numbers of their rows from 1.

    :raises InputError: the file is damaged or cut off.
    """
    at = 1
    for block in _blocks(path, wanted):
        if rows := max(map(len, block.values()), default=0):
            yield block, range(at, at + rows)
            at += rows


def _blocks(path: Path, wanted: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Columns as Arrow's texts, block by block; the first is there also in a file without rows."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with opened(path, EXPECTED, text=False) as file:
            table = parquet.ParquetFile(file)
            yield _texts_of(table.schema_arrow.empty_table())
            for batch in table.iter_batches(columns=wanted, use_threads=False):
                batch.validate(full=True)  # texts are UTF-8
                yield _texts_of(pa.Table.from_batches([batch]))
    except (pa.ArrowException, OSError, ValueError) as error:
        damaged(path, EXPECTED, f"Parquet that is damaged or cut off ({error})")


def _texts_of(table: Any) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    while any(map(pa.types.is_struct, table.schema.types)):
        table = table.flatten()
    result = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
            continue
        unit = "ns" if pa.types.is_duration(column.type) else ""
        whole = pc.cast(column, pa.duration("ns")) if unit else column
        texts = pc.binary_join_element_wise(pc.cast(whole, pa.string()), unit, "")
        result[name] = pc.fill_null(texts, "").combine_chunks()
    return result
