"""``workload.toml``: what a workload is, how its service runs today, and its objective."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latfix.config.model_file_kind import MODEL_SUFFIXES, check_model_file, is_model_file, misnamed
from latfix.config.model_input_rules import InputRule, parse_inputs
from latfix.config.model_output_rules import OutputRule, parse_outputs
from latfix.config.settings_tables import validate_settings, validate_table
from latfix.config.tensorrt_requirements import check_engine_runs
from latfix.config.workload_profiles import overlaid
from latfix.errors import InputError, input_error
from latfix.files.toml_reader import TomlFile, read_toml
from latfix.formatting import did_you_mean
from latfix.settings import Objective, RunnerSettings

SPEC_FILE = "workload.toml"
_TABLES = ("workload", "runner", "objective", "traffic", "inputs", "outputs", "profile")
_ENTRY = re.compile(r"[^\W\d][\w-]*:[^\W\d]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """A workload as its folder describes it.

    :param folder: absolute path.
    :param entry: ``file:Class`` of the adapter, or a model file (:func:`model_file_kind.is_model_file`),
        relative to the folder or absolute.
    :param traffic: absolute path of its recorded traffic.
    :param traffic_map: derived features, by name.
    :param settings: how the service runs today.
    :param traffic_given: True if the traffic was named on the command line rather than by the workload.
    :param profile: the applied profile; empty for none.
    :param speed: the profile's multiple of the recorded speed; ``repeat`` its repetitions.
    """

    name: str
    folder: Path
    entry: str
    traffic: Path
    traffic_map: Mapping[str, str] = field(default_factory=dict)
    settings: RunnerSettings = field(default_factory=RunnerSettings)
    objective: Objective = field(default_factory=Objective)
    traffic_given: bool = False
    profile: str = ""
    speed: float = 1.0
    repeat: int = 1


def samples() -> dict[str, Path]:
    """Folders of the sample workloads, by name."""
    import latfix.sample_workloads

    root = Path(latfix.sample_workloads.__file__ or "").resolve().parent
    return {path.parent.name: path.parent for path in sorted(root.glob(f"*/{SPEC_FILE}"))}


def load_spec(workload: str, *, traffic: Path | None = None, profile: str = "") -> WorkloadSpec:
    """The workload that a command line names: a folder, a model file, or a sample by name.

    :param traffic: recorded traffic to use instead of the workload's own; a model file has none of its own.
    :param profile: a profile of the workload; empty for none.
    :raises InputError: there is no such workload or profile, or its ``workload.toml`` is wrong.
    """
    if not workload:
        raise InputError("WORKLOAD: found an empty text; expected a folder, a model file or a sample")
    path = Path(workload)
    exists = _exists(path)
    if exists and path.is_dir():
        return read_spec(path, traffic=traffic, profile=profile)
    if exists and path.name == SPEC_FILE:
        return read_spec(path.parent, traffic=traffic, profile=profile)
    known = samples()
    if is_model_file(path) and workload not in known:
        return _model_spec(path, traffic, profile)
    if workload in known:
        return read_spec(known[workload], traffic=traffic, profile=profile)
    advice = did_you_mean(workload, known, f"samples are {', '.join(known)}")
    if exists:
        expected = f"a folder with {SPEC_FILE} or a model file ({', '.join(MODEL_SUFFIXES)})"
        raise InputError(f"{workload}: found {misnamed(path) or f'a file; expected {expected}; {advice}'}")
    expected = f"a folder with {SPEC_FILE}, a model file or a sample"
    raise InputError(f"{workload}: found no such folder or sample, and no such file; expected {expected}; {advice}")


def check_runs(spec: WorkloadSpec) -> None:
    """Validate that a workload's model file can run on this machine, before anything heavy is loaded.

    :raises InputError: a package or a driver is missing, with what to do.
    """
    if Path(spec.entry).suffix.lower() == ".engine":
        check_engine_runs(spec.folder / spec.entry)


def read_spec(folder: Path, *, traffic: Path | None = None, profile: str = "") -> WorkloadSpec:
    """Read and check ``workload.toml`` of ``folder``; see :func:`load_spec`."""
    document, file = read_toml(folder / SPEC_FILE)
    file.check_keys(document, _TABLES, "")
    for name in _TABLES:
        if name in document and not isinstance(document[name], dict):
            raise file.error("", name, f"{name} = {document[name]!r}", f"a table [{name}]")
    written = document
    document, replayed = overlaid(written, profile, file)
    head = document.get("workload")
    if head is None:
        raise input_error(file.path, None, "no [workload] table", 'one with name, entry = "file:Class" and traffic')
    file.check_keys(head, ("name", "entry", "model", "traffic"), "workload")
    parse_inputs(document.get("inputs", {}), file)
    if "inputs" in document and "model" not in head:
        raise file.error(
            "inputs", None, "[inputs] and no model", "model = FILE in [workload]: an adapter prepares its own"
        )
    parse_outputs(document.get("outputs", {}), file, of_file="model" in head)
    settings = validate_settings(document.get("runner", {}), file, "runner")
    objective = validate_table(document.get("objective", {}), Objective, file, "objective")
    return WorkloadSpec(
        name=_text(head, "name", file, default=folder.resolve().name),
        folder=folder.resolve(),
        entry=_entry(head, folder, file),
        traffic=_traffic(head, traffic, folder, file),
        traffic_map=_traffic_map(document.get("traffic", {}), _map_table(written, profile), file),
        settings=RunnerSettings(**settings),
        objective=Objective(**objective),
        traffic_given=traffic is not None,
        profile=profile,
        speed=float(replayed.speed),
        repeat=replayed.repeat,
    )


def _exists(path: Path) -> bool:
    """True if the path exists; False also for an invalid file name."""
    try:
        path.stat()
    except (OSError, ValueError):
        return False
    return True


def _text(head: Mapping[str, Any], key: str, file: TomlFile, *, default: str | None = None) -> str:
    value = head.get(key, default)
    if value is None:
        raise file.error("workload", key, f"no {key} in [workload]", "a text")
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise file.error("workload", key, f"{key} = {value!r}", "a text of printable characters")
    return value


def _entry(head: Mapping[str, Any], folder: Path, file: TomlFile) -> str:
    if "model" in head:
        return _model_entry(head, folder, file)
    if "entry" not in head:
        raise file.error("workload", None, "no entry in [workload]", "an entry or a model")
    entry = _text(head, "entry", file)
    if not _ENTRY.fullmatch(entry):
        todo = "leave out .py" if ".py" in entry else ""
        raise file.error("workload", "entry", f"entry = {entry!r}", '"file:Class", as in "workload:Ranker"', todo)
    module = folder / f"{entry.partition(':')[0]}.py"
    if not module.is_file():
        raise file.error(
            "workload", "entry", f"entry = {entry!r}, but no file {module.name} next to it", "an adapter's file"
        )
    return entry


def _model_entry(head: Mapping[str, Any], folder: Path, file: TomlFile) -> str:
    if "entry" in head:
        raise file.error("workload", "model", "both entry and model in [workload]", "one of them")
    model = _text(head, "model", file)
    if not is_model_file(model):
        expected = f"a file that ends in {', '.join(MODEL_SUFFIXES)}"
        raise file.error("workload", "model", f"model = {model!r}", expected, "anything else needs an adapter: entry")
    check_model_file(folder / model)
    return model


def _model_spec(path: Path, traffic: Path | None, profile: str) -> WorkloadSpec:
    """A model file as a workload: as ``workload.toml`` next to it describes it, or with defaults."""
    if _described(path.parent, path):
        return read_spec(path.parent, traffic=traffic, profile=profile)
    if profile:
        raise InputError(f"--profile: found {profile!r} and a model file without a {SPEC_FILE}; leave it out")
    check_model_file(path)
    if traffic is None:
        todo = f"name it with --traffic FILE, or in a {SPEC_FILE} next to it"
        raise input_error(path, None, "a model file without traffic", "recorded traffic", todo)
    name = "".join(c if c.isprintable() else "-" for c in path.stem)
    return WorkloadSpec(
        name=name.strip() or "model",
        folder=path.parent.resolve(),
        entry=path.name,
        traffic=_traffic({}, traffic, path.parent, TomlFile(path)),
        traffic_given=True,
    )


def traffic_arguments(spec: WorkloadSpec, mapping: Mapping[str, str], *, skipped_lines: int = 0) -> list[str]:
    """The options that select the same traffic again: those that differ from the workload's own file.

    :param mapping: all derived features, by name.
    :param skipped_lines: malformed lines that were left out.
    """
    words = ["--traffic", str(spec.traffic)] if spec.traffic_given else []
    words += ["--profile", spec.profile] if spec.profile else []
    words += ["--skip-bad-lines"] if skipped_lines else []
    for name, expression in mapping.items():
        if spec.traffic_map.get(name) != expression:
            words += ["--map", f"{name}={expression}"]
    return words


def model_inputs(folder: Path, entry: str) -> dict[str, InputRule]:
    """``[inputs]`` for a model file: from ``workload.toml`` in its folder, if that names it.

    :raises InputError: it is wrong.
    """
    if not _described(folder, folder / entry):
        return {}
    document, file = read_toml(folder / SPEC_FILE)
    return parse_inputs(document.get("inputs", {}), file)


def declared_outputs(folder: Path, entry: str) -> dict[str, OutputRule]:
    """``[outputs]`` of a workload; none for a model file that ``workload.toml`` in its folder does not name.

    :raises InputError: it is wrong.
    """
    of_file = is_model_file(entry)
    if not (_described(folder, folder / entry) if of_file else _exists(folder / SPEC_FILE)):
        return {}
    document, file = read_toml(folder / SPEC_FILE)
    return parse_outputs(document.get("outputs", {}), file, of_file=of_file)


def _described(folder: Path, model: Path) -> bool:
    """True if ``workload.toml`` in the folder names this file as its model."""
    if not _exists(folder / SPEC_FILE):
        return False
    document, _ = read_toml(folder / SPEC_FILE)
    head = document.get("workload", {})
    table = next((name for name in ("inputs", "outputs") if name in document), "")
    if table and head == {}:  # meant for the model file, but without effect
        expected = f'model = "{model.name}" in [workload] of that file'
        raise input_error(folder / SPEC_FILE, None, f"[{table}] without [workload]", expected)
    named = head.get("model") if isinstance(head, dict) else None
    if not isinstance(named, str) or not named.isprintable() or not is_model_file(named):
        return False
    return (folder / named).absolute() == model.absolute() or (folder / named).resolve() == model.resolve()


def _traffic(head: Mapping[str, Any], override: Path | None, folder: Path, file: TomlFile) -> Path:
    if override is not None:
        if not _exists(override):
            raise InputError(f"{override}: found no such file; expected recorded traffic")
        return override.resolve()
    path = folder / _text(head, "traffic", file)
    if not _exists(path):
        raise file.error(
            "workload", "traffic", f"traffic = {head['traffic']!r}, but no such file", "recorded traffic"
        )
    return path.resolve()


def _map_table(document: Mapping[str, Any], profile: str) -> str:
    """The table in which the map is written: a profile's replaces the workload's own."""
    own = document["profile"][profile].get("traffic", {}) if profile else {}
    return f"profile.{profile}.traffic.map" if "map" in own else "traffic.map"


def _traffic_map(table: Mapping[str, Any], written: str, file: TomlFile) -> dict[str, str]:
    from latfix.traffic.derived_features import parse_derived  # loads NumPy, which most readers do not need

    file.check_keys(table, ("map",), "traffic")
    mapping = table.get("map", {})
    if not isinstance(mapping, dict):
        raise file.error(written, None, f"map = {mapping!r}", "a table [traffic.map]")
    for name, source in mapping.items():
        if not isinstance(source, str):
            raise file.error(written, name, f"{name} = {source!r}", 'an expression as text, e.g. "min(tokens, 256)"')
        parse_derived(name, source, f"{file.place(written, name)}: map")
    return dict(mapping)
