"""``[outputs]`` of ``workload.toml``: the kind of each output, and the shape of a model file's outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from latfix.config.model_input_rules import parse_shape
from latfix.files.toml_reader import TomlFile
from latfix.traffic.feature_expressions import Expression

#: Kinds of output, which decide how answers are compared: classes of the whole request, classes of its steps,
#: directions, quantities, pictures, labels that are equal or not; or not at all.
Kind = Literal["scores", "steps", "vectors", "numbers", "images", "ids", "ignored"]
KINDS: tuple[Kind, ...] = get_args(Kind)
#: The key of the rule for outputs without a rule of their own.
ALL = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRule:
    """The declaration of one output; ``None`` leaves it to detection.

    :param shape: of a model file's output: for each dimension its size, or an expression over a request's features
        and the variable dimensions of the file's inputs. ``"batch"`` is the requests' dimension.
    :param where: file and line, for messages.
    """

    kind: Kind | None = None
    shape: tuple[int | Expression, ...] | None = None
    where: str = ""


def parse_outputs(table: Any, file: TomlFile, *, of_file: bool) -> dict[str, OutputRule]:
    """``[outputs]`` by the name of the output; ``kind = "…"`` in it applies to all, under :data:`ALL`.

    :param of_file: the workload is a model file; an adapter's ``finish`` trims its own outputs.
    :raises InputError: an unknown key or kind, or an invalid shape.
    """
    if not isinstance(table, dict):
        raise file.error("", "outputs", f"outputs = {table!r}", "a table [outputs]")
    rules = {}
    for name, entry in table.items():
        if name == "kind" and not isinstance(entry, dict):
            rules[ALL] = OutputRule(kind=_kind(entry, "kind", file), where=file.place("outputs", name))
        else:
            rules[name] = _rule(name, entry, file, of_file=of_file)
    return rules


def _rule(name: str, entry: Any, file: TomlFile, *, of_file: bool) -> OutputRule:
    if not isinstance(entry, dict):
        raise file.error("outputs", name, f"{name} = {entry!r}", 'a table like { kind = "steps" }')
    file.check_keys(entry, ("kind", "shape"), f"outputs.{name}")
    where = file.place("outputs", name)
    if "shape" in entry and not of_file:
        raise file.error(
            "outputs", name, f"{name} with a shape and no model", "model = FILE in [workload]: finish cuts its own"
        )
    return OutputRule(
        kind=_kind(entry["kind"], name, file) if "kind" in entry else None,
        shape=parse_shape(name, entry["shape"], file, "outputs") if "shape" in entry else None,
        where=where,
    )


def _kind(value: Any, name: str, file: TomlFile) -> Kind:
    for kind in KINDS:
        if value == kind:
            return kind
    raise file.error("outputs", name, f"{name} of kind {value!r}", f"one of {', '.join(KINDS)}")


def rule_of(rules: Mapping[str, OutputRule], name: str) -> OutputRule:
    """The declaration of an output: its own rule, with the common kind if it declares none."""
    every = rules.get(ALL, OutputRule())
    own = rules.get(name, OutputRule())
    return (
        own if own.kind is not None else OutputRule(kind=every.kind, shape=own.shape, where=own.where or every.where)
    )
