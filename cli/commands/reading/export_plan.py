"""``latfix export-plan``: a plan as the configuration of another server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from latfix.errors import InputError

_NAMES = ("triton", "vllm", "torchserve", "litserve", "rayserve", "env", "kubernetes")


def export_plan(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan, or its folder.", show_default=False)],
    target: Annotated[str, typer.Option("--for", metavar="SERVER", help=f"One of {', '.join(_NAMES)}.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR/FILE", help="Write there instead of standard output.")
    ] = None,
) -> None:
    """Write a plan as the configuration of another server.

    Settings without a counterpart are listed in the file and on the terminal.
    """
    from latfix.reports.server_configs.export import export
    from latfix.runners.host.apply_plan import with_plan
    from latfix.runners.host.process_setup import process_environment
    from latfix.settings import RunnerSettings

    if target not in _NAMES:
        raise InputError(f"--for: found {target!r}; expected one of {', '.join(_NAMES)}")
    settings, decided = with_plan(RunnerSettings(), plan)
    environment = process_environment(settings, {})
    result = export(target, decided, environment)
    several = len(result.files) > 1
    if out is None:
        parts = [f"# ---- {name} ----\n{text}" if several else text for name, text in result.files.items()]
        typer.echo("\n".join(parts), nl=False)
    else:
        in_folder = several or out.is_dir()
        for name, text in result.files.items():
            where = out / name if in_folder else out
            _write(where, text)
            typer.echo(f"wrote {where}")
    for note in result.notes:
        typer.echo(note, err=out is None)


def _write(where: Path, text: str) -> None:
    from latfix.files.atomic_write import write_text
    from latfix.reports.server_configs.export import MARK

    try:
        if where.is_file() and not where.read_bytes().startswith(MARK.encode()):
            raise InputError(f"--out: found {where}, which latfix did not write; name another file or folder")
        where.parent.mkdir(parents=True, exist_ok=True)
        write_text(where, text)
    except OSError as error:
        raise InputError(f"--out: cannot write {where} ({error.strerror}); name another file or folder") from error
