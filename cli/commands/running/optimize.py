"""``latfix optimize``: diagnose, try fixes on the same traffic, keep those that are proved, and write the plan."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latfix.cli.shared import options
from latfix.cli.shared.history_option import HistoryOption, Recording, is_off
from latfix.cli.shared.output_options import OutputOptions, Outputs
from latfix.errors import InputError
from latfix.formatting import LATENCY_KEYS, did_you_mean

if TYPE_CHECKING:
    from latfix.gates.syntax import Gate
    from latfix.results.comparison import Comparison
    from latfix.settings import Objective
    from latfix.traffic.schedule import Traffic


def optimize(
    workload: options.WorkloadArgument,
    *,
    replayed: options.ReplayOptions,
    budget: options.BudgetOption = "5m",
    objective: Annotated[
        str,
        typer.Option(
            "--objective",
            help="Minimize mean, p50, p90, p95, p99 or p99.9 latency, or maximize throughput; default: the "
            "workload's percentile.",
        ),
    ] = "",
    max_accuracy_drop: Annotated[
        float | None,
        typer.Option("--max-accuracy-drop", metavar="X", help="Largest allowed loss of accuracy."),
    ] = None,
    trials: Annotated[
        int | None, typer.Option("--trials", metavar="N", help="Replay at most N candidates; no limit by default.")
    ] = None,
    fix: Annotated[
        list[str] | None, typer.Option("--fix", metavar="ID", help="Try only this fix; may be repeated.")
    ] = None,
    no_fix: Annotated[
        list[str] | None, typer.Option("--no-fix", metavar="ID", help="Do not try this fix; may be repeated.")
    ] = None,
    plan: options.PlanOption = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume", metavar="DIR", help="Continue the optimization in this folder, with the same options."
        ),
    ] = None,
    gate: options.GateOption = None,
    history: HistoryOption = None,
    out: options.OutOption = None,
    written: OutputOptions,
) -> int:
    """Try fixes on the same traffic, and keep what is better.

    Replays recorded traffic with fixes applied, keeps those that are decisively better, and writes a plan and a
    report.
    """
    started = time.monotonic()
    from latfix.cli.shared.diagnose_flow import Gates
    from latfix.cli.shared.optimize_flow import optimize_into
    from latfix.gates.evaluate import check_gates
    from latfix.gates.syntax import parse_gate
    from latfix.runners.optimize.optimizer import Options
    from latfix.runners.replay.run_session import default_folder, open_folder, reopen_folder

    replayed.check()
    _check(trials, resume, out)
    only, exclude = _fix_ids("--fix", fix), _fix_ids("--no-fix", no_fix)
    if both := set(only) & set(exclude):
        raise InputError(f"--no-fix: found {', '.join(sorted(both))}, also given as --fix; expected either")
    search = Options(
        budget_s=options.parse_budget(budget),
        trials=trials,
        only=only,
        exclude=exclude,
        seed=replayed.seed,
        goal=check_objective(objective),
        throughput=objective == "throughput",
        started=started,
    )
    parsed = tuple(parse_gate(text) for text in gate or ())
    search = replace(search, undecided=undecided_gates(parsed) if parsed else None)
    check_gates(parsed, baseline=True, accuracy=True, causes=True, history=not is_off(history))
    spec = replayed.load_spec(workload)
    spec = replace(spec, objective=aimed_at(spec.objective, search.goal, max_accuracy_drop))
    settings, earlier = options.service_settings(spec, plan, replayed.device)
    schedule = options.load_traffic(spec, replayed)
    _check_budget(search.budget_s, schedule)
    gates = Gates(parsed, recording=Recording.open(history, parsed))
    outputs = Outputs.open("optimize", written)
    folder = reopen_folder(resume) if resume else open_folder(out or default_folder(spec.name, "optimize"))
    return optimize_into(
        folder,
        spec,
        schedule,
        settings,
        search,
        gates,
        outputs,
        started_from=earlier,
        plan="" if plan is None else str(plan),
        workload=workload,
        resume=resume,
    )


def undecided_gates(gates: Sequence[Gate]) -> Callable[[Comparison], bool]:
    """True for a comparison that leaves a gate on latency undecided, so that more rounds may decide it.

    Bounds of a ratio hold at all looks together. A gate against a number has no such bounds: if it is once found
    undecided, it is judged next when the budget ends.
    """
    from latfix.gates.evaluate import evaluate

    replayed = [gate for gate in gates if gate.metric in LATENCY_KEYS and not gate.needs_history]
    at_the_end: list[Gate] = []

    def undecided(comparison: Comparison) -> bool:
        subjects = comparison.gate_subjects()
        now = [gate for gate in replayed if gate not in at_the_end and evaluate(gate, *subjects).passed is None]
        at_the_end.extend(gate for gate in now if not gate.needs_baseline)
        return bool(now or at_the_end)

    return undecided


def check_objective(text: str) -> str | None:
    """The key of the statistic that ``text`` names; ``None`` for the workload's own percentile.

    Throughput is judged by the mean latency of requests that arrive faster than the service can serve them.

    :raises InputError: it names no statistic.
    """
    known = {name: name.replace(".", "_") for name in ("mean", "p50", "p90", "p95", "p99", "p99.9")}
    known["throughput"] = "mean"
    if text and text not in known:
        raise InputError(f"--objective: found {text!r}; expected one of {', '.join(known)}")
    return known.get(text)


def aimed_at(objective: Objective, goal: str | None, max_drop: float | None) -> Objective:
    """The workload's objective with the command's options applied; its limit is not one of another percentile.

    :raises InputError: the drop is negative or not a number.
    """
    from latfix.statistics.latency_summary import QUANTILES

    if max_drop is not None and not 0 <= max_drop < float("inf"):
        raise InputError(f"--max-accuracy-drop: found {max_drop:g}; expected a number of at least 0")
    percentile = 100 * QUANTILES[goal] if goal is not None and goal in QUANTILES else objective.percentile
    drop = objective.max_accuracy_drop if max_drop is None else max_drop
    limit = objective.slo_ms if math.isclose(percentile, objective.percentile) else None
    return replace(objective, percentile=percentile, slo_ms=limit, max_accuracy_drop=drop)


def _check_budget(budget_s: float, schedule: Traffic) -> None:
    """Refuse a budget in which nothing can be replayed."""
    from latfix.runners.optimize.screening_windows import SHORTEST_S

    least_s = min(SHORTEST_S, schedule.duration_s - schedule.start_s)
    if budget_s < least_s:
        raise InputError(
            f"--budget: found {budget_s:g} s; expected at least {least_s:.3g} s, which the shortest replay takes, "
            "and minutes to decide about fixes"
        )


def _check(trials: int | None, resume: Path | None, out: Path | None) -> None:
    """Check ``--trials`` and ``--resume``."""
    if trials is not None and trials < 1:
        raise InputError(f"--trials: found {trials}; expected 1 or more candidates")
    if resume is None:
        return
    if out is not None:
        raise InputError(f"--resume: found --out {out} as well; expected one of them: results go to {resume}")
    if not resume.is_dir():
        raise InputError(f"--resume: found no folder {resume}; expected the folder of an earlier optimization")


def _fix_ids(option: str, ids: list[str] | None) -> tuple[str, ...]:
    from latfix.runners.fixes import FIXES

    known = [fix.id for fix in FIXES]
    for name in ids or ():
        if name not in known:
            advice = did_you_mean(name, known, f"fixes are {', '.join(known)}")
            raise InputError(f"{option}: found {name!r}, which is not a fix; {advice}")
    return tuple(ids or ())
