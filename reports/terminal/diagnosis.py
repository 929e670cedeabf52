"""What a terminal shows of a diagnosis: the verdict in a sentence, then figures, then what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from latfix.formatting import (
    LATENCY_KEYS,
    NONE,
    count,
    finite,
    interval,
    interval_bounds,
    key_label,
    milliseconds,
    rate,
    share,
    significant,
    visible,
)
from latfix.reports.diagnosis_rows import (
    FAILED_STATUSES,
    CauseAdvice,
    active_causes,
    cause_advice,
    cause_rows,
    cause_total,
    closing_advice,
    excess_words,
    focus_key,
    read_words,
    weight_words,
)
from latfix.reports.next_commands import optimize_command
from latfix.reports.terminal.comparison import render_comparison, render_optimization
from latfix.reports.terminal.widgets import (
    SEVERITY_STYLE,
    Bar,
    Portable,
    Sparkline,
    add_figures,
    heading,
    own_and_queue,
    pair_bar,
    plain_table,
    safe,
    title_line,
    warnings,
)
from latfix.reports.vocabulary import diagnosis_severity
from latfix.results.diagnosis import Activity, Diagnosis, Window
from latfix.stages import STAGES

__all__ = ["render_comparison", "render_diagnosis", "render_optimization", "render_tail"]

_WIDE = 100
_LISTED = 8
_ADVISED = 4
#: Share of the tail below which a named cause is mentioned but not explained.
_WORTH_ACTING = 0.05
_ACTIVE = 4
_WORKERS = 8
_UNITS = 4


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
    if diagnosis.is_timed and not diagnosis.is_single:
        parts += [Text(""), _latency_table(diagnosis)]
    if diagnosis.is_timed and any(diagnosis.requests.values()):
        parts += [_tail_heading(diagnosis), _CauseTable(diagnosis), *_over_time(diagnosis), *_stages(diagnosis)]
        parts += _workers(diagnosis)
    parts += _units(diagnosis)
    replayed = diagnosis.source is None or diagnosis.source.kind == "replay"
    parts += _what_to_do(diagnosis, workload_argument or diagnosis.workload if replayed else "")
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
    return title_line(diagnosis.workload, diagnosis.device, diagnosis.sentence, style)


def _latency_table(diagnosis: Diagnosis) -> RenderableType:
    table = plain_table()
    table.add_column("latency, ms", no_wrap=True)
    add_figures(table, *map(key_label, LATENCY_KEYS))
    bounds = [interval_bounds(diagnosis.latency_ci95_ms.get(key)) for key in LATENCY_KEYS]
    focus = focus_key(diagnosis)
    values = [
        Text(significant(diagnosis.latency_ms.get(key)), style="bold" if key == focus else "") for key in LATENCY_KEYS
    ]
    table.add_row("", *values)
    if any(bounds):
        table.add_row(Text("95 % from", style="dim"), *[Text(significant(b and b[0]), style="dim") for b in bounds])
        table.add_row(Text("95 % to", style="dim"), *[Text(significant(b and b[1]), style="dim") for b in bounds])
    return table


def _tail_heading(diagnosis: Diagnosis) -> Text:
    title = "Where the time goes" if diagnosis.is_single else "Where the tail comes from"
    shown = own_and_queue(title) if diagnosis.unit == "request" else heading(title)
    return shown.append(f"\n{excess_words(diagnosis)}:", style="not bold")


@dataclass(frozen=True, slots=True)
class _CauseTable:
    """Causes as bars of milliseconds; columns that do not fit are left to the page."""

    diagnosis: Diagnosis

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        single = self.diagnosis.is_single
        wide = options.max_width >= _WIDE and self.diagnosis.unit == "request"
        rows = cause_rows(self.diagnosis, limit=_LISTED)
        scale = max((abs(row.own_ms) + abs(row.propagated_ms) for row in rows), default=0.0) or 1.0
        table = plain_table()
        table.add_column("cause", overflow="fold", min_width=12, max_width=28)
        table.add_column("", ratio=1, min_width=6)
        add_figures(
            table,
            "ms" if single else "tail ms",
            *([] if single else ["95 % interval"]),
            *(["own ms", "queue ms"] if wide else []),
            "share",
        )
        table.add_column("known by", no_wrap=True)
        for row in rows:
            style = "bold" if row.named else "dim" if row.is_unexplained or not row.cause else ""
            both = [significant(row.own_ms), significant(row.propagated_ms)] if wide else []
            table.add_row(
                safe(row.label, style, limit=60),
                pair_bar(row.own_ms, row.propagated_ms, scale),
                significant(row.tail_ms),
                *([] if single else [interval(row.ci95_ms)]),
                *both,
                share(row.share),
                Text(row.evidence_class, style="dim"),
            )
        table.add_section()
        total, whole = cause_total(rows, self.diagnosis)
        blank = ["", ""] if wide else []
        table.add_row(
            f"sum = {self.diagnosis.unit if single else 'excess'}",
            "",
            Text(significant(total), style="bold"),
            *([] if single else [""]),
            *blank,
            share(whole),
            "",
        )
        table.expand = True
        yield table


def _stages(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    known = STAGES if set(diagnosis.stages_ms) <= set(STAGES) else tuple(diagnosis.stages_ms)
    used = [s for s in known if any(finite(v) for v in diagnosis.stages_ms.get(s, {}).values())]
    if not used:
        return
    yield heading("Stages, ms")
    table = plain_table()
    table.expand = True
    table.add_column("stage", no_wrap=True)
    table.add_column("", ratio=1, min_width=6)
    figures = ("mean",) if diagnosis.is_single else ("mean", "p50", "p99", "reference")
    add_figures(table, *("ms" if diagnosis.is_single else "quiet" if key == "reference" else key for key in figures))
    scale = max((finite(diagnosis.stages_ms[s].get("p99")) or 0.0 for s in used), default=0.0) or 1.0
    for stage in used:
        row = diagnosis.stages_ms[stage]
        table.add_row(
            stage,
            Bar([((finite(row.get("p99")) or 0.0) / scale, "█", "cyan")]),
            *[significant(row.get(key)) for key in figures],
        )
    yield table
    empty = [stage for stage in known if stage not in used]
    if empty:
        yield Text(f"bar: p99; no time in {', '.join(empty)}", style="dim")


def _over_time(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """Windows as bars, and when causes were active; nothing for fewer than two windows and no such cause."""
    windows, active = diagnosis.windows, active_causes(diagnosis)
    if len(windows) < 2 and not active:
        return
    yield heading("Over time")
    if len(windows) >= 2:
        yield _window_lines(windows)
    if active:
        yield _active_causes(active)


def _window_lines(windows: Sequence[Window]) -> Table:
    table = Table.grid(padding=(0, 1))
    for _ in range(3):
        table.add_column(no_wrap=True)
    high = [window.p99_ms for window in windows]
    name = "p95" if None in high else "p99"
    rows: tuple[tuple[str, list[float | None], Callable[[object], str]], ...] = (
        ("p50", [window.p50_ms for window in windows], milliseconds),
        (name, high if name == "p99" else [window.p95_ms for window in windows], milliseconds),
        ("rate", [window.offered_rps for window in windows], rate),
    )
    for name, values, words in rows:
        known = [value for value in values if value is not None]
        if known:
            line = Sparkline(values, from_zero=True, widest=len(values))
            table.add_row(name, line, f"{words(min(known))} to {words(max(known))}")
    each = (windows[-1].end_s - windows[0].start_s) / len(windows)
    table.add_row("", Text(f"{len(windows)} windows", style="dim"), Text(f"of {each:,.3g} s", style="dim"))
    return table


def _active_causes(active: Sequence[tuple[str, Activity]]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, max_width=28, overflow="ellipsis")
    table.add_column(overflow="fold")
    for cause, activity in active[:_ACTIVE]:
        table.add_row(safe(cause, "bold", limit=60), safe(activity.text, limit=300))
    return table


def _units(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """The typical and the slowest units of a recording; nothing for one alone, whose ledger is above."""
    units = [*([diagnosis.typical] if diagnosis.typical else []), *diagnosis.slowest[:_UNITS]]
    if diagnosis.is_single or not units:
        return
    yield heading(f"The slowest {diagnosis.unit}s" if diagnosis.is_timed else "Stalls")
    table = plain_table()
    table.add_column("", overflow="ellipsis", max_width=30, no_wrap=True)
    add_figures(table, "at, ms", "took, ms")
    table.add_column("of that", overflow="fold")
    for unit in units:
        causes = sorted(unit.causes_ms.items(), key=lambda each: -each[1])[:2]
        words = ", ".join(f"{cause} {significant(value)}" for cause, value in causes)
        table.add_row(
            safe(unit.id, limit=60), significant(unit.start_ms), significant(unit.latency_ms), safe(words, "dim")
        )
    yield table


def _workers(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """The workers; nothing where the run had one."""
    rows = diagnosis.workers
    if not rows:
        return
    weighed = any(map(weight_words, rows))
    yield heading("Workers")
    table = plain_table()
    table.add_column("#", no_wrap=True)
    table.add_column("device", overflow="fold", max_width=12)
    add_figures(table, "requests", "busy", "p50", "p99", "tail", *(["weight"] if weighed else []))
    for row in rows[:_WORKERS]:
        table.add_row(
            str(row.worker),
            safe(row.device, limit=12),
            count(row.requests),
            share(row.busy_share),
            significant(row.compute_p50_ms),
            significant(row.compute_p99_ms),
            share(row.tail_share),
            *([weight_words(row).rpartition(" ")[2] or NONE] if weighed else []),
        )
    yield table
    more = "; weight: times the fastest, at most" if weighed else ""
    yield Text(f"p50, p99: compute, ms; tail: share of the requests in it{more}", style="dim")
    if len(rows) > _WORKERS:
        yield Text(f"{len(rows) - _WORKERS} more workers are on the page", style="dim")


def _what_to_do(diagnosis: Diagnosis, workload: str) -> Iterator[RenderableType]:
    """Advice on the causes.

    :param workload: what to type to optimize it; empty where it is not latfix's to replay.
    """
    yield heading("What to do")
    advice, closing = cause_advice(diagnosis), closing_advice(diagnosis)
    if advice:
        yield from _advice(advice)
    if closing:
        yield Text(closing)
    if workload and any(entry.fixes for entry in advice):
        command = visible(optimize_command(workload), limit=400)
        yield Text.assemble("Try the fixes and measure them:  ", (command, "bold cyan"))


def _advice(named: list[CauseAdvice]) -> Iterator[RenderableType]:
    """The causes worth acting on, the largest first; the small ones on one line."""
    worth = [entry for entry in named if entry.share >= _WORTH_ACTING][:_ADVISED] or named[:1]
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for position, entry in enumerate(worth, start=1):
        table.add_row(f"{position}.", _cause_advice(entry))
    yield table
    rest = [entry for entry in named if entry not in worth]
    if rest:
        listed = ", ".join(f"{entry.cause} {milliseconds(entry.tail_ms)}" for entry in rest)
        yield Text.assemble(("also: ", "dim"), safe(listed, "dim", limit=400))


def _cause_advice(entry: CauseAdvice) -> Text:
    words = f": {entry.words}. " if entry.words else ": "
    text = Text.assemble(safe(entry.cause, "bold"), words, safe(entry.evidence, limit=500))
    if entry.predicted:
        text.append(f"\nwithout it {entry.focus} {entry.now} -> {entry.predicted} ms (predicted)")
    if entry.fixes:
        text.append("; fixes: " if entry.predicted else "\nfixes: ")
        text.append_text(safe(", ".join(entry.fixes), "cyan"))
    elif entry.predicted:
        text.append("; latfix has no fix for it")
    return text


def _small_print(diagnosis: Diagnosis, folder: Path | None) -> Iterator[Text]:
    known = [name for name in ("ok", *FAILED_STATUSES) if diagnosis.requests.get(name, 0) is not None]
    counts = ", ".join(f"{count(diagnosis.requests.get(name, 0))} {name}" for name in known)
    failed = any(diagnosis.requests.get(name) for name in FAILED_STATUSES)
    served = "" if finite(diagnosis.throughput_rps) is None else f"; {rate(diagnosis.throughput_rps)}"
    yield Text(f"{diagnosis.unit}s".ljust(12) + counts + served, style="yellow" if failed else "dim")
    if read := "; ".join(f"{name} {words}" for name, words in read_words(diagnosis)):
        yield Text.assemble(("read        ", "dim"), safe(read, "dim", limit=600))
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
