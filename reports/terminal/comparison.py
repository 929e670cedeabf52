"""What a terminal shows of an optimization or a comparison: the verdict, before and after, what each fix did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from latfix.formatting import interval, ratio, significant, visible
from latfix.reports.comparison_rows import (
    Change,
    Ratio,
    StepRow,
    comparison_change,
    gate_rows,
    optimization_change,
    pairing_words,
    prediction_words,
    step_rows,
)
from latfix.reports.next_commands import replay_command
from latfix.reports.terminal.widgets import (
    SEVERITY_STYLE,
    Portable,
    add_figures,
    gate_lines,
    heading,
    plain_table,
    report_line,
    safe,
    title_line,
    warnings,
)
from latfix.reports.vocabulary import change_severity
from latfix.results.comparison import Comparison
from latfix.results.optimization import Optimization, Untried, untried_of

#: So many fixes that were not tried are shown with a reason each; beyond that they would hide what was.
_FEW = 8
#: Characters of a list of their names: more than the whole catalogue takes.
_LISTED = 2000


def render_comparison(comparison: Comparison) -> RenderableType:
    """Two runs side by side, the verdict first."""
    change = comparison_change(comparison)
    return Portable(
        Group(
            Text(change.verdict_sentence(comparison.verdict), style=f"bold {_style(comparison.verdict)}"),
            *warnings(comparison.notes),
            Text(""),
            _change_table(change),
            Text(pairing_words(comparison), style="dim"),
        )
    )


def render_optimization(
    found: Optimization, *, folder: Path | None, workload_argument: str | None = None
) -> RenderableType:
    """An optimization: verdict, before and after, each fix with its reason, gates, plan.

    :param folder: where plan, records and report were written; ``None`` where nothing was kept.
    :param workload_argument: what to type for the workload; its own name where it is ``None``.
    """
    change, words = optimization_change(found), prediction_words(found)
    sentence = change.verdict_sentence(found.verdict)
    parts: list[RenderableType] = [title_line(found.workload, found.device, sentence, _style(found.verdict))]
    parts += warnings(found.notes)
    parts += [Text(""), _change_table(change)]
    parts += _tried([step for step in step_rows(found.steps) if step.status != "skipped"])
    parts += [Text(words, style="dim")] if words else []
    parts += _untried(untried_of(found.steps))
    parts += gate_lines(gate_rows(found.gates))
    if found.plan:
        path = found.plan if folder is None else str(folder / found.plan)
        command = replay_command(workload_argument or found.workload, path)
        parts += [heading("Plan"), safe(path, limit=1000)]
        parts.append(Text.assemble("Replay with it:  ", (visible(command, limit=1200), "bold cyan")))
    if folder is not None:
        parts.append(report_line(folder))
    return Portable(Group(*parts))


def _style(verdict: str) -> str:
    return SEVERITY_STYLE[change_severity(verdict)]


def _change_table(change: Change) -> RenderableType:
    table = plain_table()
    table.add_column("", no_wrap=True)
    for label in (change.before.label, change.after.label):
        table.add_column(safe(label, limit=24), justify="right", no_wrap=True)
    add_figures(table, "ratio", "95 % interval")
    for row in change.rows():
        table.add_row(
            Text(row.name, style="bold" if row.judged else ""),
            row.before,
            Text(row.after, style="red" if row.worse else ""),
            "" if row.ratio is None else _ratio(row.ratio),
            row.note,
        )
    return table


def _ratio(step: Ratio) -> Text:
    return Text(ratio(step.value), style=SEVERITY_STYLE[step.tone] if step.tone else "dim")


def _tried(steps: Sequence[StepRow]) -> Iterator[RenderableType]:
    if not steps:
        return
    yield heading("What was tried")
    table = plain_table()
    table.add_column("fix", overflow="fold", min_width=22, max_width=34)
    table.add_column("status", no_wrap=True)
    add_figures(table, "mean", "p99", "p99 95 %", "p99 ms")
    for step in steps:
        table.add_row(
            safe(step.fix, "bold" if step.status == "kept" else "", limit=60),
            safe(step.words, SEVERITY_STYLE[step.severity], limit=24),
            ratio(step.mean.value),
            _ratio(step.p99),
            interval(step.p99.ci95),
            significant(step.p99_ms),
        )
    yield table
    yield Text("")
    for step in steps:
        yield from _step_words(step)


def _untried(untried: Untried) -> Iterator[Text]:
    """Fixes that were not tried: each with its reason where they are few, else by what kept them from it."""
    if not untried.reasons:
        return
    yield heading("Not tried")
    if len(untried.reasons) <= _FEW:
        for fix, reason in untried.reasons.items():
            yield Text.assemble(safe(fix, "bold", limit=60), ": ", safe(reason))
        return
    if untried.for_time:
        said = f"no time left ({len(untried.for_time)}): "
        yield Text.assemble((said, "bold"), safe(", ".join(untried.for_time), limit=_LISTED))
    for fix in untried.to_install:
        yield Text.assemble(safe(fix, "bold", limit=60), ": ", safe(untried.reasons[fix]))
    if untried.inapplicable:
        said = f"nothing to do here ({len(untried.inapplicable)}): "
        yield Text.assemble((said, "bold"), safe(", ".join(untried.inapplicable), limit=_LISTED))
    yield Text("The report and optimization.json say why for each.", style="dim")


def _step_words(step: StepRow) -> Iterator[Text]:
    """A step's reason and figures; a step of the same replays as the one above refers to them."""
    line = safe(step.fix, "bold", limit=60)
    if step.reason:
        line.append(": ", "")
        line.append_text(Text("in the same replays", "dim") if step.together else safe(step.reason))
    if step.adds.value is not None:
        line.append(f"; beside the others p99 {step.adds.words()}", style="dim")
    predicted, outcome = step.predicted_p99_ms, step.p99_ms
    if predicted is not None and outcome is not None:
        line.append(f"; p99 predicted {significant(predicted)} ms, measured {significant(outcome)} ms", style="dim")
    if not step.together and step.accuracy is not None:
        line.append(f"; accuracy {significant(step.accuracy)}", style="dim")
    if step.reason or step.verified or predicted is not None or step.adds.value is not None:
        yield line
    if step.verified:
        yield Text.assemble(("  verified: ", "dim"), safe(step.verified, "dim"))
