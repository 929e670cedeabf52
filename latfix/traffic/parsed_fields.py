"""A traffic file's columns after parsing, before they are sorted and become :class:`Traffic`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.request import PRIORITIES

FeatureColumn = list[Any]
NORMAL = PRIORITIES.index("normal")

#: Names that are fields of a request and therefore no features.
REQUEST_FIELDS = ("id", "arrival_s", "priority", "session", "deadline_ms", "payload")

#: The feature that holds the latency which imported requests had where they were recorded, in milliseconds. It is no
#: property of the work: nothing is learned from it.
RECORDED = "recorded_latency_ms"
_PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}


@dataclass(slots=True, kw_only=True)
class Fields:
    """Columns of equal length in the file's order.

    :param arrival_ns: since whatever the format counts from; Python integers, as dates exceed 64 bits.
    :param relative: whether arrivals already count from the start of the traffic.
    :param notes: facts for the metadata, e.g. ``format`` and ``citation``.
    """

    arrival_ns: list[int]
    relative: bool
    ids: list[str | None]
    priority: list[int]
    sessions: list[str | None]
    deadline_ms: list[float]
    features: dict[str, FeatureColumn]
    payloads: list[Any]
    notes: dict[str, Any] = field(default_factory=dict)

    def kept(self, rows: Sequence[int]) -> Fields:
        """The entries at positions ``rows`` only."""
        columns = ("arrival_ns", "ids", "priority", "sessions", "deadline_ms", "payloads")
        taken: dict[str, Any] = {name: [getattr(self, name)[row] for row in rows] for name in columns}
        features = {name: [column[row] for row in rows] for name, column in self.features.items()}
        return replace(self, **taken, features=features)


def feature_array(values: Sequence[Any]) -> npt.NDArray[Any]:
    """A feature's values as the column that :class:`Traffic` holds.

    Whole numbers give int64, numbers float64 (NaN where absent), texts object (``None`` where absent). Whole
    numbers with gaps give float64: NumPy's integers have no value for "absent".
    """
    kinds = {type(value) for value in values}
    if str in kinds:
        column = np.empty(len(values), dtype=object)
        column[:] = list(values)
        return column
    if kinds <= {int}:
        return np.array(values, dtype=np.int64)
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def fill_ids(ids: Sequence[str | None]) -> list[str]:
    """``ids`` with the missing ones made from their position, none of them twice."""
    taken = {name for name in ids if name is not None}
    if not taken:
        return [f"r{index}" for index in range(len(ids))]
    filled: list[str] = []
    for index, name in enumerate(ids):
        candidate = name if name is not None else f"r{index}"
        while name is None and candidate in taken:
            candidate += "'"
        taken.add(candidate)
        filled.append(candidate)
    return filled


def recorded_summary_ms(recorded_ms: npt.ArrayLike | None) -> dict[str, float]:
    """Percentiles of :data:`RECORDED`, to hold a replay against; empty where none is known."""
    if recorded_ms is None:
        return {}
    known = np.asarray(recorded_ms)
    if known.dtype.kind not in "fiu":  # a feature of that name that somebody made of texts
        return {}
    known = known[np.isfinite(known)]
    return {key: float(np.percentile(known, q)) for key, q in _PERCENTILES.items()} if len(known) else {}
