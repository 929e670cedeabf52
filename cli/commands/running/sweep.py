"""``latfix sweep``: how much load a service bears over settings, beside what queueing theory says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latfix.cli.shared import options
from latfix.cli.shared.replay_progress import ReplayLines
from latfix.cli.shared.setting_options import setting_rule, setting_value
from latfix.errors import (
    EXIT_GATE_FAILED,
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    InputError,
    RunnerError,
)

if TYPE_CHECKING:
    from latfix.capacity.sweep_traffic import Part
    from latfix.results.sweep import Outcome, Setting
    from latfix.results.sweep import Sweep as Swept
    from latfix.settings import RunnerSettings

_MOST_LOADS, _MOST_SETTINGS = 40, 64
#: Replays are made as long as if these loads were asked for, where none are.
_USUAL_LOADS = (1.0, 1.0, 1.0)
#: Settings that are no single value, and so cannot be listed.
_NOT_SWEPT = ("env", "keep_precision")


def sweep(
    workload: options.WorkloadArgument,
    *,
    loads: Annotated[
        str | None,
        typer.Option("--loads", help="Multiples of the recorded rate to replay first; chosen if left out."),
    ] = None,
    rates: Annotated[str | None, typer.Option("--rates", help="The same in requests a second: 20,40,80.")] = None,
    variants: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=V1,V2", help="Values of a setting to try; all combinations are replayed."),
    ] = None,
    plan: options.StartingPlanOption = None,
    budget: Annotated[str, typer.Option("--budget", help="Time for all replays: 90s, 5m, 1h.")] = "5m",
    slo: Annotated[
        float | None, typer.Option("--slo", metavar="MS", help="The limit; the workload's objective if left out.")
    ] = None,
    percentile: Annotated[
        float | None, typer.Option("--percentile", help="That the limit is on; the workload's if left out.")
    ] = None,
    requests: Annotated[
        int | None, typer.Option("--requests", metavar="N", help="Requests a point; by budget if left out.")
    ] = None,
    at_least: Annotated[
        float | None,
        typer.Option("--at-least", metavar="RPS", help="Fail unless it bears so many requests a second."),
    ] = None,
    traffic: options.TrafficOption = None,
    profile: options.ProfileOption = "",
    replayed: options.AtOwnLoad,
    seed: options.SeedOption = 0,
    device: options.DeviceOption = None,
    out: options.OutOption = None,
    json_file: options.JsonOption = None,
) -> int:
    """Find the largest load that meets the objective.

    Replays recorded traffic at several loads and settings: the knee, the largest load, and why theory is off.
    """
    from latfix.capacity.objective import Target
    from latfix.capacity.sweep_traffic import part_of, plan_requests, point_seconds, recorded_rate
    from latfix.cli.commands.running.optimize import parse_budget
    from latfix.cli.shared.diagnose_flow import check_percentile
    from latfix.config.workload_toml import check_runs, load_spec
    from latfix.results.sweep import Options
    from latfix.runners.replay.run_session import default_folder, open_folder
    from latfix.runners.sweep.document import points_document, sweep_document
    from latfix.runners.sweep.sweep import Sweep

    replayed.check()
    budget_s, seed = parse_budget(budget), options.check_seed(seed)
    check_percentile(percentile)
    _check_positive("--slo", slo, "milliseconds")
    _check_positive("--at-least", at_least, "requests a second")
    if requests is not None and not 20 <= requests <= 1_000_000:
        raise InputError(f"--requests: found {requests}; expected a whole number from 20 to 1000000")
    wanted = _wanted(loads, rates)
    combinations = parse_variants(variants or ())
    spec = load_spec(workload, traffic=traffic, profile=profile)
    check_runs(spec)
    limit_ms = slo if slo is not None else spec.objective.slo_ms
    target = Target(
        percentile=percentile if percentile is not None else spec.objective.percentile,
        limit=None if limit_ms is None else limit_ms / 1e3,
    )
    if at_least is not None and target.limit is None:
        raise InputError("--at-least: found no objective to meet; expected slo_ms in workload.toml, or --slo MS")
    base, fixes = options.service_settings(spec, plan, device)
    settings = _settings(base, combinations)
    schedule = options.load_traffic(spec, replayed)
    rate = recorded_rate(schedule)
    grid = _grid(wanted, rate, in_rates=rates is not None, at_least=at_least)
    json_target = options.Target.open("--json", json_file)
    count = requests or plan_requests(rate, grid or _USUAL_LOADS, len(settings), budget_s, target)
    shortest_s, longest_s = (0.0, math.inf) if requests else point_seconds(budget_s, len(settings))
    part = part_of(schedule, count, shortest_s=shortest_s, longest_s=longest_s)
    if grid:
        _check_that_a_point_fits(part, grid[-1], budget_s)
    folder = open_folder(out or default_folder(spec.name, "sweep"))
    shown = ReplayLines()
    shown.say(_plan_line(part, grid, settings, budget_s))
    runner = Sweep(
        spec,
        part,
        settings,
        folder,
        Options(loads=grid, budget_s=budget_s, target=target, seed=seed, gate_rps=at_least),
        watch=shown.replay,
        say=shown.say,
        keep=lambda so_far: _write(folder, points_document(spec, so_far)),
        fixes=tuple(fix.id for fix in fixes),
    )
    outcome = runner.run()
    found = sweep_document(spec, outcome, seed=seed, budget_s=budget_s, at_least_rps=at_least)
    return _conclude(folder, found, outcome, json_target)


def _conclude(folder: Path, found: Swept, outcome: Outcome, target: options.Target) -> int:
    from latfix.reports.html.sweep_page import write_sweep_report
    from latfix.reports.terminal.sweep import render_sweep

    _write(folder, found)
    write_sweep_report(folder / "report.html", found)
    target.report(found.to_json(), lambda: render_sweep(found, folder=folder))
    if outcome.interrupted:
        return EXIT_INTERRUPTED
    if outcome.measured and not any(one.point.requests["ok"] for one in outcome.measured):
        first = next((one.point.error for one in outcome.measured if one.point.error), "none ended in time")
        raise RunnerError(f"{found.workload}: no request ended ok at any load; the first failure: {first}")
    if found.gate is None or found.gate.passed:
        return EXIT_OK
    return EXIT_INCONCLUSIVE if found.gate.passed is None else EXIT_GATE_FAILED


def _write(folder: Path, found: Swept) -> None:
    from latfix.cli.shared.diagnose_flow import writing_into
    from latfix.files.atomic_write import write_json

    with writing_into(folder):
        write_json(folder / "sweep.json", found.to_json())


def parse_numbers(option: str, text: str) -> tuple[float, ...]:
    """Numbers above 0 of ``0.5,1,2``, ascending, each once.

    :raises InputError: it is none of these, or too many.
    """
    try:
        numbers = sorted({float(part) for part in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or not all(math.isfinite(number) and 0 < number <= 1e9 for number in numbers):
        raise InputError(f"{option}: found {text!r}; expected numbers above 0 with commas between, as in 0.5,1,2")
    if len(numbers) > _MOST_LOADS:
        raise InputError(f"{option}: found {len(numbers)} numbers; expected at most {_MOST_LOADS}")
    return tuple(numbers)


def parse_variants(options: Sequence[str]) -> list[dict[str, Any]]:
    """All combinations of ``--set KEY=V1,V2`` options; one empty combination for none.

    :raises InputError: a key that is no setting, a value that it cannot have, or too many combinations.
    """
    lists: dict[str, list[Any]] = {}
    for text in options:
        key, values = _variant(text)
        if key in lists:
            raise InputError(f"--set {key}: found it twice; expected all of its values in one, as in {key}=1,2,4")
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
    from latfix.results.sweep import Setting

    return [
        Setting(number=number, values=values, settings=base.with_overrides(_typed(base, values)))
        for number, values in enumerate(combinations)
    ]


def _typed(base: RunnerSettings, values: dict[str, Any]) -> dict[str, Any]:
    """Whole numbers where a number with decimals is expected are accepted, and made one."""
    return {key: float(value) if isinstance(getattr(base, key), float) else value for key, value in values.items()}


def _wanted(loads: str | None, rates: str | None) -> tuple[float, ...]:
    if loads is not None and rates is not None:
        raise InputError("--rates: found --loads as well; expected one of them")
    if rates is not None:
        return parse_numbers("--rates", rates)
    return () if loads is None else parse_numbers("--loads", loads)


def _grid(wanted: Sequence[float], rate: float, *, in_rates: bool, at_least: float | None) -> tuple[float, ...]:
    """The loads to replay, as multiples of the recorded rate; the gate's own is one of them."""
    grid = {number / rate if in_rates else number for number in wanted}
    if at_least is not None:
        grid.add(at_least / rate)
    return tuple(sorted(grid))


def _check_that_a_point_fits(part: Part, load: float, budget_s: float) -> None:
    seconds = part.seconds(load)
    if seconds > budget_s:
        raise InputError(
            f"--budget: found {budget_s:g} s; expected at least the {seconds:,.0f} s that the shortest point takes "
            f"({len(part.traffic):,} requests at {load * part.recorded:.3g}/s), higher --loads, or fewer --requests"
        )


def _check_positive(option: str, value: float | None, unit: str) -> None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise InputError(f"{option}: found {value}; expected {unit} above 0")


def _plan_line(part: Part, grid: Sequence[float], settings: Sequence[Setting], budget_s: float) -> str:
    """What is ahead, for standard error."""
    many = "1 setting" if len(settings) == 1 else f"{len(settings)} settings"
    first = f"{len(grid)} loads, then those" if grid else "the recorded rate, then loads"
    line = (
        f"sweep: {many}, {len(part.traffic):,} requests a replay, {part.seconds(1.0):.0f} s at the recorded rate; "
        f"first {first} that narrow the answer, {budget_s:.0f} s at most"
    )
    seconds = len(settings) * sum(part.seconds(load) for load in grid)
    if seconds > budget_s:
        line += f"; not all of the {len(grid) * len(settings)} first points will fit"
    return line
