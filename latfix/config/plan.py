"""The plan: the kept fixes, as a file that can be read, edited, and replayed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latfix.config.settings_tables import validate_settings
from latfix.errors import InputError
from latfix.files.atomic_write import write_bytes
from latfix.files.toml_reader import TomlFile, read_toml
from latfix.files.toml_writer import TomlValue, toml_comment, toml_key, toml_lines, toml_text, toml_value
from latfix.formatting import LATENCY_KEYS, counted, shown

PLAN_SCHEMA = "latfix.plan/1"
PLAN_FILE = "plan.toml"

#: Keys of ``[measured]``, from the final interleaved replay.
MEASURED_KEYS: tuple[str, ...] = (
    *(f"{key}_{side}_ms" for key in LATENCY_KEYS for side in ("before", "after")),
    *(f"{key}_ratio{end}" for key in LATENCY_KEYS for end in ("", "_low", "_high")),
    *(f"{name}_{side}" for name in ("throughput_rps", "accuracy") for side in ("before", "after")),
)
#: Whether the final replay proves the plan, in words.
_PROOF = {
    "improved": "measured and proved",
    "no_gain": "not proved: no gain was measured",
    "inconclusive": "not proved: undecided",
}
_TOP = ("schema", "workload", "verdict", "rounds", "latfix", "created", "machine", "measured", "fix")
_FIX = ("id", "reason", "verified", "settings")
_FIX_ID = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFix:
    """One fix of a plan.

    :param id: as in the catalogue of fixes, e.g. ``quantize.int8_dynamic``.
    :param settings: fields of :class:`latfix.settings.RunnerSettings` that it changes.
    :param reason: why it was kept, with figures.
    :param verified: the evidence that it took effect.
    """

    id: str
    settings: Mapping[str, Any]
    reason: str = ""
    verified: str = ""

    def __post_init__(self) -> None:
        # TOML knows only lists.
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in self.settings.items()}
        object.__setattr__(self, "settings", plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The kept fixes, in the order in which they are applied.

    :param machine: the machine that it was measured on, plain values.
    :param measured: before and after, by :data:`MEASURED_KEYS`; ``_low`` and ``_high`` are ends of a 95 % interval.
    :param verdict: of the final replay: improved, no_gain or inconclusive; empty in older plans, and if it tested
        nothing of this one.
    :param rounds: of the final replay.
    :param created: ISO 8601.
    :param latfix: the version that wrote it.
    """

    workload: str
    fixes: tuple[PlannedFix, ...]
    machine: Mapping[str, TomlValue] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)
    verdict: str = ""
    rounds: int = 0
    created: str = ""
    latfix: str = ""

    def strange_to(self, workload: str) -> str:
        """A warning if the plan was made for another workload; empty if not."""
        if self.workload == workload:
            return ""
        return f"The plan was made for {self.workload!r}, not for {workload!r}: its gains were measured there."

    @property
    def proof(self) -> str:
        """``not proved: undecided (final replay of 1 round)``; empty if unknown."""
        words = _PROOF.get(self.verdict, "")
        replayed = f"final replay of {counted(self.rounds, 'round')}" if self.rounds else "no final replay"
        return words and f"{words} ({replayed})"

    def settings(self) -> dict[str, Any]:
        """All changes together, for :meth:`latfix.settings.RunnerSettings.with_overrides`; later ones win."""
        merged: dict[str, Any] = {}
        for fix in self.fixes:
            merged.update(fix.settings)
        if "env" in merged:
            merged["env"] = self.environment()
        return merged

    def environment(self) -> dict[str, str]:
        """Variables that a process must be started with for the plan to take full effect; later fixes win."""
        return {name: text for fix in self.fixes for name, text in fix.settings.get("env", {}).items()}


def plan_text(plan: Plan) -> str:
    """The plan as TOML, with comments for the user.

    :raises ValueError: a value that TOML cannot hold.
    """
    lines = [
        toml_comment(f"A plan for {plan.workload}: settings that latfix changed{plan.proof and f', {plan.proof}'}."),
        "# latfix diagnose WORKLOAD --plan plan.toml replays it. Remove a [[fix]] to undo it.",
        '# In a service: latfix.load_runner("WORKLOAD", plan="plan.toml").',
        f"schema = {toml_text(PLAN_SCHEMA)}",
        f"workload = {toml_text(plan.workload)}",
        *([f"verdict = {toml_text(plan.verdict)}", f"rounds = {plan.rounds}"] if plan.verdict else []),
        f"latfix = {toml_text(plan.latfix)}",
        f"created = {toml_text(plan.created)}",
    ]
    if plan.machine:
        lines += ["", "# Where it was measured; elsewhere, measure again.", "[machine]", *toml_lines(plan.machine)]
    if plan.measured:
        lines += ["", "# Before and after, from the final interleaved replay.", "[measured]"]
        lines += toml_lines({key: float(value) for key, value in plan.measured.items()})
    for fix in plan.fixes:
        lines += ["", "[[fix]]", f"id = {toml_text(fix.id)}"]
        lines += [f"{name} = {toml_text(text)}" for name, text in _texts(fix) if text]
        plain = {key: value for key, value in fix.settings.items() if key != "env"}
        if fix.settings:
            lines += ["[fix.settings]", *toml_lines(plain)]
        if "env" in fix.settings:
            pairs = [f"{toml_key(name)} = {toml_value(text)}" for name, text in fix.settings["env"].items()]
            lines += ["# Acts in a process started with it: python -m latfix.runners.launch plan.toml COMMAND"]
            lines += [f"env = {{ {', '.join(pairs)} }}" if pairs else "env = {}"]
    return "\n".join(lines) + "\n"


def write_plan(plan: Plan, path: Path) -> None:
    """Write a plan atomically.

    :raises InputError: the file cannot be written.
    """
    data = plan_text(plan).encode("utf-8", "replace")
    try:
        write_bytes(path, data)
    except OSError as error:
        raise InputError(f"{path}: cannot write the plan ({error.strerror}); name another file or folder") from error


def read_plan(path: Path) -> Plan:
    """Read and check a plan; a folder stands for the ``plan.toml`` in it.

    :raises InputError: there is none, or something in it is wrong; with the line.
    """
    try:
        file = path / PLAN_FILE if path.is_dir() else path
        exists = file.exists()
    except OSError as error:
        raise InputError(f"{path}: found a path that cannot be read ({error.strerror}); expected a plan") from error
    if not exists:
        raise InputError(
            f"{file}: found no such file; expected a plan; latfix optimize WORKLOAD --out DIR writes one"
        )
    document, toml = read_toml(file)
    schema = document.get("schema")
    if schema != PLAN_SCHEMA:
        found = f"schema = {schema!r}" if "schema" in document else "no schema"
        raise toml.error("", "schema", found, repr(PLAN_SCHEMA), "pass a plan of latfix optimize")
    toml.check_keys(document, _TOP, "")
    return Plan(
        workload=_text(document, "workload", toml, required=True),
        fixes=_fixes(document.get("fix", []), toml),
        machine=_machine(document.get("machine", {}), toml),
        measured=_measured(document.get("measured", {}), toml),
        verdict=_checked_verdict(document, toml),
        rounds=_rounds(document, toml),
        created=_text(document, "created", toml),
        latfix=_text(document, "latfix", toml),
    )


def _texts(fix: PlannedFix) -> tuple[tuple[str, str], ...]:
    return (("reason", fix.reason), ("verified", fix.verified))


def _text(table: Mapping[str, Any], key: str, file: TomlFile, *, name: str = "", required: bool = False) -> str:
    value = table.get(key, "")
    if not isinstance(value, str) or (required and not value.strip()):
        found = f"{key} = {value!r}" if key in table else f"no {key}"
        at = key if file.line(name, key) else None
        raise file.error(name, at, found, "a text")
    return value


def _checked_verdict(document: Mapping[str, Any], file: TomlFile) -> str:
    verdict = _text(document, "verdict", file)
    if verdict and verdict not in _PROOF:
        raise file.error("", "verdict", f"verdict = {shown(verdict)}", f"one of {', '.join(_PROOF)}")
    return verdict


def _rounds(document: Mapping[str, Any], file: TomlFile) -> int:
    rounds = document.get("rounds", 0)
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 0:
        raise file.error("", "rounds", f"rounds = {shown(rounds)}", "a whole number of at least 0")
    return rounds


def _fixes(value: object, file: TomlFile) -> tuple[PlannedFix, ...]:
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise file.error("", "fix", f"fix = {shown(value)}", "[[fix]] tables")
    fixes: list[PlannedFix] = []
    for k, row in enumerate(value):
        only = _only_fix(file, k)
        fix = _fix(row, only)
        if any(fix.id == other.id for other in fixes):
            raise only.error("fix", "id", f"a second [[fix]] with id {fix.id!r}", "each fix once")
        fixes.append(fix)
    return tuple(fixes)


def _fix(row: Mapping[str, Any], file: TomlFile) -> PlannedFix:
    file.check_keys(row, _FIX, "fix")
    name = _text(row, "id", file, name="fix", required=True)
    if not _FIX_ID.fullmatch(name):
        raise file.error("fix", "id", f"id = {name!r}", "a fix's id, as in 'gc.freeze'")
    return PlannedFix(
        id=name,
        settings=validate_settings(row.get("settings", {}), file, "fix.settings"),
        reason=_text(row, "reason", file, name="fix"),
        verified=_text(row, "verified", file, name="fix"),
    )


def _only_fix(file: TomlFile, k: int) -> TomlFile:
    """The file with all other lines than those of the ``k``-th ``[[fix]]`` emptied, so that line numbers stay."""
    seen, inside, kept = -1, False, []
    for line in file.text.split("\n"):
        header = "".join(line.split("#")[0].split())
        if header == "[[fix]]":
            seen += 1
            inside = seen == k
        elif header.startswith("[") and not header.startswith("[fix."):
            inside = False
        kept.append(line if inside else "")
    return TomlFile(file.path, "\n".join(kept))


def _machine(value: object, file: TomlFile) -> dict[str, TomlValue]:
    if not isinstance(value, dict):
        raise file.error("", "machine", f"machine = {shown(value)}", "a table [machine]")
    for key, item in value.items():
        if not isinstance(item, str | int | float) or (isinstance(item, float) and not math.isfinite(item)):
            raise file.error("machine", key, f"{key} = {shown(item)}", "a text, a finite number or a truth value")
    return value


def _measured(value: object, file: TomlFile) -> dict[str, float]:
    if not isinstance(value, dict):
        raise file.error("", "measured", f"measured = {shown(value)}", "a table [measured]")
    file.check_keys(value, MEASURED_KEYS, "measured")
    for key, item in value.items():
        if isinstance(item, bool) or not isinstance(item, int | float) or not math.isfinite(item):
            raise file.error("measured", key, f"{key} = {shown(item)}", "a finite number")
    return {key: float(item) for key, item in value.items()}
