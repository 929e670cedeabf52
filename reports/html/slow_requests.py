"""The slowest requests of a run, each with its stages and what the ledger says of it."""

from __future__ import annotations

import numpy as np

from latfix.formatting import significant
from latfix.profilers.drilldown.explain import tell
from latfix.profilers.drilldown.selection import choose_slowest, slowest_rows
from latfix.reports.elements import Column, Content, Html, element, joined, table
from latfix.reports.html.request_details import story_details
from latfix.results.diagnosis import Ledger
from latfix.run_record.run_record import RunRecord
from latfix.stages import STAGES, STATUS_NAMES

_SHOWN = 20
_CAUSES = 3
_TOLD = 10
#: Laying out a larger record once more would take longer than the rest of the page.
_MOST_TOLD_OF = 50_000

__all__ = ["slowest_rows", "slowest_table"]


def slowest_table(record: RunRecord, ledger: Ledger) -> Html:
    """The 20 slowest requests of any status: id, arrival, latency, stages, largest entries of the ledger.

    Below the table the slowest of them are told one by one, where the record is not too large.
    """
    columns = [
        Column(title="request", numeric=False),
        Column(title="arrival, s"),
        Column(title="latency, ms"),
        Column(title="status", numeric=False),
        Column(title="stages, ms", numeric=False),
        Column(title="largest causes, ms", numeric=False),
    ]
    rows = [_cells(record, row, ledger) for row in slowest_rows(record, _SHOWN)]
    shown = table(f"The {len(rows)} slowest requests, errors included, warm-up excluded", columns, rows)
    if len(record.requests["index"]) > _MOST_TOLD_OF:
        return shown
    return joined([shown, *(story_details(story) for story in tell(record, ledger, choose_slowest(record, _TOLD)))])


def _cells(record: RunRecord, row: int, ledger: Ledger) -> list[Content]:
    requests = record.requests
    index = int(requests["index"][row])
    status = STATUS_NAMES[int(requests["status"][row])]
    error = record.errors.get(index)
    outcome: Content = status
    if status != "ok":
        outcome = joined([element("span", status, class_="bad"), f" {error}" if error else ""])
    identity = record.traffic.ids[index] if 0 <= index < len(record.traffic.ids) else f"#{index}"
    return [
        element("code", identity),
        significant(int(requests["arrival_ns"][row]) / 1e9, 5),
        element("strong", significant(int(requests["latency_ns"][row]) / 1e6)),
        outcome,
        _stages({stage: int(requests[f"{stage}_ns"][row]) / 1e6 for stage in STAGES}),
        _causes(ledger, index),
    ]


def _stages(stages_ms: dict[str, float]) -> Html:
    """A small stacked bar, and the largest stages in figures."""
    total = sum(value for value in stages_ms.values() if value > 0) or 1.0
    parts, left = [], 0.0
    for position, stage in enumerate(STAGES):
        width = max(stages_ms[stage], 0.0) / total * 100
        if width >= 0.5:
            style = f"fill: var(--stage-{position})"
            parts.append(element("rect", x=f"{left:.1f}", y="0", width=f"{width:.1f}", height="8", style=style))
        left += width
    strip = element(
        "svg", *parts, viewBox="0 0 100 8", preserveAspectRatio="none", class_="strip", aria_hidden="true"
    )
    largest = sorted(stages_ms, key=lambda stage: -stages_ms[stage])[:3]
    words = ", ".join(f"{stage} {significant(stages_ms[stage])}" for stage in largest if stages_ms[stage] > 0)
    return joined([strip, element("span", words, class_="soft")])


def _causes(ledger: Ledger, index: int) -> Content:
    positions = np.flatnonzero(ledger.request == index)
    if not len(positions):
        return element("span", "not in the ledger", class_="soft")
    position = int(positions[0])
    own, propagated = ledger.own_ns[:, position], ledger.propagated_ns[:, position]
    order = np.argsort(-np.abs(own + propagated), kind="stable")[:_CAUSES]
    words = []
    for k in order:
        total = int(own[k] + propagated[k])
        if total:
            via = " (queue)" if abs(int(propagated[k])) > abs(int(own[k])) else ""
            words.append(f"{ledger.causes[k]} {significant(total / 1e6)}{via}")
    return ", ".join(words)
