"""Gates: conditions on a run that become an exit code.

A gate is a figure, a comparison and a limit: ``p99<200ms``, ``p99<=baseline*1.05``, ``p99<history*1.1``,
``error_rate<1%``. It passes or fails only if the figure's 95 % interval (against a baseline, the decision bounds
of the ratio) lies on one side of the limit; otherwise it is undecided, with an estimate of how much more data would
decide it. :mod:`syntax` parses gates, :mod:`subject` holds figures, :mod:`bounds` their intervals; this module
decides.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from latfix.errors import EXIT_GATE_FAILED, EXIT_INCONCLUSIVE, EXIT_OK, InputError
from latfix.files.json_documents import Document
from latfix.formatting import counted, finite, key_label
from latfix.gates.bounds import Held, figure_bounds, more_needed
from latfix.gates.reference_level import Past
from latfix.gates.subject import GateSubject
from latfix.gates.syntax import Gate
from latfix.lower_bound import AtLeast
from latfix.statistics.decision import FINAL
from latfix.statistics.percentiles import Bounds

#: If the share of requests that end ``ok`` falls by more, percentiles are not of the same requests.
MOST_LOST = 0.01
#: A latency's bound that is this many times as far away is shown as none.
_FAR = 100.0
_NO_ACCURACY = "accuracy is unknown: answers that do not repeat, or hold nothing, cannot be compared"
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult(Document):
    """The outcome of a gate.

    :param value: the figure, in milliseconds, requests per second, or a share; ``null`` with ``value_at_least`` if it
        is lost.
    :param limit: the limit in the same unit; ``None`` if it could not be computed.
    :param passed: ``None`` if undecided.
    :param reason: one sentence with the figures.
    :param more_requests: about how many more would decide it; ``None`` if decided or beyond estimation.
    :param more_minutes: how long those take at this traffic's rate.
    :param more_runs: how many more runs in the history would decide it.
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
    """Refuse gates on figures that a command does not measure, before anything is replayed.

    :param baseline: True if there is a run to compare with; the others likewise.
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
    """Evaluate a gate for a run.

    :param baseline: what ``baseline`` in the gate refers to.
    :param past: what ``history`` in the gate refers to.
    :returns: undecided if an accuracy is missing, which a search only knows at its end.
    :raises InputError: the gate needs a baseline, a history or another figure that is missing.
    """
    check_gates([gate], baseline=baseline is not None, accuracy=True, causes=True, history=past is not None)
    sides = (subject, baseline) if gate.needs_baseline else (subject,)
    if gate.metric == "accuracy" and any(side is not None and side.accuracy is None for side in sides):
        return GateResult(gate=gate, value=None, passed=None, reason=_NO_ACCURACY)
    if any(side is not None and side.hides(gate.metric) for side in sides):
        reason = (
            f"{gate.cause} is unknown: the source of the figures does not show it; of a service behind an address, "
            "--pid, --metrics and --server-log show more"
        )
        return GateResult(gate=gate, value=None, passed=None, reason=reason)
    held = Held(gate=gate, subject=subject, figure=_figure(gate, subject))
    if gate.needs_history and past is not None:
        level = past.level(gate.metric)
        if level is None:
            why, runs = past.why_none(gate.metric)
            return _result(held, None, f"{_name(held)} is {gate.show(held.figure)}; {why}", runs=runs)
        held = replace(held, level=level, reference=level.value)
        refusal = _lost(held) or _refusal(held, past.lost_share())
    else:
        if gate.needs_baseline and baseline is not None:
            held = _against(held, baseline)
        refusal = _lost(held) or _refusal(held, None if held.baseline is None else held.baseline.lost_share)
    if refusal is not None:
        passed, why = refusal
        return _result(held, passed, f"{_comparison(held)}: {why}")
    return _of_all(held, _compared_with_limit(held, figure_bounds(held)))


def _against(held: Held, baseline: GateSubject) -> Held:
    """Add the reference. A lost percentile of the baseline counts as its lower bound."""
    reference = _figure(held.gate, baseline)
    if isinstance(reference, AtLeast):
        metric, bound = held.gate.metric, reference.bound
        known = {metric: (bound, bound)}
        baseline = replace(baseline, latency_ms={**baseline.latency_ms, metric: bound}, latency_ci95_ms=known)
        subject = replace(held.subject, ratio={})  # its paired ratio has an unknown denominator
        return replace(held, subject=subject, baseline=baseline, reference=bound, reference_lost=True)
    held = replace(held, baseline=baseline, reference=reference)
    if held.estimate is None or isinstance(held.figure, AtLeast) or not math.isfinite(held.estimate.value):
        return held
    # The ratio of many short rounds is theirs, not that of all requests together.
    return replace(held, figure=held.estimate.value * reference)


def _lost(held: Held) -> tuple[bool | None, str] | None:
    """The outcome for a lost percentile and the reason; ``None`` if the percentile is known."""
    figure, subject = held.figure, held.subject
    if not isinstance(figure, AtLeast):
        return None
    unfinished = subject.requests.get("unfinished", 0)
    counts = ", ".join(f"{count} {name}" for name, count in subject.requests.items() if name != "ok" and count)
    why = f"it is among the requests that did not end ok ({counts} of {subject.total + unfinished})"
    if held.reference_lost:
        return None, f"{why}, and so is the baseline's"
    beyond = _COMPARE[held.gate.operator](figure.bound, held.limit)
    if held.gate.operator.startswith(">"):
        return (True if beyond and not subject.partial else None), why
    # In a partial run, requests in flight would have ended: it fails only by its lower bound.
    return (None if subject.partial and beyond else False), why + ("; the run is partial" if subject.partial else "")


def _of_all(held: Held, result: GateResult) -> GateResult:
    """Downgrade the result of a partial run: it passes no gate, and proves nothing as a baseline."""
    if result.passed and any(side is not None and side.partial for side in (held.subject, held.baseline)):
        name = "the run" if held.subject.partial else "the baseline"
        return replace(result, passed=None, reason=f"{result.reason}; {name} is partial: replay all of the traffic")
    if result.passed is False and held.reference_lost:
        why = "the baseline's is lost, only a lower bound is known"
        return replace(result, passed=None, reason=f"{result.reason}; {why}")
    return result


def _compared_with_limit(held: Held, bounds: Bounds | None) -> GateResult:
    gate, limit = held.gate, held.limit
    if not (math.isfinite(held.figure) and math.isfinite(limit)) or any(map(math.isnan, bounds or ())):
        reason = f"{_name(held)} has no interval from so few requests; replay more traffic"
        return replace(_result(held, None, reason), value=None)
    shown = _comparison(held)
    if bounds is not None:
        low, high = _near(held.figure, bounds) if gate.is_latency else bounds
        bounded = f"{_interval_name(held)} {gate.show(low)} to {gate.show(high)}"
        shown += f", {bounded}" if low > 0 or math.isfinite(high) else ", and so few replays cannot tell"
    if gate.is_latency and held.subject.lost:
        counted = "are not in it" if gate.metric == "mean" else "count as slower"
        shown += f"; {held.subject.lost} of {held.subject.total} requests did not end ok and {counted}"
    around = bounds or (held.figure, held.figure)
    at_lower, at_upper = (_COMPARE[gate.operator](end, limit) for end in around)
    if at_lower == at_upper:
        return _result(held, at_lower, shown)
    more = more_needed(held, around)
    undecided = _result(held, None, f"{shown}: {more.advice}", runs=more.runs)
    return replace(undecided, more_requests=more.requests, more_minutes=more.minutes)


def _near(figure: float, bounds: Bounds) -> Bounds:
    """Bounds to show: an end so far from the figure that it says nothing is open."""
    low, high = bounds
    return (low if low * _FAR >= figure else 0.0, high if high <= figure * _FAR else math.inf)


def _result(held: Held, passed: bool | None, reason: str, *, runs: int | None = None) -> GateResult:
    unknown = held.gate.needs_history and held.level is None
    return GateResult(
        gate=held.gate,
        value=held.figure if isinstance(held.figure, AtLeast) else finite(held.figure),
        limit=None if unknown else finite(held.limit),
        passed=passed,
        reason=reason,
        more_runs=runs,
    )


def exit_code(results: Iterable[GateResult]) -> int:
    """1 if a gate failed, else 3 if one is undecided, else 0."""
    outcomes = [result.passed for result in results]
    if any(passed is False for passed in outcomes):
        return EXIT_GATE_FAILED
    return EXIT_INCONCLUSIVE if None in outcomes else EXIT_OK


def _name(held: Held) -> str:
    return key_label(held.gate.metric)


def _comparison(held: Held) -> str:
    gate, level = held.gate, held.level
    shown = f"{_name(held)} is {gate.show(held.figure)}, limit {gate.show(held.limit)}"
    if level is None:
        return shown
    return f"{shown} from the median {gate.show(level.value)} of the last {counted(level.runs, 'run')}"


def _interval_name(held: Held) -> str:
    """Bounds of a paired ratio are wider than its 95 % interval and are labeled with their level."""
    if held.baseline is not None:
        if held.estimate is not None and held.estimate.decision is not None:
            return _bounds_name(held.estimate.level)
        if held.estimate is None and held.gate.is_latency:
            return _bounds_name(FINAL.level)
    return "95 % interval"


def _bounds_name(level: float) -> str:
    return f"{100 - float(f'{100 * level:.2g}'):.6g} % bounds"


def _figure(gate: Gate, subject: GateSubject) -> float:
    """The gate's figure for a subject.

    :raises InputError: it was not measured.
    """
    value = subject.figure(gate.metric)
    if value is None:
        raise InputError(
            f"--gate {gate.text}: found no {key_label(gate.metric)} in this run; expected one that measured it"
        )
    return value if isinstance(value, AtLeast) else float(value)


def _refusal(held: Held, usual_loss: float | None) -> tuple[bool | None, str] | None:
    """The outcome and the reason if the figure must not be compared with the limit; ``None`` if it may be.

    :param usual_loss: share of requests lost in the baseline or the history.
    """
    metric, subject = held.gate.metric, held.subject
    if metric == "accuracy":
        return None
    for side, name in ((subject, "the run"), (held.baseline, "the baseline")):
        if side is None:
            continue
        if not side.total:
            return None, f"nothing was recorded in {name}"
        if metric != "error_rate" and not side.requests.get("ok", 0):
            return (
                False if side is subject else None
            ), f"none of {counted(side.total, 'request')} in {name} ended ok"
        if metric != "error_rate" and not side.trustworthy:
            return None, f"{name} was replayed too late for its latencies to mean anything; use a quieter machine"
    fall = subject.lost_share - usual_loss if usual_loss is not None and held.gate.is_latency else 0.0
    if fall > MOST_LOST:
        name = "the history" if held.baseline is None else "the baseline"
        return None, f"{100 * fall:.1f} % more of the requests failed than in {name}; gate error_rate too"
    return None
