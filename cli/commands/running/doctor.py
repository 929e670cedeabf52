"""``latfix doctor``: what on this machine costs latency, what is missing, and the command that would change it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from latfix.cli.shared.options import JsonOption, Target
from latfix.errors import EXIT_OK, InputError

_DOCUMENT = "doctor.json"


def doctor(
    seconds: Annotated[
        float, typer.Option("--seconds", help="Watch the machine stand still for so long; 0 leaves that out.")
    ] = 2.0,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="A new folder for doctor.json.")] = None,
    json_file: JsonOption = None,
) -> int:
    """Look for what makes latency jitter on this machine.

    Processor, memory, limits, GPU and packages. It changes nothing.
    """
    from rich.console import Console

    from latfix.files.atomic_write import write_json
    from latfix.reports.terminal.doctor import render_doctor
    from latfix.runners.doctor.examine import examine
    from latfix.runners.replay.run_session import open_folder

    if not 0 <= seconds <= 3600:
        raise InputError(f"--seconds: found {seconds:g}; expected a number from 0 to 3600")
    target = Target.open("--json", json_file)
    folder = None if out is None else open_folder(out)
    with Console(stderr=True).status("looking …"):
        found = examine(seconds)
    document = found.to_json()
    if folder is not None:
        write_json(folder / _DOCUMENT, document)
    target.report(document, lambda: render_doctor(found))
    return EXIT_OK
