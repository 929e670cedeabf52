"""``sweep.json``: the result of a sweep, described in docs/capacity.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from latfix.capacity.max_load import LargestLoad, at_least, pareto
from latfix.capacity.measured_load import Cell, LoadPoint, Spread, run_spread
from latfix.capacity.objective import TAIL_REQUESTS
from latfix.capacity.sweep_traffic import budget_for
from latfix.config.workload_toml import WorkloadSpec
from latfix.formatting import counted, finite, rate
from latfix.profilers.causes.host.core_takers import disturbed_replays
from latfix.results.sweep import (
    BestSetting,
    CapacityGate,
    ModelErrors,
    PointObjective,
    PointRun,
    Sweep,
    SweepObjective,
    SweepPoint,
    SweepTraffic,
    SweptSetting,
)
from latfix.runners.sweep.sweep_state import Outcome, Setting
from latfix.runners.sweep.theory import MODELS
from latfix.statistics.censored import Outcomes
from latfix.traffic.transforms import MAX_REQUESTS

#: Minimum length of a replay, in relaxation times of the queue, to represent a lasting load: after an empty start,
#: waits are a tenth below steady ones after 3, a quarter after 1 (benchmarks/capacity/sweep_decisions.py).
LEAST_SETTLED = 3.0
_WEEK_MIN = 7 * 24 * 60
#: Replays of the first requests only are reported if their rate differs by more than this share.
_PARTLY = 0.05

KNEE_RULE = (
    "the load at which throughput over the objective's percentile is largest: beyond it, one percent more load "
    "brings more than one percent more latency"
)


def points_document(spec: WorkloadSpec, outcome: Outcome) -> Sweep:
    """The document while a sweep runs: its points, without the answers that need all of them."""
    return Sweep(**_head(spec, outcome), state="running", points=_points(outcome, outcome.cells()))


def sweep_document(
    spec: WorkloadSpec, outcome: Outcome, *, seed: int, budget_s: float, at_least_rps: float | None = None
) -> Sweep:
    """The whole document.

    :param at_least_rps: limit of the gate; ``None`` without a gate.
    """
    cells = outcome.cells()
    known = {number: one.largest for number, one in outcome.answers.items() if one.largest is not None}
    best = _best(outcome, known)
    spread = run_spread([cell for own in cells.values() for cell in own])
    return Sweep(
        **_head(spec, outcome),
        state="interrupted" if outcome.interrupted else "complete",
        seed=seed,
        budget_s=budget_s,
        seconds=outcome.seconds,
        settings=tuple(_setting(outcome, setting, cells[setting.number]) for setting in outcome.settings),
        points=_points(outcome, cells),
        pareto=tuple(pareto([(number, cell) for number, own in cells.items() for cell in own])),
        knee_rule=KNEE_RULE,
        best=best,
        gate=None if at_least_rps is None else _gate(list(known.values()), at_least_rps),
        models={name: _typical_error(name, outcome) for name in MODELS},
        spread=spread,
        skipped=tuple(outcome.skipped),
        machine=outcome.meta.machine,
        versions=outcome.meta.versions,
        disturbed=disturbed_replays([one.disturbed for one in outcome.measured]),
        notes=(*outcome.notes, *_unsettled(outcome, best), *_notes(outcome, cells, spread)),
    )


def _head(spec: WorkloadSpec, outcome: Outcome) -> dict[str, Any]:
    part, target = outcome.part, outcome.target
    return {
        "workload": spec.name,
        "device": outcome.meta.device,
        "objective": SweepObjective(
            percentile=target.percentile, slo_ms=None if target.limit is None else target.limit * 1e3
        ),
        "traffic": SweepTraffic(
            recorded_rps=part.recorded,
            requests_per_point=len(part.traffic),
            repeated=part.repeated,
            dispersion=finite(part.dispersion),
            dispersion_recorded=finite(part.whole),
            gap_scv=part.bursts.gap_scv,
            index_of_dispersion=tuple(zip(part.bursts.windows, part.bursts.index, strict=True)),
        ),
    }


def _setting(outcome: Outcome, setting: Setting, cells: Sequence[Cell]) -> SweptSetting:
    answer, theory = outcome.answers.get(setting.number), outcome.theory.get(setting.number)
    costs = [one.costs for one in outcome.measured if one.setting == setting.number]
    return SweptSetting(
        id=setting.number,
        label=setting.label,
        values=setting.values,
        failure=setting.failure or None,
        largest=None if answer is None else answer.largest,
        knee=None if answer is None else answer.knee,
        most_achieved_rps=max((cell.achieved for cell in cells), default=None),
        capacity_rps=None if theory is None else finite(theory.capacity),
        service=None if theory is None else theory.service,
        predicted=() if answer is None else answer.predicted,
        **{
            name: max((each.get(name) or 0 for each in costs), default=0) or None
            for name in ("memory_bytes", "device_memory_bytes")
        },
    )


def _points(outcome: Outcome, cells: Mapping[int, Sequence[Cell]]) -> tuple[SweepPoint, ...]:
    return tuple(_point(outcome, number, cell) for number, own in cells.items() for cell in own)


def _point(outcome: Outcome, number: int, cell: Cell) -> SweepPoint:
    known = outcome.theory.get(number)
    theory = None if known is None else known.loads.get(cell.load)
    ones = outcome.points(number)[cell.load]
    points = [one.point for one in ones]
    outcomes = Outcomes.joined([point.outcomes for point in points])
    waits = np.concatenate([point.wait for point in points])
    statuses = dict.fromkeys(name for point in points for name in point.requests)
    slow, offered = cell.slow, cell.load * outcome.part.recorded
    return SweepPoint(
        setting=number,
        load=cell.load,
        offered_rps=offered,
        achieved_rps=cell.achieved,
        requests={name: sum(point.requests.get(name, 0) for point in points) for name in statuses},
        latency_ms=outcomes.summary_ms(),
        latency_ms_ok=Outcomes.answers(outcomes.ok_ns).summary_ms(),
        latency_ci95_ms=outcomes.intervals_ms(seed=0) if len(outcomes.ok_ns) and theory is not None else {},
        objective=PointObjective(
            percentile_ms=_ms(cell.percentile.value),
            ci95_ms=(_ms(cell.percentile.lo), _ms(cell.percentile.hi)),
            at_least=any(point.cut for point in points),
            meets=None if _contradicted(outcome, number, cell) else _concluded(outcome, number, cell),
            slow_share=None if slow is None else finite(slow.value),
            slow_share_ci95=None if slow is None else (slow.lo, slow.hi),
        ),
        enough_requests=cell.enough,
        saturated=cell.saturated,
        wait_ms={
            "mean": _ms(float(waits.mean())) if len(waits) else None,
            "p99": _ms(float(np.quantile(waits, 0.99))) if len(waits) else None,
        },
        utilization={
            "workers": _mean(points, "worker_share"),
            "held_open": _mean(points, "held_share"),
            "prepare": _mean(points, "prepare_share"),
        },
        batch_size=_mean(points, "mean_size"),
        in_flight_at_end=max(point.in_flight for point in points),
        trustworthy=all(point.trustworthy for point in points),
        dispersion=None if theory is None else theory.dispersion,
        predictions={} if theory is None else theory.predictions,
        reasons=() if theory is None else theory.reasons,
        runs=tuple(
            PointRun(
                folder=one.folder.relative_to(one.folder.parent.parent).as_posix(),
                kind=one.kind,
                began_s=one.began_s,
                percentile_ms=_ms(value),
                ended_early=one.point.cut,
                fresh_process=one.fresh,
                foretold_ms=None if one.predicted is None else one.predicted[0] * 1e3,
                foretold_ci95_ms=None if one.predicted is None else (one.predicted[1] * 1e3, one.predicted[2] * 1e3),
            )
            for one, value in zip(ones, cell.runs, strict=True)
        ),
    )


def _concluded(outcome: Outcome, number: int, cell: Cell) -> bool | None:
    """True if a load meets the objective by the interval of its setting's largest load."""
    answer = outcome.answers.get(number)
    return None if answer is None else answer.meets(cell.load * outcome.part.recorded)


def _contradicted(outcome: Outcome, number: int, cell: Cell) -> bool:
    """True if the percentile of the load's own replays is on the other side of the limit."""
    concluded, limit = _concluded(outcome, number, cell), outcome.target.limit
    if concluded is None or limit is None:
        return False
    if cell.percentile.value > limit:
        return concluded
    is_lower_bound = cell.saturated or any(one.point.cut for one in outcome.points(number)[cell.load])
    return not concluded and not is_lower_bound


def _mean(points: Sequence[LoadPoint], name: str) -> float:
    return float(np.mean([getattr(point, name) for point in points]))


def _best(outcome: Outcome, largest: Mapping[int, LargestLoad]) -> BestSetting | None:
    """The setting with the largest load, and those whose largest load may be as large."""
    bearing = {number: one for number, one in largest.items() if one.lo is not None}
    if not bearing:
        return None
    number = max(bearing, key=lambda key: (bearing[key].lo or 0.0, bearing[key].rps or 0.0))
    best = bearing[number]
    rivals = (
        other for other, one in largest.items() if other != number and (one.hi is None or one.hi > (best.lo or 0.0))
    )
    return BestSetting(
        setting=number,
        label=next(setting.label for setting in outcome.settings if setting.number == number),
        status=best.status,
        rps=best.rps,
        ci95_rps=best.ci95_rps,
        reason=best.reason,
        maybe_as_good=tuple(rivals),
    )


def _typical_error(name: str, outcome: Outcome) -> ModelErrors:
    """Median error of a model at loads to which it was not fitted, and which are not saturated."""
    waits, percentiles, silent = [], [], 0
    for number, cells in outcome.cells().items():
        theory = outcome.theory.get(number)
        for cell in cells:
            answer = None if theory is None or cell.saturated else theory.loads[cell.load].predictions[name]
            if answer is None or (answer.fitted and name != "replay_own"):
                continue
            if answer.mean_wait_ms is None or answer.percentile_ms is None:
                silent += 1
                continue
            measured = np.concatenate([one.point.wait for one in outcome.points(number)[cell.load]])
            waits += _factor(answer.mean_wait_ms, float(measured.mean()) * 1e3 if len(measured) else math.nan)
            percentiles += _factor(answer.percentile_ms, cell.percentile.value * 1e3)
    return ModelErrors(
        wait=float(np.median(waits)) if waits else None,
        percentile=float(np.median(percentiles)) if percentiles else None,
        loads=len(percentiles) + silent,
        silent=silent,
    )


def _factor(predicted: float, measured: float) -> list[float]:
    """How many times too large or too small the prediction is; empty if either is not positive and finite."""
    if not (math.isfinite(measured) and measured > 0 and predicted > 0):
        return []
    return [max(predicted / measured, measured / predicted)]


def _gate(largest: Sequence[LargestLoad], rps: float) -> CapacityGate:
    passed = at_least(largest, rps)
    lows = [one.lo for one in largest if one.lo is not None]
    highs = [one.hi for one in largest]
    if passed:
        reason = f"a load of {rate(max(lows))} meets the objective"
    elif passed is False:
        reason = f"the objective is missed from {rate(max(high for high in highs if high is not None))} on"
    else:
        low = rate(max(lows)) if lows else "no load"
        reason = f"{low} certainly meets the objective, and at {rate(rps)} the data cannot tell"
    return CapacityGate(at_least_rps=rps, passed=passed, reason=reason)


def _unsettled(outcome: Outcome, best: BestSetting | None) -> list[str]:
    """A note if replays near the largest load were too short to represent a lasting load."""
    if best is None or best.rps is None or best.setting not in outcome.theory:
        return []
    rps, entries = best.rps, outcome.theory[best.setting].loads
    points = outcome.points(best.setting)
    load = min(points, key=lambda each: abs(math.log(each * outcome.part.recorded / rps)))
    if load not in entries:
        return []
    span, settling = min(one.point.span for one in points[load]), entries[load].relaxation
    if span >= LEAST_SETTLED * settling:
        return []
    takes = f"about {settling:.2g} s to settle" if math.isfinite(settling) else "forever to settle, by the models"
    return [
        f"Replays at {rate(load * outcome.part.recorded)} last {span:.2g} s, and such a queue takes {takes}: if "
        "this load lasts, waits are longer, and the largest load may be lower; --requests makes points longer."
    ]


def _notes(outcome: Outcome, cells: Mapping[int, Sequence[Cell]], spread: Spread) -> list[str]:
    """Caveats for the reader of the figures."""
    every = [cell for own in cells.values() for cell in own]
    notes = []
    short = sum(not cell.enough and not cell.saturated for cell in every)
    if short:
        notes.append(
            f"{short} of {counted(len(every), 'point')} hold fewer than {TAIL_REQUESTS} requests beyond "
            f"p{outcome.target.percentile:g}: their intervals are wide, and unbounded above if no request was that "
            f"slow; {_longer(outcome)}."
        )
    if outcome.part.repeated > 1:
        held = len(outcome.part.traffic) // outcome.part.repeated
        notes.append(
            f"The recording holds {counted(held, 'request')}, and each point replays it {outcome.part.repeated} "
            "times: intervals are valid for this recording, not for other traffic like it."
        )
    if every and not spread.freedom:
        notes.append("No point was replayed twice: replays are assumed to differ by a tenth.")
    part = outcome.part
    known = math.isfinite(part.dispersion) and math.isfinite(part.whole) and part.whole > 0
    if known and not 0.67 < part.dispersion / part.whole < 1.5:
        calmer = "calmer" if part.dispersion < part.whole else "burstier"
        notes.append(
            f"The replayed part is {calmer} than the whole recording: index of dispersion {part.dispersion:.3g} "
            f"instead of {part.whole:.3g}."
        )
    doubtful = dict.fromkeys(
        f"{cell.load:.3g}" for number, own in cells.items() for cell in own if _contradicted(outcome, number, cell)
    )
    if doubtful:
        notes.append(
            f"Undecided at load {', '.join(doubtful)}: the percentile of its own replays lies on the other side of "
            "the limit than all replays together suggest."
        )
    partly = {
        one.load: one.point.offered
        for one in outcome.measured
        if abs(one.point.offered / (one.load * part.recorded) - 1) > _PARTLY
    }
    if partly:
        rates = ", ".join(f"{load:.3g} ({rate(sent)})" for load, sent in sorted(partly.items()))
        notes.append(
            "offered/s is the load times the recorded rate. The first requests, all that fit into a replay, arrive "
            f"at other rates at load {rates}."
        )
    late = sum(not one.point.trustworthy for one in outcome.measured)
    if late:
        notes.append(
            f"In {late} of {counted(len(outcome.measured), 'replay')} latfix sent requests late: do not trust their "
            "latencies."
        )
    if outcome.target.limit is None:
        notes.append("The workload has no slo_ms, so there is no largest load that meets it; set one with --slo MS.")
    return notes


def _longer(outcome: Outcome) -> str:
    """Options that give a point enough requests, if a budget of a week is enough."""
    needed = math.ceil(TAIL_REQUESTS / outcome.target.allowed - 1e-6)
    minutes = math.ceil(budget_for(needed, outcome.part.recorded) / 60)
    if needed > MAX_REQUESTS or minutes > _WEEK_MIN:
        return f"it takes {needed:,} requests a point; a lower --percentile takes fewer"
    return f"it takes {needed:,} requests a point: --budget {minutes}m or more, or --requests {needed}"


def _ms(seconds: float | None) -> float | None:
    return seconds * 1e3 if seconds is not None and math.isfinite(seconds) else None
