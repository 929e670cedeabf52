"""Which column, or expression over columns, plays which role (by mapping, known writer or name), and its values."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from latfix.errors import InputError, input_error
from latfix.profilers.recordings.requests.columns import usual_names as usual
from latfix.profilers.recordings.requests.columns.possible_inputs import says_no_input
from latfix.profilers.recordings.requests.columns.usual_names import bare, is_called, unit_in
from latfix.profilers.recordings.requests.request_table import UNKNOWN, http_status
from latfix.profilers.recordings.requests.text_source import (
    LATEST_NS,
    LONGEST_NS,
    NOTHING,
    UNITS_NS,
    column_name,
    decimals_ns,
    duration_ns,
    epoch_units,
    instants_ns,
    number_of,
    route_of,
)
from latfix.stages import Status
from latfix.traffic.feature_expressions import Expression

#: Columns by name, and the line of each row.
Block = tuple[Mapping[str, Any], Sequence[int]]
#: Nanoseconds from 1970 to 1990: smaller times have another origin.
LEAST_SINCE_1970 = 631_152_000 * 10**9
_LOOKED_AT = 100
EXPECTED = "a table of requests with a latency and a time"
PER_REQUEST = "give a result with one row per request (k6, Gatling, JMeter, vegeta, hey -o csv, oha, ab -g)"
_TIMES = ("latency", "queue", "first", "dispatch")
MOMENTS = ("arrival", "end")
#: Times since 1970: the first chunk and the begin of service, too, may have one of those.
_INSTANTS = (*MOMENTS, "first_at", "begun_at")
_TEXTS = ("status", "cancelled", "route", "server", "id", "user", "row_kind")
#: Before the names of dependencies, and of columns that may be inputs of the work; how many of those are read.
PART, _POSSIBLE, _MOST_POSSIBLE = "part.", "possible.", 24
#: A logger writes a line, with a level, when the latency is known. Its level is no status.
_LEVEL = {"level", "lvl", "levelname", "log.level", "loglevel", "@l"}
_LEVELS = {"trace", "debug", "info", "notice", "warn", "warning"}
#: Columns of those that wrap the lines of a log, and how they are unwrapped.
_WRAPPED = (
    ({"log", "stream"}, "Docker", "jq -j .log FILE"),
    ({"data.resultType"}, "Loki", "jq -r '.data.result[].values[][1]' FILE"),
    ({"events", "searchedLogStreams"}, "CloudWatch", "jq -r '.events[] | \"\\(.timestamp) \\(.message)\"' FILE"),
    ({"error_severity", "backend_type"}, "PostgreSQL", "jq -r '.timestamp + \" \" + .message' FILE"),
    ({"__REALTIME_TIMESTAMP", "MESSAGE"}, "journald", "jq -r .MESSAGE FILE"),
)


@dataclass(frozen=True, slots=True)
class Role:
    """The role of a column or expression.

    :param unit_ns: of times; ``None`` to guess it from the size of the numbers.
    :param sized: the unit was guessed so: of times since 1970, each number has that of its own size.
    :param by_name: the column's name was recognized; nobody gave its role.
    """

    name: str
    source: Expression | str
    unit_ns: int | None = None
    sized: bool = False
    by_name: bool = False

    @property
    def kind(self) -> str:
        """``part`` of the latency; ``feature``; ``possible`` input, for all that the name says; empty for others."""
        if self.name.startswith(_POSSIBLE):
            return "possible"
        if self.name.startswith(PART) or self.name in ("queue", "dispatch"):
            return "part"
        return "" if self.name in (*_TIMES, *_INSTANTS, *_TEXTS) else "feature"

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.source,) if isinstance(self.source, str) else self.source.names

    @property
    def text(self) -> str:
        """The column or the expression."""
        return self.source if isinstance(self.source, str) else self.source.source


def roles_of(
    path: Path, columns: Mapping[str, Any], mapping: Mapping[str, str], *, times_only: bool = False
) -> list[Role]:
    """The roles of columns: from the mapping, then from a known writer, then from their names.

    :param columns: by name, a value of each.
    :param times_only: a time is enough; there need be no latency.
    :raises InputError: a latency or a column is missing, or the latency's unit is unknown.
    """
    names = tuple(columns)
    is_logger = not _LEVEL.isdisjoint(map(str.lower, names))
    roles = [_mapped(path, name, source, names) for name, source in mapping.items()]
    taken = {role.name for role in roles}
    for known, meaning in usual.WRITERS:
        if known <= set(names):
            written = [
                _mapped(path, name, column, names)
                for name, column in meaning.items()
                if column in names or re.search(" [+-] ", column)  # of columns that identify the writer
            ]
            given = {column for role in roles if role.name not in (*_TIMES, *_INSTANTS) for column in role.columns}
            roles += [role for role in written if role.name not in taken and not given & {*role.columns}]
            taken = {role.name for role in roles}
    used = {column for role in roles for column in role.columns}
    for role, pattern in usual.USUAL:
        if role in taken or (role in MOMENTS and "latency" in taken and taken & set(MOMENTS)):
            continue
        if role == "begun_at" and not any(_was_submitted(each) for each in roles):
            continue
        called = [each for each in names if each not in used and is_called(each, pattern)]
        # A begin and an end give the latency, too, but the time of a line does not.
        called.sort(
            key=lambda name: (
                role == "arrival" and not is_called(name, usual.SUBMITTED),
                "latency" not in taken and is_called(name, usual.WRITTEN),
                role == "status" and columns[name] in (None, ""),
            )
        )
        column = next((each for each in called if _may_be(role, each, columns)), None)
        if column is None or (pattern in (usual.ONLY, usual.ONLY_TIME) and len(called) > 1):
            continue
        if pattern in usual.WITH_UNIT and not _has_unit(column, columns):
            continue
        if role == "arrival" and (used & set(usual.NGINX) or (is_logger and is_called(column, usual.WRITTEN))):
            role = "end"  # nginx, too, writes a line when the request ends
        roles.append(Role(role, column, unit_in(column), by_name=True))
        taken.add(role)
        used.add(column)
    roles = [_as_written(role, columns) for role in roles]
    if not any(name in mapping for name in taken - {*_TIMES, *MOMENTS, *_TEXTS}):
        others = [name for name in names if name not in used and column_name(name) not in taken]
        others = [name for name in others if not says_no_input(bare(name))]
        work = [name for name in others if usual.WORK.search(bare(name))]
        roles += [Role(column_name(name), name) for name in work]
        possible = [name for name in others if name not in work and _is_number(name, columns)]
        roles += [Role(_POSSIBLE + name, name) for name in possible[:_MOST_POSSIBLE]]
    return _checked(path, roles, columns, times_only=times_only)


def dependencies_among(names: Sequence[str]) -> dict[str, str]:
    """The mapping of columns that are durations and have the usual name of no role."""
    times = (usual.LATENCY, usual.ARRIVAL, usual.END, usual.QUEUE, usual.FIRST)
    return {name: name for name in names if unit_in(name) and not is_called(name, *times)}


def _is_number(name: str, columns: Mapping[str, Any]) -> bool:
    """True for a column of numbers, of which the first may be missing."""
    value = columns[name]
    return bool(name) and (value in (None, "") or math.isfinite(number_of(value, 1)))


def _was_submitted(role: Role) -> bool:
    """True if a request is known to have been there before its service began."""
    return role.name == "arrival" and role.by_name and is_called(role.text, usual.SUBMITTED)


def _may_be(role: str, name: str, columns: Mapping[str, Any]) -> bool:
    """False for a date as latency, one without a unit beside a begin and an end, and a logger's level as status."""
    if role != "latency":
        return role != "status" or str(columns[name]).lower() not in _LEVELS
    if _has_unit(name, columns):
        return not is_moment(name, columns[name])
    others = [each for each in columns if not is_called(each, usual.WRITTEN)]
    return not all(any(is_called(each, pattern) for each in others) for pattern in (usual.ARRIVAL, usual.END))


def _has_unit(name: str, columns: Mapping[str, Any]) -> bool:
    """True if a time needs no unit: its column has one, or the value is written with one or as a date."""
    value = columns[name]
    return unit_in(name) is not None or _is_date(value) or _is_written_with_unit(value)


def _is_written_with_unit(value: Any) -> bool:
    return isinstance(value, str) and math.isfinite(duration_ns(value))


def _is_long(name: str, value: Any) -> bool:
    """True if a number is too long for a duration, as a time since 1970 is."""
    return number_of(value, 1) * (unit_in(name) or 1) > LONGEST_NS


def is_moment(name: str, value: Any) -> bool:
    """True for a date, and for a number that is too long for a duration."""
    return _is_date(value) or _is_long(name, value)


def _is_date(value: Any) -> bool:
    return isinstance(value, str) and int(instants_ns([value])[0]) != UNKNOWN


def _as_written(role: Role, columns: Mapping[str, Any]) -> Role:
    """The role with nanoseconds as unit if it has none and its values are written with units; else unmodified.

    A first chunk with a date, or a time since 1970, is a moment.
    """
    if role.name == "first" and isinstance(role.source, str):
        value = columns[role.source]
        if is_moment(role.source, value) or re.search("(_at|stamp)$", bare(role.source), re.I):
            return replace(role, name="first_at")
    if role.unit_ns is not None or role.name not in (*_TIMES, *_INSTANTS):
        return role
    values = [value for name in role.columns if (value := columns.get(name)) not in (None, "")]
    return replace(role, unit_ns=1) if values and all(map(_is_written_with_unit, values)) else role


def _checked(path: Path, roles: list[Role], columns: Mapping[str, Any], *, times_only: bool) -> list[Role]:
    names = tuple(columns)
    by_name = {role.name: role for role in roles}
    enough = times_only and not by_name.keys().isdisjoint(MOMENTS)
    figures = [name for name in names if usual.FIGURE.search(name)]
    summary = f"these are figures of many requests: {PER_REQUEST}"
    if "latency" not in by_name and not by_name.keys() >= set(MOMENTS) and not enough:
        called = (name for name in names if is_called(name, usual.LATENCY) and unit_in(name))
        if column := next((name for name in called if _is_long(name, columns[name])), ""):
            most = f"a latency of at most {LONGEST_NS / 1e9 / 86_400:,.0f} days"
            raise input_error(path, 1, f"{column} {columns[column]}", most, "see if its unit is the one in its name")
        there = ", ".join(sorted(names, key=lambda name: usual.TIME.search(name) is None)[:12])
        lacking = "time: --map arrival" if times_only else "latency: --map latency_ms"
        todo = summary if figures else f"name the {lacking}=COLUMN"
        for marks, writer, command in _WRAPPED:
            if marks <= set(names):
                todo = f"{writer} has wrapped the lines of a log: unwrap them with {command}"
        expected = EXPECTED.replace("a latency and ", "") if times_only else EXPECTED
        raise input_error(path, 1, f"columns {there}" if names else "no columns", expected, todo)
    if name := next((name for name in _TIMES if name in by_name and by_name[name].unit_ns is None), ""):
        column = by_name[name].text
        percentiles = [figure for figure in figures if re.search(r"\bp\(?\d\d", figure, re.I)]
        todo = summary if len(percentiles) > 1 else f"give its unit: --map {name}_ms={column} (ns, us, ms or s)"
        raise input_error(path, 1, f"{name} {column!r} without a unit", "a unit in its name", todo)
    return roles


def _mapped(path: Path, name: str, text: str, names: Sequence[str]) -> Role:
    base, _, last = name.rpartition("_")
    unit = UNITS_NS.get(last) if base else None
    role = base if unit is not None else name
    source: Expression | str = text if text in names else Expression.parse(text, f"--map {name}")
    if not isinstance(source, str) and not source.names:
        raise InputError(f"--map {name}: found {text!r}; expected a column of {path}, or an expression over columns")
    missing = [each for each in Role(role, source).columns if each not in names]
    if missing:
        there = ", ".join(names[:12])
        raise InputError(f"--map {name}: found no column {missing[0]!r} in {path}; expected one of: {there}")
    if role in _TEXTS and not isinstance(source, str):
        raise InputError(f"--map {name}: found the expression {text!r}; expected a column of {path}")
    if unit is None and isinstance(source, str) and role in (*_TIMES, *MOMENTS):
        unit = unit_in(source)
    if unit is not None and role not in (*_TIMES, *MOMENTS):
        return Role(PART + role, source, unit)
    return Role(role, source, unit)


def cells_of(column: Any) -> Any:
    """The cells of a column, or of a slice of one: a list, or an Arrow array of texts."""
    return column.to_pylist() if hasattr(column, "to_pylist") else column


def values_of(role: Role, block: Mapping[str, Any]) -> Any:
    """``(n,)`` texts, whole nanoseconds (:data:`UNKNOWN` if invalid), or numbers (NaN if they are not finite).

    :param block: the role's columns, by name. Of a possible input, what is no number is infinite.
    """
    if role.name in _TEXTS:
        texts = ["" if word is None else str(word) for word in cells_of(block[role.text])]
        few: Collection[str] = () if role.name in ("id", "user") else set(texts)
        alike = {word: route_of(word) if role.name == "route" else word for word in few}
        if role.name == "status" and is_called(role.text, usual.ERROR):
            alike = {word: _status_of_error(word) for word in few}
        return np.array([alike.get(word, word) for word in texts], dtype=object)
    is_instant, is_column = role.name in _INSTANTS, isinstance(role.source, str)
    if is_instant and is_column and not len(_few_numbers(role, block)):
        return instants_ns(block[role.text])
    numbers = _numbers(role, block)
    if role.kind == "possible":
        numbers = numbers.astype(np.float64)
        if (wrong := ~np.isfinite(numbers)).any():
            empty = np.array([cell in (None, "") for cell in cells_of(block[role.text])])
            numbers[wrong] = np.where(empty, np.nan, np.inf)[wrong]
        return numbers
    if role.unit_ns is None and not is_instant:
        return np.where(np.isfinite(numbers), numbers, np.nan)
    given = role.unit_ns or UNITS_NS["s"]
    unit = epoch_units(numbers) if role.sized else given
    most = LATEST_NS if is_instant else LONGEST_NS
    with np.errstate(invalid="ignore"):
        bad = ~np.isfinite(numbers) | (numbers < 0) | (numbers > most // unit)
    amount = np.where(bad, 0, numbers)
    if amount.dtype == np.int64:
        return np.where(bad, UNKNOWN, amount * unit)
    scaled = np.where(bad, UNKNOWN, np.rint(amount * unit).astype(np.int64))
    if not is_instant or not is_column:
        return scaled
    exact = decimals_ns(block[role.text], given)
    return np.where((exact >= 0) & ~bad & (unit == given), exact, scaled)


def _status_of_error(word: str) -> str:
    """The status that a value of a column of errors stands for: a code of HTTP, else ``error``; amounts are none."""
    if word.lower() in NOTHING or number_of(word, 1) % 1 > 0:
        return ""
    return word if re.fullmatch("[45][0-9]{2}", word) and http_status(int(word)) != Status.OK else "error"


def with_unit(role: Role, block: Mapping[str, Any]) -> Role:
    """The role with the unit of times that are numbers: the same in all blocks, and not that of a wrong one."""
    if role.name not in _INSTANTS or role.unit_ns is not None or not len(few := _few_numbers(role, block)):
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
