"""``causes.parquet``: one row per nonzero ledger entry, by request id, written chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from latfix.files.atomic_write import replacement
from latfix.files.parquet_reader import ROW_GROUP, arrow_file
from latfix.results.diagnosis import Ledger


@contextmanager
def causes_file(path: Path) -> Iterator[Callable[[Ledger], None]]:
    """A function that appends the entries of some requests to the file, which appears complete or not at all.

    It takes the parts of the run's ledger in order.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ("request_id", "cause", "own_ns", "propagated_ns", "class")
    schema = pa.schema([(name, pa.int64() if name.endswith("_ns") else pa.string()) for name in names])
    with (
        replacement(path) as temporary,
        arrow_file(temporary, "wb") as file,
        pq.ParquetWriter(file, schema) as writer,
    ):
        yield lambda ledger: writer.write_table(_table(ledger, schema), row_group_size=8 * ROW_GROUP)


def _table(ledger: Ledger, schema: Any) -> Any:
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
    return pa.Table.from_arrays(columns, schema=schema)
