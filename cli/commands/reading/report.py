"""``latfix report``: show a saved result again, and rewrite its page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latfix.cli.shared.address_flow import ServerLog
from latfix.cli.shared.options import (
    BaselineOption,
    GateOption,
    PercentileOption,
    SeedOption,
    check_seed,
    given,
    refuse_given,
)
from latfix.cli.shared.output_options import OutputOptions, Outputs
from latfix.cli.shared.request_options import DrillDown
from latfix.errors import EXIT_OK, InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from latfix.files.json_documents import Document
    from latfix.results.comparison import Comparison
    from latfix.results.optimization import Optimization
    from latfix.run_record.run_record import RunRecord

#: Documents that commands write into their folders.
_DOCUMENTS = (
    "optimization.json",
    "comparison.json",
    "trial.json",
    "sweep.json",
    "selftest.json",
    "doctor.json",
    "backends.json",
    "fragmentation.json",
    "diagnosis.json",
)
#: Kinds of diagnoses whose page needs the rows of a run.
_REPLAYED = ("replay", "http")


def report(
    run: Annotated[
        Path, typer.Argument(metavar="RESULT", help="A result's folder, or its JSON file.", show_default=False)
    ],
    *,
    percentile: PercentileOption = None,
    gate: GateOption = None,
    baseline: BaselineOption = None,
    history: Annotated[
        str | None,
        typer.Option(
            "--history", metavar="FILE", help="The history that gates compare with; the run is not recorded."
        ),
    ] = None,
    seed: SeedOption = 0,
    drill_down: DrillDown,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="A new folder for the page, instead of the result's.")
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", metavar="DIR", help="Write the page's charts there as SVG files."),
    ] = None,
    written: OutputOptions,
    served: ServerLog,
) -> int:
    """Show a recorded run or any other result again.

    A run is diagnosed again, even if it was killed.
    """
    from latfix.cli.shared.diagnose_flow import check_percentile, conclude, diagnosed, parse_gates
    from latfix.run_record.chunked_record import open_record
    from latfix.runners.replay.run_session import open_folder

    check_seed(seed)
    check_percentile(percentile)
    _make_folder(figures)
    drill_down.check_slowest()
    served.check()
    run = run.parent if run.name == "run.json" else run
    if (file := saved_document(run)) is not None:
        for_runs = {
            "--percentile": percentile,
            "--gate": gate,
            "--baseline": baseline,
            "--history": history,
            **given(drill_down),
            **given(served),
        }
        wanted = "expected the folder of a run; of a recording, repeat latfix diagnose with this option"
        refuse_given(for_runs, f"found {file}, which is a saved result; {wanted}")
        outputs = Outputs.open("report", written)
        return _show_again(file, outputs, out, figures)
    gates = parse_gates(gate, baseline, history, record=False)
    record = served.joined(open_record(run))
    drill_down.check_record(record)
    outputs = Outputs.open("report", written)
    folder = open_folder(out) if out is not None else run
    with outputs.in_any_case(record.meta.workload, gates.texts):
        diagnosis = diagnosed(record, percentile=percentile, seed=seed, folder=folder)
        code = conclude(record, diagnosis, outputs, gates, seed=seed, folder=folder, drill_down=drill_down)
    _write_figures(folder / "report.html", figures)
    return code


def saved_document(path: Path) -> Path | None:
    """The document of a result; ``None`` for a run's folder."""
    if path.is_file():
        return path
    if (path / "run.json").exists():
        return None
    return next((path / name for name in _DOCUMENTS if (path / name).is_file()), None)


def _make_folder(figures: Path | None) -> None:
    """Make the folder of ``--figures`` before anything takes time."""
    if figures is not None:
        try:
            figures.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--figures: cannot create {figures} ({error.strerror}); expected a folder") from error


def _write_figures(page: Path, figures: Path | None) -> None:
    if figures is not None:
        from latfix.reports.html.figure_files import write_figures

        write_figures(page, figures)


def _show_again(file: Path, outputs: Outputs, out: Path | None, figures: Path | None) -> int:
    """Show a document, and write its page into ``out`` or into the result's folder."""
    from latfix.results import read_result
    from latfix.runners.replay.run_session import open_folder

    result = read_result(file)
    folder = file.parent if file.name in _DOCUMENTS else None
    where = open_folder(out) if out is not None else folder
    written = where is not None and _write_page(result, where / "report.html", file.parent)
    if not written:
        why = f"found {file}, which has no page here, or whose runs are gone; expected another result's folder"
        refuse_given({"--out": out, "--figures": figures}, why)
    if where is not None:
        _write_figures(where / "report.html", figures)
    outputs.show(lambda: _rendered(result, where if written else None, file.parent, verbose=outputs.verbose))
    outputs.write(result.to_json(), workload=str(getattr(result, "workload", "")))
    return EXIT_OK


def _rendered(result: Document, folder: Path | None, runs: Path, *, verbose: bool) -> RenderableType:
    """The result for a terminal.

    :param folder: where its page was written.
    :param runs: the folder with the result's runs.
    """
    from latfix.reports.next_commands import workload_argument
    from latfix.reports.terminal import (
        backends,
        comparison,
        diagnosis,
        doctor,
        fragmentation,
        history,
        selftest,
        sweep,
        trial,
    )
    from latfix.results.answer_check import BackendsTable
    from latfix.results.comparison import Comparison, Trial
    from latfix.results.diagnosis import Diagnosis
    from latfix.results.doctor_finding import Doctor
    from latfix.results.fragmentation import Fragmentation
    from latfix.results.history import HistoryTrends
    from latfix.results.optimization import Optimization
    from latfix.results.selftest_scoreboard import Scoreboard
    from latfix.results.sweep import Sweep

    match result:
        case Diagnosis():
            return diagnosis.render_diagnosis(result, folder=folder, verbose=verbose)
        case Comparison():
            return comparison.render_comparison(result, folder=folder, verbose=verbose)
        case Optimization():
            baseline = _record(result, "baseline", runs)
            typed = None if baseline is None else workload_argument(baseline.meta)
            return comparison.render_optimization(
                result, folder=folder, plan_folder=runs, workload_argument=typed, verbose=verbose
            )
        case Trial():
            return trial.render_trial(result, folder=folder)
        case Sweep():
            return sweep.render_sweep(result, folder=folder)
        case Scoreboard():
            return selftest.render_scoreboard(result)
        case Doctor():
            return doctor.render_doctor(result)
        case BackendsTable():
            return backends.render_backends(result)
        case Fragmentation():
            return fragmentation.render_fragmentation(result)
        case HistoryTrends():
            return history.render_history(result, workload=None)
    raise InputError("found run.json; expected its folder, whose rows a report needs")


def _write_page(result: Document, page: Path, folder: Path) -> bool:
    """Write the page of a result. Returns False if it has none, or its runs are gone.

    :param folder: of the result.
    """
    from latfix.cli.shared.diagnose_flow import with_stories, write_comparison_page, write_trial_page
    from latfix.reports.html.change_page import write_optimization_report
    from latfix.reports.html.recording_page import write_recording_report
    from latfix.reports.html.sweep_page import write_sweep_report
    from latfix.results import read_result
    from latfix.results.comparison import Comparison, Trial
    from latfix.results.diagnosis import Diagnosis
    from latfix.results.optimization import Optimization
    from latfix.results.sweep import Sweep

    match result:
        case Sweep():
            write_sweep_report(page, result)
        case Trial():
            write_trial_page(page, result, folder)
        case Diagnosis() if result.source is not None and result.source.kind not in _REPLAYED:
            write_recording_report(page, result)
        case Comparison():
            base, new = (_record(result, name, folder) for name in ("base", "new"))
            if base is None or new is None:
                return False
            write_comparison_page(page, result, base, new)
        case Optimization():
            file = folder / "baseline" / "diagnosis.json"
            diagnosis = read_result(file) if file.is_file() else None
            before = _record(result, "before", folder) or _record(result, "baseline", folder)
            after = _record(result, "after", folder)
            shown = after or before
            last, stories = (None, ()) if shown is None else with_stories(shown)
            write_optimization_report(
                page,
                result,
                diagnosis=diagnosis if isinstance(diagnosis, Diagnosis) else None,
                before=before,
                after=after,
                last=last,
                stories=stories,
            )
        case _:
            return False
    return True


def _record(result: Comparison | Optimization, name: str, folder: Path) -> RunRecord | None:
    """A run behind a result; ``None`` if its folder is gone."""
    from latfix.run_record.run_record import RunRecord

    where = folder / result.records.get(name, name)
    return RunRecord.load(where) if (where / "run.json").is_file() else None
