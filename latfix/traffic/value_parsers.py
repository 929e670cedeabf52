"""Exact parsing of single values: decimal seconds, calendar timestamps, numbers and texts.

Every parser takes a value of a file (JSON, CSV or Parquet) and either returns the parsed value or raises
:class:`Unreadable`, whose text completes the sentence "found …; expected …".
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Any

from latfix.formatting import shown

NS_PER_S = 10**9
#: Longest schedule that can be replayed: about 31 years. A larger number is a date or a mistake.
MAX_SECONDS = 10**9
#: Below this many units a float resolves nanoseconds; above, its text is parsed exactly.
EXACT_FLOAT_LIMIT = 2**20

_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")
_PLAIN_SECONDS = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,9}))?")
_TIMESTAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,12}))?"
    r" ?(Z|UTC|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)
_NOT_FINITE = {"nan", "inf", "-inf", "+inf", "infinity", "-infinity", "+infinity"}
_INT64_MAX = 2**63 - 1


class Unreadable(Exception):
    """A value that is not what was expected.

    :param found: what was found, for a message.
    :param expected: what was expected.
    :param todo: what the user can do, if that is not obvious.
    """

    def __init__(self, found: str, expected: str, todo: str = "") -> None:
        super().__init__(found)
        self.found = found
        self.expected = expected
        self.todo = todo


def instant_ns(value: Any, *, unit: int = NS_PER_S, max_seconds: int = MAX_SECONDS) -> int:
    """Nanoseconds of a number in units of ``unit`` nanoseconds (seconds by default), rounded.

    Texts and :class:`~decimal.Decimal` are exact; a float is read through its shortest decimal form.

    :raises Unreadable: not a number, negative, not finite, or more than ``max_seconds``.
    """
    expected = "a number of seconds, 0 or more" if unit == NS_PER_S else "a number of milliseconds, 0 or more"
    number: int | Decimal
    if isinstance(value, str):
        if unit == NS_PER_S and (plain := _PLAIN_SECONDS.fullmatch(value)):
            return int(plain[1]) * NS_PER_S + int((plain[2] or "0").ljust(9, "0"))
        number = _decimal(value, expected)
    elif isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise Unreadable("nothing" if value is None else shown(value), expected)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise Unreadable(shown(value), expected)
        number = Decimal(repr(value))
    else:
        number = value
        if isinstance(number, Decimal) and not number.is_finite():
            raise Unreadable(shown(str(number)), expected)
    if number < 0:
        raise Unreadable(shown(value if isinstance(value, str | int | float) else float(value)), expected)
    if number * unit > max_seconds * NS_PER_S if isinstance(number, int) else number > max_seconds * NS_PER_S // unit:
        raise Unreadable(
            shown(str(number) if isinstance(number, Decimal) else number),
            f"at most {max_seconds:.0e} seconds".replace("e+0", "e").replace("e+", "e"),
            "arrivals count from the start of the traffic, not from 1970",
        )
    if isinstance(number, int):
        return number * unit
    return int((number * unit).to_integral_value(ROUND_HALF_EVEN))


def _decimal(text: str, expected: str) -> Decimal:
    stripped = text.strip()
    if not stripped:
        raise Unreadable("an empty cell", expected)
    if not _DECIMAL.fullmatch(stripped):
        raise Unreadable(shown(text), expected)
    try:
        return Decimal(stripped)
    except InvalidOperation as error:
        raise Unreadable(shown(text), expected) from error


class CalendarReader:
    """Reads ``2023-11-16 18:17:03.9799600`` (with or without UTC offset) as nanoseconds since 1970.

    Either all timestamps of a file have an offset or none has: times without one are assumed to be of one
    clock, and cannot be ordered relative to times that have one.
    """

    _EXPECTED = "a timestamp like 2023-11-16 18:17:03.9799600, with or without UTC offset"

    def __init__(self) -> None:
        self._seconds: dict[str, int] = {}
        self._has_offset: bool | None = None

    def __call__(self, value: Any) -> int:
        """Nanoseconds since 1970, exact to nine decimals.

        :raises Unreadable: not such a timestamp, an invalid date, or an offset unlike on other lines.
        """
        if isinstance(value, datetime):
            value = value.isoformat(sep=" ")
        match = _TIMESTAMP.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            raise Unreadable("an empty cell" if value in (None, "") else shown(value), self._EXPECTED)
        head, fraction, zone = match[1], match[2], match[3]
        seconds = self._seconds.get(head)
        if seconds is None:
            try:
                seconds = int(datetime.fromisoformat(head).replace(tzinfo=UTC).timestamp())
            except ValueError as error:
                raise Unreadable(f"{shown(value)} ({error})", self._EXPECTED) from error
            if len(self._seconds) < 100_000:
                self._seconds[head] = seconds
        if self._has_offset is None:
            self._has_offset = zone is not None
        elif self._has_offset != (zone is not None):
            have = "with" if self._has_offset else "without"
            raise Unreadable(shown(value), f"a timestamp {have} UTC offset, as on the lines before")
        digits = (fraction or "").ljust(10, "0")
        nanoseconds = int(digits[:9]) + (digits[9] >= "5")
        return (seconds - _offset_seconds(zone, value)) * NS_PER_S + nanoseconds


def _offset_seconds(zone: str | None, value: Any) -> int:
    if zone is None or zone in ("Z", "UTC"):
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 18 or minutes > 59:
        raise Unreadable(shown(value), "a UTC offset of at most 18 hours")
    return (hours * 3600 + minutes * 60) * (-1 if zone[0] == "-" else 1)


def count(value: Any) -> int:
    """A whole number, 0 or more: a length in tokens.

    :raises Unreadable: anything else, or beyond 64 bits.
    """
    expected = "a whole number, 0 or more"
    if isinstance(value, str):
        stripped = value.strip()
        if _INTEGER.fullmatch(stripped) and len(stripped) <= 20:
            value = int(stripped)
        elif stripped and (decimal := _DECIMAL.fullmatch(stripped)) and len(stripped) <= 40:
            value = float(decimal[0])
        else:
            raise Unreadable(shown(value) if stripped else "an empty cell", expected)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unreadable("nothing" if value is None else shown(value), expected)
    if not 0 <= value <= _INT64_MAX:
        raise Unreadable(shown(value), expected)
    return value


def feature(value: Any) -> int | float | str | None:
    """A feature's value from JSON or Parquet; ``None`` if absent, booleans as 0 and 1.

    :raises Unreadable: nested, not finite, beyond 64 bits, or of a type that JSON does not have.
    """
    expected = "a number or a text"
    if value is None or isinstance(value, str):
        return None if value is None else clean_text(value)
    if isinstance(value, bool | int):
        if abs(value) > _INT64_MAX:
            raise Unreadable(shown(value), "a whole number within 64 bits")
        return int(value)
    if isinstance(value, Decimal) and value.is_finite():
        value = float(value)
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, dict | list):
        kind = "an object" if isinstance(value, dict) else "a list"
        raise Unreadable(f"{kind} {shown(value)}", expected, "put nested values under payload")
    raise Unreadable(shown(value), expected)


def cell_feature(cell: str) -> int | float | None:
    """The number in a CSV cell, ``None`` if it holds other text.

    :raises Unreadable: an integer beyond 64 bits, or a number too large for a float.
    """
    stripped = cell.strip()
    if _INTEGER.fullmatch(stripped):
        if len(stripped) > 20 or abs(number := int(stripped)) > _INT64_MAX:
            raise Unreadable(shown(cell), "a whole number within 64 bits")
        return number
    if not _DECIMAL.fullmatch(stripped):
        return None
    value = float(stripped)
    if math.isinf(value):
        raise Unreadable(shown(cell), "a finite number")
    return value


def is_not_finite(cell: str) -> bool:
    """True if a CSV cell spells NaN or infinity."""
    return cell.strip().lower() in _NOT_FINITE


def is_utf8(text: str) -> bool:
    """False for half of a surrogate pair."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def clean_text(value: str) -> str:
    """``value``, if every output format can hold it.

    :raises Unreadable: it has half a surrogate pair or a NUL character.
    """
    if not is_utf8(value):
        raise Unreadable(shown(value), "text that UTF-8 can hold")
    if "\x00" in value:
        raise Unreadable(shown(value), "text without NUL characters")
    return value


def label(value: Any) -> str | None:
    """An id or a session: a text or a whole number, ``None`` if absent.

    :raises Unreadable: another type, an empty text, or text that cannot be written.
    """
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**40:
        return str(value)
    if not isinstance(value, str) or not value:
        raise Unreadable(shown(value), "a text or a whole number")
    return clean_text(value)


def deadline_ms(value: Any) -> float:
    """A deadline in milliseconds; NaN if absent.

    :raises Unreadable: not a number above 0.
    """
    expected = "a finite number of milliseconds above 0"
    if value is None:
        return math.nan
    if isinstance(value, str):
        value = float(_decimal(value, expected))
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise Unreadable(shown(value), expected)
    try:
        number = float(value)
    except OverflowError as error:
        raise Unreadable(shown(value), expected) from error
    if not (math.isfinite(number) and number > 0):
        raise Unreadable(shown(value), expected)
    return number
