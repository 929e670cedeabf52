"""Renders templates into self-contained HTML files, written whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from latfix import __version__, formatting
from latfix.errors import InputError
from latfix.files.atomic_write import write_text
from latfix.reports.vocabulary import CLASS_WORDS, cause_words, term_words

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_FILTERS = (
    formatting.count,
    formatting.from_ns,
    formatting.moment,
    formatting.interval,
    formatting.percent,
    formatting.rate,
    formatting.ratio,
    formatting.share,
    formatting.significant,
    formatting.tail_words,
    formatting.uncertain_bounds,
    formatting.visible,
)
_LONGEST = 2000
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:ms|µs|s|%|MiB|GiB)(?!\w))")
_CHART_SCRIPT, _PAGE_SCRIPT = "vendor/uPlot.iife.min.js", "templates/page.js"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none';"


def write_page(path: Path, template: str, **values: object) -> None:
    """Render a template into a file.

    :param values: ``kind``, ``heading``, ``facts`` (a line under the heading), the template's own variables, and
        ``points`` of the interactive chart (:func:`point_data.points_over_time`).
    :raises InputError: the file cannot be written.
    """
    page = render(template, **values)
    try:
        write_text(path, page)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror or error}); expected a writable file; name another one"
        ) from error


def render(template: str, **values: object) -> str:
    """The text of a template; every value except charts is escaped and made printable.

    The page's content security policy allows only latfix's own scripts, and no loading of anything.
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
                "chart_style": resource("vendor/uPlot.min.css"),
                "chart_script": resource(_CHART_SCRIPT),
                "page_script": resource(_PAGE_SCRIPT),
                **values,
            }
        )
    )


@cache
def resource(name: str) -> Markup:
    """A file of the package, unescaped."""
    from markupsafe import Markup

    return Markup(resources.files("latfix.reports.html").joinpath(name).read_text(encoding="utf-8"))


@cache
def _digest(name: str) -> str:
    """The hash of a script for the content security policy."""
    found = hashlib.sha256(resource(name).encode()).digest()
    return f"'sha256-{base64.b64encode(found).decode()}'"


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(lambda name: str(resource(f"templates/{name}"))),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["unbroken"] = _unbroken
    environment.filters.update({function.__name__: function for function in _FILTERS})
    environment.globals.update(cause_words=cause_words, class_words=CLASS_WORDS, meaning=term_words)
    return environment


def _unbroken(value: object) -> Markup:
    """Text whose options, such as ``--rounds``, stay in one line."""
    from markupsafe import Markup, escape

    text = str(escape(_shown(value)))
    return Markup(_OPTION.sub(r'<span class="whole">\g<0></span>', text))


def _finalized(value: object) -> object:
    """Values as :func:`_shown`, except markup; they are escaped afterwards."""
    return value if hasattr(value, "__html__") else _shown(value)


def _shown(value: object) -> str:
    """Text with visible control characters, in which no line ends between a number and its unit."""
    return _BEFORE_UNIT.sub("\u00a0", formatting.visible(value, limit=_LONGEST))
