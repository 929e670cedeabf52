"""What a terminal shows of a run over time: percentiles and load per window, and when causes were active."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from latfix.formatting import finite, milliseconds, rate
from latfix.reports.terminal.widgets import heading, safe
from latfix.results.diagnosis import Diagnosis

_LISTED = 4
_BLOCKS = "▁▂▃▄▅▆▇█"
_DIGITS = "12345678"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveCause:
    """One cause that was not active throughout.

    :param intervals_s: from the run's start.
    """

    cause: str
    text: str
    intervals_s: tuple[tuple[float, float], ...]


def read_windows(diagnosis: Diagnosis) -> list[Mapping[str, Any]]:
    """``windows`` of the diagnosis' document; none where it has none."""
    found = diagnosis.to_json().get("windows")
    return [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, Sequence) else []


def read_activity(diagnosis: Diagnosis) -> list[ActiveCause]:
    """Causes with something to tell of when they were active, in the order of the diagnosis: all that were active
    in part of the run or in a rhythm, where they are named."""
    result = []
    for entry in diagnosis.to_json()["causes"]:
        active = entry.get("active")
        if not entry.get("named") or not isinstance(active, Mapping):
            continue
        text = str(active.get("text", ""))
        if text in ("", "throughout", "never"):
            continue
        spans = (tuple(map(finite, span)) for span in active.get("intervals_s", ()))
        told = tuple((a, b) for a, b in spans if a is not None and b is not None)
        result.append(ActiveCause(cause=str(entry.get("cause", "")), text=text, intervals_s=told))
    return result


def series(windows: Sequence[Mapping[str, Any]], key: str) -> list[float | None]:
    """One figure of every window; ``None`` where it is not told."""
    return [finite(window.get(key)) for window in windows]


@dataclass(frozen=True, slots=True)
class Sparkline:
    """One sign a window, as high as its value from zero; a blank where there is none."""

    values: Sequence[float | None]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(len(self.values), len(self.values))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        signs = _DIGITS if options.ascii_only else _BLOCKS
        top = max((value for value in self.values if value is not None), default=0.0)
        drawn = ["" if value is None or top <= 0 else signs[_height(value / top)] for value in self.values]
        yield Segment("".join(sign or " " for sign in drawn))


def _height(share: float) -> int:
    return min(max(int(share * len(_BLOCKS)), 0), len(_BLOCKS) - 1)


def render_windows(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """The run over time; nothing where the diagnosis has fewer than two windows and no cause to place in time."""
    windows, active = read_windows(diagnosis), read_activity(diagnosis)
    if len(windows) < 2 and not active:
        return
    yield heading("Over time")
    if len(windows) >= 2:
        yield _lines(windows)
    if active:
        yield _causes(active)


def _lines(windows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table.grid(padding=(0, 1))
    for _ in range(3):
        table.add_column(no_wrap=True)
    high = "p99_ms" if all(value is not None for value in series(windows, "p99_ms")) else "p95_ms"
    for key, words in (("p50_ms", milliseconds), (high, milliseconds), ("offered_rps", rate)):
        values = series(windows, key)
        known = [value for value in values if value is not None]
        if known:
            name = "rate" if key == "offered_rps" else key.removesuffix("_ms")
            table.add_row(name, Sparkline(values), f"{words(min(known))} to {words(max(known))}")
    start, end = finite(windows[0].get("start_s")), finite(windows[-1].get("end_s"))
    if start is not None and end is not None:
        each = (end - start) / len(windows)
        table.add_row("", Text(f"{len(windows)} windows", style="dim"), Text(f"of {each:,.3g} s", style="dim"))
    return table


def _causes(active: Sequence[ActiveCause]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, max_width=28, overflow="ellipsis")
    table.add_column(overflow="fold")
    for entry in active[:_LISTED]:
        table.add_row(safe(entry.cause, "bold", limit=60), safe(entry.text, limit=300))
    return table
