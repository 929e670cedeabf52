"""Text of recordings: lines, JSON documents, units of time, and what is said where they are damaged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from latfix.errors import InputError, input_error
from latfix.files.strict_json import MALFORMED
from latfix.formatting import shown
from latfix.profilers.recordings.reader import CUT_OFF, damaged, open_decompressed

#: Nanoseconds of the units that names of columns end with.
UNITS_NS: dict[str, int] = {
    "ns": 1,
    "nanos": 1,
    "nanoseconds": 1,
    "us": 1_000,
    "usec": 1_000,
    "micros": 1_000,
    "microseconds": 1_000,
    "ms": 1_000_000,
    "msec": 1_000_000,
    "millis": 1_000_000,
    "milliseconds": 1_000_000,
    "s": 1_000_000_000,
    "sec": 1_000_000_000,
    "secs": 1_000_000_000,
    "seconds": 1_000_000_000,
}
#: Nanoseconds, or from 1970 on: twice as far is the end of whole numbers of 64 bits.
LATEST_NS = 2**62
_DAMAGED = "record it again, or copy it again"
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")


@dataclass(slots=True)
class BadLines:
    """Lines that could not be used: counted, and the first kept for the message.

    :param file: named in messages; ``expected`` what each line should have been.
    """

    file: Path
    expected: str
    count: int = 0
    first: tuple[int, str] | None = field(default=None)

    def add(self, line: int, found: str) -> None:
        """Count one."""
        self.count += 1
        if self.first is None:
            self.first = (line, found)

    def error(self) -> InputError:
        """The first one as an error."""
        line, found = self.first or (1, "nothing")
        return input_error(self.file, line, found, self.expected, "")

    def check(self, good: int) -> None:
        """Refuse a file most of which is something else.

        :raises InputError: more lines were bad than good.
        """
        if self.count > good:
            raise self.error()

    def notes(self) -> tuple[str, ...]:
        """For the reader of the diagnosis."""
        if self.first is None:
            return ()
        line, found = self.first
        lines = "1 line was" if self.count == 1 else f"{self.count:,} lines were"
        return (f"{lines} left out, the first in line {line}: found {found}; expected {self.expected}.",)


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers from 1; empty ones are left out.

    :raises InputError: the file cannot be read, or its compression is cut off.
    """
    number = 0
    try:
        with open_decompressed(path) as file:
            for number, line in enumerate(file, 1):
                text = line.decode("utf-8", "replace").strip("\ufeff \t\r\n")
                if text:
                    yield number, text
    except CUT_OFF as error:
        damaged(path, "a whole file", f"the end of compressed data after line {number} ({error})")


def json_lines(path: Path, expected: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Objects, one a line.

    :raises InputError: a line is none.
    """
    for number, line in lines_of(path):
        yield number, json_object(line, path, number, expected)


def json_object(line: str, path: Path, number: int, expected: str) -> dict[str, Any]:
    """The object that a line holds.

    :raises InputError: it holds none.
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise input_error(path, number, f"{shown(line, 40)} ({_why(error)})", expected, _DAMAGED) from error
    if not isinstance(value, dict):
        raise input_error(path, number, shown(line, 40), expected)
    return value


def json_document(path: Path, expected: str) -> Any:
    """The value of a whole file.

    :raises InputError: it is no JSON, or cut off.
    """
    try:
        with open_decompressed(path) as file:
            text = file.read().decode("utf-8-sig")
        return json.loads(text)
    except CUT_OFF as error:
        damaged(path, expected, f"compressed data that ends too soon ({error})")
    except json.JSONDecodeError as error:
        raise input_error(path, error.lineno, f"no JSON there ({error.msg})", expected, _DAMAGED) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise input_error(path, None, f"no JSON ({_why(error)})", expected, _DAMAGED) from error


def head_of(path: Path, expected: str) -> bytes:
    """The first bytes of a file, decompressed.

    :raises InputError: its compression is cut off.
    """
    try:
        with open_decompressed(path) as file:
            return file.read(1 << 16)
    except CUT_OFF as error:
        damaged(path, expected, f"compressed data that ends too soon ({error})")


def begins_with_object(head: bytes) -> dict[str, Any] | None:
    """The first line of JSON Lines, where it is whole; ``None`` where it is none."""
    first, newline, _ = head.lstrip(b"\xef\xbb\xbf \t\r\n").partition(b"\n")
    if not newline and len(head) >= 1 << 16:
        return None
    try:
        value = json.loads(first)
    except MALFORMED:
        return None
    return value if isinstance(value, dict) else None


def open_text(path: Path) -> IO[bytes]:
    """The bytes of a text, decompressed."""
    return open_decompressed(path)


def unit_of(name: str) -> int | None:
    """Nanoseconds of the unit that a name ends with: ``latency_ms``, ``durationMs``, ``time_seconds``."""
    words = _WORD.findall(name)
    return UNITS_NS.get(words[-1].lower()) if len(words) > 1 else None


def epoch_unit(largest: float) -> int:
    """Nanoseconds of the unit of numbers that count from 1970, told by their size; a second for small ones."""
    for unit, bound in ((1, 1e17), (1_000, 1e14), (1_000_000, 1e11)):
        if largest > bound:
            return unit
    return 1_000_000_000


def instant_ns(text: str) -> int:
    """Nanoseconds since 1970 of a date in ISO 8601; without a zone, UTC.

    :raises ValueError: it is none.
    """
    whole, dot, rest = text.strip().replace(" ", "T", 1).partition(".")
    fraction = re.match(r"[0-9]*", rest)[0] if dot else ""  # type: ignore[index]
    zone = rest[len(fraction) :] if dot else ""
    moment = datetime.fromisoformat(whole + zone)
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    found = int(moment.timestamp()) * 10**9 + int((fraction or "0")[:9].ljust(9, "0"))
    if abs(found) > LATEST_NS:
        raise ValueError(f"{moment.year} is too far from 1970 to be counted in nanoseconds")
    return found


def _why(error: Exception) -> str:
    return str(getattr(error, "msg", "")) or str(error)[:80] or type(error).__name__
