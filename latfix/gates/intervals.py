"""How well a gate's figure is known beside a number or a baseline; beside a history see :mod:`gates.sample_size`."""

from __future__ import annotations

import math

import numpy as np

from latfix.gates.metrics import Bounds, GateSubject
from latfix.gates.syntax import Gate
from latfix.statistics.decision import FINAL
from latfix.statistics.distributions import normal_quantile
from latfix.statistics.latency_summary import wilson_interval
from latfix.statistics.percentiles import percentile_of
from latfix.statistics.score_bounds import allowance

#: With so many requests expected beyond a percentile, one of them is there in 97.5 of 100 runs: -ln(0.025).
FEWEST_BEYOND = -math.log(0.025)


def least_requests(metric: str) -> int:
    """So many requests a run needs to bound a percentile from above; 0 for what is none."""
    percentile = percentile_of(metric)
    return 0 if percentile is None else math.ceil(FEWEST_BEYOND / (1.0 - percentile / 100))


def figure_bounds(
    gate: Gate,
    subject: GateSubject,
    baseline: GateSubject | None,
    figure: float,
    reference: float | None,
    limit: float,
) -> Bounds | None:
    """The interval of the figure; with a baseline it holds the uncertainty of both. ``None``: exact.

    :param reference: the baseline's figure; ``None`` where the limit is a number.
    """
    base = baseline if reference is not None else None
    if gate.metric == "error_rate":
        # A limit of zero asks for none in this run, which a count answers.
        return None if limit == 0 else _rate_bounds(gate, subject, base)
    if gate.metric == "throughput":
        return _throughput_bounds(subject, base, figure)
    own = _known(gate, subject)
    if base is None or reference is None:
        return own
    other = _known(gate, base)
    if not gate.is_latency:
        return _difference(figure, own, gate.factor, reference, other)
    estimate = subject.ratio.get(gate.metric)
    if estimate is not None:
        return (estimate.bounds[0] * reference, estimate.bounds[1] * reference)
    return _quotient(figure, own, reference, other)


def _known(gate: Gate, subject: GateSubject) -> Bounds | None:
    """The figure's own interval; of a percentile that the run may have no request beyond, with a far upper end.

    The slowest request bounds nothing then. What lies beyond it is taken to rise no faster than it becomes rare, as
    in a tail so heavy that it has no mean.
    """
    own, slowest = subject.interval(gate.metric), subject.latency_ms.get("max")
    seen = subject.requests.get("ok", 0)
    if own is None or slowest is None or not 0 < seen < least_requests(gate.metric):
        return own
    return (own[0], max(own[1], slowest * least_requests(gate.metric) / seen))


def _rate_bounds(gate: Gate, subject: GateSubject, baseline: GateSubject | None) -> Bounds:
    own = wilson_interval(subject.lost, subject.total)
    if baseline is None:
        return own
    other = wilson_interval(baseline.lost, baseline.total)
    return _difference(subject.lost_share, own, gate.factor, baseline.lost_share, other) or own


def _difference(
    figure: float, own: Bounds | None, factor: float, reference: float, other: Bounds | None
) -> Bounds | None:
    """The figure's interval widened by that of ``factor`` times the baseline's (Newcombe, 1998)."""
    if own is None and other is None:
        return None
    lo, hi = own or (figure, figure)
    least, most = other or (reference, reference)
    down = math.hypot(figure - lo, factor * (most - reference))
    return (figure - down, figure + math.hypot(hi - figure, factor * (reference - least)))


def _quotient(figure: float, own: Bounds | None, reference: float, other: Bounds | None) -> Bounds | None:
    """The figure's interval widened by the baseline's, as if the baseline were exact: errors of a quotient.

    As sure as a comparison must be (:data:`decision.FINAL`): two runs by themselves are one round of it.
    """
    if own is None or other is None or min(figure, reference, own[0], other[0]) <= 0:
        return own
    surer, restart = normal_quantile(1.0 - FINAL.level) / normal_quantile(0.95), allowance(np.zeros(1), FINAL)
    down = math.hypot(surer * math.log(figure / own[0]), surer * math.log(other[1] / reference), restart)
    up = math.hypot(surer * math.log(own[1] / figure), surer * math.log(reference / other[0]), restart)
    return (figure * math.exp(-down), figure * math.exp(up))


def _throughput_bounds(subject: GateSubject, baseline: GateSubject | None, figure: float) -> Bounds | None:
    """What the time at which the last request ended leaves open; ``None`` where latencies are not known.

    The end moves by no more than a slow request's latency (p99), nor by a larger share than the mean latency does:
    where requests pile up, the last one waits for all work before it, and the mean for half of it.
    """
    rounds = max((estimate.rounds for estimate in subject.ratio.values()), default=1)
    ends = [_slow_share(side, rounds) for side in (subject, baseline) if side is not None]
    known = [share for share in ends if share is not None]
    if len(known) < len(ends):
        return None
    by = min(math.hypot(*map(math.log1p, known)), _mean_doubt(subject, baseline))
    return (figure * math.exp(-by), figure * math.exp(by))


def _slow_share(subject: GateSubject, rounds: int) -> float | None:
    """A slow request's latency as a share of how long a replay took, of several rounds each."""
    slow, rate = subject.latency_ms.get("p99"), subject.throughput_rps
    lasted_ms = 1e3 * subject.requests.get("ok", 0) / rate if rate else 0.0
    return None if slow is None or lasted_ms <= 0 else rounds * slow / lasted_ms


def _mean_doubt(subject: GateSubject, baseline: GateSubject | None) -> float:
    """How far the logarithm of the mean latency may be off, or of its ratio to the baseline's; infinite: unknown."""
    mean, bounds = subject.latency_ms.get("mean", 0.0), subject.interval("mean")
    estimate = subject.ratio.get("mean") if baseline is not None else None
    if estimate is not None:
        mean, bounds = estimate.value, estimate.bounds
    elif baseline is not None:
        bounds = _quotient(mean, bounds, baseline.latency_ms.get("mean", 0.0), baseline.interval("mean"))
    if bounds is None or not (0 < bounds[0] <= mean <= bounds[1] < math.inf):
        return math.inf
    return max(math.log(bounds[1] / mean), math.log(mean / bounds[0]))
