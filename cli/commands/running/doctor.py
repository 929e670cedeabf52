"""``latfix doctor``: what costs latency on this machine, what is missing, and the command that changes it."""

from __future__ import annotations

from typing import Annotated

import typer

from latfix.cli.shared.options import JsonOption, KeepOption
from latfix.cli.shared.output_options import Destination
from latfix.errors import EXIT_OK, InputError


def doctor(
    seconds: Annotated[
        float, typer.Option("--seconds", help="How long to observe the idle machine; 0 skips it.")
    ] = 2.0,
    out: KeepOption = None,
    json_file: JsonOption = None,
) -> int:
    """Look for what makes latency jitter on this machine.

    Examines processor, memory, limits, GPU and packages. Changes nothing.
    """
    from rich.console import Console

    from latfix.reports.terminal.doctor import render_doctor
    from latfix.runners.doctor.examine import examine
    from latfix.runners.replay.run_session import open_folder

    if not 0 <= seconds <= 3600:
        raise InputError(f"--seconds: found {seconds:g}; expected a number from 0 to 3600")
    target = Destination.open("--json", json_file)
    keep = None if out is None else open_folder(out) / "doctor.json"
    with Console(stderr=True).status("examining …"):
        found = examine(seconds)
    target.report(found, lambda: render_doctor(found), keep=keep)
    return EXIT_OK
