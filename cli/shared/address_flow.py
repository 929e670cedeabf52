"""Services at an address, which latfix does not run: their options and replays."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latfix.cli.shared.options import TrafficOptions, check_whole, given, load_traffic, refuse_given
from latfix.errors import InputError

if TYPE_CHECKING:
    from latfix.config.workload_toml import WorkloadSpec
    from latfix.run_record.chunked_record import RecordFile
    from latfix.run_record.run_record import RunRecord
    from latfix.runners.gate.served_arm import ServedArm
    from latfix.runners.http_target.http_session import HttpReplay
    from latfix.traffic.schedule import Traffic

#: How long after a replay the service may still write its recording: OpenTelemetry's exporters do so every 5 s.
_WRITTEN_LATE_S, _AGAIN_S = 6.0, 1.0
_SLO = re.compile(r"\s*(latency|ttft|gap|tpot)\s*<=?\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressOptions:
    """A service at an address."""

    body: Annotated[
        str | None,
        typer.Option(
            "--body",
            metavar="JSON|FILE",
            help="""Template of the request bodies: --body '{"inputs": "{payload}"}'.""",
        ),
    ] = None
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", metavar='"NAME: VALUE"', help="Header of every request; $NAME is taken from the environment."
        ),
    ] = None
    method: Annotated[str, typer.Option("--method", help="POST, PUT, PATCH, or without a body GET or DELETE.")] = (
        "POST"
    )
    model: Annotated[
        str, typer.Option("--model", help="Model of an OpenAI-compatible server; default: its first one.")
    ] = ""
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Timeout of a request.")] = 60.0
    slo: Annotated[
        list[str] | None,
        typer.Option(
            "--slo",
            metavar="EXPR",
            help='Limit of a good request: "latency<2000ms", "ttft<500ms", "gap<50ms" (the longest), "tpot<30ms" '
            "(mean per output token); goodput must meet all.",
        ),
    ] = None
    keep_alive: Annotated[
        bool, typer.Option("--keep-alive/--no-keep-alive", help="Reuse connections, or open one for each request.")
    ] = True
    cacert: Annotated[str, typer.Option("--cacert", metavar="FILE", help="CA certificates to trust.")] = ""
    insecure: Annotated[bool, typer.Option("--insecure", help="Accept any certificate.")] = False
    pid: Annotated[
        int | None,
        typer.Option("--pid", help="The service's process on this machine, to observe its threads and children."),
    ] = None
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="URL", help="Metrics of the service; default: /metrics at its address."),
    ] = None

    def refuse(self, workload: str) -> None:
        """Refuse options that only apply to an address.

        :raises InputError: naming the first that was given.
        """
        refuse_given(given(self), f"found {workload}; expected an address such as http://host/predict, or omit it")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLog:
    """The service's own recording."""

    server_log: Annotated[
        list[Path] | None,
        typer.Option(
            "--server-log",
            metavar="FILE",
            help="The service's own recording of the run, joined by X-Request-Id or traceparent: a log, or spans.",
        ),
    ] = None
    server_map: Annotated[
        list[str] | None,
        typer.Option("--server-map", metavar="NAME=COLUMN", help="Columns of that log, as --map for recordings."),
    ] = None

    def check(self) -> None:
        """Check before anything runs that the service can write its recording.

        :raises InputError: there is no folder for it, or columns without a recording.
        """
        for path in self.server_log or ():
            if not path.exists() and not path.parent.is_dir():
                raise InputError(f"--server-log: found no folder {path.parent}; expected the service's log or spans")
        if self.server_map and not self.server_log:
            raise InputError(f"--server-map: found {self.server_map[0]!r} without --server-log FILE; add it")

    def joined(
        self, record: RunRecord | RecordFile, pattern: str = "", *, expected: int = 0
    ) -> RunRecord | RecordFile:
        """The record joined with the service's own recording of the run.

        :param pattern: of a text log's lines.
        :param expected: requests for which to wait a while, because exporters write late.
        :raises InputError: that cannot be read, or holds no request of the run, which is kept.
        """
        from latfix.profilers.recordings.reader import ReadOptions
        from latfix.profilers.recordings.requests.joined_requests import join_recordings
        from latfix.run_record.chunked_record import open_record

        if not self.server_log:
            return record
        how = ReadOptions(mapping=tuple(self.server_map or ()), pattern=pattern)
        deadline = time.monotonic() + (_WRITTEN_LATE_S if expected else 0)
        while True:
            failure: InputError | None = None
            try:
                found = join_recordings(record.folder, self.server_log, how)
            except InputError as error:
                found, failure = 0, error
            if found >= expected or time.monotonic() >= deadline:
                break
            time.sleep(_AGAIN_S)
        if failure is not None:
            again = f"latfix report {shlex.quote(str(record.folder))} --server-log FILE joins another"
            message = failure.message.replace("--map", "--server-map")
            raise InputError(f"{message}; the run is kept: {again}") from failure
        return open_record(record.folder)


#: The options that apply to a comparison of two addresses.
ComparedOptions = Annotated[AddressOptions, {"slo", "keep_alive", "cacert", "insecure", "pid", "metrics"}]


def check_slo(expressions: Sequence[str] | None) -> dict[str, float]:
    """Limits in milliseconds, by figure.

    :raises InputError: an expression is malformed.
    """
    limits: dict[str, float] = {}
    for text in expressions or ():
        match = _SLO.fullmatch(text)
        if match is None:
            raise InputError(f'--slo: found {text!r}; expected latency, ttft, gap or tpot, as in "ttft<500ms"')
        limits[match.group(1)] = float(match.group(2)) * (1000.0 if match.group(3) == "s" else 1.0)
    return limits


def spec_of(workload: str, options: AddressOptions, traffic: Path | None, percentile: float | None) -> WorkloadSpec:
    """The service as a workload: name, traffic and objective.

    :raises InputError: it is not an address, or there is no traffic for it.
    """
    from latfix.config.workload_toml import WorkloadSpec
    from latfix.runners.http_target.address import parse_address
    from latfix.settings import Objective

    address = parse_address(workload)
    if traffic is None:
        raise InputError(f"{address.shown}: found no traffic; expected recorded requests: --traffic FILE")
    if not traffic.exists():
        raise InputError(f"{traffic}: found no such file; expected recorded traffic")
    limits = check_slo(options.slo)
    return WorkloadSpec(
        name=address.name,
        folder=Path(),
        entry="",
        traffic=traffic.resolve(),
        traffic_given=True,
        objective=Objective(percentile=percentile or 99.0, slo_ms=limits.get("latency")),
    )


def replay_of(
    workload: str, options: AddressOptions, spec: WorkloadSpec, traffic: Traffic, *, seed: int
) -> Callable[[Path], RunRecord]:
    """:func:`checked_replay` as a function of the folder, with progress."""
    from latfix.cli.shared.replay_progress import progress_of
    from latfix.runners.http_target import http_session

    replay = checked_replay(workload, options, spec, traffic, seed=seed)

    def into(folder: Path) -> RunRecord:
        with progress_of(spec.name, traffic, folder) as progress:
            return http_session.run(folder, replay, on_event=progress.on_event)

    return into


def checked_replay(
    workload: str, options: AddressOptions, spec: WorkloadSpec, traffic: Traffic, *, seed: int
) -> HttpReplay:
    """Check that the address answers and that the traffic can be sent to it.

    :raises InputError: it does not, or cannot.
    """
    from latfix.profilers.services.listening_processes import listening_processes
    from latfix.profilers.services.process_watch import ProcessWatch
    from latfix.runners.http_target import http_session
    from latfix.runners.http_target.address import Trust, check_method, check_timeout, parse_address, parse_headers
    from latfix.runners.http_target.body_template import read_template
    from latfix.runners.http_target.grpc_messages import check_supported

    address = parse_address(workload)
    if address.is_grpc:
        check_supported(address)
    headers = parse_headers(options.header or (), address)
    method, timeout = check_method(options.method), check_timeout(options.timeout)
    template = None if options.body is None else read_template(options.body)
    if options.pid is not None:
        ProcessWatch(options.pid).close()
    trust = Trust(cacert=options.cacert, insecure=options.insecure)
    endpoint = http_session.reach(address, trust)
    replay = http_session.HttpReplay(
        address=address,
        endpoint=endpoint,
        spec=spec,
        traffic=traffic,
        method=method,
        headers=headers,
        body=template,
        model_metadata=None
        if template is not None
        else http_session.read_model_metadata(address, endpoint, headers, trust),
        model=options.model,
        timeout_s=timeout,
        keep_alive=options.keep_alive,
        trust=trust,
        pid=options.pid,
        listening=listening_processes(str(endpoint.place[0]), address.port),
        metrics=http_session.find_metrics(address, headers, options.metrics, trust),
        server=http_session.server_name(address, endpoint, headers, trust),
        slo=check_slo(options.slo),
        seed=seed,
    )
    replay.check()
    return replay


def served_arm(
    label: str,
    command: str,
    address: str,
    options: AddressOptions,
    spec: WorkloadSpec,
    folder: Path,
    warm: Traffic,
    *,
    shared: bool,
) -> ServedArm:
    """One side of a gate: a command that serves an address.

    :param shared: the other side has the same address.
    :param folder: of its log.
    :param warm: requests to send before each replay.
    :raises InputError: the address or an option is invalid.
    """
    from latfix.runners.gate.served_arm import ServedArm
    from latfix.runners.http_target import http_session
    from latfix.runners.http_target.address import Trust, parse_address

    place, trust = parse_address(address), Trust(cacert=options.cacert, insecure=options.insecure)

    def make(traffic: Traffic, pid: int) -> HttpReplay:
        return checked_replay(address, replace(options, pid=pid), spec, traffic, seed=0)

    reach = partial(http_session.reach, place, trust)
    return ServedArm(label, command, folder / f"{label}.log", warm, reach, make, shared)


#: Default and maximum number of rounds of a comparison.
_ROUNDS, _MOST_ROUNDS = 3, 50


def replay_in_turns(
    addresses: tuple[str, ...],
    options: AddressOptions,
    traffic: Path | None,
    rounds: int | None,
    seed: int,
    folder: Path,
) -> list[Path]:
    """Replay the same traffic against two services alternately, swapping the order in each round.

    :returns: the runs' folders in ``folder``: base and new of each round.
    :raises InputError: there are not two addresses, or one cannot be used.
    """
    from latfix.runners.http_target.address import is_address
    from latfix.runners.replay.run_session import Interrupted

    for each in addresses:
        if not is_address(each):
            raise InputError(
                f"{each}: found a run together with an address; expected two addresses, or only folders of runs"
            )
    if len(addresses) != len(_SIDES):
        raise InputError(
            f"{addresses[-1]}: found {len(addresses)} addresses; expected two, and --rounds for more rounds"
        )
    number = _ROUNDS if rounds is None else rounds
    check_whole("--rounds", number, 1, _MOST_ROUNDS)
    replays = {}
    for side, address in zip(_SIDES, addresses, strict=True):
        spec = spec_of(address, options, traffic, None)
        replays[side] = replay_of(address, options, spec, load_traffic(spec, TrafficOptions()), seed=seed)
    try:
        for k in range(1, number + 1):
            for side in _SIDES if k % 2 else _SIDES[::-1]:
                replays[side](folder / f"{side}-{k}")
    except Interrupted:
        raise KeyboardInterrupt from None
    return [folder / f"{side}-{k}" for k in range(1, number + 1) for side in _SIDES]


_SIDES = ("base", "new")
