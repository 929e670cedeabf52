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
    if out is None:
        several = len(result.files) > 1
        parts = [f"# ---- {file.name} ----\n{file.text}" if several else file.text for file in result.files]
        typer.echo("\n".join(parts), nl=False)
    else:
        for file, where in zip(result.files, _places(out, [file.name for file in result.files]), strict=True):
            _write(where, file.text)
            typer.echo(f"wrote {where}")
    for note in result.notes:
        typer.echo(note, err=out is None)


def _places(out: Path, names: list[str]) -> list[Path]:
    """A path for each file: inside the folder, or the path itself for a single file."""
    if out.is_dir() or len(names) > 1:
        return [out / name for name in names]
    return [out]


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
