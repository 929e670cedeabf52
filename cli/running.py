"""A replay with its progress on the terminal: a live line, or plain lines where nobody watches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from latfix.record import RunRecord
    from latfix.runners.session import Replay


def replay_with_progress(folder: Path, replay: Replay) -> RunRecord:
    """Replay into ``folder``, showing how it goes on standard error."""
    from latfix.reports.progress import ReplayProgress
    from latfix.runners.session import run

    traffic = replay.traffic
    first_s = float(traffic.arrival_ns[0]) / 1e9
    with ReplayProgress(
        label=replay.spec.name,
        requests=len(traffic),
        first_s=first_s if first_s > 1.0 else 0.0,
        last_s=traffic.duration_s,
        segment=folder / "segments" / "requests.bin",
    ) as progress:
        return run(folder, replay, on_event=progress.on_event)
