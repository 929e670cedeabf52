"""Progress of a replay on standard error: rate, requests in flight, running percentiles, time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from latfix.formatting import counted, milliseconds, rate, seconds
from latfix.lower_bound import in_unit
from latfix.run_record.schema import REQUEST_DTYPE
from latfix.statistics.censored import Outcomes

_LINE_INTERVAL_S = 5.0
_RATE_WINDOW_S = 5.0


class RunningLatencies:
    """The last 100,000 latencies of a run in progress, read from the segment that the runner appends to.

    Reading the file does not disturb the measured process.
    """

    def __init__(self, segment: Path) -> None:
        self._segment = segment
        self._offset = 0
        self._kept: list[Any] = []

    def update(self) -> tuple[float, float] | None:
        """Running p50 and p99 in milliseconds over the measured requests that ended, with any status."""
        try:
            with self._segment.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:  # not written yet, or already converted to Parquet
            data = b""
        whole = len(data) - len(data) % REQUEST_DTYPE.itemsize
        self._offset += whole
        rows = np.frombuffer(data[:whole], dtype=REQUEST_DTYPE)
        rows = rows[rows["warmup"] == 0]
        if len(rows):
            self._kept.append(rows[["latency_ns", "status"]].copy())
        if not self._kept:
            return None
        latest = np.concatenate(self._kept)[-100_000:]
        self._kept = [latest]
        p50, p99 = Outcomes.of(latest["latency_ns"], latest["status"]).percentiles_ns((50, 99))
        return in_unit(p50, 1e6), in_unit(p99, 1e6)


class ReplayProgress:
    """Shows a replay: one live line in a terminal, a plain line every five seconds elsewhere.

    :param requests: number of requests in the schedule.
    :param last_s: arrival time of the last one; the replay begins at ``from_s``.
    :param segment: the file that rows of ended requests are appended to.
    :param loading: true if the service is loaded first; loading reports no progress.
    """

    def __init__(
        self, *, label: str, requests: int, last_s: float, from_s: float = 0.0, segment: Path, loading: bool
    ) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, Progress, TextColumn

        self._label = label
        self._requests = requests
        self._last_s = last_s
        self._latencies = RunningLatencies(segment)
        span = seconds(last_s - from_s)
        self._first = "loading the model" if loading else f"{counted(requests, 'request')} in {span}"
        self._console = Console(file=sys.stderr)
        self._history: list[tuple[float, int]] = []
        self._next_line = 0.0
        self._live: Progress | None = None
        if self._console.is_terminal:
            self._live = Progress(
                TextColumn(f"[bold]{escape(label)}[/bold]"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[line]}", markup=False),
                console=self._console,
                transient=True,
                refresh_per_second=4,
                auto_refresh=False,
            )
            self._task = self._live.add_task("replay", total=requests, line=self._first)

    def __enter__(self) -> ReplayProgress:
        if self._live is not None:
            self._live.start()
            self._live.refresh()
        else:
            self._print(f"{self._label}: {self._first}")
            self._next_line = time.monotonic() + _LINE_INTERVAL_S
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Handle a message of the runner process."""
        if event["event"] == "warmup":
            self._show(0, f"warm-up {event['sent']}/{event['of']}")
        elif event["event"] == "hang":
            self._print(f"{self._label}: {event['message']}")
        elif event["event"] == "status":
            done = max(int(event["done"]), 0)
            self._show(done, self._line(event, done))

    def _line(self, event: Mapping[str, Any], done: int) -> str:
        now = float(event["at_ns"]) / 1e9
        self._history.append((now, done))
        while len(self._history) > 2 and now - self._history[0][0] > _RATE_WINDOW_S:
            self._history.pop(0)
        then, before = self._history[0]
        span = now - then
        served = (done - before) / span if span > 0 else 0.0
        percentiles = self._latencies.update()
        shown = ""
        if percentiles is not None:
            shown = f"p50 {milliseconds(percentiles[0])}  p99 {milliseconds(percentiles[1])}  "
        left = max(self._last_s - now, 0.0)
        end = "draining" if event["draining"] else f"{left:.0f} s left"
        return f"{done}/{self._requests}  {rate(served)}  in flight {event['in_flight']}  {shown}{end}"

    def _show(self, done: int, line: str) -> None:
        if self._live is not None:
            self._live.update(self._task, completed=done, line=line)
            self._live.refresh()
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_INTERVAL_S
            self._print(f"{self._label}: {line}")

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
