"""Checks of settings tables read from TOML: every key, type and range, with the file and line of a mistake.

``[runner]`` and ``[objective]`` of ``workload.toml`` and the settings in a plan go through here, so that a
:class:`latfix.settings.RunnerSettings` never holds a value that the runner cannot run with.
"""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from latfix.errors import InputError, input_error
from latfix.settings import (
    Admission,
    Attention,
    Backend,
    Batching,
    BatchOrder,
    Compile,
    GarbageCollection,
    HugePages,
    MemoryFormat,
    Pinning,
    Precision,
    Routing,
    Schedule,
)

_DEVICE = re.compile(r"auto|cpu|cuda|cuda:(0|[1-9][0-9]?)")
#: Of all floats. Comparing with it tells infinities, NaN, and whole numbers that no float holds.
_LARGEST = sys.float_info.max
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class _Whole:
    least: int
    most: int

    def describe(self) -> str:
        return f"a whole number from {self.least} to {self.most}"

    def check(self, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and self.least <= value <= self.most


@dataclass(frozen=True, slots=True)
class _Number:
    least: float
    most: float
    open_ends: bool = False

    def describe(self) -> str:
        if self.open_ends:
            return f"a number above {self.least:g} and below {self.most:g}"
        return f"a number of at least {self.least:g}" + ("" if math.isinf(self.most) else f", at most {self.most:g}")

    def check(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _LARGEST:
            return False
        return self.least < value < self.most if self.open_ends else self.least <= value <= self.most


@dataclass(frozen=True, slots=True)
class _OneOf:
    values: tuple[str, ...]

    def describe(self) -> str:
        return "one of " + ", ".join(repr(value) for value in self.values)

    def check(self, value: object) -> bool:
        return isinstance(value, str) and value in self.values


@dataclass(frozen=True, slots=True)
class _Flag:
    def describe(self) -> str:
        return "true or false"

    def check(self, value: object) -> bool:
        return isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class _Device:
    def describe(self) -> str:
        return "'auto', 'cpu', 'cuda' or 'cuda:N'"

    def check(self, value: object) -> bool:
        return isinstance(value, str) and _DEVICE.fullmatch(value) is not None


@dataclass(frozen=True, slots=True)
class _FeatureName:
    def describe(self) -> str:
        return "the name of a feature, or an empty text for the inputs' elements"

    def check(self, value: object) -> bool:
        return isinstance(value, str) and (not value or value.isprintable())


@dataclass(frozen=True, slots=True)
class _ModuleNames:
    def describe(self) -> str:
        return 'a list of module names, as in ["encoder.layers.0.linear1"]'

    def check(self, value: object) -> bool:
        return isinstance(value, list) and all(isinstance(name, str) and name.isprintable() for name in value)


@dataclass(frozen=True, slots=True)
class _Environment:
    def describe(self) -> str:
        return 'a table of texts by variable name, as in { OMP_WAIT_POLICY = "PASSIVE" }'

    def check(self, value: object) -> bool:
        if not isinstance(value, Mapping):
            return False
        return all(
            isinstance(name, str) and _ENV_NAME.fullmatch(name) and isinstance(text, str) and "\0" not in text
            for name, text in value.items()
        )


_Rule = _Whole | _Number | _OneOf | _Flag | _Device | _FeatureName | _ModuleNames | _Environment

#: One rule for each field of RunnerSettings; a test compares the two.
RUNNER_RULES: Mapping[str, _Rule] = {
    "device": _Device(),
    "devices": _Whole(0, 256),
    "max_batch_size": _Whole(1, 4096),
    "batch_window_ms": _Number(0, 60_000),
    "workers": _Whole(1, 256),
    "shared_model": _Flag(),
    "prepare_threads": _Whole(1, 256),
    "intra_op_threads": _Whole(0, 1024),
    "max_queue": _Whole(0, 2**31 - 1),
    "timeout_ms": _Number(0, 86_400_000),
    "warmup_requests": _Whole(0, 1_000_000),
    "warmup_shapes": _Whole(0, 1_000_000),
    "seed": _Whole(0, 2**63 - 1),
    "precision": _OneOf(get_args(Precision)),
    "keep_precision": _ModuleNames(),
    "compile": _OneOf(get_args(Compile)),
    "backend": _OneOf(get_args(Backend)),
    "memory_format": _OneOf(get_args(MemoryFormat)),
    "attention": _OneOf(get_args(Attention)),
    "inference_mode": _Flag(),
    "batching": _OneOf(get_args(Batching)),
    "target_ms": _Number(0, 86_400_000),
    "window_least_ms": _Number(0, 60_000),
    "window_most_ms": _Number(0, 60_000),
    "batch_order": _OneOf(get_args(BatchOrder)),
    "batch_key": _FeatureName(),
    "schedule": _OneOf(get_args(Schedule)),
    "ageing_ms": _Number(0, 86_400_000),
    "admission": _OneOf(get_args(Admission)),
    "routing": _OneOf(get_args(Routing)),
    "memory_limit_mb": _Whole(0, 2**31 - 1),
    "buffer_pool": _Flag(),
    "pinned_staging": _Flag(),
    "overlap": _Flag(),
    "cuda_graphs": _Flag(),
    "reserve_mb": _Whole(0, 2**31 - 1),
    "device_memory_share": _Number(0, 1),
    "gc": _OneOf(get_args(GarbageCollection)),
    "pin": _OneOf(get_args(Pinning)),
    "nice": _Whole(-20, 19),
    "prefault_mb": _Whole(0, 2**31 - 1),
    "huge_pages": _OneOf(get_args(HugePages)),
    "keep_warm_ms": _Number(0, 3_600_000),
    "lock_memory": _Flag(),
    "hot_rows": _Whole(0, 2**31 - 1),
    "env": _Environment(),
}
OBJECTIVE_RULES: Mapping[str, _Rule] = {
    "percentile": _Number(0, 100, open_ends=True),
    "slo_ms": _Number(0, math.inf, open_ends=True),
    "max_accuracy_drop": _Number(0, math.inf),
}


def validate_settings(table: Mapping[str, Any], *, file: Path, text: str, table_name: str) -> dict[str, Any]:
    """Settings of the runner from a parsed TOML table, ready for ``RunnerSettings.with_overrides``.

    Only the keys that are there come back; whole numbers are accepted where a number is expected.

    :param text: the file's content, to find the line of a mistake.
    :param table_name: how the file writes it, e.g. ``runner`` or ``fix.settings``.
    :raises InputError: a key that is no setting (with the nearest one), a wrong type, a value out of range.
    """
    return _validate(table, RUNNER_RULES, file=file, text=text, table_name=table_name)


def validate_objective(
    table: Mapping[str, Any], *, file: Path, text: str, table_name: str = "objective"
) -> dict[str, Any]:
    """Keyword arguments of ``Objective`` from a parsed TOML table; see :func:`validate_settings`."""
    return _validate(table, OBJECTIVE_RULES, file=file, text=text, table_name=table_name)


def check_keys(table: Mapping[str, Any], known: Iterable[str], *, file: Path, text: str, table_name: str) -> None:
    """Refuse a key that is not known, with the nearest one that is.

    :raises InputError: at the first unknown key.
    """
    names = list(known)
    for key in table:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            raise input_error(
                file,
                find_line(text, table_name, key),
                f"unknown key {key!r} in {_header(table_name)}",
                f"one of {', '.join(names)}",
                f"did you mean {near[0]!r}?" if near else "remove it",
            )


def find_line(text: str, table_name: str, key: str | None = None) -> int | None:
    """The line (from 1) at which a table or one of its keys is written; ``None`` where it is not found.

    A key that is a table of its own is found by its header, a table written inline by its key.

    :param table_name: as in the header: ``runner``, ``fix`` for ``[[fix]]``; ``""`` before any header.
    """
    header, current = None, ""
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if stripped.startswith("["):
            current = _header_name(stripped)
            if current == table_name and header is None:
                header = number
            if key is not None and current == (f"{table_name}.{key}" if table_name else key):
                return number
        elif key is not None and current == table_name and _writes(stripped, key):
            return number
    if header is None and table_name:
        parent, _, name = table_name.rpartition(".")
        return find_line(text, parent, name)
    return header


def _header_name(line: str) -> str:
    inner = line.split("#", maxsplit=1)[0].strip().strip("[]")
    return ".".join(part.strip().strip("\"'") for part in inner.split("."))


def _writes(line: str, key: str) -> bool:
    return re.match(rf"""["']?{re.escape(key)}["']?\s*[=.]""", line) is not None


def _header(table_name: str) -> str:
    return f"[{table_name}]" if table_name else "the file"


def _validate(
    table: Mapping[str, Any], rules: Mapping[str, _Rule], *, file: Path, text: str, table_name: str
) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise input_error(file, find_line(text, table_name), f"{table!r} for {table_name}", "a table")
    check_keys(table, rules, file=file, text=text, table_name=table_name)
    values: dict[str, Any] = {}
    for key, value in table.items():
        rule = rules[key]
        if not rule.check(value):
            raise _refusal(key, value, rule, file, find_line(text, table_name, key))
        values[key] = float(value) if isinstance(rule, _Number) else value
    return values


def _refusal(key: str, value: object, rule: _Rule, file: Path, line: int | None) -> InputError:
    todo = ""
    if isinstance(rule, _OneOf) and isinstance(value, str):
        near = difflib.get_close_matches(value, rule.values, n=1)
        todo = f"did you mean {near[0]!r}?" if near else ""
    shown = repr(value)
    shown = shown if len(shown) < 80 else shown[:77] + "..."
    return input_error(file, line, f"{key} = {shown}", rule.describe(), todo)
