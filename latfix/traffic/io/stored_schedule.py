"""The schedule in a run's folder: traffic stored losslessly, and read back whole or in parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from latfix.errors import InputError, input_error
from latfix.files.atomic_write import write_bytes
from latfix.files.parquet_reader import ParquetRows, arrow_file
from latfix.files.parquet_types import LARGEST
from latfix.files.regular_file import check_regular
from latfix.files.strict_json import MALFORMED
from latfix.request import PRIORITIES
from latfix.traffic.io.metadata_sidecar import PARQUET_KEY, Sidecar, parse_sidecar
from latfix.traffic.schedule import Traffic

_FEATURE_PREFIX = "feature."
_SCHEDULE = "a schedule that latfix stored"


def parquet_bytes(traffic: Traffic) -> bytes:
    """Traffic as the content of a native Parquet file."""
    from latfix.files import arrow_arrays as arrow

    return _parquet(traffic, {"arrival_s": arrow.seconds(traffic.arrival_ns)}, "")


def _parquet(traffic: Traffic, arrivals: Mapping[str, Any], prefix: str) -> bytes:
    """A Parquet file of arrivals, the other fields of requests, and features, whose names get ``prefix``."""
    from latfix.files import arrow_arrays as arrow

    payloads = [None if payload is None else json_text(payload) for payload in traffic.payloads]
    makers: dict[str, Callable[[Any], Any]] = {"i": arrow.whole_numbers, "f": arrow.numbers, "O": arrow.texts}
    try:
        columns = {
            **arrivals,
            "id": arrow.texts(traffic.ids),
            "priority": arrow.texts([PRIORITIES[index] for index in traffic.priority.tolist()]),
            "session": arrow.texts(traffic.sessions),
            "deadline_ms": arrow.numbers(traffic.deadline_ms),
            "payload": arrow.texts(payloads),
            **{prefix + name: makers[column.dtype.kind](column) for name, column in traffic.features.items()},
        }
    except UnicodeEncodeError as error:
        raise InputError("parquet: found half of a surrogate pair; expected text that UTF-8 can hold") from error
    return arrow.parquet_bytes(columns, {PARQUET_KEY: sidecar_bytes(traffic)})


def save_schedule(traffic: Traffic, path: Path) -> None:
    """Store ``traffic`` losslessly, metadata included, for :func:`load_schedule`; without pandas.

    :raises OSError: the file cannot be written.
    """
    from latfix.files import arrow_arrays as arrow

    write_bytes(path, _parquet(traffic, {"arrival_ns": arrow.whole_numbers(traffic.arrival_ns)}, _FEATURE_PREFIX))


def load_schedule(path: Path) -> Traffic:
    """The traffic that :func:`save_schedule` stored: the same columns, types and metadata.

    :raises InputError: the file is missing, damaged, or not a schedule.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_regular(path, _SCHEDULE, folders=False)
    try:
        table = pq.ParquetFile(arrow_file(path)).read(use_threads=False)
        sidecar = _stored(path, table.schema.metadata, table.column_names)
        return _traffic(table, sidecar, list(sidecar.kinds), payloads=True)
    except FileNotFoundError as error:
        raise input_error(path, None, "no such file", _SCHEDULE) from error
    except (pa.ArrowException, OSError, *MALFORMED) as error:
        raise _damaged(path, error) from error


class ScheduleFile:
    """A stored schedule, read in parts.

    :param texts: read text features, too.
    :raises InputError: the file is missing, damaged, or not a schedule.
    """

    def __init__(self, path: Path, *, texts: bool = False) -> None:
        self._rows = ParquetRows(path, ("arrival_ns", "id", "priority", "session"))
        self._sidecar = _stored(path, self._rows.metadata, self._rows.names)
        self._features = [name for name, kind in self._sidecar.kinds.items() if texts or kind != "text"]
        features = (_FEATURE_PREFIX + name for name in self._features)
        self._rows.read_only(("arrival_ns", "id", "priority", "session", *features))

    def __len__(self) -> int:
        return len(self._rows)

    def part(self, first: int, last: int) -> Traffic:
        """Requests ``first`` up to ``last``, without payloads and deadlines."""
        table = self._rows.rows(first, last)
        try:
            return _traffic(table, self._sidecar, self._features, payloads=False)
        except MALFORMED as error:
            raise _damaged(self._rows.path, error) from error


def _damaged(path: Path, error: Exception) -> InputError:
    reason = " ".join(str(error).split())[:120]
    return input_error(path, None, f"a damaged file ({type(error).__name__}: {reason})", _SCHEDULE)


def _stored(path: Path, metadata: Mapping[bytes, bytes] | None, names: Sequence[str]) -> Sidecar:
    embedded = (metadata or {}).get(PARQUET_KEY)
    if embedded is None or "arrival_ns" not in names:
        raise input_error(path, None, f"the columns {', '.join(names)}", _SCHEDULE)
    return parse_sidecar(embedded.decode(errors="replace"), path)


def _traffic(table: Any, sidecar: Sidecar, names: Sequence[str], *, payloads: bool) -> Traffic:
    count = table.num_rows
    columns = {name: table[name] for name in table.column_names}
    _check(columns)
    features = {name: _feature(columns[_FEATURE_PREFIX + name], sidecar.kinds[name]) for name in names}
    texts = columns["payload"].to_pylist() if payloads else []
    return Traffic(
        arrival_ns=_whole(columns["arrival_ns"]),
        ids=columns["id"].to_pylist(),
        priority=_priorities(columns["priority"]),
        sessions=columns["session"].to_pylist() if columns["session"].null_count < count else [None] * count,
        deadline_ms=_floats(columns["deadline_ms"]) if payloads else np.full(count, np.nan),
        features=features,
        payloads=[None if text is None else json.loads(text) for text in texts] if payloads else [None] * count,
        metadata=sidecar.metadata,
    )


def _check(columns: Mapping[str, Any]) -> None:
    """Validate the columns that are read from memory or as text.

    :raises ValueError: a column has another type, a null, or an arrival out of order.
    """
    import pyarrow as pa

    arrival = _whole(columns["arrival_ns"])
    if len(arrival) and not (arrival[0] >= 0 and arrival[-1] <= LARGEST and (np.diff(arrival) >= 0).all()):
        raise ValueError("arrivals out of order")
    if columns["id"].null_count:
        raise ValueError("a request without an id")
    for name in ("id", "priority", "session", "payload"):
        if name in columns and len(arrival) and not (_is_text(kind := columns[name].type) or pa.types.is_null(kind)):
            raise ValueError(f"{kind} in column {name!r}")


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _priorities(column: Any) -> np.ndarray[Any, np.dtype[np.int8]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    from latfix.files import arrow_arrays as arrow

    codes = pc.index_in(column.cast(pa.large_string()), value_set=arrow.texts(PRIORITIES))
    if codes.null_count:
        raise ValueError(f"a priority that is none of {', '.join(PRIORITIES)}")
    return arrow.read_numbers(codes, np.int32).astype(np.int8)


def _whole(column: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    from latfix.files import arrow_arrays as arrow

    if len(column) and (str(column.type) != "int64" or column.null_count):
        raise ValueError(f"{column.type}, or a null, where whole numbers belong")
    return np.asarray(arrow.read_numbers(column, np.int64), dtype=np.int64)


def _floats(column: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    from latfix.files import arrow_arrays as arrow

    if len(column) and str(column.type) != "double":
        raise ValueError(f"{column.type} where numbers belong")
    return np.where(arrow.read_validity(column), arrow.read_numbers(column, np.float64), np.nan)


def _feature(column: Any, kind: str) -> np.ndarray[Any, np.dtype[Any]]:
    if kind == "int":
        return _whole(column)
    if kind == "float":
        return _floats(column)
    if len(column) and not _is_text(column.type):
        raise ValueError(f"{column.type} where texts belong")
    texts = np.empty(len(column), dtype=object)
    texts[:] = column.to_pylist()
    return texts


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically.

    :raises InputError: it cannot be written.
    """
    try:
        write_bytes(path, data)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{path}: cannot be written ({reason}); expected a writable place with room") from error


def sidecar_bytes(traffic: Traffic, sha256: str | None = None) -> bytes:
    """Facts about traffic besides its rows, as JSON.

    :raises InputError: its metadata holds values that JSON cannot.
    """
    names = {"i": "int", "f": "float", "O": "text"}
    kinds = {name: names[column.dtype.kind] for name, column in traffic.features.items()}
    try:
        return Sidecar(kinds=kinds, metadata=traffic.metadata, sha256=sha256).to_json().encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"traffic: found metadata that JSON cannot hold ({error}); expected JSON values") from error


def json_text(value: Any) -> str:
    """A value as JSON.

    :raises InputError: JSON cannot hold it.
    """
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"traffic: found a value that JSON cannot hold ({error}); expected JSON values") from error
