"""The table of ``latfix backends`` on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from latfix.formatting import count, finite, interval, ratio, significant
from latfix.reports.terminal.widgets import Portable, plain_table, safe
from latfix.results.answer_check import AnswerCheck

#: Numbers that differ by more than this share of the largest one are not rounding of another order of sums.
_ROUNDING = 1e-3


def render_backends(document: Mapping[str, Any]) -> RenderableType:
    """The document of ``latfix backends`` as people read it."""
    first = document["backends"][0]["backend"]
    table = plain_table(title=f"{document['workload']}: its model in every backend that takes it here")
    for name in ("backend", "load", "one at a time", f"in batches of {document['batch_size']}", "answers"):
        table.add_column(name, justify="left" if name in ("backend", "answers") else "right", overflow="fold")
    for row in document["backends"]:
        if row["missing"]:
            continue
        table.add_row(
            safe(row["backend"]),
            _seconds(row),
            _rate(row["single_rps"], row.get("single_speedup")),
            _rate(row["batched_rps"], row.get("batched_speedup")),
            _answers(row, first),
        )
    parts: list[RenderableType] = [table]
    parts += [
        Text.assemble(f"  {', '.join(names)}: ", safe(why, "dim", limit=400))
        for why, names in _missing(document["backends"]).items()
    ]
    if document.get("answers"):
        answers = AnswerCheck.from_json(document["answers"])
        parts += [Text.assemble("\n", safe(line, "bold yellow", limit=600)) for line in answers.faults()]
        parts += [safe(answers.judged(), "dim", limit=600)]
    parts += [Text(f"\n{_how(document)}", style="dim")]
    parts += [Text.assemble("  input ", safe(line)) for line in document["inputs"]]
    return Portable(Group(*parts))


def _missing(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Backends by the reason why they are not in the table."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row["missing"]:
            found.setdefault(row["missing"], []).append(row["backend"])
    return found


def _seconds(row: Mapping[str, Any]) -> Text:
    text = Text(f"{significant(row['load_s'])} s")
    if row["convert_s"] is not None:
        text.append(f"\n* {significant(row['convert_s'])} s", style="dim")
    return text


def _rate(estimate: Mapping[str, Any], speedup: Mapping[str, Any] | None) -> Text:
    text = Text(f"{significant(estimate['value'])}/s {interval(estimate['ci95'])}")
    if speedup is None:
        return text
    bounds = speedup["ci95"]
    style = ""
    if bounds is not None:
        style = "green" if bounds[0] > 1 else "red" if bounds[1] < 1 else ""
    text.append(f"\n{ratio(speedup['value'])} {interval(bounds)}", style=style)
    return text


def _answers(row: Mapping[str, Any], first: str) -> Text:
    if row["backend"] == first:
        return Text("the reference", style="dim")
    deviation = finite(row["deviation"])
    said = (
        "in shape, kind or whole numbers"
        if deviation is None
        else f"by {significant(deviation, 2)} of the largest number"
    )
    if row["agreeing"] < row["compared"]:
        return Text(f"{row['agreeing']} of {count(row['compared'])} agree; off {said}", style="bold red")
    if deviation is None or deviation > _ROUNDING:
        return Text(f"all {count(row['compared'])} agree; off {said}", style="yellow")
    return Text(f"all {count(row['compared'])} agree; off {said}")


def _how(document: Mapping[str, Any]) -> str:
    rounds = max((row.get("rounds", 0) for row in document["backends"]), default=0)
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    starred = any(row["convert_s"] is not None and not row["missing"] for row in document["backends"])
    return (
        f"{count(document['requests'])} requests of the traffic in {count(rounds)} rounds, in turns, the model's "
        f"call alone; {_threads(document)}; {versions}; 95 % intervals; load: the first one in a "
        "process that has imported torch" + ("; * converting it before, once" if starred else "")
    )


def _threads(document: Mapping[str, Any]) -> str:
    return "1 thread" if document["threads"] == 1 else f"{count(document['threads'])} threads"
