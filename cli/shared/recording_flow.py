"""``latfix diagnose`` of a recording: read, attribute, write, show, evaluate gates."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from latfix.cli.shared.diagnose_flow import Gates
from latfix.cli.shared.options import ReplayOptions
from latfix.cli.shared.output_options import Outputs
from latfix.config.model_file_kind import is_model_file
from latfix.config.workload_toml import SPEC_FILE
from latfix.errors import InputError
from latfix.files.atomic_write import write_json
from latfix.gates.evaluate import evaluate, exit_code
from latfix.gates.subject import GateSubject
from latfix.profilers.recordings.detect import diagnose_recording
from latfix.profilers.recordings.reader import ReadOptions
from latfix.reports.html.recording_page import write_recording_report
from latfix.reports.terminal.diagnosis import render_diagnosis
from latfix.runners.replay.run_origin import origin_now
from latfix.runners.replay.run_session import check_folder, default_folder, open_folder, writing_into
from latfix.statistics.censored import Outcomes


def is_recording(workload: str) -> bool:
    """True if the path exists and is neither a workload nor a model file."""
    path = Path(workload)
    try:
        if path.is_dir():
            return bool(workload) and not (path / SPEC_FILE).exists()
        return path.exists() and path.name != SPEC_FILE and not is_model_file(path)
    except (OSError, ValueError):  # not a valid file name
        return False


def read_options(step: str | None, pattern: str, percentile: float | None, replayed: ReplayOptions) -> ReadOptions:
    """The options that apply to a recording.

    :raises InputError: ``--step`` is not a regular expression.
    """
    try:
        re.compile(step or "")
    except re.error as error:
        raise InputError(
            f"--step: found {step!r} ({error}); expected a regular expression such as ^decode"
        ) from error
    return ReadOptions(
        percentile=percentile,
        seed=replayed.seed,
        step=step or "",
        mapping=tuple(replayed.mapping or ()),
        pattern=pattern,
    )


def diagnose(path: Path, options: ReadOptions, outputs: Outputs, gates: Gates, *, out: Path | None) -> int:
    """Diagnose a recording, write ``diagnosis.json`` and ``report.html``, print, and return the exit code.

    :raises InputError: it is not a recording, or is damaged, truncated or empty; or ``out`` is not a new folder.
    """
    if out is not None:
        check_folder(out)  # a recording may take minutes to read
    with outputs.in_any_case(path.name, gates.texts):
        diagnosis = diagnose_recording(path, options)
        outcomes = Outcomes.answers(diagnosis.ledger.latency_ns)
        subject = GateSubject.from_diagnosis(diagnosis).with_percentiles(gates.metrics, outcomes)
        results = [evaluate(gate, subject, gates.baseline) for gate in gates.gates]
        source = None if diagnosis.source is None else replace(diagnosis.source, origin=origin_now())
        gated = replace(diagnosis, gates=tuple(results), source=source)
        document = gated.to_json()
        folder = open_folder(out or default_folder(diagnosis.workload, "diagnose"))
        with writing_into(folder):
            write_json(folder / "diagnosis.json", document)
            write_recording_report(folder / "report.html", gated)
        outputs.show(lambda: render_diagnosis(gated, folder=folder, verbose=outputs.verbose), results)
        outputs.write(document)
    return exit_code(results)
