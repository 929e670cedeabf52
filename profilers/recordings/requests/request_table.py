"""Requests of a recording as columns: the common table of all formats."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.arrays import Bools, Floats, Ints
from latfix.errors import InputError
from latfix.formatting import finite, shown
from latfix.profilers.recordings.requests.text_source import LATEST_NS, LONGEST_NS, column_name
from latfix.stages import Status
from latfix.traffic.parsed_fields import RECORDED, REQUEST_FIELDS
from latfix.traffic.schedule import Traffic

#: A status in addition to :class:`latfix.stages.Status`: cancelled by the client, without a latency.
CANCELLED = 9
#: In columns of nanoseconds: not recorded.
UNKNOWN = -1
#: The part of a latency that was spent with servers before the one that answered.
RETRY = "retry"
_NONE: Mapping[str, Any] = {}
_ANSWERED, _NO_ANSWER = (re.compile(rf"\s*{code}(\.0)?\s*") for code in ("2[0-9]{2}", "0+"))
#: A code of HTTP, and the reason that may follow it.
_CODE = re.compile(r"([1-5][0-9]{2})(\.0)?(\s.*)?")
_OK = ("ok", "success", "succeeded", "true", "completed", "done", "0", "")
_ENDS = {"timeout": Status.TIMEOUT, "timed_out": Status.TIMEOUT, "deadline_exceeded": Status.TIMEOUT,
         "shed": Status.SHED, "rejected": Status.SHED, "cancelled": CANCELLED, "canceled": CANCELLED,
         "aborted": CANCELLED}  # fmt: skip


def http_status(code: int) -> int:
    """The status of a recorded request that HTTP's code ``code`` stands for.

    A caller's mistake (404) was answered. A replay counts it as lost, because its requests are meant to be served.
    """
    if code in (408, 504):
        return Status.TIMEOUT
    if code in (429, 503):
        return Status.SHED
    if code in (0, 460, 499):  # left before an answer: in Envoy's logs, AWS's and nginx's
        return CANCELLED
    return Status.ERROR if code >= 500 else Status.OK


def statuses_of(words: Sequence[str]) -> npt.NDArray[np.int8]:
    """The statuses that words or HTTP codes stand for. Beside codes of HTTP, 0 is no answer."""
    ends = {word: _status(word.strip().lower()) for word in set(words)}
    if any(map(_ANSWERED.fullmatch, ends)):
        ends |= {word: Status.ERROR for word in ends if _NO_ANSWER.fullmatch(word)}
    return np.array([ends[word] for word in words], np.int8)


def _status(word: str) -> int:
    if code := _CODE.fullmatch(word):
        return http_status(int(code[1]))
    return Status.OK if word in _OK else _ENDS.get(word, Status.ERROR)


def routes_of(words: Sequence[str], name: str = "route") -> dict[str, Any]:
    """``route`` and ``routes`` of a :class:`RequestTable`, or ``server`` and ``servers``; empty if all agree."""
    known = tuple(sorted(set(words)))  # not np.unique, which pads all words to the longest
    place = {word: code for code, word in enumerate(known)}
    return {name: np.array([place[word] for word in words], np.int32), f"{name}s": known} if len(known) > 1 else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """Gaps between two chunks of one stream, in order of ``row``.

    :param row: ``(g,)`` the request; ``start_ns`` on the clock of the arrivals; ``length_ns`` to the next chunk.
    """

    row: Ints
    start_ns: Ints
    length_ns: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSteps:
    """Steps of a serving engine from its own log, in order of time.

    :param end_ns: ``(s,)`` on the clock of the arrivals; ``length_ns`` the duration.
    :param prefill_tokens: ``(s,)`` prompt tokens computed in the step; ``streams`` that got a token.
    """

    end_ns: Ints
    length_ns: Ints
    prefill_tokens: Ints
    streams: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTable:
    """Requests in order of arrival. Times in nanoseconds; :data:`UNKNOWN` if not recorded.

    :param arrival_ns: ``(n,)`` since the first arrival.
    :param latency_ns: ``(n,)`` of requests that ended; of others the time they had waited, if known.
    :param status: ``(n,)`` of :class:`Status`, or :data:`CANCELLED`.
    :param parts: measured parts of the latency, each ``(n,)``. ``dispatch``: delay of the load generator. ``queue``:
        wait at the server. The id of a catalogued cause stands for that cause, any other name for a dependency.
    :param idle_ns: ``(n,)`` time without computation for the request: in a queue, or waiting for something outside.
    :param idle_alone: ``(n,)`` True if that wait was outside; otherwise it may be in the queue.
    :param stages: measured stages within service, each ``(n,)``; the remainder is shown as ``other``.
    :param answer_stage: the one of them in which a client waited for the service: what is not explained of it is the
        service's. Empty without one.
    :param first_ns: ``(n,)`` from the arrival to the first chunk of a stream.
    :param features: ``(n,)`` each; measures of a request's amount of work.
    :param possible: ``(n,)`` each, by column; measures of something, maybe work: used if they predict the service.
    :param route: ``(n,)`` index into ``routes``; ``None`` without routes.
    :param server: ``(n,)`` index into ``servers``, which answered; ``None`` if it is not recorded, or one did.
    :param attempt: ``(n,)`` index into ``attempts``, the servers that it was sent to one after the other, in words;
        ``None`` if each was sent to one.
    :param user: ``(n,)`` who sent each request, as a number from 0; -1 if unknown; ``None`` without users.
    :param resolution_ns: of the arrivals.
    :param timed: False if only the order of arrivals is known.
    :param start_unix_ns: of the first arrival; ``None`` without dates.
    :param sampled: True if a row of the recording stands for several requests; all of them are in the table.
    :param has_status: False if the format does not record how requests ended.
    :param facts: counts and labels by name, for ``source.read``.
    :param notes: for the reader of the diagnosis, one sentence each.
    :param unread: a note on unread columns, shown if much is unexplained.
    """

    arrival_ns: Ints
    latency_ns: Ints
    status: npt.NDArray[np.int8]
    parts: Mapping[str, Ints] = field(default_factory=dict)
    stages: Mapping[str, Ints] = field(default_factory=dict)
    answer_stage: str = ""
    first_ns: Ints | None = None
    idle_ns: Ints | None = None
    idle_alone: Bools | None = None
    features: Mapping[str, npt.NDArray[np.float32] | Floats] = field(default_factory=dict)
    possible: Mapping[str, Floats] = field(default_factory=dict)
    route: npt.NDArray[np.int32] | None = None
    routes: tuple[str, ...] = ()
    server: npt.NDArray[np.int32] | None = None
    servers: tuple[str, ...] = ()
    attempt: npt.NDArray[np.int32] | None = None
    attempts: tuple[str, ...] = ()
    gaps: Gaps | None = None
    steps: EngineSteps | None = None
    ids: tuple[str, ...] = ()
    user: Ints | None = None
    resolution_ns: int = 1
    timed: bool = True
    start_unix_ns: int | None = None
    sampled: bool = False
    has_status: bool = True
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unread: str = ""

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @property
    def ok(self) -> Bools:
        """``(n,)`` True if the request ended ok and has a latency."""
        return np.asarray((self.status == Status.OK) & (self.latency_ns >= 0))

    def traffic(self, source: str) -> Traffic:
        """All requests as traffic to replay, with features, route, and the recorded latency of those that ended ok.

        Possible inputs are features too, unless their names are taken.

        :param source: the file's name, for the metadata.
        :raises InputError: a feature has the name of a standard request field.
        """
        taken = next((name for name in self.features if name in REQUEST_FIELDS), None)
        if taken is not None:
            raise InputError(
                f"--feature: found the name {taken!r}, which is a standard request field; expected another name"
            )
        features: dict[str, npt.NDArray[Any]] = {name: _whole(column) for name, column in self.features.items()}
        for name, column in self.possible.items():
            if (last := column_name(name.rpartition(".")[2])) not in {*REQUEST_FIELDS, *features, RECORDED, "route"}:
                features[last] = _whole(np.where(np.isfinite(column), column, np.nan))
        if self.route is not None:
            features["route"] = np.array(self.routes, dtype=object)[self.route]
        known = self.ok & (self.latency_ns >= 0)
        if known.any():
            features[RECORDED] = np.where(known, self.latency_ns / 1e6, np.nan)
        unique = bool(self.ids) and all(self.ids) and len(set(self.ids)) == len(self.ids)
        return Traffic.plain(
            self.arrival_ns,
            ids=list(self.ids) if unique else None,
            features=features,
            metadata={
                "source": source,
                "format": f"imported: {self.facts.get('format', 'requests')}",
                "rows": len(self),
                "transforms": [],
            },
        )

    def take(self, rows: Ints) -> RequestTable:
        """The table of these rows, in their order; gaps and steps refer to the rows before."""
        columns: dict[str, Any] = {}
        for each in fields(self):
            column = getattr(self, each.name)
            if isinstance(column, np.ndarray):
                columns[each.name] = column[rows]
            elif each.name in ("parts", "stages", "features", "possible"):
                columns[each.name] = {name: part[rows] for name, part in column.items()}
        return replace(self, **columns, ids=tuple(self.ids[k] for k in rows.tolist()) if self.ids else ())

    def sorted(self) -> RequestTable:
        """The table in order of arrival, with times since the first arrival."""
        order = np.argsort(self.arrival_ns, kind="stable")
        first = int(self.arrival_ns[order[0]]) if len(order) else 0
        if len(order) and (order[1:] > order[:-1]).all() and first == 0:
            return self
        gaps = self.gaps
        if gaps is not None:
            place = np.empty(len(order), np.int64)
            place[order] = np.arange(len(order))
            row = place[gaps.row]
            by_row = np.argsort(row, kind="stable")
            gaps = Gaps(row=row[by_row], start_ns=gaps.start_ns[by_row] - first, length_ns=gaps.length_ns[by_row])
        taken = self.take(order)
        return replace(
            taken,
            arrival_ns=taken.arrival_ns - first,
            gaps=gaps,
            steps=None if self.steps is None else replace(self.steps, end_ns=self.steps.end_ns - first),
            start_unix_ns=first if self.start_unix_ns is None and first > 10**17 else self.start_unix_ns,
        )


def _whole(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """As integers if all values are whole: a size in bytes is not written as 1200.0."""
    numbers = np.asarray(column, dtype=np.float64)
    whole = bool(
        np.isfinite(numbers).all() and (np.abs(numbers) < 2**53).all() and (numbers == np.rint(numbers)).all()
    )
    return numbers.astype(np.int64) if whole else numbers


class TableRows:
    """Builds a table row by row, for formats with at most some hundred thousand requests."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._gaps: list[tuple[int, int, int]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self,
        *,
        arrival_ns: int,
        latency_ns: int | None,
        status: int = Status.OK,
        first_ns: int | None = None,
        name: str = "",
        route: str = "",
        parts: Mapping[str, int | None] = _NONE,
        stages: Mapping[str, int | None] = _NONE,
        features: Mapping[str, object] = _NONE,
        gaps_ns: Sequence[int] = (),
    ) -> None:
        """Append a request; ``None`` if not recorded.

        :raises ValueError: its arrival is no valid time.
        """
        if not isinstance(arrival_ns, int) or abs(arrival_ns) > LATEST_NS:
            raise ValueError(f"an arrival at {shown(arrival_ns, 40)}")
        if latency_ns is not None and abs(latency_ns) > LONGEST_NS:
            latency_ns = None
        if gaps_ns and first_ns is not None:
            starts = accumulate(gaps_ns, initial=arrival_ns + first_ns)
            self._gaps += zip(repeat(len(self)), starts, gaps_ns, strict=False)
        self._rows.append((arrival_ns, latency_ns, int(status), first_ns, name, route, parts, stages, features))

    def table(self, **other: Any) -> RequestTable:
        """The columns, in order of arrival.

        :param other: further fields of :class:`RequestTable`.
        """
        columns = list(zip(*self._rows, strict=True)) or [()] * 9
        arrival, latency, status, first, names, routes, parts, stages, features = columns
        first_ns = _times(first)
        row, start, length = np.array(self._gaps, np.int64).reshape(-1, 3).T
        return RequestTable(
            arrival_ns=np.array(arrival, np.int64),
            latency_ns=_times(latency),
            status=np.array(status, np.int8),
            first_ns=first_ns if (first_ns >= 0).any() else None,
            parts=_known_times(parts),
            stages=_known_times(stages),
            features={
                name: np.array([number_or_nan(each.get(name)) for each in features]) for name in _names_in(features)
            },
            **routes_of(routes),
            ids=names if any(names) else (),
            gaps=Gaps(row=row, start_ns=start, length_ns=length) if self._gaps else None,
            **other,
        ).sorted()


def _names_in(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for each in rows for name in each))


def _times(column: Sequence[int | None]) -> Ints:
    return np.array([UNKNOWN if time is None else time for time in column], np.int64)


def _known_times(rows: Sequence[Mapping[str, int | None]]) -> dict[str, Ints]:
    """By name, the times in rows; without those that no row has."""
    columns = {name: _times([each.get(name) for each in rows]) for name in _names_in(rows)}
    return {name: column for name, column in columns.items() if column.max() >= 0}


def number_or_nan(value: object) -> float:
    """A value as a float; NaN if it is no finite number."""
    number = finite(value)
    return math.nan if number is None else number


def ns_of(value: object, unit_ns: int, most: int = LONGEST_NS) -> int | None:
    """Whole nanoseconds of a number of units; ``None`` if it is no number, negative, or above ``most``."""
    if isinstance(value, int) and not isinstance(value, bool):
        result = value * unit_ns
    else:
        number = number_or_nan(value) * unit_ns
        result = round(number) if math.isfinite(number) else UNKNOWN
    return result if 0 <= result <= most else None
