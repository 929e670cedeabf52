"""``diagnose`` and ``report`` from a record on: attribute, write, show, evaluate gates."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from latfix.cli.shared.history_option import Recording, is_off
from latfix.cli.shared.output_options import Outputs
from latfix.cli.shared.request_options import DrillDown
from latfix.errors import EXIT_INTERRUPTED, InputError, LatfixError, RunnerError
from latfix.files.atomic_write import write_json
from latfix.gates.evaluate import GateResult, check_gates, evaluate, exit_code
from latfix.gates.reference_level import Past
from latfix.gates.subject import GateSubject, with_percentile_ratios
from latfix.gates.syntax import Gate, parse_gate
from latfix.history.rows import HistoryRow, row_of, run_name, series_of
from latfix.profilers import diagnose
from latfix.profilers.attribution.ledger_parquet import causes_file
from latfix.profilers.chunked.downsample import downsampled
from latfix.profilers.chunked.record_chunks import WholeRecord
from latfix.profilers.drilldown.explain import explain_slowest
from latfix.profilers.evidence.outside.service_queue import with_waits
from latfix.reports.html import pages
from latfix.reports.html.change_page import write_comparison_report
from latfix.reports.html.trial_page import write_trial_report
from latfix.reports.next_commands import workload_argument
from latfix.reports.terminal import diagnosis as terminal
from latfix.reports.terminal.comparison import render_comparison
from latfix.reports.terminal.requests import render_stories
from latfix.results.comparison import Comparison, Trial, compare_records
from latfix.results.diagnosis import Diagnosis, Restarts, Source
from latfix.results.request_explanation import Story
from latfix.run_record import chunked_record
from latfix.run_record.chunked_record import RecordFile, open_record
from latfix.run_record.run_record import RunRecord
from latfix.runners.replay.run_session import open_folder, writing_into
from latfix.settings import PERCENTILE
from latfix.statistics.censored import outcomes_of
from latfix.statistics.percentiles import percentile_grid, percentile_key


@dataclass(frozen=True, slots=True)
class Gates:
    """Parsed gates, and what they compare with.

    :param baseline: figures of ``--baseline``; ``None`` without it.
    :param base: its record if it fits into memory: gates on latencies then use the ratio of the two runs.
    """

    gates: tuple[Gate, ...] = ()
    baseline: GateSubject | None = None
    base: RunRecord | None = None
    recording: Recording = field(default_factory=Recording)

    @property
    def texts(self) -> tuple[str, ...]:
        """The expressions as the user wrote them."""
        return tuple(gate.text for gate in self.gates)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of the gates."""
        return tuple(gate.metric for gate in self.gates)

    def judge(
        self, subject: GateSubject, record: RunRecord | RecordFile, past: Past, *, seed: int
    ) -> list[GateResult]:
        """Evaluate the gates on a run.

        :param subject: its figures, including :attr:`metrics`.
        :raises InputError: a required figure was not measured.
        """
        pair = self._compared(record, seed)
        results = []
        for gate in self.gates:
            if pair is not None and gate.needs_baseline and gate.is_latency:
                results.append(evaluate(gate, *pair))
            else:
                results.append(evaluate(gate, subject, self.baseline, past=past))
        return results

    def _compared(self, record: RunRecord | RecordFile, seed: int) -> tuple[GateSubject, GateSubject] | None:
        """Run and baseline as ``latfix compare`` sees them; ``None`` if no gate needs them, or a run is too large."""
        needed = any(gate.needs_baseline and gate.is_latency for gate in self.gates)
        if not needed or self.base is None or not isinstance(record, RunRecord):
            return None
        new, base = compare_records(self.base, record, seed=seed).gate_subjects()
        return with_percentile_ratios(new, base, (record, self.base), self.metrics)


def parse_gates(
    expressions: Sequence[str] | None, baseline: Path | None, history: str | None = None, *, record: bool = True
) -> Gates:
    """Parse ``--gate`` options, read ``--baseline`` and open the history, before anything runs.

    :param history: the value of ``--history``.
    :param record: the run is to be recorded in it.
    :raises InputError: an expression is malformed, or needs a baseline or a history that is not given.
    """
    gates = tuple(parse_gate(text) for text in expressions or ())
    check_gates(gates, baseline=baseline is not None, accuracy=False, causes=True, history=not is_off(history))
    base = subject = None
    if baseline is not None:
        base = open_record(baseline)
        subject = GateSubject.from_diagnosis(diagnosed(base))
        subject = subject.with_percentiles([gate.metric for gate in gates], base)
    recording = Recording.open(history, gates, record=record)
    return Gates(gates, subject, base if isinstance(base, RunRecord) else None, recording)


def check_percentile(percentile: float | None) -> None:
    """Check a percentile.

    :raises InputError: it is not one, or a share such as 0.99.
    """
    if percentile is not None and not PERCENTILE.check(percentile):
        raise InputError(f"--percentile: found {percentile}; expected {PERCENTILE.expected}")


def diagnosed(
    record: RunRecord | RecordFile, *, percentile: float | None = None, seed: int = 0, folder: Path | None = None
) -> Diagnosis:
    """The diagnosis of a record.

    :param folder: to write ``causes.parquet`` into; ``None`` for none.
    :raises InputError: it cannot be written there.
    """
    if folder is None:
        return diagnose.diagnose(record, percentile=percentile, seed=seed)
    with writing_into(folder), causes_file(folder / "causes.parquet") as add:
        return diagnose.diagnose(record, percentile=percentile, seed=seed, sink=add)


def with_rounds(diagnosis: Diagnosis, first: RunRecord | RecordFile, again: Sequence[RunRecord]) -> Diagnosis:
    """The diagnosis of the first of several runs, with the figures of all."""
    values = [outcomes_of(each).percentiles_ns([diagnosis.percentile])[0] / 1e6 for each in (first, *again)]
    return replace(diagnosis, restarts=Restarts.of("rounds", percentile_key(diagnosis.percentile), values))


@contextlib.contextmanager
def kept_or_temporary(out: Path | None, prefix: str) -> Iterator[Path]:
    """The new folder ``out``, or without it a temporary one for the duration of the block.

    An error that names the temporary folder says that it is not kept.
    """
    if out is not None:
        yield open_folder(out)
        return
    with tempfile.TemporaryDirectory(prefix=prefix) as folder:
        try:
            yield open_folder(Path(folder))
        except LatfixError as error:
            if folder in error.message:
                words = error.message.replace("; what was recorded is kept", "")
                error.message = f"{words} (without --out, this folder is not kept)"
            raise


def _in_report(record: RunRecord | RecordFile, diagnosis: Diagnosis) -> tuple[RunRecord, Diagnosis]:
    """Record and diagnosis for the report; a large record is downsampled out."""
    if not isinstance(record, RunRecord):
        return downsampled(record, diagnosis)
    if len(record.requests["index"]) > chunked_record.LARGE:
        return downsampled(WholeRecord(record), diagnosis)
    return record, diagnosis


def with_stories(
    record: RunRecord, diagnosis: Diagnosis | None = None, *, seed: int = 0
) -> tuple[Diagnosis, tuple[Story, ...]]:
    """The diagnosis of a run on the page of a change, and the stories of its slowest requests.

    :param diagnosis: with its ledger, if there is one.
    """
    found = diagnosis or diagnose.diagnose(record, seed=seed)
    return found, explain_slowest(record, found.ledger)


def write_trial_page(page: Path, found: Trial, folder: Path) -> None:
    """The page of a trial, with the slowest requests of its leading idea if their record is still there.

    :param folder: of the trial.
    """
    leader = found.leader
    where = folder / leader.record if leader is not None and leader.record else None
    if where is None or not (where / "run.json").is_file():
        write_trial_report(page, found)
        return
    record = RunRecord.load(where)
    write_trial_report(page, found, replay=(record, *with_stories(record)))


def write_comparison_page(page: Path, found: Comparison, base: RunRecord, new: RunRecord, *, seed: int = 0) -> None:
    """The page of a comparison, with the slowest requests of the new run."""
    last, stories = with_stories(new, seed=seed)
    write_comparison_report(page, found, with_waits(base), with_waits(new), last=last, stories=stories)


def conclude_comparison(
    found: Comparison,
    base: RunRecord,
    new: RunRecord,
    outputs: Outputs,
    folder: Path | None,
    *,
    workload: str,
    seed: int = 0,
    interrupted: bool = False,
) -> int:
    """Write ``comparison.json`` and ``report.html`` if there is a folder, print, and return the exit code."""
    document = found.to_json()
    if folder is not None:
        write_json(folder / "comparison.json", document)
        write_comparison_page(folder / "report.html", found, base, new, seed=seed)
    outputs.show(lambda: render_comparison(found, folder=folder, verbose=outputs.verbose), found.gates)
    outputs.write(document, workload=workload, interrupted=interrupted)
    return EXIT_INTERRUPTED if interrupted else exit_code(found.gates)


def conclude(
    record: RunRecord | RecordFile,
    diagnosis: Diagnosis,
    outputs: Outputs,
    gates: Gates,
    *,
    seed: int = 0,
    folder: Path | None = None,
    workload: str | None = None,
    interrupted: bool = False,
    failure: str = "",
    drill_down: DrillDown | None = None,
) -> int:
    """Write ``diagnosis.json`` and ``report.html``, evaluate gates, record, print, and return the exit code.

    :param workload: as the user typed it, if it was just replayed; ``None`` for an earlier run.
    :param drill_down: requests to explain on the terminal and in the output of ``--json``.
    :param failure: why the replay was aborted; empty if it was not.
    :raises RunnerError: it was just replayed, and no request ended ok or it was aborted.
    """
    where = folder or record.folder
    results, row, past = _judged(record, diagnosis, gates, seed=seed, interrupted=interrupted)
    source = diagnosis.source or Source(kind="replay", path=str(record.folder))
    key, restarts = percentile_key(diagnosis.percentile), diagnosis.restarts
    if restarts is None and past.level(key) is not None:  # the history has enough earlier runs
        restarts = Restarts.of("history", key, past.figures(key))
    diagnosis = replace(diagnosis, gates=tuple(results), source=source, restarts=restarts)
    document = diagnosis.to_json()
    with writing_into(where):
        write_json(where / "diagnosis.json", document)
        shown, in_report = _in_report(record, diagnosis)
        stories = explain_slowest(shown, in_report.ledger)
        page = with_waits(shown) if shown is record else shown  # a sample does not show who waited for whom
        pages.write_run_report(where / "report.html", page, in_report, stories=stories)
    told = drill_down.explain(shown, diagnosis) if drill_down is not None else None
    if workload is not None and not interrupted:
        failure = failure or _failure(diagnosis, shown)
    typed = workload_argument(record.meta, typed=workload)
    console = outputs.console()
    if told is not None:
        requested, slowest = told
        rows = {story.row for story in requested}
        each_once = (*requested, *(story for story in slowest or () if story.row not in rows))
        document = {**document, "requests_explained": [story.to_json() for story in each_once]}
        if not outputs.to_stdout:
            console.print(render_stories(requested, slowest))
    verbose = outputs.verbose
    outputs.show(
        lambda: terminal.render_diagnosis(diagnosis, folder=where, workload_argument=typed, verbose=verbose), results
    )
    outputs.write(document, failure=failure, interrupted=interrupted, typed=None if workload is None else typed)
    if row is not None:
        gates.recording.add(row)
    if interrupted:
        console.print("Interrupted: the recorded part is kept, and diagnosed above.", markup=False)
        return EXIT_INTERRUPTED
    if failure:
        raise RunnerError(failure)
    return exit_code(results)


def _judged(
    record: RunRecord | RecordFile, diagnosis: Diagnosis, gates: Gates, *, seed: int, interrupted: bool
) -> tuple[list[GateResult], HistoryRow | None, Past]:
    """The gates' results, the run's history row if it is recorded, and the earlier runs."""
    meta, recording = record.meta, gates.recording
    subject = GateSubject.from_diagnosis(diagnosis).with_percentiles(gates.metrics, record)
    series = series_of(meta, command="diagnose", plan=meta.plan or "")
    past = recording.past(series, but=run_name(meta, record.folder))
    results = gates.judge(subject, record, past, seed=seed)
    if not recording.records:
        return results, None, past
    latency_ms = {**percentile_grid(outcomes_of(record)), **subject.latency_ms}
    row = row_of(
        record,
        replace(subject, latency_ms=latency_ms),
        series,
        verdict=diagnosis.verdict,
        settings=meta.settings.to_json(),
        gates=[result.to_json() for result in results],
        against_history=[gate.text for gate in gates.gates if gate.needs_history],
        folder=record.folder,
        interrupted=interrupted,
    )
    return results, row, past


def _failure(diagnosis: Diagnosis, shown: RunRecord) -> str:
    """The reason if no request ended ok; else empty."""
    if diagnosis.requests.get("ok") or not any(diagnosis.requests.values()):
        return ""
    first = next(iter(shown.errors.values()), "none ended in time")
    return f"{diagnosis.workload}: no request ended ok; the first failure: {first}"
