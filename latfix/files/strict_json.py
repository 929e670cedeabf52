"""Strict JSON reading: no ``NaN``, no infinity, no number beyond a float."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def read_json(text: str) -> Any:
    """Parse ``text``; every number in it fits a float.

    Python's reader also accepts ``NaN``, ``Infinity``, ``1e999`` (as infinity) and whole numbers of any length.

    :raises ValueError: it is not JSON, or has such a number.
    :raises RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_float=finite_number, parse_int=_whole, parse_constant=refuse_constant)


def finite_number(text: str) -> float:
    """Parse a number with a point or an exponent.

    :raises ValueError: it exceeds a float.
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
    """Refuse ``NaN`` and ``Infinity``, which only Python's reader accepts.

    :raises ValueError: always.
    """
    raise ValueError(f"{name} is not a number of JSON")


#: Exceptions from reading a file that latfix did not write.
MALFORMED = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError)
