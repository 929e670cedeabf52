"""The values of a role, from blocks of columns: nanoseconds, numbers or texts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from latfix.profilers.recordings.requests.columns.column_roles import INSTANTS, TEXTS, Role
from latfix.profilers.recordings.requests.request_table import UNKNOWN
from latfix.profilers.recordings.requests.text_source import (
    LATEST_NS,
    LONGEST_NS,
    UNITS_NS,
    decimals_ns,
    epoch_units,
    instants_ns,
    number_of,
    route_of,
)

#: Columns by name, and the line of each row.
Block = tuple[Mapping[str, Any], Sequence[int]]
#: Nanoseconds from 1970 to 1990: smaller times have another origin.
LEAST_SINCE_1970 = 631_152_000 * 10**9
_LOOKED_AT = 100


def cells_of(column: Any) -> Any:
    """The cells of a column, or of a slice of one: a list, or an Arrow array of texts."""
    return column.to_pylist() if hasattr(column, "to_pylist") else column


def values_of(role: Role, block: Mapping[str, Any]) -> Any:
    """``(n,)`` texts, whole nanoseconds (:data:`UNKNOWN` if invalid), or numbers (NaN if they are not finite).

    :param block: the role's columns, by name. Of a possible input, what is no number is infinite.
    """
    if role.name in TEXTS:
        texts = ["" if word is None else str(word) for word in cells_of(block[role.text])]
        few: Collection[str] = () if role.name in ("id", "user") else set(texts)
        alike = {word: route_of(word) if role.name == "route" else word for word in few}
        return np.array([alike.get(word, word) for word in texts], dtype=object)
    is_instant, is_column = role.name in INSTANTS, isinstance(role.source, str)
    if is_instant and is_column and not len(_few_numbers(role, block)):
        return instants_ns(block[role.text])
    numbers = _numbers(role, block)
    if role.is_possible:
        numbers = numbers.astype(np.float64)
        if (wrong := ~np.isfinite(numbers)).any():
            empty = np.array([cell in (None, "") for cell in cells_of(block[role.text])])
            numbers[wrong] = np.where(empty, np.nan, np.inf)[wrong]
        return numbers
    if role.unit_ns is None and not is_instant:
        return np.where(np.isfinite(numbers), numbers, np.nan)
    usual = role.unit_ns or UNITS_NS["s"]
    unit = epoch_units(numbers) if role.sized else usual
    most = LATEST_NS if is_instant else LONGEST_NS
    with np.errstate(invalid="ignore"):
        bad = ~np.isfinite(numbers) | (numbers < 0) | (numbers > most // unit)
    amount = np.where(bad, 0, numbers)
    if amount.dtype == np.int64:
        return np.where(bad, UNKNOWN, amount * unit)
    scaled = np.where(bad, UNKNOWN, np.rint(amount * unit).astype(np.int64))
    if not is_instant or not is_column:
        return scaled
    exact = decimals_ns(block[role.text], usual)
    return np.where((exact >= 0) & ~bad & (unit == usual), exact, scaled)


def with_unit(role: Role, block: Mapping[str, Any]) -> Role:
    """The role with the unit of times that are numbers: the same in all blocks, and not that of a wrong one."""
    if role.name not in INSTANTS or role.unit_ns is not None or not len(few := _few_numbers(role, block)):
        return role
    typical = float(np.median(few))
    unit = int(epoch_units(typical))
    return replace(role, unit_ns=unit, sized=typical * unit >= LEAST_SINCE_1970)


def _few_numbers(role: Role, block: Mapping[str, Any]) -> Any:
    """The finite numbers among a role's first ones; empty if they are dates."""
    numbers = _numbers(role, {name: block[name][:_LOOKED_AT] for name in role.columns})
    finite = numbers[np.isfinite(numbers)]
    return finite if 2 * len(finite) >= len(numbers) else finite[:0]


def _numbers(role: Role, block: Mapping[str, Any]) -> Any:
    """The numbers of a role's column or expression, in the role's unit."""
    columns = {name: _numbers_in(block[name], role.unit_ns or 1) for name in role.columns}
    if isinstance(role.source, str):
        return columns[role.source]
    return role.source.of_columns({name: column.astype(np.float64) for name, column in columns.items()})


def _numbers_in(column: Any, unit_ns: int) -> Any:
    """Numbers, as integers if all are whole: a float does not hold nanoseconds since 1970 exactly.

    :param unit_ns: the unit to which durations with one of their own are converted.
    """
    if hasattr(column, "to_pylist"):
        import pyarrow as pa
        import pyarrow.compute as pc

        given = pc.if_else(pc.equal(column, ""), None, column)
        for kind in (pa.int64(), pa.float64()):
            try:
                return pc.cast(given, kind).to_numpy(zero_copy_only=False)
            except pa.ArrowInvalid:
                continue
    cells = cells_of(column)
    if all(type(value) is int and abs(value) < 1 << 62 for value in cells):
        return np.array(cells, np.int64)
    return np.array([number_of(value, unit_ns) for value in cells])
