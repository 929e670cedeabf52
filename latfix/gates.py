"""Gates: conditions on a run that become an exit code.

A gate is a figure, a comparison and a limit: ``p99<200ms``, ``p99<=baseline*1.05``, ``error_rate<1%``. It
passes or fails only where the data can tell, that is where the figure's 95 % interval lies on one side of the
limit; otherwise it is undecided, and says about how many more requests would decide it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from latfix.errors import EXIT_GATE_FAILED, EXIT_INCONCLUSIVE, EXIT_OK, InputError
from latfix.fidelity import dispatch_lag
from latfix.gate_syntax import EXAMPLES, Gate, parse_gate
from latfix.statistics import RatioEstimate, summarize_ms, summary_intervals_ms, wilson_interval
from latfix.throughput import throughput_rps

if TYPE_CHECKING:
    from latfix.record import RunRecord

__all__ = ["EXAMPLES", "Gate", "GateResult", "GateSubject", "check_gates", "evaluate", "exit_code", "parse_gate"]

Bounds = tuple[float, float]

#: A fall of the share of requests that end ``ok`` beyond which percentiles are not of the same requests.
MOST_LOST = 0.01
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSubject:
    """What gates look at: one run, or one side of a comparison.

    :param latency_ms: by :data:`latfix.statistics.LATENCY_KEYS`; over requests that ended ``ok``.
    :param latency_ci95_ms: their intervals; a figure without one is taken as exact.
    :param ratio: over the baseline, where both replayed the same traffic; narrower than two intervals.
    :param requests: how many ended in each status.
    :param throughput_rps: requests ended ``ok`` a second.
    :param accuracy: the workload's score; ``None`` where it was not measured.
    :param cause_shares: of the tail's excess, by cause; ``None`` without a diagnosis.
    :param trustworthy: false where the replay itself was too late for latencies to mean anything.
    """

    latency_ms: Mapping[str, float]
    requests: Mapping[str, int]
    latency_ci95_ms: Mapping[str, Bounds] = field(default_factory=dict)
    ratio: Mapping[str, RatioEstimate] = field(default_factory=dict)
    throughput_rps: float | None = None
    accuracy: float | None = None
    accuracy_ci95: Bounds | None = None
    unexplained_share: float | None = None
    cause_shares: Mapping[str, float] | None = None
    cause_shares_ci95: Mapping[str, Bounds] = field(default_factory=dict)
    trustworthy: bool = True

    @property
    def total(self) -> int:
        """Requests that ended, however they did."""
        return sum(self.requests.values())

    @property
    def lost(self) -> int:
        """Requests that ended in error, by timeout, or were shed."""
        return self.total - self.requests.get("ok", 0)

    @classmethod
    def from_parts(
        cls,
        *,
        latency_ms: Mapping[str, float],
        requests: Mapping[str, int],
        latency_ci95_ms: Mapping[str, Bounds] | None = None,
        ratio: Mapping[str, RatioEstimate] | None = None,
        throughput_rps: float | None = None,
        accuracy: float | None = None,
        accuracy_ci95: Bounds | None = None,
        trustworthy: bool = True,
    ) -> GateSubject:
        """From figures at hand, without a diagnosis."""
        return cls(
            latency_ms=latency_ms,
            requests=requests,
            latency_ci95_ms=latency_ci95_ms or {},
            ratio=ratio or {},
            throughput_rps=throughput_rps,
            accuracy=accuracy,
            accuracy_ci95=accuracy_ci95,
            trustworthy=trustworthy,
        )

    @classmethod
    def from_diagnosis(cls, document: Mapping[str, Any]) -> GateSubject:
        """From the content of ``diagnosis.json``."""
        tail = document["tail"]
        excess = float(tail["excess_ms"])
        causes = {str(row["cause"]): row for row in document["causes"]}
        return cls(
            latency_ms=document["latency_ms"],
            requests=document["requests"],
            latency_ci95_ms={key: _bounds(value) for key, value in document.get("latency_ci95_ms", {}).items()},
            throughput_rps=document.get("throughput_rps"),
            accuracy=document.get("accuracy"),
            unexplained_share=float(tail["unexplained_share"]),
            cause_shares={cause: float(row["tail_share"]) for cause, row in causes.items()},
            cause_shares_ci95={
                cause: (float(row["ci95_ms"][0]) / excess, float(row["ci95_ms"][1]) / excess)
                for cause, row in causes.items()
                if excess > 0
            },
            trustworthy=bool(document.get("trustworthy", True)),
        )

    @classmethod
    def from_optimization(cls, document: Mapping[str, Any], side: Literal["before", "after"]) -> GateSubject:
        """One side of ``optimization.json`` or of a comparison's document; ``after`` carries the ratio."""
        part = document[side]
        entries = document.get("ratio", {}) if side == "after" else {}
        return cls(
            latency_ms=part["latency_ms"],
            requests=part["requests"],
            latency_ci95_ms={key: _bounds(value) for key, value in part.get("latency_ci95_ms", {}).items()},
            ratio={key: _ratio(entry) for key, entry in entries.items() if entry},
            throughput_rps=part.get("throughput_rps"),
            accuracy=part.get("accuracy"),
            trustworthy=bool(part.get("trustworthy", True)),
        )

    @classmethod
    def from_record(cls, record: RunRecord, *, seed: int = 0) -> GateSubject:
        """From the record of a run; cause shares are not known without a diagnosis."""
        latencies = record.latencies_ns()
        return cls(
            latency_ms=summarize_ms(latencies),
            requests=record.counts(),
            latency_ci95_ms=summary_intervals_ms(latencies, seed=seed),
            throughput_rps=throughput_rps([record]),
            accuracy=record.meta.get("accuracy"),
            trustworthy=dispatch_lag(record).trustworthy,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """What became of a gate.

    :param value: the figure, in milliseconds, requests a second, or a share.
    :param limit: what it was held against, in the same unit.
    :param passed: ``None`` where the data cannot tell.
    :param reason: one sentence with the figures.
    :param more_requests: about how many more would decide it; ``None`` where decided or past telling.
    """

    gate: Gate
    value: float | None
    limit: float
    passed: bool | None
    reason: str
    more_requests: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The entry of ``gates`` in ``optimization.json``."""
        return {
            "gate": self.gate.text,
            "value": self.value,
            "limit": self.limit,
            "passed": self.passed,
            "reason": self.reason,
        }


def check_gates(gates: Iterable[Gate], *, baseline: bool, accuracy: bool, causes: bool) -> None:
    """Refuse gates that a command will not have the figures for, before anything is replayed.

    :param baseline: whether there is a run to compare with; the others likewise.
    :raises InputError: at the first gate that cannot be evaluated.
    """
    for gate in gates:
        if gate.needs_baseline and not baseline:
            raise InputError(
                f"--gate {gate.text}: found no baseline here; expected a number as the limit, as in p99<200ms; "
                "or name a run with --baseline RUN"
            )
        if gate.metric == "accuracy" and not accuracy:
            raise InputError(
                f"--gate {gate.text}: found no accuracy here; this command does not measure it; "
                "use the gate with latfix optimize"
            )
        if (gate.cause or gate.metric == "unexplained_share") and not causes:
            raise InputError(f"--gate {gate.text}: found no diagnosis here; use the gate with latfix diagnose")


def evaluate(gate: Gate, subject: GateSubject, baseline: GateSubject | None = None) -> GateResult:
    """Hold a run against a gate.

    :param baseline: what ``baseline`` in the gate means.
    :raises InputError: the gate needs a baseline or a figure that is not there.
    """
    reference = None
    if gate.needs_baseline:
        check_gates([gate], baseline=baseline is not None, accuracy=True, causes=True)
        reference = _figure(gate, baseline) if baseline is not None else None
    figure = _figure(gate, subject)
    limit = gate.limit if reference is None else reference * gate.factor + gate.limit
    shown = f"{gate.metric} is {gate.show(figure)}, limit {gate.show(limit)}"
    refusal = _refusal(gate, subject, baseline)
    if refusal is not None:
        passed, why = refusal
        return GateResult(gate=gate, value=figure, limit=limit, passed=passed, reason=f"{shown}: {why}")
    bounds = _interval(gate, subject, baseline, figure, reference, limit)
    if not all(math.isfinite(number) for number in (figure, limit, *(bounds or ()))):
        reason = f"{gate.metric} has no interval from so few requests; replay more traffic"
        return GateResult(gate=gate, value=None, limit=limit, passed=None, reason=reason)
    compare = _COMPARE[gate.operator]
    ends = [compare(end, limit) for end in (bounds or (figure, figure))]
    if bounds is not None:
        shown += f", 95 % interval {gate.show(bounds[0])} to {gate.show(bounds[1])}"
    if gate.is_latency and subject.lost:
        shown += f"; {subject.lost} of {subject.total} requests did not end ok and are not in it"
    if ends[0] == ends[1]:
        return GateResult(gate=gate, value=figure, limit=limit, passed=ends[0], reason=shown)
    more = _more_requests(figure, limit, bounds or (figure, figure), subject.total)
    advice = "too close to the limit to tell" if more is None else f"about {more} more requests would tell"
    reason = f"{shown}: {advice}"
    return GateResult(gate=gate, value=figure, limit=limit, passed=None, reason=reason, more_requests=more)


def exit_code(results: Iterable[GateResult]) -> int:
    """1 where a gate failed, else 3 where one is undecided, else 0."""
    outcomes = [result.passed for result in results]
    if any(passed is False for passed in outcomes):
        return EXIT_GATE_FAILED
    return EXIT_INCONCLUSIVE if None in outcomes else EXIT_OK


def _bounds(value: Any) -> Bounds:
    return (float(value[0]), float(value[1]))


def _ratio(entry: Mapping[str, Any]) -> RatioEstimate:
    value, ends = entry.get("value"), entry.get("ci95")
    lo, hi = _bounds(ends) if ends else (math.nan, math.nan)
    return RatioEstimate(value=math.nan if value is None else float(value), lo=lo, hi=hi)


def _figure(gate: Gate, subject: GateSubject) -> float:
    """The gate's figure for a subject.

    :raises InputError: it was not measured.
    """
    value: float | None
    if gate.is_latency:
        value = subject.latency_ms.get(gate.metric)
    elif gate.metric == "error_rate":
        value = subject.lost / subject.total if subject.total else 0.0
    elif gate.metric == "throughput":
        value = subject.throughput_rps
    elif gate.metric == "accuracy":
        value = subject.accuracy
    elif gate.metric == "unexplained_share":
        value = subject.unexplained_share
    else:
        value = None if subject.cause_shares is None else subject.cause_shares.get(gate.cause or "", 0.0)
    if value is None:
        raise InputError(f"--gate {gate.text}: found no {gate.metric} in this run; expected one that measured it")
    return float(value)


def _refusal(gate: Gate, subject: GateSubject, baseline: GateSubject | None) -> tuple[bool | None, str] | None:
    """Why the figure must not be held against the limit at all, and what that makes of the gate."""
    if gate.metric == "accuracy":
        return None
    sides = [subject, baseline] if gate.needs_baseline and baseline is not None else [subject]
    for side in sides:
        name = "the run" if side is subject else "the baseline"
        if not side.total:
            return None, f"nothing was recorded in {name}"
        if gate.metric != "error_rate" and not side.requests.get("ok", 0):
            return (False if side is subject else None), f"none of {side.total} requests in {name} ended ok"
        if gate.metric != "error_rate" and not side.trustworthy:
            return None, f"{name} was replayed too late for its latencies to mean anything; use a quieter machine"
    if gate.is_latency and gate.needs_baseline and baseline is not None:
        fall = subject.lost / subject.total - baseline.lost / baseline.total
        if fall > MOST_LOST:
            return None, f"{100 * fall:.1f} % more of the requests failed than in the baseline; gate error_rate too"
    return None


def _interval(
    gate: Gate,
    subject: GateSubject,
    baseline: GateSubject | None,
    figure: float,
    reference: float | None,
    limit: float,
) -> Bounds | None:
    """The interval of the figure; with a baseline it holds the uncertainty of both. ``None``: exact."""
    if gate.metric == "error_rate":
        # A limit of zero asks for none in this run, which a count answers.
        return None if limit == 0 else _rate_interval(gate, subject, baseline)
    if gate.cause:
        return subject.cause_shares_ci95.get(gate.cause)
    if gate.metric == "accuracy":
        return subject.accuracy_ci95
    if not gate.is_latency:
        return None
    own = subject.latency_ci95_ms.get(gate.metric)
    if reference is None or baseline is None:
        return own
    estimate = subject.ratio.get(gate.metric)
    if estimate is not None:
        return (estimate.lo * reference, estimate.hi * reference)
    return _combined(figure, own, reference, baseline.latency_ci95_ms.get(gate.metric))


def _rate_interval(gate: Gate, subject: GateSubject, baseline: GateSubject | None) -> Bounds:
    """Wilson's interval; against a baseline Newcombe's (1998) of the difference, moved to the figure."""
    lo, hi = wilson_interval(subject.lost, subject.total)
    if not gate.needs_baseline or baseline is None:
        return (lo, hi)
    rate, other = subject.lost / subject.total, baseline.lost / baseline.total
    least, most = wilson_interval(baseline.lost, baseline.total)
    down = math.hypot(rate - lo, gate.factor * (most - other))
    return (rate - down, rate + math.hypot(hi - rate, gate.factor * (other - least)))


def _combined(figure: float, own: Bounds | None, reference: float, other: Bounds | None) -> Bounds | None:
    """The figure's interval widened by the baseline's, as if the baseline were exact: errors of a quotient."""
    if own is None or other is None or min(figure, reference, own[0], other[0]) <= 0:
        return own
    down = math.hypot(math.log(figure / own[0]), math.log(other[1] / reference))
    up = math.hypot(math.log(own[1] / figure), math.log(reference / other[0]))
    return (figure * math.exp(-down), figure * math.exp(up))


def _more_requests(figure: float, limit: float, bounds: Bounds, requests: int) -> int | None:
    """How many more requests shrink the interval to the limit; widths fall with the root of the number."""
    distance = abs(limit - figure)
    half = bounds[1] - figure if limit >= figure else figure - bounds[0]
    if distance <= 0 or half / distance > 30:
        return None
    factor = (half / distance) ** 2
    return max(1, math.ceil(requests * (factor - 1.0)))
