"""Progress lines of replays: how busy the machine is comes before the first, once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from latfix.cli.shared.replay_progress import ReplayLines
from latfix.traffic.schedule import Traffic


@pytest.mark.parametrize(("waited", "warnings"), [(0.34, 1), (0.02, 0), (None, 0)])
def test_a_busy_machine_is_reported_once_and_only_for_a_replay(
    waited: float | None,
    warnings: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("latfix.runners.replay.run_session.waited_before", lambda: waited)
    lines = ReplayLines()
    assert capsys.readouterr().err == ""
    traffic = Traffic.plain(np.array([0, 1_000_000]))
    for _ in range(2):
        with lines.replay("ranker", traffic, tmp_path):
            pass
    err = capsys.readouterr().err
    assert err.count("The machine is busy: in 34 % of the last minute") == warnings
