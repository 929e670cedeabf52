"""``latfix export``: a run in the format of another tool."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latfix.errors import InputError

if TYPE_CHECKING:
    from latfix.files.json_documents import Document
    from latfix.reports.exports.formats import Format, Subject
    from latfix.results.diagnosis import StackTime
    from latfix.run_record.chunked_record import RecordSource

NAMES = (
    *("perfetto", "otlp", "openmetrics", "hdr", "speedscope", "csv", "parquet"),
    *("markdown", "plain", "github", "gitlab"),
)


def export(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run's folder, or another result's.", show_default=False)
    ],
    target: Annotated[str, typer.Option("--to", metavar="FORMAT", help=f"One of {', '.join(NAMES)}.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR/FILE", help="Write there instead of standard output; compressed if it ends in .gz."
        ),
    ] = None,
    endpoint: Annotated[
        str, typer.Option("--endpoint", metavar="URL", help="For otlp: send it to this collector, over HTTP.")
    ] = "",
) -> None:
    """Write a run in the format of another tool.

    Formats are traces, spans, metrics, histograms, tables, and reports of CI servers.
    """
    from latfix.formatting import did_you_mean
    from latfix.reports.exports.formats import ALIASES, FORMATS

    name = ALIASES.get(target, target)
    if name not in FORMATS:
        hint = did_you_mean(target, [*NAMES, *ALIASES])
        raise InputError(f"--to: found {target!r}; expected one of {', '.join(NAMES)}{f'; {hint}' if hint else ''}")
    chosen = FORMATS[name]
    if endpoint and (name != "otlp" or out is not None):
        found = f"--to {name}" if name != "otlp" else "--out"
        raise InputError(f"--endpoint: found together with {found}; expected --to otlp, without --out")
    subject = _subject(run, name, chosen)
    if endpoint:
        typer.echo(_send(subject, run, endpoint))
    elif out is None or str(out) == "-":
        if chosen.pieces is None:
            raise InputError(f"--to {name}: found no --out; expected --out FILE, since the format is binary")
        sys.stdout.writelines(chosen.pieces(subject))
    else:
        where = out / chosen.file if out.is_dir() else out
        _write(subject, chosen, where)
        typer.echo(f"wrote {where}")


def _send(subject: Subject, run: Path, endpoint: str) -> str:
    """Send spans and metrics to a collector; returns what was sent, in words."""
    from latfix.formatting import counted
    from latfix.reports.exports.otlp_http import Collector
    from latfix.reports.exports.otlp_metrics import otlp_metrics
    from latfix.reports.exports.otlp_spans import otlp_lines
    from latfix.results.diagnosis import Diagnosis

    collector, batches = Collector(endpoint), 0
    for line in otlp_lines(subject.requests):
        collector.post("traces", line)
        batches += 1
    result = _result(subject.requests.folder, subject.requests)
    also = ""
    if isinstance(result, Diagnosis):
        collector.post("metrics", otlp_metrics(result, subject.requests))
        also = " and the metrics of the diagnosis"
    return f"sent the spans of {run} in {counted(batches, 'batch')}{also} to {endpoint}"


def _write(subject: Subject, chosen: Format, where: Path) -> None:
    """Write a file whole or not at all."""
    import gzip

    from latfix.cli.shared.output_options import check_writable
    from latfix.files.atomic_write import replacement

    check_writable("--out", str(where))
    with replacement(where) as temporary, temporary.open("wb") as file:
        if where.suffix == ".gz":
            with gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as packed:
                chosen.write_to(subject, packed)  # type: ignore[arg-type]
        else:
            chosen.write_to(subject, file)


def _subject(run: Path, name: str, chosen: Format) -> Subject:
    """The input of a format."""
    from latfix.reports.exports.formats import Subject

    run = run.parent if run.name == "run.json" else run
    if not chosen.needs:
        source = _record(run)
        return Subject(record=source, result=None, stacks=_stacks(source) if name == "speedscope" else ())
    record = _record(run) if (run / "run.json").exists() else None
    result = _result(run, record)
    if not isinstance(result, chosen.needs):
        expected = " or ".join(each.__name__.lower() for each in chosen.needs)
        found = type(result).__name__.lower()
        article = "an" if found[0] in "aeiou" else "a"
        raise InputError(f"{run}: found {article} {found}; --to {name} expects a {expected}")
    return Subject(record=record, result=result, path=_workload_path(record))


def _stacks(record: RecordSource) -> tuple[StackTime, ...]:
    """Sampled Python stacks of slow and typical work; empty for a very large run."""
    from latfix.profilers.code_lines.slow_lines import stack_times
    from latfix.profilers.evidence.units import gather
    from latfix.run_record.chunked_record import LARGE

    small = record.meta.stacks and len(record) <= LARGE
    return stack_times(gather(record.stretch(0, len(record))), record.meta.stacks) if small else ()


def _record(run: Path) -> RecordSource:
    from latfix.profilers.chunked.record_chunks import WholeRecord
    from latfix.run_record.chunked_record import open_record
    from latfix.run_record.run_record import RunRecord

    record = open_record(run)
    return WholeRecord(record) if isinstance(record, RunRecord) else record


def _result(run: Path, record: RecordSource | None) -> Document:
    """The document of a result's file or folder; a run without one is diagnosed."""
    from latfix.cli.commands.reading.report import saved_document
    from latfix.cli.shared.diagnose_flow import diagnosed
    from latfix.results import read_result
    from latfix.run_record.chunked_record import open_record

    known = run / "diagnosis.json"
    file = known if known.is_file() else saved_document(run)
    if file is not None:
        return read_result(file)
    if record is None:
        raise InputError(f"{run}: found no result; expected the folder that a command wrote, or its JSON file")
    return diagnosed(open_record(run))


def _workload_path(record: RecordSource | None) -> str:
    """Path of workload.toml, relative to the working directory if inside it."""
    folder = Path(record.meta.workload_folder) if record is not None else Path()
    inside = folder.is_absolute() and folder.is_relative_to(Path.cwd())
    return os.path.join(folder.relative_to(Path.cwd()) if inside else folder.name, "workload.toml")  # noqa: PTH118
