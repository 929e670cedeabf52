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


def _with_modules(*folders: str) -> list[str]:
    """Each folder below these that holds modules."""
    return sorted(
        {file.parent.relative_to(ROOT).as_posix() for folder in folders for file in (ROOT / folder).rglob("*.py")}
    )


@pytest.mark.parametrize("room", [*sorted(ROOMS), *_with_modules("tests", "benchmarks")])
def test_no_room_holds_more_than_a_dozen_modules(room: str) -> None:
    modules = [file.name for file in (ROOT / room).glob("*.py") if file.name != "__init__.py"]
    assert len(modules) <= MOST_MODULES


def test_benchmarks_are_in_rooms_that_tell_what_they_measure() -> None:
    """Beside them: the package's file, what writes results, and what lists them."""
    flat = {file.name for file in (ROOT / "benchmarks").glob("*.py")}
    assert flat == {"__init__.py", "result_file.py", "rerun.py"}
    for room in _with_modules("benchmarks"):
        if not room.startswith("benchmarks/models"):  # workloads, like a user's own
            text = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text(encoding="utf-8")))
            assert text and text.partition("\n\n")[0].endswith("."), room


def test_places_on_the_page_exist() -> None:
    places = set(re.findall(r"`((?:cli|latfix|profilers|reports|runners|tests|docs|benchmarks)/[\w./-]*)`", PAGE))
    assert len(places) > len(ROOMS)
    named = (place for place in places if not re.search("AREA|FAMILY|NAME", place))
    assert not [place for place in named if not (ROOT / place).exists()]


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = (re.sub(r"[^\w\- ]", "", title.lower()) for title in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE))
    return {title.strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    "page", [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md"))], ids=lambda page: page.name
)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8"))
    for path, anchor in targets:
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in _anchors(target), f"{path}#{anchor}"
