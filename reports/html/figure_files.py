"""The charts of a page as SVG files, in the colors of a light page."""

from __future__ import annotations

import re
from pathlib import Path

from latfix.errors import InputError
from latfix.files.atomic_write import write_text
from latfix.reports.html.page_file import resource

_PICTURE = re.compile(
    r'<svg (viewBox="([^"]*)" role="img" aria-labelledby="([a-z0-9-]+)-title")>.*?</svg>', re.DOTALL
)
_VARIABLE = re.compile(r"var\(--([a-z0-9-]+)\)")
_COLOR = re.compile(r"--([a-z0-9-]+): (#[0-9a-f]+);")


def figures_of(page: str) -> dict[str, str]:
    """The charts of a page as SVG documents, by name."""
    return {found[3]: _document(found) for found in _PICTURE.finditer(page)}


def write_figures(page: Path, folder: Path) -> list[Path]:
    """Write the charts of a page into a folder as ``NAME.svg``.

    :raises InputError: a file cannot be written.
    """
    files = []
    for name, picture in figures_of(page.read_text(encoding="utf-8")).items():
        files.append(folder / f"{name}.svg")
        try:
            write_text(files[-1], picture)
        except OSError as error:
            raise InputError(f"--figures: cannot write {files[-1]} ({error.strerror})") from error
    return files


def _document(found: re.Match[str]) -> str:
    left, top, width, height = found[2].split()
    # The first block of the style sheet holds the light colors.
    colors = dict(_COLOR.findall(resource("templates/style.css").partition("}")[0]))
    size = f'width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="DejaVu Sans, sans-serif" {found[1]}>'
    ground = f'<rect x="{left}" y="{top}" {size} fill="{colors["card"]}"></rect>'
    drawn = f"{head}{ground}{found[0].partition('>')[2]}"
    return _VARIABLE.sub(lambda variable: colors[variable[1]], drawn) + "\n"
