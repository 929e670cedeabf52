"""``latfix optimize``: diagnose, try fixes on the same traffic, keep what is proved, and write the plan."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from latfix.cli.options import (
    DeviceOption,
    DurationOption,
    GateOption,
    JsonOption,
    JsonTarget,
    LimitOption,
    MapOption,
    OutOption,
    RepeatOption,
    SeedOption,
    SkipOption,
    SpeedOption,
    ToDurationOption,
    TrafficOption,
    TrafficOptions,
    WorkloadArgument,
    check_device,
    check_seed,
    load_traffic,
)
from latfix.errors import InputError


def optimize(
    workload: WorkloadArgument,
    traffic: TrafficOption = None,
    mapping: MapOption = None,
    budget: Annotated[
        str, typer.Option("--budget", help="Time for everything: 90s, 5m, 1h. What does not fit is skipped.")
    ] = "10m",
    fix: Annotated[
        list[str] | None, typer.Option("--fix", metavar="ID", help="Try only this fix; may be repeated.")
    ] = None,
    no_fix: Annotated[
        list[str] | None, typer.Option("--no-fix", metavar="ID", help="Do not try this fix; may be repeated.")
    ] = None,
    plan: Annotated[Path | None, typer.Option("--plan", help="Start from a plan that latfix optimize wrote.")] = None,
    speed: SpeedOption = 1.0,
    to_duration: ToDurationOption = None,
    duration: DurationOption = None,
    limit: LimitOption = None,
    repeat: RepeatOption = 1,
    seed: SeedOption = 0,
    device: DeviceOption = None,
    gate: GateOption = None,
    skip_bad_lines: SkipOption = False,
    out: OutOption = None,
    json_file: JsonOption = None,
) -> int:
    """Replay recorded traffic with fixes applied, keep what is decisively better, and write plan and report."""
    from latfix.cli.optimizing import optimize_into
    from latfix.gates import check_gates, parse_gate
    from latfix.plan import PlannedFix, read_plan
    from latfix.runners.optimizer import Options
    from latfix.runners.session import default_folder, open_folder
    from latfix.spec import load_spec

    options = TrafficOptions(
        mapping=tuple(mapping or ()),
        skip_bad_lines=skip_bad_lines,
        speed=speed,
        to_duration=to_duration,
        duration=duration,
        limit=limit,
        repeat=repeat,
    )
    options.check()
    search = Options(
        budget_s=parse_budget(budget),
        only=_fix_ids("--fix", fix),
        exclude=_fix_ids("--no-fix", no_fix),
        seed=check_seed(seed),
    )
    gates = [parse_gate(text) for text in gate or ()]
    check_gates(gates, baseline=True, accuracy=True, causes=True)
    spec = load_spec(workload, traffic=traffic)
    settings = spec.settings
    earlier: tuple[PlannedFix, ...] = ()
    if plan is not None:
        started = read_plan(plan)
        earlier, settings = started.fixes, settings.with_overrides(started.settings())
    settings = settings.with_overrides(check_device(device))
    schedule = load_traffic(spec, options)
    target = JsonTarget.open(json_file)
    folder = open_folder(out or default_folder(spec.name, "optimize"))
    return optimize_into(folder, spec, schedule, settings, search, gates, target, started_from=earlier)


def parse_budget(text: str) -> float:
    """Seconds of ``90s``, ``5m``, ``1.5h`` or a bare number of seconds.

    :raises InputError: it is none of these, or not above zero.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|)", text.strip())
    seconds = float(found[1]) * {"s": 1, "": 1, "m": 60, "h": 3600}[found[2]] if found else 0.0
    if not 0 < seconds <= 7 * 86400:
        raise InputError(f"--budget: found {text!r}; expected a time like 90s, 5m or 1h, at most a week")
    return seconds


def _fix_ids(option: str, ids: list[str] | None) -> tuple[str, ...]:
    import difflib

    from latfix.runners.fixes import FIXES

    known = [fix.id for fix in FIXES]
    for name in ids or ():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"fixes are {', '.join(known)}"
            raise InputError(f"{option}: found {name!r}, which is no fix; {advice}")
    return tuple(ids or ())
