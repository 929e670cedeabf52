"""Pieces of the terminal reports: safe text, bars, and output that survives a terminal without Unicode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from latfix.reports.escaping import visible
from latfix.reports.vocabulary import Severity

SEVERITY_STYLE: dict[Severity, str] = {"good": "green", "warn": "yellow", "bad": "red", "calm": "cyan"}
OWN_STYLE = "red"
QUEUE_STYLE = "yellow"
NEGATIVE_STYLE = "cyan"
_ASCII = str.maketrans(
    {"–": "-", "—": "-", "×": "x", "…": "~", "█": "#", "▒": "=", "░": "-", "→": ">", "−": "-", "µ": "u"}
)


def safe(text: object, style: str = "", *, limit: int = 240) -> Text:
    """A text from outside, shown literally: no markup, no control characters."""
    return Text(visible(text, limit=limit), style=style)


@dataclass(frozen=True, slots=True)
class Portable:
    """Renders its content; where the output's encoding is not Unicode, every character becomes one in ASCII."""

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.content, options):
            if options.ascii_only and not segment.text.isascii():
                text = segment.text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
                yield Segment(text, segment.style, segment.control)
            else:
                yield segment


@dataclass(frozen=True, slots=True)
class Bar:
    """A horizontal bar as wide as its cell; parts are fractions of the full width.

    A negative part is drawn in a sign of its own, so that a cause which shortens the tail is not read as one
    which lengthens it.
    """

    parts: Sequence[tuple[float, str, str]]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(6, min(40, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width
        for fraction, character, style in self.parts:
            cells = min(round(abs(fraction) * options.max_width), room)
            if fraction > 0.002 and cells == 0 and room:
                cells = 1
            room -= cells
            if fraction < 0:
                character, style = "░", NEGATIVE_STYLE
            yield Segment(character * cells, Style.parse(style))
        yield Segment(" " * room)


def plain_table(*, title: str = "") -> Table:
    """An open table with a ruled header and no borders."""
    return Table(
        box=box.SIMPLE_HEAD,
        title=Text(title, style="bold") if title else None,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        pad_edge=False,
        padding=(0, 1),
        show_edge=False,
    )


def heading(text: str) -> Text:
    """A section's heading, with an empty line above it."""
    return Text(f"\n{text}", style="bold")


def warnings(notes: Iterable[str]) -> list[Text]:
    """Notes of a run as lines that stand out without color."""
    return [Text.assemble(("! ", "bold yellow"), safe(note, "yellow", limit=400)) for note in notes]
