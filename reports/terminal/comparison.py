"""What a terminal shows of an optimization or a comparison: the verdict, before and after, what each fix did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from latfix.formatting import LATENCY_KEYS, count, finite, interval, key_label, rate, ratio, significant
from latfix.reports.before_after import (
    STATUSES,
    Change,
    Ratio,
    comparison_change,
    items,
    mapping,
    pairing_words,
    prediction_words,
    read_change,
    read_ratio,
)
from latfix.reports.escaping import visible
from latfix.reports.next_commands import replay_command
from latfix.reports.terminal.widgets import SEVERITY_STYLE, Portable, heading, plain_table, safe, warnings
from latfix.reports.vocabulary import STEP_STATUS, change_severity, verdict_words
from latfix.results.comparison import Comparison
from latfix.results.skipped_fixes import Untried, read_untried

#: So many fixes that were not tried are shown with a reason each; beyond that they would hide what was.
_FEW = 8
#: Characters of a list of their names: more than the whole catalogue takes.
_LISTED = 2000


def render_comparison(comparison: Comparison) -> RenderableType:
    """Two runs side by side, the verdict first."""
    change = comparison_change(comparison)
    return Portable(
        Group(
            _verdict(str(comparison.verdict), change),
            *warnings(comparison.notes),
            Text(""),
            _change_table(change),
            Text(pairing_words(comparison), style="dim"),
        )
    )


def render_optimization(
    document: Mapping[str, Any], *, folder: Path | None, workload_argument: str | None = None
) -> RenderableType:
    """``optimization.json`` for a person: verdict, before and after, each fix with its reason, gates, plan.

    :param folder: where plan, records and report were written; ``None`` where nothing was kept.
    :param workload_argument: what to type for the workload; its own name where it is ``None``.
    """
    change = read_change(document)
    parts: list[RenderableType] = [
        Text.assemble(
            safe(document.get("workload", ""), "bold", limit=60),
            (" on ", "dim"),
            safe(document.get("device", ""), limit=40),
            (": ", "dim"),
            _verdict(str(document.get("verdict", "")), change),
        )
    ]
    parts += warnings(str(note) for note in items(document.get("notes")))
    parts += [Text(""), _change_table(change)]
    parts += _steps(document)
    parts += _gates(document)
    parts += _next(document, folder, workload_argument)
    return Portable(Group(*parts))


def _verdict(verdict: str, change: Change) -> Text:
    style = f"bold {SEVERITY_STYLE[change_severity(verdict)]}"
    return Text(f"{verdict_words(verdict)}: {change.sentence()}", style=style)


def _change_table(change: Change) -> RenderableType:
    table = plain_table()
    table.add_column("", no_wrap=True)
    for label in (change.before.label, change.after.label):
        table.add_column(safe(label, limit=24), justify="right", no_wrap=True)
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("95 % interval", justify="right", no_wrap=True)
    before, after = change.before, change.after
    for key in LATENCY_KEYS:
        step = change.ratio(key)
        table.add_row(
            Text(f"{key_label(key)}, ms", style="bold" if key == change.judged else ""),
            significant(before.latency_ms.get(key)),
            significant(after.latency_ms.get(key)),
            Text(ratio(step.value), style=_ratio_style(step)),
            interval(step.ci95),
        )
    table.add_row("throughput", rate(before.throughput_rps), rate(after.throughput_rps), "", "")
    for name in STATUSES:
        style = "red" if name != "ok" and after.requests.get(name, 0) > before.requests.get(name, 0) else ""
        table.add_row(
            Text(f"requests {name}" if name == "ok" else f"  {name}"),
            count(before.requests.get(name, 0)),
            Text(count(after.requests.get(name, 0)), style=style),
            "",
            "",
        )
    if before.accuracy is not None or after.accuracy is not None:
        limit = "" if change.accuracy_limit is None else f"limit {significant(change.accuracy_limit)}"
        table.add_row("accuracy", significant(before.accuracy), significant(after.accuracy), "", limit)
    return table


def _ratio_style(step: Ratio) -> str:
    if step.value is None or not step.decisive:
        return "dim"
    return "green" if step.value < 1 else "red"


def _steps(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    steps = [mapping(step) for step in items(document.get("steps"))]
    tried = [step for step in steps if step.get("status") != "skipped"]
    if tried:
        yield heading("What was tried")
        yield from _tried(tried)
    words = prediction_words(document)
    if words:
        yield Text(words, style="dim")
    yield from _untried(read_untried(steps))


def _tried(steps: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    table = plain_table()
    table.add_column("fix", overflow="fold", min_width=22, max_width=34)
    table.add_column("status", no_wrap=True)
    table.add_column("mean", justify="right", no_wrap=True)
    table.add_column("p99", justify="right", no_wrap=True)
    table.add_column("p99 95 %", justify="right", no_wrap=True)
    table.add_column("p99 ms", justify="right", no_wrap=True)
    for step in steps:
        words, severity = STEP_STATUS.get(str(step.get("status")), (str(step.get("status", "")), "warn"))
        ratios = mapping(step.get("ratio"))
        p99 = read_ratio(ratios.get("p99"))
        table.add_row(
            safe(step.get("fix", ""), "bold" if step.get("status") == "kept" else "", limit=60),
            safe(words, SEVERITY_STYLE[severity], limit=24),
            ratio(read_ratio(ratios.get("mean")).value),
            Text(ratio(p99.value), style=_ratio_style(p99)),
            interval(p99.ci95),
            significant(step.get("p99_ms")),
        )
    yield table
    yield Text("")
    said: tuple[object, object] = (None, None)
    for step in steps:
        shared = (step.get("together"), step.get("reason"))
        yield from _step_words(step, repeated=bool(step.get("together")) and shared == said)
        if step.get("together"):
            said = shared


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


def _step_words(step: Mapping[str, Any], *, repeated: bool) -> Iterator[Text]:
    """What there is to say of a step; ``repeated`` where its replays are those of the step above."""
    line = Text.assemble(safe(step.get("fix", ""), "bold", limit=60))
    reason, evidence = step.get("reason"), step.get("verified")
    if reason:
        line.append_text(Text.assemble(": ", ("in the same replays", "dim") if repeated else safe(reason)))
    adds = read_ratio(mapping(step.get("adds")).get("p99"))
    if adds.value is not None:
        line.append(f"; beside the others p99 {adds.words()}", style="dim")
    predicted, outcome = finite(step.get("predicted_p99_ms")), finite(step.get("p99_ms"))
    if predicted is not None and outcome is not None:
        line.append(f"; p99 predicted {significant(predicted)} ms, measured {significant(outcome)} ms", style="dim")
    if not repeated and finite(step.get("accuracy")) is not None:
        line.append(f"; accuracy {significant(step.get('accuracy'))}", style="dim")
    if reason or evidence or predicted is not None or adds.value is not None:
        yield line
    if evidence:
        yield Text.assemble(("  verified: ", "dim"), safe(evidence, "dim"))


def _gates(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    gates = [mapping(gate) for gate in items(document.get("gates"))]
    if not gates:
        return
    yield heading("Gates")
    for gate in gates:
        passed = gate.get("passed")
        words, style = ("cannot tell", "yellow")
        if isinstance(passed, bool):
            words, style = ("passed", "green") if passed else ("FAILED", "bold red")
        yield Text.assemble(
            (f"{words:<12}", style), safe(gate.get("gate", "")), (f"   value {significant(gate.get('value'))}", "dim")
        )
        if gate.get("reason"):
            yield Text.assemble("  ", safe(gate["reason"], "dim"))


def _next(document: Mapping[str, Any], folder: Path | None, workload: str | None) -> Iterator[RenderableType]:
    plan = document.get("plan")
    if plan:
        path = str(folder / str(plan)) if folder is not None else str(plan)
        command = replay_command(workload or str(document.get("workload", "")), path)
        yield heading("Plan")
        yield Text.assemble(safe(path, limit=1000))
        yield Text.assemble("Replay with it:  ", (visible(command, limit=1200), "bold cyan"))
    if folder is not None:
        yield Text.assemble(("report           ", "dim"), safe(folder / "report.html", limit=1000))
