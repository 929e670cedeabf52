"""Progress of a replay without a terminal: few lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from latfix.reports.progress_lines import ReplayProgress


def status(at_s: float, done: int, *, draining: bool = False) -> dict[str, Any]:
    return {"event": "status", "at_ns": at_s * 1e9, "done": done, "in_flight": 2, "draining": draining}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the progress display."""
    now = [100.0]
    monkeypatch.setattr("latfix.reports.progress_lines.time.monotonic", lambda: now[0])
    return now


def shown(folder: Path, *, loading: bool) -> ReplayProgress:
    return ReplayProgress(label="before", requests=90, last_s=6.25, segment=folder / "absent.bin", loading=loading)


@pytest.mark.parametrize(("loading", "first"), [(True, "loading the model"), (False, "90 requests in 6.25 s")])
def test_a_replay_begins_with_what_is_awaited(
    loading: bool, first: str, tmp_path: Path, clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with shown(tmp_path, loading=loading) as replay:
        replay.on_event(status(0.0, 0))  # nothing was sent yet
        clock[0] += 4.9
        replay.on_event(status(4.9, 40))
    assert capsys.readouterr().err.splitlines() == [f"before: {first}"]


def test_a_line_every_five_seconds(tmp_path: Path, clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with shown(tmp_path, loading=False) as replay:
        for second in range(12):
            replay.on_event(status(second, 10 * second, draining=second > 6))
            clock[0] += 1.0
    lines = capsys.readouterr().err.splitlines()
    assert lines[1:] == [
        "before: 50/90  10.0/s  in flight 2  1 s left",
        "before: 100/90  10.0/s  in flight 2  draining",
    ]


def test_long_replays_and_high_rates_have_plain_numbers(
    tmp_path: Path, clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    del clock
    cases = ((1, 0.177, "1 request in 0.177 s"), (35_500, 12_345.0, "35,500 requests in 12,345 s"))
    for requests, last_s, first in cases:
        segment = tmp_path / "x"
        with ReplayProgress(label="a", requests=requests, last_s=last_s, segment=segment, loading=False) as replay:
            replay._line(status(0.0, 0), 0)
            assert "  2,500/s  " in replay._line(status(4.0, 10_000), 10_000)
        assert capsys.readouterr().err == f"a: {first}\n"
