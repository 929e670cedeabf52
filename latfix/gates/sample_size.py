"""How well a gate's figure is known beside earlier runs, and how much more would decide an undecided gate."""

from __future__ import annotations

import math
from dataclasses import dataclass

from latfix.gates.intervals import least_requests
from latfix.gates.metrics import Bounds, GateSubject
from latfix.gates.reference_level import MOST_RUNS, Level
from latfix.gates.syntax import Gate
from latfix.statistics.decision import RatioEstimate
from latfix.statistics.group_sequential import needed
from latfix.statistics.latency_summary import wilson_interval

#: Beyond so many times the distance to the limit an interval's width is past telling how many requests it needs.
_FARTHEST = 30


@dataclass(frozen=True, slots=True)
class More:
    """What would decide a gate: so many requests, which take so long, or so many runs of history.

    :param advice: in words, without a full stop.
    """

    advice: str
    requests: int | None = None
    minutes: float | None = None
    runs: int | None = None


def beside_past(gate: Gate, subject: GateSubject, level: Level, figure: float, limit: float) -> Bounds | None:
    """The figure's interval beside earlier runs of the same traffic: what such runs differ by anyway, and the doubt
    of their median. ``None``: exact.

    The same requests are replayed each time, so that the interval of a percentile of one run, which asks what other
    requests would have shown, has no part in it. Errors are not the same ones each time, nor is what a cause is
    given: there the figure's own interval counts where it is the wider one.
    """
    if gate.metric == "error_rate" and limit == 0 and level.spread == 0:
        return None
    down, up = (_half(gate, subject, level, figure, side) for side in (-1, 1))
    if level.by_factor:
        return (figure * math.exp(-down), figure * math.exp(up))
    return (figure - down, figure + up)


def _half(gate: Gate, subject: GateSubject, level: Level, figure: float, side: int, runs: int | None = None) -> float:
    """Half an interval beside ``runs`` earlier runs: a logarithm where the level is ``by_factor``."""
    factor = 1.0 if level.by_factor else gate.factor
    own = _own_half(gate, subject, figure, side)
    return math.hypot(max(own, level.one_more(runs)), factor * level.own_doubt(runs))


def _own_half(gate: Gate, subject: GateSubject, figure: float, side: int) -> float:
    own = subject.interval(gate.metric) if gate.cause else None
    if gate.metric == "error_rate":
        own = wilson_interval(subject.lost, subject.total)
    return 0.0 if own is None else abs((own[0] if side < 0 else own[1]) - figure)


def more_requests(
    gate: Gate, subject: GateSubject, figure: float, limit: float, bounds: Bounds, reference: float | None
) -> More:
    """How many more requests shrink the interval to the limit; widths fall with the root of the number."""
    estimate = subject.ratio.get(gate.metric) if gate.needs_baseline else None
    if estimate is not None and math.isfinite(estimate.spread) and reference:
        return _in_rounds(estimate, subject, limit / reference)
    if not all(map(math.isfinite, bounds)):
        return More("too few requests lie beyond it for a bound; replay more traffic")
    distance = abs(limit - figure)
    where = " in both runs" if gate.needs_baseline else ""
    lacking = least_requests(gate.metric) - subject.requests.get("ok", 0)
    own = subject.interval(gate.metric)
    if limit > figure and lacking > 0 and own is not None and not gate.needs_baseline:
        # The far upper end falls away with so many requests; the interval proper may ask for more.
        return _in_requests(own[1] - figure, distance, subject, where, least=lacking)
    half = bounds[1] - figure if limit >= figure else figure - bounds[0]
    return _in_requests(half, distance, subject, where)


def _in_rounds(estimate: RatioEstimate, subject: GateSubject, limit: float) -> More:
    """What :func:`group_sequential.needed` says: replays differ by more than their requests explain."""
    need = needed(estimate, subject.total, limit=limit)
    if need is None:
        return More("too close to the limit to tell by any sensible number of replays")
    rounds = f"about {need.rounds} more round{'' if need.rounds == 1 else 's'} of both"
    if subject.rate_rps is None:
        return More(f"{rounds} ({need.requests} requests each) would tell", need.requests)
    minutes = 2 * need.requests / subject.rate_rps / 60
    took = f"{need.requests} requests each, {_duration(60 * minutes)} together at this traffic's rate"
    return More(f"{rounds} ({took}) would tell", need.requests, minutes)


def _in_requests(half: float, distance: float, subject: GateSubject, where: str, *, least: int = 1) -> More:
    if distance <= 0 or half / distance > _FARTHEST:
        return More("too close to the limit to tell")
    more = max(least, math.ceil(subject.total * ((half / distance) ** 2 - 1.0)))
    if subject.rate_rps is None:
        return More(f"about {more} more requests{where} would tell", more)
    minutes = more / subject.rate_rps / 60
    took = f"{_duration(60 * minutes)} at this traffic's rate"
    return More(f"about {more} more requests{where} ({took}) would tell", more, minutes)


def more_past(gate: Gate, subject: GateSubject, level: Level, figure: float, limit: float) -> More:
    """What would decide a gate against the history: more runs in it, or longer ones."""
    side = 1 if limit >= figure else -1
    distance = abs(math.log(limit / figure)) if level.by_factor and min(limit, figure) > 0 else abs(limit - figure)
    for runs in range(level.runs + 1, MOST_RUNS + 1):
        if _half(gate, subject, level, figure, side, runs) <= distance:
            more = runs - level.runs
            return More(f"about {more} more run{'' if more == 1 else 's'} in the history would tell", runs=more)
    differ = f"a factor of {math.exp(level.one_more()):.3g}" if level.by_factor else gate.show(level.one_more())
    known = f"runs of an unchanged service differ by up to {differ} here"
    longer = _in_requests(_half(gate, subject, level, figure, side), distance, subject, " in every run")
    if longer.requests is None:
        return More(
            f"{known}, {longer.advice}; compare with a baseline measured beside it (latfix compare, optimize)"
        )
    advice = f"{known}; if they differ less the longer they are, {longer.advice}, in a history of its own"
    return More(advice, longer.requests, longer.minutes)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{math.ceil(seconds)} s"
    return f"{math.ceil(seconds / 60)} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
