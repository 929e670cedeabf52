"""``latfix history``: a figure over the recorded runs, by workload and machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latfix.cli.shared.options import JsonOption, SeedOption, check_seed
from latfix.cli.shared.output_options import Destination
from latfix.errors import InputError
from latfix.formatting import did_you_mean

if TYPE_CHECKING:
    from latfix.history.store import History


def history(
    workload: Annotated[
        str | None, typer.Argument(metavar="[WORKLOAD]", help="Name or folder of a workload; default: all.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--history", metavar="FILE", help="The history to read instead of the default one."),
    ] = None,
    metric: Annotated[
        str,
        typer.Option("--metric", help="As in gates: p99, mean, max, throughput, error_rate, accuracy, cause:ID, …"),
    ] = "p99",
    last: Annotated[int | None, typer.Option("--last", metavar="N", help="Show the last N runs of each.")] = None,
    seed: SeedOption = 0,
    json_file: JsonOption = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the trends as a page.")] = None,
) -> int:
    """Show how a figure developed over recorded runs.

    Shows its trend, its usual level, and the runs that changed it.
    """
    import os

    from latfix.cli.shared.history_option import history_file
    from latfix.cli.shared.output_options import check_distinct, check_writable
    from latfix.gates.syntax import parse_metric
    from latfix.history.store import VARIABLE, History
    from latfix.history.trends import trends
    from latfix.reports.html.history_page import write_history_page
    from latfix.reports.terminal.history import render_history
    from latfix.results.history import HistoryTrends

    check_seed(seed)
    key = parse_metric(metric)
    if last is not None and last < 1:
        raise InputError(f"--last: found {last}; expected 1 or more runs")
    chosen = file if file is not None else (os.environ.get(VARIABLE) or None)
    if chosen == "off":
        raise InputError(f"{VARIABLE if file is None else '--history'}: found off; expected the history to read")
    check_distinct({"--json": json_file, "--html": None if html is None else str(html)})
    target = Destination.open("--json", json_file)
    if html is not None:
        check_writable("--html", str(html))
    past = History.read(history_file(chosen))
    name = None if workload is None else _name(past, workload)
    shown = trends(past.rows(workload=name), key, last=last, seed=seed)
    found = HistoryTrends(file=str(past.path), metric=key, trends=shown)
    if html is not None:
        write_history_page(html, found, workload=name)
    target.report(found, lambda: render_history(found, workload=name))
    return 0


def _name(past: History, workload: str) -> str:
    """The recorded name of a workload given by name or folder."""
    known = past.workloads()
    if workload in known:
        return workload
    name = workload
    if Path(workload).is_dir():
        from latfix.config.workload_toml import load_spec

        name = load_spec(workload).name
    if name in known:
        return name
    advice = did_you_mean(name, known, f"it knows {', '.join(known[:12]) or 'none yet'}")
    raise InputError(f"{workload}: found no run of it in {past.path}; {advice}")
