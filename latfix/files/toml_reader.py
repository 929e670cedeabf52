"""Reads TOML files that users write, and reports every mistake with its line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latfix.errors import InputError, input_error
from latfix.files.regular_file import check_regular
from latfix.formatting import did_you_mean, shown

_EXPECTED = "a TOML file"
_TABLES = "key = value lines under [tables]"
_WITHIN = "a whole number within 64 bits"
_LEAST, _MOST = -(2**63), 2**63 - 1
#: Deepest nesting of tables and lists; latfix reads four levels, and ``repr`` fails at some hundreds.
_DEEPEST = 50
#: Reasons of :mod:`tomllib` in other words.
_WHY = {"Cannot overwrite a value": "the key is there already"}
#: More decimal digits than Python converts to a number (:func:`sys.get_int_max_str_digits`).
_TOO_LONG = re.compile(r"[0-9][0-9_]{4000,}")


@dataclass(frozen=True, slots=True)
class TomlFile:
    """A TOML file, for messages with the line of a mistake.

    :param text: its content; empty for tables from elsewhere.
    """

    path: Path
    text: str = ""

    def error(self, table: str, key: str | None, found: str, expected: str, todo: str = "") -> InputError:
        """An error at a table or one of its keys; see :meth:`line`."""
        return input_error(self.path, self.line(table, key), found, expected, todo)

    def place(self, table: str, key: str | None = None) -> str:
        """``file:line`` of a table or key; the file alone if the line is not found."""
        line = self.line(table, key)
        return str(self.path) if line is None else f"{self.path}:{line}"

    def check_keys(self, values: Mapping[str, Any], known: Iterable[str], table: str) -> None:
        """Refuse unknown keys, suggesting the nearest known one.

        :raises InputError: at the first unknown key.
        """
        names = list(known)
        for key in values:
            if key not in names:
                found = f"unknown key {shown(key)} in {f'[{table}]' if table else 'the file'}"
                near = did_you_mean(key, names)
                expected = "a known one" if near else f"one of {', '.join(names)}"
                raise self.error(table, key, found, expected, near or "remove it")

    def line(self, table: str, key: str | None = None) -> int | None:
        """The line (from 1) of a table or one of its keys; ``None`` if it is not found.

        A key that is a table is found by its header, an inline table by its key.

        :param table: as in the header: ``runner``, ``fix`` for ``[[fix]]``; ``""`` before any header.
        """
        header, current = None, ""
        for number, line in enumerate(self.text.split("\n"), start=1):
            stripped = line.strip()
            if stripped.startswith("["):
                current = _header_name(stripped)
                if current == table and header is None:
                    header = number
                if key is not None and current == (f"{table}.{key}" if table else key):
                    return number
            elif key is not None and current == table and _writes(stripped, key):
                return number
        if header is None and table:
            parent, _, name = table.rpartition(".")
            return self.line(parent, name)
        return header


def read_toml(file: Path) -> tuple[dict[str, Any], TomlFile]:
    """A TOML file's document, and the file for messages. Whole numbers beyond 64 bits are refused, as TOML permits.

    :raises InputError: it cannot be read, is not TOML, or has a larger number.
    """
    text = _text(file)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"\(at line (\d+), column \d+\)", str(error))
        line = int(where.group(1)) if where else None
        reason = re.sub(r" \(at .*\)$", "", str(error))
        written = text.split("\n")[line - 1].strip() if line is not None else ""
        found = f"{shown(written)}, which is not TOML" if written else "text that is not TOML"
        raise input_error(file, line, f"{found} ({_WHY.get(reason, reason)})", _TABLES) from error
    except ValueError as error:  # Python does not convert that many digits
        long = _TOO_LONG.search(text)
        line = text.count("\n", 0, long.start()) + 1 if long else None
        raise input_error(file, line, "a number of thousands of digits", _WITHIN) from error
    except RecursionError as error:
        raise _too_deep(file) from error
    _check_values(document, file, text)
    return document, TomlFile(file, text)


def _header_name(line: str) -> str:
    inner = line.split("#", maxsplit=1)[0].strip().strip("[]")
    return ".".join(part.strip().strip("\"'") for part in inner.split("."))


def _writes(line: str, key: str) -> bool:
    return re.match(rf"""["']?{re.escape(key)}["']?\s*[=.]""", line) is not None


def _text(file: Path) -> str:
    try:
        check_regular(file, _EXPECTED)
        # Editors on Windows write a byte order mark.
        return file.read_bytes().decode("utf-8").removeprefix("\ufeff")
    except FileNotFoundError as error:
        raise InputError(f"{file}: found no such file; latfix init DIR writes one to start from") from error
    except OSError as error:
        found = f"a file that cannot be read ({error.strerror})"
        raise input_error(file, None, found, _EXPECTED, "check it") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        found = f"byte 0x{error.object[error.start]:02x}, which is not UTF-8"
        raise input_error(file, line, found, "UTF-8 text", "save it as UTF-8") from error


def _check_values(document: Mapping[str, Any], file: Path, text: str) -> None:
    """Refuse valid TOML that breaks later code: large numbers and deep nesting."""
    # Not by recursion: dotted keys nest without limit.
    pending: list[tuple[tuple[str, ...], int, Any]] = [((), 0, document)]
    while pending:
        path, depth, value = pending.pop()
        if depth > _DEEPEST:
            raise _too_deep(file)
        if isinstance(value, int) and not _LEAST <= value <= _MOST:
            key = path[-1] if path[-1].isidentifier() else shown(path[-1])
            raise input_error(file, _line_of(path, text), f"{key} = {shown(value)}", _WITHIN)
        if isinstance(value, dict):
            pending += [((*path, key), depth + 1, item) for key, item in value.items()]
        elif isinstance(value, list):
            pending += [(path, depth + 1, item) for item in value]


def _line_of(path: tuple[str, ...], text: str) -> int | None:
    """The line of a number beyond 64 bits: found by its length first, because several tables may share a name."""
    written = re.compile(rf"""\s*["']?{re.escape(path[-1])}["']?\s*=\s*[+-]?[0-9][0-9A-Fa-f_box]{{15,}}""")
    for number, line in enumerate(text.split("\n"), start=1):
        if written.match(line):
            return number
    return TomlFile(Path(), text).line(".".join(path[:-1]), path[-1])


def _too_deep(file: Path) -> InputError:
    return InputError(f"{file}: found values nested too deeply; expected plain tables")
