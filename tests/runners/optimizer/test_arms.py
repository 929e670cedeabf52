"""An arm and the process behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from latfix.errors import RunnerError
from latfix.runners.arms import Arm
from latfix.settings import RunnerSettings
from latfix.spec import WorkloadSpec


class FakeProcess:
    """As :class:`latfix.runners.process.RunnerProcess`: dies of the command ``die`` and answers nothing after it."""

    made: ClassVar[list[FakeProcess]] = []

    def __init__(self, *_: object) -> None:
        self.said: list[str] = []
        self.ready: dict[str, Any] = {}
        self.made.append(self)

    def start(self) -> None:
        self.said.append("start")

    def command(self, do: str, **_: object) -> Any:
        self.said.append(do)
        if "die" in self.said:
            raise RunnerError("the runner was killed")
        return {}

    def resume(self) -> None:
        self.said.append("resume")

    def pause(self) -> None:
        self.said.append("pause")

    def close(self) -> None:
        self.said.append("close")


def test_an_arm_whose_process_died_starts_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("latfix.runners.arms.RunnerProcess", FakeProcess)
    monkeypatch.setattr(FakeProcess, "made", [])
    spec = WorkloadSpec(name="w", folder=tmp_path, entry="a:W", traffic=tmp_path / "t")
    arm = Arm("x", spec, RunnerSettings(), (), tmp_path / "log")
    arm.prime(tmp_path)
    assert arm.primed and not arm.failed
    with pytest.raises(RunnerError, match="killed"):
        arm.ask("die")
    assert arm.failed and not arm.primed
    arm.ask("evidence")
    assert not arm.failed
    first, second = FakeProcess.made
    assert first.said[:7] == ["start", "resume", "prime", "pause", "resume", "die", "close"]
    # Stopped whenever it is not at work, so that it takes nothing from the other arm.
    assert second.said == ["start", "resume", "evidence", "pause"]
