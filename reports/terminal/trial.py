"""Terminal table of ``latfix try``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from latfix.formatting import (
    NONE,
    counted,
    interval,
    key_label,
    mebibytes,
    milliseconds,
    ratio,
    seconds,
    significant,
)
from latfix.reports.answer import accuracy_words, trial_answer
from latfix.reports.comparison_rows import idea_remarks, idea_words, trial_method, trial_notes
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
from latfix.results.comparison import Comparison, Trial, TriedIdea

_KEYS = ("p50", "p99", "mean")


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
    keys = tuple(dict.fromkeys((found.judged, *_KEYS)))
    columns = [
        Column("", right=False),
        *(Column(key_label(key), given_up=0 if not k else 4) for k, key in enumerate(keys)),
    ]
    columns += [Column("accuracy", given_up=1), Column("memory", given_up=2), Column("GPU", given_up=3)]
    columns += [Column("start", given_up=3)]
    base = found.summary.latency_ms if found.summary is not None else {}
    rows: list[Sequence[Cell] | Text] = [
        Text("unmodified workload", "bold"),
        ["", *(milliseconds(base.get(key)) for key in keys), *_costs(found.base)],
    ]
    for idea in found.ideas:
        words, severity = idea_words(idea)
        compared = idea.comparison
        rows.append(Text.assemble(safe(idea.name, "bold", limit=160), "  ", (words, SEVERITY_STYLE[severity])))
        rows.append(["", *(_ratio(compared, key) for key in keys), *_costs(idea)])
        if compared is not None:
            rows.append(["", *(_interval(compared, key) for key in keys), *[""] * 4])
    if not any(arm.device_memory_bytes for arm in (found.base, *found.ideas)):
        place = next(k for k, column in enumerate(columns) if column.title == "GPU")
        del columns[place]
        rows = [row if isinstance(row, Text) else [*row[:place], *row[place + 1 :]] for row in rows]
    return FittedTable(columns, rows)


def _ratio(comparison: Comparison | None, key: str) -> str:
    if comparison is None or key not in comparison.ratio:
        return NONE
    return ratio(comparison.ratio[key].value)


def _interval(comparison: Comparison, key: str) -> Text:
    estimate = comparison.ratio.get(key)
    return Text("" if estimate is None else interval((estimate.lo, estimate.hi)), style="dim")


def _costs(arm: TriedIdea) -> list[Cell]:
    """Accuracy, colored if it is not within its limit; memory, device memory and start-up time."""
    _, severity = accuracy_words(arm) or ("", None)
    doubt = {"bad": " beyond limit", "warn": " cannot tell"}.get(severity or "", "")
    return [
        Text(significant(arm.accuracy) + doubt, style="" if severity is None else SEVERITY_STYLE[severity]),
        mebibytes(arm.memory_bytes or None),
        mebibytes(arm.device_memory_bytes or None),
        seconds(arm.start_s),
    ]
