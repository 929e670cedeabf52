"""Terminal table of ``latfix backends``."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from latfix.formatting import NONE, count, interval, ratio, significant
from latfix.reports.terminal.widgets import Portable, plain_table, safe
from latfix.results.answer_check import BackendRow, BackendsTable, Estimate

#: Differences above this share of the largest number are more than the rounding of reordered sums.
_ROUNDING = 1e-3


def render_backends(found: BackendsTable) -> RenderableType:
    """The table, then why backends are missing, how answers were compared, and how it was measured."""
    first = found.backends[0].backend
    table = plain_table(title=f"{found.workload}: its model in every backend that can run it here")
    for name in ("backend", "load", "one at a time", f"in batches of {found.batch_size}", "answers"):
        table.add_column(name, justify="left" if name in ("backend", "answers") else "right", overflow="fold")
    missing: dict[str, list[str]] = {}
    for row in found.backends:
        if row.missing:
            missing.setdefault(row.missing, []).append(row.backend)
            continue
        table.add_row(
            safe(row.backend),
            _seconds(row),
            _rate(row.single_rps, row.single_speedup),
            _rate(row.batched_rps, row.batched_speedup),
            Text("the reference", style="dim") if row.backend == first else _answers(row),
        )
    parts: list[RenderableType] = [table]
    parts += [Text.assemble(f"  {', '.join(names)}: ", safe(why, "dim", limit=400)) for why, names in missing.items()]
    if found.answers is not None:
        parts += [Text.assemble("\n", safe(line, "bold yellow", limit=600)) for line in found.answers.faults()]
        parts += [safe(found.answers.judged(), "dim", limit=600)]
    parts += [Text(f"\n{_how(found)}", style="dim")]
    parts += [Text.assemble("  input ", safe(line)) for line in found.inputs]
    return Portable(Group(*parts))


def _seconds(row: BackendRow) -> Text:
    text = Text(f"{significant(row.load_s)} s")
    if row.convert_s is not None:
        text.append(f"\n* {significant(row.convert_s)} s", style="dim")
    return text


def _rate(estimate: Estimate | None, speedup: Estimate | None) -> Text:
    text = Text(NONE if estimate is None else f"{significant(estimate.value)}/s {interval(estimate.ci95)}")
    if speedup is not None:
        low, high = speedup.ci95 or (1.0, 1.0)
        style = "green" if low > 1 else "red" if high < 1 else ""
        text.append(f"\n{ratio(speedup.value)} {interval(speedup.ci95)}", style=style)
    return text


def _answers(row: BackendRow) -> Text:
    difference = (
        "differ in shape, kind or whole numbers"
        if row.deviation is None
        else f"differ by {significant(row.deviation, 2)} of the largest number"
    )
    if (row.agreeing or 0) < (row.compared or 0):
        return Text(f"{row.agreeing} of {count(row.compared)} agree; {difference}", style="bold red")
    style = "yellow" if row.deviation is None or row.deviation > _ROUNDING else ""
    return Text(f"all {count(row.compared)} agree; {difference}", style=style)


def _how(found: BackendsTable) -> str:
    rounds = max((row.rounds or 0 for row in found.backends), default=0)
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    starred = any(row.convert_s is not None and not row.missing for row in found.backends)
    threads = "1 thread" if found.threads == 1 else f"{count(found.threads)} threads"
    return (
        f"{count(found.requests)} requests of the traffic in {count(rounds)} alternating rounds, timing only the "
        f"model's call; {threads}; {versions}; 95 % intervals; load: time of the first load in a "
        "process that has imported torch" + ("; * one-time conversion before it" if starred else "")
    )
