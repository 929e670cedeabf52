"""When a cause was active: throughout, in stretches of the run, in a rhythm, or at a few moments."""

from __future__ import annotations

import numpy as np

from latfix.arrays import Bools, Floats, Ints
from latfix.formatting import listed, share, significant
from latfix.results.diagnosis import Activity
from latfix.statistics.change_points import MOST_VALUES, rate_changes
from latfix.traffic.periodicity import find_period

Spans = tuple[tuple[float, float], ...]

#: A cause that struck at most this often is listed moment by moment.
_MOMENTS = 3
#: With more stretches than this, the cause comes and goes instead of having episodes.
_STRETCHES = 8
#: Least rate of an active stretch, relative to the typical strong one; least share of the cause in active stretches.
_ACTIVE = 0.3
_HELD = 0.75
#: Shares of the run that count as most of it, and as all of it.
_MOSTLY = 0.6
_WHOLE = 0.96
#: Least size of a strike, relative to a full one.
_STRIKE = 0.25
_PHASES = 20
_MOST_TIMED = 20_000
_LEAST_OFF = 0.15


def activity(own_ns: Ints, moment_ns: Ints, *, start_s: float, end_s: float, seed: int = 0) -> Activity:
    """When a cause was active, from its own part of each request.

    Propagated parts do not count, because they follow later.

    :param own_ns: ``(n,)`` nanoseconds; negative values count as zero.
    :param moment_ns: ``(n,)`` when each request's work began. Requests with the same moment (a batch) are one strike.
    :param start_s: begin of the run in seconds; ``end_s`` its end.
    """
    times, struck, cost_ns = _strikes(own_ns, moment_ns)
    if not struck.any():
        return Activity(throughout=False, intervals_s=(), text="never")
    moments = _few_moments(times, cost_ns, start_s, end_s)
    if moments is not None:
        return moments
    edges, levels, sums = _stretches(struck, seed)
    active = _active(levels, sums)
    intervals = _intervals(times, edges, active, start_s, end_s)
    length = end_s - start_s
    covered = sum(b - a for a, b in intervals) / length if length > 0 else 1.0
    held = float(sums[active].sum() / sums.sum())
    few_stretches = len(intervals) <= _STRETCHES
    rhythm = None if few_stretches and covered < _MOSTLY else _rhythm(times, struck >= _STRIKE, cost_ns)
    if rhythm is None and few_stretches and covered < _WHOLE and held >= _HELD:
        text = f"active {_listed(intervals, length)} s of {_seconds(end_s, length)} s ({share(covered)} of the time)"
        return Activity(throughout=False, intervals_s=intervals, text=text)
    whole, period, duty = ((start_s, end_s),), None, None
    if rhythm is not None:
        period, duty = rhythm
        text = f"on and off every {significant(period)} s throughout ({share(duty)} of the time)"
    elif not few_stretches and covered < _WHOLE:
        text = f"throughout, on and off: {len(intervals)} stretches ({share(covered)} of the time)"
    elif few_stretches and covered < _MOSTLY:
        text = f"throughout, strongest {_listed(intervals, length)} s"
    else:
        text = "throughout"
    return Activity(throughout=True, intervals_s=whole, text=text, period_s=period, duty=duty)


def _strikes(own_ns: Ints, moment_ns: Ints) -> tuple[Floats, Floats, Floats]:
    """Per moment of work: time in seconds, size of the strike (0 to 1), and nanoseconds.

    Full strikes are the largest ones that together make up half of the cause, so that outliers do not dominate.
    """
    if not len(own_ns):
        return np.zeros(0), np.zeros(0), np.zeros(0)
    moments, inverse, counts = np.unique(moment_ns, return_inverse=True, return_counts=True)
    cost = np.bincount(inverse, weights=np.maximum(own_ns, 0).astype(np.float64)) / counts
    ordered = np.sort(cost)[::-1]
    running = np.cumsum(ordered)
    if running[-1] <= 0:
        return moments / 1e9, np.zeros(len(moments)), cost
    full = float(ordered[int(np.searchsorted(running, running[-1] / 2))])
    return moments / 1e9, np.minimum(cost / full, 1.0), cost


def _few_moments(times: Floats, cost_ns: Floats, start_s: float, end_s: float) -> Activity | None:
    top = np.sort(np.argsort(cost_ns, kind="stable")[-_MOMENTS:])
    if float(cost_ns[top].sum()) < 0.9 * float(cost_ns.sum()):
        return None
    top = top[cost_ns[top] >= 0.05 * float(cost_ns.max())]
    intervals = tuple((float(times[k]), float(times[k] + cost_ns[k] / 1e9)) for k in top)
    at = listed([_seconds(a, end_s - start_s) for a, _ in intervals])
    often = "once" if len(top) == 1 else f"{len(top)} times"
    return Activity(throughout=False, intervals_s=intervals, text=f"{often}, at {at} s")


def _stretches(struck: Floats, seed: int) -> tuple[Ints, Floats, Floats]:
    """Edges (in moments), rate and sum of each stretch of constant rate."""
    n = len(struck)
    bins = np.linspace(0, n, min(n, MOST_VALUES) + 1).astype(np.int64)
    edges = bins[rate_changes(np.add.reduceat(struck, bins[:-1]), seed=seed)]
    sums = np.add.reduceat(struck, edges[:-1])
    return edges, sums / np.diff(edges), sums


def _active(levels: Floats, sums: Floats) -> Bools:
    """True for stretches with a material share of the rate at which half of the cause struck."""
    order = np.argsort(levels, kind="stable")[::-1]
    running = np.cumsum(sums[order])
    typical = float(levels[order][int(np.searchsorted(running, running[-1] / 2))])
    return np.asarray(levels >= _ACTIVE * typical)


def _intervals(times: Floats, edges: Ints, active: Bools, start_s: float, end_s: float) -> Spans:
    """Active stretches in seconds, neighbors joined."""
    # Requests in the queue at the last arrival are served after `end_s`.
    begins = np.concatenate([[start_s], np.minimum(times[edges[1:-1]], end_s), [end_s]])
    intervals: list[tuple[float, float]] = []
    for k in np.flatnonzero(active):
        begin, end = float(begins[k]), float(begins[k + 1])
        if intervals and intervals[-1][1] >= begin:
            intervals[-1] = (intervals[-1][0], end)
        else:
            intervals.append((begin, end))
    return tuple(intervals)


def _rhythm(times: Floats, struck: Bools, cost_ns: Floats) -> tuple[float, float] | None:
    """Period in seconds and the share of it with strikes, or ``None`` without a clear rhythm."""
    hits = times[struck]
    hits = hits[:: max(1, len(hits) // _MOST_TIMED)]
    period = find_period(hits)
    if period is None or period.seconds < float(np.median(cost_ns[struck])) / 1e9:
        return None  # what lasts longer than its period is never off: the rhythm is that of batches
    phase = np.floor((times - hits[0]) / period.seconds * _PHASES).astype(np.int64) % _PHASES
    chances = np.bincount(phase, minlength=_PHASES)
    # Phases with hardly any work do not count: a rhythm of the traffic alone is not the cause's.
    seen = chances >= 0.2 * chances.mean()
    rate = np.bincount(phase[struck], minlength=_PHASES) / np.maximum(chances, 1)
    on, off = seen & (rate >= 0.5 * rate[seen].max()), seen & (rate < 0.5 * rate[seen].max())
    if not off.any() or float(rate[off].mean()) > _LEAST_OFF * float(rate[on].mean()):
        return None
    return period.seconds, float(np.count_nonzero(on)) / _PHASES


def _listed(intervals: Spans, length: float) -> str:
    return listed([f"{_seconds(a, length)}–{_seconds(b, length)}" for a, b in intervals])


def _seconds(value: float, length: float) -> str:
    digits = 0 if length >= 1000 else 1 if length >= 10 else 2
    return f"{value:,.{digits}f}"
