"""The live view of ``latfix watch``: a diagnosis of the last seconds, as tables or as one line."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from latfix.cause_catalogue import UNEXPLAINED
from latfix.formatting import (
    LATENCY_KEYS,
    count,
    key_label,
    milliseconds,
    rate,
    share,
    significant,
    tail_words,
    visible,
)
from latfix.reports.terminal.widgets import Cell, Column, FittedTable, Portable, safe
from latfix.results.diagnosis import Diagnosis

#: Most causes in the table, and the smallest share of the excess that it lists.
_SHOWN, _LEAST_SHOWN = 6, 0.01
#: Smallest share of the excess that the line lists.
_LEAST = 0.05
#: Verdicts that the line reports; any other is the cause that it lists first.
_VERDICTS = {"steady": "steady", "inconclusive": "undecided", "losing": "requests are lost"}


def watch_panel(found: Diagnosis, path: str, last_s: float, clock: str) -> RenderableType:
    """Percentiles and causes as tables.

    :param last_s: length of the diagnosed window, in seconds.
    :param clock: time of day at its end.
    """
    head = Text.assemble((visible(path), "bold"), f"  last {significant(last_s)} s until {clock}  {_counts(found)}")
    latency = FittedTable(
        [Column("latency", right=False), *(Column(key_label(key)) for key in LATENCY_KEYS)],
        [["ms", *(significant(found.latency_ms.get(key)) for key in LATENCY_KEYS)]],
    )
    rows: list[list[Cell] | Text] = []
    for cause in found.causes[:_SHOWN]:
        if cause.named or abs(cause.tail_share) >= _LEAST_SHOWN:
            name = safe(cause.cause, "bold" if cause.named else "")
            rows.append([name, significant(cause.tail_ms), share(cause.tail_share)])
            if cause.evidence:
                rows.append(safe(f"  {cause.evidence}", "dim"))
    titles = (f"cause of {_tail(found)}", "ms", "share")
    causes = FittedTable([Column(titles[0], right=False), *map(Column, titles[1:])], rows)
    return Portable(Group(head, "", latency, "", causes, "", safe(found.sentence, limit=600)))


def watch_line(found: Diagnosis, clock: str) -> str:
    """Percentiles and causes in one line, for output that is not a terminal."""
    keys = ("p50", "p95", "p99")
    latency = ", ".join(f"{key_label(key)} {milliseconds(found.latency_ms.get(key))}" for key in keys)
    causes = [
        f"{visible(cause.cause)} {milliseconds(cause.tail_ms)} ({share(cause.tail_share)})"
        for cause in found.causes
        if cause.tail_share >= _LEAST and (cause.named or cause.cause == UNEXPLAINED)
    ]
    verdict = f"{_VERDICTS[found.verdict]}; " if found.verdict in _VERDICTS else ""
    tail = f"causes of {_tail(found)}: {'; '.join(causes) or 'none stands out'}"
    return f"{clock}  {_counts(found)}  {latency}  {verdict}{tail}"


def _tail(found: Diagnosis) -> str:
    """The requests that the causes are about; percentiles are about all."""
    lost = any(number for name, number in found.requests.items() if name != "ok")
    return f"the {tail_words(found.percentile)}{' of ok requests' if lost else ''}"


def _counts(found: Diagnosis) -> str:
    ends = {name: number for name, number in found.requests.items() if number}
    lost = ", ".join(f"{count(number)} {name}" for name, number in ends.items() if name != "ok")
    return f"{count(found.requests.get('ok'))} ok{f', {lost}' if lost else ''}, {rate(found.throughput_rps)}"
