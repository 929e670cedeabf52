"""Pieces of the terminal reports: safe text, bars, and output that survives a terminal without Unicode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from latfix.formatting import significant, visible
from latfix.reports.comparison_rows import GateRow
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


@dataclass(frozen=True, slots=True)
class Sparkline:
    """Values as bars of one character each, a blank where there is none; the latest where there is not room for all.

    :param from_zero: bars begin at zero, else at the least value.
    """

    values: Sequence[float | None]
    style: str = ""
    from_zero: bool = False
    widest: int = 32

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = max(min(len(self.values), self.widest), 1)
        return Measurement(min(width, 8), width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        signs = "_.-=*#@" if options.ascii_only else BLOCKS
        text = bars(self.values[-options.max_width :], signs, from_zero=self.from_zero)
        yield Segment(text, Style.parse(self.style))


BLOCKS = "▁▂▃▄▅▆▇█"


def bars(values: Sequence[float | None], signs: str = BLOCKS, *, from_zero: bool = False) -> str:
    """One character a value, from the least (or zero) to the largest."""
    known = [value for value in values if value is not None]
    low, high = 0.0 if from_zero else min(known, default=0.0), max(known, default=0.0)

    def one(value: float | None) -> str:
        if value is None or (from_zero and high <= 0):
            return " "
        part = (value - low) / (high - low) if high > low else 0.5
        return signs[min(max(int(part * len(signs)), 0), len(signs) - 1)]

    return "".join(map(one, values))


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


def add_figures(table: Table, *titles: str) -> None:
    """Columns of figures: aligned to the right, never wrapped."""
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)


def title_line(workload: object, device: object, sentence: str, style: str, *, limit: int = 600) -> Text:
    """``ranker on cpu: p99 is …``"""
    return Text.assemble(
        safe(workload, "bold", limit=60),
        (" on ", "dim"),
        safe(device, limit=40),
        (": ", "dim"),
        safe(sentence, f"bold {style}", limit=limit),
    )


def own_and_queue(title: str) -> Text:
    """A heading with what the two parts of bars below it are."""
    own, queue = (" own path  ", "dim"), (" through the queue", "dim")
    return Text.assemble(heading(title), "   ", ("█", OWN_STYLE), own, ("▒", QUEUE_STYLE), queue)


def pair_bar(own: float, queue: float, scale: float) -> Bar:
    """A bar of both parts, as shares of ``scale``."""
    return Bar([(own / scale, "█", OWN_STYLE), (queue / scale, "▒", QUEUE_STYLE)])


def gate_lines(gates: Iterable[GateRow], *, title: str = "Gates") -> Iterator[Text]:
    """Each gate with its outcome and the reason; nothing without gates."""
    for place, gate in enumerate(gates):
        if not place:
            yield heading(title)
        words, style = (
            ("FAILED", "bold red") if gate.outcome == "failed" else (gate.words, SEVERITY_STYLE[gate.severity])
        )
        line = Text.assemble((f"{words:<12}", style), safe(gate.gate))
        if gate.value is not None:
            line.append(f"   value {significant(gate.value)}", "dim")
        yield line
        if gate.reason:
            yield Text.assemble("  ", safe(gate.reason, "dim"))


def report_line(folder: Path) -> Text:
    """Where the page of a run is."""
    return Text.assemble(("report           ", "dim"), safe(folder / "report.html", limit=1000))


def heading(text: str) -> Text:
    """A section's heading, with an empty line above it."""
    return Text(f"\n{text}", style="bold")


def warnings(notes: Iterable[str]) -> list[Text]:
    """Notes of a run as lines that stand out without color."""
    return [Text.assemble(("! ", "bold yellow"), safe(note, "yellow", limit=400)) for note in notes]
