"""``latfix backends``: which backends can serve a model here, how fast, and with which answers."""

from __future__ import annotations

from typing import Annotated

import typer

from latfix.cli.shared import options, output_options
from latfix.errors import EXIT_OK, InputError

#: Batch size if the workload itself does not batch.
_BATCH = 8


def backends(
    workload: options.WorkloadArgument,
    *,
    replayed: Annotated[options.ReplayOptions, {"speed", "to_duration", "repeat", "duration", "limit"}],
    batch: Annotated[
        int | None,
        typer.Option("--batch", metavar="N", help="Batch size; default: the workload's max_batch_size, or 8."),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="Measuring time, without conversions.")] = 20.0,
    out: options.KeepOption = None,
    json_file: options.JsonOption = None,
) -> int:
    """Compare the backends that can serve a model.

    Loads the model in every backend that can run it, compares the answers, and times the backends alternately.
    """
    from rich.console import Console

    from latfix.reports.terminal.backends import render_backends
    from latfix.runners.backend_comparison.comparison import measure_backends
    from latfix.runners.replay.run_session import open_folder

    replayed.check()
    options.check_whole("--batch", batch, 1, 4096)
    if not 0 < seconds <= 3600:
        raise InputError(f"--seconds: found {seconds}; expected a number above 0, at most 3600")
    spec = replayed.load_spec(workload)
    settings = spec.settings.with_overrides(options.check_device(replayed.device))
    schedule = options.load_traffic(spec, replayed)
    target = output_options.Destination.open("--json", json_file)
    keep = None if out is None else open_folder(out) / "backends.json"
    wanted = batch or (settings.max_batch_size if settings.max_batch_size > 1 else _BATCH)
    with Console(stderr=True).status("loading and converting the model, then measuring …"):
        found = measure_backends(
            spec, schedule, settings, batch=wanted, explicit=batch is not None, seconds=seconds, seed=replayed.seed
        )
    target.report(found, lambda: render_backends(found), keep=keep)
    return EXIT_OK
