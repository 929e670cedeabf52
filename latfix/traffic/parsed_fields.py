"""A traffic file's parsed columns, before they are sorted and become :class:`Traffic`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from latfix.request import PRIORITIES

FeatureColumn = list[Any]
NORMAL = PRIORITIES.index("normal")

#: Names of a request's fields, which cannot be features.
REQUEST_FIELDS = ("id", "arrival_s", "priority", "session", "deadline_ms", "payload")

#: The feature that holds the recorded latency of imported requests, in milliseconds. It is not a property of the
#: work, so models do not use it.
RECORDED = "recorded_latency_ms"
_PERCENTILES = {"p50": 50, "p90": 90, "p95": 95, "p99": 99}


@dataclass(slots=True, kw_only=True)
class Fields:
    """Columns of equal length in the file's order.

    :param arrival_ns: since the format's own zero; Python integers, because dates exceed 64 bits.
    :param relative: True if arrivals already count from the start of the traffic.
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
        """Only the entries at positions ``rows``."""
        columns = ("arrival_ns", "ids", "priority", "sessions", "deadline_ms", "payloads")
        taken: dict[str, Any] = {name: [getattr(self, name)[row] for row in rows] for name in columns}
        features = {name: [column[row] for row in rows] for name, column in self.features.items()}
        return replace(self, **taken, features=features)


def feature_array(values: Sequence[Any]) -> npt.NDArray[Any]:
    """Convert a feature's values to a column of :class:`Traffic`.

    Whole numbers give int64, numbers float64 (NaN if absent), texts object (``None`` if absent). Whole
    numbers with gaps give float64, because NumPy's integers cannot express "absent".
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
    """``ids`` with missing ones generated from their position, all unique."""
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
    """Percentiles of :data:`RECORDED`, to compare a replay with; empty if none is known."""
    if recorded_ms is None:
        return {}
    known = np.asarray(recorded_ms)
    if known.dtype.kind not in "fiu":  # a text feature that happens to have this name
        return {}
    known = known[np.isfinite(known)]
    return {key: float(np.percentile(known, q)) for key, q in _PERCENTILES.items()} if len(known) else {}
