"""Profiles of a workload: the same service in another size or on another device, as changes of its tables.

``[profile.NAME.TABLE]`` in ``workload.toml`` holds keys that replace those of ``[TABLE]`` if ``--profile NAME`` is
given. ``[profile.NAME.traffic]`` also accepts ``speed`` and ``repeat``.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from latfix.config.settings_tables import validate_settings, validate_table
from latfix.errors import InputError
from latfix.files.toml_reader import TomlFile
from latfix.settings import Objective, number, whole

#: Tables that a profile may change, and the keys of those without checks of their own.
TABLES = ("workload", "runner", "objective", "traffic")
_KEYS = {"workload": ("name", "entry", "traffic"), "traffic": ("map", "speed", "repeat")}


@dataclass(frozen=True, slots=True)
class Replayed:
    """How a profile replays the traffic: multiple of the recorded speed, and repetitions."""

    speed: Annotated[float, number(0, open_ends=True)] = 1.0
    repeat: Annotated[int, whole(1, 100_000)] = 1


def overlaid(document: Mapping[str, Any], profile: str, file: TomlFile) -> tuple[dict[str, Any], Replayed]:
    """The document with a profile applied, without its profiles; an empty ``profile`` applies none.

    All profiles are validated.

    :raises InputError: there is no such profile, or one of them is wrong.
    """
    profiles = document.get("profile", {})
    if not isinstance(profiles, dict):
        raise file.error("", "profile", f"profile = {profiles!r}", "tables [profile.NAME.runner]")
    for name, tables in profiles.items():
        _check(name, tables, file)
    plain = {name: table for name, table in document.items() if name != "profile"}
    if not profile:
        return plain, Replayed()
    if profile not in profiles:
        raise InputError(_unknown(profile, sorted(profiles), file.path))
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


def _check(name: str, tables: Any, file: TomlFile) -> None:
    here = f"profile.{name}"
    if not isinstance(tables, dict):
        raise file.error("profile", name, f"{name} = {tables!r}", f"tables [{here}.runner]")
    file.check_keys(tables, TABLES, here)
    for table, values in tables.items():
        inner = f"{here}.{table}"
        if not isinstance(values, dict):
            raise file.error(here, table, f"{table} = {values!r}", f"a table [{inner}]")
        if table in _KEYS:
            file.check_keys(values, _KEYS[table], inner)
    validate_settings(tables.get("runner", {}), file, f"{here}.runner")
    validate_table(tables.get("objective", {}), Objective, file, f"{here}.objective")
    replayed = {key: value for key, value in tables.get("traffic", {}).items() if key != "map"}
    validate_table(replayed, Replayed, file, f"{here}.traffic")
