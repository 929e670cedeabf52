"""A service as it is now: what ``latfix watch`` shows of a diagnosis of the last seconds, as a table or as a line."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from latfix.cause_catalogue import UNEXPLAINED
from latfix.formatting import LATENCY_KEYS, count, key_label, milliseconds, rate, share, significant, visible
from latfix.results.diagnosis import CauseSummary, Diagnosis

#: Causes that are shown, and of a line the share of the excess from which on one is.
_SHOWN, _LEAST = 6, 0.05


def watch_panel(found: Diagnosis, path: str, last_s: float, clock: str) -> RenderableType:
    """Percentiles and causes, for a terminal.

    :param last_s: seconds that the diagnosis is of.
    :param clock: when it was made.
    """
    head = Text.assemble(
        (visible(path), "bold"), f"  the last {significant(last_s)} s until {clock}  {_counts(found)}"
    )
    latency = Table(box=None, pad_edge=False)
    for key in LATENCY_KEYS:
        latency.add_column(f"{key_label(key)}, ms", justify="right", no_wrap=True)
    latency.add_row(*(significant(found.latency_ms.get(key)) for key in LATENCY_KEYS))
    causes = Table(box=None, pad_edge=False)
    causes.add_column(f"behind the slowest {significant(100 - found.percentile)} %", no_wrap=True)
    causes.add_column("ms", justify="right", no_wrap=True)
    causes.add_column("share", justify="right", no_wrap=True)
    causes.add_column("because", overflow="fold")
    for cause in found.causes[:_SHOWN]:
        style = "bold" if cause.named else ""
        figures = (significant(cause.tail_ms), share(cause.tail_share))
        causes.add_row(Text(visible(cause.cause), style), *figures, Text(visible(cause.evidence)))
    return Group(head, "", latency, "", causes, "", Text(visible(found.sentence, limit=600)))


def watch_line(found: Diagnosis, clock: str) -> str:
    """The same where nobody watches: one line."""
    keys = ("p50", "p95", "p99")
    latency = ", ".join(f"{key_label(key)} {milliseconds(found.latency_ms.get(key))}" for key in keys)
    causes = [_short(cause) for cause in found.causes if cause.tail_share >= _LEAST and _told(cause)]
    return f"{clock}  {_counts(found)}  {latency}  {found.verdict}: {'; '.join(causes) or 'nothing stands out'}"


def _told(cause: CauseSummary) -> bool:
    return cause.named or cause.cause == UNEXPLAINED


def _short(cause: CauseSummary) -> str:
    return f"{visible(cause.cause)} {milliseconds(cause.tail_ms)} ({share(cause.tail_share)})"


def _counts(found: Diagnosis) -> str:
    ends = {name: number for name, number in found.requests.items() if number}
    lost = ", ".join(f"{count(number)} {name}" for name, number in ends.items() if name != "ok")
    return f"{count(found.requests.get('ok'))} ok{f', {lost}' if lost else ''}, {rate(found.throughput_rps)}"
