"""``latfix diagnose``: replay recorded traffic, and attribute the tail to causes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latfix.cli.shared import address_flow, options
from latfix.cli.shared.history_option import HistoryOption
from latfix.cli.shared.output_options import OutputOptions, Outputs
from latfix.cli.shared.request_options import DrillDown
from latfix.errors import InputError

if TYPE_CHECKING:
    from latfix.config.workload_toml import WorkloadSpec
    from latfix.run_record.run_record import RunRecord
    from latfix.traffic.schedule import Traffic


def diagnose(
    workload: options.DiagnosedArgument,
    *,
    replayed: options.ReplayOptions,
    plan: options.PlanOption = None,
    rounds: Annotated[
        int,
        typer.Option(
            "--rounds", metavar="N", help="Replay N times in fresh processes, to measure how restarts differ."
        ),
    ] = 1,
    percentile: options.PercentileOption = None,
    step: Annotated[
        str | None,
        typer.Option("--step", metavar="REGEX", help="For a device's recording: names of the events that are steps."),
    ] = None,
    pattern: options.PatternOption = "",
    gate: options.GateOption = None,
    baseline: options.BaselineOption = None,
    history: HistoryOption = None,
    drill_down: DrillDown,
    out: options.OutOption = None,
    written: OutputOptions,
    service: address_flow.AddressOptions,
    served: address_flow.ServerLog,
) -> int:
    """Replay traffic, and attribute slow requests to causes.

    A service at an address (http://, https://, or grpc://HOST:8001/v2/models/NAME/infer for Triton) is observed from
    the client side, and with --pid also through the kernel's counters. A recording of a device or of requests is
    diagnosed without a replay; if a log's columns have unusual names, --map latency_ms=COLUMN identifies them.
    """
    from latfix.cli.shared import recording_flow
    from latfix.cli.shared.diagnose_flow import check_percentile, conclude, diagnosed, parse_gates, with_rounds
    from latfix.profilers.recordings.detect import reader_of
    from latfix.profilers.recordings.reader import recorded_at
    from latfix.runners.http_target.address import is_address
    from latfix.runners.replay.run_session import Hung, Interrupted, default_folder, open_folder

    replayed.check()
    if rounds < 1:
        raise InputError(f"--rounds: found {rounds}; expected 1 or more")
    check_percentile(percentile)
    drill_down.check_slowest()
    again = {"--rounds": rounds if rounds != 1 else None}
    if recording_flow.is_recording(workload):
        if not pattern:
            reader_of(recorded_at(Path(workload)))  # raises for what no reader recognizes, before options are checked
        service.refuse(workload)
        of_groups = {**options.given(replayed), **options.given(drill_down), **options.given(served)}
        for_replays = {option: value for option, value in of_groups.items() if option not in ("--map", "--seed")}
        for_replays |= {"--plan": plan, "--history": history, **again}
        options.refuse_given(for_replays, f"found {workload}, a recording, which is not replayed; omit the option")
        gates = parse_gates(gate, baseline, "off")
        outputs = Outputs.open("diagnose", written)
        how = recording_flow.read_options(step, pattern, percentile, replayed)
        return recording_flow.diagnose(Path(workload), how, outputs, gates, out=out)
    if step is not None or (pattern and not served.server_log):
        name, expected = ("--pattern", "a text log") if pattern else ("--step", "a recording of a device")
        raise InputError(f"{name}: found {workload}, which is replayed; expected {expected}")
    served.check()
    if is_address(workload):
        for_own = {
            "--profile": replayed.profile or None,
            "--plan": plan,
            "--device": replayed.device,
            **again,  # latfix cannot restart that service
        }
        options.refuse_given(for_own, f"found {workload}, a service that latfix does not run; omit the option")
        spec = address_flow.spec_of(workload, service, replayed.traffic, percentile)
        ready = partial(address_flow.replay_of, workload, service, spec, seed=replayed.seed)
    else:
        service.refuse(workload)
        options.refuse_given(
            options.given(served), f"found {workload}, whose requests latfix itself records; omit the option"
        )
        spec = replayed.load_spec(workload)
        ready = partial(_replay_of, spec, plan, replayed.device, seed=replayed.seed)
    schedule = options.load_traffic(spec, replayed)
    drill_down.check_size(len(schedule))
    drill_down.check(schedule)
    gates = parse_gates(gate, baseline, history)
    replay = ready(schedule)
    outputs = Outputs.open("diagnose", written)
    folder = open_folder(out or default_folder(spec.name, "diagnose"))
    interrupted, failure = False, ""
    with outputs.in_any_case(spec.name, gates.texts):
        try:
            record = replay(folder)
        except Interrupted as stopped:
            record, interrupted = stopped.record, True
        except Hung as stopped:
            record, failure = stopped.record, stopped.message
        joined = served.joined(record, pattern, expected=int((record.requests["http_status"] > 0).sum()))
        others: list[RunRecord] = []
        if not failure:
            interrupted |= _again(replay, record.folder, others, 1 if interrupted else rounds)
        diagnosis = diagnosed(joined, percentile=percentile, seed=replayed.seed, folder=record.folder)
        if others:
            diagnosis = with_rounds(diagnosis, record, others)
        return conclude(
            joined,
            diagnosis,
            outputs,
            gates,
            seed=replayed.seed,
            workload=workload,
            interrupted=interrupted,
            failure=failure,
            drill_down=drill_down,
        )


def _again(replay: Callable[[Path], RunRecord], folder: Path, again: list[RunRecord], rounds: int) -> bool:
    """Replay in further fresh processes, into ``rounds/`` of the first run's folder. Returns True if interrupted."""
    from latfix.runners.replay.run_session import Interrupted, open_folder

    try:
        for number in range(2, rounds + 1):
            again.append(replay(open_folder(folder / "rounds" / str(number))))
    except Interrupted:
        return True
    return False


def _replay_of(
    spec: WorkloadSpec, plan: Path | None, device: str | None, traffic: Traffic, *, seed: int
) -> Callable[[Path], RunRecord]:
    """The replay of a workload that latfix runs."""
    from latfix.cli.shared.replay_progress import replay_with_progress
    from latfix.runners.replay.run_session import Replay

    settings, fixes = options.service_settings(spec, plan, device)
    replay = Replay(
        spec=spec,
        traffic=traffic,
        settings=settings,
        plan=None if plan is None else str(plan),
        seed=seed,
        fixes=tuple(fix.id for fix in fixes),
    )
    return lambda folder: replay_with_progress(folder, replay)
