"""CSV as columns: its header and delimiter, decimal commas, sums of JMeter, quotes that are not closed."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from latfix.formatting import shown
from latfix.profilers.recordings.reader import Recorded, damaged, opened
from latfix.profilers.recordings.requests.columns.column_roles import EXPECTED, Block
from latfix.profilers.recordings.requests.columns.usual_names import LATENCY, is_called, unit_in
from latfix.profilers.recordings.requests.text_source import BadLines, csv_batches

_FIRST_ROWS, _BLOCK_BYTES = 10, 1 << 23
_IN_NAMES = re.compile(r"^[^\W\d](?!.*: )[\w@.\- /()\[\]%#:+]*$|^@[\w.]+$")
#: The name of a column whose name was there before.
_COPY = re.compile(r"#\d+$")
#: Lines between the rows of a drawn table (Markdown, psql, MySQL), and the one behind them.
_RULE = re.compile(r"[\s|+:=-]*-[\s|+:=-]*$|\(\d+ rows?\)|\d+ rows? in set\b")
#: JMeter's column that shows that a row is a transaction, and how it begins then.
_MESSAGE, _SUM = "responseMessage", "Number of samples in transaction"


def knows(head: bytes) -> bool:
    """True if a file begins with the names of columns, and a row of as many cells."""
    names, values = _first_rows(head)
    named = [name for name in map(str.strip, names) if name]  # an index column has no name
    has_latency = any(is_called(name, LATENCY) and unit_in(name) is not None for name in named)
    blanks = len(named) > 1 and _header(head)[2] == " "
    return (
        (has_latency if blanks else len(named) > 1 or has_latency)
        and len(values) in (0, len(names))
        and all(map(_IN_NAMES.match, named))
    )


def columns_of(head: bytes) -> dict[str, str]:
    """By column, its value in the first whole row. A name that was there before gets its place behind it."""
    names, values = _first_rows(head)
    result: dict[str, str] = {}
    for k, name in enumerate(map(str.strip, names)):
        result[name if name not in result else f"{name}#{k + 1}"] = values[k] if k < len(values) else ""
    return result


def notes_on(names: Collection[str]) -> Iterator[str]:
    """What the columns' names show: results of hey or oha, and names that the header has more than once."""
    if "DNS+dialup" in names:
        yield "The file has no rows of requests without an answer (refused, timed out): see what its writer counted."
    copies = {name: whole for name in names if (whole := _COPY.sub("", name)) not in ("", name) and whole in names}
    if copies:
        yield (
            f"The header has {', '.join(dict.fromkeys(copies.values()))} more than once: the first is read; the "
            f"others are named {', '.join([*copies][:3])}."
        )


def blocks_of(file: Recorded, names: Sequence[str], wanted: Sequence[str], bad: BadLines) -> Iterator[Block]:
    """The wanted columns, block by block.

    :param names: of all columns.
    """
    import pyarrow as pa

    def skip(row: Any) -> str:
        if not _RULE.match(row.text or ""):
            bad.add((row.number or 0) + before, shown(row.text or "", 40))
        return "skip"

    path, (before, _, delimiter) = file.path, _header(file.head)
    at, skipped = before + 1, bad.count
    has_sums = {"elapsed", _MESSAGE} <= set(names)
    included = list(dict.fromkeys((*wanted, _MESSAGE) if has_sums else wanted))
    parsing = {"delimiter": delimiter, "newlines_in_values": True}
    with opened(path, EXPECTED) as text:
        try:
            for _ in range(before):
                text.readline()
            lines = _CountedLines(text)
            for batch in csv_batches(lines, names, included, skip, _BLOCK_BYTES, **parsing):
                numbers: Sequence[int] = range(at, at + batch.num_rows)
                at += batch.num_rows
                if has_sums:
                    batch, numbers = _without_sums(batch, numbers, bad)
                if batch.num_rows:
                    yield {name: _with_points(batch.column(name)) for name in wanted}, numbers
        except pa.ArrowInvalid as error:
            if "Empty CSV" in str(error):
                return
            damaged(path, EXPECTED, error)
    if lines.count > at - 1 - before + bad.count - skipped:  # empty lines, or values of several lines
        _find_unclosed_quotes(path, delimiter.encode(), len(names), bad)


def _first_rows(head: bytes) -> tuple[list[str], list[str]]:
    """The names of the columns, and the first row, which may lack fields or have too many, unless one is whole."""
    before, header, delimiter = _header(head)
    rest = "".join(_text(head).splitlines(keepends=True)[before:])
    names = next(csv.reader(io.StringIO(header, newline=""), delimiter=delimiter), [])
    first = list(islice(csv.reader(io.StringIO(rest, newline=""), delimiter=delimiter), _FIRST_ROWS))
    return names, next((row for row in first if len(row) == len(names)), first[0] if first else [])


def _text(head: bytes) -> str:
    return head.decode("utf-8", "replace").replace("\x00", "\ufffd")


def _header(head: bytes) -> tuple[int, str, str]:
    """How many lines are before the rows of a table, the one with the names of its columns, and its delimiter.

    Comments may come before it, or be it, and Excel's line with the delimiter; a rule before and after it.
    """
    before, header, comment = 1, "", ""
    lines = _text(head).split("\n")
    for count, line in enumerate(lines, 1):
        if not line.startswith(("#", "sep=")) and not _RULE.match(line):
            before, header, named = count, line.rstrip("\r"), comment.strip("# \r")
            cells = (each.count(_delimiter(each)) for each in (line, named))
            if comment.startswith("#") and line[:1].isdigit() and len(set(cells)) == 1:
                before, header = count - 1, named
            break
        comment = line
    before += before < len(lines) and _RULE.match(lines[before]) is not None
    return before, header, _delimiter(header)


def _delimiter(line: str) -> str:
    most = max(",;\t|", key=line.count)
    return most if most in line else " "


def _without_sums(rows: Any, numbers: Sequence[int], bad: BadLines) -> tuple[Any, Sequence[int]]:
    """JMeter's rows without those of transactions, if the samples that they sum up are there too."""
    import pyarrow.compute as pc

    own = pc.invert(pc.starts_with(rows.column(_MESSAGE), _SUM))
    if own.true_count in (0, len(own)):
        return rows, numbers
    bad.skip(f"{_SUM} …", own.false_count)
    return rows.filter(own), np.array(numbers)[own.to_numpy(zero_copy_only=False)].tolist()


def _with_points(column: Any) -> Any:
    """A column without blanks around its values, commas that separate thousands, and decimal commas (now points).

    Those are in numbers of four digits and more only, before three digits each.
    """
    import pyarrow.compute as pc

    column = pc.ascii_trim_whitespace(column)

    def number(pattern: str) -> Any:
        return pc.match_substring_regex(column, pattern)

    commas, whole = number(r"^-?\d+,\d+$"), number(r"^-?\d+$")
    thousands, points = number(r"^-?[1-9]\d{0,2}(,\d{3})+(\.\d+)?$"), number(r"^-?\d+\.\d+$")
    if number(r"^-?[1-9]\d{0,2}(\.\d{3})+,\d+$").true_count and not points.true_count:
        return _with_points(pc.replace_substring(column, ".", ""))
    empty = pc.equal(column, "")
    numbers = len(column) - empty.true_count
    three = thousands.true_count >= commas.true_count and (points.true_count or whole.true_count)
    if thousands.true_count and three and thousands.true_count + whole.true_count + points.true_count == numbers:
        return pc.replace_substring(column, ",", "")
    if not commas.true_count or commas.true_count + whole.true_count < numbers:
        return column
    return pc.replace_substring_regex(column, r"^(-?\d+),(\d+)$", r"\1.\2")


class _CountedLines(io.RawIOBase):
    """Passes a file on, and counts its lines."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.count = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.count += data.count(b"\n")
        return data


def _find_unclosed_quotes(path: Path, delimiter: bytes, cells: int, bad: BadLines) -> None:
    """Count the rows that a quote hides because it is not closed in its own row.

    A text of several lines ends with a quote before a delimiter or the end of a line; a row's own quote does not.
    """
    closes = re.compile(rb'(?:[^"]|"")*"\s*(?:' + re.escape(delimiter) + rb"|$)")
    begun, hidden = 0, 0

    def count() -> None:
        if hidden:
            bad.add(begun, "a quote that is not closed, which hides the rows after it", hidden)

    with opened(path, EXPECTED) as file:
        for number, line in enumerate(file, 1):
            hidden += bool(begun) and line.count(delimiter) >= cells - 1
            if line.count(b'"') % 2:
                if begun and not closes.match(line):
                    count()
                begun, hidden = 0 if begun else number, 0
    count()
