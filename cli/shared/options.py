"""Options that several commands share: the workload, its traffic and its settings."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from latfix.errors import InputError

if TYPE_CHECKING:
    from latfix.config.plan import PlannedFix
    from latfix.config.workload_toml import WorkloadSpec
    from latfix.settings import RunnerSettings
    from latfix.traffic.schedule import Traffic

WorkloadArgument = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        help="A workload's folder, a model file with --traffic, or the name of a sample.",
        show_default=False,
    ),
]
DiagnosedArgument = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD",
        help="A workload's folder, a model file with --traffic, the name of a sample, an address, or a recording.",
        show_default=False,
    ),
]
TrafficOption = Annotated[
    Path | None,
    typer.Option("--traffic", metavar="FILE", help="Recorded traffic to replay instead of the workload's own."),
]
MapOption = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="FEATURE=EXPR",
        help='Derive a feature from others: "tokens=min(input_tokens/16,256)"; may be repeated.',
    ),
]
SkipBadLinesOption = Annotated[
    bool, typer.Option("--skip-bad-lines", help="Skip and count malformed lines instead of stopping at the first.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of everything random; recorded.")]
BudgetOption = Annotated[
    str, typer.Option("--budget", metavar="TIME", help="Time for the whole command: 90s, 5m or 1h.")
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="A new folder for the results; one in latfix-runs/ without it."),
]
KeepOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="A new folder for the results; nothing is kept without it."),
]
JsonOption = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE", help="Write the result as JSON; with - to standard output, instead of the report."
    ),
]
GateOption = Annotated[
    list[str] | None,
    typer.Option("--gate", metavar="EXPR", help='Fail unless it holds: "p99<200ms", "p99<=baseline*1.05".'),
]
PercentileOption = Annotated[
    float | None, typer.Option("--percentile", help="The tail to explain; the workload's objective by default.")
]
PatternOption = Annotated[
    str,
    typer.Option(
        "--pattern",
        metavar="REGEX",
        help="For a text log: named groups, such as (?P<latency_ms>[0-9.]+) and (?P<end>\\S+).",
    ),
]
BaselineOption = Annotated[
    Path | None, typer.Option("--baseline", metavar="RUN", help="Folder of the run that gates compare with.")
]
PlanOption = Annotated[
    Path | None, typer.Option("--plan", metavar="FILE", help="Apply a plan that latfix optimize wrote.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficOptions:
    """The traffic."""

    mapping: MapOption = None
    skip_bad_lines: SkipBadLinesOption = False
    speed: Annotated[float, typer.Option("--speed", metavar="X", help="Replay X times as fast as recorded.")] = 1.0
    to_duration: Annotated[
        float | None, typer.Option("--to-duration", metavar="SECONDS", help="Scale the replay to SECONDS.")
    ] = None
    duration: Annotated[
        float | None,
        typer.Option("--duration", metavar="SECONDS", help="Replay only the first SECONDS (after scaling)."),
    ] = None
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", help="Replay only the first N requests.")] = (
        None
    )
    repeat: Annotated[int, typer.Option("--repeat", metavar="N", help="Replay the traffic N times in a row.")] = 1

    def check(self) -> None:
        """Check the values.

        :raises InputError: a value is out of range, naming the option.
        """
        check_positive("--speed", self.speed, "a number")
        check_positive("--to-duration", self.to_duration, "seconds")
        if self.to_duration is not None and self.speed != 1.0:
            raise InputError("--to-duration: found --speed as well; expected one of them")
        check_positive("--duration", self.duration, "seconds")
        if self.limit is not None and self.limit < 1:
            raise InputError(f"--limit: found {self.limit}; expected 1 or more requests")
        check_whole("--repeat", self.repeat, 1, 100_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions(TrafficOptions):
    """The replay.

    ``Annotated[ReplayOptions, {"speed", …}]`` is the group without some options (:func:`one_by_one`).
    """

    traffic: TrafficOption = None
    profile: Annotated[
        str, typer.Option("--profile", metavar="NAME", help="Use [profile.NAME] of the workload's workload.toml.")
    ] = ""
    seed: SeedOption = 0
    device: Annotated[
        str | None, typer.Option("--device", help="auto, cpu, cuda or cuda:N, instead of the workload's own.")
    ] = None

    def check(self) -> None:
        """Check the values.

        :raises InputError: a value is out of range, naming the option.
        """
        TrafficOptions.check(self)
        check_seed(self.seed)

    def load_spec(self, workload: str) -> WorkloadSpec:
        """The workload, checked to run here.

        :raises InputError: it is invalid, or a package that it needs is missing.
        """
        from latfix.config.workload_toml import check_runs, load_spec

        spec = load_spec(workload, traffic=self.traffic, profile=self.profile)
        check_runs(spec)
        return spec


def one_by_one(command: Callable[..., Any]) -> Callable[..., Any]:
    """Expand each parameter of a command that is a dataclass of options into the single options.

    The first line of the dataclass's docstring is their heading in ``--help``.
    ``Annotated[Group, {"name", ...}]`` excludes the named options of a group: they keep their defaults.
    """
    hints, groups = get_type_hints(command, include_extras=True), dict[str, tuple[Any, list[str]]]()
    single = dict[str, inspect.Parameter]()
    for name, parameter in inspect.signature(command).parameters.items():
        hint, excluded = hints[name], set[str]()
        if get_origin(hint) is Annotated and is_dataclass(get_args(hint)[0]):
            hint, excluded = get_args(hint)
        if not is_dataclass(hint):
            single[name] = parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        own = get_type_hints(hint, include_extras=True)
        shown = {one.name: one.default for one in fields(hint) if one.name not in excluded}
        groups[name] = hint, list(shown)
        for each, default in shown.items():
            kind, option = get_args(own[each])
            option = copy(option)  # several groups may share it
            option.rich_help_panel = (hint.__doc__ or "Options").partition("\n")[0].rstrip(".")
            single[each] = inspect.Parameter(
                each, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
            )

    def call(**values: Any) -> Any:
        given = {name: group(**{each: values.pop(each) for each in shown}) for name, (group, shown) in groups.items()}
        return command(**values, **given)

    call.__doc__ = command.__doc__
    call.__signature__ = inspect.signature(command).replace(parameters=list(single.values()))  # type: ignore[attr-defined]
    call.__annotations__ = {name: parameter.annotation for name, parameter in single.items()}
    return call


def load_traffic(spec: WorkloadSpec, options: TrafficOptions) -> Traffic:
    """The schedule to replay: read, mapped, repeated, scaled and cut, in this order."""
    from latfix.traffic.derived_features import parse_map_option
    from latfix.traffic.io.reader import read_traffic
    from latfix.traffic.transforms import limit, repeat, scale_time, scale_to_duration, slice_time, without_lead

    mapping = {**spec.traffic_map, **parse_map_option(options.mapping or ())}
    traffic = read_traffic(spec.traffic, mapping=mapping, skip_bad_lines=options.skip_bad_lines)
    if not len(traffic):
        raise InputError(f"{spec.traffic}: found no request; expected at least one")
    times, speed = options.repeat * spec.repeat, options.speed * spec.speed
    if times > 1:
        traffic = repeat(traffic, times)
    if speed != 1.0:
        traffic = scale_time(traffic, speed)
    if options.to_duration is not None:
        traffic = scale_to_duration(without_lead(traffic), options.to_duration)
    if options.duration is not None:
        traffic = without_lead(traffic)
        first = float(traffic.arrival_ns[0]) / 1e9
        if options.duration <= first:
            raise InputError(
                f"--duration: found no request in the first {options.duration:g} s; the first one is at {first:g} s"
            )
        traffic = slice_time(traffic, 0.0, options.duration)
    if options.limit is not None:
        traffic = limit(traffic, options.limit)
    return traffic


def given(group: Any) -> dict[str, object]:
    """The options of a group that differ from their defaults, by name."""
    hints, found = get_type_hints(type(group), include_extras=True), dict[str, object]()
    for one in fields(group):
        if (value := getattr(group, one.name)) != one.default:
            declared: str = get_args(hints[one.name])[1].default  # "--name", or "--on/--off" of what is on by default
            found[declared.rpartition("/")[2]] = value
    return found


def refuse_given(given: Mapping[str, object], why: str) -> None:
    """Refuse options that do not apply.

    :param given: values by option, ``None`` for those not given.
    :raises InputError: naming the first that was given, and the reason.
    """
    for option, value in given.items():
        if value is not None:
            raise InputError(f"{option}: {why}")


def check_positive(option: str, value: float | None, expected: str) -> None:
    """Refuse a value that is given and not a finite number above 0."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise InputError(f"{option}: found {value}; expected {expected} above 0")


def check_whole(option: str, value: int | None, least: int, most: int) -> None:
    """Refuse a whole number that is given and out of range."""
    if value is not None and not least <= value <= most:
        raise InputError(f"{option}: found {value}; expected a whole number from {least} to {most}")


def check_seed(seed: int) -> int:
    """Check and return the seed.

    :raises InputError: it is negative or too large.
    """
    if not 0 <= seed < 2**63:
        raise InputError(f"--seed: found {seed}; expected a whole number from 0 to 2^63 - 1")
    return seed


def check_device(device: str | None) -> dict[str, str]:
    """Settings that ``--device`` overrides.

    :raises InputError: it is not a device.
    """
    if device is None:
        return {}
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,2})?", device):
        raise InputError(f"--device: found {device!r}; expected auto, cpu, cuda or cuda:N")
    return {"device": device}


def parse_budget(text: str) -> float:
    """Seconds of ``90s``, ``5m``, ``1.5h`` or a plain number of seconds.

    :raises InputError: it has another form, or is not above zero.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|)", text.strip())
    seconds = float(found[1]) * {"s": 1, "": 1, "m": 60, "h": 3600}[found[2]] if found else 0.0
    if not 0 < seconds <= 7 * 86400:
        raise InputError(f"--budget: found {text!r}; expected a time like 90s, 5m or 1h, at most a week")
    return seconds


def service_settings(
    spec: WorkloadSpec, plan: Path | None, device: str | None
) -> tuple[RunnerSettings, tuple[PlannedFix, ...]]:
    """The workload's settings with ``--plan`` and ``--device`` applied, and the plan's fixes.

    A plan for another workload is applied with a warning on standard error.

    :raises InputError: the plan cannot be read, or the device is invalid.
    """
    settings = spec.settings
    fixes: tuple[PlannedFix, ...] = ()
    if plan is not None:
        from latfix.runners.host.apply_plan import with_plan

        settings, applied = with_plan(settings, plan)
        if strange := applied.strange_to(spec.name):
            typer.echo(f"warning: {strange}", err=True)
        fixes = applied.fixes
    return settings.with_overrides(check_device(device)), fixes
