"""Terminal report of a diagnosis: figures, causes, advice; the answer is last."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from latfix.cause_catalogue import UNEXPLAINED
from latfix.formatting import (
    LATENCY_KEYS,
    NONE,
    count,
    finite,
    interval,
    key_label,
    latency_words,
    milliseconds,
    moment,
    percent,
    rate,
    seconds,
    sentence,
    share,
    significant,
    uncertain_bounds,
)
from latfix.lower_bound import in_order
from latfix.reports.answer import diagnosis_answer
from latfix.reports.diagnosis_rows import (
    CauseAdvice,
    active_causes,
    cause_actions,
    cause_advice,
    cause_rows,
    cause_total,
    cost_words,
    error_words,
    excess_words,
    is_replay,
    lag_words,
    line_rows,
    main_causes,
    read_words,
    reference_words,
    service_words,
    small_causes_words,
    weight_words,
)
from latfix.reports.terminal.widgets import (
    OWN_STYLE,
    QUEUE_STYLE,
    SEVERITY_STYLE,
    Bar,
    Cell,
    Column,
    FittedTable,
    OneScreen,
    Portable,
    Sparkline,
    answer_block,
    heading,
    pair_bar,
    safe,
    title_line,
    warnings,
)
from latfix.reports.vocabulary import CLASS_WORDS, LINES_WORDS, diagnosis_severity
from latfix.results.diagnosis import Activity, Diagnosis, Window
from latfix.stages import LOST_NAMES, STAGES
from latfix.statistics.percentiles import percentile_key

_LISTED = 8
_ADVISED = 4
#: Named causes below this share of the tail are listed, not explained.
_WORTH_ACTING = 0.05
_ACTIVE = 4
_WORKERS = 8
_UNITS = 4
#: Sections that a normal report leaves out if it is longer than a screen, the most important first.
_LOSSES, _WHICH_WORKERS, _OVER_TIME = "requests that did not end ok", "workers", "the run over time"
_OPTIONAL = (_LOSSES, _WHICH_WORKERS, _OVER_TIME)


def render_diagnosis(
    diagnosis: Diagnosis, *, folder: Path | None, workload_argument: str | None = None, verbose: bool = False
) -> RenderableType:
    """The diagnosis, for any width from about 60 columns; the answer is last.

    :param folder: of the run and its report; ``None`` if nothing was kept.
    :param workload_argument: the workload as a user types it (see
        :func:`latfix.reports.next_commands.workload_argument`); ``None`` for its name.
    :param verbose: every cause, stage and figure; else what fits on a screen.
    """
    some = diagnosis.is_timed and any(diagnosis.requests.values())
    latencies, losses, tail = list[RenderableType](), list[RenderableType](), list[RenderableType]()
    if diagnosis.is_timed and not diagnosis.is_single:
        latencies, losses = [Text(""), _latency_table(diagnosis, verbose=verbose)], list(_losses(diagnosis))
    if some and diagnosis.requests.get("ok") and finite(diagnosis.excess_ms) is not None:
        tail = list(_tail(diagnosis, verbose=verbose))
    rest = [*_units(diagnosis)]
    if verbose:
        rest += [*_lines(diagnosis), *_what_to_do(diagnosis), Text(""), _small_print(diagnosis)]
    columns = dict(read_words(diagnosis)).get("columns", "")
    roles = [safe(f"columns: {columns}", "dim", limit=300)] if columns and not verbose else []
    parts: list[tuple[str, Sequence[RenderableType]]] = [
        ("", [_title(diagnosis), *roles, *warnings(diagnosis.notes), *latencies]),
        ("" if diagnosis.verdict == "losing" else _LOSSES, losses),
        ("", tail),
        (_OVER_TIME, list(_over_time(diagnosis, verbose=verbose)) if some else []),
        ("", list(_stages(diagnosis)) if some and verbose else []),
        (_WHICH_WORKERS, list(_workers(diagnosis)) if some else []),
        ("", rest),
        ("", list(answer_block(diagnosis_answer(diagnosis, workload=workload_argument), folder=folder))),
    ]
    if verbose:
        return Portable(Group(*(each for _, content in parts for each in content)))
    more = (
        ("stages", some and diagnosis.stages_ms),
        ("slow lines of code", diagnosis.lines),
        ("what to do", cause_advice(diagnosis)),
    )
    return Portable(OneScreen(parts, _OPTIONAL, [name for name, present in more if present]))


def render_tail(diagnosis: Diagnosis) -> RenderableType:
    """The verdict, warnings, losses and causes of the tail: the baseline's diagnosis during an optimization."""
    style = SEVERITY_STYLE[diagnosis_severity(diagnosis)]
    verdict = title_line(diagnosis.workload, diagnosis.device, diagnosis.sentence, style)
    parts: list[RenderableType] = [verdict, *warnings(diagnosis.notes), *_losses(diagnosis)]
    if diagnosis.requests.get("ok"):
        parts += _tail(diagnosis, verbose=False)
    return Portable(Group(*parts))


def _title(diagnosis: Diagnosis) -> Text:
    known = [name for name in ("ok", *LOST_NAMES) if diagnosis.requests.get(name) or name == "ok"]
    counts = ", ".join(f"{count(diagnosis.requests.get(name, 0))} {name}" for name in known)
    failed = any(diagnosis.requests.get(name) for name in LOST_NAMES)
    served = "" if finite(diagnosis.throughput_rps) is None else f", {rate(diagnosis.throughput_rps)}"
    unit = "" if diagnosis.unit == "request" else f" ({diagnosis.unit}s)"
    return title_line(diagnosis.workload, diagnosis.device, f"{counts}{served}{unit}", "yellow" if failed else "")


def _latency_table(diagnosis: Diagnosis, *, verbose: bool) -> FittedTable:
    focus = percentile_key(diagnosis.percentile)
    known = latency_words(diagnosis.latency_ms)
    given_up = {"p90": 3, "mean": 2, "p99_9": 1, focus: 0}
    columns = [Column("latency, ms", right=False)]
    columns += [Column(key_label(key), given_up=given_up.get(key, 0)) for key in LATENCY_KEYS]
    rows: list[list[Text | str]] = [
        [
            "" if verbose else "this run",
            *(Text(figure, style="bold" if key == focus else "") for key, figure in known.items()),
        ]
    ]
    if verbose and any(diagnosis.latency_ci95_ms.values()):
        bounds = [diagnosis.latency_ci95_ms.get(key, (math.nan, math.nan)) for key in LATENCY_KEYS]
        rows += [
            [Text(f"95 % {word}", style="dim"), *(Text(significant(pair[end]), style="dim") for pair in bounds)]
            for end, word in enumerate(("from", "to"))
        ]
    return FittedTable(columns, rows)


def _losses(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """The lost requests by status, and what they had waited for."""
    if not diagnosis.lost:
        return
    yield heading("Requests that did not end ok")
    columns = [Column("", right=False), Column("requests"), Column("waited ms"), Column("lost in", right=False)]
    rows: list[Sequence[Cell]] = [
        [
            lost.status,
            f"{lost.requests:,} ({share(lost.share)})",
            significant(lost.waited_ms.get("p50")),
            ", ".join(f"{number:,} {stage}" for stage, number in lost.in_stage.items()),
        ]
        for lost in diagnosis.lost
    ]
    yield FittedTable(columns, rows)
    for lost in diagnosis.lost:
        if lost.errors:
            yield safe(f"{lost.status}: {error_words(lost.errors)}", limit=400)
        if waits := ", ".join(f"{name} {significant(spent)}" for name, spent in lost.waited_for_ms.items()):
            yield safe(f"{lost.status}: mean wait by cause, ms: {waits}", "dim", limit=300)


def _tail(diagnosis: Diagnosis, *, verbose: bool) -> Iterator[RenderableType]:
    """Definition of the tail, its causes as bars to one scale, and a legend."""
    yield Text("")
    title = "Where the time goes" if diagnosis.is_single else "Where the tail comes from"
    yield Text.assemble((f"{title}. ", "bold"), f"{excess_words(diagnosis)}:")
    yield _cause_table(diagnosis, verbose=verbose)
    if not verbose and (rest := small_causes_words(diagnosis)):
        yield Text(rest, style="dim")
    yield legend(diagnosis)


def legend(diagnosis: Diagnosis) -> Text:
    """Explanation of the terms in the table of causes."""
    text = Text()
    if diagnosis.unit == "request":
        text.append("█", OWN_STYLE).append(" own: in the slow request itself; ", "dim")
        text.append("▒", QUEUE_STYLE).append(" through the queue: in a request that it waited behind. ", "dim")
    used = dict.fromkeys(row.evidence_class for row in main_causes(diagnosis))
    classes = "; ".join(f"{name}: {CLASS_WORDS[name]}" for name in used if name in CLASS_WORDS)
    return text.append(sentence(classes), "dim") if classes else text


def _cause_table(diagnosis: Diagnosis, *, verbose: bool) -> FittedTable:
    """Causes with bars of milliseconds."""
    single, both = diagnosis.is_single, verbose and diagnosis.unit == "request"
    rows = cause_rows(diagnosis, limit=_LISTED) if verbose else main_causes(diagnosis)
    scale = max((abs(row.own_ms + row.propagated_ms) for row in rows), default=0.0) or 1.0
    columns = [Column("cause", right=False), Column(right=False), Column("ms" if single else "tail ms")]
    columns += [] if single else [Column("95 %", given_up=1)]
    columns += [Column("own ms", given_up=4), Column("queue ms", given_up=4)] if both else []
    columns += [Column("share", given_up=2), Column("known by", right=False, given_up=3)]
    lines: list[Sequence[Cell]] = []
    for row in rows:
        style = "bold" if row.named else "dim" if row.cause in ("", UNEXPLAINED) else ""
        bounds = interval(row.ci95_ms) if verbose else uncertain_bounds(row.ci95_ms)
        lines.append(
            [
                safe(row.label, style, limit=60),
                pair_bar(row.own_ms, row.propagated_ms, scale),
                significant(row.tail_ms),
                *([] if single else [bounds]),
                *([significant(row.own_ms), significant(row.propagated_ms)] if both else []),
                share(row.share) if verbose else percent(row.share),
                Text(row.evidence_class, style="dim"),
            ]
        )
    if verbose:
        total, whole = cause_total(rows, diagnosis)
        blank = [""] * (len(columns) - 5)
        summed = f"sum = {diagnosis.unit if single else 'excess'}"
        lines.append([summed, "", Text(significant(total), style="bold"), *blank, share(whole), ""])
    return FittedTable(columns, lines)


def _stages(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    known = STAGES if set(diagnosis.stages_ms) <= set(STAGES) else tuple(diagnosis.stages_ms)
    values = {s: set(map(finite, diagnosis.stages_ms[s].values())) for s in known if s in diagnosis.stages_ms}
    used = [stage for stage, figures_of in values.items() if figures_of - {None, 0.0}]
    if not used:
        return
    yield heading("Stages, ms")
    figures = {"mean": "ms"} if diagnosis.is_single else {key: key for key in ("mean", "p50", "p99")}
    figures |= {} if diagnosis.is_single else {"reference": "quiet"}
    columns = [Column("stage", right=False), Column(right=False), *map(Column, figures.values())]
    scale = max((finite(diagnosis.stages_ms[s].get("p99")) or 0.0 for s in used), default=0.0) or 1.0
    rows: list[Sequence[Cell]] = []
    for stage in used:
        row = diagnosis.stages_ms[stage]
        bar = Bar([((finite(row.get("p99")) or 0.0) / scale, "█", "cyan")])
        rows.append([stage, bar, *(significant(row.get(key)) for key in figures)])
    yield FittedTable(columns, rows)
    unknown = [stage for stage, figures_of in values.items() if figures_of <= {None}]
    empty = [stage for stage in known if stage not in used and stage not in unknown]
    no_time = f"; no time in {', '.join(empty)}" if empty else ""
    no_time += f"; unknown: {', '.join(unknown)}" if unknown else ""
    yield safe(f"bar: p99; quiet: in a {reference_words(diagnosis)}{no_time}", "dim", limit=600)


def _over_time(diagnosis: Diagnosis, *, verbose: bool) -> Iterator[RenderableType]:
    """Windows as bars, and when causes were active; empty for a single window and no such cause."""
    windows, active = diagnosis.windows, active_causes(diagnosis)
    if len(windows) < 2 and not active:
        return
    yield heading("Over time")
    if len(windows) >= 2:
        yield _window_lines(windows, verbose=verbose)
    if active:
        yield _active_causes(active if verbose else active[:1])


def _window_lines(windows: Sequence[Window], *, verbose: bool) -> Table:
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
    for name, values, words in rows if verbose else rows[:2]:
        known = in_order(sorted(value for value in values if value is not None))
        if known:
            line = Sparkline([finite(value) for value in values], from_zero=True, widest=len(values))
            table.add_row(name, line, f"{words(known[0])} to {words(known[-1])}")
    if verbose:
        each = (windows[-1].end_s - windows[0].start_s) / len(windows)
        table.add_row("", Text(f"{len(windows)} windows", style="dim"), Text(f"of {seconds(each)}", style="dim"))
    return table


def _active_causes(active: Sequence[tuple[str, Activity]]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(max_width=28, overflow="fold")
    table.add_column(overflow="fold")
    for cause, activity in active[:_ACTIVE]:
        table.add_row(safe(cause, "bold", limit=60), safe(activity.text, limit=300))
    return table


def _units(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """The typical and the slowest units of a recording; empty for a single unit, whose ledger is above."""
    units = [*([diagnosis.typical] if diagnosis.typical else []), *diagnosis.slowest[:_UNITS]]
    if diagnosis.is_single or not units:
        return
    yield heading(f"The slowest {diagnosis.unit}s" if diagnosis.is_timed else "Stalls")
    rows: list[Sequence[Cell]] = []
    for unit in units:
        causes = [(cause, ms) for cause, ms in unit.causes_ms.items() if cause != "reference"]  # which delays nobody
        largest = sorted(causes, key=lambda each: -each[1])[:2]
        words = [safe(f"{cause} {significant(value)}", "dim") for cause, value in largest]
        figures = moment(unit.start_ms), significant(unit.latency_ms)
        rows.append([safe(unit.id, limit=40), *figures, *words, *[""] * (2 - len(words))])
    columns = [Column(right=False), Column("at, s", given_up=2), Column("took, ms")]
    columns += [Column("largest cause, ms", right=False, given_up=1), Column("next largest", right=False, given_up=3)]
    yield FittedTable(columns, rows)


def _lines(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """Slow lines of the user's code; empty if none stands out."""
    rows = line_rows(diagnosis)
    if not rows:
        return
    yield heading("Slow lines of code, ms")
    columns = [Column("line", right=False), Column("in", right=False)]
    columns += [Column("slow"), Column("typical"), Column("samples", given_up=1)]
    table: list[Sequence[Cell]] = [[safe(where, limit=120), unit, *figures] for unit, where, *figures in rows]
    yield FittedTable(columns, table)
    yield Text(LINES_WORDS, style="dim")


def _workers(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """The workers; empty if the run had one."""
    rows = diagnosis.workers
    if not rows:
        return
    weighed = any(map(weight_words, rows))
    yield heading("Workers")
    columns = [Column("#", right=False), Column("device", right=False, given_up=1)]
    titles = ("requests", "busy", "p50", "p99", "tail", *(["weight"] if weighed else []))
    columns += [Column(title, given_up=2 if title == "p50" else 0) for title in titles]
    lines: list[Sequence[Cell]] = [
        [
            str(row.worker),
            safe(row.device, limit=12),
            count(row.requests),
            share(row.busy_share),
            significant(row.compute_p50_ms),
            significant(row.compute_p99_ms),
            share(row.tail_share),
            *([weight_words(row).rpartition(" ")[2] or NONE] if weighed else []),
        ]
        for row in rows[:_WORKERS]
    ]
    yield FittedTable(columns, lines)
    more = "; weight: largest estimated slowdown over the fastest" if weighed else ""
    yield Text(f"p50, p99: of compute, ms; tail: share of the tail's requests{more}", style="dim")
    if len(rows) > _WORKERS:
        yield Text(f"{len(rows) - _WORKERS} more workers are on the page", style="dim")


def _what_to_do(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """The causes worth acting on, the largest first; the small ones on one line."""
    named = cause_advice(diagnosis)
    if not named:
        return
    yield heading("What to do")
    worth = [entry for entry in named if entry.share >= _WORTH_ACTING][:_ADVISED] or named[:1]
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    is_recording = not is_replay(diagnosis) and diagnosis.source is not None and diagnosis.source.kind != "http"
    actions = cause_actions(diagnosis) if is_recording else {}
    for position, entry in enumerate(worth, start=1):
        table.add_row(f"{position}.", _cause_advice(entry, actions.get(entry.cause, "")))
    yield table
    rest = [entry for entry in named if entry not in worth]
    if rest:
        listed = ", ".join(f"{entry.cause} {milliseconds(entry.tail_ms)}" for entry in rest)
        yield Text.assemble(("also: ", "dim"), safe(listed, "dim", limit=400))


def _cause_advice(entry: CauseAdvice, action: str) -> Text:
    words = f": {entry.words}. " if entry.words else ": "
    text = Text.assemble(safe(entry.cause, "bold"), words, safe(entry.evidence, limit=700))
    if entry.predicted:
        text.append(f"\nwithout it {entry.focus} {entry.now} -> {entry.predicted} ms (predicted)")
    if entry.fixes:
        text.append("; fixes: " if entry.predicted else "\nfixes: ")
        text.append_text(safe(", ".join(entry.fixes), "cyan"))
    elif entry.predicted and entry.unfixed:
        text.append("; latfix has no fix for it")
    if action:
        text.append_text(safe(f"\n{action}", limit=400))
    return text


def _small_print(diagnosis: Diagnosis) -> Table:
    """Facts by name; long ones go on below themselves."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, min_width=11, style="dim")
    table.add_column(overflow="fold")
    counts = ", ".join(f"{count(number)} {name}" for name, number in diagnosis.requests.items() if number is not None)
    failed = any(diagnosis.requests.get(name) for name in LOST_NAMES)
    served = "" if finite(diagnosis.throughput_rps) is None else f"; {rate(diagnosis.throughput_rps)}"
    table.add_row(f"{diagnosis.unit}s", Text(counts + served, style="yellow" if failed else "dim"))
    if read := "; ".join(f"{name} {words}" for name, words in read_words(diagnosis)):
        table.add_row("read", safe(read, "dim", limit=600))
    for name, words in service_words(diagnosis):
        table.add_row(name, safe(words, "dim", limit=300))
    if lag := lag_words(diagnosis, significant):
        table.add_row("replay lag", Text(f"{lag} ms", style="dim" if diagnosis.trustworthy else "yellow"))
    if cost := cost_words(diagnosis):
        table.add_row("latfix", Text(cost, style="dim"))
    if diagnosis.partial:
        unfinished = "the run did not reach its end; figures cover the recorded part"
        table.add_row("partial", Text(unfinished, style="yellow"))
    return table
