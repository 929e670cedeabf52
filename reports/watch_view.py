"""The live view of ``latfix watch``: a diagnosis of the last seconds, as tables or as one line."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from latfix.cause_catalogue import UNEXPLAINED
from latfix.formatting import LATENCY_KEYS, count, key_label, milliseconds, rate, share, significant, visible
from latfix.results.diagnosis import Diagnosis

#: Most causes in the table; smallest share of the excess that the line lists.
_SHOWN, _LEAST = 6, 0.05


def watch_panel(found: Diagnosis, path: str, last_s: float, clock: str) -> RenderableType:
    """Percentiles and causes as tables.

    :param last_s: length of the diagnosed window, in seconds.
    :param clock: time of day at its end.
    """
    head = Text.assemble((visible(path), "bold"), f"  last {significant(last_s)} s until {clock}  {_counts(found)}")
    latency = Table(box=None, pad_edge=False)
    for key in LATENCY_KEYS:
        latency.add_column(f"{key_label(key)}, ms", justify="right", no_wrap=True)
    latency.add_row(*(significant(found.latency_ms.get(key)) for key in LATENCY_KEYS))
    causes = Table(box=None, pad_edge=False)
    causes.add_column(f"cause of the slowest {significant(100 - found.percentile)} %", no_wrap=True)
    causes.add_column("ms", justify="right", no_wrap=True)
    causes.add_column("share", justify="right", no_wrap=True)
    causes.add_column("evidence", overflow="fold")
    for cause in found.causes[:_SHOWN]:
        style = "bold" if cause.named else ""
        figures = (significant(cause.tail_ms), share(cause.tail_share))
        causes.add_row(Text(visible(cause.cause), style), *figures, Text(visible(cause.evidence)))
    return Group(head, "", latency, "", causes, "", Text(visible(found.sentence, limit=600)))


def watch_line(found: Diagnosis, clock: str) -> str:
    """Percentiles and causes in one line, for output that is not a terminal."""
    keys = ("p50", "p95", "p99")
    latency = ", ".join(f"{key_label(key)} {milliseconds(found.latency_ms.get(key))}" for key in keys)
    causes = [
        f"{visible(cause.cause)} {milliseconds(cause.tail_ms)} ({share(cause.tail_share)})"
        for cause in found.causes
        if cause.tail_share >= _LEAST and (cause.named or cause.cause == UNEXPLAINED)
    ]
    return f"{clock}  {_counts(found)}  {latency}  {found.verdict}: {'; '.join(causes) or 'no cause stands out'}"


def _counts(found: Diagnosis) -> str:
    ends = {name: number for name, number in found.requests.items() if number}
    lost = ", ".join(f"{count(number)} {name}" for name, number in ends.items() if name != "ok")
    return f"{count(found.requests.get('ok'))} ok{f', {lost}' if lost else ''}, {rate(found.throughput_rps)}"
