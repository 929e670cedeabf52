"""What ``diagnose`` and ``report`` do once there is a record: attribute, write, show, judge the gates."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from latfix.errors import EXIT_INTERRUPTED, EXIT_OK, InputError, RunnerError

if TYPE_CHECKING:
    from latfix.cli.drill_down import DrillDown
    from latfix.cli.options import JsonTarget
    from latfix.diagnosis import Diagnosis
    from latfix.gates import Gate, GateResult, GateSubject
    from latfix.record import RunRecord
    from latfix.record_file import RecordFile


@dataclass(frozen=True, slots=True)
class Gates:
    """Parsed gates and what they compare with."""

    gates: tuple[Gate, ...]
    baseline: GateSubject | None


def parse_gates(expressions: Sequence[str] | None, baseline: Path | None) -> Gates:
    """Parse ``--gate`` options and read ``--baseline``, before anything runs.

    :raises InputError: an expression is malformed, or needs a baseline that is not given.
    """
    from latfix.gates import check_gates, parse_gate

    gates = tuple(parse_gate(text) for text in expressions or ())
    check_gates(gates, baseline=baseline is not None, accuracy=False, causes=True)
    return Gates(gates, None if baseline is None else subject_of(baseline))


def subject_of(run: Path) -> GateSubject:
    """A recorded run as the baseline of gates."""
    from latfix.gates import GateSubject
    from latfix.record_file import open_record

    return GateSubject.from_diagnosis(diagnosed(open_record(run)).to_json())


def check_percentile(percentile: float | None) -> None:
    """Refuse a percentile that is none.

    :raises InputError: it is not above 0 and below 100.
    """
    if percentile is not None and not (math.isfinite(percentile) and 0 < percentile < 100):
        raise InputError(f"--percentile: found {percentile}; expected a number above 0 and below 100, e.g. 99")


def diagnosed(
    record: RunRecord | RecordFile, *, percentile: float | None = None, seed: int = 0, folder: Path | None = None
) -> Diagnosis:
    """The diagnosis of a record.

    :param folder: where ``causes.parquet`` is to be written on the way; nowhere where ``None``.
    :raises InputError: it cannot be written there.
    """
    from latfix.profilers.attribution import diagnose
    from latfix.profilers.causes_file import CausesFile

    if folder is None:
        return diagnose(record, percentile=percentile, seed=seed)
    try:
        with CausesFile(folder / "causes.parquet") as file:
            return diagnose(record, percentile=percentile, seed=seed, sink=file.add)
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> InputError:
    return InputError(f"{folder}: cannot write there ({error.strerror}); name another folder with --out")


def _in_report(record: RunRecord | RecordFile, diagnosis: Diagnosis) -> tuple[RunRecord, Diagnosis]:
    """What the report shows: all of a record, or a large one thinned out."""
    from latfix.profilers.pieces import WholeRecord
    from latfix.profilers.thinned import thinned
    from latfix.record import RunRecord
    from latfix.record_file import LARGE

    if not isinstance(record, RunRecord):
        return thinned(record, diagnosis)
    if len(record.requests["index"]) > LARGE:
        return thinned(WholeRecord(record), diagnosis)
    return record, diagnosis


def conclude(
    record: RunRecord | RecordFile,
    diagnosis: Diagnosis,
    target: JsonTarget,
    gates: Gates,
    *,
    folder: Path | None = None,
    workload: str | None = None,
    interrupted: bool = False,
    drill_down: DrillDown | None = None,
) -> int:
    """Write ``diagnosis.json`` and ``report.html``, print, and return the exit code.

    :param workload: as the user named it, where it was replayed just now; ``None`` for an earlier run.
    :param drill_down: the requests to tell of one by one, on the terminal and in what ``--json`` writes.
    :raises RunnerError: it was replayed just now, and no request ended ok.
    """
    from rich.console import Console

    from latfix.gates import GateSubject, evaluate, exit_code
    from latfix.record import write_json
    from latfix.reports.html import write_run_report
    from latfix.reports.terminal import render_diagnosis

    where = folder or record.folder
    document = diagnosis.to_json()
    results = [evaluate(gate, GateSubject.from_diagnosis(document), gates.baseline) for gate in gates.gates]
    if results:
        document["gates"] = [result.to_json() for result in results]
    try:
        write_json(where / "diagnosis.json", document)
        shown, in_report = _in_report(record, diagnosis)
        write_run_report(where / "report.html", shown, in_report)
    except OSError as error:
        raise _unwritable(where, error) from error
    told = drill_down.tell(shown, diagnosis) if drill_down is not None else None
    target.write(document if told is None else {**document, "requests_explained": told.to_json()})
    console = Console(file=sys.stderr if target.to_stdout else sys.stdout)
    if not target.to_stdout:
        console.print(render_diagnosis(diagnosis, folder=where, workload_argument=workload))
        if told is not None:
            console.print(told.render())
    show_gates(console, results)
    if interrupted:
        console.print("Interrupted: what was recorded until then is kept and diagnosed above.", markup=False)
        return EXIT_INTERRUPTED
    if workload is not None and not diagnosis.requests.get("ok") and any(diagnosis.requests.values()):
        first = next(iter(shown.errors.values()), "none ended in time")
        raise RunnerError(f"{diagnosis.workload}: no request ended ok; the first failure: {first}")
    return exit_code(results) if results else EXIT_OK


def show_gates(console: object, results: Sequence[GateResult]) -> None:
    """Print one line a gate."""
    from rich.console import Console
    from rich.text import Text

    assert isinstance(console, Console)
    styles = {True: ("passed", "green"), False: ("FAILED", "bold red"), None: ("UNDECIDED", "yellow")}
    for result in results:
        word, style = styles[result.passed]
        console.print(Text.assemble("gate ", (f"{result.gate.text}  ", "bold"), (word, style), f"  {result.reason}"))
