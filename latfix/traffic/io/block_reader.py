"""Reads large traffic for its summary: block by block, keeping numbers but no rows in memory."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.errors import InputError
from latfix.files.parquet_reader import arrow_file
from latfix.traffic.derived_features import map_columns
from latfix.traffic.io.file_source import MAX_UNPACKED_BYTES, Source
from latfix.traffic.io.metadata_sidecar import Sidecar, embedded_sidecar, read_sidecar
from latfix.traffic.io.raw_table import RawTable
from latfix.traffic.io.reader import format_of, read_fields
from latfix.traffic.io.row_parsers import looks_like_json, parquet_tables, read_table
from latfix.traffic.parsed_fields import Fields, feature_array
from latfix.traffic.schedule import Traffic
from latfix.traffic.value_parsers import MAX_SECONDS, NS_PER_S

#: Bytes of text at a time; parsed, they take some ten times as much.
_BLOCK_BYTES = 2 << 20
#: Of a row, for the number of rows of Parquet at a time.
_ROW_BYTES = 100
_GZIP, _PARQUET = b"\x1f\x8b", b"PAR1"

Array = npt.NDArray[Any]


class _ReadWhole(Exception):
    """The file must be read as a whole: another format, or an error that only a full read can report correctly."""


def read_in_blocks(
    path: Path,
    *,
    mapping: Mapping[str, str],
    skip_bad_lines: bool = False,
    on_rows: Callable[[int], None] = lambda _rows: None,
) -> Traffic | None:
    """Traffic in JSON Lines, CSV or Parquet, without ids and payloads; ``None`` if it must be read whole.

    :param mapping: features to derive, parsed.
    :param skip_bad_lines: leave malformed lines out and count them; otherwise such files must be read whole.
    :param on_rows: called after each block with the number of requests so far.
    """
    columns = _Columns(mapping, skip_bad_lines)
    try:
        if _begins(path, _PARQUET):
            columns.written = embedded_sidecar(arrow_file(path), path)
        for table in _tables(path, skip_bad_lines):
            columns.add(table, path)
            on_rows(columns.rows)
        return columns.traffic(path)
    except (_ReadWhole, InputError, OSError, EOFError, ValueError, OverflowError, zlib.error):
        return None


def _tables(path: Path, skip_bad_lines: bool) -> Iterator[RawTable]:
    """The file as tables of some rows each."""
    if _begins(path, _PARQUET):
        yield from parquet_tables(arrow_file(path), path, max(_BLOCK_BYTES // _ROW_BYTES, 1))
        return
    for source in _blocks(path):
        table = read_table(source, skip_bad_lines=skip_bad_lines)
        if table.problems.by_line and table.container == "csv" and b'"' in source.data:
            raise _ReadWhole  # a cell of several lines may be in two blocks
        yield table


def _blocks(path: Path) -> Iterator[Source]:
    """The file as sources of some lines each; for CSV, each starts with the header."""
    compressed = _begins(path, _GZIP)
    header, total, first = b"", 0, True
    with gzip.open(path) if compressed else path.open("rb") as stream:
        while lines := stream.readlines(_BLOCK_BYTES):
            data = b"".join(lines).removeprefix(b"\xef\xbb\xbf" if first else b"")
            total += len(data)
            if b"\x00" in data or total > MAX_UNPACKED_BYTES:
                raise _ReadWhole
            if first and not looks_like_json(data.decode(errors="replace")):
                header = lines[0].removeprefix(b"\xef\xbb\xbf")
            elif header:
                data = header + data
            first = False
            if data.strip():
                yield Source(path=path, sha256="", kind="text", data=data, compressed=compressed)


def _begins(path: Path, magic: bytes) -> bool:
    if not path.is_file():
        raise _ReadWhole
    with path.open("rb") as raw:
        return raw.read(len(magic)) == magic


@dataclass(slots=True)
class _Columns:
    """The columns read so far, as arrays per block."""

    mapping: Mapping[str, str]
    skip_bad_lines: bool
    rows: int = 0
    skipped: int = 0
    container: str = ""
    format: str = ""
    zero_ns: int | None = None
    fields: dict[str, list[Array]] = field(default_factory=dict)
    features: dict[str, dict[int, Array]] = field(default_factory=dict)
    lengths: list[int] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    written: Sidecar = field(default_factory=Sidecar)

    def add(self, table: RawTable, path: Path) -> None:
        if not table.lines:
            raise _ReadWhole
        found = read_fields(table, format_of(table, path), self.written.kinds)
        bad = table.problems.by_line
        if not self.rows:
            self.format = found.notes["format"]
            self.zero_ns = None if found.relative else found.arrival_ns[0]
        if self.mapping:
            add = table.problems.add
            found.features = map_columns(
                found.features,
                len(table.lines),
                self.mapping,
                lambda row, *words: add(table.lines[row], *words),
                path,
            )
        if (bad and not self.skip_bad_lines) or found.notes["format"] != self.format:
            raise _ReadWhole
        self.container = table.container
        self.skipped += len(bad)
        self._keep(found.kept([row for row, line in enumerate(table.lines) if line not in bad]) if bad else found)

    def _keep(self, found: Fields) -> None:
        ids = [hash(name) for name in found.ids if name is not None]
        kept: dict[str, Array] = {
            "arrival_ns": np.array([at - (self.zero_ns or 0) for at in found.arrival_ns], dtype=np.int64),
            "ids": np.array(ids, dtype=np.int64),
            "priority": np.array(found.priority, dtype=np.int8),
            "deadline_ms": np.array(found.deadline_ms, dtype=np.float64),
            "sessions": self._shared(found.sessions),
        }
        for name, column in kept.items():
            self.fields.setdefault(name, []).append(column)
        for name, values in found.features.items():
            array = feature_array(values)
            block = self._shared(array.tolist()) if array.dtype == object else array
            self.features.setdefault(name, {})[len(self.lengths)] = block
        self.lengths.append(len(found.arrival_ns))
        self.rows += len(found.arrival_ns)

    def _shared(self, values: list[str | None]) -> Array:
        """An object column in which equal texts share one object."""
        column = np.empty(len(values), dtype=object)
        column[:] = [None if value is None else self.texts.setdefault(value, value) for value in values]
        return column

    def traffic(self, path: Path) -> Traffic:
        if not self.rows:
            raise _ReadWhole
        # Each block is freed as soon as it is copied, so that no column is in memory twice.
        ids = np.concatenate(self.fields.pop("ids"))
        ids.sort()
        if (ids[1:] == ids[:-1]).any():
            raise _ReadWhole  # a duplicate id, whose line is not known here
        del ids
        whole = {name: np.concatenate(self.fields.pop(name)) for name in list(self.fields)}
        arrival = whole["arrival_ns"]
        if self.zero_ns is not None:
            arrival -= arrival.min()
            if arrival.max() > MAX_SECONDS * NS_PER_S:
                raise _ReadWhole
        order: slice | Array = slice(None)
        if (arrival[1:] < arrival[:-1]).any():
            order = np.argsort(arrival, kind="stable")
        names = [*(name for name in self.features if name not in self.mapping), *self.mapping]  # derived ones last
        return Traffic(
            arrival_ns=whole["arrival_ns"][order],
            ids=[],
            priority=whole["priority"][order],
            sessions=whole["sessions"][order].tolist(),
            deadline_ms=whole["deadline_ms"][order],
            features={name: self._feature(self.features.pop(name))[order] for name in names if name in self.features},
            payloads=[],
            metadata={
                "source": path.name,
                "format": self.format,
                "skipped_lines": self.skipped,
                "transforms": self._transforms(path),
            },
        )

    def _feature(self, blocks: Mapping[int, Array]) -> Array:
        kinds = {array.dtype.kind for array in blocks.values()}
        if "O" in kinds and len(kinds) > 1:
            raise _ReadWhole  # a number in one block and a text in another
        absent: Any = None if "O" in kinds else np.nan
        parts = [
            blocks[k] if k in blocks else np.full(length, absent, dtype=object if "O" in kinds else np.float64)
            for k, length in enumerate(self.lengths)
        ]
        return np.concatenate(parts)

    def _transforms(self, path: Path) -> list[Any]:
        """Transforms of traffic that latfix wrote, if the file is unchanged since."""
        sidecar = self.written if self.container == "parquet" else read_sidecar(path)
        if sidecar is None:
            return []
        if sidecar.kinds and self.container == "csv":
            raise _ReadWhole  # the sidecar declares which cells are not numbers
        with path.open("rb") as file:
            same = sidecar.sha256 is None or hashlib.file_digest(file, "sha256").hexdigest() == sidecar.sha256
        known = sidecar.metadata.get("transforms", []) if same else []
        return known if isinstance(known, list) else []
