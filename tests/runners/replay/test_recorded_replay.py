"""A replay ends early if a thread of the service dies, if it falls behind, or if all requests fail alike."""

from __future__ import annotations

import math
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from latfix.cli.app import main
from latfix.config.workload_toml import load_spec
from latfix.errors import EXIT_RUNNER, RunnerError
from latfix.profilers.diagnose import diagnose
from latfix.profilers.probes.stage_recorder import StageRecorder
from latfix.results.comparison import compare_records
from latfix.run_record.run_record import RunRecord
from latfix.runners.optimize.screening_windows import served_part
from latfix.runners.replay import recorded_replay
from latfix.runners.replay.arm import Arm
from latfix.runners.replay.batch_watchdog import BatchWatchdog
from latfix.runners.replay.recorded_replay import ThreadDeaths
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic
from tests.conftest import write_workload


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


@pytest.mark.parametrize(
    ("limit_s", "after_s"), [(60.0, 300.0), (1200.0, 1200.0), (0.0, None)], ids=["usual", "longer", "none"]
)
def test_a_replay_in_which_nothing_ends_is_given_up_by_the_limit_of_a_batch(
    limit_s: float, after_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], perf_counter_ns=lambda: int(now[0] * 1e9))
    monkeypatch.setattr(recorded_replay, "time", clock)
    engine: Any = SimpleNamespace(
        in_flight=2,
        queue=(),
        failures=SimpleNamespace(given_up=lambda *_: ""),
        settings=RunnerSettings(),
        workers=[],
        thread_ids=lambda: {"worker": [], "prepare": []},
    )
    parent: Any = SimpleNamespace(send=lambda _: None)
    writer: Any = SimpleNamespace(error=None)
    recorder, stop = StageRecorder(2), threading.Event()
    watchdog = BatchWatchdog(engine, recorder, limit_s)
    status: Any = recorded_replay._StatusLines(parent, engine, recorder, stop, writer, watchdog)

    def wait(_: float) -> bool:
        now[0] += 10.0
        return stop.is_set() or now[0] > 2000.0

    status._stop = SimpleNamespace(wait=wait)
    status._run()
    assert bool(status.stalled) is stop.is_set() is (after_s is not None)
    if after_s is not None:
        assert after_s < now[0] <= after_s + 40
        assert status.stalled == f"no request ended for {after_s:.0f} s with 2 requests in flight; gave up"


@pytest.mark.parametrize("begins_s", [0, 300])
@pytest.mark.slow
def test_a_service_that_falls_behind_is_ended_and_serves_again(begins_s: int, tmp_path: Path) -> None:
    # GIVEN 100 requests within 0.2 s, each of which takes 20 ms alone, and less time than a few of them take
    adapter = """
        import time, torch
        from latfix import Workload
        class Slow(Workload):
            def load(self, device):
                return lambda x: (time.sleep(0.02), x)[1]
            def prepare(self, request):
                return torch.ones(1)
    """
    spec = load_spec(str(write_workload(tmp_path / "w", adapter=adapter, runner={"max_batch_size": 1})))
    traffic = Traffic.plain(begins_s * 10**9 + np.arange(100) * 2_000_000)
    arm = Arm("slow", spec, RunnerSettings(device="cpu", max_batch_size=1), (), tmp_path / "runner.log", most_s=0.1)

    def replay(name: str, traffic: Traffic) -> RunRecord:
        return arm.replay(tmp_path / name, traffic, lambda *_: nullcontext(lambda _: None), seed=0)

    try:
        record = replay("first", traffic)
        served = served_part(record)
        arm.most_s = math.inf
        again, whole = replay("again", served.traffic), replay("whole", traffic)
    finally:
        arm.close()
    # THEN its record is complete: twenty requests or more were answered, and the rest is lost
    counts, behind_s = record.counts(), record.meta.behind_s
    assert not record.partial and 20 <= counts["ok"] == 100 - counts["timeout"] < 100 and behind_s is not None
    assert any("arrive faster" in note for note in diagnose(record).notes)
    # AND the process goes on with what it served, without a backlog of the rest
    assert len(served.traffic) == again.counts()["ok"] == counts["ok"] and served.meta.behind_s is None
    # AND beside one that answered all it is no better
    comparison = compare_records(whole, record)
    assert comparison.verdict not in ("better", "no_difference")
    assert any(f"new serves them: its replay was ended after {behind_s:.0f} s" in note for note in comparison.notes)


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
