"""A page: one self-contained HTML file, written whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from string import Template

from latfix import __version__
from latfix.errors import InputError
from latfix.files.atomic_write import write_text
from latfix.reports.elements import Content, escaped, joined


def write_page(path: Path, *, kind: str, heading: str, facts: Content, main: Sequence[Content]) -> None:
    """Write a page.

    :param facts: one line under the heading.
    :raises InputError: the file cannot be written.
    """
    page = Template(_template("page.html")).substitute(
        version=escaped(__version__),
        title=escaped(f"{heading}: {kind}", limit=120),
        style=_template("style.css").strip(),
        kind=escaped(kind),
        heading=escaped(heading, limit=200),
        facts=joined([facts]).text,
        main="\n".join(joined([part]).text for part in main),
    )
    try:
        write_text(path, page)
    except OSError as error:
        raise InputError(
            f"{path}: found that it cannot be written ({error.strerror or error}); expected a writable file; "
            "name another one"
        ) from error


@cache
def _template(name: str) -> str:
    return resources.files("latfix.reports.html.templates").joinpath(name).read_text(encoding="utf-8")
