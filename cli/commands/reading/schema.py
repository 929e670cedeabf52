"""``latfix schema``: the JSON Schema of each document that latfix writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from latfix.errors import InputError


def schema(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A document's name; lists the names without.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write it there.")] = None,
) -> None:
    """Print the JSON Schema of a result.

    Of run, diagnosis, comparison, optimization and the others; without a name, lists the names.
    """
    from latfix.cli.shared.options import see_that_it_can_be_written
    from latfix.files.atomic_write import write_json
    from latfix.files.json_documents import json_schema
    from latfix.results import DOCUMENTS, document_type

    if name is None and out is not None:
        raise InputError("--out: found no document; expected its name as well, as in latfix schema run --out FILE")
    if name is None:
        typer.echo("\n".join(DOCUMENTS))
        return
    if name not in DOCUMENTS:
        raise InputError(f"{name}: found no document of that name; expected one of {', '.join(DOCUMENTS)}")
    document = json_schema(document_type(name))
    if out is None:
        typer.echo(json.dumps(document, indent=2))
    else:
        see_that_it_can_be_written("--out", str(out))
        write_json(out, document)
