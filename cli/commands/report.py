"""``latfix report``: read a run's folder, whatever its state, and write its diagnosis and report again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from latfix.cli.shared.options import GateOption, JsonOption, OutOption, SeedOption, check_seed
from latfix.cli.shared.output_options import AnnotationsOption, JUnitOption, MarkdownOption, Outputs
from latfix.cli.shared.request_options import DrillDown, RequestOption, SlowestOption


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.", show_default=False)],
    percentile: Annotated[
        float | None, typer.Option("--percentile", help="The tail to explain; the workload's objective by default.")
    ] = None,
    gate: GateOption = None,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", metavar="RUN", help="A run's folder that gates compare with.")
    ] = None,
    history: Annotated[
        str | None,
        typer.Option("--history", metavar="FILE", help="The history that gates compare with; nothing is recorded."),
    ] = None,
    seed: SeedOption = 0,
    request: RequestOption = None,
    slowest: SlowestOption = None,
    out: OutOption = None,
    json_file: JsonOption = None,
    junit: JUnitOption = None,
    markdown: MarkdownOption = None,
    annotations: AnnotationsOption = False,
) -> int:
    """Diagnose a recorded run again, also one that was killed, and write its report."""
    from latfix.cli.shared.diagnose_flow import check_percentile, conclude, diagnosed, parse_gates
    from latfix.run_record.chunked_record import open_record
    from latfix.runners.replay.run_session import open_folder

    check_seed(seed)
    check_percentile(percentile)
    drill_down = DrillDown.parse(request, slowest)
    gates = parse_gates(gate, baseline, history, record=False)
    record = open_record(run)
    drill_down.check_record(record)
    outputs = Outputs.open("report", json_file=json_file, junit=junit, markdown=markdown, annotations=annotations)
    folder = open_folder(out) if out is not None else run
    with outputs.in_any_case(str(record.meta.get("workload", "")), gates.texts):
        diagnosis = diagnosed(record, percentile=percentile, seed=seed, folder=folder)
        return conclude(record, diagnosis, outputs, gates, seed=seed, folder=folder, drill_down=drill_down)
