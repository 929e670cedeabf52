"""``latfix schema``: the JSON Schema of each document that latfix writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from latfix.errors import InputError


def schema(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Name of a document; without it, lists the names.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write there instead of standard output.")
    ] = None,
) -> None:
    """Print the JSON Schema of a result.

    Documents are run, diagnosis, comparison, optimization and others.
    """
    from latfix.cli.shared.output_options import check_writable
    from latfix.files.atomic_write import write_json
    from latfix.files.json_documents import json_schema
    from latfix.results import DOCUMENTS, document_type

    if name is None and out is not None:
        raise InputError("--out: found no document name; expected one, as in latfix schema run --out FILE")
    if name is None:
        typer.echo("\n".join(DOCUMENTS))
        return
    if name not in DOCUMENTS:
        raise InputError(f"{name}: found no document of that name; expected one of {', '.join(DOCUMENTS)}")
    document = json_schema(document_type(name))
    if out is None:
        typer.echo(json.dumps(document, indent=2))
    else:
        check_writable("--out", str(out))
        write_json(out, document)
