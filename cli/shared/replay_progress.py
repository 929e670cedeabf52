"""A replay with its progress on the terminal: a live line, or plain lines where nobody watches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from latfix.reports.replay_progress import ReplayProgress
    from latfix.run_record.run_record import RunRecord
    from latfix.runners.replay.run_session import Replay
    from latfix.traffic.schedule import Traffic


def progress_of(label: str, traffic: Traffic, folder: Path, *, loading: bool = False) -> ReplayProgress:
    """Progress of a replay of ``traffic`` that is recorded in ``folder``; ``loading``: once the service is."""
    from latfix.reports.replay_progress import ReplayProgress

    return ReplayProgress(
        label=label,
        requests=len(traffic),
        last_s=traffic.duration_s,
        segment=folder / "segments" / "requests.bin",
        loading=loading,
    )


def replay_with_progress(folder: Path, replay: Replay) -> RunRecord:
    """Replay into ``folder``, showing how it goes on standard error."""
    from latfix.runners.replay.run_session import run

    with progress_of(replay.spec.name, replay.traffic, folder, loading=True) as progress:
        return run(folder, replay, on_event=progress.on_event)
