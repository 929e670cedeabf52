"""The uncertainty of a gate's figure, and how much more data would decide an undecided gate."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np

from latfix.formatting import counted
from latfix.gates.reference_level import MOST_RUNS, Level
from latfix.gates.subject import GateSubject
from latfix.gates.syntax import Gate
from latfix.statistics.decision import FINAL, RatioEstimate
from latfix.statistics.distributions import normal_quantile, wilson_interval
from latfix.statistics.group_sequential import needed
from latfix.statistics.percentiles import Bounds, percentile_of
from latfix.statistics.score_bounds import allowance

#: With this many requests expected beyond a percentile, at least one is there in 97.5 of 100 runs: -ln(0.025).
FEWEST_BEYOND = -math.log(0.025)
#: An interval wider than this many distances to the limit cannot predict how many requests would decide.
_FARTHEST = 30
#: The most requests that are proposed to decide an error rate.
_MOST_REQUESTS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A figure compared with a limit: a number, a baseline's figure, or the level of earlier runs.

    :param reference_lost: the baseline's figure is lost, and ``reference`` is its lower bound.
    """

    gate: Gate
    subject: GateSubject
    figure: float
    baseline: GateSubject | None = None
    level: Level | None = None
    reference: float | None = None
    reference_lost: bool = False

    @property
    def limit(self) -> float:
        """The limit in the figure's unit."""
        return self.gate.limit if self.reference is None else self.reference * self.gate.factor + self.gate.limit

    @property
    def estimate(self) -> RatioEstimate | None:
        """The paired ratio to the baseline; ``None`` without one."""
        return self.subject.ratio.get(self.gate.metric) if self.baseline is not None else None


@dataclass(frozen=True, slots=True)
class More:
    """What would decide a gate: more requests, which take ``minutes``, or more runs in the history.

    :param advice: in words, without a full stop.
    """

    advice: str
    requests: int | None = None
    minutes: float | None = None
    runs: int | None = None


def figure_bounds(held: Held) -> Bounds | None:
    """The figure's interval, including the uncertainty of its reference; ``None`` if the figure is exact."""
    if held.level is not None:
        return _beside_past(held, held.level)
    gate, subject, base, reference = held.gate, held.subject, held.baseline, held.reference
    if gate.metric == "error_rate":
        return None if held.limit == 0 else _error_rate_bounds(held)  # "no errors in this run" is a count
    if gate.metric == "throughput":
        return _throughput_bounds(held)
    known = _known(gate, subject)
    if base is None or reference is None:
        return known
    if not gate.is_latency:
        other = _known(gate, base)
        return None if known is None and other is None else _difference(held, known, other)
    if held.estimate is not None:
        return (held.estimate.bounds[0] * reference, held.estimate.bounds[1] * reference)
    return _quotient(held.figure, known, reference, _known(gate, base))


def _error_rate(subject: GateSubject, times: float = 1.0) -> Bounds:
    """The interval of the error rate, with so many times the requests and errors."""
    return wilson_interval(times * subject.lost, times * subject.total)


def _error_rate_bounds(held: Held, times: float = 1.0) -> Bounds:
    own = _error_rate(held.subject, times)
    return own if held.baseline is None else _difference(held, own, _error_rate(held.baseline, times))


def _least_requests(metric: str) -> int:
    """The requests that a run needs to bound a percentile from above; 0 for other metrics."""
    percentile = percentile_of(metric)
    return 0 if percentile is None else math.ceil(FEWEST_BEYOND / (1.0 - percentile / 100))


def _known(gate: Gate, subject: GateSubject) -> Bounds | None:
    """The figure's own interval, with an extrapolated upper end if the run may have no request beyond the percentile.

    The slowest request is then no bound. Latency beyond it is assumed to rise no faster than its frequency falls, as
    in a tail so heavy that it has no mean.
    """
    own, slowest = subject.interval(gate.metric), subject.latency_ms.get("max")
    seen = subject.requests.get("ok", 0)
    if own is None or slowest is None or not 0 < seen < _least_requests(gate.metric):
        return own
    return (own[0], max(own[1], slowest * _least_requests(gate.metric) / seen))


def _difference(held: Held, own: Bounds | None, other: Bounds | None) -> Bounds:
    """The figure's interval widened by that of ``factor`` times the baseline's (Newcombe, 1998)."""
    reference = held.reference or 0.0
    lo, hi = own or (held.figure, held.figure)
    least, most = other or (reference, reference)
    down = math.hypot(held.figure - lo, held.gate.factor * (most - reference))
    return (held.figure - down, held.figure + math.hypot(hi - held.figure, held.gate.factor * (reference - least)))


def _quotient(figure: float, own: Bounds | None, reference: float, other: Bounds | None) -> Bounds | None:
    """The interval of the ratio of figure and reference, scaled by the reference: error propagation of a quotient.

    Uses the confidence that a comparison needs (:data:`decision.FINAL`), because two single runs are one round of it.
    """
    if own is None or other is None or min(figure, reference, own[0], other[0]) <= 0:
        return own
    surer, restart = normal_quantile(1.0 - FINAL.level) / normal_quantile(0.95), allowance(np.zeros(1), FINAL)
    down = math.hypot(surer * math.log(figure / own[0]), surer * math.log(other[1] / reference), restart)
    up = math.hypot(surer * math.log(own[1] / figure), surer * math.log(reference / other[0]), restart)
    return (figure * math.exp(-down), figure * math.exp(up))


def _throughput_bounds(held: Held) -> Bounds | None:
    """The interval of the throughput, from the uncertainty of the last request's end; ``None`` without latencies.

    The end varies by at most a slow request's latency (p99), and by at most the relative error of the mean latency:
    if requests pile up, the last one waits for all work before it, and the mean for half of it.
    """
    subject, baseline = held.subject, held.baseline
    rounds = max((estimate.rounds for estimate in subject.ratio.values()), default=1)
    shares = [_slow_share(side, rounds) for side in (subject, baseline) if side is not None]
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return None
    by = min(math.hypot(*map(math.log1p, known)), _mean_doubt(subject, baseline))
    return (held.figure * math.exp(-by), held.figure * math.exp(by))


def _slow_share(subject: GateSubject, rounds: int) -> float | None:
    """A slow request's latency as a share of one replay's duration."""
    slow, rate = subject.latency_ms.get("p99"), subject.throughput_rps
    lasted_ms = 1e3 * subject.requests.get("ok", 0) / rate if rate else 0.0
    return None if slow is None or lasted_ms <= 0 else rounds * slow / lasted_ms


def _mean_doubt(subject: GateSubject, baseline: GateSubject | None) -> float:
    """Uncertainty of the logarithm of the mean latency, or of its ratio to the baseline's; infinite if unknown."""
    mean, bounds = subject.latency_ms.get("mean", 0.0), subject.interval("mean")
    estimate = subject.ratio.get("mean") if baseline is not None else None
    if estimate is not None:
        mean, bounds = estimate.value, estimate.bounds
    elif baseline is not None:
        bounds = _quotient(mean, bounds, baseline.latency_ms.get("mean", 0.0), baseline.interval("mean"))
    if bounds is None or not (0 < bounds[0] <= mean <= bounds[1] < math.inf):
        return math.inf
    return max(math.log(bounds[1] / mean), math.log(mean / bounds[0]))


def _beside_past(held: Held, level: Level) -> Bounds | None:
    """The figure's interval given earlier runs of the same traffic: their run-to-run spread and the uncertainty of
    their median.

    Every run replays the same requests, so a percentile's own interval, which allows for other requests, is left
    out. Errors and shares of causes do differ between runs: their own interval counts if it is wider.
    """
    if held.gate.metric == "error_rate" and held.limit == 0 and level.spread == 0:
        return None
    down, up = (_past_half(held, level, side) for side in (-1, 1))
    if level.by_factor:
        return (held.figure * math.exp(-down), held.figure * math.exp(up))
    return (held.figure - down, held.figure + up)


def _past_half(held: Held, level: Level, side: int, runs: int | None = None) -> float:
    """Half the interval given ``runs`` earlier runs; of the logarithm if the level is ``by_factor``."""
    own = held.subject.interval(held.gate.metric) if held.gate.cause else None
    if held.gate.metric == "error_rate":
        own = _error_rate(held.subject)
    half = 0.0 if own is None else abs((own[0] if side < 0 else own[1]) - held.figure)
    factor = 1.0 if level.by_factor else held.gate.factor
    return math.hypot(max(half, level.one_more(runs)), factor * level.own_doubt(runs))


def more_needed(held: Held, bounds: Bounds) -> More:
    """What would decide the gate. Interval widths fall with the square root of the number of requests."""
    if held.level is not None:
        return _more_past(held, held.level)
    subject, figure, limit = held.subject, held.figure, held.limit
    if held.gate.metric == "error_rate":
        return _until_known(held)
    if held.estimate is not None and math.isfinite(held.estimate.spread) and held.reference:
        return _in_rounds(held.estimate, subject, limit / held.reference)
    if not all(map(math.isfinite, bounds)):
        return More("too few requests lie beyond it for a bound; replay more traffic")
    distance = abs(limit - figure)
    where = " in both runs" if held.baseline is not None else ""
    lacking = _least_requests(held.gate.metric) - subject.requests.get("ok", 0)
    own = subject.interval(held.gate.metric)
    if limit > figure and lacking > 0 and own is not None and held.baseline is None:
        # The extrapolated upper end disappears with that many requests; the proper interval may need more.
        return _in_requests(own[1] - figure, distance, subject, where, least=lacking)
    half = bounds[1] - figure if limit >= figure else figure - bounds[0]
    return _in_requests(half, distance, subject, where)


def _in_rounds(estimate: RatioEstimate, subject: GateSubject, limit: float) -> More:
    """More rounds, because replays differ by more than their requests explain."""
    need, decides = needed(estimate, subject.total, limit=limit), "would decide it"
    if need is None and estimate.lo <= 1 <= estimate.hi:
        # The ratio itself is too uncertain to tell how far from the limit it is.
        decides += " if nothing changed"
        need = needed(replace(estimate, value=1.0), subject.total, limit=limit)
    if need is None:
        return More("too close to the limit to decide by any sensible number of replays")
    rounds, each = f"about {counted(need.rounds, 'more round')} of both", f"{counted(need.requests, 'request')} each"
    if subject.round_s is not None:
        seconds = need.rounds * subject.round_s
        return More(f"{rounds} ({_duration(seconds)} with starts) {decides}", need.requests, seconds / 60)
    if subject.rate_rps is None:
        return More(f"{rounds} ({each}) {decides}", need.requests)
    minutes = 2 * need.requests / subject.rate_rps / 60
    took = f"{each}, {_duration(60 * minutes)} together at this traffic's rate"
    return More(f"{rounds} ({took}) {decides}", need.requests, minutes)


def _until_known(held: Held) -> More:
    """As many more requests as bound the error rate on one side of the limit, if it stays as it is."""
    subject, total = held.subject, max(held.subject.total, 1)

    def is_known(requests: int) -> bool:
        low, high = _error_rate_bounds(held, requests / total)
        return not low <= held.limit <= high

    if not is_known(_MOST_REQUESTS):
        return More("too close to the limit to decide")
    wanted = bisect_left(range(_MOST_REQUESTS), True, lo=total, key=is_known)
    return _requests_words(wanted - total, subject, " in both runs" if held.baseline is not None else "")


def _in_requests(half: float, distance: float, subject: GateSubject, where: str, *, least: int = 1) -> More:
    if distance <= 0 or half / distance > _FARTHEST:
        return More("too close to the limit to decide")
    return _requests_words(max(least, math.ceil(subject.total * ((half / distance) ** 2 - 1.0))), subject, where)


def _requests_words(more: int, subject: GateSubject, where: str) -> More:
    requests = f"about {counted(more, 'more request')}{where}"
    if subject.round_s is not None:
        rounds = math.ceil(more * max((each.rounds for each in subject.ratio.values()), default=1) / subject.total)
        seconds = rounds * subject.round_s
        took = f"{counted(rounds, 'more round')}, {_duration(seconds)} with starts"
        return More(f"{requests} ({took}) would decide it", more, seconds / 60)
    if subject.rate_rps is None:
        return More(f"{requests} would decide it", more)
    minutes = more / subject.rate_rps / 60
    took = f"{_duration(60 * minutes)} at this traffic's rate"
    return More(f"{requests} ({took}) would decide it", more, minutes)


def _more_past(held: Held, level: Level) -> More:
    """More runs in the history, or longer ones."""
    figure, limit = held.figure, held.limit
    side = 1 if limit >= figure else -1
    distance = abs(math.log(limit / figure)) if level.by_factor and min(limit, figure) > 0 else abs(limit - figure)
    for runs in range(level.runs + 1, MOST_RUNS + 1):
        if _past_half(held, level, side, runs) <= distance:
            more = runs - level.runs
            return More(f"about {counted(more, 'more run')} in the history would decide it", runs=more)
    differ = f"a factor of {math.exp(level.one_more()):.3g}" if level.by_factor else held.gate.show(level.one_more())
    known = f"runs of an unchanged service differ by up to {differ} here"
    longer = _in_requests(_past_half(held, level, side), distance, held.subject, " in every run")
    if longer.requests is None:
        return More(
            f"{known}, {longer.advice}; compare with a baseline measured side by side (latfix compare, optimize)"
        )
    advice = f"{known}; if longer runs differ less, {longer.advice}, in a separate history"
    return More(advice, longer.requests, longer.minutes)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{math.ceil(seconds)} s"
    return f"{math.ceil(seconds / 60)} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
