"""Rows of a Parquet file by position or by a sorted column, with few row groups in memory at a time."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from latfix.errors import InputError
from latfix.files.regular_file import check_regular

#: Rows per row group in files that latfix writes: the least that reading a stretch of a record costs.
ROW_GROUP = 65_536
PARQUET = "Parquet written by latfix"
_KEPT = 2


def arrow_file(path: Path, mode: str = "rb") -> Any:
    """A file opened by Arrow, which itself refuses names that are not UTF-8.

    :raises OSError: it cannot be opened.
    """
    import pyarrow as pa

    return pa.OSFile(os.fsencode(path), mode)


class ParquetRows:
    """A Parquet file as an ordered table.

    :param needed: columns that it must have; ``wanted`` those that are read, ``None`` for all.
    :raises InputError: the file is missing, damaged, or lacks a column.
    """

    def __init__(self, path: Path, needed: Sequence[str], wanted: Sequence[str] | None = None) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        check_regular(path, PARQUET, folders=False)
        try:
            self._file = pq.ParquetFile(arrow_file(path))
        except (OSError, pa.ArrowException) as error:
            raise unreadable(path, error) from error
        self.path = path
        self.schema = self._file.schema_arrow
        self.names: tuple[str, ...] = tuple(self._file.schema_arrow.names)
        missing = [name for name in needed if name not in self.names]
        if missing:
            raise InputError(f"{path}: found no column {missing[0]!r}; expected the columns of a run's record")
        self.read = [name for name in self.names if wanted is None or name in wanted]
        self.metadata: dict[bytes, bytes] = dict(self._file.schema_arrow.metadata or {})
        meta = self._file.metadata
        sizes = [meta.row_group(k).num_rows for k in range(meta.num_row_groups)]
        self.bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._groups: OrderedDict[int, Any] = OrderedDict()

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def read_only(self, names: Sequence[str]) -> None:
        """Restrict reading to these columns from now on."""
        self.read = [name for name in self.names if name in names]

    def batches(self, names: Sequence[str]) -> Iterator[Any]:
        """Some columns of all rows in order, as Arrow record batches."""
        import pyarrow as pa

        try:
            yield from self._file.iter_batches(batch_size=ROW_GROUP, columns=list(names), use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise unreadable(self.path, error) from error

    def rows(self, first: int, last: int) -> Any:
        """Rows ``first`` up to ``last``, as an Arrow table."""
        import pyarrow as pa

        low = int(np.searchsorted(self.bounds, first, side="right")) - 1
        parts = []
        for k in range(max(low, 0), len(self.bounds) - 1):
            begin, end = int(self.bounds[k]), int(self.bounds[k + 1])
            if begin >= last:
                break
            parts.append(self.group(k).slice(max(first - begin, 0), min(last, end) - max(first, begin)))
        return pa.concat_tables(parts) if parts else self._nothing()

    def whole(self) -> Any:
        """All rows, as an Arrow table."""
        return self.rows(0, len(self))

    def between(self, name: str, low: int, high: int) -> Any:
        """Row groups in which a sorted column may lie from ``low`` to ``high``, as an Arrow table."""
        import pyarrow as pa

        parts = []
        for k in range(len(self.bounds) - 1):
            least, largest = self.range_of(k, name)
            if largest >= low and least <= high:
                parts.append(self.group(k))
        return pa.concat_tables(parts) if parts else self._nothing()

    def _nothing(self) -> Any:
        return self._file.schema_arrow.empty_table().select(self.read)

    def range_of(self, k: int, name: str) -> tuple[int, int]:
        """The smallest and the largest value of a whole-number column in a row group."""
        column = self._file.metadata.row_group(k).column(self.names.index(name))
        known = column.statistics
        if known is not None and known.has_min_max:
            return int(known.min), int(known.max)
        values = self.group(k).column(name).to_numpy()
        return (int(values.min()), int(values.max())) if len(values) else (0, -1)

    def group(self, k: int) -> Any:
        """A row group, as an Arrow table."""
        import pyarrow as pa

        if k in self._groups:
            self._groups.move_to_end(k)
            return self._groups[k]
        try:
            found = self._file.read_row_group(k, columns=self.read, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise unreadable(self.path, error) from error
        self._groups[k] = found
        while len(self._groups) > _KEPT:
            self._groups.popitem(last=False)
        return found


def unreadable(path: Path, error: Exception) -> InputError:
    """The error for a Parquet file that cannot be read."""
    reason = " ".join(str(error).split())[:160]
    return InputError(f"{path}: found an unreadable file ({reason}); expected {PARQUET}")
