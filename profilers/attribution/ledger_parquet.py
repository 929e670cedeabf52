"""``causes.parquet``: one row per nonzero ledger entry, by request id, written chunk by chunk."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from latfix.files.atomic_write import replacement
from latfix.files.parquet_reader import ROW_GROUP
from latfix.results.diagnosis import Ledger


class CausesFile:
    """A context manager that writes the file; it appears complete or not at all.

    :meth:`add` takes the parts of the run's ledger in order.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = contextlib.ExitStack()
        self._writer: Any = None

    def __enter__(self) -> CausesFile:
        import pyarrow.parquet as pq

        temporary = self._file.enter_context(replacement(self._path))
        self._writer = self._file.enter_context(pq.ParquetWriter(temporary, _schema()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.__exit__(kind, error, trace)

    def add(self, ledger: Ledger) -> None:
        """Append the entries of some requests."""
        self._writer.write_table(_table(ledger), row_group_size=8 * ROW_GROUP)


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema(
        [
            ("request_id", pa.string()),
            ("cause", pa.string()),
            ("own_ns", pa.int64()),
            ("propagated_ns", pa.int64()),
            ("class", pa.string()),
        ]
    )


def _table(ledger: Ledger) -> Any:
    import pyarrow as pa

    row, column = np.nonzero(((ledger.own_ns != 0) | (ledger.propagated_ns != 0)).T)
    names = list(ledger.ids) or [str(index) for index in ledger.request.tolist()]
    columns = [
        pa.array(names, pa.string()).take(pa.array(row)),
        pa.array(ledger.causes, pa.string()).take(pa.array(column)),
        pa.array(ledger.own_ns.T[row, column]),
        pa.array(ledger.propagated_ns.T[row, column]),
        pa.array(ledger.classes, pa.string()).take(pa.array(column)),
    ]
    return pa.Table.from_arrays(columns, schema=_schema())
