"""Columns of a record's Parquet files as validated arrays of fixed types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.errors import InputError

#: Largest whole number of a record, so that a sum of two, which every reader makes, fits into 64 bits.
LARGEST = 2**61
#: Largest count or size, which is multiplied by a price in nanoseconds.
_LARGEST_COUNT = 2**48
_NO_COUNTS = ("thread", "request", "batch_id", "index", "prepare_thread")
_FLOATS = ("value",)
_TEXTS = ("kind", "series", "detail", "error", "status")


def read_column(path: Path, table: Any, name: str) -> npt.NDArray[Any]:
    """A column of an Arrow table or record batch: whole numbers, fractions or texts, depending on its name.

    :param path: the file, for messages.
    :returns: int64, float64, or objects that are ``str``.
    :raises InputError: it has another type, a null, or a number that no run can have.
    """
    found = table.column(name)
    check_type(path, name, found.type, rows=len(found))
    if found.null_count:
        raise _refusal(path, name, "a null")
    if name in _TEXTS:
        texts = np.empty(len(found), dtype=object)
        texts[:] = found.to_pylist()
        return texts
    if name in _FLOATS:
        values = _converted(path, name, found, np.float64)
        if not np.isfinite(values).all():
            raise _refusal(path, name, values[~np.isfinite(values)][0])
        return values
    whole = _converted(path, name, found, np.int64)
    most = LARGEST if name.endswith("_ns") or name in _NO_COUNTS else _LARGEST_COUNT
    if len(whole) and not -most <= whole.min() <= whole.max() <= most:
        raise _refusal(path, name, whole[(whole > most) | (whole < -most)][0])
    return whole


def check_type(path: Path, name: str, kind: Any, *, rows: int = 1) -> None:
    """Validate that a column's Arrow type can be read as the column's kind; without rows, any type can.

    :raises InputError: it cannot.
    """
    import pyarrow as pa

    if not rows:
        return
    whole = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    if name in _TEXTS:
        sound, expected = pa.types.is_string(kind) or pa.types.is_large_string(kind), "text"
    elif name in _FLOATS:
        sound, expected = whole or pa.types.is_floating(kind), "numbers"
    else:
        sound, expected = whole, "whole numbers"
    # A column of errors without any may have the null type.
    if not sound and not (name == "error" and pa.types.is_null(kind)):
        found = " ".join(str(kind).split())[:80]
        raise InputError(f"{path}: found {found} in column {name!r}; expected {expected}, as latfix writes")


def _converted(path: Path, name: str, found: Any, dtype: type[np.number[Any]]) -> npt.NDArray[Any]:
    values = found.to_numpy(zero_copy_only=False)
    if values.dtype == np.uint64 and len(values) and values.max() > LARGEST:
        raise _refusal(path, name, values.max())
    return np.asarray(values.astype(dtype, copy=False))


def _refusal(path: Path, name: str, found: object) -> InputError:
    return InputError(f"{path}: found {found} in column {name!r}; expected values as latfix writes them")
