"""Replays with progress on standard error: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from latfix.reports.progress_lines import ReplayProgress
    from latfix.run_record.run_record import RunRecord
    from latfix.runners.replay.run_session import Replay
    from latfix.runners.replay.runner_process import OnEvent
    from latfix.traffic.schedule import Traffic


def progress_of(label: str, traffic: Traffic, folder: Path, *, loading: bool = False) -> ReplayProgress:
    """Progress of a replay into ``folder``; with ``loading``, the service is loaded first."""
    from latfix.reports.progress_lines import ReplayProgress

    return ReplayProgress(
        label=label,
        requests=len(traffic),
        last_s=traffic.duration_s,
        from_s=traffic.start_s,
        segment=folder / "segments" / "requests.bin",
        loading=loading,
    )


def replay_with_progress(folder: Path, replay: Replay) -> RunRecord:
    """Replay into ``folder`` with progress on standard error."""
    from latfix.runners.replay.run_session import run

    with ReplayLines().replay(replay.spec.name, replay.traffic, folder, loading=True) as on_event:
        return run(folder, replay, on_event=on_event)


class ReplayLines:
    """Progress of several replays on standard error, with lines between them.

    Warns before a replay if the machine is busy, and again only after that has changed.
    """

    def __init__(self) -> None:
        from rich.console import Console

        from latfix.profilers.probes.neighbor_watch import NeighborWatch
        from latfix.run_record.run_meta import busy_words
        from latfix.runners.replay.run_session import waited_before

        self._console = Console(stderr=True, highlight=False)
        self._busy = busy_words(waited_before())  # before latfix itself causes load
        self._busy_said = False
        self._neighbors = NeighborWatch({os.getpid()})

    def say(self, line: str) -> None:
        """Print a line."""
        self._console.print(line, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def replay(self, label: str, traffic: Traffic, folder: Path, *, loading: bool = False) -> Iterator[OnEvent]:
        """Show one replay while it runs; with ``loading``, the service is loaded first."""
        self._check()
        with progress_of(label, traffic, folder, loading=loading) as progress:
            yield progress.on_event

    @contextlib.contextmanager
    def hidden(self, _label: str, _traffic: Traffic, _folder: Path) -> Iterator[OnEvent]:
        """A replay that shows no progress."""
        self._check()
        yield lambda _event: None

    def _check(self) -> None:
        """Say if the machine became busy or quiet.

        Before the first replay, waits for a core show it. Later these are latfix's own, and the CPU time of other
        processes since the last replay began shows it.
        """
        from latfix.profilers.causes.host.core_takers import last_takers

        again = bool(self._neighbors.samples)
        self._neighbors.look()
        taken = last_takers(self._neighbors.samples) if again else ""
        busy = taken and f"since the last replay began, {taken}" if again else self._busy
        if busy and not self._busy_said:
            self.say(f"The machine is busy: {busy}. Stop other processes, or expect noisy figures.")
        elif self._busy_said and not busy:
            self.say("The machine is no longer busy.")
        self._busy_said = bool(busy)
