"""Writes TOML: plain values, tables and comments."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

TomlValue = str | int | float | bool | Sequence[str]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def toml_value(value: TomlValue) -> str:
    """A value in TOML syntax.

    :raises ValueError: a number that is not finite, or another type.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return toml_text(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return f"[{', '.join(toml_text(item) for item in value)}]"
    raise ValueError(f"{value!r} cannot be in a plan; expected a text, texts, a finite number or a truth value")


def toml_text(text: str) -> str:
    """A quoted text, with everything escaped that TOML does not allow literally."""
    return '"' + "".join(_ESCAPES.get(c) or (c if _plain(c) else f"\\u{ord(c):04X}") for c in text) + '"'


def toml_key(key: str) -> str:
    """A key, quoted if necessary."""
    return key if _BARE.fullmatch(key) else toml_text(key)


def toml_lines(table: Mapping[str, TomlValue]) -> Iterator[str]:
    """``key = value`` lines of a table."""
    for key, value in table.items():
        yield f"{toml_key(key)} = {toml_value(value)}"


def toml_comment(text: str) -> str:
    """A comment on one line."""
    return "# " + "".join(c if _plain(c) else " " for c in text).strip()


def _plain(c: str) -> bool:
    # TOML forbids control characters; the other characters break lines in editors.
    return c >= " " and c not in "\x7f\x85\u2028\u2029"
