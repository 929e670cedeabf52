"""Logs of one's own: CSV or JSON Lines whose columns say by name, or are told by ``--map``, what they hold.

``--map ROLE[_UNIT]=COLUMN`` or an expression over columns. Roles: ``latency``, ``arrival`` or ``end``, ``queue``,
``first`` (time to the first chunk), ``dispatch``, ``status``, ``route``, ``id``. Any other name with a unit of time
is a dependency that was waited for (``db_ms=…``), without one a feature that tells how much work it is. A unit is
the role's (``latency_ms``), else the column's (``duration_us``), else that of the numbers' size for moments.
"""

from __future__ import annotations

import csv as plain_csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from latfix.arrays import Floats, Ints
from latfix.errors import InputError, input_error
from latfix.formatting import shown
from latfix.profilers.recordings.reader import CUT_OFF, damaged
from latfix.profilers.recordings.requests.request_table import CANCELLED, UNKNOWN, RequestTable
from latfix.profilers.recordings.requests.text_source import (
    UNITS_NS,
    BadLines,
    begins_with_object,
    epoch_unit,
    head_of,
    instant_ns,
    lines_of,
    open_text,
    unit_of,
)
from latfix.stages import Status
from latfix.traffic.derived_features import parse_map_option
from latfix.traffic.feature_expressions import Expression

NAME = "CSV or JSON Lines with a latency (--map latency=COLUMN)"
_EXPECTED = "a table of requests with a latency and a time"
_TIMES = ("latency", "queue", "first", "dispatch")
_MOMENTS = ("arrival", "end")
_OTHERS = ("status", "route", "id")
#: Names that columns go by; without a unit in them only where one is customary.
_LATENCY = re.compile(
    r"(e2e_?|total_?|request_?|response_?)?(latency|duration|elapsed|response_?time|request_?time)", re.I
)
_ARRIVAL = re.compile(
    r"(@?timestamp|ts|time|date(time)?|(arrival|start|begin|request_start|received)(_?(at|time|ts))?)", re.I
)
_END = re.compile(r"(end|finish(ed)?|completed?)(_?(at|time|ts))?", re.I)
_QUEUE = re.compile(r"(queue|queued|queueing|wait)(_?(time|delay|duration))?", re.I)
_FIRST = re.compile(r"ttft|time_to_first_(token|byte|chunk)", re.I)
_STATUS = re.compile(r"status(_?code)?|http_?status|code|outcome|result", re.I)
_ROUTE = re.compile(r"route|path|endpoint|uri|url|operation|model|handler", re.I)
_ID = re.compile(r"(request_?)?id|x_request_id|trace_?id", re.I)
_WORK = re.compile(r"(^|_)(size|bytes|tokens|length|len|elements|items|count|pixels|batch)(_|$)", re.I)
_CUSTOMARY: Mapping[str, int] = {"request_time": UNITS_NS["s"], "upstream_response_time": UNITS_NS["s"]}
_OK = ("ok", "success", "succeeded", "true", "completed", "done", "")
_ENDS = {"timeout": Status.TIMEOUT, "timed_out": Status.TIMEOUT, "deadline_exceeded": Status.TIMEOUT,
         "shed": Status.SHED, "rejected": Status.SHED, "cancelled": CANCELLED, "canceled": CANCELLED,
         "aborted": CANCELLED}  # fmt: skip
_AT_ONCE = 100_000
_IN_NAMES = re.compile(r"^[A-Za-z_@][\w@.\- /()]*$")


@dataclass(frozen=True, slots=True)
class Role:
    """What one column is, and where it comes from.

    :param unit_ns: of times; ``None`` to be told by the size of the numbers.
    """

    name: str
    source: Expression | str
    unit_ns: int | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return (self.source,) if isinstance(self.source, str) else self.source.names


def knows(head: bytes) -> bool:
    """Whether a file begins as JSON Lines or as CSV with names."""
    record = begins_with_object(head)
    if record is not None:
        return True
    lines = head.decode("utf-8", "replace").lstrip("\ufeff").splitlines()
    if len(lines) < 2 or "\x00" in lines[0]:
        return False
    split = _delimiter(lines[0])
    names = next(plain_csv.reader([lines[0]], delimiter=split))
    values = next(plain_csv.reader([lines[1]], delimiter=split))
    return len(names) > 1 and len(names) == len(values) and all(_IN_NAMES.match(name.strip()) for name in names)


def read(path: Path, mapping: Sequence[str]) -> RequestTable:
    """The requests of a log.

    :raises InputError: no column is a latency, the mapping names one that is not there, or most lines are unusable.
    """
    by_line, names = _header(path)
    roles = roles_of(path, names, parse_map_option(mapping))
    wanted = tuple(dict.fromkeys(column for role in roles for column in role.columns))
    bad = BadLines(path, "a request with a latency and a time")
    blocks = _json_blocks(path, wanted, bad) if by_line else _csv_blocks(path, names, wanted, bad)
    columns: dict[str, list[Any]] = {role.name: [] for role in roles}
    total = 0
    for block, first in blocks:
        n = len(next(iter(block.values()), []))
        values = {role.name: _values(role, block, n) for role in roles}
        good = _usable(values)
        for row in np.flatnonzero(~good)[:1].tolist():
            found = ", ".join(f"{name} {shown(block[name][row], 20)}" for name in wanted[:2])
            bad.add(first + row, found)
        bad.count += max(int(np.count_nonzero(~good)) - 1, 0)
        for name, column in values.items():
            columns[name].append(column[good])
        total += int(np.count_nonzero(good))
    if not total and not bad.count:
        raise input_error(path, 1, "no requests", _EXPECTED)
    bad.check(total)
    table = _table(roles, {name: np.concatenate(parts) for name, parts in columns.items()}, bad)
    return replace(table, unread=_unused(names, roles))


def _unused(names: Sequence[str], roles: Sequence[Role]) -> str:
    """Columns that are times by their names, and perhaps what a request waited for; empty where there are none."""
    used = {column for role in roles for column in role.columns}
    left = [name for name in names if name not in used and _unit(name) is not None]
    if not left:
        return ""
    part = _identifier(_bare(left[0]))
    return (
        f"Not read: {', '.join(left[:6])}. What was waited for within the latency is told by, for instance, "
        f"--map {part}_ms={left[0]}."
    )


def _header(path: Path) -> tuple[bool, tuple[str, ...]]:
    head = head_of(path, _EXPECTED)
    record = begins_with_object(head)
    if record is not None:
        return True, tuple(_flat(record))
    line = head.decode("utf-8", "replace").lstrip("\ufeff").partition("\n")[0].rstrip("\r")
    return False, tuple(name.strip() for name in next(plain_csv.reader([line], delimiter=_delimiter(line))))


def _delimiter(line: str) -> str:
    return max(",;\t", key=line.count)


def _flat(record: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Values by dotted name."""
    found: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{before}{name}.")
        else:
            found[before + name] = value
    return found


def roles_of(path: Path, names: Sequence[str], mapping: Mapping[str, str]) -> list[Role]:
    """What the columns are, by the mapping first and by their names otherwise.

    :raises InputError: a latency or a column is missing, or a latency's unit is not known.
    """
    roles = [_mapped(path, name, source, names) for name, source in mapping.items()]
    taken = {role.name for role in roles}
    used = {column for role in roles for column in role.columns}
    for role, pattern in (("latency", _LATENCY), ("arrival", _ARRIVAL), ("end", _END), ("queue", _QUEUE),
                          ("first", _FIRST), ("status", _STATUS), ("route", _ROUTE), ("id", _ID)):  # fmt: skip
        if role in taken or (role in _MOMENTS and taken & set(_MOMENTS)):
            continue
        column = next((each for each in names if each not in used and pattern.fullmatch(_bare(each))), None)
        if column is not None and (role not in ("queue", "first") or _unit(column) is not None):
            roles.append(Role(role, column, _unit(column)))
            taken.add(role)
            used.add(column)
    if not any(name in mapping for name in taken - {*_TIMES, *_MOMENTS, *_OTHERS}):
        roles += [Role(_identifier(name), name) for name in names if name not in used and _WORK.search(_bare(name))]
    return _checked(path, roles, names)


def _checked(path: Path, roles: list[Role], names: Sequence[str]) -> list[Role]:
    by_name = {role.name: role for role in roles}
    there = ", ".join(names[:12])
    if "latency" not in by_name and not {"arrival", "end"} <= set(by_name):
        todo = "say which is the latency: --map latency_ms=COLUMN"
        raise input_error(path, 1, f"columns {there}" if names else "no columns", _EXPECTED, todo)
    latency = by_name.get("latency")
    if latency is not None and latency.unit_ns is None:
        column = latency.columns[0] if latency.columns else "COLUMN"
        todo = f"say its unit: --map latency_ms={column} (ns, us, ms or s)"
        raise input_error(path, 1, f"latency {column!r} without a unit", "a unit in its name", todo)
    return roles


def _mapped(path: Path, name: str, text: str, names: Sequence[str]) -> Role:
    base, _, last = name.rpartition("_")
    unit = UNITS_NS.get(last) if base else None
    role = base if unit is not None else name
    source: Expression | str = text if text in names else Expression.parse(text, f"--map {name}")
    missing = [each for each in Role(role, source).columns if each not in names]
    if missing:
        there = ", ".join(names[:12])
        raise InputError(f"--map {name}: found no column {missing[0]!r} in {path}; expected one of: {there}")
    if unit is None and isinstance(source, str) and (role in _TIMES or role in _MOMENTS):
        unit = _unit(source)
    if unit is not None and role not in (*_TIMES, *_MOMENTS):
        return Role(f"part.{role}", source, unit)
    return Role(role, source, unit)


def _bare(name: str) -> str:
    """A column's name without the objects that it is in, and without its unit."""
    last = name.rpartition(".")[2].strip()
    words = re.sub(r"[^0-9A-Za-z]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", last)).strip("_")
    base, _, unit = words.rpartition("_")
    return base if base and unit.lower() in UNITS_NS else words


def _unit(name: str) -> int | None:
    last = name.rpartition(".")[2].strip(") ")
    return unit_of(re.sub(r"[^0-9A-Za-z]+", "_", last)) or _CUSTOMARY.get(last)


def _identifier(name: str) -> str:
    return re.sub(r"\W+", "_", name)


def _json_blocks(path: Path, wanted: Sequence[str], bad: BadLines) -> Iterator[tuple[dict[str, list[Any]], int]]:
    block: dict[str, list[Any]] = {name: [] for name in wanted}
    nested = any("." in name for name in wanted)
    first = 0
    for number, line in lines_of(path):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            bad.add(number, shown(line, 40))
            continue
        record = _flat(record) if nested else record
        first = first or number
        for name in wanted:
            block[name].append(record.get(name))
        if len(block[wanted[0]]) >= _AT_ONCE:
            yield block, first
            block, first = {name: [] for name in wanted}, 0
    if block[wanted[0]]:
        yield block, first


def _csv_blocks(
    path: Path, names: Sequence[str], wanted: Sequence[str], bad: BadLines
) -> Iterator[tuple[dict[str, Any], int]]:
    import pyarrow as pa
    from pyarrow import csv

    def skip(row: Any) -> str:
        bad.add((row.number or 0) + 1, shown(row.text or "", 40))
        return "skip"

    at = 2
    try:
        with open_text(path) as file:
            delimiter = _delimiter(file.readline().decode("utf-8", "replace"))
            reader = csv.open_csv(
                file,
                read_options=csv.ReadOptions(column_names=list(names), block_size=1 << 23, use_threads=False),
                parse_options=csv.ParseOptions(delimiter=delimiter, invalid_row_handler=skip),
                convert_options=csv.ConvertOptions(
                    include_columns=list(wanted),
                    column_types=dict.fromkeys(wanted, pa.string()),
                    strings_can_be_null=False,
                    check_utf8=False,
                ),
            )
            for batch in reader:
                yield {name: batch.column(name) for name in wanted}, at
                at += batch.num_rows
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):
            return
        damaged(path, _EXPECTED, error)
    except CUT_OFF as error:
        damaged(path, _EXPECTED, f"compressed data that ends too soon ({error})")


def _values(role: Role, block: Mapping[str, Any], n: int) -> Any:
    if role.name in ("status", "route", "id"):
        column = block[role.columns[0]]
        words = column.to_pylist() if hasattr(column, "to_pylist") else column
        return np.array(["" if word is None else str(word) for word in words], dtype=object)
    if not isinstance(role.source, str):
        inputs = {name: _numbers(block[name]) for name in role.columns}
        return _scaled(role, np.array([_evaluated(role.source, inputs, row) for row in range(n)]))
    if role.name in _MOMENTS:
        return _moments(role, block[role.source])
    return _scaled(role, _numbers(block[role.source]))


def _evaluated(expression: Expression, inputs: Mapping[str, Floats], row: int) -> float:
    try:
        return float(expression.evaluate({name: float(column[row]) for name, column in inputs.items()}))
    except ValueError:
        return float("nan")


def _scaled(role: Role, numbers: Floats) -> Any:
    """Times in whole nanoseconds, :data:`UNKNOWN` where they are none; features as they are."""
    if role.unit_ns is None and role.name not in _MOMENTS:
        return numbers
    unit = role.unit_ns or epoch_unit(float(np.nanmax(numbers, initial=0.0)))
    with np.errstate(invalid="ignore"):
        bad = ~np.isfinite(numbers) | (numbers < 0) | (numbers * unit > 9e18)
    return np.where(bad, UNKNOWN, np.rint(np.where(bad, 0.0, numbers) * unit)).astype(np.int64)


def _numbers(column: Any) -> Floats:
    if not hasattr(column, "to_pylist"):
        return np.array([_number(value) for value in column])
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return np.asarray(
            pc.cast(pc.if_else(pc.equal(column, ""), None, column), pa.float64()).to_numpy(zero_copy_only=False)
        )
    except pa.ArrowInvalid:
        return np.array([_number(value) for value in column.to_pylist()])


def _number(value: Any) -> float:
    if isinstance(value, bool) or value is None:
        return float("nan")
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _moments(role: Role, column: Any) -> Ints:
    numbers = _numbers(column)
    if np.isfinite(numbers).mean() >= 0.5 if len(numbers) else True:
        return np.asarray(_scaled(role, numbers))
    words = column.to_pylist() if hasattr(column, "to_pylist") else column
    return np.array([_instant(word) for word in words], np.int64)


def _instant(word: Any) -> int:
    try:
        return instant_ns(str(word))
    except (ValueError, OverflowError):
        return UNKNOWN


def _usable(values: Mapping[str, Any]) -> Any:
    times = [values[name] for name in ("latency", *_MOMENTS) if name in values]
    good = np.ones(len(times[0]), bool)
    for column in times:
        good &= column >= 0
    if "latency" not in values:
        good &= values["end"] >= values["arrival"]
    return good


def _table(roles: Sequence[Role], columns: Mapping[str, Any], bad: BadLines) -> RequestTable:
    latency = columns["latency"] if "latency" in columns else columns["end"] - columns["arrival"]
    timed = bool({"arrival", "end"} & set(columns))
    if "arrival" in columns:
        arrival = columns["arrival"]
    else:
        arrival = columns["end"] - latency if timed else np.arange(len(latency), dtype=np.int64)
    parts = {name.removeprefix("part."): column for name, column in columns.items()
             if name.startswith("part.") or name in ("queue", "dispatch")}  # fmt: skip
    plain = (*_TIMES, *_MOMENTS, *_OTHERS)
    features = {
        name: column for name, column in columns.items() if name not in plain and not name.startswith("part.")
    }
    route, routes = None, ()
    if "route" in columns:
        words, codes = np.unique(columns["route"].astype(str), return_inverse=True)
        routes, route = tuple(words.tolist()), codes.astype(np.int32)
    return RequestTable(
        arrival_ns=arrival.astype(np.int64),
        latency_ns=latency.astype(np.int64),
        status=_statuses(columns.get("status"), len(latency)),
        parts={name: np.minimum(column, latency) for name, column in parts.items()},
        first_ns=columns.get("first"),
        features=features,
        route=route if len(routes) > 1 else None,
        routes=routes if len(routes) > 1 else (),
        ids=tuple(columns["id"].tolist()) if "id" in columns else (),
        resolution_ns=_resolution(arrival) if timed else 1,
        timed=timed,
        has_status="status" in columns,
        facts={
            "format": "log with columns of its own",
            "columns": ", ".join(f"{role.name} = {_words(role)}" for role in roles),
            "bad_lines": bad.count,
        },
        notes=tuple(bad.notes()),
    ).sorted()


def _words(role: Role) -> str:
    return role.source if isinstance(role.source, str) else role.source.source


def _resolution(arrival: Ints) -> int:
    """Of times: the largest power of ten that all of a sample are multiples of."""
    sample = arrival[:10_000]
    for unit in (1_000_000_000, 100_000_000, 10_000_000, 1_000_000, 1_000):
        if len(sample) and not np.any(sample % unit):
            return unit
    return 1


def _statuses(words: Any, n: int) -> Any:
    status = np.zeros(n, np.int8)
    if words is None:
        return status
    for word in np.unique(words.astype(str)).tolist():
        end = status_of(word.strip().lower())
        if end != Status.OK:
            status[words == word] = end
    return status


def status_of(word: str) -> int:
    """The status that a word or the code of an HTTP answer means."""
    if re.fullmatch(r"[1-5][0-9]{2}(\.0)?", word):
        code = int(float(word))
        if code in (408, 504):
            return Status.TIMEOUT
        if code in (429, 503):
            return Status.SHED
        return CANCELLED if code == 499 else Status.ERROR if code >= 500 else Status.OK
    if word in _OK or re.fullmatch(r"[0]", word):
        return Status.OK
    return _ENDS.get(word, Status.ERROR)
