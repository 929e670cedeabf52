"""Profiles of a workload: the same service in another size or on another device, as changes of its tables.

``[profile.NAME.TABLE]`` in ``workload.toml`` holds keys of ``[TABLE]`` that replace the workload's own where
``--profile NAME`` asks for it. ``[profile.NAME.traffic]`` also takes ``speed`` and ``repeat``.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latfix.errors import InputError, input_error
from latfix.settings_rules import check_keys, find_line, validate_objective, validate_settings

#: Tables that a profile may change, and the keys of those that have no checks of their own.
TABLES = ("workload", "runner", "objective", "traffic")
_KEYS = {"workload": ("name", "entry", "traffic"), "traffic": ("map", "speed", "repeat")}
_MOST_REPEATS = 100_000


@dataclass(frozen=True, slots=True)
class Replayed:
    """How a profile replays the traffic: how many times as fast as recorded, and how often in a row."""

    speed: float = 1.0
    repeat: int = 1


def overlaid(document: Mapping[str, Any], profile: str, *, file: Path, text: str) -> tuple[dict[str, Any], Replayed]:
    """The document as the profile has it, without its profiles; ``profile`` may be empty for none.

    All profiles are checked, asked for or not.

    :raises InputError: there is no such profile, or one of them is wrong.
    """
    profiles = document.get("profile", {})
    if not isinstance(profiles, dict):
        raise input_error(
            file, find_line(text, "", "profile"), f"profile = {profiles!r}", "tables [profile.NAME.runner]"
        )
    for name, tables in profiles.items():
        _check(name, tables, file, text)
    plain = {name: table for name, table in document.items() if name != "profile"}
    if not profile:
        return plain, Replayed()
    if profile not in profiles:
        raise InputError(_unknown(profile, sorted(profiles), file))
    changed = dict(plain)
    replayed: dict[str, Any] = {}
    for table, values in profiles[profile].items():
        own = dict(values)
        if table == "traffic":
            replayed = {key: own.pop(key) for key in ("speed", "repeat") if key in own}
        changed[table] = {**plain.get(table, {}), **own}
    return changed, Replayed(**replayed)


def _unknown(profile: str, known: list[str], file: Path) -> str:
    if not known:
        return f"--profile: found {profile!r}, but {file} has no profiles; leave it out"
    near = difflib.get_close_matches(profile, known, n=1)
    todo = f"; did you mean {near[0]!r}?" if near else ""
    return f"--profile: found {profile!r}; expected one of {', '.join(known)}, which {file} has{todo}"


def _check(name: str, tables: Any, file: Path, text: str) -> None:
    here = f"profile.{name}"
    if not isinstance(tables, dict):
        raise input_error(file, find_line(text, "profile", name), f"{name} = {tables!r}", f"tables [{here}.runner]")
    check_keys(tables, TABLES, file=file, text=text, table_name=here)
    for table, values in tables.items():
        inner = f"{here}.{table}"
        if not isinstance(values, dict):
            raise input_error(file, find_line(text, here, table), f"{table} = {values!r}", f"a table [{inner}]")
        if table in _KEYS:
            check_keys(values, _KEYS[table], file=file, text=text, table_name=inner)
    validate_settings(tables.get("runner", {}), file=file, text=text, table_name=f"{here}.runner")
    validate_objective(tables.get("objective", {}), file=file, text=text)
    _check_replay(tables.get("traffic", {}), f"{here}.traffic", file, text)


def _check_replay(values: Mapping[str, Any], table: str, file: Path, text: str) -> None:
    speed, repeat = values.get("speed", 1.0), values.get("repeat", 1)
    number = isinstance(speed, int | float) and not isinstance(speed, bool)
    if not number or not math.isfinite(speed) or speed <= 0:
        raise input_error(file, find_line(text, table, "speed"), f"speed = {speed!r}", "a number above 0")
    if isinstance(repeat, bool) or not isinstance(repeat, int) or not 1 <= repeat <= _MOST_REPEATS:
        expected = f"a whole number from 1 to {_MOST_REPEATS}"
        raise input_error(file, find_line(text, table, "repeat"), f"repeat = {repeat!r}", expected)
