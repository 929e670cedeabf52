"""Progress lines of replays: how busy the machine is comes before the first, and where it changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from latfix.cli.shared.replay_progress import ReplayLines, progress_of
from latfix.profilers.probes.neighbor_watch import ALL_SERIES, NeighborWatch
from latfix.traffic.schedule import Traffic

TRAFFIC = Traffic.plain(np.array([0, 1_000_000]))


@pytest.mark.parametrize(("waited", "warned"), [(0.34, True), (0.02, False), (None, False)])
@pytest.mark.parametrize("shown", [True, False])
def test_a_busy_machine_is_reported_before_a_replay_and_once(
    waited: float | None,
    warned: bool,
    shown: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("latfix.runners.replay.run_session.waited_before", lambda: waited)
    monkeypatch.setattr("latfix.profilers.causes.host.core_takers.last_takers", lambda _: "others did" * warned)
    lines = ReplayLines()
    assert capsys.readouterr().err == ""
    for _ in range(2):
        with (lines.replay if shown else lines.hidden)("ranker", TRAFFIC, tmp_path):
            pass
    err = capsys.readouterr().err
    assert err.count("The machine is busy: in 34 % of the last minute") == warned
    assert err.count("busy") == warned


def test_the_time_before_a_late_first_request_is_not_awaited(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with progress_of("ranker", Traffic.plain(np.array([1000, 1060]) * 10**9), tmp_path):
        pass
    assert capsys.readouterr().err == "ranker: 2 requests in 60.0 s\n"


def test_a_neighbor_that_comes_between_two_replays_is_named_and_its_end_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("latfix.runners.replay.run_session.waited_before", lambda: 0.0)
    spent = iter([0.0, 0.0, 1.5, 1.5, 0.0])

    def look(watch: NeighborWatch) -> None:
        now, cores = len(watch.samples) + 1, next(spent)
        watch.samples.append((now * 10**9, ALL_SERIES, cores * 10**9))
        if cores:
            watch.samples += [(now * 10**9, "other.77.stress.spent_ns", cores * 10**9)]

    monkeypatch.setattr(NeighborWatch, "look", look)
    lines, said = ReplayLines(), []
    for _ in range(5):
        with lines.hidden("ranker", TRAFFIC, tmp_path):
            said.append(capsys.readouterr().err.strip())
    assert said[2].startswith("The machine is busy: since the last replay began, others used ")
    assert "stress (process 77)" in said[2]
    assert said[0] == said[1] == said[3] == "" and said[4] == "The machine is no longer busy."
