"""Numbers for people: three significant digits, and all before the point; a unit; a dash for a missing number."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from latfix.lower_bound import AtLeast, in_unit

NONE = "–"
#: Shown for a figure that has no lower bound because too many requests were lost.
LOST = "lost"
#: An interval whose ends differ by this factor bounds nothing.
_UNBOUNDED = 1e6
#: A lower end of at most this share of the upper one is about 0: ``0.00463 to 295`` tells no more than ``up to 295``.
_ABOUT_ZERO = 1e-3

#: Format characters that scripts and emoji need and that cannot reorder text.
_JOINERS = frozenset("\u200c\u200d")
_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\x1b": "\\x1b"}

#: Summary figures in the order in which every report shows them.
LATENCY_KEYS: tuple[str, ...] = ("mean", "p50", "p90", "p95", "p99", "p99_9", "max")


def finite(value: object) -> float | None:
    """The value as a finite float, or ``None`` if it is not a number (absent, text, NaN, infinite)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def significant(value: object, digits: int | None = None) -> str:
    """A number with significant digits and thousands separators: ``0.0412``, ``41.2``, ``41,234``.

    A figure known only from below is shown as ``> 41.2``.

    :param digits: how many; by default three, and all before the decimal point, because zeros there would be taken
        for digits.
    """
    if isinstance(value, AtLeast):
        return f"> {significant(value.bound, digits)}" if value.bound > 0 else LOST
    number = finite(value)
    if number is None:
        return NONE
    if number == 0:
        return "0"
    if digits is None:
        digits = _whole_digits(number)
    mantissa = f"{number:.{digits - 1}e}"
    exponent = int(mantissa.partition("e")[2])
    if not -4 <= exponent < 9:
        return f"{number:.{min(digits, 3) - 1}e}"
    return f"{float(mantissa):,.{max(digits - 1 - exponent, 0)}f}"


def _whole_digits(number: float) -> int:
    """The digits before the point, at least three; three of numbers that are written with an exponent."""
    return max(3, len(str(int(abs(number))))) if abs(number) < 1e9 else 3


def rounded_up(value: float) -> str:
    """The next larger number of two digits, without separators, as a limit: 203 is ``210``, and 210 ``220``.

    :param value: above 0.
    """
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return significant((math.floor(value / step + 1e-9) + 1) * step, 2).replace(",", "")


def _with_unit(value: object, unit: str) -> str:
    text = significant(value)
    return text if text in (NONE, LOST) else f"{text}{unit}"


def milliseconds(value: object) -> str:
    """``412 ms``; ``116 s`` from 10 s on, ``27.5 min`` from 10 minutes on."""
    unit, name = _unit_of(value.bound if isinstance(value, AtLeast) else finite(value))
    return _with_unit(in_unit(value, unit) if isinstance(value, int | float) and unit > 1 else value, name)


def _unit_of(ms: float | None) -> tuple[float, str]:
    """The unit in which a duration reads best, in milliseconds, and its name."""
    units = ((60_000, " min"), (1000, " s"))
    return next((unit for unit in units if ms is not None and abs(ms) >= 10 * unit[0]), (1, " ms"))


def moment(ms: object) -> str:
    """A point in time, given in milliseconds, in seconds to the millisecond: ``116.235``."""
    number = finite(ms)
    return NONE if number is None else f"{number / 1e3:,.3f}"


def from_ns(value: float) -> str:
    """Nanoseconds as :func:`milliseconds`."""
    return milliseconds(float(value) / 1e6)


def rate(value: object) -> str:
    """``48.1/s``."""
    return _with_unit(value, "/s")


def seconds(value: object) -> str:
    """``1.28 s``; ``6.52 ms`` below 0.1 s."""
    number = finite(value)
    return milliseconds(number * 1e3) if number and abs(number) < 0.1 else _with_unit(value, " s")


def mebibytes(value: object) -> str:
    """Bytes as ``412 MiB``."""
    number = finite(value)
    return NONE if number is None else f"{significant(number / (1 << 20))} MiB"


def count(value: object) -> str:
    """A whole number, exact: ``1,000,000``."""
    number = finite(value)
    return NONE if number is None else f"{round(number):,}"


def counted(number: int, what: str) -> str:
    """``1 fault``, ``4,476 faults``, ``2 batches``."""
    ending = "" if number == 1 else "es" if what.endswith(("h", "s", "x")) else "s"
    return f"{count(number)} {what}{ending}"


def share(value: object) -> str:
    """A part of one as a percentage: ``0.571`` is ``57.1 %``."""
    number = finite(value)
    return NONE if number is None else f"{significant(number * 100)} %"


def percent(value: object) -> str:
    """A part of one as a whole percentage: ``56 %``; ``under 1 %`` for a smaller part."""
    number = finite(value)
    if number is None:
        return NONE
    return "under 1 %" if 0 < number < 0.01 else f"{100 * number:.0f} %"


def interval(bounds: object) -> str:
    """``[180, 240]``; ``≥ 180`` if only a lower bound above 0 is known, else a dash if a bound is missing.

    ``unbounded`` if the ends are so far apart that they tell nothing: two rounds that differ by a large factor.
    """
    pair = interval_bounds(bounds)
    if pair is None and (low := lower_end(bounds)):
        return f"≥ {significant(low)}"
    if pair is not None and 0 < _UNBOUNDED * pair[0] < pair[1]:
        return "unbounded"
    return NONE if pair is None else f"[{significant(pair[0])}, {significant(pair[1])}]"


def interval_bounds(bounds: object) -> tuple[float, float] | None:
    """Lower and upper bound of an interval given as a pair, or ``None`` if it is not a pair of numbers."""
    if not isinstance(bounds, Sequence) or isinstance(bounds, str) or len(bounds) != 2:
        return None
    low, high = finite(bounds[0]), finite(bounds[1])
    return None if low is None or high is None else (low, high)


def lower_end(bounds: object) -> float | None:
    """The lower bound of an interval, also if its upper end is open; ``None`` without one."""
    return finite(bounds[0]) if isinstance(bounds, Sequence) and len(bounds) == 2 else None


def uncertain_bounds(bounds: object) -> str:
    """``572 to 1,910``; ``up to 606`` if the lower end is about 0, ``at least 572`` if the upper end is open."""
    pair = interval_bounds(bounds)
    if pair is None:
        return f"at least {significant(low)}" if (low := lower_end(bounds)) else NONE
    first, last = map(significant, pair)
    if pair[0] > _ABOUT_ZERO * abs(pair[1]):
        return f"{first} to {last}"
    return f"up to {last}" if pair[1] > 0 else "none"


def speed_words(value: object) -> str:
    """A ratio of latencies in words: ``13 times faster``, ``20 % faster``, ``as fast``, ``12 % slower``."""
    number, unit, side = _speed(value)
    return f"{number}{unit}{side}"


def speed_range(bounds: object) -> str:
    """An interval of ratios in words: ``between 3 times faster and 12 % slower``; empty without an interval."""
    if not isinstance(bounds, Sequence) or isinstance(bounds, str) or len(bounds) != 2:
        return ""
    low, high = finite(bounds[0]), finite(bounds[1])
    if not low or low < 0:
        return f"at most {speed_words(high)}" if high else ""
    if not high:
        return f"at least {speed_words(low)}"
    if _UNBOUNDED * low < high:
        return "unbounded"
    first, last = _speed(low), _speed(high)
    if first == last:
        return speed_words(low)
    if first[1:] != last[1:]:
        return f"between {speed_words(low)} and {speed_words(high)}"
    near, far = (first, last) if low > 1 else (last, first)
    return f"between {near[0]} and {far[0]}{first[1]}{first[2]}"


def _speed(value: object) -> tuple[str, str, str]:
    """A number, its unit and the direction."""
    number = finite(value)
    if number is None or number <= 0:
        return NONE, "", ""
    factor, side = (1 / number, "faster") if number < 1 else (number, "slower")
    if factor >= 2:
        return significant(factor, 2), " times ", side
    part = 100 * (1 - number) if number < 1 else 100 * (number - 1)
    return (f"{part:.0f}", " % ", side) if part >= 0.5 else ("", "", "as fast")


def ratio(value: object, sign: str = "x") -> str:
    """A ratio of after to before: ``x0.240``."""
    text = significant(value)
    return text if text == NONE else f"{sign}{text}"


def key_label(key: str) -> str:
    """``p99_9`` is shown as ``p99.9``."""
    return key.replace("_", ".") if key.startswith("p") else key


def tick(value: float) -> str:
    """A mark on an axis, without trailing zeros: ``20``, ``0.5``, ``100,000``."""
    return f"{value:,.10g}"


def sentence(text: str) -> str:
    """The text as a sentence: capitalized, with a full stop."""
    if not text:
        return text
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?…" else ".")


def percentile_label(percentile: float) -> str:
    """``p99``, ``p99.9``."""
    return f"p{percentile:g}"


def tail_words(percentile: float) -> str:
    """``slowest 1 %`` for the 99th percentile."""
    return f"slowest {round(100 - percentile, 6):g} %"


def shown(value: object, limit: int = 60) -> str:
    """``value`` as messages show it: on one line, printable, cut to ``limit`` characters."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return f"an integer of about {value.bit_length() * 3 // 10} digits"
    return clipped(ascii(value) if isinstance(value, str) and not value.isprintable() else repr(value), limit)


def listed(items: Sequence[str]) -> str:
    """One or more items as ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(items[:-1]), items[-1])))


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """``did you mean 'known'?`` with the nearest known word; ``otherwise`` if none is near."""
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def clipped(text: str, limit: int) -> str:
    """``text`` cut to ``limit`` characters, the last one an ellipsis if it was longer."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def visible(text: object, *, limit: int = 240) -> str:
    """The text on one line, with every character that a terminal or browser would interpret written as an escape.

    Control characters (ANSI sequences, null bytes), bidirectional marks, line separators, lone surrogates and
    noncharacters become ``\\x1b``-style escapes.

    :param limit: longest result in characters; an ellipsis replaces the excess.
    """
    raw = str(text)
    cut = raw[:limit]
    shown = cut if cut.isascii() and cut.isprintable() else "".join(_visible_character(c) for c in cut)
    if len(raw) > limit or len(shown) > limit:
        shown = shown[: max(limit - 1, 0)] + "…"
    return shown


def _visible_character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    code = ord(character)
    category = unicodedata.category(character)
    hidden = category in ("Cc", "Cs", "Zl", "Zp") or (category == "Cf" and character not in _JOINERS)
    if not hidden and (code & 0xFFFE) != 0xFFFE and not 0xFDD0 <= code <= 0xFDEF:
        return character
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def html_table(heading: str, notes: Iterable[str], columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A heading, a list of notes and a table, as HTML."""
    warned = "".join(f"<li>{escape(note)}</li>" for note in notes)
    head = "".join(f"<th>{escape(title)}</th>" for title in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    listed = f"<ul>{warned}</ul>" if warned else ""
    return (
        f"<div><p><strong>{escape(heading)}</strong></p>{listed}"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def latency_words(latency_ms: Mapping[str, float | None]) -> dict[str, str]:
    """Each latency of ``LATENCY_KEYS``, in milliseconds."""
    return {key: significant(latency_ms.get(key)) for key in LATENCY_KEYS}
