"""Terminal table of ``latfix backends``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from latfix.formatting import NONE, count, counted, interval, listed, ratio, seconds, significant, visible
from latfix.reports.terminal.widgets import Cell, Column, FittedTable, Portable, heading, safe, warnings
from latfix.results.answer_check import BackendRow, BackendsTable, Estimate

#: Differences above this share of the largest number are more than the rounding of reordered sums.
_ROUNDING = 1e-3


def render_backends(found: BackendsTable) -> RenderableType:
    """The table, the fastest, why backends are missing, how answers were compared, and how it was measured."""
    if not found.backends:
        return Portable(safe(f"{found.workload}: no backend is listed", "bold"))
    first, *others = [row for row in found.backends if not row.missing] or found.backends[:1]
    rows: list[list[Cell]] = []
    missing: dict[str, list[str]] = {}
    for row in found.backends:
        if row.missing:
            missing.setdefault(row.missing, []).append(row.backend)
            continue
        rates, ratios = (row.single_rps, row.batched_rps), (row.single_speedup, row.batched_speedup)
        rows.append([safe(row.backend), seconds(row.load_s), *map(_rate, rates)])
        if row.convert_s is not None or any(ratios):
            converted = "" if row.convert_s is None else f"* {seconds(row.convert_s)}"
            rows.append(["", Text(converted, style="dim"), *map(_ratio, ratios)])
    batched = f"in batches of {found.batch_size}"
    columns = [Column("backend", right=False), Column("load", given_up=1)]
    columns += [Column("requests, one at a time"), Column(f"requests, {batched}")]
    slower = [row.backend for row in found.backends if _slower(row)]
    parts: list[RenderableType] = [
        safe(f"{found.workload}: its model in every backend that can run it here", "bold"),
        *warnings([f"The machine was disturbed: {found.disturbed}."] if found.disturbed else []),
        Text(),
        FittedTable(columns, rows),
        Text(),
        safe(_fastest("one at a time", first, others, [row.single_speedup for row in others]), "bold"),
        safe(_fastest(batched, first, others, [row.batched_speedup for row in others]), "bold"),
    ]
    if slower:
        parts += [safe(f"{batched}: fewer requests than one at a time with {listed(slower)}", "bold", limit=400)]
    if others:
        parts += [heading(f"Answers, compared with those of {visible(first.backend)}")]
        parts += [Text.assemble(safe(f"  {row.backend}: "), _answers(row)) for row in others]
    if missing:
        parts += [heading("Not measured")]
    for why, names in missing.items():
        parts.append(Text.assemble(safe(f"  {', '.join(names)}: "), safe(why, "dim", limit=400)))
    if found.answers is not None:
        parts += [Text.assemble("\n", safe(line, "bold yellow", limit=600)) for line in found.answers.faults()]
        parts += [safe(found.answers.judged(), "dim", limit=600)]
    parts += [Text(""), safe(_how(found), "dim", limit=1000)]
    parts += [Text.assemble("  input ", safe(line)) for line in found.inputs]
    return Portable(Group(*parts))


def _slower(row: BackendRow) -> bool:
    """True if it certainly serves fewer requests in batches than one at a time."""
    alone, together = ((rate.ci95 if rate is not None else None) for rate in (row.single_rps, row.batched_rps))
    return alone is not None and together is not None and together[1] < alone[0]


def _fastest(how: str, first: BackendRow, others: Sequence[BackendRow], ratios: Sequence[Estimate | None]) -> str:
    """The backend with the highest rate, if its interval is above the first's and its answers agree."""
    known = [(found.value or 0.0, row, found) for row, found in zip(others, ratios, strict=True) if found is not None]
    agreeing = [each for each in known if (each[1].agreeing or 0) >= (each[1].compared or 0)]
    value, row, found = max(agreeing, key=lambda each: each[0], default=(0.0, first, None))
    if found is None or value <= 1:
        return f"{how}: no backend with the same answers is faster than {first.backend}"
    if (found.ci95 or (0.0, 0.0))[0] <= 1:
        return f"{how}: undecided, {row.backend} may be the fastest, {ratio(value)} {interval(found.ci95)}"
    return f"{how}: fastest is {row.backend}, {ratio(value)} {interval(found.ci95)} of {first.backend}"


def _rate(estimate: Estimate | None) -> str:
    return NONE if estimate is None else f"{significant(estimate.value)}/s {interval(estimate.ci95)}"


def _ratio(speedup: Estimate | None) -> Text:
    if speedup is None:
        return Text()
    low, high = speedup.ci95 or (1.0, 1.0)
    return Text(f"{ratio(speedup.value)} {interval(speedup.ci95)}", "green" if low > 1 else "red" if high < 1 else "")


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
    return (
        f"{count(found.requests)} requests of the traffic in {count(rounds)} alternating rounds, timing only the "
        f"model's call; {counted(found.threads, 'thread')}; {versions}; 95 % intervals; load: time of the first load "
        "in a process that has imported torch" + ("; * one-time conversion before it" if starred else "")
    )
