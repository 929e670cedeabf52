"""What a runner writes while it runs: rows appended to binary files, events and samples as JSON Lines."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.errors import input_error
from latfix.files.parquet_types import LARGEST
from latfix.files.regular_file import check_regular
from latfix.run_record.run_meta import RunMeta
from latfix.run_record.schema import BATCH_DTYPE, EVENT_FIELDS, REQUEST_DTYPE, SAMPLE_FIELDS, Columns
from latfix.run_record.validation import check_detail
from latfix.stages import STAGES

_LINES = "events and samples as latfix writes them"
#: Words at the end of a row that are all zero if the row is torn.
_TAIL = 3


def segment_names(meta: RunMeta) -> dict[str, tuple[str, ...]]:
    """The columns of the rows in ``segments/``; other versions of latfix may have written others."""
    return {"requests": REQUEST_DTYPE.names or (), "batches": BATCH_DTYPE.names or ()} | dict(meta.rows)


class Segment:
    """Rows of a segment file in order, without a torn end.

    A runner that was killed during a write leaves part of a row. A machine that lost power leaves zeros where the
    file had grown before its data was written: whole rows of them, and one with a valid beginning.

    :param key: the column to sort by; ``names`` the columns of its rows.
    :raises ValueError: it has no such column.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], key: str, names: Sequence[str]) -> None:
        if key not in names:
            raise ValueError(f"rows without {key!r}")
        recorded = np.dtype([(name, "<i8") for name in names])
        check_regular(path, "rows written by latfix", folders=False)
        count = path.stat().st_size // recorded.itemsize if path.exists() else 0
        self._dtype, self._names = dtype, names
        self._rows: npt.NDArray[Any] = np.zeros(0, recorded)
        if count:
            rows = np.memmap(path, dtype=recorded, mode="r", shape=(count,))
            self._rows = rows[: _written(rows)]
        self._key, self._more = key, np.zeros(0, recorded)
        self._order = np.argsort(self._rows[key], kind="stable")

    def __len__(self) -> int:
        return len(self._order)

    def add(self, columns: Columns) -> None:
        """Add rows that the file does not have; other columns are zero."""
        self._more = np.zeros(len(columns[self._key]), self._rows.dtype)
        for name in set(columns) & set(self._names):
            self._more[name] = columns[name]
        self._order = np.argsort(np.concatenate([self._rows[self._key], self._more[self._key]]), kind="stable")

    def columns(self, first: int = 0, last: int | None = None) -> Columns:
        """Rows ``first`` up to ``last``; missing columns are zero."""
        place = self._order[first:last]
        stored = place < len(self._rows)
        rows = np.zeros(len(place), self._rows.dtype)
        rows[stored], rows[~stored] = self._rows[place[stored]], self._more[place[~stored] - len(self._rows)]
        absent = np.zeros(len(rows), dtype=np.int64)
        return {
            name: np.ascontiguousarray(rows[name]) if name in self._names else absent.copy()
            for name in self._dtype.names or ()
        }


def _written(rows: npt.NDArray[Any]) -> int:
    """The number of rows before a torn end."""
    count = len(rows)
    while count and not any(rows[count - 1].item()):
        count -= 1
    if count and not _whole(rows[count - 1]):
        count -= 1
    return count


def _whole(row: Any) -> bool:
    """True unless a last row is a valid beginning followed by zeros."""
    names = row.dtype.names
    if any(row.item()[-_TAIL:]):
        return True
    if {"size", "close_ns", "finish_end_ns"} <= set(names):  # a batch, which has at least one member
        return bool(row["size"] > 0 and row["finish_end_ns"] >= row["close_ns"])
    stages = [f"{stage}_ns" for stage in STAGES]
    if not {"latency_ns", *stages} <= set(names):
        return True
    return sum(int(row[name]) for name in stages) == int(row["latency_ns"]) > 0


def segment_lines(segments: Path) -> tuple[Columns, Columns, dict[int, str]]:
    """Events, samples, and the messages of failed requests."""
    events = _read_lines(segments / "events.jsonl", EVENT_FIELDS)
    errors = {
        int(request): str(detail.get("message", ""))
        for kind, request, detail in zip(events["kind"], events["request"], events["detail"], strict=True)
        if kind == "error"
    }
    return events, _read_lines(segments / "samples.jsonl", SAMPLE_FIELDS), errors


def _read_lines(path: Path, names: tuple[str, ...]) -> Columns:
    """Objects of a JSON Lines segment, as columns sorted by time; a torn last line is left out.

    :raises InputError: a line that latfix does not write.
    """
    rows: list[list[Any]] = []
    check_regular(path, "JSON Lines written by latfix", folders=False)
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError:  # only the last line, cut off by a kill
            continue
        except RecursionError as error:
            raise input_error(path, number, "values nested too deep", _LINES) from error
        if isinstance(row, list) and len(row) == len(names):
            _check_line(path, number, dict(zip(names, row, strict=True)))
            rows.append(row)
    rows.sort(key=lambda row: row[0])
    columns: Columns = {}
    for k, name in enumerate(names):
        values = [row[k] for row in rows]
        if name in ("kind", "series", "detail"):
            column = np.empty(len(values), dtype=object)
            column[:] = values
            columns[name] = column
        else:
            columns[name] = np.array(values, dtype=np.float64 if name == "value" else np.int64)
    return columns


def _check_line(path: Path, number: int, values: Mapping[str, Any]) -> None:
    """Validate that an event or sample has the types of its columns.

    :raises InputError: naming the line and the invalid value.
    """
    for name, value in values.items():
        if name == "detail":
            check_detail(path, value)
            continue
        kinds: Any = str if name in ("kind", "series") else int | float if name == "value" else int
        sound = isinstance(value, kinds) and not isinstance(value, bool)
        if sound and not isinstance(value, str):
            sound = math.isfinite(value) if isinstance(value, float) else abs(value) <= LARGEST
        if not sound:
            raise input_error(path, number, f"{name} {str(value)[:40]!r}", _LINES)
