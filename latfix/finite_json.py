"""JSON without the numbers that JSON does not have, and that break who computes with them."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def read_json(text: str) -> Any:
    """The values that ``text`` holds; every number in them fits a float.

    Python's reader alone takes ``NaN``, ``Infinity``, ``1e999`` (as infinity) and whole numbers of any length.

    :raises ValueError: it is no JSON, or has such a number.
    :raises RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_float=_finite, parse_int=_whole, parse_constant=_refuse)


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"number {text[:20]} is out of range")
    return value


def _whole(text: str) -> int:
    if len(text) > 300:  # a float ends at 1.8e308
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
