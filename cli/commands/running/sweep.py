"""``latfix sweep``: the largest load of a service by settings, compared with queueing models."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latfix.cli.shared import options, output_options
from latfix.cli.shared.replay_progress import ReplayLines
from latfix.cli.shared.setting_options import setting_rule, setting_value
from latfix.errors import EXIT_GATE_FAILED, EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, EXIT_OK, InputError, RunnerError
from latfix.formatting import counted

if TYPE_CHECKING:
    from latfix.capacity.sweep_traffic import Part
    from latfix.results.sweep import Sweep as Swept
    from latfix.runners.sweep.sweep_state import Outcome, Setting
    from latfix.settings import RunnerSettings

_MOST_LOADS, _MOST_SETTINGS = 40, 64
#: Loads that determine the length of replays if none are given.
_USUAL_LOADS = (1.0, 1.0, 1.0)
#: Settings with compound values, which cannot be listed.
_NOT_SWEPT = ("env", "keep_precision")


def sweep(
    workload: options.WorkloadArgument,
    *,
    loads: Annotated[
        str | None,
        typer.Option("--loads", metavar="X,X", help="First loads, as multiples of the recorded rate: 0.5,1,2."),
    ] = None,
    rates: Annotated[
        str | None, typer.Option("--rates", metavar="X,X", help="First loads, in requests a second: 20,40,80.")
    ] = None,
    variants: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=V1,V2", help="Values of a setting; all combinations are replayed."),
    ] = None,
    plan: options.PlanOption = None,
    budget: options.BudgetOption = "5m",
    slo: Annotated[
        float | None, typer.Option("--slo", metavar="MS", help="Latency limit; default: the workload's slo_ms.")
    ] = None,
    percentile: Annotated[
        float | None, typer.Option("--percentile", help="Percentile that the limit is on; default: the workload's.")
    ] = None,
    requests: Annotated[
        int | None, typer.Option("--requests", metavar="N", help="Requests per replay; default: by budget.")
    ] = None,
    at_least: Annotated[
        float | None,
        typer.Option(
            "--at-least", metavar="RPS", help="Fail unless the largest load is at least RPS requests a second."
        ),
    ] = None,
    replayed: Annotated[options.ReplayOptions, {"speed", "to_duration", "repeat"}],
    out: options.OutOption = None,
    json_file: options.JsonOption = None,
) -> int:
    """Find the largest load that meets the objective.

    Replays recorded traffic at several loads and settings. Shows the knee, the largest load, and how far queueing
    models are off.
    """
    from latfix.capacity.objective import LatencyObjective
    from latfix.capacity.sweep_traffic import part_of, plan_requests, point_seconds, recorded_rate
    from latfix.cli.shared.diagnose_flow import check_percentile
    from latfix.runners.replay.run_origin import origin_now
    from latfix.runners.replay.run_session import default_folder, open_folder
    from latfix.runners.sweep.document import points_document, sweep_document
    from latfix.runners.sweep.sweep import Sweep
    from latfix.runners.sweep.sweep_state import Options

    replayed.check()
    budget_s = options.parse_budget(budget)
    check_percentile(percentile)
    options.check_positive("--slo", slo, "milliseconds")
    options.check_positive("--at-least", at_least, "requests a second")
    options.check_whole("--requests", requests, 20, 1_000_000)
    wanted = _wanted(loads, rates)
    combinations = parse_variants(variants or ())
    spec = replayed.load_spec(workload)
    limit_ms = slo if slo is not None else spec.objective.slo_ms
    target = LatencyObjective(
        percentile=percentile if percentile is not None else spec.objective.percentile,
        limit=None if limit_ms is None else limit_ms / 1e3,
    )
    if at_least is not None and target.limit is None:
        raise InputError("--at-least: found no objective to meet; expected slo_ms in workload.toml, or --slo MS")
    base, fixes = options.service_settings(spec, plan, replayed.device)
    settings = _settings(base, combinations)
    schedule = options.load_traffic(spec, replayed)
    rate = recorded_rate(schedule)
    grid = _grid(wanted, rate, in_rates=rates is not None, at_least=at_least)
    json_target = output_options.Destination.open("--json", json_file)
    count = requests or plan_requests(rate, grid or _USUAL_LOADS, len(settings), budget_s, target)
    shortest_s, longest_s = (0.0, math.inf) if requests else point_seconds(budget_s, len(settings))
    part = part_of(schedule, count, shortest_s=shortest_s, longest_s=longest_s)
    if grid:
        _check_budget(part, grid[-1], budget_s)
    folder = open_folder(out or default_folder(spec.name, "sweep"))
    shown = ReplayLines()
    shown.say(_plan_line(part, grid, settings, budget_s))
    runner = Sweep(
        spec,
        part,
        settings,
        folder,
        Options(loads=grid, budget_s=budget_s, target=target, seed=replayed.seed, gate_rps=at_least),
        watch=shown.replay,
        say=shown.say,
        keep=lambda so_far: _write(folder, points_document(spec, so_far)),
        fixes=tuple(fix.id for fix in fixes),
    )
    origin, outcome = origin_now(spec.folder), runner.run()
    found = sweep_document(spec, outcome, seed=replayed.seed, budget_s=budget_s, at_least_rps=at_least)
    return _conclude(folder, replace(found, origin=origin), outcome, json_target)


def _conclude(folder: Path, found: Swept, outcome: Outcome, target: output_options.Destination) -> int:
    from latfix.reports.html.sweep_page import write_sweep_report
    from latfix.reports.terminal.sweep import render_sweep

    _write(folder, found)
    write_sweep_report(folder / "report.html", found)
    target.report(found, lambda: render_sweep(found, folder=folder))
    if outcome.interrupted:
        return EXIT_INTERRUPTED
    if outcome.measured and not any(one.point.requests["ok"] for one in outcome.measured):
        first = next((one.point.error for one in outcome.measured if one.point.error), "none ended in time")
        raise RunnerError(f"{found.workload}: no request ended ok at any load; the first failure: {first}")
    if found.gate is None or found.gate.passed:
        return EXIT_OK
    return EXIT_INCONCLUSIVE if found.gate.passed is None else EXIT_GATE_FAILED


def _write(folder: Path, found: Swept) -> None:
    from latfix.files.atomic_write import write_json
    from latfix.runners.replay.run_session import writing_into

    with writing_into(folder):
        write_json(folder / "sweep.json", found.to_json())


def parse_numbers(option: str, text: str) -> tuple[float, ...]:
    """The distinct numbers above 0 of ``0.5,1,2``, ascending.

    :raises InputError: it is not such a list, or too long.
    """
    try:
        numbers = sorted({float(part) for part in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or not all(math.isfinite(number) and 0 < number <= 1e9 for number in numbers):
        raise InputError(f"{option}: found {text!r}; expected numbers above 0, separated by commas, as in 0.5,1,2")
    if len(numbers) > _MOST_LOADS:
        raise InputError(f"{option}: found {len(numbers)} numbers; expected at most {_MOST_LOADS}")
    return tuple(numbers)


def parse_variants(options: Sequence[str]) -> list[dict[str, Any]]:
    """All combinations of ``--set KEY=V1,V2`` options; a single empty one without options.

    :raises InputError: an unknown setting, an invalid value, or too many combinations.
    """
    lists: dict[str, list[Any]] = {}
    for text in options:
        key, values = _variant(text)
        if key in lists:
            raise InputError(f"--set {key}: found it twice; expected all values in one option, as in {key}=1,2,4")
        lists[key] = values
    combinations = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
    if len(combinations) > _MOST_SETTINGS:
        raise InputError(f"--set: found {len(combinations)} combinations; expected at most {_MOST_SETTINGS}")
    return combinations


def _variant(text: str) -> tuple[str, list[Any]]:
    key, equals, listed = (word.strip() for word in text.partition("="))
    if not equals or not listed:
        raise InputError(f"--set: found {text!r}; expected KEY=V1,V2, as in max_batch_size=1,4,8")
    rule = setting_rule(key, _NOT_SWEPT)
    return key, list(dict.fromkeys(setting_value(key, part.strip(), rule) for part in listed.split(",")))


def _settings(base: RunnerSettings, combinations: Sequence[dict[str, Any]]) -> list[Setting]:
    from latfix.runners.sweep.sweep_state import Setting

    def typed(values: dict[str, Any]) -> dict[str, Any]:
        return {key: float(each) if isinstance(getattr(base, key), float) else each for key, each in values.items()}

    return [
        Setting(number=number, values=values, settings=base.with_overrides(typed(values)))
        for number, values in enumerate(combinations)
    ]


def _wanted(loads: str | None, rates: str | None) -> tuple[float, ...]:
    if loads is not None and rates is not None:
        raise InputError("--rates: found --loads as well; expected one of them")
    if rates is not None:
        return parse_numbers("--rates", rates)
    return () if loads is None else parse_numbers("--loads", loads)


def _grid(wanted: Sequence[float], rate: float, *, in_rates: bool, at_least: float | None) -> tuple[float, ...]:
    """The loads to replay, as multiples of the recorded rate, including the gate's."""
    grid = {number / rate if in_rates else number for number in wanted}
    if at_least is not None:
        grid.add(at_least / rate)
    return tuple(sorted(grid))


def _check_budget(part: Part, load: float, budget_s: float) -> None:
    from latfix.formatting import rate

    seconds = part.seconds(load)
    if seconds > budget_s:
        raise InputError(
            f"--budget: found {budget_s:g} s; expected at least the {seconds:,.0f} s of the shortest replay "
            f"({len(part.traffic):,} requests at {rate(load * part.recorded)}), higher --loads, or fewer --requests"
        )


def _plan_line(part: Part, grid: Sequence[float], settings: Sequence[Setting], budget_s: float) -> str:
    """The planned replays, for standard error."""
    many = counted(len(settings), "setting")
    first = f"{counted(len(grid), 'load')}, then those" if grid else "the recorded rate, then loads"
    line = (
        f"sweep: {many}, {counted(len(part.traffic), 'request')} per replay, {part.seconds(1.0):.0f} s at the "
        f"recorded rate; first {first} that narrow the result, {budget_s:.0f} s at most"
    )
    seconds = len(settings) * sum(part.seconds(load) for load in grid)
    if seconds > budget_s:
        line += f"; not all of the first {len(grid) * len(settings)} replays will fit"
    return line
