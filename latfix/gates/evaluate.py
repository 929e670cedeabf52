"""Gates: conditions on a run that become an exit code.

A gate is a figure, a comparison and a limit: ``p99<200ms``, ``p99<=baseline*1.05``, ``p99<history*1.1``,
``error_rate<1%``. It passes or fails only where the data can tell, that is where the figure's 95 % interval
(against a baseline, the decision bounds of the ratio) lies on one side of the limit; otherwise it is
undecided, and says about how much more would decide it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from latfix.errors import EXIT_GATE_FAILED, EXIT_INCONCLUSIVE, EXIT_OK, InputError
from latfix.files.json_documents import Document
from latfix.formatting import key_label
from latfix.gates.intervals import figure_bounds
from latfix.gates.metrics import GateSubject
from latfix.gates.reference_level import Level, Past
from latfix.gates.sample_size import beside_past, more_past, more_requests
from latfix.gates.syntax import EXAMPLES, Gate, parse_gate
from latfix.statistics.decision import FINAL

__all__ = ["EXAMPLES", "Gate", "GateResult", "GateSubject", "check_gates", "evaluate", "exit_code", "parse_gate"]

#: A fall of the share of requests that end ``ok`` beyond which percentiles are not of the same requests.
MOST_LOST = 0.01
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult(Document):
    """What became of a gate.

    :param value: the figure, in milliseconds, requests a second, or a share.
    :param limit: what it was held against, in the same unit; ``None`` where there was nothing to hold it against.
    :param passed: ``None`` where the data cannot tell.
    :param reason: one sentence with the figures.
    :param more_requests: about how many more would decide it; ``None`` where decided or past telling.
    :param more_minutes: how long those take at this traffic's rate.
    :param more_runs: how many more runs of history would decide it.
    """

    gate: Gate
    value: float | None
    limit: float | None = None
    passed: bool | None
    reason: str
    more_requests: int | None = None
    more_minutes: float | None = None
    more_runs: int | None = None


def check_gates(
    gates: Iterable[Gate], *, baseline: bool, accuracy: bool, causes: bool, history: bool = False
) -> None:
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
        if gate.needs_history and not history:
            raise InputError(
                f"--gate {gate.text}: found no history here; expected a number or baseline as the limit; "
                "use the gate with latfix diagnose, optimize or report, and without --history off"
            )
        if gate.metric == "accuracy" and not accuracy:
            raise InputError(
                f"--gate {gate.text}: found no accuracy here; this command does not measure it; "
                "use the gate with latfix optimize"
            )
        if (gate.cause or gate.metric == "unexplained_share") and not causes:
            raise InputError(f"--gate {gate.text}: found no diagnosis here; use the gate with latfix diagnose")


def evaluate(
    gate: Gate, subject: GateSubject, baseline: GateSubject | None = None, *, past: Past | None = None
) -> GateResult:
    """Hold a run against a gate.

    :param baseline: what ``baseline`` in the gate means.
    :param past: what ``history`` in the gate means.
    :raises InputError: the gate needs a baseline, a history or a figure that is not there.
    """
    check_gates([gate], baseline=baseline is not None, accuracy=True, causes=True, history=past is not None)
    figure, level, reference = _figure(gate, subject), None, None
    if gate.needs_history and past is not None:
        level = past.level(gate.metric)
        if level is None:
            return _too_young(gate, figure, past)
        reference = level.value
    elif gate.needs_baseline and baseline is not None:
        reference = _figure(gate, baseline)
    limit = gate.limit if reference is None else reference * gate.factor + gate.limit
    name = key_label(gate.metric)
    shown = f"{name} is {gate.show(figure)}, limit {gate.show(limit)}"
    if level is not None:
        shown += f" from the median {gate.show(level.value)} of the last {level.runs} runs"
    refusal = _refusal(gate, subject, baseline if gate.needs_baseline else None, past if level is not None else None)
    if refusal is not None:
        passed, why = refusal
        return GateResult(
            gate=gate, value=_finite(figure), limit=_finite(limit), passed=passed, reason=f"{shown}: {why}"
        )
    if level is not None:
        bounds = beside_past(gate, subject, level, figure, limit)
    else:
        bounds = figure_bounds(gate, subject, baseline, figure, reference, limit)
    if not (math.isfinite(figure) and math.isfinite(limit)) or any(map(math.isnan, bounds or ())):
        reason = f"{name} has no interval from so few requests; replay more traffic"
        return GateResult(gate=gate, value=None, limit=_finite(limit), passed=None, reason=reason)
    compare = _COMPARE[gate.operator]
    ends = [compare(end, limit) for end in (bounds or (figure, figure))]
    if bounds is not None:
        shown += f", {_called(gate, subject, level)} {gate.show(bounds[0])} to {gate.show(bounds[1])}"
    if gate.is_latency and subject.lost:
        shown += f"; {subject.lost} of {subject.total} requests did not end ok and are not in it"
    if ends[0] == ends[1]:
        return GateResult(gate=gate, value=figure, limit=limit, passed=ends[0], reason=shown)
    around = bounds or (figure, figure)
    if level is not None:
        more = more_past(gate, subject, level, figure, limit)
    else:
        more = more_requests(gate, subject, figure, limit, around, reference)
    return GateResult(
        gate=gate,
        value=figure,
        limit=limit,
        passed=None,
        reason=f"{shown}: {more.advice}",
        more_requests=more.requests,
        more_minutes=more.minutes,
        more_runs=more.runs,
    )


def exit_code(results: Iterable[GateResult]) -> int:
    """1 where a gate failed, else 3 where one is undecided, else 0."""
    outcomes = [result.passed for result in results]
    if any(passed is False for passed in outcomes):
        return EXIT_GATE_FAILED
    return EXIT_INCONCLUSIVE if None in outcomes else EXIT_OK


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _called(gate: Gate, subject: GateSubject, level: Level | None) -> str:
    """What the interval of a gate is: bounds of a paired ratio are wider than its 95 % interval."""
    if level is None and gate.needs_baseline:
        estimate = subject.ratio.get(gate.metric)
        if estimate is not None and estimate.decision is not None:
            return f"decided at {100 * estimate.level:.3g} % by"
        if estimate is None and gate.is_latency:
            return f"decided at {100 * FINAL.level:.3g} % by"
    return "95 % interval"


def _figure(gate: Gate, subject: GateSubject) -> float:
    """The gate's figure for a subject.

    :raises InputError: it was not measured.
    """
    value = subject.figure(gate.metric)
    if value is None:
        raise InputError(
            f"--gate {gate.text}: found no {key_label(gate.metric)} in this run; expected one that measured it"
        )
    return float(value)


def _too_young(gate: Gate, figure: float, past: Past) -> GateResult:
    why, runs = past.why_none(gate.metric)
    reason = f"{key_label(gate.metric)} is {gate.show(figure)}; {why}"
    return GateResult(gate=gate, value=_finite(figure), limit=None, passed=None, reason=reason, more_runs=runs)


def _refusal(
    gate: Gate, subject: GateSubject, baseline: GateSubject | None, past: Past | None
) -> tuple[bool | None, str] | None:
    """Why the figure must not be held against the limit at all, and what that makes of the gate."""
    if gate.metric == "accuracy":
        return None
    sides = [subject] if baseline is None else [subject, baseline]
    for side in sides:
        name = "the run" if side is subject else "the baseline"
        if not side.total:
            return None, f"nothing was recorded in {name}"
        if gate.metric != "error_rate" and not side.requests.get("ok", 0):
            return (False if side is subject else None), f"none of {side.total} requests in {name} ended ok"
        if gate.metric != "error_rate" and not side.trustworthy:
            return None, f"{name} was replayed too late for its latencies to mean anything; use a quieter machine"
    if not gate.is_latency or (baseline is None and past is None):
        return None
    usual, name = (baseline.lost_share, "the baseline") if baseline is not None else (_usual(past), "the history")
    fall = subject.lost_share - usual
    if fall > MOST_LOST:
        return None, f"{100 * fall:.1f} % more of the requests failed than in {name}; gate error_rate too"
    return None


def _usual(past: Past | None) -> float:
    return past.lost_share() if past is not None else 0.0
