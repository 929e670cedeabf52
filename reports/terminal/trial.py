"""Terminal table of ``latfix try``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from latfix.formatting import counted, key_label, milliseconds, significant
from latfix.reports.answer import accuracy_words, trial_answer
from latfix.reports.comparison_rows import (
    idea_costs,
    idea_ratios,
    idea_remarks,
    idea_words,
    trial_keys,
    trial_method,
    trial_notes,
)
from latfix.reports.terminal.widgets import (
    SEVERITY_STYLE,
    Cell,
    Column,
    FittedTable,
    Portable,
    answer_block,
    heading,
    safe,
    title_line,
    warnings,
)
from latfix.results.comparison import Trial, TriedIdea

#: Which columns are dropped first if space is short.
_GIVEN_UP = {"memory": 2, "GPU": 3, "start": 3}


def render_trial(found: Trial, *, folder: Path | None) -> RenderableType:
    """All arms in one table, as ratios over the unmodified workload with 95 % intervals; the answer is last.

    :param folder: of the page; ``None`` if there is none.
    """
    title = title_line(found.workload, found.device, counted(len(found.ideas), "idea"), "")
    parts: list[RenderableType] = [title, *warnings(trial_notes(found)), Text(""), _arms(found)]
    parts.append(safe(trial_method(found), "dim", limit=600))
    remarks = [(idea.name, line) for idea in found.ideas for line in idea_remarks(idea)]
    parts += [heading("Remarks")] if remarks else []
    parts += [Text.assemble(safe(name, "bold", limit=160), ": ", safe(line, limit=400)) for name, line in remarks]
    return Portable(Group(*parts, *answer_block(trial_answer(found), folder=folder)))


def _arms(found: Trial) -> FittedTable:
    """The table: each arm's name on its own line, below it its figures, and a line for the ratios' intervals."""
    keys, costs = trial_keys(found), idea_costs(found, found.base)
    columns = [Column("", right=False), Column(key_label(keys[0]))]
    columns += [Column(key_label(key), given_up=4) for key in keys[1:]]
    columns += [Column("accuracy", given_up=1), *(Column(name, given_up=_GIVEN_UP[name]) for name in costs)]
    base = found.summary.latency_ms if found.summary is not None else {}
    rows: list[Sequence[Cell] | Text] = [
        Text("unmodified workload", "bold"),
        ["", *(milliseconds(base.get(key)) for key in keys), _accuracy(found.base), *costs.values()],
    ]
    for idea in found.ideas:
        words, severity = idea_words(idea)
        figures = idea_ratios(found, idea)
        rows.append(Text.assemble(safe(idea.name, "bold", limit=160), "  ", (words, SEVERITY_STYLE[severity])))
        ratios = (step.replace("×", "x") for step, _ in figures)
        rows.append(["", *ratios, _accuracy(idea), *idea_costs(found, idea).values()])
        if idea.comparison is not None:
            rows.append(["", *(Text(bounds, style="dim") for _, bounds in figures), "", *[""] * len(costs)])
    return FittedTable(columns, rows)


def _accuracy(arm: TriedIdea) -> Text:
    """Accuracy, colored if it is not within its limit."""
    _, severity = accuracy_words(arm) or ("", None)
    doubt = {"bad": " beyond limit", "warn": " cannot tell"}.get(severity or "", "")
    return Text(significant(arm.accuracy) + doubt, style="" if severity is None else SEVERITY_STYLE[severity])
