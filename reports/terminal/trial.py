"""The table of ``latfix try`` on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from latfix.formatting import NONE, count, interval, key_label, milliseconds, ratio, significant
from latfix.reports.terminal.widgets import (
    SEVERITY_STYLE,
    Portable,
    heading,
    plain_table,
    safe,
    title_line,
    warnings,
)
from latfix.reports.vocabulary import change_severity, verdict_words
from latfix.results.comparison import Comparison, Trial, TriedIdea

_KEYS = ("p50", "p99", "mean")
_MIB = 1 << 20
#: Columns of a terminal from which on the figures stay whole.
_ENOUGH = 76


def render_trial(found: Trial, *, folder: Path | None) -> RenderableType:
    """All arms in one table: ratios over the workload as it is, with their 95 % intervals.

    :param folder: where the records are; ``None`` where nothing was kept.
    """
    parts: list[RenderableType] = [_title(found), *warnings(_notes(found)), Text(""), _Arms(found)]
    parts += [safe(line, "dim", limit=600) for line in _how(found)]
    for place, line in enumerate(_remarks(found)):
        parts += [heading("Remarks")] if not place else []
        parts.append(line)
    if folder is not None:
        parts.append(Text.assemble(("\nrecords          ", "dim"), safe(folder, limit=1000)))
    return Portable(Group(*parts))


@dataclass(frozen=True, slots=True)
class _Arms:
    """The table; where the terminal has room, names are folded, and not figures."""

    found: Trial

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        found = self.found
        keys = tuple(dict.fromkeys((*_KEYS, found.judged)))
        whole = options.max_width >= _ENOUGH
        table = plain_table()
        table.padding = (0, 1, 0, 0)
        table.add_column("arm", overflow="fold")
        for key in keys:
            table.add_column(key_label(key), justify="right", overflow="fold", no_wrap=whole)
        table.add_column("cost", overflow="fold", no_wrap=whole)
        base = found.summary.latency_ms if found.summary is not None else {}
        table.add_row(
            safe(found.base.name, "bold"), *(milliseconds(base.get(key)) for key in keys), _cost(found.base)
        )
        for idea in found.ideas:
            table.add_row(_name(idea), *(_ratio(idea.comparison, key) for key in keys), _cost(idea))
        yield table


def _title(found: Trial) -> Text:
    best = next((idea for idea in found.ideas if idea.name == found.best), None)
    judged = key_label(found.judged)
    if best is None or best.comparison is None:
        sentence = f"no idea is proved better by {judged}"
        return title_line(found.workload, found.device, sentence, SEVERITY_STYLE["calm"])
    estimate = best.comparison.ratio[found.judged]
    figures = f"{ratio(estimate.value)} {interval((estimate.lo, estimate.hi))}"
    return title_line(
        found.workload, found.device, f"best is {best.name}: {judged} {figures}", SEVERITY_STYLE["good"]
    )


def _notes(found: Trial) -> Iterator[str]:
    if found.interrupted:
        yield "Interrupted: what was complete until then is shown."
    if found.failure:
        yield f"The workload as it is failed, and the trial ended there: {found.failure}"
    yield from found.notes


def _name(idea: TriedIdea) -> Text:
    """The idea, and its verdict below."""
    if idea.failure:
        words, style = "failed", "bold red"
    elif idea.comparison is None:
        words, style = "not replayed", "dim"
    else:
        words = verdict_words(idea.comparison.verdict)
        style = SEVERITY_STYLE[change_severity(idea.comparison.verdict)]
    return Text.assemble(safe(idea.name, "bold", limit=160), "\n", (words, style))


def _ratio(comparison: Comparison | None, key: str) -> Text:
    if comparison is None or key not in comparison.ratio:
        return Text(NONE)
    estimate = comparison.ratio[key]
    return Text.assemble(ratio(estimate.value), "\n", (interval((estimate.lo, estimate.hi)), "dim"))


def _cost(arm: TriedIdea) -> Text:
    """Accuracy and whether it is within the limit; memory and seconds to start."""
    lines = []
    if arm.accuracy is not None:
        lines.append(Text(f"accuracy {significant(arm.accuracy)}"))
    if arm.accurate is not None:
        lines.append(Text("within limit", "green") if arm.accurate else Text("beyond limit", "bold red"))
    if arm.memory_bytes:
        lines.append(Text(f"{significant(arm.memory_bytes / _MIB)} MiB"))
    if arm.device_memory_bytes:
        lines.append(Text(f"GPU {significant(arm.device_memory_bytes / _MIB)} MiB"))
    if arm.start_s is not None:
        lines.append(Text(f"start {significant(arm.start_s)} s"))
    return Text("\n").join(lines) if lines else Text(NONE)


def _how(found: Trial) -> Iterator[str]:
    rounds = "1 round" if found.rounds == 1 else f"{found.rounds} rounds"
    stretch = (
        "the whole traffic"
        if found.whole
        else f"seconds {significant(found.from_s)} to {significant(found.to_s)} of the traffic"
    )
    yield (
        f"{rounds} of {stretch} ({count(found.requests)} requests) in turns, each on a fresh process; ratios over "
        f"the workload as it is with 95 % intervals, the verdict by {key_label(found.judged)}."
    )


def _remarks(found: Trial) -> Iterator[Text]:
    """Why an idea failed, what its accuracy misses, and what keeps a verdict open."""
    for idea in found.ideas:
        lines = [idea.failure] if idea.failure else []
        lines += [idea.accuracy_reason] if idea.accurate is False else []
        if idea.comparison is not None:
            lines += [note for note in idea.comparison.notes if not note.startswith("settings: ")]
        for line in lines:
            yield Text.assemble(safe(idea.name, "bold", limit=160), ": ", safe(line, limit=400))
