"""``latfix diagnose``: replay recorded traffic, and say where the tail comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from latfix.cli.shared import options
from latfix.cli.shared.history_option import HistoryOption
from latfix.cli.shared.output_options import (
    AnnotationsOption,
    JUnitOption,
    MarkdownOption,
    Outputs,
    VerboseOption,
)
from latfix.cli.shared.request_options import DrillDown, RequestOption, SlowestOption
from latfix.errors import InputError


def diagnose(
    workload: options.DiagnosedArgument,
    traffic: options.TrafficOption = None,
    profile: options.ProfileOption = "",
    mapping: options.MapOption = None,
    plan: Annotated[Path | None, typer.Option("--plan", help="Apply a plan that latfix optimize wrote.")] = None,
    speed: options.SpeedOption = 1.0,
    to_duration: options.ToDurationOption = None,
    duration: options.DurationOption = None,
    limit: options.LimitOption = None,
    repeat: options.RepeatOption = 1,
    seed: options.SeedOption = 0,
    percentile: options.PercentileOption = None,
    device: options.DeviceOption = None,
    step: Annotated[
        str | None,
        typer.Option("--step", metavar="REGEX", help="The steps of a device's recording: names that it matches."),
    ] = None,
    gate: options.GateOption = None,
    baseline: options.BaselineOption = None,
    history: HistoryOption = None,
    skip_bad_lines: options.SkipOption = False,
    request: RequestOption = None,
    slowest: SlowestOption = None,
    out: options.OutOption = None,
    json_file: options.JsonOption = None,
    junit: JUnitOption = None,
    markdown: MarkdownOption = None,
    annotations: AnnotationsOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Replay traffic, and attribute slow requests to causes.

    A recording (of a device, of requests) is explained as it is; nothing is replayed.
    """
    from latfix.cli.shared import recording_flow
    from latfix.cli.shared.diagnose_flow import check_percentile, conclude, diagnosed, parse_gates
    from latfix.cli.shared.replay_progress import replay_with_progress
    from latfix.config.workload_toml import check_runs, load_spec
    from latfix.runners.replay.run_session import Interrupted, Replay, default_folder, open_folder

    replayed = options.TrafficOptions(
        mapping=tuple(mapping or ()),
        skip_bad_lines=skip_bad_lines,
        speed=speed,
        to_duration=to_duration,
        duration=duration,
        limit=limit,
        repeat=repeat,
    )
    replayed.check()
    options.check_seed(seed)
    check_percentile(percentile)
    drill_down = DrillDown.parse(request, slowest)
    if recording_flow.is_recording(workload):
        for_replays = {
            "--traffic": traffic,
            "--profile": profile or None,
            "--plan": plan,
            "--device": device,
            "--history": history,
            "--request": request,
            "--slowest": slowest,
        }
        recording_flow.refuse(workload, {**for_replays, **replayed.given()})
        gates = parse_gates(gate, baseline, "off")
        outputs = Outputs.open(
            "diagnose", json_file=json_file, junit=junit, markdown=markdown, annotations=annotations
        )
        asked = recording_flow.asked(step, percentile, seed, replayed)
        return recording_flow.diagnose(Path(workload), asked, outputs, gates, out=out, verbose=verbose)
    if step is not None:
        raise InputError(f"--step: found {workload}, which is replayed; expected a recording of a device")
    spec = load_spec(workload, traffic=traffic, profile=profile)
    check_runs(spec)
    settings, fixes = options.service_settings(spec, plan, device)
    schedule = options.load_traffic(spec, replayed)
    drill_down.check_size(len(schedule))
    drill_down.check(schedule)
    gates = parse_gates(gate, baseline, history)
    outputs = Outputs.open("diagnose", json_file=json_file, junit=junit, markdown=markdown, annotations=annotations)
    folder = open_folder(out or default_folder(spec.name, "diagnose"))
    replay = Replay(
        spec=spec,
        traffic=schedule,
        settings=settings,
        plan=None if plan is None else str(plan),
        seed=seed,
        fixes=tuple(fix.id for fix in fixes),
    )
    interrupted = False
    with outputs.in_any_case(spec.name, gates.texts):
        try:
            record = replay_with_progress(folder, replay)
        except Interrupted as stopped:
            record, interrupted = stopped.record, True
        diagnosis = diagnosed(record, percentile=percentile, seed=seed, folder=record.folder)
        return conclude(
            record,
            diagnosis,
            outputs,
            gates,
            seed=seed,
            workload=workload,
            interrupted=interrupted,
            drill_down=drill_down,
            verbose=verbose,
        )
