"""The final replay on simulated services and simulated time: order, fresh processes, when it ends, and how often
it is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import REQUEST_DTYPE
from latfix.runners.optimize import final_replay as proof_module
from latfix.runners.optimize.final_replay import MOST_ROUNDS, Proof, prove
from latfix.runners.replay.arm import Arm
from latfix.runners.replay.run_session import Interrupted
from latfix.statistics.decision import LEVEL
from latfix.statistics.group_sequential import FIRST_LOOK, look_level
from latfix.traffic.schedule import Traffic
from tests.records import build_record, zeros

N = 240
REPLAY_S = 10.0


def _traffic() -> Traffic:
    return Traffic.plain(np.arange(N) * 20_000_000)


def _record(folder: Path, latency_ms: Any, dispatch_ms: float) -> RunRecord:
    rows = zeros(REQUEST_DTYPE, N)
    rows["index"], rows["arrival_ns"] = np.arange(N), np.arange(N) * 20_000_000
    rows["latency_ns"] = (np.asarray(latency_ms) * 1e6).astype(np.int64)
    rows["dispatch_ns"][:] = int(dispatch_ms * 1e6)
    return build_record(
        rows,
        traffic=_traffic(),
        folder=folder,
        traffic_sha256="same",
        scheduled=N,
        objective={"percentile": 50},
    )


@dataclass
class World:
    """A clock and a service whose replays differ by ``restart`` as wholes; ``after`` is ``ratio`` times as slow."""

    ratio: float = 1.0
    restart: float = 0.01
    late: frozenset[str] = frozenset()
    interrupt_at: str = ""
    seed: int = 0
    now: float = 0.0
    replayed: list[tuple[str, bool]] = field(default_factory=list)
    started: list[tuple[str, int]] = field(default_factory=list)


@dataclass
class FakeArm:
    label: str
    world: World
    alive: bool = False

    def launch(self) -> None:
        self.world.started.append((self.label, len(self.world.replayed)))

    def start(self) -> None:
        assert {label for label, _ in self.world.started[-2:]} == {"before", "after"}, "both load by now"

    def restart(self) -> None:
        self.alive = False

    def replay(self, folder: Path, _traffic: Traffic, _watch: Any, *, seed: int) -> RunRecord:
        world = self.world
        world.replayed.append((folder.name, not self.alive))
        world.now += REPLAY_S
        self.alive = True
        if folder.name == world.interrupt_at:
            raise Interrupted(_record(folder, np.ones(N), 0.0))
        rng = np.random.default_rng([world.seed, len(world.replayed), seed])
        work = np.random.default_rng(3).gamma(4.0, 2.0, N)
        whole = math.exp(rng.normal(0, world.restart)) * (world.ratio if self.label == "after" else 1.0)
        return _record(folder, work * rng.lognormal(0, 0.02, N) * whole, 9.0 if folder.name in world.late else 0.0)


Run = Callable[..., Proof]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs the final replay in a world, with so many seconds of budget."""

    def start(world: World, budget_s: float = 1e6, lead_in: Traffic | None = None, **more: Any) -> Proof:
        monkeypatch.setattr(proof_module, "time", SimpleNamespace(monotonic=lambda: world.now))
        before, after = (cast(Arm, FakeArm(label, world)) for label in ("before", "after"))
        return prove(
            before,
            after,
            _traffic(),
            tmp_path / "final",
            watch=lambda *_: nullcontext(lambda _event: None),
            seed=0,
            left_s=lambda: budget_s - world.now,
            at_once=True,
            lead_in=lead_in,
            **more,
        )

    return start


def test_rounds_alternate_on_fresh_processes_that_load_at_once(run: Run) -> None:
    world = World(ratio=0.3)
    proof = run(world)

    names = [name for name, _ in world.replayed]
    assert names[:6] == ["before-1", "after-1", "after-2", "before-2", "before-3", "after-3"]
    assert all(fresh for _, fresh in world.replayed)
    assert len(set(names)) == len(names)
    rounds = len(proof.rounds)
    assert world.started == [(label, 2 * k) for k in range(rounds) for label in ("before", "after")]


def test_a_lead_in_is_served_first_and_not_judged(run: Run) -> None:
    world = World(ratio=0.3)
    proof = run(world, lead_in=_traffic())
    assert world.replayed[:4] == [
        ("before-1-lead-in", True),
        ("before-1", False),
        ("after-1-lead-in", True),
        ("after-1", False),
    ]
    assert [record.folder.name for record in proof.rounds[0]] == ["before-1", "after-1"]


def test_an_undecided_gate_takes_more_rounds(run: Run) -> None:
    proof = run(World(ratio=0.3), undecided=lambda comparison: comparison.rounds < FIRST_LOOK + 3)
    assert len(proof.rounds) == FIRST_LOOK + 3 and proof.stopped == "decided"
    assert proof.compare(seed=0).verdict == "better"


def test_a_large_gain_ends_it_at_the_first_look(run: Run) -> None:
    proof = run(World(ratio=0.3))

    assert len(proof.rounds) == FIRST_LOOK and proof.stopped == "decided"
    assert proof.level == look_level(FIRST_LOOK, MOST_ROUNDS)
    comparison = proof.compare(seed=0, accuracy=(0.8, 0.75))
    assert comparison.verdict == "better" and comparison.judged == "p50"
    assert comparison.ratio["p50"].level == proof.level < LEVEL
    assert comparison.after.accuracy == 0.75
    assert proof.notes == []


def test_a_loss_is_called_as_soon(run: Run) -> None:
    proof = run(World(ratio=2.0))

    assert proof.stopped == "decided" and proof.compare(seed=0).verdict == "worse"


def test_a_small_difference_takes_more_rounds_than_a_large_one(run: Run) -> None:
    proof = run(World(ratio=0.93, restart=0.03, seed=1))

    assert len(proof.rounds) > FIRST_LOOK
    assert proof.compare(seed=0).verdict == "better"


def test_no_difference_is_an_answer(run: Run) -> None:
    proof = run(World(ratio=1.0, restart=0.004))

    assert proof.stopped == "decided" and proof.compare(seed=0).verdict == "no_difference"
    assert 5 <= len(proof.rounds) < MOST_ROUNDS


def test_a_comparison_without_prospect_ends(run: Run) -> None:
    proof = run(World(ratio=1.0, restart=0.3, seed=1))

    assert proof.stopped == "no prospect"
    assert 5 <= len(proof.rounds) < MOST_ROUNDS
    assert proof.compare(seed=0).verdict == "undecided"


@pytest.mark.parametrize(("budget_s", "rounds"), [(0.0, 1), (40.0, 2), (65.0, 3), (90.0, 4)])
def test_the_budget_bounds_the_rounds(run: Run, budget_s: float, rounds: int) -> None:
    world = World(ratio=0.97, restart=0.05)
    proof = run(world, budget_s)

    assert len(proof.rounds) == rounds == len(world.replayed) // 2
    assert proof.stopped == "budget" and proof.most == rounds
    assert proof.level == pytest.approx(look_level(rounds, rounds, last=True))


def test_one_round_proves_only_a_large_gain(run: Run) -> None:
    small, large = (run(World(ratio=ratio, restart=0.0), 0.0).compare(seed=0) for ratio in (0.8, 0.4))

    assert small.rounds == large.rounds == 1
    assert (small.verdict, large.verdict) == ("undecided", "better")
    assert any("one round cannot distinguish" in note for note in small.notes)


def test_a_late_round_is_left_out_and_replaced(run: Run) -> None:
    proof = run(World(ratio=0.3, late=frozenset({"after-2"})))

    assert len(proof.rounds) == FIRST_LOOK and proof.stopped == "decided"
    assert any(note.startswith("1 of 6 rounds is left out") for note in proof.notes)
    assert [pair[0].folder.name for pair in proof.rounds] == [f"before-{k}" for k in (1, 3, 4, 5, 6)]


def test_if_every_round_is_late_nothing_is_proved(run: Run) -> None:
    late = frozenset(f"before-{k}" for k in range(1, MOST_ROUNDS + 1))
    proof = run(World(ratio=0.3, late=late))

    assert len(proof.rounds) == FIRST_LOOK and proof.stopped == "too late"
    assert proof.compare(seed=0).verdict == "undecided"
    assert proof.notes == []


def test_an_interruption_keeps_the_complete_rounds(run: Run) -> None:
    proof = run(World(ratio=0.97, restart=0.05, interrupt_at="before-4"))

    assert proof.interrupted and proof.stopped is None
    assert len(proof.rounds) == 3
    assert proof.level == look_level(3, MOST_ROUNDS, last=True)
    assert run(World(interrupt_at="before-1")).rounds == []
