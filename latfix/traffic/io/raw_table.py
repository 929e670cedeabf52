"""A file's rows as columns of raw values, each with its line, and the rows that are unusable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from latfix.errors import InputError
from latfix.traffic.value_parsers import EXACT_FLOAT_LIMIT, MAX_SECONDS, NS_PER_S, Unreadable, instant_ns

T = TypeVar("T")

#: Number of skipped lines that the metadata lists.
NAMED_SKIPS = 5


@dataclass(slots=True)
class Problems:
    """Problems by line: raised as an error at once, or counted if bad lines are skipped.

    :param file: named in messages.
    :param by_row: positions are rows (Parquet) instead of lines of text.
    """

    file: str
    by_row: bool = False
    by_line: dict[int, InputError] = field(default_factory=dict)

    def add(self, line: int, found: str, expected: str, todo: str = "", *, field_name: str = "") -> None:
        """Record a problem of ``line``, unless it already has one."""
        if line in self.by_line:
            return
        where = f"{self.file}: row {line}" if self.by_row else f"{self.file}:{line}"
        inside = f" in {field_name!r}" if field_name else ""
        message = f"{where}: found {found}{inside}; expected {expected}"
        self.by_line[line] = InputError(f"{message}; {todo}" if todo else message)

    def raise_first(self) -> None:
        """Raise the problem of the lowest line, if there is one."""
        if self.by_line:
            raise self.by_line[min(self.by_line)]

    def skipped(self) -> list[dict[str, Any]]:
        """The first few lines with their reasons, for the metadata."""
        first = sorted(self.by_line)[:NAMED_SKIPS]
        return [{"line": line, "reason": self.by_line[line].message} for line in first]


@dataclass(slots=True)
class RawTable:
    """Columns of a file's raw values.

    :param container: ``jsonl``, ``csv`` or ``parquet``.
    :param columns: raw values by name, ``None`` if absent; all of one length.
    :param lines: the line (row for Parquet) of each entry, ascending.
    :param problems: rows that do not parse; later steps add to it.
    :param json_payload: a text in ``payload`` is JSON text (CSV, Parquet) instead of the value itself.
    """

    container: str
    columns: dict[str, list[Any]]
    lines: list[int]
    problems: Problems
    json_payload: bool = False

    def convert(self, name: str, parse: Callable[[Any], T], default: T) -> list[T]:
        """Parse column ``name``; an unreadable value becomes ``default`` and a problem.

        A missing column is parsed as absent in every row.
        """
        return convert(self.columns.get(name) or [None] * len(self.lines), parse, default, self, name)


def convert(values: Sequence[Any], parse: Callable[[Any], T], default: T, table: RawTable, name: str) -> list[T]:
    """Parse ``values``; an unreadable one becomes ``default`` and a problem of its line."""
    try:
        return [parse(value) for value in values]
    except Unreadable:
        pass
    converted: list[T] = []
    for value, line in zip(values, table.lines, strict=True):
        try:
            converted.append(parse(value))
        except Unreadable as error:
            table.problems.add(line, error.found, error.expected, error.todo, field_name=name)
            converted.append(default)
    return converted


def instants(table: RawTable, name: str, *, unit: int = NS_PER_S, max_seconds: int = MAX_SECONDS) -> list[int]:
    """Column ``name``, numbers in units of ``unit`` nanoseconds, rounded to whole nanoseconds."""
    values = table.columns.get(name) or [None] * len(table.lines)
    if {type(value) for value in values} <= {int, float}:
        try:
            numbers = np.array(values, dtype=np.float64)
        except OverflowError:
            numbers = np.array([np.nan])
        # A float below the limit is less than half a nanosecond from its decimal text.
        if len(numbers) and np.all((numbers >= 0) & (numbers < EXACT_FLOAT_LIMIT)):
            whole: list[int] = np.rint(numbers * unit).astype(np.int64).tolist()
            return whole
    return table.convert(name, lambda value: instant_ns(value, unit=unit, max_seconds=max_seconds), 0)
