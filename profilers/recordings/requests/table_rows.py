"""Builds a table of requests row by row, for formats with at most some hundred thousand requests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from latfix.formatting import finite, shown
from latfix.profilers.recordings.requests.request_table import UNKNOWN, Gaps, RequestTable, routes_of
from latfix.profilers.recordings.requests.text_source import LATEST_NS, LONGEST_NS
from latfix.stages import Status


@dataclass(slots=True)
class TableRows:
    """Growing columns of a :class:`RequestTable`."""

    arrival_ns: list[int] = field(default_factory=list)
    latency_ns: list[int] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    first_ns: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    routes: list[str] = field(default_factory=list)
    parts: dict[str, list[int]] = field(default_factory=dict)
    stages: dict[str, list[int]] = field(default_factory=dict)
    features: dict[str, list[float]] = field(default_factory=dict)
    gap_row: list[int] = field(default_factory=list)
    gap_start: list[int] = field(default_factory=list)
    gap_length: list[int] = field(default_factory=list)

    def add(
        self,
        *,
        arrival_ns: int,
        latency_ns: int | None,
        status: int = Status.OK,
        first_ns: int | None = None,
        name: str = "",
        route: str = "",
        parts: Mapping[str, int | None] | None = None,
        stages: Mapping[str, int | None] | None = None,
        features: Mapping[str, object] | None = None,
        gaps_ns: Sequence[int] = (),
    ) -> None:
        """Append a request; ``None`` if not recorded.

        :raises ValueError: its arrival is no valid time.
        """
        if not isinstance(arrival_ns, int) or abs(arrival_ns) > LATEST_NS:
            raise ValueError(f"an arrival at {shown(arrival_ns, 40)}")
        if latency_ns is not None and abs(latency_ns) > LONGEST_NS:
            latency_ns = None
        row = len(self.arrival_ns)
        self.arrival_ns.append(arrival_ns)
        self.latency_ns.append(UNKNOWN if latency_ns is None else latency_ns)
        self.status.append(int(status))
        self.first_ns.append(UNKNOWN if first_ns is None else first_ns)
        self.ids.append(name)
        self.routes.append(route)
        for times, given in ((self.parts, parts), (self.stages, stages)):
            for key, part in (given or {}).items():
                times.setdefault(key, [UNKNOWN] * row).append(UNKNOWN if part is None else part)
        for key, value in (features or {}).items():
            self.features.setdefault(key, [math.nan] * row).append(number_or_nan(value))
        for column in (*self.parts.values(), *self.stages.values()):
            column.extend([UNKNOWN] * (row + 1 - len(column)))
        for values in self.features.values():
            values.extend([math.nan] * (row + 1 - len(values)))
        if gaps_ns and first_ns is not None:
            moment = arrival_ns + first_ns
            for length in gaps_ns:
                self.gap_row.append(row)
                self.gap_start.append(moment)
                self.gap_length.append(length)
                moment += length

    def table(self, **other: Any) -> RequestTable:
        """The columns, in order of arrival.

        :param other: further fields of :class:`RequestTable`.
        """
        first = np.array(self.first_ns, np.int64)
        gaps = None
        if self.gap_row:
            columns = (self.gap_row, self.gap_start, self.gap_length)
            row, start, length = (np.array(column, np.int64) for column in columns)
            gaps = Gaps(row=row, start_ns=start, length_ns=length)
        parts, stages = (
            {name: np.array(column, np.int64) for name, column in times.items() if max(column) >= 0}
            for times in (self.parts, self.stages)
        )
        return RequestTable(
            arrival_ns=np.array(self.arrival_ns, np.int64),
            latency_ns=np.array(self.latency_ns, np.int64),
            status=np.array(self.status, np.int8),
            first_ns=first if (first >= 0).any() else None,
            parts=parts,
            stages=stages,
            features={name: np.array(column, np.float64) for name, column in self.features.items()},
            **routes_of(self.routes),
            ids=tuple(self.ids) if any(self.ids) else (),
            gaps=gaps,
            **other,
        ).sorted()


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
