"""Short slices of the traffic for screening, chosen where the tail is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from latfix.record import RunRecord
from latfix.stages import Status
from latfix.traffic.model import Traffic
from latfix.traffic.transform import slice_time

_SHORTEST_S = 4.0
_LONGEST_S = 10.0
#: Requests that two windows together should hold for a comparison to say anything.
_ENOUGH = 240
#: Requests at or above this percentile make a window's tail.
_TAIL = 95.0


def screening_windows(traffic: Traffic, baseline: RunRecord) -> list[Traffic]:
    """Two disjoint slices with as many of the baseline's slow requests as can be; the whole if it is short.

    :param traffic: the schedule that ``baseline`` replayed.
    """
    first, last = int(traffic.arrival_ns[0]), int(traffic.arrival_ns[-1])
    span_s = (last - first) / 1e9
    rate = len(traffic) / max(span_s, 1e-9)
    width_s = max(_SHORTEST_S, min(_LONGEST_S, span_s / 5), _ENOUGH / 2 / rate)
    if 2 * width_s >= 0.8 * span_s:
        return [traffic]
    rows = baseline.requests
    ok = baseline.measured & (rows["status"] == Status.OK)
    limit = float(np.percentile(rows["latency_ns"][ok], _TAIL))
    slow = np.sort(rows["arrival_ns"][ok & (rows["latency_ns"] >= limit)])
    width = int(width_s * 1e9)
    starts: list[int] = []
    for _ in range(2):
        starts.append(_densest(slow, first, last - width, width, starts))
    return [slice_time(traffic, start / 1e9, (start + width) / 1e9) for start in sorted(starts)]


def _densest(slow: npt.NDArray[np.int64], first: int, latest: int, width: int, taken: list[int]) -> int:
    """The start of the window with most slow arrivals that overlaps none of ``taken``."""
    candidates = np.linspace(first, latest, 200).astype(np.int64)
    free = [start for start in candidates.tolist() if all(abs(start - other) >= width for other in taken)]
    if not free:
        free = candidates.tolist()
    counts = [int(np.searchsorted(slow, start + width) - np.searchsorted(slow, start)) for start in free]
    return int(free[int(np.argmax(counts))])
