"""A replay ends early with a reason if a thread of the service dies, or if all requests fail alike."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from latfix.cli.app import main
from latfix.errors import EXIT_RUNNER, RunnerError
from latfix.run_record.run_record import RunRecord
from latfix.runners.replay.recorded_replay import ThreadDeaths


@pytest.mark.parametrize(("name", "ends"), [("latfix-worker-0", True), ("refresher", False)])
def test_a_dead_worker_stops_the_replay_and_a_thread_of_user_code_does_not(
    name: str, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    stop, hook = threading.Event(), threading.excepthook
    with ThreadDeaths(stop) as deaths:
        deaths.check()
        thread = threading.Thread(target=int, args=("half a sentence",), name=name)
        thread.start()
        thread.join()
        assert stop.is_set() is ends and len(reported) == 1
        with pytest.raises(RunnerError, match=f"{name} .*ValueError.*half a sentence") if ends else nullcontext():
            deaths.check()
    assert threading.excepthook is hook, "hooks of later replays do not stack"


_BROKEN = """
import torch
from latfix import Workload

class Broken(Workload):
    def load(self, device):
        return torch.nn.Linear(4, 2).eval()

    def prepare(self, request):
        return torch.zeros(5)
"""


@pytest.mark.slow
def test_a_model_that_always_raises_ends_the_replay_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = tmp_path / "w", tmp_path / "run"
    folder.mkdir()
    (folder / "workload.py").write_text(_BROKEN)
    (folder / "workload.toml").write_text(
        '[workload]\nname = "w"\nentry = "workload:Broken"\ntraffic = "t.jsonl"\n[runner]\ndevice = "cpu"\n'
    )
    (folder / "t.jsonl").write_text("".join(f'{{"arrival_s": {k / 100}}}\n' for k in range(6000)))
    assert main(["diagnose", str(folder), "--out", str(out)]) == EXIT_RUNNER
    assert "failed in the same way: the model raised RuntimeError" in capsys.readouterr().err.splitlines()[-1]
    assert len(RunRecord.load(out).requests["index"]) < 3000
