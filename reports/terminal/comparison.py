"""Terminal report of an optimization or a comparison: before and after, the effect of each fix, and the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from latfix.formatting import counted, interval, key_label, ratio, significant
from latfix.reports.answer import comparison_answer, optimization_answer
from latfix.reports.comparison_rows import (
    Change,
    Ratio,
    StepRow,
    comparison_change,
    optimization_change,
    pairing_words,
    prediction_words,
    step_rows,
)
from latfix.reports.plan_rows import FrontRow, front_rows, setting_rows
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
from latfix.results.comparison import Comparison
from latfix.results.optimization import Optimization, Untried, untried_of

#: Most configurations in the table without ``verbose``.
_FRONT = 5


def render_comparison(comparison: Comparison, *, folder: Path | None = None, verbose: bool = False) -> RenderableType:
    """Two runs side by side; the answer is last.

    :param folder: of the page; ``None`` without one.
    :param verbose: with every figure.
    """
    change, answer = comparison_change(comparison), comparison_answer(comparison)
    return Portable(
        Group(
            *warnings(comparison.notes),
            *([Text("")] if comparison.notes else []),
            _change_table(change, verbose=verbose),
            Text(pairing_words(comparison), style="dim"),
            *answer_block(answer, folder=folder),
        )
    )


def render_optimization(
    found: Optimization,
    *,
    folder: Path | None,
    plan_folder: Path | None = None,
    workload_argument: str | None = None,
    verbose: bool = False,
) -> RenderableType:
    """An optimization: before and after, what was tried, the plan; the answer is last.

    :param folder: of the report; ``None`` if there is none. ``plan_folder`` of the plan, if that is elsewhere.
    :param workload_argument: the workload as a user types it; ``None`` for its name.
    :param verbose: with every considered fix and its reason.
    """
    change, words = optimization_change(found), prediction_words(found)
    steps = [step for step in step_rows(found.steps) if step.status != "skipped"]
    rounds = f"final replay of {counted(found.rounds, 'round')}" if found.rounds else "no final replay"
    parts: list[RenderableType] = [title_line(found.workload, found.device, rounds, "")]
    parts += [*warnings(found.notes), Text("")]
    parts += [_change_table(change, verbose=verbose)] if found.rounds else [_before_table(change)]
    parts += _tried(steps, verbose=verbose)
    parts += _front(front_rows(found), key_label(found.judged), verbose=verbose)
    parts += [Text(words, style="dim")] if words and verbose else []
    parts += _plan(found)
    parts += _untried(untried_of(found.steps), verbose=verbose)
    kept = plan_folder or folder
    path = found.plan if kept is None else str(kept / found.plan)
    answer = optimization_answer(found, workload=workload_argument or found.workload, plan=path)
    return Portable(Group(*parts, *answer_block(answer, folder=folder)))


def _change_table(change: Change, *, verbose: bool) -> FittedTable:
    columns = [
        Column("", right=False),
        *(Column(str(safe(label, limit=24))) for label in (change.before.label, change.after.label)),
        Column("ratio"),
        Column("95 % interval", given_up=1),
    ]
    rows: list[Sequence[Cell]] = []
    for row in change.rows():
        if not verbose and row.name.startswith("p9") and not row.judged and row.name[:4] != "p99.":
            continue
        note = row.note if row.ratio is None or row.ratio.ci95 is not None else ""
        after = Text(row.after, style="red" if row.worse else "")
        shown = "" if row.ratio is None else _ratio(row.ratio)
        rows.append([Text(row.name, style="bold" if row.judged else ""), row.before, after, shown, note])
    return FittedTable(columns, rows)


def _before_table(change: Change) -> FittedTable:
    """The baseline alone, if there was no final replay."""
    rows = [[row.name, row.before] for row in change.rows()]
    return FittedTable([Column("baseline", right=False), Column("")], rows)


def _ratio(step: Ratio) -> Text:
    return Text(ratio(step.value), style=SEVERITY_STYLE[step.tone] if step.tone else "dim")


def _tried(steps: Sequence[StepRow], *, verbose: bool) -> Iterator[RenderableType]:
    """The fixes that were replayed or kept; the number of the others."""
    shown = [step for step in steps if verbose or step.p99.value is not None or step.status in ("kept", "rejected")]
    rest = len(steps) - len(shown)
    if not steps:
        return
    yield heading("What was tried")
    if shown:
        columns = [Column("fix", right=False), Column("status", right=False), Column("mean", given_up=2)]
        columns += [Column("p99"), Column("p99 95 %", given_up=1), Column("p99 ms", given_up=3)]
        rows: list[Sequence[Cell]] = [
            [
                safe(step.fix, "bold" if step.status == "kept" else "", limit=60),
                safe(step.words, SEVERITY_STYLE[step.severity], limit=24),
                ratio(step.mean.value),
                _ratio(step.p99),
                interval(step.p99.ci95),
                significant(step.p99_ms),
            ]
            for step in shown
        ]
        yield FittedTable(columns, rows)
    if rest:
        yield Text(f"{counted(rest, 'more fix')} not replayed: no gain predicted or measured; -v lists them", "dim")
    for step in shown:
        yield from _step_words(step, verbose=verbose)


def _front(rows: Sequence[FrontRow], name: str, *, verbose: bool) -> Iterator[RenderableType]:
    """Configurations by accuracy, latency and throughput; without ``verbose`` only the best.

    :param name: of the judged latency.
    """
    shown = rows if verbose else [row for row in rows if row.best or row.is_plan or not row.fixes][:_FRONT]
    if len(rows) < 3:
        return
    yield heading("Configurations, fastest first (*: replayed, and no other is better in all)")
    columns = [
        Column("", right=False),
        Column(name),
        Column("95 %", given_up=3),
        Column("predicted"),
        Column("accuracy"),
        Column("served", given_up=2),
        Column("compute", given_up=1),
    ]
    lines: list[Sequence[Cell]] = []
    for row in shown:
        cells = [cell.replace("×", "x") for cell in row.cells()]
        lines.append([safe(f"{'*' if row.best else ' '} {row.label}", limit=400), *cells])
    yield FittedTable(columns, lines)
    if rest := len(rows) - len(shown):
        yield Text(f"{rest} more on the page and with -v", "dim")


def _plan(found: Optimization) -> Iterator[RenderableType]:
    rows = setting_rows(found)
    if not rows:
        return
    yield heading("The plan changes")
    for key, old, new in rows:
        arrow = f"{old} -> {new}" if found.changes is not None else new
        yield Text.assemble(safe(key, "bold", limit=80), "  ", safe(arrow, limit=400))


def _untried(untried: Untried, *, verbose: bool) -> Iterator[Text]:
    """The number of fixes that were not tried; with ``verbose`` each with its reason."""
    if not untried.reasons:
        return
    more = "" if verbose else "; -v lists them"
    yield Text(f"\nNot tried: {counted(len(untried.reasons), 'fix')} ({untried.words}){more}")
    if verbose:
        for fix, reason in untried.reasons.items():
            yield Text.assemble(safe(fix, "bold", limit=60), ": ", safe(reason))


def _step_words(step: StepRow, *, verbose: bool) -> Iterator[Text]:
    """A step's reason and figures; a step that shares the replays of the one above only refers to them."""
    line = safe(step.fix, "bold", limit=60)
    if step.reason:
        line.append(": ", "")
        line.append_text(Text("in the same replays", "dim") if step.together else safe(step.reason))
    predicted, outcome = step.predicted_p99_ms, step.p99_ms
    if predicted is not None and outcome is not None and verbose:
        line.append(f"; p99 predicted {significant(predicted)} ms, measured {significant(outcome)} ms", style="dim")
    if not step.together and step.accuracy is not None:
        line.append(f"; accuracy {significant(step.accuracy)}", style="dim")
    if step.reason and (verbose or not step.together):
        yield line
    if step.verified and verbose:
        yield Text.assemble(("  verified: ", "dim"), safe(step.verified, "dim"))
