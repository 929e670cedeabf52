"""Terminal report on single requests: one request's story, and the list of the slowest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from latfix.formatting import count, counted, from_ns, share, significant
from latfix.reports.request_rows import (
    balance_words,
    header_facts,
    holder_rows,
    ledger_rows,
    short_entries,
    short_wait,
    stage_lines,
    wait_words,
)
from latfix.reports.terminal.widgets import (
    OWN_STYLE,
    QUEUE_STYLE,
    Bar,
    Portable,
    add_figures,
    heading,
    pair_bar,
    plain_table,
    safe,
)
from latfix.results.request_explanation import Story, Wait

_WIDE = 100
_LINE_STYLE = {"": "", "own": "yellow", "other": "dim", "error": "red"}
_STATUS_STYLE = {"ok": "green", "error": "red", "timeout": "red", "shed": "red"}


def render_stories(requested: Sequence[Story], slowest: Sequence[Story] | None = None) -> RenderableType:
    """The stories of the requested ids, then the list of the slowest.

    :param slowest: may be empty; ``None`` if the list was not requested.
    """
    parts: list[RenderableType] = []
    for story in requested:
        parts += [Text(""), *_story(story)]
    if slowest is not None:
        parts += _slowest(slowest)
    return Portable(Group(*parts))


def _story(story: Story) -> Iterator[RenderableType]:
    yield from _header(story)
    if story.stages:
        yield from _timeline(story)
    for wait in story.waits:
        if wait.holders:
            yield from _wait(wait)
    if story.reference_ns is not None:
        yield from _ledger(story)
    yield heading("Why")
    yield safe(story.sentence, limit=900)


def _header(story: Story) -> Iterator[RenderableType]:
    title = Text.assemble(("Request ", "bold"), safe(story.id, "bold", limit=120))
    if story.row is not None:
        title.append_text(Text(f"  {from_ns(story.latency_ns)}  ", style="bold"))
        title.append_text(safe(story.status, _STATUS_STYLE.get(story.status, "yellow")))
    else:
        title.append_text(Text(f"  {story.status}", style="yellow"))
    yield title
    if story.matches > 1:
        yield Text(f"! {count(story.matches)} requests of this traffic have this id; all are shown.", style="yellow")
    if story.warmup:
        yield Text("! A warm-up request: excluded from all percentiles.", style="yellow")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, words in header_facts(story):
        table.add_row(name, safe(words, limit=600))
    yield table


def _timeline(story: Story) -> Iterator[RenderableType]:
    yield heading("Timeline, ms from its arrival")
    table = plain_table(expand=True)
    table.add_column("stage", no_wrap=True)
    add_figures(table, "from", "took")
    table.add_column("", ratio=1, min_width=6)
    lines = [
        Text("\n").join(safe(words, _LINE_STYLE[tone], limit=300) for words, tone in stage_lines(stage))
        for stage in story.stages
    ]
    known = any(lines)  # a service seen from outside shows no threads
    if known:
        table.add_column("what the thread did", ratio=3, min_width=16, overflow="fold")
    scale = max(story.latency_ns, 1)
    for stage, line in zip(story.stages, lines, strict=True):
        offset = (max(stage.at_ns, 0) / scale, " ", "")
        table.add_row(
            stage.stage,
            significant(stage.at_ns / 1e6),
            Text(significant(stage.duration_ns / 1e6), style="bold"),
            Bar([offset, (max(stage.duration_ns, 0) / scale, "█", "cyan")]),
            *([line] if known else []),
        )
    yield table


def _wait(wait: Wait) -> Iterator[RenderableType]:
    yield heading("What it waited behind" + (" to be prepared" if wait.resource == "prepare" else ""))
    yield Text(wait_words(wait), style="dim")
    yield _HolderTable(wait)


@dataclass(frozen=True, slots=True)
class _HolderTable:
    """The work that occupied the threads, in order of time; narrow terminals omit the start times."""

    wait: Wait

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= _WIDE
        table = plain_table(expand=True)
        table.add_column("work", overflow="fold", min_width=8, max_width=24)
        add_figures(table, *(["from"] if wide else []), "held", "waited", "typical", "excess")
        table.add_column("why, ms", ratio=1, min_width=14, overflow="fold")
        for row in holder_rows(self.wait):
            style = "dim" if row.is_sum else ""
            table.add_row(
                safe(row.work, style, limit=80),
                *([row.begun] if wide else []),
                row.held,
                row.within,
                row.typical,
                Text(row.excess, style="bold red" if row.slow else ""),
                safe(row.why, style, limit=300),
            )
        yield table


def _ledger(story: Story) -> Iterator[RenderableType]:
    own, queue = (" own  ", "dim"), (" through the queue", "dim")
    yield Text.assemble(heading("The ledger, ms"), "   ", ("█", OWN_STYLE), own, ("▒", QUEUE_STYLE), queue)
    rows = ledger_rows(story)
    table = plain_table(expand=True)
    table.add_column("entry", overflow="fold", min_width=12, max_width=28)
    table.add_column("", ratio=1, min_width=6)
    add_figures(table, "ms", "own", "queue")
    table.add_column("sum so far", justify="right")
    table.add_column("known by", no_wrap=True)
    scale = max(abs(row.own_ns + row.propagated_ns) for row in rows) or 1
    for row in rows:
        if row is rows[-1]:
            table.add_section()
        table.add_row(
            safe(row.entry, "dim" if row.is_sum else "", limit=60),
            pair_bar(row.own_ns, row.propagated_ns, scale),
            Text(row.total, style="bold" if row is rows[-1] else ""),
            row.own,
            row.queue,
            row.so_far,
            Text(row.known_by, style="dim"),
        )
    yield table
    yield Text(balance_words(story), style="green" if story.difference_ns == 0 else "bold red")


def _slowest(stories: Sequence[Story]) -> Iterator[RenderableType]:
    yield heading(f"The {counted(len(stories), 'slowest request')}" if stories else "The slowest requests")
    if not stories:
        yield Text("No measured request was recorded.")
        return
    table = plain_table(expand=True)
    table.add_column("request", overflow="fold", min_width=8, max_width=24)
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("largest entries, ms", ratio=1, min_width=16, overflow="fold")
    table.add_column("waited behind, ms", ratio=1, min_width=16, overflow="fold")
    for story in stories:
        name = safe(story.id, limit=80)
        if story.status != "ok":
            name.append(f" {story.status}", style="red")
        what = short_entries(story) if story.entries else (story.error or story.sentence)
        table.add_row(
            name,
            Text(significant(story.latency_ns / 1e6), style="bold"),
            safe(what, limit=200),
            safe(short_wait(story), limit=200),
        )
    yield table
    known = [story.faster_share for story in stories if story.faster_share is not None]
    if known:
        slowest = f"the slowest {share(1 - min(known))} of ok requests"
        yield Text(f"each ok one is among {slowest}; --request ID explains one in full", style="dim")
