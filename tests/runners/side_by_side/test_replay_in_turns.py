"""Ideas side by side on simulated services and simulated time: order, budget, stretch, failures, Ctrl-C."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from latfix.config.workload_toml import WorkloadSpec
from latfix.errors import InputError, RunnerError
from latfix.results.comparison import Trial
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import REQUEST_DTYPE
from latfix.runners.replay.arm import Arm
from latfix.runners.replay.run_session import Interrupted, schedule_digest
from latfix.runners.replay.runner_process import LEAST_START_S
from latfix.runners.side_by_side.ideas import AS_IT_IS, Idea, idea_of_changes, together
from latfix.runners.side_by_side.replay_in_turns import MOST_ROUNDS, SideBySide
from latfix.settings import Objective, RunnerSettings
from latfix.stages import Status
from latfix.traffic.schedule import Traffic
from tests.records import build_record, zeros

LOAD_S = 2.0
SCORING_S = 1.0


@dataclass
class World:
    """Services whose latency is the factor that their environment names, and a clock that their replays move.

    :param slow: seconds of the traffic in which the service is slow.
    :param broken: arms that do not start; ``dying`` those that fail in the round of that number.
    :param overloaded: by arm, how many times the length of the traffic its requests take.
    :param scores: of arms; 0.9 for all others.
    """

    slow: tuple[float, float] = (0.0, 0.0)
    broken: set[str] = field(default_factory=set)
    dying: dict[str, int] = field(default_factory=dict)
    overloaded: dict[str, float] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    failing_once: set[str] = field(default_factory=set)
    late: set[tuple[str, int]] = field(default_factory=set)
    setup_notes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    interrupt_at: tuple[str, int] = ("", 0)
    now: float = 0.0
    replays: list[tuple[str, float]] = field(default_factory=list)
    scored: list[tuple[str, str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    patience: list[tuple[str, float]] = field(default_factory=list)
    looked: float = 0.0
    alive: int = 0

    def arm(self, label: str, _spec: Any, settings: RunnerSettings, _fixes: Any, _log: Path) -> Arm:
        return cast(Arm, FakeArm(self, label, settings))


@dataclass
class FakeArm:
    world: World
    label: str
    settings: RunnerSettings
    loaded: bool = False
    start_s: float = 0.0
    most_s: float = math.inf
    patience_s: Callable[[], float | None] = lambda: None

    def running(self) -> None:
        if self.label in self.world.broken:
            raise InputError("no such backend here")
        if not self.loaded:
            self.loaded, self.start_s = True, LOAD_S
            if (patient_s := self.patience_s()) is not None:
                self.world.patience.append((self.label, patient_s))
            self.world.now += LOAD_S
            self.world.alive += 1

    def close(self) -> None:
        self.world.alive -= self.loaded
        self.loaded = False

    def replay(self, folder: Path, traffic: Traffic, _watch: Any, *, seed: int) -> RunRecord:
        assert seed == 5 and not folder.exists()
        number = sum(label == self.label for label, _ in self.world.replays) + 1
        self.running()
        self.world.replays.append((self.label, round(traffic.duration_s, 1)))
        length_s = traffic.duration_s - traffic.start_s
        takes_s = length_s * self.world.overloaded.get(self.label, 1.0)
        self.world.now += min(takes_s, max(self.most_s, 1.25 * length_s))
        record = self._record(folder, traffic, number)
        folder.mkdir()
        if self.world.interrupt_at == (self.label, number):
            raise Interrupted(record)
        if self.world.dying.get(self.label) == number:
            raise RunnerError("the runner was killed")
        return record

    def ask(self, do: str, *, folder: str, **ways: Any) -> dict[str, Any]:
        assert do == "evaluate" and self.loaded, "the process that has replayed is scored"
        self.world.now += SCORING_S
        self.world.scored.append((self.label, Path(folder).name))
        self.world.looked = self.world.looked or self.world.now
        assert ("save" in ways) == (self.label == AS_IT_IS) and ("max_drop" in ways) != ("save" in ways)
        return {"score": self.world.scores.get(self.label, 0.9), "kind": "evaluate", "samples": 1000, "event": "done"}

    def _record(self, folder: Path, traffic: Traffic, number: int) -> RunRecord:
        n = len(traffic)
        rows = zeros(REQUEST_DTYPE, n)
        rows["index"], rows["arrival_ns"] = np.arange(n), traffic.arrival_ns.copy()
        place = traffic.features["number"] / 20.0
        own = np.where((place >= self.world.slow[0]) & (place < self.world.slow[1]), 80e6, 8e6)
        chance = np.random.default_rng([number, len(self.world.replays)]).normal(1.0, 0.01, n)
        factor = float(self.settings.env.get("FACTOR", "1"))
        rows["latency_ns"] = rows["compute_ns"] = (own * factor * chance).astype(np.int64)
        if (self.label, number) in self.world.late:
            rows["dispatch_ns"][:] = 500_000_000
        if self.label in self.world.failing:
            rows["status"][:] = Status.ERROR
        if self.label in self.world.failing_once:
            rows["status"][0] = Status.ERROR
        return build_record(
            rows,
            traffic=traffic,
            folder=folder,
            errors={0: "it raised ValueError"} if self.label in self.world.failing | self.world.failing_once else {},
            traffic_sha256=schedule_digest(traffic),
            scheduled=n,
            settings=self.settings,
            memory={"peak_bytes": 1000 * number},
            setup_notes=self.world.setup_notes.get(self.label, ()),
        )


def traffic_of(seconds: float, lead_s: float = 0.0) -> Traffic:
    """Twenty requests a second."""
    n = int(seconds * 20)
    return Traffic.plain(((lead_s + np.arange(n) / 20) * 1e9).astype(np.int64), features={"number": np.arange(n)})


Try = Callable[..., Trial]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def run(world: World, tmp_path: Path) -> Try:
    """Tries ideas by name, each a factor of the latency."""
    spec = WorkloadSpec(
        name="w",
        folder=tmp_path,
        entry="adapter:W",
        traffic=tmp_path / "t",
        objective=Objective(max_accuracy_drop=0.01),
    )

    def call(factors: dict[str, float], *, seconds: float = 10.0, lead_s: float = 0.0, **options: Any) -> Trial:
        base = Idea(name=AS_IT_IS, spec=spec, settings=RunnerSettings())
        ideas: Sequence[Idea] = [
            base,
            *(idea_of_changes(name, base, {"env": {"FACTOR": str(factor)}}) for name, factor in factors.items()),
        ]
        side_by_side = SideBySide(
            ideas,
            traffic_of(seconds, lead_s),
            tmp_path,
            seed=5,
            **options,
            watch=lambda *_: nullcontext(lambda *_: None),
            say=world.lines.append,
            make_arm=world.arm,
            clock=lambda: world.now,
        )
        try:
            return side_by_side.run()
        finally:
            assert world.alive == 0, "every process is gone at the end"

    return call


def verdicts(found: Trial) -> dict[str, str]:
    return {idea.name: idea.comparison.verdict for idea in found.ideas if idea.comparison is not None}


def test_arms_take_turns_and_each_gets_its_verdict(run: Try, world: World) -> None:
    found = run({"half": 0.5, "double": 2.0, "same": 1.0}, rounds=3)
    order = [label for label, _ in world.replays]
    there = [AS_IT_IS, "half", "double", "same"]
    assert order == [*there, *reversed(there), *there]
    assert verdicts(found)["half"] == "better" and verdicts(found)["double"] == "worse"
    assert verdicts(found)["same"] in ("no_difference", "undecided")
    assert found.best == "half" and (found.rounds, found.whole, found.requests) == (3, True, 200)
    half = found.ideas[0]
    assert half.comparison is not None and half.comparison.ratio["p99"].value == pytest.approx(0.5, rel=0.05)
    assert half.comparison.rounds == 3 and half.settings == {"env": {"FACTOR": "0.5"}}
    (why,) = half.comparison.why
    assert why.metric == "p99" and why.after_ms < why.before_ms
    assert not any(idea.comparison.why for idea in found.ideas[1:] if idea.comparison is not None)
    assert (half.start_s, half.memory_bytes) == (LOAD_S, 3000)
    assert found.summary is not None and sum(found.summary.requests.values()) == 600
    assert Trial.from_json(found.to_json()).to_json() == found.to_json()


def test_answers_are_scored_once_and_on_the_same_requests(run: Try, world: World) -> None:
    world.scores = {"bad": 0.8, "good": 0.895}
    found = run({"bad": 0.3, "good": 0.6}, rounds=2)
    assert world.scored == [(AS_IT_IS, "as-it-is-1"), ("bad", "as-it-is-1"), ("good", "as-it-is-1")]
    bad, good = found.ideas
    assert (bad.accuracy, bad.accurate, good.accuracy, good.accurate) == (0.8, False, 0.895, True)
    assert "0.9 -> 0.8" in bad.accuracy_reason and found.accuracy_limit == pytest.approx(0.89)
    assert found.best == "good", "what is faster and wrong is no best"
    assert good.comparison is not None
    assert (good.comparison.before.accuracy, good.comparison.after.accuracy) == (0.9, 0.895)


def test_the_whole_traffic_is_replayed_until_the_budget_ends(run: Try, world: World) -> None:
    found = run({"half": 0.5}, budget_s=120.0)
    assert found.whole and not found.notes
    assert 3 < found.rounds < MOST_ROUNDS
    assert world.now <= 120.0 + 15, "no more than the round that was under way"
    assert {seconds for _, seconds in world.replays} == {round(traffic_of(10.0).duration_s, 1)}


@pytest.mark.parametrize("slow", [[AS_IT_IS], ["HALF"], [AS_IT_IS, "HALF", "SAME"]], ids=["base", "idea", "all"])
def test_services_that_cannot_keep_up_keep_the_budget(slow: list[str], run: Try, world: World) -> None:
    world.overloaded = dict.fromkeys(slow, 30.0)
    found = run({"HALF": 0.5, "SAME": 1.0}, seconds=10.0, budget_s=120.0)
    assert found.rounds >= 1 and world.now <= 1.15 * 120.0


def test_a_recording_that_begins_late_takes_no_longer(run: Try, world: World) -> None:
    """Replays skip the hour before its first request."""
    found = run({"half": 0.5}, lead_s=3600.0, budget_s=120.0)
    assert found.whole and not found.notes and found.rounds > 3
    assert world.now <= 120.0 + 15


def test_a_stretch_with_slow_requests_is_replayed_if_the_whole_does_not_fit(run: Try, world: World) -> None:
    world.slow = (21.0, 25.0)
    found = run({"half": 0.5, "same": 1.0}, seconds=40.0, budget_s=160.0)
    assert not found.whole and found.rounds >= 3
    assert found.from_s <= 21.0 and found.to_s >= 24.9 and found.to_s - found.from_s < 20
    assert world.replays[0] == (AS_IT_IS, 40.0) and world.now <= 160.0 + 40
    leads, timed = world.replays[1::2], world.replays[2::2]
    assert [label for label, _ in leads] == [label for label, _ in timed], (
        "each process first serves what came before"
    )
    assert max(seconds for _, seconds in leads) <= 2.1 < min(seconds for _, seconds in timed)
    (note,) = found.notes
    assert "with the most slow requests" in note and "3 times for 3 arms" in note
    assert note in world.lines, "it is shown before the rounds"
    assert {folder for _, folder in world.scored} == {"as-it-is-1"}


def test_a_budget_for_fewer_rounds_is_filled_with_longer_ones(run: Try, world: World) -> None:
    """Three rounds of eleven arms do not fit; one of the shortest stretch would leave a quarter of it unused."""
    world.slow = (30.0, 33.0)
    found = run({f"idea {k}": 0.5 for k in range(10)}, seconds=60.0, budget_s=180.0)
    assert found.rounds == 1 and found.to_s - found.from_s > 5.0
    assert 0.85 * 180 < world.now <= 180.0


def test_of_long_traffic_only_the_beginning_is_searched(run: Try, world: World) -> None:
    world.slow = (900.0, 910.0)
    found = run({"half": 0.5}, seconds=1000.0, budget_s=100.0)
    assert world.replays[0] == (AS_IT_IS, 24.9)
    assert found.to_s <= 25.0 and "too short to replay all 1,000 s" in found.notes[0]
    assert found.notes[0].endswith("only its first 24.9 s were searched for slow requests.")
    assert verdicts(found)["half"] == "better" and world.now <= 100.0 + 25


def test_a_budget_below_one_round_is_said_to_be_too_short_before_it_begins(run: Try, world: World) -> None:
    found = run({f"idea {k}": 0.5 for k in range(10)}, seconds=60.0, budget_s=30.0)
    line = found.notes[-1]
    assert found.rounds == 1 and line in world.lines
    assert line.startswith("The rest of the budget is too short for one round of 11 arms, about ")
    foretold, enough = (float(word) for word in re.findall(r"about ([\d.]+) s.*--budget (\d+)m", line)[0])
    took_s = world.now - world.looked  # without the ends of replays, which take no time here
    assert took_s <= foretold < 1.3 * took_s
    assert run({f"idea {k}": 0.5 for k in range(10)}, seconds=60.0, budget_s=60 * enough).rounds > 1


def test_the_smallest_budget_replays_some_requests(run: Try, world: World) -> None:
    """However late the first one comes."""
    found = run({"half": 0.5}, lead_s=0.5, seconds=60.0, budget_s=0.01)
    assert found.rounds == 1 and found.requests > 0
    assert world.now < 60.0


def test_an_idea_may_take_its_share_of_the_budget_to_start_but_a_minute_in_any_case(run: Try, world: World) -> None:
    """The unmodified workload may load for as long as it takes."""
    run({"half": 0.5}, budget_s=1000.0, rounds=2)
    run({"half": 0.5}, budget_s=20.0, rounds=1)
    assert {label for label, _ in world.patience} == {"half"}
    long, later, short = (seconds for _, seconds in world.patience)
    assert long == later == 500.0 and short == LEAST_START_S


def test_why_requests_failed_is_said_once(run: Try, world: World) -> None:
    world.failing_once = {AS_IT_IS, "half"}
    assert run({"half": 0.5}).notes == (
        f"{AS_IT_IS}: 1 request of a replay failed; the first: it raised ValueError.",
    )


def test_settings_of_an_idea_that_are_not_in_effect_are_said_once(run: Try, world: World) -> None:
    world.setup_notes = {AS_IT_IS: ("no huge pages",), "half": ("no huge pages", "overlap needs a GPU")}
    found = run({"half": 0.5})
    assert found.rounds > 1 and found.notes == ("half: overlap needs a GPU.",)


@pytest.mark.parametrize("way", ["broken", "failing", "dying"])
def test_an_idea_that_fails_does_not_stop_the_others(way: str, run: Try, world: World) -> None:
    reason = {"broken": "no such backend", "failing": "it raised ValueError", "dying": "was killed"}[way]
    setattr(world, way, {"bad": 2} if way == "dying" else {"bad"})
    found = run({"bad": 0.1, "half": 0.5}, rounds=3)
    bad, half = found.ideas
    assert reason in bad.failure and bad.comparison is None and found.best == "half"
    assert half.comparison is not None and half.comparison.rounds == 3 and found.rounds == 3
    assert sum(label == "bad" for label, _ in world.replays) == {"broken": 0, "failing": 1, "dying": 2}[way]
    assert any(line.startswith("bad: failed: ") for line in world.lines)


@pytest.mark.parametrize("way", ["broken", "failing"])
def test_a_workload_that_does_not_run_is_an_error(way: str, run: Try, world: World) -> None:
    setattr(world, way, {AS_IT_IS})
    with pytest.raises((InputError, RunnerError)):
        run({"half": 0.5})
    assert not any(label == "half" for label, _ in world.replays)


def test_a_workload_that_dies_later_keeps_complete_rounds(run: Try, world: World) -> None:
    world.dying = {AS_IT_IS: 2}
    found = run({"half": 0.5}, rounds=4)
    assert "was killed" in found.failure and found.rounds == 1
    assert found.ideas[0].comparison is not None and found.ideas[0].comparison.rounds == 1


def test_after_an_interrupt_complete_rounds_are_kept(run: Try, world: World) -> None:
    world.interrupt_at = ("half", 2)  # the second round is: double, half, as it is
    found = run({"half": 0.5, "double": 2.0}, rounds=3)
    assert found.interrupted and found.rounds == 1
    assert [idea.comparison and idea.comparison.rounds for idea in found.ideas] == [1, 1]


def test_an_interrupt_in_the_first_replay_leaves_no_figures(run: Try, world: World) -> None:
    world.interrupt_at = (AS_IT_IS, 1)
    found = run({"half": 0.5})
    assert found.interrupted and found.rounds == 0 and found.summary is None
    assert found.ideas[0].comparison is None and not found.ideas[0].failure and found.best == ""


def test_late_rounds_are_left_out(run: Try, world: World) -> None:
    world.late = {("half", 2)}
    found = run({"half": 0.5, "double": 2.0}, rounds=4)
    rounds = [idea.comparison.rounds for idea in found.ideas if idea.comparison]
    assert rounds == [3, 4] and "half: 1 of 4 rounds is left out" in found.notes[0]


def test_settings_are_combined_unless_they_conflict() -> None:
    both = together([{"workers": 2, "env": {"A": "1"}}, {"precision": "bf16", "env": {"B": "2"}}])
    assert both == {"workers": 2, "precision": "bf16", "env": {"A": "1", "B": "2"}}
    for wrong in ([{"workers": 2}], [{"workers": 2}, {"workers": 3}]):
        with pytest.raises(InputError, match="--combine: found"):
            together(wrong)
