"""``latfix init``: a commented workload to start from, which runs unchanged."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from latfix.errors import InputError


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.", show_default=False)],
) -> None:
    """Write a commented workload to start from.

    Writes workload.toml, an adapter and 20 s of traffic, which run unchanged.
    """
    from latfix.cli.shared.starter_workload import write_starter

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: found a folder that is not empty, or a file; expected a new or empty folder")
    try:
        files = write_starter(folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot write there ({error.strerror}); name another folder") from error
    for file in files:
        typer.echo(f"wrote {file}")
    typer.echo(f"next: latfix diagnose {shlex.quote(str(folder))}")
