"""``workload.toml``: what a workload is, how its service runs today, and what it is meant to reach."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latfix.errors import InputError, input_error
from latfix.expressions import Expression
from latfix.settings import Objective, RunnerSettings
from latfix.settings_check import check_keys, find_line, validate_objective, validate_settings

SPEC_FILE = "workload.toml"
MODEL_SUFFIXES = (".pt2", ".pt", ".ts", ".onnx", ".engine")
_TABLES = ("workload", "runner", "objective", "traffic")
_ENTRY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*:[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """A workload as its folder describes it.

    :param folder: absolute path.
    :param entry: ``file:Class`` of the adapter.
    :param traffic: absolute path of its recorded traffic.
    :param traffic_map: features derived from others, by name.
    :param settings: how the service runs today.
    """

    name: str
    folder: Path
    entry: str
    traffic: Path
    traffic_map: Mapping[str, str] = field(default_factory=dict)
    settings: RunnerSettings = field(default_factory=RunnerSettings)
    objective: Objective = field(default_factory=Objective)


def samples() -> dict[str, Path]:
    """Folders of the sample workloads, by name."""
    import latfix.sample_workloads

    root = Path(latfix.sample_workloads.__file__ or "").resolve().parent
    return {path.parent.name: path.parent for path in sorted(root.glob(f"*/{SPEC_FILE}"))}


def load_spec(workload: str, *, traffic: Path | None = None) -> WorkloadSpec:
    """The workload that a command line names: a folder, or a sample by name.

    :param traffic: recorded traffic to use instead of the workload's own.
    :raises InputError: there is no such workload, or its ``workload.toml`` is wrong.
    """
    path = Path(workload)
    there = _is_there(path)
    if there and path.is_dir():
        return read_spec(path, traffic=traffic)
    if there and path.name == SPEC_FILE:
        return read_spec(path.parent, traffic=traffic)
    if there and path.suffix in MODEL_SUFFIXES:
        raise InputError(
            f"{path}: found a model file; this version replays against an adapter only; "
            f"write a folder with {SPEC_FILE} and an adapter around it (latfix init DIR makes one)"
        )
    known = samples()
    if workload in known:
        return read_spec(known[workload], traffic=traffic)
    near = difflib.get_close_matches(workload, known, n=1)
    advice = f"did you mean {near[0]!r}?" if near else f"samples are {', '.join(known)}"
    if there:
        raise InputError(f"{workload}: found a file; expected a folder with {SPEC_FILE}; {advice}")
    raise InputError(f"{workload}: found no such folder or sample; expected a folder with {SPEC_FILE}; {advice}")


def read_spec(folder: Path, *, traffic: Path | None = None) -> WorkloadSpec:
    """Read and check ``workload.toml`` of ``folder``; see :func:`load_spec`."""
    file = folder / SPEC_FILE
    document, text = read_toml(file)
    check_keys(document, _TABLES, file=file, text=text, table_name="")
    for name in _TABLES:
        if name in document and not isinstance(document[name], dict):
            raise input_error(file, find_line(text, "", name), f"{name} = {document[name]!r}", f"a table [{name}]")
    head = document.get("workload")
    if head is None:
        raise input_error(file, None, "no [workload] table", 'one with name, entry = "file:Class" and traffic')
    check_keys(head, ("name", "entry", "model", "traffic"), file=file, text=text, table_name="workload")
    settings = validate_settings(document.get("runner", {}), file=file, text=text, table_name="runner")
    objective = validate_objective(document.get("objective", {}), file=file, text=text)
    return WorkloadSpec(
        name=_text(head, "name", file, text, default=folder.resolve().name),
        folder=folder.resolve(),
        entry=_entry(head, folder, file, text),
        traffic=_traffic(head, traffic, folder, file, text),
        traffic_map=_traffic_map(document.get("traffic", {}), file, text),
        settings=RunnerSettings(**settings),
        objective=Objective(**objective),
    )


def read_toml(file: Path) -> tuple[dict[str, Any], str]:
    """A TOML file's document and text.

    :raises InputError: it cannot be read, or is not TOML.
    """
    try:
        text = file.read_bytes().decode("utf-8")
        return tomllib.loads(text), text
    except FileNotFoundError as error:
        raise InputError(f"{file}: found no such file; latfix init DIR writes one to start from") from error
    except OSError as error:
        raise InputError(f"{file}: found a file that cannot be read ({error.strerror}); check it") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: found a byte not UTF-8 at offset {error.start}; save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"\(at line (\d+), column \d+\)", str(error))
        line = int(where.group(1)) if where else None
        found = re.sub(r" \(at .*\)$", "", str(error))
        expected = "key = value lines under [tables]"
        raise input_error(file, line, f"text that is not TOML ({found})", expected) from error
    except RecursionError as error:
        raise InputError(f"{file}: found values nested too deeply; expected plain tables") from error


def _is_there(path: Path) -> bool:
    """Whether the path exists; a name that no file can have is not there either."""
    try:
        path.stat()
    except (OSError, ValueError):
        return False
    return True


def _text(head: Mapping[str, Any], key: str, file: Path, text: str, *, default: str | None = None) -> str:
    value = head.get(key, default)
    line = find_line(text, "workload", key)
    if value is None:
        raise input_error(file, line, f"no {key} in [workload]", "a text")
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise input_error(file, line, f"{key} = {value!r}", "a text of printable characters")
    return value


def _entry(head: Mapping[str, Any], folder: Path, file: Path, text: str) -> str:
    if "entry" not in head and "model" in head:
        line = find_line(text, "workload", "model")
        raise input_error(
            file, line, f"model = {head['model']!r}", 'entry = "file:Class"', "this version needs an adapter"
        )
    entry = _text(head, "entry", file, text)
    line = find_line(text, "workload", "entry")
    if not _ENTRY.fullmatch(entry):
        raise input_error(file, line, f"entry = {entry!r}", '"file:Class", as in "workload:Ranker"')
    module = folder / f"{entry.partition(':')[0]}.py"
    if not module.is_file():
        raise input_error(file, line, f"entry = {entry!r}, but no file {module.name} beside it", "an adapter's file")
    return entry


def _traffic(head: Mapping[str, Any], override: Path | None, folder: Path, file: Path, text: str) -> Path:
    if override is not None:
        if not _is_there(override):
            raise InputError(f"{override}: found no such file; expected recorded traffic")
        return override.resolve()
    path = folder / _text(head, "traffic", file, text)
    if not _is_there(path):
        line = find_line(text, "workload", "traffic")
        raise input_error(file, line, f"traffic = {head['traffic']!r}, but no such file", "recorded traffic")
    return path.resolve()


def _traffic_map(table: Mapping[str, Any], file: Path, text: str) -> dict[str, str]:
    check_keys(table, ("map",), file=file, text=text, table_name="traffic")
    mapping = table.get("map", {})
    if not isinstance(mapping, dict):
        raise input_error(file, find_line(text, "traffic", "map"), f"map = {mapping!r}", "a table [traffic.map]")
    for name, source in mapping.items():
        line = find_line(text, "traffic.map", name)
        if not isinstance(source, str):
            raise input_error(file, line, f"{name} = {source!r}", 'an expression as text, e.g. "min(tokens, 256)"')
        Expression.parse(source, f"{file}:{line}: {name}")
    return dict(mapping)
