"""Reads text of recordings: lines, JSON documents, times and their units; reports damage as :class:`InputError`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from latfix.arrays import Ints
from latfix.errors import input_error
from latfix.files.strict_json import MALFORMED
from latfix.formatting import counted, shown
from latfix.profilers.recordings.reader import opened

#: Nanoseconds of the units at the end of column names.
UNITS_NS: dict[str, int] = {
    **dict.fromkeys(("ns", "nsec", "nanos", "nanoseconds"), 1),
    **dict.fromkeys(("us", "usec", "micros", "microseconds"), 1_000),
    **dict.fromkeys(("ms", "msec", "millis", "milliseconds"), 1_000_000),
    **dict.fromkeys(("s", "sec", "secs", "seconds"), 1_000_000_000),
}
#: The latest time since 1970: half the range of 64-bit integers, so that sums do not overflow.
LATEST_NS = 2**62
#: The longest duration: 104 days, which a float holds to the nanosecond.
LONGEST_NS = 2**53
#: Values of a column that say that something is not so, in lower case.
NOTHING = ("", "-", "0", "0.0", "false", "no", "none", "null", "nan")
#: A number or id in a path.
NUMBER_IN_PATH = re.compile(r"/([0-9]+|[0-9a-fA-F-]{8,})")
#: Objects within objects whose values are columns.
_DEEPEST = 12
_DAMAGED = "record it again, or copy it again"
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
#: Dates before a time, other than ISO 8601: with slashes; in the order of Germany; with the name of the month, of
#: Kibana's tables, of C's asctime (uWSGI), of HTTP and e-mails, and of Apache and nginx.
_DATES = tuple(
    re.compile(date.replace("MON", "(?P<month>[A-Z][a-z]{2})").replace("DAY", r"(?P<day>\d{1,2})"))
    for date in (
        r"(?P<year>\d{4})/(?P<month>\d\d)/(?P<day>\d\d)[ T-]+",
        r"DAY\.(?P<month>\d{1,2})\.(?P<year>\d{4})[ T,]+",
        r"MON[a-z]* DAY, (?P<year>\d{4})(?: @|,)? +(?=\d)",
        r"(?:[A-Z][a-z]{2} )?MON +DAY (?P<time>\d\d:\d\d:\d\d\S*) (?P<year>\d{4})$",
        r"(?:[A-Z][a-z]{2}, )?DAY[ -]MON[ -](?P<year>\d{4}) (?=\d\d:)",
        r"DAY/MON/(?P<year>\d{4}):(?=\d\d:)",
    )
)
#: That of the United States, whose hours are of half a day; a blank before a zone, and the fraction of seconds.
_MONTH_FIRST = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4}),? +(\d{1,2})(:\d\d:\d\d\S*) ?([AP]M)", re.I)
_ZONE = re.compile(r"\s*(UTC|GMT|[+-]\d\d:?\d\d)$")
_FRACTION = re.compile(r"(?<=\d\d)[.,](\d+)")
#: What Python says of a text that is no number.
_VALUE = re.compile(r"^(?:invalid literal|could not convert).*?: ('.*')$")
#: Durations in Go's format; in that of Python and .NET, with days; in that of ISO 8601, without them.
_SPAN = re.compile(r"([0-9.]+) ?(h|ms|µs|μs|us|ns|m|s)")
_CLOCK = re.compile(r"(?:(\d+)(?: days?,? |\.))?(\d+):([0-5]\d):([0-5]\d(?:\.\d+)?)")
_OF_ISO = re.compile(r"PT(?=\d)(?:\d+H)?(?:\d+M)?(?:[0-9.]+S)?")
_SPAN_NS = {**UNITS_NS, "µs": 1_000, "μs": 1_000, "m": 60_000_000_000, "h": 3_600_000_000_000}
_BLANKS = re.compile(r"\s*")
_WORD = re.compile(r"[MUN]Secs?$|[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")


@dataclass(slots=True)
class BadLines:
    """Counts unusable lines, and those that are something else than requests; keeps the first of each for the notes.

    :param file: named in messages; ``expected`` describes a usable line.
    """

    file: Path
    expected: str
    count: int = 0
    first: tuple[int, str] = (1, "nothing")
    others: int = 0
    first_other: str = ""

    def add(self, line: int, result: str, count: int = 1) -> None:
        """Count unusable lines, of which the first is described."""
        self.first = self.first if self.count else (line, result)
        self.count += count

    def skip(self, first: str, count: int = 1) -> None:
        """Count lines that are something else, of which the first is given."""
        self.first_other = self.first_other or first
        self.others += count

    def check(self, good: int) -> None:
        """Refuse a file with mostly unusable lines.

        :raises InputError: more lines are bad than good.
        """
        if self.count > good:
            raise input_error(self.file, *self.first, self.expected)

    def notes(self) -> tuple[str, ...]:
        """On unusable lines, for the reader of the diagnosis."""
        line, result = self.first
        lines = "1 line was" if self.count == 1 else f"{self.count:,} lines were"
        note = f"{lines} left out, the first in line {line}: found {result}; expected {self.expected}."
        return (note,) if self.count else ()

    def notes_on_others(self) -> tuple[str, ...]:
        """On lines that are something else."""
        note = f"Skipped {counted(self.others, 'other line')}, the first: {shown(self.first_other, 60)}."
        return (note,) if self.others else ()


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers from 1, without empty ones.

    :raises InputError: the file cannot be read, or its compression is cut off.
    """
    with opened(path, "a whole file") as file:
        for number, line in enumerate(file, 1):
            if text := line.decode().strip():
                yield number, text


def csv_batches(
    file: Any,
    names: Sequence[str],
    wanted: Collection[str],
    invalid: Callable[[Any], str],
    block_bytes: int,
    **parse: Any,
) -> Any:
    """Batches of the wanted columns of CSV as Arrow's texts, each of about so many bytes.

    :param invalid: called with each row with another number of fields; ``parse``: options of ``csv.ParseOptions``.
    """
    import pyarrow as pa
    from pyarrow import csv

    return csv.open_csv(
        file,
        read_options=csv.ReadOptions(column_names=list(names), block_size=block_bytes, use_threads=False),
        parse_options=csv.ParseOptions(invalid_row_handler=invalid, **parse),
        convert_options=csv.ConvertOptions(
            include_columns=list(wanted),
            column_types=dict.fromkeys(wanted, pa.string()),
            strings_can_be_null=False,
            check_utf8=False,
        ),
    )


def json_objects(path: Path, expected: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of JSON Lines with their line numbers from 1, or the only object of a file.

    :raises InputError: a line, or the file, holds no object.
    """
    lines = lines_of(path)
    number, line = next(lines, (1, ""))
    value = json_object(line)
    if value is None:  # its first line is only a part of it
        value = json_document(path, expected)
        if not isinstance(value, dict):
            raise input_error(path, None, f"a {type(value).__name__}", expected)
        yield 1, value
        return
    yield number, value
    for number, line in lines:
        if (value := json_object(line)) is None:
            raise input_error(path, number, shown(line, 40), expected, _DAMAGED)
        yield number, value


def json_object(text: str | bytes) -> dict[str, Any] | None:
    """The object that a text holds; ``None`` if it holds something else."""
    try:
        value = json.loads(text)
    except MALFORMED:
        return None
    return value if isinstance(value, dict) else None


def flat(record: Mapping[str, Any], before: str = "", depth: int = _DEEPEST) -> dict[str, Any]:
    """The values of an object and the objects in it, by dotted name."""
    result: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, dict) and depth:
            result |= flat(value, f"{before}{name}.", depth - 1)
        else:
            result[before + name] = value
    return result


def first_of(record: Mapping[str, Any], *names: str) -> Any:
    """The first of these values that is there; ``None`` if none is."""
    return next((value for name in names if (value := record.get(name)) is not None), None)


def json_document(path: Path, expected: str) -> Any:
    """The JSON value of a whole file.

    :raises InputError: it is no JSON, or cut off.
    """
    values = json_values(path, expected)
    if len(values) != 1:
        raise input_error(path, None, f"invalid JSON ({len(values)} values)", expected, _DAMAGED)
    return values[0]


def json_values(path: Path, expected: str) -> list[Any]:
    """The JSON values of a whole file, which may be several, one after the other.

    :raises InputError: one is no JSON, or cut off.
    """
    decode, result, at = json.JSONDecoder().raw_decode, list[Any](), 0
    try:
        with opened(path, expected) as file:
            text = file.read().decode().strip()
        while at < len(text):
            value, at = decode(text, at)
            at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
            result.append(value)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise input_error(path, line, f"invalid JSON ({_why(error)})", expected, _DAMAGED) from error
    return result


@contextmanager
def entry_of(path: Path, where: str, expected: str, line: int | None = None) -> Iterator[None]:
    """Turn an exception while an entry of a document is read into an error about the entry.

    :param where: names the entry in the message.
    :raises InputError: the entry lacks a field, or is malformed.
    """
    try:
        yield
    except KeyError as error:
        raise input_error(path, line, f"{where} without {error}", expected) from error
    except ValueError as error:
        value = _VALUE.search(str(error))
        why = f"the value {value[1]}, which is no number" if value else _why(error)
        raise input_error(path, line, f"{where} that is malformed ({why})", expected) from error
    except MALFORMED as error:
        why = "a value of another type than is usual there"
        raise input_error(path, line, f"{where} that is malformed ({why})", expected) from error


def begins_with_object(head: bytes) -> dict[str, Any] | None:
    """The object in the first line of JSON Lines; ``None`` if there is none, or the line is cut off."""
    first, newline, _ = head.lstrip(b"\xef\xbb\xbf \t\r\n").partition(b"\n")
    return None if not newline and len(head) >= 1 << 16 else json_object(first)


def unit_of(name: str) -> int | None:
    """Nanoseconds of the unit at the end of a name: ``latency_ms``, ``durationMs``, ``time_seconds``."""
    words = _WORD.findall(name)
    return UNITS_NS.get(words[-1].lower()) if len(words) > 1 else None


def column_name(text: str) -> str:
    """A column's name as a name for ``--map``."""
    return re.sub(r"\W+", "_", text)


def map_option(column: str, unit: str = "") -> str:
    """The option that gives a column a name of its own, quoted for a shell.

    :param unit: of a time.
    """
    name = column_name(column.rpartition(".")[2].strip()) + (f"_{unit}" if unit else "")
    return f"--map {shlex.quote(f'{name}={column}')}"


def route_of(request: str) -> str:
    """A path as a route: without the query, and without numbers and ids."""
    return NUMBER_IN_PATH.sub("/*", request.partition("?")[0])


def epoch_units(times: Any) -> Any:
    """Nanoseconds of the unit of each time since 1970, guessed from its size; seconds for small numbers."""
    units = np.where(times > 1e11, 1_000_000, 1_000_000_000)
    return np.where(times > 1e17, 1, np.where(times > 1e14, 1_000, units))


def instant_ns(text: str) -> int:
    """Nanoseconds since 1970 of a date in ISO 8601 or in the format of web servers; UTC without a zone.

    :raises ValueError: it is no date, or too far from 1970.
    """
    text = text.strip(" []")
    if date := next((found for each in _DATES if (found := each.match(text))), None):
        parts = {"time": "", **date.groupdict()}
        month = parts["month"] if parts["month"].isdigit() else f"{_MONTHS.index(parts['month']) // 3 + 1}"
        text = f"{parts['year']}-{month:0>2}-{parts['day']:0>2}T{parts['time']}{text[date.end() :]}"
    elif half := _MONTH_FIRST.match(text):
        hour = int(half[4]) % 12 + 12 * (half[6].upper() == "PM")
        text = f"{half[3]}-{half[1]:0>2}-{half[2]:0>2}T{hour:02}{half[5]}{text[half.end() :]}"
    text = _ZONE.sub(lambda zone: "Z" if zone[1] in ("UTC", "GMT") else zone[1], text)
    fraction = _FRACTION.search(text)
    moment = datetime.fromisoformat(_FRACTION.sub("", text, count=1))
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    result = int(moment.timestamp()) * 10**9 + int(fraction[1][:9].ljust(9, "0") if fraction else 0)
    if abs(result) > LATEST_NS:
        raise ValueError(f"{moment.year} is too far from 1970 to be counted in nanoseconds")
    return result


def instants_ns(column: Any) -> Ints:
    """:func:`instant_ns` of each value of a column; -1 for values that are no date. Parses each second once.

    :param column: a list, or an Arrow array of strings.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    values = column if isinstance(column, pa.Array) else pa.array([str(value) for value in column], pa.string())
    encoded = pc.dictionary_encode(values)
    split = pc.extract_regex(encoded.dictionary, r"^(?P<date>.*:\d\d)[.,](?P<fraction>\d{1,9})\d*(?P<zone>\D.*|)$")
    dates = pc.binary_join_element_wise(pc.struct_field(split, [0]), pc.struct_field(split, [2]), "")
    fractions = pc.cast(pc.utf8_rpad(pc.fill_null(pc.struct_field(split, [1]), "0"), 9, "0"), pa.int64())
    seconds = pc.dictionary_encode(pc.coalesce(dates, encoded.dictionary))
    parsed = np.array([_instant_or_unknown(text) for text in seconds.dictionary.to_pylist()], np.int64)
    if not len(parsed):
        return parsed
    moments: Ints = parsed[np.asarray(seconds.indices)]
    moments[moments != -1] += np.asarray(fractions)[moments != -1]
    return np.take(moments, np.asarray(encoded.indices))


def decimals_ns(column: Any, unit_ns: int) -> Ints:
    """Nanoseconds of decimal numbers, exact: a float of seconds since 1970 is only exact to 200 ns.

    :param column: a list, or an Arrow array of strings.
    :param unit_ns: nanoseconds of their unit, a power of ten.
    :return: -1 for values that are no plain decimal number that 64 bits of nanoseconds hold.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    places = len(str(unit_ns)) - 1
    texts = column if isinstance(column, pa.Array) else pa.array([str(value) for value in column], pa.string())
    texts = pc.replace_substring_regex(texts, rf"^(\d+\.\d{{{places}}})\d+$", r"\1")
    plain = pc.match_substring_regex(texts, rf"^\d{{1,{19 - places}}}(\.\d{{1,{max(places, 1)}}})?$")
    exact = pc.cast(pc.if_else(plain, texts, "0"), pa.decimal128(38, places))
    low_words = np.frombuffer(exact.buffers()[1], "<i8").reshape(-1, 2)[exact.offset : exact.offset + len(exact), 0]
    return np.where(np.asarray(pc.fill_null(plain, False)) & (low_words >= 0), low_words, -1)


def _instant_or_unknown(text: str) -> int:
    try:
        return instant_ns(text)
    except ValueError:
        return -1


def duration_ns(text: str) -> float:
    """Nanoseconds of ``12.5ms``, ``1m2.3s``, ``PT1.5S``, ``0:00:01.5``, ``0 days 00:00:01.5``; NaN if it is none."""
    if clock := _CLOCK.fullmatch(text.strip()):
        days, hours, minutes, seconds = (float(part or 0) for part in clock.groups())
        return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * UNITS_NS["s"]
    if _OF_ISO.fullmatch(text):
        text = text.removeprefix("PT").lower()
    spans = [] if _SPAN.sub("", text).strip() else _SPAN.findall(text)
    try:
        return sum(float(amount) * _SPAN_NS[unit] for amount, unit in spans) if spans else float("nan")
    except ValueError:  # 1.2.3
        return float("nan")


def number_of(value: Any, unit_ns: int) -> float:
    """A value as a number, a duration with a unit of its own in units of ``unit_ns``; NaN if it is neither."""
    if isinstance(value, bool) or value is None:
        return float("nan")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return duration_ns(value) / unit_ns if isinstance(value, str) else float("nan")


def resolution_ns(moments: Ints) -> int:
    """The resolution of times: the largest power of ten that divides all of a sample."""
    sample = moments[:10_000]
    for unit in (1_000_000_000, 100_000_000, 10_000_000, 1_000_000, 1_000):
        if len(sample) and not (sample % unit).any():
            return unit
    return 1


def _why(error: Exception) -> str:
    return str(getattr(error, "msg", "")) or str(error)[:80] or type(error).__name__
