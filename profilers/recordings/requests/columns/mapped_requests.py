"""The table of requests from blocks of columns: reads the values of each role, and says what was assumed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from latfix.arrays import Ints
from latfix.errors import input_error
from latfix.formatting import shown
from latfix.profilers.recordings.requests.columns.column_roles import (
    EXPECTED,
    LEAST_SINCE_1970,
    MOMENTS,
    PART,
    Block,
    Role,
    cells_of,
    is_moment,
    roles_of,
    values_of,
    with_unit,
)
from latfix.profilers.recordings.requests.columns.possible_inputs import possible_inputs
from latfix.profilers.recordings.requests.columns.usual_names import (
    BEGINS,
    LATENCY,
    ONLY_TIME,
    WHOLE,
    WRITTEN,
    bare,
    is_called,
    unit_in,
)
from latfix.profilers.recordings.requests.request_table import (
    CANCELLED,
    UNKNOWN,
    RequestTable,
    routes_of,
    statuses_of,
)
from latfix.profilers.recordings.requests.text_source import (
    LONGEST_NS,
    NOTHING,
    UNITS_NS,
    BadLines,
    column_name,
    map_option,
    resolution_ns,
)
from latfix.queueing.inference.queue_inference import infer_queue
from latfix.stages import Status

EXPECTED_ROW = "a request with a latency and a time (numbers, or dates in ISO 8601)"
#: Yields the wanted columns, block by block. Lines without one of the needed columns are no requests in text, lines
#: with none of the marks (a latency or an end, and a status) in JSON.
Blocks = Callable[[Sequence[str], Collection[str], Collection[str]], Iterator[Block]]
#: Requests that show whether a time is that of the end.
_COMPARED = 20_000
#: Share of lines whose requests ended before that of the line before, from which a time may be the end.
_OUT_OF_ORDER = 0.01
#: How far local time goes back, give or take the time between two requests.
_HOUR_NS, _APART_NS = 3_600 * 10**9, 300 * 10**9


def read_blocks(
    path: Path,
    first_values: Mapping[str, Any],
    mapping: Mapping[str, str],
    blocks: Blocks,
    bad: BadLines,
    *,
    times_only: bool = False,
) -> RequestTable:
    """The requests of a table that is read in blocks.

    :param first_values: by column, one of its values.
    :param times_only: a time is enough; there need be no latency.
    :raises InputError: no column is a latency, the mapping names a missing one, or most lines are unusable.
    """
    roles = roles_of(path, first_values, mapping, times_only=times_only)
    length = next(name for name in ("latency", "end", "arrival") if any(role.name == name for role in roles))
    wanted, needed, marks = (
        dict.fromkeys(column for role in roles if not names or role.name in names for column in role.columns)
        for names in ((), ("latency", *MOMENTS), (length, "status"))
    )
    columns: dict[str, list[Any]] = {role.name: [] for role in roles}
    total, timed = 0, roles
    for block, lines in blocks(tuple(wanted), needed, marks):
        timed = [with_unit(role, block) for role in timed]
        values = {role.name: values_of(role, block) for role in timed}
        begins = np.isin(values["row_kind"], BEGINS) if "row_kind" in values else np.zeros(len(lines), bool)
        if begins.any():
            bad.skip(values["row_kind"][begins][0], int(begins.sum()))
        good = _usable(values) & ~begins
        if len(left := np.flatnonzero(~good & ~begins)):
            row = int(left[0])
            first = {name: cells_of(block[name][row : row + 1])[0] for name in [*wanted][:2]}
            bad.add(
                int(lines[row]), ", ".join(f"{name} {shown(cell, 20)}" for name, cell in first.items()), len(left)
            )
        for name, column in values.items():
            columns[name].append(column[good])
        total += int(good.sum())
    if not total and not bad.count:
        raise input_error(path, 1, "no requests", EXPECTED)
    bad.check(total)
    table = _table(roles, {name: np.concatenate(parts) for name, parts in columns.items()}, bad)
    units_ns = {name: unit for name in table.possible if (unit := unit_in(name)) is not None}
    inputs, states = possible_inputs(table, table.possible, units_ns)
    table = replace(table, possible=inputs)
    used = {column for role in roles if role.kind != "possible" for column in role.columns}
    return replace(
        table,
        unread=_unread(
            [x for x in first_values if x not in used and x not in inputs and not is_moment(x, first_values[x])]
        ),
        notes=(*table.notes, *_notes(table, roles, mapping, states, used != set(first_values))),
    )


def _notes(
    table: RequestTable, roles: Sequence[Role], mapping: Mapping[str, str], states: Sequence[str], has_others: bool
) -> Iterator[str]:
    """What was assumed of the columns, and what they lack.

    :param states: columns that the latency follows, but that are no inputs.
    :param has_others: there are columns without a role.
    """
    if not table.timed and has_others:
        yield "No column is known as a time: name one with --map arrival=COLUMN or --map end=COLUMN."
    given = {name.rpartition("_")[0] if unit_in(name) else name for name in mapping}
    for name, values in table.features.items():
        without = int(np.count_nonzero(~np.isfinite(values)))
        if without and name in given:
            yield f"--map {name} is no number in {without:,} of {len(values):,} requests: counted as 0 there."
    for name, column in table.parts.items():
        missing = int(np.count_nonzero(table.ok & (column < 0)))
        if missing and name in given:
            yield (
                f"{name} is missing, negative or no number in {missing:,} of {len(column):,} requests: counted as no "
                "time there."
            )
    if states:
        yield (
            f"Not used as an input of the work: {', '.join(states[:6])}. Latency follows it, but it follows the "
            f"load, the time or the latency itself. If it measures a request's work, add {map_option(states[0])}."
        )
    latency = next((role for role in roles if role.name == "latency" and role.by_name), None)
    if latency is not None and not is_called(latency.text, LATENCY, WHOLE):
        name = latency.text
        yield f"{name} is read as the latency of a request: use --map latency={name}, or another column."


def _unread(names: Sequence[str]) -> str:
    """A note on unread columns with a unit of time, which may be waits; empty if there are none."""
    left = [name for name in names if unit_in(name) is not None]
    if not left:
        return ""
    unit = next(name for name, length_ns in UNITS_NS.items() if length_ns == unit_in(left[0]))
    return (
        f"Not read: {', '.join(left[:6])}. If a column is a wait within the latency, add it with, for instance, "
        f"--map {shlex.quote(f'{column_name(bare(left[0]))}_{unit}={left[0]}')}."
    )


def _latency(values: Mapping[str, Any]) -> Any:
    """``(n,)`` nanoseconds, :data:`UNKNOWN` if not known."""
    if "latency" in values:
        return values["latency"]
    if not _has_lengths(values):
        return np.full(len(_moments(values)), UNKNOWN)
    begin, end = values["arrival"], values["end"]
    return np.where((begin >= 0) & (end >= begin) & (end - begin <= LONGEST_NS), end - begin, UNKNOWN)


def _has_lengths(values: Mapping[str, Any]) -> bool:
    """False for a table of times alone."""
    return "latency" in values or values.keys() >= set(MOMENTS)


def _moments(values: Mapping[str, Any]) -> Any:
    """``(n,)`` arrivals or ends; ``None`` without times."""
    return next((values[name] for name in MOMENTS if name in values), None)


def _usable(values: Mapping[str, Any]) -> Any:
    """True for rows with the times they need; a request that did not end ok needs no latency and no end."""
    good = (_latency(values) >= 0) | (not _has_lengths(values))
    if "status" in values:
        good = good | (statuses_of(values["status"]) != Status.OK)
    needed = _moments(values)
    return good if needed is None else good & (needed >= 0)


def _table(roles: Sequence[Role], columns: Mapping[str, Any], bad: BadLines) -> RequestTable:
    latency, moments = _latency(columns), _moments(columns)
    moment = next((role for role in roles if role.name in MOMENTS), None)
    ends = "arrival" not in columns
    if moment is None:
        arrival = np.arange(len(latency), dtype=np.int64)
    else:
        ends = ends or _shows_ends(moment, moments, latency)
        arrival = moments - np.maximum(latency, 0) if ends else moments

    def since_arrival(name: str) -> Any:
        return np.where(columns[name] >= arrival, columns[name] - arrival, UNKNOWN)

    parts = {role.name.removeprefix(PART): columns[role.name] for role in roles if role.kind == "part"}
    if "begun_at" in columns and "queue" not in parts:
        parts["queue"] = since_arrival("begun_at")
    status = statuses_of(columns["status"]) if "status" in columns else np.zeros(len(latency), np.int8)
    if "cancelled" in columns:
        status[[word.strip().lower() not in NOTHING for word in columns["cancelled"]]] = CANCELLED
    return RequestTable(
        arrival_ns=arrival,
        latency_ns=latency,
        status=status,
        parts=parts,
        first_ns=since_arrival("first_at") if "first_at" in columns else columns.get("first"),
        features={role.name: columns[role.name] for role in roles if role.kind == "feature"},
        possible={role.text: columns[role.name] for role in roles if role.kind == "possible"},
        **routes_of(list(columns.get("route", ()))),
        **routes_of(list(columns.get("server", ())), "server"),
        ids=tuple(columns["id"].tolist()) if "id" in columns else (),
        user=_users(columns["user"].tolist()) if "user" in columns else None,
        resolution_ns=1 if moment is None else resolution_ns(moments),
        timed=moment is not None,
        has_status="status" in columns,
        facts={
            "format": "log with columns of its own",
            "columns": ", ".join(
                f"{'end' if ends and role.name == 'arrival' else role.name.removeprefix(PART)} = {role.text}"
                for role in roles
                if role.kind != "possible"
            ),
            "bad_lines": bad.count,
        },
        notes=(*bad.notes(), *(() if moment is None else _notes_on_times(moment, moments, latency, ends))),
    ).sorted()


def _users(names: Sequence[str]) -> Ints:
    """Numbers of users; -1 without a name."""
    place: dict[str, int] = {"": -1, "-": -1}
    return np.array([place.setdefault(name, len(place) - 2) for name in names], np.int64)


def _may_be_end(role: Role) -> bool:
    """True if a time was read as the arrival, but its name may be that of an end."""
    return role.by_name and role.name == "arrival" and is_called(role.text, WRITTEN, ONLY_TIME)


def _shows_ends(role: Role, moments: Ints, latency: Ints) -> bool:
    """True if times whose name does not say so are those of ends: as such, they show a queue."""
    known = np.flatnonzero(latency >= 0)[:_COMPARED]
    if not _may_be_end(role) or not len(known):
        return False
    arrival, took = moments[known] - latency[known], latency[known]
    order = np.argsort(arrival, kind="stable")
    unit = max(resolution_ns(moments), resolution_ns(took))
    return infer_queue(arrival[order], took[order], unit) is not None


def _notes_on_times(role: Role, moments: Ints, latency: Ints, ends: bool) -> Iterator[str]:
    """Notes if the unit of times is assumed (it can be guessed only if they count from 1970), if they step back as
    local time does, and if they are or may be ends: lines in their order, but not in that of ends, may be either."""
    name = role.text
    if role.unit_ns is None and len(moments) and int(moments.max()) < LEAST_SINCE_1970:
        yield (
            f"{name} has no unit and does not count from 1970: read as seconds; use --map {role.name}_ms={name} for "
            "another unit."
        )
    back = np.flatnonzero(np.diff(moments) < -_HOUR_NS + _APART_NS)
    if len(back) == 1 and int(moments[back[0]] - moments[back[0] + 1]) < _HOUR_NS + _APART_NS:
        yield (
            f"{name} goes back by an hour after {int(back[0]) + 1:,} requests, as local time does when summer ends: "
            "two hours are read as one. Use times in UTC, or with their zone."
        )
    if ends and role.name == "arrival":
        yield (
            f"{name} is read as the time at which a request ended, since it shows a queue so. If it is the arrival, "
            f"use --map arrival={name}."
        )
    elif _may_be_end(role):
        in_order, ended = np.diff(moments), np.diff(moments + latency)
        in_order = in_order if int(in_order.sum()) >= 0 else -in_order
        earlier = np.abs(ended) * (ended < 0) > resolution_ns(moments)
        if len(in_order) and in_order.min() >= 0 and _OUT_OF_ORDER < np.mean(earlier) < 1 - _OUT_OF_ORDER:
            yield (
                f"{name} is read as the time of arrival. If a line was written when its request ended, use --map "
                f"end={name}."
            )
