"""The sweep, with services on simulated time instead of processes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.capacity.sweep_world import SimulatedArm, SweepWorld, make_traffic
from latfix.capacity.max_load import LargestLoad
from latfix.capacity.objective import LatencyObjective
from latfix.capacity.sweep_traffic import Part, part_of, plan_requests
from latfix.config.workload_toml import WorkloadSpec
from latfix.errors import RunnerError
from latfix.run_record.run_record import RunRecord
from latfix.runners.replay.arm import Arm, Watch
from latfix.runners.replay.run_session import Interrupted
from latfix.runners.sweep import load_forecast
from latfix.runners.sweep.document import points_document, sweep_document
from latfix.runners.sweep.sweep import Sweep
from latfix.runners.sweep.sweep_state import Options, Outcome, Setting
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic

GRID = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)


class World(SweepWorld):
    """A simulated world whose services may fail to start, or be interrupted; slower one by one than in batches.

    :param room: how many of them memory holds.
    """

    fail: set[str]
    interrupt_at: int | None = None
    slower: float = 1.0
    room: int = 99

    def service(self, settings: RunnerSettings) -> float:
        """Seconds of a request."""
        return self.slower * (0.012 if settings.max_batch_size > 1 else 0.016)

    def replay(
        self, traffic: Traffic, settings: RunnerSettings, pace: float, seed: int, cut_s: float | None = None
    ) -> RunRecord:
        self.each = self.service(settings)
        return super().replay(traffic, settings, pace, seed, cut_s)

    def arm(self, label: str, spec: WorkloadSpec, settings: RunnerSettings, fixes: tuple[str, ...], log: Path) -> Arm:
        return FailingArm(self, label, spec, settings, fixes, log)


class FailingArm(SimulatedArm):
    """A process that fails or is interrupted as its world specifies."""

    world: World

    def prime(self, folder: Path) -> None:
        assert (folder / "traffic.parquet").exists()
        if self.label in self.world.fail:
            raise RunnerError("the model does not fit")
        if len(self.world.alive - {self.label}) >= self.world.room:
            raise RunnerError("out of memory")
        super().prime(folder)

    def replay(self, folder: Path, traffic: Traffic, watch: Watch, *, seed: int) -> RunRecord:
        if self.world.interrupt_at == len(self.world.replays):
            raise Interrupted(self.world.replay(traffic, self.settings, 1.0, seed))
        return super().replay(folder, traffic, watch, seed=seed)


@pytest.fixture(autouse=True)
def few_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_forecast, "_RUNS", (2, 2))


@pytest.fixture
def world() -> World:
    made = World()
    made.fail = set()
    return made


SPEC = WorkloadSpec(name="simulated", folder=Path(), entry="a:B", traffic=Path("t"))


@contextmanager
def silent(label: str, traffic: Traffic, folder: Path) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    del label, traffic, folder
    seen: list[Mapping[str, Any]] = []
    yield seen.append


def run(
    world: World,
    traffic: Traffic | Part,
    out: Path,
    *variants: dict[str, Any],
    budget_s: float = 3000.0,
    target: LatencyObjective | None = None,
    requests: int = 1000,
    seed: int = 0,
    loads: tuple[float, ...] = (),
    gate_rps: float | None = None,
) -> Outcome:
    settings = [
        Setting(number=k, values=values, settings=RunnerSettings().with_overrides(values))
        for k, values in enumerate(variants or ({},))
    ]
    kept: list[int] = []
    messages: list[str] = []
    sweep = Sweep(
        SPEC,
        traffic if isinstance(traffic, Part) else part_of(traffic, requests),
        settings,
        out,
        Options(
            loads=loads,
            budget_s=budget_s,
            target=target or LatencyObjective(percentile=90.0, limit=0.1),
            seed=seed,
            gate_rps=gate_rps,
        ),
        watch=silent,
        say=messages.append,
        keep=lambda outcome: kept.append(len(points_document(SPEC, outcome).points)),
        new_arm=world.arm,
        clock=lambda: world.now,
    )
    outcome = sweep.run()
    assert len(kept) == len(outcome.measured), "every point is saved as soon as it is measured"
    assert not world.alive, "no process is left"
    return outcome


def test_one_setting_from_loads_to_answers(world: World, tmp_path: Path) -> None:
    outcome = run(world, make_traffic(1000, 50.0), tmp_path)
    document = sweep_document(SPEC, outcome, seed=0, budget_s=3000.0, at_least_rps=20.0)
    assert document.state == "complete"
    written = document.to_json()
    assert type(document).from_json(json.loads(json.dumps(written))).to_json() == written
    (setting,) = document.settings
    # 62.5 per second at most, so the largest load that meets the objective is below.
    assert setting.largest is not None and setting.largest.status == "found"
    assert 15 < (setting.largest.lo or 0.0) < (setting.largest.hi or 0.0) < 66
    assert setting.knee is not None and 10 < setting.knee.rps < 60
    assert setting.capacity_rps == pytest.approx(62.5, rel=0.05)
    assert document.gate is not None and document.gate.passed is True
    assert document.best is not None and document.best.setting == 0
    for model in ("mg1", "kingman", "replay"):
        assert (document.models[model].percentile or 9.0) < 1.6, (model, document.models)
    assert {point.setting for point in document.points} == {0}
    assert len(outcome.measured) < 12, "it stops on its own"
    assert outcome.measured[0].predicted is None and all(one.predicted for one in outcome.measured[1:])
    replayed = {point.load for point in document.points}
    assert replayed < {one.load for one in setting.predicted}, "and further loads"
    assert "of the pace" in setting.largest.reason


def test_loads_are_replayed_in_an_order_of_the_seeds(world: World, tmp_path: Path) -> None:
    orders = []
    for seed in (1, 2):
        world.replays.clear()
        run(world, make_traffic(60, 20.0), tmp_path / str(seed), requests=60, seed=seed, loads=GRID, budget_s=45.0)
        orders.append([round(rate, 3) for _, rate in world.replays[:6]])
    rising = sorted(set(orders[0]))
    assert len(rising) == 6 and orders[0] != orders[1]
    assert all(sorted(order) == rising and order not in (rising, rising[::-1]) for order in orders)


def test_settings_take_turns(world: World, tmp_path: Path) -> None:
    outcome = run(
        world,
        make_traffic(400, 30.0),
        tmp_path,
        {"max_batch_size": 1},
        {"max_batch_size": 4},
        requests=400,
        loads=GRID[1::2],
    )
    first = [label for label, _ in world.replays[:6]]
    assert all(set(first[k : k + 2]) == {"max_batch_size=1", "max_batch_size=4"} for k in range(0, 6, 2))
    document = sweep_document(SPEC, outcome, seed=0, budget_s=3000.0)
    assert document.best is not None and document.best.label == "max_batch_size=4", "its service is faster here"
    assert {point.setting for point in document.pareto} <= {0, 1}


def test_replays_beyond_saturation_end_early_and_are_not_exceeded(world: World, tmp_path: Path) -> None:
    world.slower = 4.0  # 16 a second where 50 were recorded
    outcome = run(world, make_traffic(400, 50.0), tmp_path, requests=400, loads=GRID)
    cut = [one for one in outcome.measured if one.point.cut]
    assert cut and all(one.point.grew for one in cut)
    assert world.starts.count("as it is") > len(cut), "a process with a backlog is not used again"
    past = {one.load for one in outcome.skipped if one.reason.startswith("past saturation")}
    assert past and max(one.load for one in outcome.measured) <= min(past)
    document = sweep_document(SPEC, outcome, seed=0, budget_s=3000.0)
    saturated = [point for point in document.points if point.saturated]
    assert saturated and all(point.objective.meets is False for point in saturated)
    assert any(point.objective.at_least and point.objective.ci95_ms[1] is None for point in saturated)


def test_the_budget_holds(world: World, tmp_path: Path) -> None:
    variants = [{"max_batch_size": size} for size in (1, 2, 4)]
    traffic = make_traffic(200, 50.0)
    outcome = run(world, traffic, tmp_path, *variants, requests=200, budget_s=40.0, loads=GRID)
    assert outcome.measured and world.now <= 40.0 * 1.1
    assert any(one.reason.startswith("budget") for one in outcome.skipped)


def test_a_gate_is_decided_too(world: World, tmp_path: Path) -> None:
    gates = {}
    for rps in (20.0, 80.0):
        traffic = make_traffic(400, 50.0)
        outcome = run(world, traffic, tmp_path / str(rps), requests=400, gate_rps=rps, loads=(rps / 50,))
        gates[rps] = sweep_document(SPEC, outcome, seed=0, budget_s=3000.0, at_least_rps=rps).gate
        assert outcome.measured[0].load == rps / 50
    assert [gate is not None and gate.passed for gate in gates.values()] == [True, False]


def test_a_slow_recording_is_replayed_in_part_and_simulated_whole(world: World, tmp_path: Path) -> None:
    world.slower = 8.0  # 8 a second, where 50 were recorded
    part = part_of(make_traffic(1000, 50.0), 1000, longest_s=15.0)
    assert part.requests(0.1) == 1000 and 60 < part.sent(0.1) < 90
    assert part.seconds(0.1) <= 15.1 and len(part.at(0.1)) == part.sent(0.1)
    outcome = run(world, part, tmp_path, budget_s=120.0, target=LatencyObjective(percentile=90.0, limit=1.0))
    largest = outcome.answers[0].largest
    assert largest is not None and largest.rps is not None
    # 7.8 a second at most; p90 of M/M/1 reaches a second at 5.5.
    assert 3.0 < largest.rps < 7.8
    document = sweep_document(SPEC, outcome, seed=0, budget_s=120.0)
    assert all(point.offered_rps == point.load * part.recorded for point in document.points)
    assert any(note.startswith("offered/s is the load times the recorded rate") for note in document.notes)


def test_a_load_whose_own_replay_is_on_the_other_side_of_the_limit_is_undecided(world: World, tmp_path: Path) -> None:
    target = LatencyObjective(percentile=90.0, limit=1.0)
    outcome = run(world, make_traffic(400, 20.0), tmp_path, requests=400, target=target, loads=(1.0,))
    missed = LargestLoad(status="found", rps=4.0, ci95_rps=(3.0, 5.0))
    outcome.answers[0] = replace(outcome.answers[0], largest=missed)
    document = sweep_document(SPEC, outcome, seed=0, budget_s=60.0)
    point = next(one for one in document.points if one.load == 1.0)
    assert point.objective.percentile_ms is not None and point.objective.percentile_ms < 1000.0
    assert point.objective.meets is None
    assert any(note.startswith("Undecided at load 1") for note in document.notes)


def test_a_drain_is_cut_once_it_adds_no_information(world: World, tmp_path: Path) -> None:
    world.slower = 31.0  # all of the schedule is over before half a second of its work is done
    world.now = 0.0
    outcome = run(world, make_traffic(60, 100.0), tmp_path, requests=60, budget_s=30.0)
    assert world.now < 30.0
    (one,) = [one for one in outcome.measured if one.load == 1.0]
    assert one.point.cut and one.point.grew
    document = sweep_document(SPEC, outcome, seed=0, budget_s=30.0)
    (point,) = [point for point in document.points if point.load == 1.0]
    assert point.objective.meets is False and point.objective.at_least


def test_repeated_and_too_short_recordings_are_reported(world: World, tmp_path: Path) -> None:
    traffic = make_traffic(3, 20.0)
    outcome = run(
        world, traffic, tmp_path, requests=51, budget_s=60.0, target=LatencyObjective(percentile=99.0, limit=0.1)
    )
    notes = " ".join(sweep_document(SPEC, outcome, seed=0, budget_s=60.0).notes)
    assert "The recording holds 3 requests, and each point replays it 17 times" in notes
    needed = re.search(r"it takes 1,000 requests a point: --budget (\d+)m or more, or --requests 1000", notes)
    assert needed is not None
    rate = outcome.part.recorded
    enough, less = (
        plan_requests(rate, GRID, 1, minutes * 60.0, outcome.target)
        for minutes in (int(needed[1]), int(needed[1]) - 1)
    )
    assert enough >= 1000 > less or int(needed[1]) == 1


def test_a_load_whose_queue_did_not_settle_is_reported(world: World, tmp_path: Path) -> None:
    notes = {}
    for requests in (60, 2000):
        outcome = run(world, make_traffic(requests, 50.0), tmp_path / str(requests), requests=requests)
        document = sweep_document(SPEC, outcome, seed=0, budget_s=3000.0)
        assert document.best is not None
        notes[requests] = " ".join(document.notes)
    assert "to settle" in notes[60] and "if this load lasts, waits are longer" in notes[60]
    assert "to settle" not in notes[2000]


def test_one_point_is_measured_with_any_budget(world: World, tmp_path: Path) -> None:
    outcome = run(world, make_traffic(500, 50.0), tmp_path, budget_s=1.0, requests=500)
    assert len(outcome.measured) == 1
    document = sweep_document(SPEC, outcome, seed=0, budget_s=1.0)
    assert any("twice" in note for note in document.notes)


def test_a_setting_that_fails_is_left_out(world: World, tmp_path: Path) -> None:
    world.fail = {"max_batch_size=64"}
    outcome = run(
        world, make_traffic(500, 20.0), tmp_path, {"max_batch_size": 4}, {"max_batch_size": 64}, requests=500
    )
    assert {one.setting for one in outcome.measured} == {0}
    document = sweep_document(SPEC, outcome, seed=0, budget_s=1.0)
    assert document.settings[1].failure == "the model does not fit"
    assert document.best is not None and document.best.setting == 0


def test_if_every_setting_fails_the_sweep_fails(world: World, tmp_path: Path) -> None:
    world.fail = {"as it is"}
    with pytest.raises(RunnerError, match="the model does not fit"):
        run(world, make_traffic(500, 20.0), tmp_path)


@pytest.mark.parametrize("at", [0, 3])
def test_measurements_are_kept_on_an_interrupt(at: int, world: World, tmp_path: Path) -> None:
    world.interrupt_at = at
    outcome = run(world, make_traffic(500, 20.0), tmp_path, requests=500, loads=GRID)
    assert outcome.interrupted and len(outcome.measured) == at
    document = sweep_document(SPEC, outcome, seed=0, budget_s=1.0)
    assert document.state == "interrupted" and len(document.points) == at


def test_few_processes_are_alive_at_once(world: World, tmp_path: Path) -> None:
    variants = [{"max_batch_size": size} for size in range(1, 9)]
    run(world, make_traffic(50, 20.0), tmp_path, *variants, requests=50, budget_s=30.0)
    assert len(set(world.starts)) > 6 >= world.most_alive


def test_services_that_memory_does_not_hold_together_are_loaded_one_at_a_time(world: World, tmp_path: Path) -> None:
    world.room = 1
    variants = [{"max_batch_size": size} for size in (1, 2, 4)]
    outcome = run(world, make_traffic(50, 20.0), tmp_path, *variants, requests=50, budget_s=30.0)
    assert not any(setting.failure for setting in outcome.settings)
    assert {one.setting for one in outcome.measured} == {0, 1, 2} and world.most_alive == 1


def test_lost_requests_do_not_make_a_load_look_good(world: World, tmp_path: Path) -> None:
    world.lost = 0.3
    outcome = run(world, make_traffic(300, 20.0), tmp_path, requests=300, budget_s=150.0)
    document = sweep_document(SPEC, outcome, seed=0, budget_s=150.0, at_least_rps=5.0)
    assert document.settings[0].largest is not None and document.settings[0].largest.status == "below"
    assert document.gate is not None and document.gate.passed is False
    assert document.best is None
    assert re.search(r"misses it; \d+ requests of 300 were lost there", document.settings[0].largest.reason)


def test_the_budget_ends_a_replay_that_it_does_not_hold(world: World, tmp_path: Path) -> None:
    # Ten seconds of requests, and five more to drain: more than planned.
    world.slower = 2.5
    target = LatencyObjective(percentile=90.0, limit=5.0)
    traffic = make_traffic(500, 50.0)
    outcome = run(world, traffic, tmp_path, budget_s=37.0, target=target, requests=500, loads=(1.0, 1.05))
    assert len(outcome.measured) == 2 and not outcome.measured[0].point.cut and world.now <= 37.5
    second = outcome.measured[1].point
    assert second.cut and second.requests["ok"] > 20


def test_loads_far_above_capacity_show_how_far_to_step_down(world: World, tmp_path: Path) -> None:
    world.slower = 10.0  # 6.25 a second, where 50 were recorded
    outcome = run(
        world, make_traffic(400, 50.0), tmp_path, requests=400, target=LatencyObjective(percentile=90.0, limit=1.0)
    )
    assert [(one.point.cut, one.load < 0.2) for one in outcome.measured[:3]] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    assert len(outcome.measured) <= 5
    largest = outcome.answers[0].largest
    assert largest is not None and largest.status == "found"
