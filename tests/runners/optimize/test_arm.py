"""An arm and the process behind it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from latfix.config.workload_toml import WorkloadSpec
from latfix.errors import RunnerError
from latfix.run_record.run_meta import RunMeta
from latfix.runners.replay.arm import Arm
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic


class FakeProcess:
    """As :class:`RunnerProcess`: dies of the command ``die`` and answers nothing after it."""

    made: ClassVar[list[FakeProcess]] = []
    device: ClassVar[str] = "cpu"

    def __init__(self, *_: object) -> None:
        self.commands: list[str] = []
        self.silent_s: list[float | None] = []
        self.ready: dict[str, Any] = {}
        self.made.append(self)

    def launch(self) -> None:
        self.commands.append("launch")

    def start(self, timeout_s: float | None = None) -> dict[str, Any]:
        self.commands.append("start")
        self.silent_s.append(timeout_s)
        self.ready = {"device": self.device}
        return self.ready

    def command(self, do: str, timeout_s: float | None = None, **_: object) -> Any:
        self.commands.append(do)
        self.silent_s.append(timeout_s)
        if "die" in self.commands:
            raise RunnerError("the runner was killed")
        return {}

    def resume(self) -> None:
        self.commands.append("resume")

    def pause(self) -> None:
        self.commands.append("pause")

    def close(self) -> None:
        self.commands.append("close")


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Arm:
    monkeypatch.setattr("latfix.runners.replay.arm.RunnerProcess", FakeProcess)
    monkeypatch.setattr(FakeProcess, "made", [])
    spec = WorkloadSpec(name="w", folder=tmp_path, entry="a:W", traffic=tmp_path / "t")
    return Arm("x", spec, RunnerSettings(), (), tmp_path / "log")


def test_an_arm_whose_process_died_starts_another(arm: Arm, tmp_path: Path) -> None:
    arm.prime(tmp_path)
    assert arm.primed and not arm.failed
    with pytest.raises(RunnerError, match="killed"):
        arm.ask("die")
    assert arm.failed and not arm.primed
    arm.ask("evidence")
    assert not arm.failed
    first, second = FakeProcess.made
    assert first.commands[:8] == ["launch", "start", "resume", "prime", "pause", "resume", "die", "close"]
    # Stopped whenever it is not at work, so that it takes nothing from the other arm.
    assert second.commands == ["launch", "start", "resume", "evidence", "pause"]


@pytest.mark.parametrize(
    ("found", "goes_on"),
    [
        ({"device_profile": [], "device_profile_failure": "CUPTI refused"}, True),
        ({"device_profile_failure": "the runner has said nothing for 120 s"}, False),
    ],
)
def test_a_profile_that_never_came_ends_the_process(
    arm: Arm, monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], goes_on: bool
) -> None:
    """It hangs in the profiler, or is gone: the next command would wait in vain."""
    monkeypatch.setattr(FakeProcess, "device", "cuda:0")
    monkeypatch.setattr("latfix.runners.replay.arm.device_profile", lambda *_: found)
    record: Any = SimpleNamespace(meta=RunMeta(device="cuda:0"))
    assert arm.profile(record) == found
    assert arm.loaded == goes_on
    arm.ask("evaluate")
    assert len(FakeProcess.made) == (1 if goes_on else 2)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("how", ["evidence", "profile"])
def test_an_arm_knows_that_a_profile_was_taken_in_its_process(
    arm: Arm, monkeypatch: pytest.MonkeyPatch, device: str, how: str
) -> None:
    monkeypatch.setattr(FakeProcess, "device", device)
    monkeypatch.setattr("latfix.runners.replay.arm.device_profile", lambda *_: {"device_profile": []})
    arm.ask("pace")
    arm.ask("evaluate")
    assert arm.loaded and not arm.profiled
    if how == "profile":
        record: Any = SimpleNamespace(meta=RunMeta(device=device))
        arm.profile(record)
    else:
        arm.ask(how)
    assert arm.profiled == (device != "cpu")
    arm.restart()
    assert not arm.profiled and not arm.loaded
    assert arm.ready_message == {"device": device}, "its report is known without a restart"


def test_two_load_at_once_and_wait_until_they_are_needed(arm: Arm) -> None:
    arm.launch()
    (process,) = FakeProcess.made
    assert arm.loaded and process.commands == ["launch"] and not arm.ready_message
    arm.start()
    assert process.commands == ["launch", "start", "pause"] and arm.ready_message == {"device": "cpu"}
    arm.running()
    assert FakeProcess.made == [process] and process.commands == ["launch", "start", "pause"]


def test_a_process_may_be_silent_as_long_as_its_arm_is_patient(arm: Arm) -> None:
    arm.ask("facts")
    arm.patience_s = iter([7.0, 5.0]).__next__
    arm.ask("evaluate")
    arm.restart()
    arm.running()
    first, second = FakeProcess.made
    assert first.silent_s == [None, None, 7.0] and second.silent_s == [5.0]


def test_a_process_compiles_in_the_time_of_its_start(
    arm: Arm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limits: list[float | None] = []
    monkeypatch.setattr("latfix.runners.replay.arm.prepare_folder", lambda *_: None)
    monkeypatch.setattr("latfix.runners.replay.arm.replay_into", lambda *_, starts_s, **__: limits.append(starts_s))
    arm.patience_s = lambda: 7.0
    arm.replay(tmp_path, Traffic.plain(np.zeros(1, np.int64)), lambda *_: nullcontext(print), seed=0)
    assert limits == [7.0]
