"""What a terminal shows of a diagnosis: the verdict in a sentence, then figures, then what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from latfix.cause_catalogue import UNEXPLAINED
from latfix.formatting import (
    LATENCY_KEYS,
    NONE,
    count,
    finite,
    interval,
    interval_bounds,
    key_label,
    milliseconds,
    percentile_label,
    rate,
    sentence,
    share,
    significant,
    tail_words,
)
from latfix.reports.cause_rows import OTHERS, CauseRow, cause_rows, cause_total_ms
from latfix.reports.escaping import visible
from latfix.reports.next_commands import optimize_command
from latfix.reports.terminal.comparison import render_comparison, render_optimization
from latfix.reports.terminal.over_time import render_windows
from latfix.reports.terminal.widgets import (
    OWN_STYLE,
    QUEUE_STYLE,
    SEVERITY_STYLE,
    Bar,
    Portable,
    heading,
    plain_table,
    safe,
    warnings,
)
from latfix.reports.terminal.workers import render_workers
from latfix.reports.vocabulary import cause_words, diagnosis_severity
from latfix.results.diagnosis import CauseSummary, Diagnosis
from latfix.stages import STAGES

__all__ = ["render_comparison", "render_diagnosis", "render_optimization", "render_tail"]

_WIDE = 100
_LISTED = 8
_ADVISED = 4
#: Share of the tail below which a named cause is mentioned but not explained.
_WORTH_ACTING = 0.05


def render_diagnosis(
    diagnosis: Diagnosis, *, folder: Path | None, workload_argument: str | None = None
) -> RenderableType:
    """The diagnosis for an on-call engineer, at any width from about 60 columns.

    :param folder: where the run and its report were written; ``None`` where nothing was kept.
    :param workload_argument: what to type for the workload (see
        :func:`latfix.reports.next_commands.workload_argument`); its own name where it is ``None``.
    """
    parts: list[RenderableType] = [_verdict(diagnosis)]
    parts += warnings(diagnosis.notes)
    parts += [Text(""), _latency_table(diagnosis)]
    if any(diagnosis.requests.values()):
        parts += [_tail_heading(diagnosis), _CauseTable(diagnosis), *render_windows(diagnosis), *_stages(diagnosis)]
        parts += render_workers(diagnosis)
    parts += _what_to_do(diagnosis, workload_argument or diagnosis.workload)
    parts += [Text(""), *_small_print(diagnosis, folder)]
    return Portable(Group(*parts))


def render_tail(diagnosis: Diagnosis) -> RenderableType:
    """The verdict, its warnings and where the tail comes from: the diagnosis on the way to something else."""
    parts: list[RenderableType] = [_verdict(diagnosis), *warnings(diagnosis.notes)]
    if any(diagnosis.requests.values()):
        parts += [_tail_heading(diagnosis), _CauseTable(diagnosis)]
    return Portable(Group(*parts))


def _verdict(diagnosis: Diagnosis) -> Text:
    style = SEVERITY_STYLE[diagnosis_severity(diagnosis)]
    return Text.assemble(
        safe(diagnosis.workload, "bold", limit=60),
        (" on ", "dim"),
        safe(diagnosis.device, limit=40),
        (": ", "dim"),
        safe(diagnosis.sentence, f"bold {style}", limit=600),
    )


def _latency_table(diagnosis: Diagnosis) -> RenderableType:
    table = plain_table()
    table.add_column("latency, ms", no_wrap=True)
    for key in LATENCY_KEYS:
        table.add_column(key_label(key), justify="right", no_wrap=True)
    bounds = [interval_bounds(diagnosis.latency_ci95_ms.get(key)) for key in LATENCY_KEYS]
    focus = percentile_label(diagnosis.percentile)
    values = [
        Text(significant(diagnosis.latency_ms.get(key)), style="bold" if key_label(key) == focus else "")
        for key in LATENCY_KEYS
    ]
    table.add_row("", *values)
    if any(bounds):
        table.add_row(Text("95 % from", style="dim"), *[Text(significant(b and b[0]), style="dim") for b in bounds])
        table.add_row(Text("95 % to", style="dim"), *[Text(significant(b and b[1]), style="dim") for b in bounds])
    return table


def _tail_heading(diagnosis: Diagnosis) -> Text:
    return Text.assemble(
        heading("Where the tail comes from"),
        "   ",
        ("█", OWN_STYLE),
        (" own path  ", "dim"),
        ("▒", QUEUE_STYLE),
        (" through the queue", "dim"),
        f"\nThe {tail_words(diagnosis.percentile)} of requests take {milliseconds(diagnosis.excess_ms)} more than a "
        f"quiet request ({milliseconds(diagnosis.reference_ms)}):",
    )


@dataclass(frozen=True, slots=True)
class _CauseTable:
    """Causes as bars of milliseconds; columns that do not fit are left to the page."""

    diagnosis: Diagnosis

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= _WIDE
        rows = cause_rows(self.diagnosis, limit=_LISTED)
        scale = max((abs(row.own_ms) + abs(row.propagated_ms) for row in rows), default=0.0) or 1.0
        table = plain_table()
        table.add_column("cause", overflow="fold", min_width=12, max_width=28)
        table.add_column("", ratio=1, min_width=6)
        table.add_column("tail ms", justify="right", no_wrap=True)
        table.add_column("95 % interval", justify="right", no_wrap=True)
        if wide:
            table.add_column("own ms", justify="right", no_wrap=True)
            table.add_column("queue ms", justify="right", no_wrap=True)
        table.add_column("share", justify="right", no_wrap=True)
        table.add_column("known by", no_wrap=True)
        for row in rows:
            both = [significant(row.own_ms), significant(row.propagated_ms)] if wide else []
            table.add_row(
                _cause_name(row),
                Bar([(row.own_ms / scale, "█", OWN_STYLE), (row.propagated_ms / scale, "▒", QUEUE_STYLE)]),
                significant(row.tail_ms),
                interval(row.ci95_ms),
                *both,
                share(row.share),
                Text(row.evidence_class, style="dim"),
            )
        table.add_section()
        total = cause_total_ms(rows)
        table.add_row(
            "sum = excess",
            "",
            Text(significant(total), style="bold"),
            "",
            *(["", ""] if wide else []),
            share(total / self.diagnosis.excess_ms if (finite(self.diagnosis.excess_ms) or 0) > 0 else None),
            "",
        )
        table.expand = True
        yield table


def _cause_name(row: CauseRow) -> Text:
    if row.cause == OTHERS:
        return Text(f"{row.count} smaller causes", style="dim")
    return safe(row.cause, "bold" if row.named else "dim" if row.is_unexplained else "", limit=60)


def _stages(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    used = [s for s in STAGES if any(finite(v) for v in diagnosis.stages_ms.get(s, {}).values())]
    if not used:
        return
    yield heading("Stages, ms")
    table = plain_table()
    table.expand = True
    table.add_column("stage", no_wrap=True)
    table.add_column("", ratio=1, min_width=6)
    for key in ("mean", "p50", "p99"):
        table.add_column(key, justify="right", no_wrap=True)
    table.add_column("quiet", justify="right", no_wrap=True)
    scale = max((finite(diagnosis.stages_ms[s].get("p99")) or 0.0 for s in used), default=0.0) or 1.0
    for stage in used:
        row = diagnosis.stages_ms[stage]
        table.add_row(
            stage,
            Bar([((finite(row.get("p99")) or 0.0) / scale, "█", "cyan")]),
            *[significant(row.get(key)) for key in ("mean", "p50", "p99", "reference")],
        )
    yield table
    empty = [stage for stage in STAGES if stage not in used]
    if empty:
        yield Text(f"bar: p99; no time in {', '.join(empty)}", style="dim")


def _what_to_do(diagnosis: Diagnosis, workload: str) -> Iterator[RenderableType]:
    yield heading("What to do")
    named = [entry for entry in diagnosis.causes if entry.named and entry.cause != UNEXPLAINED]
    if not any(diagnosis.requests.values()):
        yield Text("No request was recorded: there is nothing to act on. Replay the traffic again.")
        return
    if not diagnosis.requests.get("ok"):
        yield Text("No request ended ok: mend the errors first, then diagnose again.")
        return
    if named:
        yield from _advice(named, diagnosis)
    if diagnosis.verdict == "inconclusive":
        yield Text("Too much of the tail is unexplained to name its cause: record a longer run.")
    elif not named:
        yield Text("Nothing stands out: no cause clears the naming threshold.")
    if any(entry.fixes for entry in named):
        yield Text.assemble("Try the fixes and measure them:  ", (_command(workload), "bold cyan"))


def _command(workload: str) -> str:
    return visible(optimize_command(workload), limit=400)


def _advice(named: list[CauseSummary], diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """The causes worth acting on, the largest first; the small ones on one line."""
    worth = [entry for entry in named if (finite(entry.tail_share) or 0.0) >= _WORTH_ACTING][:_ADVISED] or named[:1]
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for position, entry in enumerate(worth, start=1):
        table.add_row(f"{position}.", _cause_advice(entry, diagnosis))
    yield table
    rest = [entry for entry in named if entry not in worth]
    if rest:
        listed = ", ".join(f"{entry.cause} {milliseconds(entry.tail_ms)}" for entry in rest)
        yield Text.assemble(("also: ", "dim"), safe(listed, "dim", limit=400))


def _cause_advice(entry: CauseSummary, diagnosis: Diagnosis) -> Text:
    words = cause_words(entry.cause)
    text = Text.assemble(
        safe(entry.cause, "bold"), f": {words}. " if words else ": ", safe(sentence(entry.evidence), limit=500)
    )
    key = f"p{diagnosis.percentile:g}".replace(".", "_")
    predicted = finite(entry.whatif_ms.get(key))
    if predicted is not None:
        now = significant(diagnosis.latency_ms.get(key))
        text.append(f"\nwithout it {key_label(key)} {now} -> {significant(predicted)} ms (predicted)")
    if entry.fixes:
        text.append("; fixes: " if predicted is not None else "\nfixes: ")
        text.append_text(safe(", ".join(entry.fixes), "cyan"))
    elif predicted is not None:
        text.append("; latfix has no fix for it")
    return text


def _small_print(diagnosis: Diagnosis, folder: Path | None) -> Iterator[Text]:
    counts = ", ".join(f"{count(diagnosis.requests.get(k, 0))} {k}" for k in ("ok", "error", "timeout", "shed"))
    failed = any(diagnosis.requests.get(name, 0) for name in ("error", "timeout", "shed"))
    yield Text(f"requests    {counts}; {rate(diagnosis.throughput_rps)}", style="yellow" if failed else "dim")
    lag = diagnosis.dispatch_ms
    if any(finite(lag.get(key)) is not None for key in ("p50", "p99", "max")):
        figures = ", ".join(f"{key} {significant(lag.get(key))}" for key in ("p50", "p99", "max"))
        yield Text(f"replay lag  {figures} ms", style="dim" if diagnosis.trustworthy else "yellow")
    cost = diagnosis.overhead
    micros, core = significant(cost.get("per_request_us")), share(cost.get("core_share"))
    if (micros, core) != (NONE, NONE):
        yield Text(f"latfix      {micros} µs a request, {core} of a core", style="dim")
    if diagnosis.partial:
        yield Text("partial     the run did not reach its end; figures cover what was recorded", style="yellow")
    if folder is not None:
        yield Text.assemble(("report      ", "dim"), safe(folder / "report.html", limit=1000))
