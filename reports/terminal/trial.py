"""Terminal table of ``latfix try``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from latfix.reports.vocabulary import change_severity, verdict_words
from latfix.results.comparison import Comparison, Trial, TriedIdea

_KEYS = ("p50", "p99", "mean")


def render_trial(found: Trial, *, folder: Path | None) -> RenderableType:
    """All arms in one table, as ratios over the unmodified workload with 95 % intervals; the answer is last.

    :param folder: of the records; ``None`` if nothing was kept.
    """
    title = title_line(found.workload, found.device, counted(len(found.ideas), "idea"), "")
    parts: list[RenderableType] = [title, *warnings(_notes(found)), Text(""), _arms(found)]
    parts += [safe(line, "dim", limit=600) for line in _how(found)]
    for place, line in enumerate(_remarks(found)):
        parts += [heading("Remarks")] if not place else []
        parts.append(line)
    return Portable(Group(*parts, *answer_block(trial_answer(found), folder=folder, page=False)))


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
        words, style = _verdict(idea)
        compared = idea.comparison
        rows.append(Text.assemble(safe(idea.name, "bold", limit=160), "  ", (words, style)))
        rows.append(["", *(_ratio(compared, key) for key in keys), *_costs(idea)])
        if compared is not None:
            rows.append(["", *(_interval(compared, key) for key in keys), *[""] * 4])
    if not any(arm.device_memory_bytes for arm in (found.base, *found.ideas)):
        place = next(k for k, column in enumerate(columns) if column.title == "GPU")
        del columns[place]
        rows = [row if isinstance(row, Text) else [*row[:place], *row[place + 1 :]] for row in rows]
    return FittedTable(columns, rows)


def _notes(found: Trial) -> Iterator[str]:
    if found.interrupted:
        yield "Interrupted: only complete rounds are shown."
    if found.failure:
        yield f"The unmodified workload failed, so the trial was ended: {found.failure}"
    yield from found.notes


def _verdict(idea: TriedIdea) -> tuple[str, str]:
    if idea.failure:
        return "failed", "bold red"
    if idea.comparison is None:
        return "not replayed", "dim"
    verdict = idea.comparison.verdict
    return verdict_words(verdict), SEVERITY_STYLE[change_severity(verdict)]


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


def _how(found: Trial) -> Iterator[str]:
    stretch = (
        "the whole traffic"
        if found.whole
        else f"seconds {significant(found.from_s)} to {significant(found.to_s)} of the traffic"
    )
    rounds = f"{counted(found.rounds, 'round')} of {stretch} ({counted(found.requests, 'request')})"
    yield (
        f"{rounds}, alternating, each in a fresh process. Ratios over the unmodified workload with 95 % intervals; "
        f"the verdict is by {key_label(found.judged)}."
    )


def _remarks(found: Trial) -> Iterator[Text]:
    """Why an idea failed, exceeds the accuracy limit, or has no verdict."""
    for idea in found.ideas:
        lines = [idea.failure] if idea.failure else []
        lines += [idea.accuracy_reason] if idea.accuracy_reason and not idea.accurate else []
        if idea.comparison is not None:
            lines += [note for note in idea.comparison.notes if not note.startswith("settings: ")]
        for line in lines:
            yield Text.assemble(safe(idea.name, "bold", limit=160), ": ", safe(line, limit=400))
