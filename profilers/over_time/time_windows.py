"""Windows of equal length over the run: percentiles and causes of each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.lower_bound import AtLeast, in_order
from latfix.results.diagnosis import Window
from latfix.statistics.quantile_sketch import Distribution

#: Target number of requests per window, and the bounds of the number of windows.
_REQUESTS = 150
_FEWEST, _MOST = 6, 24
_LEAST_REQUESTS = 50
#: Least number of requests for each percentile of a window.
_REST: Mapping[int, int] = {50: 5, 95: 40, 99: 100}


def window_edges(requests: int, first_ns: int, last_ns: int) -> Floats:
    """Bounds of the windows in seconds: 6 to 24 of equal length, fewer if they would have under 50 requests.

    :param requests: number of requests that ended ``ok``, at least one.
    :param first_ns: the first arrival of all; ``last_ns`` the last.
    """
    number = int(np.clip(requests // _REQUESTS, _FEWEST, _MOST))
    number = max(min(number, requests // _LEAST_REQUESTS), 1)
    first_s, last_s = first_ns / 1e9, last_ns / 1e9
    return np.linspace(first_s, last_s if last_s > first_s else first_s + 1e-3, number + 1)


class WindowTally:
    """Sums over each window, collected chunk by chunk.

    :param edges_s: from :func:`window_edges`.
    :param kinds: number of causes.
    :param exact: keep all latencies, for exact percentiles.
    """

    def __init__(self, edges_s: Floats, kinds: int, *, exact: bool) -> None:
        self._edges, number = edges_s, len(edges_s) - 1
        self._latency = [Distribution(exact=exact) for _ in range(number)]
        self._lost = [Distribution(exact=exact) for _ in range(number)]
        self._offered = np.zeros(number, np.int64)
        self._entries = np.zeros((kinds, number))

    def offer(self, arrival_ns: Ints) -> None:
        """Add arrivals of scheduled requests with any status; those outside all windows are ignored."""
        self._offered += np.bincount(self._slots(arrival_ns[self._inside(arrival_ns)]), minlength=len(self._offered))

    def lose(self, arrival_ns: Ints, waited_ns: Ints) -> None:
        """Add requests that did not end ``ok``, by their waits; those outside all windows are ignored."""
        inside = self._inside(arrival_ns)
        slot = self._slots(arrival_ns[inside])
        for k in np.unique(slot).tolist():
            self._lost[k].add(waited_ns[inside][slot == k])

    def add(self, arrival_ns: Ints, latency_ns: Ints, entries: Mapping[int, Ints]) -> None:
        """Add requests that ended ``ok``.

        :param entries: by cause's number, ``(n,)`` nanoseconds.
        """
        slot = self._slots(arrival_ns)
        for k in np.unique(slot).tolist():
            self._latency[k].add(latency_ns[slot == k])
        for cause, amount in entries.items():
            self._entries[cause] += np.bincount(slot, amount, len(self._offered))

    def windows(self, causes: Mapping[str, int]) -> tuple[Window, ...]:
        """The windows, in order of time.

        :param causes: numbers of the causes to report, by id.
        """
        edges = self._edges
        return tuple(
            Window(
                start_s=float(edges[k]),
                end_s=float(edges[k + 1]),
                requests=len(latency),
                offered_rps=float(self._offered[k] / (edges[k + 1] - edges[k])),
                **_percentiles_ms(latency, self._lost[k]),
                causes_ms={
                    name: float(self._entries[c, k] / max(len(latency), 1) / 1e6) for name, c in causes.items()
                },
            )
            for k, latency in enumerate(self._latency)
        )

    def _inside(self, arrival_ns: Ints) -> Bools:
        arrival_s = arrival_ns / 1e9
        return np.asarray((arrival_s >= self._edges[0]) & (arrival_s <= self._edges[-1]))

    def _slots(self, at_ns: Ints) -> Ints:
        slot = np.searchsorted(self._edges, at_ns / 1e9, side="right") - 1
        return np.asarray(np.clip(slot, 0, len(self._edges) - 2), dtype=np.int64)


def _percentiles_ms(latency: Distribution, lost: Distribution) -> dict[str, float | None]:
    """Percentiles with enough requests. Lost requests count as slower than any answer and than their waits."""
    every = Distribution(exact=latency.histogram is None)
    every += latency
    every += lost
    found: dict[str, float] = {}
    for q, least in _REST.items():
        last, rank = len(latency) - 1, (len(every) - 1) * q / 100
        if len(every) < least:
            continue
        if rank <= last:
            found[f"p{q}_ms"] = latency.percentile(100 * rank / max(last, 1)) / 1e6
        else:
            found[f"p{q}_ms"] = AtLeast(every.percentile(q) / 1e6)
    known = dict(zip(found, in_order(found.values()), strict=True))
    return {f"p{q}_ms": known.get(f"p{q}_ms") for q in _REST}
