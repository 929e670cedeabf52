"""``latfix compare``: two recorded runs, before and after, and gates on the difference."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from latfix.cli.options import GateOption, JsonOption, JsonTarget, OutOption, SeedOption, check_seed


def compare(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="The folder of the run before.", show_default=False)],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The folder of the run after.", show_default=False)],
    gate: GateOption = None,
    seed: SeedOption = 0,
    out: OutOption = None,
    json_file: JsonOption = None,
) -> int:
    """Compare two recorded runs, complete or not: percentiles, their ratios with intervals, and gates."""
    from rich.console import Console

    from latfix.cli.conclude import show_gates
    from latfix.comparison import compare_records
    from latfix.gates import check_gates, evaluate, exit_code, parse_gate
    from latfix.record import RunRecord, write_json
    from latfix.reports.html import write_comparison_report
    from latfix.reports.terminal import render_comparison
    from latfix.runners.session import open_folder

    check_seed(seed)
    gates = [parse_gate(text) for text in gate or ()]
    before, after = RunRecord.load(base), RunRecord.load(new)
    scored = all("accuracy" in record.meta for record in (before, after))
    check_gates(gates, baseline=True, accuracy=scored, causes=False)
    target = JsonTarget.open(json_file)
    folder = open_folder(out) if out is not None else None
    comparison = compare_records(before, after, seed=seed)
    subject, baseline = comparison.gate_subjects()
    results = [evaluate(one, subject, baseline) for one in gates]
    document = comparison.to_json()
    if results:
        document["gates"] = [result.to_json() for result in results]
    target.write(document)
    if folder is not None:
        write_json(folder / "comparison.json", document)
        write_comparison_report(folder / "report.html", comparison, before, after)
    console = Console(file=sys.stderr if target.to_stdout else sys.stdout)
    if not target.to_stdout:
        console.print(render_comparison(comparison))
    show_gates(console, results)
    return exit_code(results)
