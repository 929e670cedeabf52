"""What a runner writes while it runs: rows appended to plain binary files, events and samples as JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.columns import BATCH_DTYPE, EVENT_FIELDS, REQUEST_DTYPE, SAMPLE_FIELDS, Columns


def segment_names(meta: Mapping[str, Any]) -> dict[str, list[str]]:
    """The columns that the rows of ``segments/`` have; another version of latfix may have written others."""
    names = {"requests": list(REQUEST_DTYPE.names or ()), "batches": list(BATCH_DTYPE.names or ())}
    return names | dict(meta.get("rows", {}))


class Segment:
    """Rows of a segment file in order; a torn last row (the runner was killed in mid-write) is left out.

    :param key: column that they are sorted by; ``names`` those that its rows have.
    :raises ValueError: it has no such column.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], key: str, names: list[str]) -> None:
        if key not in names:
            raise ValueError(f"rows without {key!r}")
        recorded = np.dtype([(name, "<i8") for name in names])
        count = path.stat().st_size // recorded.itemsize if path.exists() else 0
        self._dtype, self._names = dtype, names
        self._rows: npt.NDArray[Any] = np.zeros(0, recorded)
        if count:
            self._rows = np.memmap(path, dtype=recorded, mode="r", shape=(count,))
        self._order = np.argsort(self._rows[key], kind="stable")

    def __len__(self) -> int:
        return len(self._order)

    def columns(self, first: int = 0, last: int | None = None) -> Columns:
        """Rows ``first`` up to ``last``; zero in columns that they do not have."""
        rows = np.asarray(self._rows[self._order[first:last]])
        absent = np.zeros(len(rows), dtype=np.int64)
        return {
            name: np.ascontiguousarray(rows[name]) if name in self._names else absent.copy()
            for name in self._dtype.names or ()
        }


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
    """Objects of a JSON Lines segment, as columns sorted by time; a torn last line is left out."""
    rows: list[list[Any]] = []
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # only ever the last line, cut by a kill
            continue
        if isinstance(row, list) and len(row) == len(names):
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
