"""Texts from outside (ids, errors, names) made safe to show: nothing in them may move, hide or inject."""

from __future__ import annotations

import unicodedata

#: Format characters that scripts and emoji need and that cannot reorder what a reader sees.
_JOINERS = frozenset("\u200c\u200d")
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\x1b": "\\x1b"}


def visible(text: object, *, limit: int = 240) -> str:
    """The text on one line, with every character that a terminal or browser would obey written as an escape.

    Control characters (ANSI sequences, null bytes), bidirectional marks, line separators, lone surrogates and
    noncharacters become ``\\x1b``-style escapes; the rest stays as it is.

    :param limit: longest result in characters; what is cut is replaced by an ellipsis.
    """
    raw = str(text)
    cut = raw[:limit]
    shown = cut if cut.isascii() and cut.isprintable() else "".join(_visible_character(c) for c in cut)
    if len(raw) > limit or len(shown) > limit:
        shown = shown[: max(limit - 1, 0)] + "…"
    return shown


def _visible_character(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    category = unicodedata.category(character)
    hidden = category in ("Cc", "Cs", "Zl", "Zp") or (category == "Cf" and character not in _JOINERS)
    if not hidden and (code & 0xFFFE) != 0xFFFE and not 0xFDD0 <= code <= 0xFDEF:
        return character
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
