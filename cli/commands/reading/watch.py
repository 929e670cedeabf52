"""``latfix watch``: live figures of a service that is being recorded."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latfix.cli.shared.options import PercentileOption
from latfix.errors import EXIT_OK, InputError

if TYPE_CHECKING:
    from latfix.results.diagnosis import Diagnosis

_LEAST_S, _MOST_S = 0.1, 1e6
#: Metrics before the first request.
NOTHING = "# EOF\n"


def watch(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder that the service is recorded into.", show_default=False)
    ],
    last: Annotated[float, typer.Option("--last", metavar="SECONDS", help="Length of the diagnosed window.")] = 60.0,
    every: Annotated[float, typer.Option("--every", metavar="SECONDS", help="Time between updates.")] = 5.0,
    updates: Annotated[int, typer.Option("--updates", metavar="N", help="Stop after N updates; 0: never.")] = 0,
    percentile: PercentileOption = None,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="[HOST:]PORT", help="Serve the figures at /metrics for Prometheus."),
    ] = None,
) -> int:
    """Show percentiles and causes of a running service, live.

    Reads what latfix.record, latfix.RecordMiddleware or load_runner(record=...) writes; Ctrl-C stops it.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from latfix.cli.shared.diagnose_flow import check_percentile
    from latfix.reports.exports.metrics_endpoint import metrics_endpoint
    from latfix.reports.exports.openmetrics import openmetrics
    from latfix.reports.watch_view import watch_line, watch_panel

    check_percentile(percentile)
    for option, value in (("--last", last), ("--every", every)):
        if not _LEAST_S <= value <= _MOST_S:
            raise InputError(f"{option}: found {value:g}; expected seconds from {_LEAST_S} to {_MOST_S:g}")
    if updates < 0:
        raise InputError(f"--updates: found {updates}; expected a whole number from 0 on")
    if not folder.is_dir():
        raise InputError(f"{folder}: found no such folder; expected the folder that a service is recorded into")
    console = Console(highlight=False)
    with metrics_endpoint(metrics) as endpoint, Live(console=console, auto_refresh=False, transient=False) as live:
        done = 0
        while True:
            found, clock = _diagnosis(folder, last, percentile), time.strftime("%H:%M:%S")
            if endpoint is not None:
                endpoint.text = NOTHING if found is None else "".join(openmetrics(found, None, window_s=last))
            if console.is_terminal:
                waiting = Text(f"{folder}  no requests yet at {clock}")
                live.update(waiting if found is None else watch_panel(found, str(folder), last, clock), refresh=True)
            else:
                line = f"{clock}  no requests yet" if found is None else watch_line(found, clock)
                console.print(line, markup=False, soft_wrap=True)
            done += 1
            if done == updates:
                return EXIT_OK
            time.sleep(every)


def _diagnosis(folder: Path, last_s: float, percentile: float | None) -> Diagnosis | None:
    """The diagnosis of the last seconds; ``None`` before the first request."""
    from latfix.profilers.recordings.reader import ReadOptions, recorded_at
    from latfix.profilers.recordings.service_log import READER, RUNNER, diagnose, diagnose_runner

    recorded = recorded_at(folder)
    if not any(file.head for file in recorded.inside):
        return None
    options = ReadOptions(percentile=percentile)
    if READER.knows(recorded):
        return diagnose(recorded, options, last_s=last_s)
    if RUNNER.knows(recorded):
        return diagnose_runner(recorded, options, last_s=last_s)
    raise InputError(f"{folder}: found another kind of folder; expected {READER.reads}, or {RUNNER.reads}")
