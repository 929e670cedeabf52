"""Arrow arrays from NumPy buffers.

``pyarrow.array`` imports pandas on its first call, which costs a process that only stores a schedule half a
second and tens of megabytes; arrays over buffers avoid that.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from latfix.arrays import Bools, Floats, Ints
from latfix.files.parquet_reader import ROW_GROUP


def whole_numbers(values: Ints) -> Any:
    """An Arrow int64 array."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def numbers(values: Floats) -> Any:
    """An Arrow float64 array, null where NaN."""
    absent = np.isnan(values)
    buffers = [_validity(~absent), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.float64(), len(values), buffers)


def seconds(nanoseconds: Ints) -> Any:
    """An Arrow array of decimals with nine places: ``nanoseconds`` (0 or more) as exact seconds."""
    words = np.zeros((len(nanoseconds), 2), dtype="<i8")  # 128 bits, low word first
    words[:, 0] = nanoseconds
    return pa.Array.from_buffers(pa.decimal128(28, 9), len(nanoseconds), [None, pa.py_buffer(words)])


def texts(values: Sequence[str | None]) -> Any:
    """An Arrow string array, null where ``None``.

    :raises UnicodeEncodeError: a text has half a surrogate pair.
    """
    encoded = [b"" if value is None else value.encode() for value in values]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
    np.cumsum([len(item) for item in encoded], out=offsets[1:])
    present = np.array([value is not None for value in values], dtype=bool)
    buffers = [_validity(present), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.large_string(), len(encoded), buffers)


def read_numbers(column: Any, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The values of an Arrow column of numbers of that type; undefined if null."""
    parts = [np.zeros(0, dtype)]
    for chunk in column.chunks:
        data = chunk.buffers()[1]
        if len(chunk) and data is not None:
            parts.append(np.frombuffer(data, dtype)[chunk.offset : chunk.offset + len(chunk)])
    return np.concatenate(parts)


def read_validity(column: Any) -> Bools:
    """Which values of an Arrow column are not null."""
    parts = [np.zeros(0, dtype=bool)]
    for chunk in column.chunks:
        bits = chunk.buffers()[0]
        if bits is None or not chunk.null_count:
            parts.append(np.ones(len(chunk), dtype=bool))
        else:
            unpacked = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
            parts.append(unpacked[chunk.offset : chunk.offset + len(chunk)].astype(bool))
    return np.concatenate(parts)


def _validity(present: Bools) -> Any:
    return None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))


def parquet_bytes(columns: Mapping[str, Any], metadata: Mapping[bytes, bytes]) -> bytes:
    """A Parquet file of ``columns`` with ``metadata`` in its schema."""
    table = pa.Table.from_arrays(list(columns.values()), names=list(columns))
    stream = io.BytesIO()
    table = table.replace_schema_metadata(dict(metadata))
    pq.write_table(table, stream, compression="zstd", row_group_size=ROW_GROUP)
    return stream.getvalue()
