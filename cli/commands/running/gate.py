"""``latfix gate``: two services replayed alternately until gates on the difference are decided."""

from __future__ import annotations

import contextlib
import math
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import typer

from latfix.cli.shared import address_flow, options
from latfix.cli.shared.output_options import OutputOptions, Outputs
from latfix.errors import EXIT_GATE_FAILED, EXIT_INCONCLUSIVE, EXIT_OK, InputError, RunnerError
from latfix.formatting import count, counted, milliseconds, seconds, significant

if TYPE_CHECKING:
    from latfix.config.workload_toml import WorkloadSpec
    from latfix.runners.gate.paired_rounds import Round, Side
    from latfix.runners.gate.served_arm import ServedArm
    from latfix.runners.gate.stopping_rule import Decision
    from latfix.settings import RunnerSettings
    from latfix.traffic.schedule import Traffic

    _Arms = Callable[[Path], tuple[Side, Side]]

_LABELS = ("base", "head")
_UNDECIDED = {"": EXIT_INCONCLUSIVE, "fail": EXIT_GATE_FAILED, "pass": EXIT_OK}
#: Stands for a free port.
PORT = "{port}"
#: Minimum number of warm-up requests before each measurement.
_WARM = 10
#: Share of the budget that one replay may take if a service cannot keep up.
_MOST_SHARE = 0.25


def gate(
    base: Annotated[str, typer.Argument(metavar="BASE", help="The service to compare with.", show_default=False)],
    head: Annotated[str, typer.Argument(metavar="HEAD", help="The service to judge.", show_default=False)],
    *,
    workload: Annotated[
        str,
        typer.Option(
            "--workload",
            metavar="W",
            help="For plans: their workload. For other folders: path of the workload inside them.",
        ),
    ] = "",
    gate: options.GateOption = None,
    budget: options.BudgetOption = "5m",
    undecided: Annotated[
        str, typer.Option("--undecided", metavar="fail|pass", help="Exit with 1 or 0 if a gate is undecided, not 3.")
    ] = "",
    replayed: Annotated[options.ReplayOptions, {"to_duration", "repeat"}],
    address: Annotated[
        str,
        typer.Option(
            "--address",
            metavar="URL",
            help="BASE and HEAD are commands that start a service at this URL. With {port} in all three, both start "
            "at once, each on a free port, so that more rounds fit the budget.",
        ),
    ] = "",
    service: address_flow.ComparedOptions,
    out: options.KeepOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the --out folder of an earlier latfix gate.")
    ] = False,
    written: OutputOptions,
) -> int:
    """Replay two services alternately until gates are decided.

    BASE and HEAD are workloads, plans of one workload (--workload), folders that contain it at the same path, such as
    two git worktrees, or commands that serve an address (--address).
    """
    from latfix.gates.syntax import parse_gate
    from latfix.runners.gate.stopping_rule import check

    if undecided not in _UNDECIDED:
        raise InputError(f"--undecided: found {undecided!r}; expected fail or pass")
    gates = [parse_gate(text) for text in gate or ()]
    check(gates)
    replayed.check()
    if force and out is None:
        raise InputError("--force: found no --out; expected the folder of an earlier gate that it replaces")
    budget_s, overrides = options.parse_budget(budget), options.check_device(replayed.device)
    if address:
        given = {"--workload": workload or None, "--profile": replayed.profile or None, "--device": replayed.device}
        options.refuse_given(given, f"found {address}, a service that latfix does not run; omit the option")
        name, schedule, arms = _served((base, head), address, service, replayed, budget_s)
    else:
        service.refuse(base)
        sides = [_side(text, workload, replayed.traffic, replayed.profile) for text in (base, head)]
        _check_use((base, head), workload)
        name, schedule, arms = _hosted(sides, replayed, overrides, budget_s)
    outputs = Outputs.open("gate", written)
    with outputs.in_any_case(name, [each.text for each in gates]), _records(out, force=force) as folder:
        decision = _rounds(arms(folder), schedule, folder, gates, budget_s, replayed.seed)
        return _conclude(decision, outputs, folder if out is not None else None, name, _UNDECIDED[undecided])


def _hosted(
    sides: Sequence[tuple[WorkloadSpec, RunnerSettings]],
    replayed: options.TrafficOptions,
    overrides: Mapping[str, Any],
    budget_s: float,
) -> tuple[str, Traffic, _Arms]:
    """Name of the judged service, the traffic, and a function that returns both arms, logging into a folder."""
    from latfix.config.workload_toml import check_runs
    from latfix.runners.replay.arm import Arm

    for spec, _ in sides:
        check_runs(spec)

    def arm(label: str, spec: WorkloadSpec, settings: RunnerSettings, folder: Path) -> Arm:
        warmup = {"warmup_requests": max(settings.warmup_requests, _WARM)}
        return Arm(label, spec, settings.with_overrides({**overrides, **warmup}), (), folder / f"{label}.log")

    def arms(folder: Path) -> tuple[Arm, Arm]:
        one, other = (arm(label, *side, folder) for label, side in zip(_LABELS, sides, strict=True))
        one.patience_s = other.patience_s = _patience(budget_s, one)
        one.most_s = other.most_s = _MOST_SHARE * budget_s
        return one, other

    return sides[1][0].name, options.load_traffic(sides[0][0], replayed), arms


def _served(
    commands: tuple[str, str],
    address: str,
    service: address_flow.AddressOptions,
    replayed: options.ReplayOptions,
    budget_s: float,
) -> tuple[str, Traffic, _Arms]:
    """The same for commands that serve an address."""
    from latfix.traffic.transforms import limit

    sides = places(commands, address)
    spec = address_flow.spec_of(sides[0][1], service, replayed.traffic, None)
    schedule = options.load_traffic(spec, replayed)

    def arms(folder: Path) -> tuple[ServedArm, ServedArm]:
        warm, shared = limit(schedule, _WARM), PORT not in address
        one, other = (
            address_flow.served_arm(label, *place, service, spec, folder, warm, shared=shared)
            for label, place in zip(_LABELS, sides, strict=True)
        )
        one.patience_s = other.patience_s = _patience(budget_s, one)
        return one, other

    name = spec.name
    if PORT in address:  # free ports differ in each run, and CI follows a test by its name
        name = name.replace(f":{urlsplit(sides[0][1]).port}", "")
    return name, schedule, arms


def _patience(budget_s: float, base: Side) -> Callable[[], float]:
    """How long each side may take to start."""
    from latfix.runners.replay.arm import patience_s

    until = time.monotonic() + budget_s
    return lambda: patience_s(budget_s / 2, until - time.monotonic(), base.start_s)


def places(commands: tuple[str, str], address: str) -> list[tuple[str, str]]:
    """Command and address of each side, with a free port of its own for :data:`PORT`.

    :raises InputError: only some of them contain it.
    """
    texts = (*commands, address)
    if without := [text for text in texts if PORT not in text]:
        if len(without) < len(texts):
            raise InputError(
                f"{without[0]}: found no {PORT}; expected it in both commands and in --address, or in none of them"
            )
        return [(command, address) for command in commands]
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in commands]
        ports = [str(each.getsockname()[1]) for each in sockets]
    return [
        (command.replace(PORT, port), address.replace(PORT, port))
        for command, port in zip(commands, ports, strict=True)
    ]


def _kind_of(text: str, workload: str) -> Literal["workload", "plan", "folder"]:
    """What a side is: a workload, a plan of one, or a folder that contains it at the path ``workload``.

    A folder that contains it may be a workload itself, or hold a plan.
    """
    from latfix.config.plan import PLAN_FILE
    from latfix.config.workload_toml import SPEC_FILE

    path = Path(text)
    if workload and path.is_dir() and not Path(workload).is_absolute() and (path / workload).exists():
        return "folder"
    if path.name == SPEC_FILE or not (path.suffix == ".toml" or path.is_dir()) or (path / SPEC_FILE).is_file():
        return "workload"
    return "plan" if not path.is_dir() or (path / PLAN_FILE).is_file() else "folder"


def _check_use(sides: Sequence[str], workload: str) -> None:
    """Check that ``--workload`` says something about the sides."""
    kinds = {text: _kind_of(text, workload) for text in sides}
    if not workload or "plan" in kinds.values():
        return
    for text, kind in kinds.items():
        if kind == "workload":
            raise InputError(
                f"--workload: found {workload!r} and {text}, a workload without {workload} in it; omit --workload, "
                "or give plans or folders that contain it"
            )
        if Path(workload).is_absolute():
            raise InputError(f"--workload: found {workload!r}; expected a path inside of {text}, as services/one")


def _side(text: str, workload: str, traffic: Path | None, profile: str) -> tuple[WorkloadSpec, RunnerSettings]:
    """A workload and its settings, from a workload, a plan, or a folder that contains a workload."""
    from latfix.config.workload_toml import load_spec
    from latfix.runners.http_target.address import is_address

    if is_address(text):
        raise InputError(
            f"{text}: found an address; expected a workload, a plan or a folder that contains a workload"
        )
    path, kind = Path(text), _kind_of(text, workload)
    if not path.exists() and " " in text:
        raise InputError(f"{text}: found no such file; a command that starts a service needs --address URL")
    if kind != "workload" and not workload:
        raise InputError(
            f"{text}: found no workload there; a plan or another folder needs --workload, a command --address"
        )
    place = {"workload": text, "plan": workload, "folder": str(path / workload)}[kind]
    spec = load_spec(place, traffic=traffic, profile=profile)
    return spec, options.service_settings(spec, path if kind == "plan" else None, None)[0]


def _records(out: Path | None, *, force: bool) -> contextlib.AbstractContextManager[Path]:
    """The folder of the records: ``--out``, or a temporary one."""
    from latfix.cli.shared.diagnose_flow import kept_or_temporary
    from latfix.runners.replay.folder_lock import release_all
    from latfix.runners.replay.run_session import reopen_folder

    if out is not None and out.is_dir() and any(out.iterdir()):
        # A failed gate leaves only the logs of its services.
        earlier = any((out / name).is_file() for name in ("comparison.json", f"{_LABELS[0]}.log"))
        if earlier and not force:
            raise InputError(f"{out}: found the folder of an earlier gate; --force replaces it")
        if force and not earlier:
            raise InputError(
                f"{out}: found a folder that latfix gate did not write; --force only replaces such a folder"
            )
        if force:
            shutil.rmtree(reopen_folder(out))
            release_all()
    return kept_or_temporary(out, "latfix-gate-")


def _rounds(
    arms: tuple[Side, Side], schedule: Traffic, folder: Path, gates: list[Any], budget_s: float, seed: int
) -> Decision:
    """Replay rounds until decided, then stop both processes."""
    from latfix.cli.shared.replay_progress import ReplayLines
    from latfix.runners.gate.paired_rounds import cut, part_seconds, replay_rounds
    from latfix.runners.gate.stopping_rule import decide, with_causes
    from latfix.statistics.group_sequential import FIRST_LOOK

    lines, until = ReplayLines(), time.monotonic() + budget_s
    try:
        lines.say(f"starting {_LABELS[0]} once, to see how long that takes")
        arms[0].running()
        parts = cut(schedule, part_seconds(schedule, budget_s, arms[0].start_s))
        lines.say(_parts_words(parts))

        def show(found: Round, number: int, most: int) -> None:
            left = max(until - time.monotonic(), 0.0)
            lines.say(f"round {number} of at most {most}: {_median_ms(found)}, {left:.0f} s left")
            if number == 1 and most < FIRST_LOOK:
                lines.say(_too_few_words(most, time.monotonic() - begun, max(arm.start_s for arm in arms)))

        rounds, begun = replay_rounds(*arms, parts, folder, lines.hidden, seed=seed), time.monotonic()
        decision = decide(gates, rounds, budget_s=until - time.monotonic(), seed=seed, on_round=show)
        decision.comparison = with_causes(decision, seed)
        return decision
    finally:
        for arm in arms:
            arm.close()


def _parts_words(parts: Sequence[Traffic]) -> str:
    """The length of a round; parts of equal duration hold different numbers of requests."""
    sizes = [len(part) for part in parts]
    many = f"{count(min(sizes))} to " if min(sizes) < max(sizes) else ""
    each = f"{many}{counted(max(sizes), 'request')}, {seconds(parts[0].duration_s)} each"
    return f"rounds of {each}; {counted(len(parts), 'part')} of the traffic"


def _too_few_words(most: int, round_s: float, start_s: float) -> str:
    """Fewer rounds than five decide only large differences."""
    from latfix.statistics.bootstrap_ratio import ROUNDS_ALONE

    wanted = math.ceil(ROUNDS_ALONE * round_s / 60)
    return (
        f"warning: the budget holds {counted(most, 'round')} of {round_s:.0f} s (a start takes {start_s:.0f} s), "
        f"which decide only large differences; expected {ROUNDS_ALONE} or more: --budget {wanted}m"
    )


def _median_ms(found: Round) -> str:
    from latfix.statistics.censored import outcomes_of

    before, after = (outcomes_of(record).summary_ms()["p50"] for record in (found.base, found.new))
    return f"p50 {significant(before)} -> {milliseconds(after)}"


def _conclude(decision: Decision, outputs: Outputs, out: Path | None, name: str, undecided: int) -> int:
    """Write, show, and return the exit code."""
    from latfix.cli.shared.diagnose_flow import conclude_comparison

    if decision.comparison is None:
        if decision.interrupted:
            raise KeyboardInterrupt
        raise RunnerError(f"{name}: other processes delayed the load generator in every round; use a quieter machine")
    comparison, last = replace(decision.comparison, more_by="--budget"), decision.rounds[-1]
    if out is not None:
        records = {label: str(record.folder.absolute()) for label, record in (("base", last.base), ("new", last.new))}
        comparison = replace(comparison, records=records)
    interrupted = decision.interrupted
    code = conclude_comparison(comparison, last.base, last.new, outputs, out, workload=name, interrupted=interrupted)
    return undecided if code == EXIT_INCONCLUSIVE else code
