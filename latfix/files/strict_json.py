"""Reading JSON strictly: no ``NaN``, no infinity, no number beyond a float."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def read_json(text: str) -> Any:
    """The values that ``text`` holds; every number in them fits a float.

    Python's reader alone takes ``NaN``, ``Infinity``, ``1e999`` (as infinity) and whole numbers of any length.

    :raises ValueError: it is no JSON, or has such a number.
    :raises RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_float=finite_number, parse_int=_whole, parse_constant=refuse_constant)


def finite_number(text: str) -> float:
    """A number with a point or an exponent.

    :raises ValueError: no float is as large.
    """
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"number {text[:30]} is out of range")
    return value


def _whole(text: str) -> int:
    if len(text) > 300:  # a float ends at 1.8e308
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def refuse_constant(name: str) -> NoReturn:
    """``NaN`` and ``Infinity``, which only Python's reader takes.

    :raises ValueError: always.
    """
    raise ValueError(f"{name} is no number of JSON")


#: What reading a file raises that latfix did not write as it is.
MALFORMED = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError)
