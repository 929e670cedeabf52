"""The run cut into windows of equal length: percentiles and causes of each, and when each cause was active."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from latfix.profilers.evidence.units import Evidence
from latfix.profilers.evidence.work_model import Floats, Ints
from latfix.profilers.over_time.active_intervals import activity
from latfix.results.diagnosis import Activity, Ledger, Window

#: Windows hold about so many requests, as far as their number stays within bounds.
_REQUESTS = 150
_FEWEST, _MOST = 6, 24
_LEAST_REQUESTS = 50
#: A percentile is told of a window where so many requests rest on it.
_REST: Mapping[int, int] = {50: 5, 95: 40, 99: 100}


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """The windows of a run, and when its causes were active.

    :param windows: in order of time; none where no request ended ``ok``.
    :param active: by cause id.
    """

    windows: tuple[Window, ...]
    active: Mapping[str, Activity]


def windows_of(evidence: Evidence, ledger: Ledger, causes: Collection[str], *, seed: int = 0) -> Windows:
    """Cut a run into windows, and tell when each cause was active.

    :param ledger: of the evidence's ``ok`` requests, in their order.
    :param causes: ids to tell of: those with a material part of the tail.
    :param seed: of the permutations that say what is no more than chance.
    """
    rows, ok = evidence.rows, evidence.ok
    arrival = rows["arrival_ns"][ok].astype(np.int64)
    begun = arrival + (rows["dispatch_ns"] + rows["prepare_ns"] + rows["queue_ns"])[ok]
    offered = rows["arrival_ns"][rows["warmup"] == 0].astype(np.int64)
    known = [cause for cause in ledger.causes if cause in causes]
    entries = {cause: ledger.causes.index(cause) for cause in known}
    if not len(arrival):
        return Windows(windows=(), active={})
    start_s, end_s = _bounds(arrival)
    totals = {cause: ledger.own_ns[k] + ledger.propagated_ns[k] for cause, k in entries.items()}
    return Windows(
        windows=cut_windows(arrival, ledger.latency_ns, offered, totals),
        active={
            cause: activity(ledger.own_ns[k], begun, start_s=start_s, end_s=end_s, seed=seed)
            for cause, k in entries.items()
        },
    )


def cut_windows(
    arrival_ns: Ints, latency_ns: Ints, offered_ns: Ints, causes: Mapping[str, Ints]
) -> tuple[Window, ...]:
    """Windows of equal length over the run: six to 24, fewer where they would hold under 50 requests.

    :param arrival_ns: ``(n,)`` of requests that ended ``ok``; ``latency_ns`` theirs.
    :param offered_ns: arrivals of all requests, ended how they may.
    :param causes: by id ``(n,)`` nanoseconds.
    """
    n = len(arrival_ns)
    if not n:
        return ()
    number = int(np.clip(n // _REQUESTS, _FEWEST, _MOST))
    number = max(min(number, n // _LEAST_REQUESTS), 1)
    start_s, end_s = _bounds(arrival_ns)
    edges = np.linspace(start_s, end_s, number + 1)
    slot = _slots(arrival_ns, edges)
    counts = np.bincount(slot, minlength=number)
    inside = (offered_ns / 1e9 >= start_s) & (offered_ns / 1e9 <= end_s)
    offered = np.bincount(_slots(offered_ns[inside], edges), minlength=number)
    means = {
        cause: np.bincount(slot, weights=amount.astype(np.float64), minlength=number) / np.maximum(counts, 1) / 1e6
        for cause, amount in causes.items()
    }
    order = np.argsort(slot, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(counts)])
    windows = []
    for k in range(number):
        latency = latency_ns[order[bounds[k] : bounds[k + 1]]]
        windows.append(
            Window(
                start_s=float(edges[k]),
                end_s=float(edges[k + 1]),
                requests=len(latency),
                offered_rps=float(offered[k] / (edges[k + 1] - edges[k])),
                **_percentiles_ms(latency),
                causes_ms={cause: float(mean[k]) for cause, mean in means.items()},
            )
        )
    return tuple(windows)


def _bounds(arrival_ns: Ints) -> tuple[float, float]:
    """First and last arrival in seconds; a millisecond apart where there is only one moment."""
    low, high = float(arrival_ns.min()) / 1e9, float(arrival_ns.max()) / 1e9
    return low, high if high > low else low + 1e-3


def _slots(at_ns: Ints, edges: Floats) -> Ints:
    slot = np.searchsorted(edges, at_ns / 1e9, side="right") - 1
    return np.asarray(np.clip(slot, 0, len(edges) - 2), dtype=np.int64)


def _percentiles_ms(latency_ns: Ints) -> dict[str, float | None]:
    """Percentiles that enough requests rest on."""
    told = [q for q, least in _REST.items() if len(latency_ns) >= least]
    values = np.percentile(latency_ns, told) / 1e6 if told else np.zeros(0)
    return {f"p{q}_ms": float(values[told.index(q)]) if q in told else None for q in _REST}
