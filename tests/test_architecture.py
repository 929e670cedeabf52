"""The page on the architecture lists every room with its docstring, and only places that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FOLDERS = ("cli", "latfix", "profilers", "reports", "runners")
#: Without ``__init__.py``.
MOST_MODULES = 12


def _rooms() -> dict[str, str]:
    """Each folder with modules, and the first sentence of its package's docstring."""
    rooms = {}
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("__init__.py")):
            inside = [file.parent, *file.parent.parents]
            if not any(part.is_symlink() for part in inside):
                text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
                rooms[file.parent.relative_to(ROOT).as_posix()] = text.partition("\n\n")[0].replace("\n", " ")
    return rooms


ROOMS = _rooms()


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_every_room_has_a_sentence_and_stands_on_the_page(room: str) -> None:
    assert ROOMS[room].endswith("."), f"{room}/__init__.py describes the room in a sentence"
    assert f"| `{room}/` | {ROOMS[room]} |" in PAGE


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_no_room_holds_more_than_a_dozen_modules(room: str) -> None:
    modules = [file.name for file in (ROOT / room).glob("*.py") if file.name != "__init__.py"]
    assert len(modules) <= MOST_MODULES


def test_places_on_the_page_exist() -> None:
    places = set(re.findall(r"`((?:cli|latfix|profilers|reports|runners|tests|docs)/[\w./-]*)`", PAGE))
    assert len(places) > len(ROOMS)
    named = (place for place in places if not re.search("AREA|FAMILY|NAME", place))
    assert not [place for place in named if not (ROOT / place).exists()]
