"""Replays with progress on standard error: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from latfix.reports.replay_progress import ReplayProgress
    from latfix.run_record.run_record import RunRecord
    from latfix.runners.replay.run_session import Replay
    from latfix.runners.replay.runner_process import OnEvent
    from latfix.traffic.schedule import Traffic


def progress_of(label: str, traffic: Traffic, folder: Path, *, loading: bool = False) -> ReplayProgress:
    """Progress of a replay into ``folder``; with ``loading``, the service is loaded first."""
    from latfix.reports.replay_progress import ReplayProgress

    return ReplayProgress(
        label=label,
        requests=len(traffic),
        last_s=traffic.duration_s,
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

    Before the first replay, warns if the machine was busy.
    """

    def __init__(self) -> None:
        from rich.console import Console

        from latfix.run_record.run_meta import busy_words
        from latfix.runners.replay.run_session import waited_before

        self._console = Console(stderr=True, highlight=False)
        self._busy = busy_words(waited_before())  # before latfix itself causes load

    def say(self, line: str) -> None:
        """Print a line."""
        self._console.print(line, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def replay(self, label: str, traffic: Traffic, folder: Path, *, loading: bool = False) -> Iterator[OnEvent]:
        """Show one replay while it runs; with ``loading``, the service is loaded first."""
        if self._busy:
            self.say(f"The machine is busy: {self._busy}. Stop other processes, or expect noisy figures.")
            self._busy = ""
        with progress_of(label, traffic, folder, loading=loading) as progress:
            yield progress.on_event


@contextlib.contextmanager
def unwatched(_label: str, _traffic: Traffic, _folder: Path) -> Iterator[OnEvent]:
    """A replay that shows nothing."""
    yield lambda _event: None
