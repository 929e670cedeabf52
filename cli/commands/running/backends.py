"""``latfix backends``: which backends can serve a model here, how fast, and whether they answer the same."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from latfix.cli.shared import options
from latfix.errors import EXIT_OK, InputError

#: Requests in a batch where the workload itself does not batch.
_BATCH = 8


def backends(
    workload: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD", help="A workload's folder, a model file, or the name of a sample.", show_default=False
        ),
    ],
    traffic: Annotated[
        Path | None, typer.Option("--traffic", help="Recorded traffic; a model file alone needs it.")
    ] = None,
    *,
    profile: options.ProfileOption = "",
    replayed: options.AsRecorded,
    batch: Annotated[
        int | None,
        typer.Option("--batch", metavar="N", help="Requests in a batch; by default the workload's most, or 8."),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="Time for measuring, conversions not counted.")] = 20.0,
    device: options.DeviceOption = None,
    seed: options.SeedOption = 0,
    json_file: options.JsonOption = None,
) -> int:
    """Compare the backends that can serve a model.

    Loads the model in every backend that takes it, compares the answers, and times them in turns.
    """
    from rich.console import Console

    from latfix.config.workload_toml import check_runs, load_spec
    from latfix.reports.terminal.backends import render_backends
    from latfix.runners.backend_comparison.comparison import measure_backends

    options.check_seed(seed)
    if batch is not None and not 1 <= batch <= 4096:
        raise InputError(f"--batch: found {batch}; expected a whole number from 1 to 4096")
    if not 0 < seconds <= 3600:
        raise InputError(f"--seconds: found {seconds}; expected a number above 0, at most 3600")
    spec = load_spec(workload, traffic=traffic, profile=profile)
    check_runs(spec)
    settings = spec.settings.with_overrides(options.check_device(device))
    schedule = options.load_traffic(spec, replayed)
    target = options.Target.open("--json", json_file)
    wanted = batch or (settings.max_batch_size if settings.max_batch_size > 1 else _BATCH)
    with Console(stderr=True).status("loading and converting the model, then measuring …"):
        found = measure_backends(
            spec, schedule, settings, batch=wanted, asked=batch is not None, seconds=seconds, seed=seed
        )
    target.report(found.to_json(), lambda: render_backends(found))
    return EXIT_OK
