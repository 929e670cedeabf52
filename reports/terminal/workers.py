"""A run by worker and device: who did how much, how fast, and whose requests are in the tail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from latfix.formatting import NONE, count, finite, share, significant, tail_words
from latfix.reports.elements import Column, Content, Html, element, section, table
from latfix.reports.escaping import visible
from latfix.reports.terminal.widgets import heading, plain_table, safe
from latfix.results.diagnosis import Diagnosis

Row = Mapping[str, Any]

#: Workers that a terminal lists; the page has them all.
_LISTED = 8


def read_workers(diagnosis: Diagnosis) -> list[Row]:
    """The rows of a diagnosis; none where the run had one worker."""
    rows = diagnosis.to_json().get("workers")
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list | tuple) else []


def weight_words(row: Row) -> str:
    """Between what a worker's weight lay; empty where there was no routing by weight."""
    bounds = row.get("weight")
    if not isinstance(bounds, list | tuple) or len(bounds) != 2:
        return ""
    low, high = (finite(value) for value in bounds)
    if low is None or high is None:
        return ""
    return significant(low) if high - low < 0.005 else f"{significant(low)} to {significant(high)}"


def render_workers(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """A short table for a terminal; nothing where the run had one worker."""
    rows = read_workers(diagnosis)
    if not rows:
        return
    weighed = any(weight_words(row) for row in rows)
    yield heading("Workers")
    listing = plain_table()
    listing.add_column("#", no_wrap=True)
    listing.add_column("device", overflow="fold", max_width=12)
    for name in ("requests", "busy", "p50", "p99", "tail", *(["weight"] if weighed else [])):
        listing.add_column(name, justify="right", no_wrap=True)
    for row in rows[:_LISTED]:
        cells = _figures(row)[1:6]
        if weighed:
            cells.append(weight_words(row).rpartition(" ")[2] or NONE)
        listing.add_row(safe(row.get("worker", ""), limit=6), safe(row.get("device", ""), limit=12), *cells)
    yield listing
    told = "p50, p99: compute, ms; tail: share of the requests in it"
    if weighed:
        told += "; weight: times the fastest, at most"
    yield Text(told, style="dim")
    if len(rows) > _LISTED:
        yield Text(f"{len(rows) - _LISTED} more workers are on the page", style="dim")


def workers_section(diagnosis: Diagnosis) -> Html | None:
    """The section of a run's page; ``None`` where the run had one worker."""
    rows = read_workers(diagnosis)
    if not rows:
        return None
    weighed = any(weight_words(row) for row in rows)
    columns = [
        Column(title="worker", numeric=False),
        Column(title="device", numeric=False),
        *[
            Column(title=name)
            for name in ("batches", "requests", "busy", "compute p50, ms", "p99, ms", "of the tail")
        ],
        *([Column(title="weight"), Column(title="slow for, s")] if weighed else []),
    ]
    body: list[list[Content]] = []
    for row in rows:
        slow = finite(row.get("slow_s")) or 0.0
        cells = [*_figures(row), significant(slow) if slow else NONE]
        name = [visible(row.get("worker", ""), limit=12), visible(row.get("device", ""), limit=24)]
        body.append([*name, *cells[: len(columns) - 2]])
    words = (
        "Busy: the share of the run in which the worker had a batch, from closing it to its last answer. Of the "
        f"tail: the share of the {tail_words(diagnosis.percentile)} of requests that it served."
    )
    if weighed:
        words += (
            " Weight: how many times longer than the fastest it was thought to take; one that is slower is left out "
            "where a faster one is expected to be done sooner."
        )
    return section("workers", "Workers", table("Workers over the measured run", columns, body), element("p", words))


def _figures(row: Row) -> list[str]:
    return [
        count(row.get("batches", 0)),
        count(row.get("requests", 0)),
        share(row.get("busy_share")),
        significant(row.get("compute_p50_ms")),
        significant(row.get("compute_p99_ms")),
        share(row.get("tail_share")),
        weight_words(row) or NONE,
    ]
