"""Recorded traffic in memory: columns with one entry per request, in order of arrival."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.arrays import Floats, Ints
from latfix.request import PRIORITIES, FeatureValue, Request
from latfix.traffic.parsed_fields import NORMAL, fill_ids

#: A replay skips the time before a first arrival later than this; the schedule's times stay.
LONGEST_LEAD_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """A recorded schedule of requests, sorted by arrival.

    :param arrival_ns: ``(n,)`` int64, nanoseconds from the start of the traffic, non-decreasing.
    :param ids: ``n`` unique texts.
    :param priority: ``(n,)`` int8, index into :data:`latfix.request.PRIORITIES`.
    :param sessions: ``n`` texts or ``None``.
    :param deadline_ms: ``(n,)`` float64, NaN without a deadline.
    :param features: for each feature ``(n,)`` int64, float64 or object (texts; ``None`` if absent).
    :param payloads: ``n`` JSON values.
    :param metadata: its source and transformations, JSON values only.
    """

    arrival_ns: Ints
    ids: list[str]
    priority: npt.NDArray[np.int8]
    sessions: list[str | None]
    deadline_ms: Floats
    features: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    payloads: list[Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def plain(
        cls,
        arrival_ns: Ints,
        *,
        ids: list[str] | None = None,
        priority: npt.NDArray[np.int8] | None = None,
        features: Mapping[str, npt.NDArray[Any]] | None = None,
        payloads: list[Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Traffic:
        """Requests without sessions and deadlines; by default of normal priority, without payloads, ids generated."""
        n = len(arrival_ns)
        return cls(
            arrival_ns=arrival_ns,
            ids=fill_ids([None] * n) if ids is None else ids,
            priority=np.full(n, NORMAL, dtype=np.int8) if priority is None else priority,
            sessions=[None] * n,
            deadline_ms=np.full(n, np.nan),
            features={} if features is None else features,
            payloads=[None] * n if payloads is None else payloads,
            metadata={} if metadata is None else metadata,
        )

    @classmethod
    def joined(cls, parts: Sequence[Traffic]) -> Traffic:
        """Schedules one after the other, each on its own clock, with the metadata of the first."""
        return cls(
            arrival_ns=np.concatenate([part.arrival_ns for part in parts]),
            ids=[name for part in parts for name in part.ids],
            priority=np.concatenate([part.priority for part in parts]),
            sessions=[session for part in parts for session in part.sessions],
            deadline_ms=np.concatenate([part.deadline_ms for part in parts]),
            features={name: np.concatenate([part.features[name] for part in parts]) for name in parts[0].features},
            payloads=[payload for part in parts for payload in part.payloads],
            metadata=parts[0].metadata,
        )

    def __len__(self) -> int:
        return len(self.arrival_ns)

    def rows(self, indices: Ints) -> Traffic:
        """The requests at ``indices``, in that order."""
        positions = indices.tolist()
        return Traffic(
            arrival_ns=self.arrival_ns[indices],
            ids=[self.ids[index] for index in positions],
            priority=self.priority[indices],
            sessions=[self.sessions[index] for index in positions],
            deadline_ms=self.deadline_ms[indices],
            features={name: column[indices] for name, column in self.features.items()},
            payloads=[self.payloads[index] for index in positions],
            metadata=self.metadata,
        )

    @property
    def duration_s(self) -> float:
        """Seconds from the start of the traffic to the last arrival."""
        return float(self.arrival_ns[-1]) / 1e9 if len(self) else 0.0

    @property
    def start_s(self) -> float:
        """Where a replay begins, in seconds of the schedule; it skips a lead of over :data:`LONGEST_LEAD_S`."""
        first = float(self.arrival_ns[0]) / 1e9 if len(self) else 0.0
        return first if first > LONGEST_LEAD_S else 0.0

    def feature_values(self) -> dict[str, list[Any]]:
        """The features as Python values, ``None`` if absent."""
        return {
            name: [None if value != value else value for value in column.tolist()]
            for name, column in self.features.items()
        }

    def request(self, index: int) -> Request:
        """Request ``index`` as the adapter sees it."""
        features: dict[str, FeatureValue] = {}
        for name, column in self.features.items():
            value = column[index]
            if value is None or value != value:
                continue
            features[name] = value.item() if isinstance(value, np.generic) else value
        deadline = float(self.deadline_ms[index])
        return Request(
            id=self.ids[index],
            arrival_s=float(self.arrival_ns[index]) / 1e9,
            features=features,
            priority=PRIORITIES[self.priority[index]],
            session=self.sessions[index],
            deadline_ms=None if deadline != deadline else deadline,
            payload=self.payloads[index],
        )
