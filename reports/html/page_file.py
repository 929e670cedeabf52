"""Pages from templates: one self-contained HTML file each, written whole or not at all."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from latfix import __version__, formatting
from latfix.errors import InputError
from latfix.files.atomic_write import write_text

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_FILTERS = (
    formatting.count,
    formatting.from_ns,
    formatting.interval,
    formatting.key_label,
    formatting.milliseconds,
    formatting.rate,
    formatting.ratio,
    formatting.share,
    formatting.significant,
    formatting.tail_words,
    formatting.visible,
)
_LONGEST = 2000
_CHART_SCRIPT, _PAGE_SCRIPT = "vendor/uPlot.iife.min.js", "templates/page.js"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none';"


def write_page(path: Path, template: str, **values: object) -> None:
    """Render a template into a file.

    :param values: ``kind``, ``heading``, ``facts`` (a line under the heading), and what the template names;
        ``points`` of a chart that a reader can explore (:func:`point_data.points_over_time`).
    :raises InputError: the file cannot be written.
    """
    page = render(template, **values)
    try:
        write_text(path, page)
    except OSError as error:
        raise InputError(
            f"{path}: found that it cannot be written ({error.strerror or error}); expected a writable file; "
            "name another one"
        ) from error


def render(template: str, **values: object) -> str:
    """The text of a template; every value in it is escaped and made visible, except drawings.

    The page's policy lets browsers run the scripts that latfix brought along, and load nothing.
    """
    scripts = [_CHART_SCRIPT, _PAGE_SCRIPT] if values.get("points") else [_PAGE_SCRIPT]
    return (
        _environment()
        .get_template(template)
        .render(
            {
                "version": __version__,
                "points": None,
                "policy": f"{_POLICY} script-src {' '.join(map(_digest, scripts))}",
                "chart_style": _brought("vendor/uPlot.min.css"),
                "chart_script": _brought(_CHART_SCRIPT),
                "page_script": _brought(_PAGE_SCRIPT),
                **values,
            }
        )
    )


@cache
def _brought(name: str) -> Markup:
    """A file of the package as it is."""
    from markupsafe import Markup

    return Markup(resources.files("latfix.reports.html").joinpath(name).read_text(encoding="utf-8"))


@cache
def _digest(name: str) -> str:
    """A script as a policy names it."""
    found = hashlib.sha256(_brought(name).encode()).digest()
    return f"'sha256-{base64.b64encode(found).decode()}'"


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_source),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({function.__name__: function for function in _FILTERS})
    return environment


def _source(name: str) -> str:
    return resources.files("latfix.reports.html").joinpath("templates", name).read_text(encoding="utf-8")


def _finalized(value: object) -> object:
    """Values without what a browser would obey besides markup, which is escaped afterwards."""
    return value if hasattr(value, "__html__") else formatting.visible(value, limit=_LONGEST)
