"""Two services and one device: memory that a stopped process holds, and slowdown after a profile."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latfix.runners.fixes import FIXES, Applied, Fix, Verified
from latfix.runners.fixes.quantize import int8_excluded
from latfix.runners.optimize.co_residency import DeviceRoom
from latfix.runners.optimize.measurement import Bench

#: A service and its requests' memory take 15: two of them, and a margin of one, fit into 31.
ROOMY, TIGHT, FULL = 80.0, 31.0, 30.9


@pytest.mark.parametrize("total", [ROOMY, TIGHT])
def test_two_services_that_fit_share_the_device(search: Any, world: Any, total: float) -> None:
    device = world.on_device(total)
    outcome = search(world.fix("HALF", 0.5), world.fix("NONE", 1.0))
    assert device.most == 2
    assert world.statuses(outcome) == {"a.HALF": "kept", "a.NONE": "no_gain"}
    assert not outcome.notes


@pytest.mark.usefixtures("forecast")
def test_two_services_that_do_not_fit_take_turns(search: Any, world: Any) -> None:
    """Accuracy, paces, windows, evidence, the final replay: never two at a time."""
    device = world.on_device(FULL)
    outcome = search(
        world.fix("HALF", 0.5, compute=0.5, changes_outputs=True),
        world.fix("THIRD", 0.7, compute=0.7),
        world.fix("NONE", 1.0),
        world.fix("WARM", 0.9, cold=True),
    )
    assert device.most == 1
    found = world.statuses(outcome)
    assert (found["a.HALF"], found["a.THIRD"], found["a.NONE"]) == ("kept", "no_gain", "no_gain")
    for name, factor in (("HALF", 0.5), ("NONE", 1.0)):
        assert world.step(outcome, name).comparison.ratio["mean"].value == pytest.approx(factor, rel=0.02)
    assert any(label.startswith("pace-") for label in device.starts)
    (note,) = outcome.notes
    assert "one service on the device at a time: both services do not fit on the device (one holds 15,360 MiB" in note
    assert outcome.verdict == "improved"


def test_each_window_is_of_a_service_that_has_settled_and_has_no_longer_past(search: Any, world: Any) -> None:
    device = world.on_device(FULL)
    world.first_use = 3.0
    served: dict[tuple[str, int], list[str]] = {}

    def note(arm: Any, name: str) -> None:
        served.setdefault((arm.label, device.starts.count(arm.label)), []).append(name)

    world.on_replay = note
    outcome = search(world.fix("A", 0.8), world.fix("B", 0.8))
    assert world.statuses(outcome) == {"a.A": "kept", "a.B": "kept"}
    timed = [names for names in served.values() if names[-1] in world.windows]
    assert len(timed) == len(world.windows) >= 8, "each in a process of its own"
    assert all(["-settling-" in name for name in names] == [True, True, False] for names in timed)


@pytest.mark.parametrize("cold", [False, True])
def test_evidence_is_of_the_process_that_served(search: Any, world: Any, cold: bool) -> None:
    """The candidate is not the last to replay, and its process is gone by the end of the comparison."""
    world.on_device(FULL)
    seen: list[Applied] = []

    def verify(applied: Applied) -> Verified:
        seen.append(applied)
        return Verified(True, "checked")

    outcome = search(replace(world.fix("HALF", 0.5, cold=cold), verify=verify))
    (applied,) = seen
    last = outcome.steps[0].pairs[-1][1]
    assert applied.evidence["of"] == last
    assert world.asked.count(("a.HALF", "evidence")) == 1


@pytest.mark.parametrize("total", [ROOMY, FULL])
def test_a_fix_of_the_device_memory_never_shares_the_device(search: Any, world: Any, total: float) -> None:
    """Its service takes what the other one leaves, and the one after it is compared as before."""
    device = world.on_device(total)
    alive: dict[str, int] = {}

    def count(_arm: Any, name: str) -> None:
        alive[name] = sum(each.alive for each in world.arms)

    world.on_replay = count
    tail = {"large": 90.0, "small": 50.0}
    outcome = search(
        world.fix("POOL", 0.7, alone=True, treats="large"), world.fix("NEXT", 0.7, treats="small"), tail=tail
    )
    assert world.statuses(outcome) == {"a.POOL": "kept", "a.NEXT": "kept"}
    pool, following = (world.step(outcome, name) for name in ("POOL", "NEXT"))
    assert {alive[name] for pair in pool.pairs for name in pair} == {1}
    most = max(alive[name] for pair in following.pairs for name in pair)
    assert most == device.most == (2 if total == ROOMY else 1)
    assert any("both services do not fit" in note for note in outcome.notes) == (total == FULL)


def test_fixes_that_need_the_device_alone() -> None:
    assert {fix.id for fix in FIXES if fix.alone} == {"memory.pool", "memory.device_allocator", "memory.limit"}


def test_on_the_host_services_always_share(search: Any, world: Any) -> None:
    outcome = search(world.fix("POOL", 0.7, alone=True))
    assert outcome.steps[0].status == "kept" and not outcome.notes
    windows = [cold for _, name, cold in world.replays if name in world.windows]
    assert windows and not any(cold for _, name, cold in world.replays if name in world.windows)
    settling = [label for label, name, _ in world.replays if "-settling-" in name]
    assert Counter(settling) == {"before": 2, "a.POOL": 2}, "once each"


@pytest.mark.parametrize(("left", "most"), [(9, 1), (15, 2), (100, 3)])
def test_on_the_host_as_many_services_are_loaded_as_memory_holds(
    search: Any, world: Any, left: int, most: int
) -> None:
    """Each holds ten: the two that are compared, and the first settings' next to them."""
    world.memory = {"peak_bytes": 10, "available_bytes": left}
    outcome = search(world.fix("A", 0.7), world.fix("B", 0.7))
    assert world.statuses(outcome) == {"a.A": "kept", "a.B": "kept"} and outcome.verdict == "improved"
    assert world.most == most
    note = "one service at a time: both services do not fit into memory"
    assert any(note in each for each in outcome.notes) == (most == 1)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (22.0, "one of two services on the device failed"),
        (17.0, "two services together ran out of the device's memory"),
    ],
)
def test_a_larger_service_is_tried_again_alone(search: Any, world: Any, more: float, why: str) -> None:
    """Two as large as the first would fit; one with the fix finds no room to load in, or none to work in."""
    device = world.on_device(45.0, more={"LARGE": more})
    outcome = search(world.fix("LARGE", 0.8), world.fix("NEXT", 0.7))
    step = world.step(outcome, "LARGE")
    assert step.status == "kept"
    assert step.comparison.ratio["mean"].value == pytest.approx(0.8, rel=0.02), "no stall is in it"
    assert device.most == (1 if more > 20 else 2)
    assert len([note for note in outcome.notes if why in note]) == 1


@pytest.mark.usefixtures("forecast")
def test_one_large_service_that_is_not_kept_does_not_end_the_sharing(search: Any, world: Any) -> None:
    """It is known for it after the first time, and a second one that finds no room ends the sharing."""
    device = world.on_device(45.0, more={"LARGE": 26.0, "HUGE": 28.0})
    world.paces = {"LARGE": 0.6, "NEXT": 0.7}
    fixes = [world.fix("LARGE", 1.0, compute=0.6), world.fix("NEXT", 0.7, compute=0.7)]
    outcome = search(*fixes)
    assert world.statuses(outcome) == {"a.LARGE": "no_gain", "a.NEXT": "kept"}
    assert not outcome.notes
    failed = [arm for arm in world.arms if arm.refused]
    assert [arm.label for arm in failed] == ["pace-a.LARGE"] and device.most == 2
    world.paces["HUGE"] = 0.5
    outcome = search(world.fix("HUGE", 1.0, compute=0.5), *fixes, folder="again")
    assert any("one service on the device at a time" in note for note in outcome.notes)


def test_a_service_that_also_fails_alone_does_not_end_the_sharing(search: Any, world: Any) -> None:
    world.on_device(ROOMY)
    world.broken = {"BROKEN"}
    outcome = search(world.fix("BROKEN", 0.5), world.fix("A", 0.5))
    assert world.statuses(outcome) == {"a.BROKEN": "not_effective", "a.A": "kept"}
    assert "the service did not run with it: it does not load" in world.step(outcome, "BROKEN").reason
    assert not outcome.notes


@pytest.mark.usefixtures("forecast")
@pytest.mark.parametrize("device", [False, True])
def test_a_service_that_does_not_run_is_built_once_next_to_another_and_once_alone(
    search: Any, world: Any, monkeypatch: pytest.MonkeyPatch, device: bool
) -> None:
    """A conversion that cannot work takes minutes each time."""
    if device:
        world.on_device(ROOMY)
    world.broken, world.paces = {"BROKEN"}, {"A": 0.5}
    built: list[str] = []
    running = world.arm_class.running

    def counted(arm: Any) -> None:
        if "BROKEN" in arm.settings.env:
            built.append(arm.label)
        running(arm)

    monkeypatch.setattr(world.arm_class, "running", counted)
    outcome = search(world.fix("BROKEN", 0.5, compute=0.5), world.fix("A", 0.5, compute=0.5))
    assert built == ["pace-a.BROKEN"] * (2 if device else 1)
    assert world.statuses(outcome) == {"a.BROKEN": "not_effective", "a.A": "kept"}
    assert "the service did not run with it: it does not load" in world.step(outcome, "BROKEN").reason


def test_after_resuming_only_new_fixes_count_as_crowding(search: Any, world: Any) -> None:
    """A new fix is the reason that a service finds no room, not the fixes that were kept before."""
    world.on_device(45.0, more={"LARGE": 22.0, "HUGE": 23.0})
    stopped: list[str] = []

    def stop(arm: Any, _name: str) -> None:
        if "LARGE" in arm.settings.env:
            stopped.append(arm.label)
            raise KeyboardInterrupt

    world.on_replay = stop
    fixes = [world.fix("KEPT", 0.5), world.fix("LARGE", 1.0), world.fix("HUGE", 1.0)]
    assert world.statuses(search(*fixes)) == {"a.KEPT": "kept"} and stopped
    world.on_replay = lambda *_: None
    crowding: list[set[str]] = []
    crowd = DeviceRoom.crowd

    def noted(room: DeviceRoom, arm: Any, why: str) -> None:
        crowd(room, arm, why)
        crowding.append(set(room._crowding))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceRoom, "crowd", noted)
        search(*fixes, resume=True)
    assert crowding[0] == {"a.LARGE"}


def test_a_service_that_stalls_alone_is_compared_alone(search: Any, world: Any) -> None:
    """The device refused memory in the baseline, and there was more of it later: it may refuse again."""
    device = world.on_device(80.0, model=70.0, work=20.0)
    outcome = search(world.fix("A", 0.5))
    assert device.most == 1
    assert "one service alone ran out of the device's memory" in outcome.notes[0]


def test_a_service_of_unknown_size_has_the_device_to_itself(
    search: Any, world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = world.on_device(ROOMY)
    monkeypatch.setattr(type(device), "reported", lambda *_: {})
    outcome = search(world.fix("A", 0.5))
    assert device.most == 1 and "is not known" in outcome.notes[0]


@pytest.mark.usefixtures("forecast")
@pytest.mark.parametrize("total", [ROOMY, FULL])
def test_no_replay_is_timed_in_a_profiled_process(search: Any, world: Any, total: float) -> None:
    """Evidence was taken in a kept fix's process, which slows it down; later fixes must not gain by that."""
    world.on_device(total)
    outcome = search(
        world.fix("A", 0.7, compute=0.7, relief=0.9), world.fix("NONE", 1.0), world.fix("SAME", 0.99, compute=0.95)
    )
    assert ("a.A", "evidence") in world.asked
    assert world.statuses(outcome) == {"a.A": "kept", "a.NONE": "no_gain", "a.SAME": "no_gain"}
    assert world.step(outcome, "NONE").comparison.ratio["mean"].value == pytest.approx(1.0, rel=0.02)
    compute = {one.fixes: one.compute for one in outcome.candidates}
    assert compute["a.A",] == pytest.approx(0.7) and compute["a.SAME",] == pytest.approx(0.99)


def test_a_kept_service_starts_again_once_and_settles(search: Any, world: Any) -> None:
    device = world.on_device(ROOMY)
    search(world.fix("A", 0.5), world.fix("N", 1.0), world.fix("M", 1.0), world.fix("O", 1.0))
    assert device.starts.count("a.A") == 2, "for what it is compared with, and for all that is compared with it"
    assert device.starts.count("a.N") == device.starts.count("a.M") == 1
    settling = Counter(label for label, name, _ in world.replays if "-settling-" in name)
    assert settling["a.A"] == 4 and settling["a.N"] == 2


def test_on_the_host_nothing_starts_again(search: Any, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started: Counter[str] = Counter()
    running = world.arm_class.running

    def counted(arm: Any) -> None:
        started[arm.label] += not arm.alive
        running(arm)

    monkeypatch.setattr(world.arm_class, "running", counted)
    search(world.fix("A", 0.5), world.fix("N", 1.0), world.fix("B", 0.5))
    assert started["a.A"] == started["a.N"] == started["a.B"] == 1


def test_layers_are_measured_alone_on_the_device(search: Any, world: Any) -> None:
    device = world.on_device(ROOMY)
    world.scores, world.keep = {"INT8": 0.9, "PART": 0.995}, {"head": 0.4}
    running, alive = world.arm_class.ask, list[int]()

    def look(arm: Any, do: str, **more: Any) -> Any:
        found = running(arm, do, **more)
        if do == "sensitivity":
            alive.append(sum(each.alive for each in world.arms))
        return found

    world.arm_class.ask = look
    try:
        outcome = search(
            world.fix("A", 0.5, relief=0.9),
            replace(world.fix("INT8", 0.4, changes_outputs=True), id="quantize.int8_dynamic"),
            replace(
                world.fix("PART", 0.6, changes_outputs=True),
                id="quantize.int8_excluded",
                set_up=int8_excluded.FIX.set_up,
            ),
            tail={"x": 50.0},
        )
    finally:
        world.arm_class.ask = running
    assert alive == [1] and device.most == 2
    assert world.statuses(outcome)["quantize.int8_excluded"] == "kept"


@pytest.mark.parametrize("total", [ROOMY, FULL])
def test_estimated_times_of_steps_are_close(
    search: Any, world: Any, monkeypatch: pytest.MonkeyPatch, total: float
) -> None:
    """Services here take thirty seconds more to come into use, which is known once one has started again."""
    world.on_device(total)
    for name in ("DRAIN_S", "_PACE_S"):  # they take no time in this world
        monkeypatch.setattr(f"latfix.runners.optimize.measurement.{name}", 0.0)
    prime, estimate, until = world.arm_class.prime, Bench.trial_s, [0.0]
    late: dict[str, float] = {}

    def slowly(arm: Any, folder: Any) -> None:
        prime(arm, folder)
        world.now += 30.0

    def estimated(self: Bench, fixes: Any) -> float:
        seconds = estimate(self, fixes)
        until[0] = world.now + seconds
        return seconds

    def watched(name: str, factor: float) -> Fix:
        fix: Fix = world.fix(name, factor)

        def verify(applied: Applied) -> Verified:
            late[name] = world.now - until[0]
            return fix.verify(applied)

        return replace(fix, verify=verify)

    monkeypatch.setattr(Bench, "trial_s", estimated)
    monkeypatch.setattr(world.arm_class, "prime", slowly)
    search(*(watched(name, factor) for name, factor in {"A": 0.5, "N": 1.0, "B": 0.6, "M": 1.0}.items()))
    if total == ROOMY:
        # The first start of a service is taken to be as quick as loading. After A and B, theirs starts again.
        assert late == pytest.approx({"A": 70.0, "N": 30.0, "B": 30.0, "M": 30.0}, abs=15.0)
    else:
        # Paces, for which two more would start, are not taken without a forecast.
        assert late == pytest.approx({"A": 114.0, "N": -64.0, "B": -64.0, "M": -64.0}, abs=5.0)


def test_turns_stay_within_the_budget(search: Any, world: Any) -> None:
    world.on_device(FULL)
    world.noise = 0.3
    outcome = search(world.fix("HALF", 0.5), *(world.fix(f"N{k}", 0.999) for k in range(40)), budget_s=400.0)
    assert outcome.kept and outcome.final is not None
    assert world.now <= 440.0
    assert any(step.reason.startswith("budget: ") for step in outcome.steps)


def test_a_larger_service_that_was_kept_counts(world: Any, search: Any) -> None:
    """It fits next to the first service, but two like it do not fit."""
    device = world.on_device(40.0, more={"LARGE": 9.0})
    outcome = search(world.fix("LARGE", 0.5, relief=0.9), world.fix("NEXT", 0.7, relief=0.1))
    assert "both services do not fit" in outcome.notes[0]
    assert device.most == 2
    assert np.isclose(world.step(outcome, "NEXT").comparison.ratio["mean"].value, 0.7, rtol=0.02)


@pytest.mark.usefixtures("forecast")
@pytest.mark.parametrize(("total", "starts"), [(ROOMY, (2, 1)), (FULL, (3, 3))])
def test_no_service_starts_more_often_than_it_must(
    search: Any, world: Any, total: float, starts: tuple[int, int]
) -> None:
    """Alone: one start for each window, and one for the candidate's accuracy.

    The first start of the original is the baseline's, and the last ones are not counted: nothing was kept.
    """
    device = world.on_device(total)
    outcome = search(world.fix("NONE", 1.0, changes_outputs=True))
    assert outcome.steps[0].status == "no_gain"
    assert (device.starts.count("before"), device.starts.count("a.NONE")) == starts
