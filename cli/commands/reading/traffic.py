"""``latfix traffic``: inspect, convert, import and synthesize traffic."""

from __future__ import annotations

import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latfix.cli.shared import options, output_options
from latfix.errors import InputError
from latfix.formatting import counted, milliseconds, visible

if TYPE_CHECKING:
    from latfix.traffic.schedule import Traffic

traffic_app = typer.Typer(
    name="traffic",
    add_completion=False,
    help="Inspect, convert, import or synthesize traffic.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

#: Number of requests from which reading takes seconds.
_MANY = 50_000

Source = Annotated[Path, typer.Argument(metavar="IN", help="Recorded traffic, in any supported format.")]
OutputFile = Annotated[Path, typer.Argument(metavar="OUT", help="A .jsonl, .csv or .parquet file to write.")]


@traffic_app.command("inspect")
def inspect_command(
    file: Source,
    map_: options.MapOption = None,
    skip_bad_lines: options.SkipBadLinesOption = False,
    json_out: options.JsonOption = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", help="Draw rate and gaps into an .svg or .png file.")
    ] = None,
) -> None:
    """Show what traffic looks like.

    Shows rate over time, gaps, burstiness, features, and the kind of load.
    """
    from rich.console import Console

    from latfix.reports.charts.traffic_picture import check_picture, draw_shape
    from latfix.reports.terminal.traffic import render_shape
    from latfix.traffic.derived_features import parse_map_option
    from latfix.traffic.io.block_reader import read_in_blocks
    from latfix.traffic.io.reader import read_traffic
    from latfix.traffic.summary import describe

    figures = output_options.Destination.open("--json", json_out)
    if picture is not None:
        check_picture(picture)
        output_options.check_writable("--picture", str(picture))
    mapping = parse_map_option(map_ or [])
    with ReadingLine() as reading:
        traffic = read_in_blocks(file, mapping=mapping, skip_bad_lines=skip_bad_lines, on_rows=reading.show)
    if traffic is None:
        traffic = read_traffic(file, mapping=mapping, skip_bad_lines=skip_bad_lines)
    shape = describe(traffic)
    figures.write_json(shape.to_json())
    if picture is not None:
        draw_shape(shape, picture)
    if figures.to_stdout:
        return
    console = Console(highlight=False, soft_wrap=False)
    console.print(render_shape(shape))
    if picture is not None:
        console.print(f"\npicture: {picture}", markup=False, soft_wrap=True)


@traffic_app.command("convert")
def convert_command(
    source: Source,
    target: OutputFile,
    speed: Annotated[float | None, typer.Option(metavar="X", help="Make it X times as fast.")] = None,
    to_duration: Annotated[
        float | None, typer.Option(metavar="S", help="Scale time so that the last request is at S seconds.")
    ] = None,
    start: Annotated[float | None, typer.Option(metavar="S", help="Drop requests before S seconds.")] = None,
    end: Annotated[float | None, typer.Option(metavar="S", help="Drop requests from S seconds on.")] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Keep the first N requests.")] = None,
    repeat: Annotated[int | None, typer.Option(metavar="N", help="Repeat it N times in a row.")] = None,
    rate_factor: Annotated[
        float | None, typer.Option(metavar="X", help="Thin (X below 1) or densify it to X times the requests.")
    ] = None,
    cap_gaps: Annotated[
        float | None, typer.Option(metavar="S", help="Shorten idle gaps to at most S seconds.")
    ] = None,
    map_: options.MapOption = None,
    seed: Annotated[int, typer.Option(help="Seed of the random choices of --rate-factor.")] = 0,
    skip_bad_lines: options.SkipBadLinesOption = False,
) -> None:
    """Write traffic in latfix's own format.

    Options change it in this order: --map, --start/--end, --limit, --cap-gaps, --rate-factor, --repeat, --speed or
    --to-duration. The output's metadata lists them.
    """
    from latfix.traffic import transforms as transform
    from latfix.traffic.derived_features import parse_map_option
    from latfix.traffic.io.reader import read_traffic
    from latfix.traffic.io.writer import check_output, write_traffic

    if speed is not None and to_duration is not None:
        raise InputError("--speed: found together with --to-duration; expected one of the two")
    check_output(target, source)
    mapping = parse_map_option(map_ or [])
    traffic = read_traffic(source, mapping=mapping, skip_bad_lines=skip_bad_lines)
    read = len(traffic)
    if start is not None or end is not None:
        traffic = transform.slice_time(traffic, 0.0 if start is None else start, end)
    if limit is not None:
        traffic = transform.limit(traffic, limit)
    if cap_gaps is not None:
        traffic = transform.cap_gaps(traffic, cap_gaps)
    if rate_factor is not None:
        traffic = transform.resample_rate(traffic, rate_factor, seed)
    if repeat is not None:
        traffic = transform.repeat(traffic, repeat)
    if speed is not None:
        traffic = transform.scale_time(traffic, speed)
    if to_duration is not None:
        traffic = transform.scale_to_duration(traffic, to_duration)
    write_traffic(traffic, target)
    skipped = traffic.metadata.get("skipped_lines", 0)
    typer.echo(
        f"read {counted(read, 'request')} from {source} ({traffic.metadata['format']})"
        + (f", {counted(skipped, 'malformed line')} skipped" if skipped else "")
    )
    for entry in traffic.metadata["transforms"]:
        typer.echo(_transform_line(entry))
    typer.echo(_written_line(traffic, target))


@traffic_app.command("import")
def import_command(
    source: Annotated[Path, typer.Argument(metavar="LOG", help="An access log, Parquet, CSV or JSON Lines.")],
    target: Annotated[
        Path | None,
        typer.Argument(metavar="OUT", help="A .jsonl, .csv or .parquet file; default: LOG.traffic.jsonl."),
    ] = None,
    time: Annotated[str, typer.Option("--time", metavar="COLUMN", help="When requests arrived.")] = "",
    end: Annotated[str, typer.Option("--end", metavar="COLUMN", help="When requests ended, instead of --time.")] = "",
    latency: Annotated[
        str,
        typer.Option("--latency", metavar="COLUMN", help="Their latency; its unit is taken from the column's name."),
    ] = "",
    status: Annotated[str, typer.Option("--status", metavar="COLUMN", help="Their status.")] = "",
    feature: Annotated[
        list[str] | None,
        typer.Option("--feature", "--map", metavar="NAME=COLUMN", help="A size of the request; may be repeated."),
    ] = None,
    pattern: options.PatternOption = "",
) -> None:
    """Convert a log of requests into traffic.

    Logs of nginx, Apache, Envoy, HAProxy, AWS, gin, HAR, AIPerf, vLLM's benchmark, guidellm and Triton's trace are
    recognized; for other tables, name the columns by options, for other text logs give a pattern. Recorded latencies
    are kept, so that a replay can be compared with them.
    """
    from latfix.profilers.recordings.reader import ReadOptions
    from latfix.profilers.recordings.requests.readers import read_requests
    from latfix.traffic.io.writer import check_output, write_traffic
    from latfix.traffic.parsed_fields import RECORDED, recorded_summary_ms

    target = target or Path(f"{source.name}.traffic.jsonl")
    check_output(target, source)
    roles = {"arrival": time, "end": end, "latency": latency, "status": status}
    mapping = [*(f"{role}={column}" for role, column in roles.items() if column), *(feature or ())]
    table = read_requests(source, ReadOptions(mapping=tuple(mapping), pattern=pattern, times_only=True))
    if not len(table):
        raise InputError(f"{source}: found no requests; expected at least one")
    if not table.timed:
        raise InputError(f"{source}: found no column with the time of requests; name it: --time COLUMN")
    traffic = table.traffic(source.name)
    write_traffic(traffic, target)
    typer.echo(f"read {counted(len(table), 'request')} from {source} ({table.facts.get('format', 'requests')})")
    for note in table.notes:
        _say(f"  {note}")
    if table.resolution_ns >= 10**9:
        _say("  Times are known to the second only: bursts and gaps within seconds are not the callers'.")
    summary = recorded_summary_ms(traffic.features.get(RECORDED))
    if summary:
        _say("recorded latency: " + ", ".join(f"{name} {milliseconds(value)}" for name, value in summary.items()))
    features = ", ".join(traffic.features) or "none (--feature NAME=COLUMN adds one)"
    _say(f"features: {features}; no payloads: prepare must build inputs from the features")
    typer.echo(_written_line(traffic, target))


@traffic_app.command("synthesize")
def synthesize_command(
    target: OutputFile,
    kind: Annotated[str, typer.Option(help="poisson, gamma, bursts or periodic.")],
    rate: Annotated[float, typer.Option(help="Mean requests a second.")],
    duration: Annotated[float, typer.Option(metavar="S", help="Length in seconds.")],
    seed: Annotated[int, typer.Option(help="The same seed gives the same traffic.")] = 0,
    cv: Annotated[float, typer.Option(help="gamma: coefficient of variation of gaps; 0 constant, 1 Poisson.")] = 2.0,
    burst_on: Annotated[float, typer.Option(metavar="S", help="bursts: mean length of a burst.")] = 1.0,
    burst_off: Annotated[float, typer.Option(metavar="S", help="bursts: mean time between them.")] = 4.0,
    burst_factor: Annotated[float, typer.Option(help="bursts: rate within a burst, over the mean rate.")] = 4.0,
    period: Annotated[float, typer.Option(metavar="S", help="periodic: length of a period.")] = 10.0,
    amplitude: Annotated[float, typer.Option(help="periodic: amplitude of the rate, above 0, at most 1.")] = 0.8,
    feature: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DISTRIBUTION",
            help='E.g. "input_tokens=lognormal(4.3,0.8,8,512)"; uniform(low,high), constant(value). May be repeated.',
        ),
    ] = None,
) -> None:
    """Write traffic drawn from a random process."""
    from latfix.traffic.io.writer import check_output, write_traffic
    from latfix.traffic.synthesize import KINDS, FeatureSpec, Synthesis, synthesize

    known = next((name for name in KINDS if name == kind), None)
    if known is None:
        raise InputError(f"--kind: found {kind!r}; expected one of {', '.join(KINDS)}")
    check_output(target)
    synthesis = Synthesis(
        kind=known,
        rate=rate,
        duration_s=duration,
        seed=seed,
        cv=cv,
        burst_on_s=burst_on,
        burst_off_s=burst_off,
        burst_factor=burst_factor,
        period_s=period,
        amplitude=amplitude,
    )
    traffic = synthesize(synthesis, [FeatureSpec.parse(text) for text in feature or []])
    write_traffic(traffic, target)
    parameters = ", ".join(f"{name} {value}" for name, value in synthesis.parameters().items())
    typer.echo(f"synthesized {parameters}")
    typer.echo(_written_line(traffic, target))


def _say(line: str) -> None:
    """Print a line, folded to the width of the terminal (80 columns if there is none)."""
    width = shutil.get_terminal_size().columns
    typer.echo(textwrap.fill(line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False))


class ReadingLine:
    """Progress for a large file on standard error: a line that is cleared at the end, or a line every million."""

    def __init__(self) -> None:
        self._live, self._shown, self._next = sys.stderr.isatty(), False, 1_000_000

    def __enter__(self) -> ReadingLine:
        return self

    def show(self, rows: int) -> None:
        """Show the number of requests so far."""
        if self._live and rows > _MANY:
            sys.stderr.write(f"\r{rows:,} requests read")
            self._shown = True
        elif not self._live and rows >= self._next:
            sys.stderr.write(f"{rows:,} requests read\n")
            self._next = rows + 1_000_000

    def __exit__(self, *_error: object) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")


def _transform_line(entry: dict[str, object]) -> str:
    rest = ", ".join(
        f"{name} {value:.6g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in entry.items()
        if name != "transform" and value is not None
    )
    return visible(f"  {entry['transform']}: {rest}", limit=1000)


def _written_line(traffic: Traffic, target: Path) -> str:
    return f"wrote {counted(len(traffic), 'request')} over {traffic.duration_s:.6g} s to {target}"
