"""Services that fail, and Ctrl-C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from latfix.errors import RunnerError
from latfix.run_record.run_record import RunRecord
from latfix.runners.replay.run_session import Interrupted
from latfix.stages import Status


def test_a_service_that_does_not_start_with_a_fix(search: Any, world: Any) -> None:
    world.broken = {"B"}
    outcome = search(world.fix("B", 0.5), world.fix("A", 0.5))
    assert world.statuses(outcome) == {"a.B": "not_effective", "a.A": "kept"}
    assert "it does not load" in world.step(outcome, "B").reason
    assert "B" not in outcome.settings.env


def test_a_failure_without_the_fix_does_not_count_against_it(search: Any, world: Any) -> None:
    """The base dies once in the screening of A: A is undecided, and B is tried on a new process."""
    died: list[str] = []

    def die_once(arm: Any, name: str) -> None:
        if arm.label == "before" and name.startswith("001-") and not died:
            died.append(name)
            arm.close()
            arm.failed = True
            raise RunnerError("the runner was killed")

    world.on_replay = die_once
    outcome = search(world.fix("A", 0.5), world.fix("B", 0.5))
    assert died
    assert world.statuses(outcome) == {"a.A": "undecided", "a.B": "kept"}
    assert "without it" in world.step(outcome, "A").reason


def test_a_baseline_without_an_answer_is_the_workload_s_failure(
    search: Any, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = world.arm_class.replay

    def failing(*arguments: Any, **options: Any) -> RunRecord:
        record: RunRecord = replay(*arguments, **options)
        record.requests["status"][:] = Status.ERROR
        return record

    monkeypatch.setattr(world.arm_class, "replay", failing)
    with pytest.raises(RunnerError, match="no request of the baseline ended ok"):
        search(world.fix("A", 0.5))


@pytest.mark.parametrize("in_order", [True, False])
def test_an_interrupted_search_keeps_its_results(search: Any, world: Any, in_order: bool) -> None:
    """Ctrl-C ends a replay in order, or comes where none runs."""

    def stop(arm: Any, name: str) -> None:
        if arm.label == "a.B":
            record = world.simulated(Path(name), world.traffic(), 1.0, 0, arm.settings)
            raise Interrupted(record) if in_order else KeyboardInterrupt

    world.on_replay = stop
    outcome = search(world.fix("A", 0.5), world.fix("B", 0.5), world.fix("C", 0.5))
    assert outcome.interrupted
    assert world.statuses(outcome) == {"a.A": "kept"}
    assert dict(outcome.settings.env) == {"A": "0.5"}
    assert outcome.final is None and outcome.verdict == "inconclusive"
    assert any("Interrupted" in note for note in outcome.notes)


def test_an_interrupted_baseline_leaves_nothing(search: Any, world: Any) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    world.on_replay = stop
    with pytest.raises(KeyboardInterrupt):
        search(world.fix("A", 0.5))
    assert not any(arm.alive for arm in world.arms)
