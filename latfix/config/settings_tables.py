"""Settings tables in TOML: every key, type and range is checked, and mistakes are reported with file and line.

``[runner]`` and ``[objective]`` of ``workload.toml`` and the settings in a plan are parsed here, so that a
:class:`latfix.settings.RunnerSettings` never holds a value that the runner cannot use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latfix.files.toml_reader import TomlFile
from latfix.formatting import did_you_mean, shown
from latfix.settings import RunnerSettings, rules_of


def validate_settings(table: Mapping[str, Any], file: TomlFile, table_name: str) -> dict[str, Any]:
    """Settings of the runner from a parsed TOML table, ready for ``RunnerSettings.with_overrides``.

    Returns only the keys in the table; whole numbers are accepted where a number is expected.

    :param table_name: its header, e.g. ``runner`` or ``fix.settings``.
    :raises InputError: an unknown key (with the nearest known one), a wrong type, a value out of range.
    """
    return validate_table(table, RunnerSettings, file, table_name)


def validate_table(table: Mapping[str, Any], kind: type, file: TomlFile, table_name: str) -> dict[str, Any]:
    """Keyword arguments of a settings dataclass; see :func:`validate_settings`."""
    if not isinstance(table, Mapping):
        raise file.error(table_name, None, f"{table!r} for {table_name}", "a table")
    rules = rules_of(kind)
    file.check_keys(table, rules, table_name)
    for key, value in table.items():
        rule = rules[key]
        if not rule.check(value):
            todo = did_you_mean(value, rule.choices) if isinstance(value, str) else ""
            raise file.error(table_name, key, f"{key} = {shown(value)}", rule.expected, todo)
    return {key: float(value) if rules[key].is_float else value for key, value in table.items()}
