"""Recognizes a recording by its content, and returns its diagnosis."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from latfix.config.model_file_kind import is_model_file, misnamed
from latfix.errors import InputError
from latfix.files.rotated_logs import join_command
from latfix.formatting import shown
from latfix.profilers.recordings import memory_history, service_log
from latfix.profilers.recordings.devices import engine_steps
from latfix.profilers.recordings.devices.device_reader import KINETO, NSYS
from latfix.profilers.recordings.reader import OF_A_KIND, Reader, ReadOptions, Recorded, recorded_at
from latfix.profilers.recordings.requests.readers import READERS as REQUEST_READERS
from latfix.profilers.recordings.requests.readers import TEXT_LOG, advice_on
from latfix.profilers.services.server_advice import with_advice
from latfix.results.diagnosis import Diagnosis

#: Every kind, the most specific signature first.
READERS: tuple[Reader, ...] = (
    NSYS,
    KINETO,
    engine_steps.READER,
    memory_history.READER,
    service_log.READER,
    service_log.RUNNER,
    *REQUEST_READERS,
)

#: Readers that take a folder of several such files.
_BY_FILE = (KINETO, engine_steps.READER)


def detect(recorded: Recorded) -> Reader | None:
    """The reader for a file or folder; ``None`` if its format is unknown."""
    return next((reader for reader in READERS if reader.knows(recorded)), None)


def reader_of(recorded: Recorded) -> Reader:
    """The reader for a file or folder.

    :raises InputError: its format is unknown.
    """
    reader = detect(recorded)
    if reader is None:
        raise _unknown(recorded)
    return reader


def _reader_for(recorded: Recorded, options: ReadOptions) -> Reader:
    """The reader for a file or folder, with the options.

    :raises InputError: its format is unknown, or an option does not apply to it.
    """
    reader = detect(recorded)
    if options.pattern and recorded.path.is_file() and (reader is None or "--pattern" in reader.takes):
        reader = TEXT_LOG
    if reader is None and options.pattern:
        raise InputError(f"--pattern: found {recorded.path}, a folder; expected {OF_A_KIND['--pattern']}; name it")
    if reader is None:
        raise _unknown(recorded)
    given = {"--step": options.step, "--map": options.mapping, "--pattern": options.pattern}
    for option, expected in OF_A_KIND.items():
        if given[option] and option not in reader.takes:
            raise InputError(
                f"{option}: found {recorded.path}, {reader.reads}; expected {expected}; leave the option out"
            )
    return reader


def diagnose_recording(path: Path, options: ReadOptions) -> Diagnosis:
    """The diagnosis of a recording.

    :raises InputError: its format is unknown, an option does not apply to it, or it is damaged, cut off or empty.
    """
    recorded = recorded_at(path)
    reader = _reader_for(recorded, options)
    diagnosis = with_advice(reader.read(recorded, options))
    if reader in _BY_FILE and (left := [file.path.name for file in recorded.inside if not reader.knows(file)]):
        listed = ", ".join(left[:3]) + (f" and {len(left) - 3:,} more" if len(left) > 3 else "")
        diagnosis = replace(diagnosis, notes=(*diagnosis.notes, f"Not read, another format: {listed}."))
    if diagnosis.source is not None and diagnosis.source.path != str(path):
        return replace(diagnosis, source=replace(diagnosis.source, path=str(path)))
    return diagnosis


def _unknown(recorded: Recorded) -> InputError:
    if recorded.path.is_dir():
        result = "a folder without workload.toml and without a recording" if recorded.inside else "an empty folder"
        if (recorded.path / "run.json").is_file():
            return InputError(f"{recorded.path}: found a run that latfix recorded; show it with latfix report")
    else:
        result = "an unknown format" if recorded.head.strip() else "an empty or damaged file"
        first = recorded.head.decode("utf-8", "replace").strip().partition("\n")[0]
        if first.isprintable() and "\ufffd" not in first and first:
            result += f", which begins with {shown(first, 60)}"
    for file in recorded.inside:
        found = "a model file: name it, with --traffic" if is_model_file(file.path) else misnamed(file.path)
        if found and detect(file) is None:
            return InputError(f"{recorded.path}: found a folder without workload.toml; {file.path.name} is {found}")
    if alone := [(file, reader) for file in recorded.inside if (reader := detect(file))]:
        file, reader = alone[0]
        result = (
            f"a folder without workload.toml, and {len(alone)} recordings that are read one at a time, "
            f"the first {file.path.name} ({reader.reads})"
        )
        command = join_command([each.path for each, _ in alone]) or "decompress them, and join text with cat"
        return InputError(f"{recorded.path}: found {result}; expected one file of them (parts of one log: {command})")
    if recorded.path.is_file() and (model := misnamed(recorded.path)):
        return InputError(f"{recorded.path}: found {model}")
    if advice := advice_on(recorded.head):
        return InputError(f"{recorded.path}: found {advice}")
    return InputError(
        f"{recorded.path}: found {result}; expected a workload, a model file or a recording (torch.profiler's trace, "
        "Nsight Systems' export, an access log, spans, results of a load generator, Parquet, CSV or JSON Lines with "
        "a latency); --pattern REGEX reads any log with one line per request"
    )
