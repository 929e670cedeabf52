"""Building blocks of terminal reports: safe text, tables, bars, and an ASCII fallback."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.rule import Rule
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from latfix.formatting import listed, visible
from latfix.reports.answer import Answer
from latfix.reports.vocabulary import Severity

SEVERITY_STYLE: dict[Severity, str] = {"good": "green", "warn": "yellow", "bad": "red", "calm": "cyan"}
OWN_STYLE = "red"
QUEUE_STYLE = "yellow"
NEGATIVE_STYLE = "cyan"
_ASCII = str.maketrans(
    {"–": "-", "—": "-", "×": "x", "…": "~", "█": "#", "▒": "=", "░": "-", "→": ">", "−": "-", "─": "-", "µ": "u"}
    | dict(zip("▁▂▃▄▅▆▇", "_.-:=+*", strict=True))
)
#: Stands for a blank where no line may end, until :class:`Portable` writes it: rich breaks lines at all white space.
_TIE = "\ue000"
_TIED = re.compile(r"(?<=\d) (?=(?:[mµn]?s|min|%|[KMG]iB)(?!\w))|(?<=(?<!\S)[-+>]) (?=\d)")


def safe(text: object, style: str = "", *, limit: int = 240) -> Text:
    """Text from outside, shown literally: without markup or control characters; numbers stay with sign and unit."""
    return Text(_TIED.sub(_TIE, visible(text, limit=limit)), style=style)


@dataclass(frozen=True, slots=True)
class Portable:
    """Renders its content without trailing blanks and control characters, in ASCII if the output is not Unicode.

    Texts of :func:`safe` are complete only here.
    """

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self.content, options, pad=False):
            for segment in _without_end(line):
                text = segment.text.replace(_TIE, " ")
                if not segment.control and not text.isprintable():
                    text = visible(text, limit=10 * len(text))  # an escape has at most ten characters
                if options.ascii_only and not text.isascii():
                    text = text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")
                yield Segment(text, segment.style, segment.control)
            yield Segment.line()


def _without_end(line: Sequence[Segment]) -> list[Segment]:
    """The segments of a line without trailing blanks."""
    kept = list(line)
    while kept and not kept[-1].control and not kept[-1].text.rstrip():
        kept.pop()
    if kept and not kept[-1].control:
        kept[-1] = Segment(kept[-1].text.rstrip(), kept[-1].style)
    return kept


#: Lines of a screen.
_SCREEN = 40


@dataclass(frozen=True, slots=True)
class OneScreen:
    """Parts from top to bottom; the named ones are left out, the last in ``optional`` first, until all fits.

    :param parts: names, empty for what is always shown, and contents. The last part follows a line with the names of
        those left out and of ``more``.
    :param optional: names, the most important first.
    :param more: what only ``-v`` shows.
    """

    parts: Sequence[tuple[str, Sequence[RenderableType]]]
    optional: Sequence[str]
    more: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rendered = [(name, console.render_lines(Group(*content), options, pad=False)) for name, content in self.parts]
        known = {name: len(lines) for name, lines in rendered if name and lines}
        spare, left_out = _SCREEN - sum(len(lines) for _, lines in rendered) - bool(self.more), list[str]()
        for name in reversed(self.optional):
            if spare < 0 and name in known:
                spare += known[name] - (not left_out and not self.more)
                left_out.append(name)
        for k, (name, lines) in enumerate(rendered):
            if k == len(rendered) - 1 and (left_out or self.more):
                yield Text(f"-v also shows {listed([*reversed(left_out), *self.more])}", style="dim")
            for line in lines if name not in left_out else ():
                yield from line
                yield Segment.line()


@dataclass(frozen=True, slots=True)
class Bar:
    """A horizontal bar to scale, from zero; parts are fractions of its width, at most :data:`WIDEST_BAR` columns.

    A negative part has its own character, so that a cause that shortens the tail is not read as one that
    lengthens it.
    """

    parts: Sequence[tuple[float, str, str]]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(NARROWEST_BAR, options.max_width), min(WIDEST_BAR, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, WIDEST_BAR)
        reach, drawn = 0.0, 0
        for fraction, character, style in self.parts:
            # Rounds the end, not the length, so that the parts together are as long as their sum.
            reach += abs(fraction)
            cells = max(min(round(reach * width), width) - drawn, 0)
            drawn += cells
            if fraction < 0:
                character, style = "░", NEGATIVE_STYLE
            yield Segment(character * cells, Style.parse(style))
        yield Segment(" " * (width - drawn))


#: Columns of a bar: enough to show 5 %, and short enough to stay near its figure on a wide screen.
NARROWEST_BAR, WIDEST_BAR = 6, 40


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a :class:`FittedTable`.

    :param given_up: columns with the highest number are dropped first if space is short; 0 is never dropped.
    """

    title: str = ""
    right: bool = True
    given_up: int = 0


@dataclass(frozen=True, slots=True)
class Sparkline:
    """Values as bars of one character each, blank for ``None``; the latest ones if not all fit.

    :param from_zero: bars start at zero, else at the smallest value.
    """

    values: Sequence[float | None]
    style: str = ""
    from_zero: bool = False
    widest: int = 32

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = max(min(len(self.values), self.widest), 1)
        return Measurement(min(width, 8), width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = bars(self.values[-options.max_width :], from_zero=self.from_zero)
        yield Segment(text, Style.parse(self.style))


BLOCKS = "▁▂▃▄▅▆▇█"


def bars(values: Sequence[float | None], *, from_zero: bool = False) -> str:
    """One character a value, from the smallest (or zero) to the largest."""
    known = [value for value in values if value is not None]
    low, high = 0.0 if from_zero else min(known, default=0.0), max(known, default=0.0)

    def one(value: float | None) -> str:
        if value is None or (from_zero and high <= 0):
            return " "
        part = (value - low) / (high - low) if high > low else 0.5
        return BLOCKS[min(max(int(part * len(BLOCKS)), 0), len(BLOCKS) - 1)]

    return "".join(map(one, values))


Cell = Text | str | Bar | Sparkline
_Drawn = Bar | Sparkline
_Drawable = Text | _Drawn


@dataclass(frozen=True, slots=True)
class FittedTable:
    """A table that drops whole columns instead of cutting cells.

    If even the columns that are never dropped do not fit, the first column is narrowed: its texts take two lines, or
    a line of their own if a word or the third line would not fit. A row that is a single text spans the table. A
    sparkline stands in the last column.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell] | Text]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        every = [row if isinstance(row, Text) else list(map(_drawable, row)) for row in self.rows]
        rows = [row for row in every if not isinstance(row, Text)]
        widths = [
            max([cell_len(column.title), *(_cell_width(row[k]) for row in rows)])
            for k, column in enumerate(self.columns)
        ]
        shown = list(range(len(self.columns)))
        while _total(widths, shown) > options.max_width and any(self.columns[k].given_up for k in shown):
            shown.remove(max(shown, key=lambda k: (self.columns[k].given_up, k)))
        spare = options.max_width - _total(widths, shown)
        if spare < 0:
            widths[shown[0]] = max(widths[shown[0]] + spare, 8)
        for k in shown:
            if any(isinstance(row[k], _Drawn) for row in rows):
                widths[k] += max(min(spare, WIDEST_BAR - NARROWEST_BAR), 0)
        if any(column.title for column in self.columns):
            titles: list[_Drawable] = [Text(column.title, style="dim") for column in self.columns]
            yield from self._line(console, options, titles, shown, widths)
            yield Segment("─" * min(_total(widths, shown), options.max_width), Style.parse("dim"))
            yield Segment.line()
        for row in every:
            if isinstance(row, Text):
                yield row
            else:
                yield from self._line(console, options, row, shown, widths)

    def _line(
        self,
        console: Console,
        options: ConsoleOptions,
        row: Sequence[_Drawable],
        shown: Sequence[int],
        widths: list[int],
    ) -> RenderResult:
        first, width = row[shown[0]], widths[shown[0]]
        text = first if isinstance(first, Text) else Text()
        folded: Sequence[Text] = list(text.wrap(console, width, overflow="fold")) or [Text()]
        if len(folded) > 2 or max(map(cell_len, text.plain.split()), default=0) > width:
            yield text
            folded = [Text()] if len(shown) > 1 and any(str(row[k]) for k in shown[1:]) else []
        for number, part in enumerate(folded):
            cells: list[_Drawable] = [part, *(row[k] if not number else Text() for k in shown[1:])]
            for place, (k, cell) in enumerate(zip(shown, cells, strict=True)):
                blanks = widths[k] - _cell_width(cell) if not isinstance(cell, _Drawn) else 0
                before = blanks if place and self.columns[k].right else 0
                yield Segment(" " * (before + (_GAP if place else 0)))
                if isinstance(cell, _Drawn):
                    yield from console.render(cell, options.update(width=widths[k]))
                else:
                    yield from Text.assemble(cell, end="").render(console)
                yield Segment(" " * (blanks - before))
            yield Segment.line()


_GAP = 2


def _drawable(cell: Cell) -> _Drawable:
    return Text(visible(cell)) if isinstance(cell, str) else cell


def _cell_width(cell: _Drawable) -> int:
    return NARROWEST_BAR if isinstance(cell, _Drawn) else cell.cell_len


def _total(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[k] for k in shown) + _GAP * (len(shown) - 1)


def plain_table(*, expand: bool = False) -> Table:
    """A table with a ruled header and no borders."""
    return Table(
        box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, padding=(0, 1), show_edge=False, expand=expand
    )


def add_figures(table: Table, *titles: str) -> None:
    """Add columns of figures, right-aligned and never wrapped."""
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)


def title_line(workload: object, device: object, sentence: str, style: str) -> Text:
    """``ranker on cpu: p99 is …``"""
    return Text.assemble(
        safe(workload, "bold", limit=60),
        *((" on ", "dim"), safe(device, limit=40)) * bool(device),
        (": ", "dim"),
        safe(sentence, f"bold {style}", limit=600),
    )


def pair_bar(own: float, queue: float, scale: float) -> Bar:
    """A bar of both parts, as shares of ``scale``.

    Parts of opposite sign are netted, so that the bar is as long as their sum.
    """
    if own * queue < 0:
        own, queue = (own + queue, 0.0) if abs(own) > abs(queue) else (0.0, own + queue)
    return Bar([(own / scale, "█", OWN_STYLE), (queue / scale, "▒", QUEUE_STYLE)])


def answer_block(answer: Answer, *, folder: Path | None) -> Iterator[RenderableType]:
    """The answer under a rule, at the end of the screen.

    :param folder: of the result's ``report.html``; ``None`` if there is none.
    """
    yield Text("")
    yield Rule(style="dim")
    yield safe(_plain(answer.headline), f"bold {SEVERITY_STYLE[answer.severity]}", limit=600)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for line in answer.lines:
        style = "bold cyan" if line.is_command else SEVERITY_STYLE[line.severity] if line.severity else ""
        table.add_row(line.label, safe(_plain(line.words), style, limit=1200))
    yield table
    if folder is not None:
        widest = max(map(len, ("report", *(line.label for line in answer.lines))))
        yield _Path("report", safe(str(folder / "report.html"), limit=1200), indent=widest + 2)


@dataclass(frozen=True, slots=True)
class _Path:
    """A labeled path, unbroken where the width allows it, so that it can be copied."""

    label: str
    path: Text
    indent: int

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        fits = self.indent + self.path.cell_len <= options.max_width
        yield Text.assemble((self.label.ljust(self.indent if fits else len(self.label) + 2), "dim"), self.path)


def _plain(words: str) -> str:
    """The words with the ASCII signs that terminal reports use."""
    return words.replace("→", "->").replace("×", "x")


def heading(text: str) -> Text:
    """A section's heading, with an empty line above it."""
    return Text(f"\n{text}", style="bold")


def warnings(notes: Iterable[str]) -> list[Text]:
    """Notes of a run, marked so that they stand out even without color."""
    return [Text.assemble(("! ", "bold yellow"), safe(note, "yellow", limit=400)) for note in notes]
