"""The search itself, on simulated services and simulated time: no process starts, and a minute takes none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from latfix.columns import BATCH_DTYPE, EVENT_FIELDS, REQUEST_DTYPE, SAMPLE_FIELDS
from latfix.diagnosis import CauseSummary, Diagnosis, Ledger
from latfix.errors import RunnerError
from latfix.record import RunRecord
from latfix.runners.arms import Arm
from latfix.runners.fixes import Applied, Context, Fix, Verified
from latfix.runners.optimizer import Optimizer, Options, Outcome
from latfix.runners.session import Interrupted, schedule_digest
from latfix.runners.steps import Step
from latfix.settings import Objective, RunnerSettings
from latfix.spec import WorkloadSpec
from latfix.stages import Status
from latfix.statistics import LATENCY_KEYS
from latfix.traffic.model import Traffic

LOAD_S = 2.0


@dataclass
class World:
    """The services, by what ``settings.env`` says: each variable is a factor of the latency.

    :param scores: accuracy of a service with that variable.
    :param broken: variables with which the service does not start.
    :param silent: variables that take no effect.
    :param on_replay: called before every replay, with the arm.
    :param warm_s: seconds that a process takes before its first replay, beside loading.
    """

    scores: dict[str, float] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    on_replay: Callable[[FakeArm, str], None] = lambda *_: None
    evaluates: bool = True
    noise: float = 0.002
    warm_s: float = 0.0
    now: float = 0.0
    replays: list[tuple[str, str, bool]] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    arms: list[FakeArm] = field(default_factory=list)


class FakeArm:
    """As :class:`latfix.runners.arms.Arm`, without a process."""

    world: World

    def __init__(
        self,
        label: str,
        spec: WorkloadSpec,
        settings: RunnerSettings,
        fixes: tuple[str, ...],
        log: Path,
        accuracy: float | None = None,
    ) -> None:
        self.label, self.spec, self.settings, self.fixes, self.log = label, spec, settings, fixes, log
        self.accuracy, self.primed, self.failed, self.alive = accuracy, False, False, False
        self.world.arms.append(self)

    @property
    def ready(self) -> Mapping[str, Any]:
        self.running()
        return {"evaluates": self.world.evaluates, "default_collate": True}

    def running(self) -> None:
        if not self.alive:
            if self.world.broken & set(self.settings.env):
                self.failed = True
                raise RunnerError("it does not load")
            self.alive, self.failed = True, False
            self.world.now += LOAD_S

    def restart(self) -> None:
        self.close()

    def close(self) -> None:
        self.alive = self.primed = False

    def prime(self, _folder: Path) -> None:
        self.running()
        self.primed = True

    def ask(self, do: str, **_more: Any) -> Any:
        self.running()
        self.world.asked.append((self.label, do))
        if do == "evaluate":
            return {"score": min([1.0, *(self.world.scores.get(name, 1.0) for name in self.settings.env)])}
        return {"evidence": {"env": dict(self.settings.env)}}

    def replay(self, folder: Path, traffic: Traffic, _watch: Any, **_seed: int) -> RunRecord:
        cold = not self.alive
        self.running()
        self.world.on_replay(self, folder.name)
        self.world.replays.append((self.label, folder.name, cold))
        self.world.now += traffic.duration_s + (self.world.warm_s if cold else 0.0)
        factor = float(np.prod([float(v) for k, v in self.settings.env.items() if k not in self.world.silent]))
        return simulated(self.world, folder, traffic, factor, len(self.world.replays), self.settings)


def simulated(
    world: World, folder: Path, traffic: Traffic, factor: float, number: int, settings: RunnerSettings
) -> RunRecord:
    n = len(traffic)
    own = np.random.default_rng(3).gamma(9.0, 2e6, 10_000)[traffic.features["number"]]
    rows = {name: np.zeros(n, dtype=np.int64) for name in REQUEST_DTYPE.names or ()}
    rows["index"], rows["arrival_ns"] = np.arange(n), traffic.arrival_ns.copy()
    chance = np.random.default_rng(number).normal(1.0, world.noise, n)
    rows["latency_ns"] = (own * factor * chance).astype(np.int64)
    batches = {name: np.zeros(n, dtype=np.int64) for name in BATCH_DTYPE.names or ()}
    batches["batch_id"] = rows["batch_id"] = np.arange(n)
    return RunRecord(
        folder=folder,
        meta={
            "traffic_sha256": schedule_digest(traffic),
            "scheduled": n,
            "machine": {"cores": 2},
            "settings": settings.as_dict(),
        },
        requests=rows,
        batches=batches,
        events={name: np.zeros(0) for name in EVENT_FIELDS},
        samples={name: np.zeros(0) for name in SAMPLE_FIELDS},
        traffic=traffic,
    )


def traffic_of(seconds: float = 60.0, rate: float = 20.0) -> Traffic:
    n = int(seconds * rate)
    return Traffic(
        arrival_ns=(np.arange(n) / rate * 1e9).astype(np.int64),
        ids=[f"r{k}" for k in range(n)],
        priority=np.zeros(n, dtype=np.int8),
        sessions=[None] * n,
        deadline_ms=np.full(n, np.nan),
        features={"number": np.arange(n)},
        payloads=[None] * n,
    )


def make_fix(name: str, factor: float = 1.0, *, treats: str = "x", obstacle: str = "", **more: Any) -> Fix:
    """A fix ``a.NAME`` that multiplies the latency; verified by whether the service saw its variable."""
    world = FakeArm.world

    def verify(applied: Applied) -> Verified:
        return Verified(name in applied.evidence["env"] and name not in world.silent, f"{name} was looked for")

    def change(context: Context) -> dict[str, Any]:
        assert name not in context.settings.env
        return {"env": {name: str(factor)}}

    options = {"relief": 0.5, "risk": "none", "title": name, **more}
    return Fix(id=f"a.{name}", treats=(treats,), obstacle=lambda _: obstacle, change=change, verify=verify, **options)


def diagnosed(tail: Mapping[str, float]) -> Diagnosis:
    none = np.zeros((0, 0), dtype=np.int64)
    empty = np.zeros(0, dtype=np.int64)
    causes = tuple(
        CauseSummary(
            cause=cause,
            tail_ms=milliseconds,
            tail_share=0.5,
            own_ms=milliseconds,
            propagated_ms=0.0,
            ci95_ms=(0.0, milliseconds),
            named=True,
            evidence_class="measured",
            requests=1,
            evidence="",
            whatif_ms={"p50": 1.0, "p95": 1.0, "p99": 5.0},
            fixes=(),
        )
        for cause, milliseconds in tail.items()
    )
    return Diagnosis(
        workload="w",
        device="cpu",
        requests={"ok": 1200, "error": 0, "timeout": 0, "shed": 0},
        latency_ms=dict.fromkeys(LATENCY_KEYS, 10.0),
        latency_ci95_ms={},
        stages_ms={},
        verdict="steady",
        sentence="",
        percentile=99.0,
        excess_ms=1.0,
        reference_ms=1.0,
        unexplained_ms=0.0,
        causes=causes,
        dispatch_ms={},
        throughput_rps=20.0,
        overhead={},
        ledger=Ledger(
            request=empty,
            latency_ns=empty,
            reference_ns=0,
            causes=(),
            own_ns=none,
            propagated_ns=none,
            classes=(),
        ),
    )


Search = Callable[..., Outcome]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A new world that the optimizer's arms and clock belong to."""
    made = World()
    monkeypatch.setattr(FakeArm, "world", made, raising=False)
    monkeypatch.setattr("latfix.runners.optimizer.Arm", FakeArm)
    for module in ("optimizer", "proof"):
        monkeypatch.setattr(f"latfix.runners.{module}.time", SimpleNamespace(monotonic=lambda: made.now))
    return made


@pytest.fixture
def search(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Search:
    """Runs the optimizer with the given fixes on a diagnosis of the given tail."""

    def run(
        *fixes: Fix,
        tail: Mapping[str, float] | None = None,
        budget_s: float = 3600.0,
        traffic: Traffic | None = None,
        settings: RunnerSettings | None = None,
        **options: Any,
    ) -> Outcome:
        monkeypatch.setattr("latfix.runners.optimizer.FIXES", fixes)
        monkeypatch.setattr("latfix.runners.optimizer.diagnose", lambda *_, **__: diagnosed(tail or {}))
        spec = WorkloadSpec(
            name="w",
            folder=tmp_path,
            entry="adapter:W",
            traffic=tmp_path / "t",
            objective=Objective(max_accuracy_drop=0.01),
        )
        optimizer = Optimizer(
            spec,
            traffic or traffic_of(),
            settings or RunnerSettings(),
            tmp_path / "out",
            Options(budget_s=budget_s, **options),
            watch=lambda *_: nullcontext(lambda *_: None),
            say=lambda *_: None,
            show=lambda _: None,
        )
        outcome = optimizer.run()
        assert not any(arm.alive for arm in world.arms), "every process is gone at the end"
        return outcome

    return run


def statuses(outcome: Outcome) -> dict[str, str]:
    assert len({step.fix for step in outcome.steps}) == len(outcome.steps), "each fix once"
    return {step.fix: step.status for step in outcome.steps}


def step_of(outcome: Outcome, name: str) -> Step:
    return next(step for step in outcome.steps if step.fix == f"a.{name}")


def test_fixes_come_in_the_order_of_what_they_promise(search: Search) -> None:
    outcome = search(
        make_fix("first", treats="small"),
        make_fix("second", treats="large", relief=0.1),
        make_fix("third", treats="large", relief=0.9),
        make_fix("fourth", treats="nothing"),
        make_fix("fifth", treats="negative"),
        tail={"small": 10.0, "large": 90.0, "negative": -50.0},
    )
    assert [step.fix for step in outcome.steps] == ["a.third", "a.second", "a.first", "a.fourth", "a.fifth"]


def test_a_better_one_is_kept_and_the_next_builds_on_it(search: Search) -> None:
    outcome = search(make_fix("HALF", 0.5), make_fix("NONE", 1.0), make_fix("WORSE", 1.5), make_fix("THIRD", 0.7))
    assert statuses(outcome) == {"a.HALF": "kept", "a.NONE": "no_gain", "a.WORSE": "rejected", "a.THIRD": "kept"}
    assert dict(outcome.settings.env) == {"HALF": "0.5", "THIRD": "0.7"}
    third = step_of(outcome, "THIRD")
    assert third.comparison is not None
    assert third.comparison.ratio["mean"].value == pytest.approx(0.7, rel=0.02), "beside HALF, not beside the start"
    assert outcome.verdict == "improved"
    assert outcome.final is not None
    assert outcome.final.ratio["p99"].value == pytest.approx(0.35, rel=0.02)
    assert outcome.before is not None and outcome.after is not None
    assert dict(outcome.before.meta["settings"]["env"]) == {}
    assert [step.fix for step in outcome.planned] == ["a.HALF", "a.THIRD"]


def test_both_arms_replay_each_window_in_turns_and_in_use(search: Search, world: World) -> None:
    search(make_fix("HALF", 0.5))
    windows = [(label, cold) for label, name, cold in world.replays if "-" in name and name[0].isdigit()]
    assert [label for label, _ in windows] == ["before", "a.HALF", "a.HALF", "before"]
    assert not any(cold for _, cold in windows), "a service's first requests are no other fix's business"
    folders = [name for _, name, _ in world.replays]
    assert len(folders) == len(set(folders)), "no record overwrites another"


def test_a_fix_of_the_start_is_judged_on_fresh_processes(search: Search, world: World) -> None:
    search(make_fix("WARM", 0.5, cold=True))
    assert all(cold for _, name, cold in world.replays if name[0].isdigit())


def test_the_final_replay_starts_both_afresh_each_round_in_turns(search: Search, world: World) -> None:
    outcome = search(make_fix("HALF", 0.5))
    final = [(name, cold) for _, name, cold in world.replays if name.startswith(("before-", "after-"))]
    assert [name for name, _ in final[:6]] == ["before-1", "after-1", "after-2", "before-2", "before-3", "after-3"]
    assert all(cold for _, cold in final)
    assert outcome.final is not None and outcome.final.rounds == len(final) // 2 == 5


@pytest.mark.parametrize(("late", "rounds", "verdict"), [({2}, 4, "improved"), ({1, 2, 3, 4, 5}, 5, "inconclusive")])
def test_a_final_round_with_a_late_replayer_is_left_out(
    search: Search, monkeypatch: pytest.MonkeyPatch, late: set[int], rounds: int, verdict: str
) -> None:
    """Where all are late, it is no accident, and nothing is proved."""
    replay = FakeArm.replay

    def held_up(arm: FakeArm, folder: Path, *arguments: Any, **options: Any) -> RunRecord:
        record = replay(arm, folder, *arguments, **options)
        if folder.name in {f"before-{number}" for number in late}:
            record.requests["dispatch_ns"][:] = record.requests["latency_ns"] // 2
        return record

    monkeypatch.setattr(FakeArm, "replay", held_up)
    outcome = search(make_fix("HALF", 0.5))
    assert outcome.final is not None
    assert (outcome.final.rounds, outcome.verdict) == (rounds, verdict)
    assert any("1 of 5 final rounds" in note for note in outcome.notes) is (late == {2})


def test_groups_only_where_the_budget_is_tight(search: Search) -> None:
    fixes = [make_fix(name, 0.9, gentle=True) for name in ("A", "B", "C")]
    large = search(*fixes)
    assert all(step.together == () for step in large.steps)
    tight = search(*fixes, budget_s=260.0)
    assert all(step.together == ("a.A", "a.B", "a.C") for step in tight.steps)
    assert statuses(tight) == dict.fromkeys(("a.A", "a.B", "a.C"), "kept")
    assert all("in a group of 3" in step.reason and step.predicted_p99_ms is None for step in tight.steps)
    assert dict(tight.settings.env) == {"A": "0.9", "B": "0.9", "C": "0.9"}


def test_only_gentle_fixes_are_grouped(search: Search) -> None:
    outcome = search(
        make_fix("HARD", 1.0, treats="large", changes_outputs=True),
        make_fix("A", 0.9, gentle=True),
        make_fix("B", 0.9, gentle=True),
        tail={"large": 50.0},
        budget_s=250.0,
    )
    assert step_of(outcome, "A").together == ("a.A", "a.B")
    assert step_of(outcome, "HARD").together == ()


def test_warm_up_is_not_credited_with_what_a_group_did(search: Search, world: World) -> None:
    outcome = search(
        make_fix("WARM", 1.0, gentle=True, cold=True),
        make_fix("A", 0.5, gentle=True),
        make_fix("B", 0.9, gentle=True),
        budget_s=256.0,
    )
    assert step_of(outcome, "A").together == ("a.A", "a.B")
    assert statuses(outcome) == {"a.A": "kept", "a.B": "kept", "a.WARM": "no_gain"}
    assert all(cold for label, _, cold in world.replays if label == "a.WARM")


def test_a_group_that_is_no_gain_is_taken_apart(search: Search) -> None:
    """One that harms hides one that helps."""
    fixes = [
        make_fix(name, f, gentle=True) for name, f in (("A", 3.0), ("B", 0.5), *((f"N{k}", 1.0) for k in range(6)))
    ]
    outcome = search(*fixes, budget_s=320.0)
    found = statuses(outcome)
    assert set(found) == {fix.id for fix in fixes}
    assert all(step.together == () for step in outcome.steps)
    assert found["a.A"] == "rejected" and found["a.B"] == "kept"
    assert found["a.N5"] == "skipped", "there was no time for each alone"


def test_a_member_without_effect_is_left_out_of_a_kept_group(search: Search, world: World) -> None:
    world.silent = {"B"}
    outcome = search(*(make_fix(name, 0.7, gentle=True) for name in ("A", "B", "C")), budget_s=260.0)
    assert statuses(outcome) == {"a.A": "kept", "a.B": "not_effective", "a.C": "kept"}
    assert dict(outcome.settings.env) == {"A": "0.7", "C": "0.7"}
    assert [step.fix for step in outcome.kept] == ["a.A", "a.C"]
    assert outcome.after is not None and "B" not in outcome.after.meta["settings"]["env"]


def test_a_gain_without_evidence_is_not_kept(search: Search) -> None:
    """The figures are better, yet the fix did nothing: it was something else."""
    fix = make_fix("LUCK", 0.5)
    unseen = Fix(
        **{name: getattr(fix, name) for name in Fix.__slots__} | {"verify": lambda _: Verified(False, "0 seen")}
    )
    outcome = search(unseen)
    assert statuses(outcome) == {"a.LUCK": "not_effective"}
    assert "0 seen" in outcome.steps[0].reason
    assert outcome.verdict == "no_gain" and dict(outcome.settings.env) == {}


def test_accuracy_is_measured_before_speed(search: Search, world: World) -> None:
    world.scores = {"INT8": 0.98, "BF16": 0.995}
    outcome = search(make_fix("INT8", 0.3, changes_outputs=True), make_fix("BF16", 0.6, changes_outputs=True))
    assert statuses(outcome) == {"a.INT8": "rejected", "a.BF16": "kept"}
    step = step_of(outcome, "INT8")
    assert step.reason == "accuracy 1 -> 0.98, limit 0.99"
    assert step.accuracy == 0.98 and step.comparison is None
    assert not any(label == "a.INT8" for label, _, _ in world.replays)
    assert step_of(outcome, "BF16").accuracy == outcome.final_accuracy == 0.995


def test_accuracy_is_not_measured_where_answers_stay(search: Search, world: World) -> None:
    search(make_fix("A", 1.0))
    assert ("a.A", "evaluate") not in world.asked


def test_agreement_stands_in_where_the_workload_has_no_score(search: Search, world: World) -> None:
    world.evaluates = False
    world.scores = {"INT8": 0.5}
    outcome = search(make_fix("INT8", 0.3, changes_outputs=True))
    assert outcome.accuracy_kind == "agreement" and outcome.accuracy == 1.0
    assert ("before", "outputs") in world.asked
    assert statuses(outcome) == {"a.INT8": "rejected"}


def test_kept_fixes_that_lose_accuracy_together_are_no_plan(search: Search, world: World) -> None:
    """Each alone was fine; the fix that lost it changes no answers by itself, so only the end shows it."""
    world.scores = {"BATCH": 0.9}
    outcome = search(make_fix("BATCH", 0.5))
    assert statuses(outcome) == {"a.BATCH": "kept"}
    assert outcome.final_accuracy == 0.9
    assert not outcome.accurate
    assert outcome.verdict == "no_gain"
    assert outcome.planned == []


def test_what_does_not_fit_the_budget_is_skipped_and_says_so(search: Search, world: World) -> None:
    outcome = search(*(make_fix(name, 0.9) for name in "ABCDEFGH"), budget_s=280.0)
    found = statuses(outcome)
    assert found["a.A"] == "kept" and found["a.H"] == "skipped"
    assert step_of(outcome, "H").reason.startswith("budget: ")
    assert world.now <= 280.0 * 1.05
    assert outcome.final is not None


@pytest.mark.parametrize("budget_s", [150.0, 400.0, 900.0])
def test_time_is_kept_for_the_final_replay(search: Search, world: World, budget_s: float) -> None:
    """Many fixes that never get anywhere cannot use up what proves the one that does."""
    world.noise = 0.3
    outcome = search(make_fix("HALF", 0.5), *(make_fix(f"N{k}", 0.999) for k in range(40)), budget_s=budget_s)
    assert outcome.kept or budget_s < 200
    if outcome.kept:
        assert outcome.final is not None and outcome.final.rounds >= (1 if budget_s < 800 else 3)
    assert world.now <= budget_s * 1.1 or not outcome.kept


def test_rounds_that_take_longer_than_thought_are_not_begun(search: Search, world: World) -> None:
    """Compiling at each start is in no estimate; the rounds themselves tell."""
    world.warm_s = 200.0
    outcome = search(make_fix("HALF", 0.5), budget_s=1500.0)
    assert outcome.final is not None
    assert world.now <= 1500.0


def test_without_time_for_anything_nothing_is_tried(search: Search, world: World) -> None:
    outcome = search(make_fix("A", 0.5), budget_s=10.0)
    assert statuses(outcome) == {"a.A": "skipped"}
    assert [name for _, name, _ in world.replays] == ["baseline"]
    assert outcome.verdict == "no_gain"


def test_an_obstacle_is_a_reason(search: Search, world: World) -> None:
    outcome = search(make_fix("A", 0.5, obstacle="it is there already"), make_fix("B", 0.5))
    assert step_of(outcome, "A").status == "skipped"
    assert step_of(outcome, "A").reason == "it is there already"
    assert not any(arm.label == "a.A" for arm in world.arms)
    assert statuses(outcome)["a.B"] == "kept"


def test_only_and_exclude(search: Search) -> None:
    fixes = [make_fix(name, 1.0) for name in "ABC"]
    assert set(statuses(search(*fixes, only=("a.B",)))) == {"a.B"}
    assert set(statuses(search(*fixes, exclude=("a.B",)))) == {"a.A", "a.C"}


def test_a_service_that_does_not_start_with_a_fix(search: Search, world: World) -> None:
    world.broken = {"B"}
    outcome = search(make_fix("B", 0.5), make_fix("A", 0.5))
    assert statuses(outcome) == {"a.B": "not_effective", "a.A": "kept"}
    assert "it does not load" in step_of(outcome, "B").reason
    assert "B" not in outcome.settings.env


def test_one_that_does_not_start_does_not_take_its_group_with_it(search: Search, world: World) -> None:
    world.broken = {"B"}
    outcome = search(*(make_fix(name, 0.5, gentle=True) for name in "ABC"), budget_s=260.0)
    found = statuses(outcome)
    assert found["a.A"] == "kept"
    assert found["a.B"] == "not_effective"


def test_a_service_that_fails_without_the_fix_is_not_held_against_it(search: Search, world: World) -> None:
    """The base dies once in the screening of A: A is undecided, and B is tried on a new process."""
    died: list[str] = []

    def die_once(arm: FakeArm, name: str) -> None:
        if arm.label == "before" and name.startswith("001-") and not died:
            died.append(name)
            arm.close()
            arm.failed = True
            raise RunnerError("the runner was killed")

    world.on_replay = die_once
    outcome = search(make_fix("A", 0.5), make_fix("B", 0.5))
    assert died
    assert statuses(outcome) == {"a.A": "undecided", "a.B": "kept"}
    assert "without it" in step_of(outcome, "A").reason


def test_a_baseline_without_an_answer_is_the_workload_s_failure(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = FakeArm.replay

    def failing(*arguments: Any, **options: Any) -> RunRecord:
        record = replay(*arguments, **options)
        record.requests["status"][:] = Status.ERROR
        return record

    monkeypatch.setattr(FakeArm, "replay", failing)
    with pytest.raises(RunnerError, match="no request of the baseline ended ok"):
        search(make_fix("A", 0.5))


@pytest.mark.parametrize("in_order", [True, False])
def test_interrupted_in_the_search_keeps_what_was_found(search: Search, world: World, in_order: bool) -> None:
    """Ctrl-C ends a replay in order, or comes where none runs."""

    def stop(arm: FakeArm, name: str) -> None:
        if arm.label == "a.B":
            record = simulated(world, Path(name), traffic_of(), 1.0, 0, arm.settings)
            raise Interrupted(record) if in_order else KeyboardInterrupt

    world.on_replay = stop
    outcome = search(make_fix("A", 0.5), make_fix("B", 0.5), make_fix("C", 0.5))
    assert outcome.interrupted
    assert statuses(outcome) == {"a.A": "kept"}
    assert dict(outcome.settings.env) == {"A": "0.5"}
    assert outcome.final is None and outcome.verdict == "inconclusive"
    assert any("Interrupted" in note for note in outcome.notes)


def test_interrupted_in_the_baseline_there_is_nothing(search: Search, world: World) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    world.on_replay = stop
    with pytest.raises(KeyboardInterrupt):
        search(make_fix("A", 0.5))
    assert not any(arm.alive for arm in world.arms)


def test_nothing_kept_means_no_final_replay(search: Search, world: World) -> None:
    outcome = search(make_fix("A", 1.0), make_fix("B", 1.3))
    assert outcome.verdict == "no_gain"
    assert outcome.final is None and outcome.before is None and outcome.after is None
    assert outcome.kept == outcome.planned == []
    assert outcome.settings == RunnerSettings()
    assert not any(name.startswith(("before-", "after-")) for _, name, _ in world.replays)


def test_a_final_replay_that_is_worse_leaves_no_plan(search: Search, world: World) -> None:
    """Screening was lucky: with fresh processes the fix costs."""
    fix = make_fix("LUCKY", 0.5)

    def turn(arm: FakeArm, _name: str) -> None:
        if arm.label == "after":
            arm.settings = arm.settings.with_overrides({"env": {"LUCKY": "1.5"}})

    world.on_replay = turn
    outcome = search(fix)
    assert statuses(outcome) == {"a.LUCKY": "kept"}
    assert outcome.final is not None and outcome.final.verdict == "worse"
    assert outcome.verdict == "no_gain"
    assert outcome.planned == []


def test_first_settings_are_the_before(search: Search) -> None:
    first = RunnerSettings(env={"PLAN": "1.0"}, max_batch_size=4)
    outcome = search(make_fix("HALF", 0.5), settings=first)
    assert outcome.before is not None and outcome.after is not None
    assert outcome.before.meta["settings"] == first.as_dict()
    assert outcome.after.meta["settings"] == {**first.as_dict(), "env": {"PLAN": "1.0", "HALF": "0.5"}}
    assert outcome.settings.max_batch_size == 4


def test_an_undecided_promise_is_replayed_once_more(search: Search, world: World) -> None:
    world.noise = 0.9
    search(make_fix("MAYBE", 0.93))
    windows = [name for _, name, _ in world.replays if name[0].isdigit()]
    assert len(windows) in (4, 8)
    world.replays.clear()
    world.noise = 0.0
    search(make_fix("SURE", 0.5))
    assert len([name for _, name, _ in world.replays if name[0].isdigit()]) == 4


def test_a_prediction_is_there_for_fixes_that_remove_a_cause_whole(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("latfix.runners.optimizer._REMOVED", {"a.HALF": ("x",)})
    outcome = search(make_fix("HALF", 0.5), make_fix("OTHER", 1.0), tail={"x": 10.0})
    half = step_of(outcome, "HALF")
    assert half.comparison is not None and half.predicted_p99_ms is not None
    # The what-if says 5 of 10 ms, in proportion to what the windows showed without it.
    assert half.predicted_p99_ms == pytest.approx(half.comparison.before.latency_ms["p99"] / 2)
    assert step_of(outcome, "OTHER").predicted_p99_ms is None


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
