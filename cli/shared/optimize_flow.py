"""``latfix optimize`` after its options are checked: search, write, show, evaluate gates."""

from __future__ import annotations

import datetime
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import latfix
from latfix.cli.shared.diagnose_flow import Gates, with_stories
from latfix.cli.shared.output_options import Outputs
from latfix.cli.shared.replay_progress import ReplayLines
from latfix.config.plan import Plan, PlannedFix, write_plan
from latfix.config.workload_toml import WorkloadSpec
from latfix.errors import EXIT_INTERRUPTED, RunnerError
from latfix.files.atomic_write import write_json
from latfix.formatting import LATENCY_KEYS
from latfix.gates.evaluate import GateResult, evaluate, exit_code
from latfix.gates.subject import GateSubject, with_percentile_ratios
from latfix.history.rows import HistoryRow, row_of, run_name, series_of
from latfix.profilers.causes.host.core_takers import disturbance
from latfix.profilers.diagnose import write_causes
from latfix.profilers.drilldown.explain import explain_slowest
from latfix.reports.html import change_page, pages
from latfix.reports.next_commands import workload_argument
from latfix.reports.terminal import comparison
from latfix.reports.terminal.diagnosis import render_tail
from latfix.results.comparison import RATIO_KEYS, Summary, objective_key
from latfix.results.diagnosis import Diagnosis
from latfix.results.optimization import BaselineVerdict, Optimization, PredictionErrors
from latfix.results.optimization_step import Step, ablation
from latfix.runners.optimize import optimizer
from latfix.runners.optimize.offered_load import saturating
from latfix.runners.optimize.optimizer import Options, Outcome
from latfix.runners.replay.run_session import Interrupted, writing_into
from latfix.settings import RunnerSettings
from latfix.statistics.censored import outcomes_of
from latfix.statistics.decision import RatioEstimate
from latfix.statistics.percentiles import percentile_grid
from latfix.traffic.schedule import Traffic


def optimize_into(
    folder: Path,
    spec: WorkloadSpec,
    traffic: Traffic,
    settings: RunnerSettings,
    options: Options,
    gates: Gates,
    outputs: Outputs,
    *,
    started_from: Sequence[PlannedFix] = (),
    plan: str = "",
    workload: str | None = None,
    resume: Path | None = None,
) -> int:
    """Search, and write ``optimization.json``, ``plan.toml`` and ``report.html`` into ``folder``.

    :param started_from: fixes of an earlier plan that ``settings`` already contain; the new plan includes them.
    :param plan: the path of that plan; empty without one.
    :param workload: as the user typed it, if known.
    :param resume: the folder of a continued optimization, equal to ``folder``; else ``None``.
    """
    console, progress = outputs.console(), ReplayLines()
    with outputs.in_any_case(spec.name, gates.texts):
        if options.throughput:
            watch, say = progress.replay, progress.say
            traffic = saturating(
                spec, traffic, settings, folder, budget_s=options.budget_s, watch=watch, say=say, seed=options.seed
            )
        search = optimizer.Optimizer(
            spec,
            traffic,
            settings,
            folder,
            options,
            watch=progress.replay,
            say=progress.say,
            show=lambda diagnosis: console.print(render_tail(diagnosis)),
            resume=resume is not None,
        )
        try:
            outcome = search.run()
        except (Interrupted, KeyboardInterrupt):
            kept = folder / "baseline"
            if kept.is_dir():
                shown = f"latfix report {shlex.quote(str(kept))}"
                progress.say(f"Interrupted during the baseline; show the recorded part with: {shown}")
            raise KeyboardInterrupt from None
        return _conclude(folder, spec, outcome, gates, outputs, started_from, plan, workload)


def _conclude(
    folder: Path,
    spec: WorkloadSpec,
    outcome: Outcome,
    gates: Gates,
    outputs: Outputs,
    started_from: Sequence[PlannedFix],
    plan: str,
    workload: str | None,
) -> int:
    """Evaluate the gates, write, show, record, and return the exit code."""
    results, row = _judge(folder, gates, outcome, plan)
    found = _optimization(folder, spec, outcome, results)
    document = found.to_json()
    with writing_into(folder):
        _write_baseline_diagnosis(outcome)
        _write_plan(folder / "plan.toml", outcome, found, started_from)
        write_json(folder / "optimization.json", document)
        known = outcome.after_diagnosis if outcome.after else outcome.diagnosis
        last, stories = with_stories(outcome.after or outcome.baseline, known)
        change_page.write_optimization_report(
            folder / "report.html",
            found,
            diagnosis=outcome.diagnosis,
            before=outcome.before or outcome.baseline,
            after=outcome.after,
            last=last,
            stories=stories,
        )
    typed = workload_argument(outcome.baseline.meta, typed=workload)
    render, verbose = comparison.render_optimization, outputs.verbose
    outputs.show(lambda: render(found, folder=folder, workload_argument=typed, verbose=verbose), results)
    outputs.write(
        document,
        extra={"causes": [cause.to_json() for cause in outcome.diagnosis.causes]},
        failure=outcome.failure,
        interrupted=outcome.interrupted,
        typed=typed,
        plan=str(folder / found.plan),
    )
    if row is not None:
        gates.recording.add(row)
    if outcome.interrupted:
        return EXIT_INTERRUPTED
    if outcome.failure:
        raise RunnerError(outcome.failure)
    return exit_code(results)


def _judge(folder: Path, gates: Gates, outcome: Outcome, plan: str) -> tuple[list[GateResult], HistoryRow | None]:
    """The gates' results, and the optimization's history row if it is recorded."""
    meta, recording = outcome.baseline.meta, gates.recording
    after, before = _subjects(outcome, [gate.metric for gate in gates.gates])
    series = series_of(meta, command="optimize", plan=plan)
    past = recording.past(series, but=run_name(meta, folder))
    results = [evaluate(gate, after, before, past=past) for gate in gates.gates]
    if not recording.records:
        return results, None
    grid = percentile_grid(outcomes_of(outcome.after or outcome.baseline))
    row = row_of(
        outcome.baseline,
        replace(after, latency_ms={**grid, **after.latency_ms}),
        series,
        verdict=outcome.verdict,
        settings=outcome.settings.to_json(),
        gates=[result.to_json() for result in results],
        against_history=[gate.text for gate in gates.gates if gate.needs_history],
        folder=folder,
        interrupted=outcome.interrupted or bool(outcome.failure),
    )
    return results, row


def _subjects(outcome: Outcome, metrics: Sequence[str]) -> tuple[GateSubject, GateSubject]:
    """Gate subjects with and without the fixes; percentiles that the summary lacks are from the last round."""
    if outcome.final is None:
        same = replace(GateSubject.from_diagnosis(outcome.diagnosis), accuracy=outcome.accuracies[0])
        same = same.with_percentiles(metrics, outcome.baseline)
        return same, same
    after, before = outcome.final.gate_subjects()
    # Only diagnoses have shares of causes: those of the last replay with the fixes, and of the baseline.
    after, before = _with_causes(after, outcome.after_diagnosis), _with_causes(before, outcome.diagnosis)
    if not outcome.kept:  # nobody will run what was refuted
        same = before.with_percentiles(metrics, outcome.before or outcome.baseline)
        return same, same
    last = (outcome.after or outcome.baseline, outcome.before or outcome.baseline)
    return with_percentile_ratios(after, before, last, metrics)


def _with_causes(subject: GateSubject, diagnosis: Diagnosis | None) -> GateSubject:
    if diagnosis is None:
        return subject
    known = GateSubject.from_diagnosis(diagnosis)
    return replace(
        subject,
        unexplained_share=known.unexplained_share,
        cause_shares=known.cause_shares,
        cause_shares_ci95=known.cause_shares_ci95,
    )


def _optimization(folder: Path, spec: WorkloadSpec, outcome: Outcome, gates: Sequence[GateResult]) -> Optimization:
    runs = {"baseline": outcome.baseline, "before": outcome.before, "after": outcome.after}
    final, diagnosis, meta = outcome.final, outcome.diagnosis, outcome.baseline.meta
    unchanged = RatioEstimate(value=1.0, lo=1.0, hi=1.0)
    baseline = _baseline(outcome)
    # Of the replays behind the verdict: the final ones, or the baseline.
    disturbed = disturbance(outcome.baseline.samples) if final is None else final.disturbed
    return Optimization(
        workload=spec.name,
        device=meta.device,
        # Disturbed replays do not prove that there is no gain.
        verdict="inconclusive" if disturbed and outcome.verdict == "no_gain" else outcome.verdict,
        disturbed=disturbed,
        objective=meta.objective.to_json(),
        before=final.before if final is not None else baseline,
        after=final.after if final is not None else baseline,
        ratio=final.ratio if final is not None else dict.fromkeys(RATIO_KEYS, unchanged),
        rounds=final.rounds if final is not None else 0,
        proved=tuple(outcome.proved) if final is not None else (),
        judged=final.judged if final is not None else objective_key(outcome.baseline),
        changes=_changes(outcome),
        accuracy_kind=outcome.accuracy_kind,
        answers=outcome.answers,
        accuracy_limit=outcome.accuracy_limit,
        diagnosis=BaselineVerdict(verdict=diagnosis.verdict, sentence=diagnosis.sentence),
        steps=tuple(step.tried() for step in outcome.steps),
        ablation=ablation(outcome.kept, final, outcome.shares, outcome.adds),
        prediction_error=PredictionErrors.from_json(outcome.prediction_errors()),
        candidates=tuple(outcome.candidates),
        floor_ms=outcome.floor_ms,
        layers=outcome.layers,
        gates=tuple(gates),
        plan="plan.toml",
        records={name: _relative(record.folder, folder) for name, record in runs.items() if record is not None},
        interrupted=outcome.interrupted,
        machine=meta.machine,
        versions=meta.versions,
        notes=tuple(_notes(outcome)),
    )


def _changes(outcome: Outcome) -> dict[str, tuple[Any, Any]]:
    """Settings that the plan changes, before and after; environment variables one by one."""
    meta = outcome.baseline.meta
    first, changes = meta.settings.to_json(), dict[str, tuple[Any, Any]]()
    made = meta.model.get("made_of", {})
    if made.get("file") and made.get("runtime") == "ONNX Runtime":
        first["backend"] = "onnxruntime"  # which runs the file itself with the default setting
    for step in outcome.kept:
        for key, value in step.settings.items():
            if isinstance(value, dict):
                old = first.get(key) or {}
                changes |= {f"{key}.{name}": (old.get(name), each) for name, each in value.items()}
            else:
                changes[key] = (first.get(key), value)
    return {key: pair for key, pair in changes.items() if pair[0] != pair[1]}


def _relative(path: Path, folder: Path) -> str:
    """The path relative to the optimization's folder, which may be moved."""
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _notes(outcome: Outcome) -> Iterator[str]:
    yield from outcome.notes
    if outcome.final is not None:
        yield from (note for note in outcome.final.notes if not note.startswith("settings:"))  # listed in the plan
        if not outcome.kept:
            what = "took no effect" if outcome.final.verdict == "better" else "together were worse"
            yield f"In the final replay, the kept fixes {what}: the plan contains none of them."
    elif not outcome.interrupted:
        yield 'No fix was kept, so there was no final replay: "after" is the baseline itself.'


def _baseline(outcome: Outcome) -> Summary:
    diagnosis = outcome.diagnosis
    return Summary(
        latency_ms=diagnosis.latency_ms,
        latency_ms_ok=diagnosis.latency_ms_ok,
        latency_ci95_ms=diagnosis.latency_ci95_ms,
        throughput_rps=diagnosis.throughput_rps,
        requests=diagnosis.counts,
        accuracy=outcome.accuracies[0],
        trustworthy=diagnosis.trustworthy,
    )


def _write_baseline_diagnosis(outcome: Outcome) -> None:
    """Write diagnosis and page into the folders of the baseline and of the last replay with the fixes."""
    pairs = [(outcome.baseline, outcome.diagnosis)]
    if outcome.after is not None and outcome.after_diagnosis is not None:
        pairs.append((outcome.after, outcome.after_diagnosis))
    for record, diagnosis in pairs:
        write_json(record.folder / "diagnosis.json", diagnosis.to_json())
        write_causes(diagnosis, record.folder / "causes.parquet")
        stories = explain_slowest(record, diagnosis.ledger)
        pages.write_run_report(record.folder / "report.html", record, diagnosis, stories=stories)


def planned_fixes(started_from: Sequence[PlannedFix], steps: Sequence[Step]) -> tuple[PlannedFix, ...]:
    """Each fix once, those of ``steps`` last, with the settings of its earlier versions."""
    fixes = {fix.id: fix for fix in started_from}
    for step in steps:
        earlier = fixes.pop(step.fix, None)
        settings = {**(earlier.settings if earlier else {}), **step.settings}
        fixes[step.fix] = PlannedFix(id=step.fix, settings=settings, reason=step.reason, verified=step.verified)
    return tuple(fixes.values())


def _write_plan(path: Path, outcome: Outcome, found: Optimization, started_from: Sequence[PlannedFix]) -> None:
    measured: dict[str, float] = {}
    final = outcome.final
    if final is not None:
        for key in LATENCY_KEYS:
            for when, arm in (("before", final.before), ("after", final.after)):
                if math.isfinite(arm.latency_ms[key]):
                    measured[f"{key}_{when}_ms"] = arm.latency_ms[key]
        for key, estimate in final.ratio.items():
            if math.isfinite(estimate.value) and not estimate.lost:
                measured[f"{key}_ratio"] = estimate.value
                ends = {"low": estimate.lo, "high": estimate.hi}
                measured |= {f"{key}_ratio_{end}": ratio for end, ratio in ends.items() if math.isfinite(ratio)}
        for when, score in zip(("before", "after"), outcome.accuracies, strict=True):
            if score is not None:
                measured[f"accuracy_{when}"] = score
    machine = {key: value for key, value in outcome.baseline.meta.machine.items() if value is not None}
    write_plan(
        Plan(
            workload=found.workload,
            fixes=planned_fixes(started_from, outcome.kept),
            measured=measured,
            machine=machine,
            verdict=found.verdict if outcome.kept else "",  # else it is about fixes that the plan does not have
            rounds=found.rounds if outcome.kept else 0,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            latfix=latfix.__version__,
        ),
        path,
    )
