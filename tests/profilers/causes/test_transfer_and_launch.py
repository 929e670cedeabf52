"""Copies, and waits of host and device for each other, from the device's clock. Simulated runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latfix.profilers.evidence.device_idle import DeviceProfile, idle_ns, issue_wait_ns
from latfix.profilers.evidence.units import gather
from latfix.run_record.process_facts import DeviceWork
from latfix.run_record.run_record import RunRecord
from tests.profilers.causes.diagnosed import causes_of, diagnosed, own_ms
from tests.profilers.simulated_runs import simulate

_MS = 1_000_000
_HIT = [k for first in range(60, 880, 60) for k in range(first, first + 12)]
_BYTES = 4 << 20
#: A pinned copy of four MiB takes 0.2 ms; the device works for 9.5 ms of every batch's compute.
_CALIBRATION = {f"copy_{way}{part}_ns": value for way in ("in", "out") for part, value in (("", 1e4), ("_mib", 5e4))}


def _profile(*, sync: float = 0.0, waits: int = 0, busy_ms: float = 9.5) -> list[dict[str, Any]]:
    row = {"elements": 100, "size": 1, "busy_ns": round(busy_ms * _MS), "launch_ns": 100_000}
    row["sync_ns"] = round(sync * 1e5)
    return [{**row, "waits": waits, "launches": 300}]


def _on_device(record: RunRecord, columns: Mapping[str, Any], **meta: Any) -> RunRecord:
    """The run as if it had been on a device, with its clock's figures for each batch."""
    compute = record.batches["compute_end_ns"] - record.batches["h2d_end_ns"]
    batches = {**record.batches, "device_ns": compute, "lead_ns": np.zeros_like(compute), **columns}
    known = {"device": "cuda:0", "calibration": _CALIBRATION, "device_profile": _profile()}
    return replace(record, batches=batches, meta=record.meta.updated(**{**known, **meta}))


def _slow_copies(*, hit_ms: float, usual_ms: float = 0.2) -> RunRecord:
    """Input copies of the same size, some of which take long; compute is unchanged."""
    record = simulate(n=900, rate=20, base=10.0, per_item=0.0, compute_faults=dict.fromkeys(_HIT, ("cpu", hit_ms)))
    at = record.requests["batch_id"]
    took = np.full(len(record.batches["batch_id"]), int(usual_ms * _MS))
    hit = np.isin(at, at[_HIT])
    took[at[hit]] = int((usual_ms + hit_ms) * _MS)
    # Move the injected fault from compute to the copy.
    moved = took - int(usual_ms * _MS)
    record.requests["h2d_ns"] += moved[at]
    record.requests["compute_ns"] -= moved[at]
    record.batches["h2d_end_ns"] += moved
    record.batches["compute_cpu_ns"] -= moved
    record.batches["process_cpu_ns"] -= moved
    size = np.full_like(took, _BYTES)
    return _on_device(record, {"copy_in_ns": took, "copy_in_bytes": size, "pageable_bytes": size})


def test_a_copy_owns_what_its_bytes_do_not_need() -> None:
    record = _slow_copies(hit_ms=8.0)
    found = causes_of(record)
    assert found["transfer.copy"].named and max(found, key=lambda name: found[name].tail_ms) == "transfer.copy"
    own = own_ms(record, "transfer.copy")
    assert np.median(own[_HIT]) == pytest.approx(8.0, rel=0.05)
    assert abs(np.median(np.delete(own, _HIT))) < 0.1
    assert "100 % of the bytes are in memory that is not pinned" in found["transfer.copy"].evidence
    beside_others_of_its_size = replace(record, meta=replace(record.meta, calibration={}))
    assert np.median(own_ms(beside_others_of_its_size, "transfer.copy")[_HIT]) == pytest.approx(8.0, rel=0.05)


def test_a_host_that_is_slow_to_issue_is_no_slow_copy() -> None:
    """Between two pinned copies the device may wait for the host."""
    record = _slow_copies(hit_ms=8.0)
    asking = np.maximum(record.batches["copy_in_ns"] - 10_000, 0)
    pinned = {"copy_in_issue_ns": asking, "pageable_bytes": np.zeros_like(asking)}
    held_up = replace(record, batches={**record.batches, **pinned})
    assert np.abs(own_ms(held_up, "transfer.copy")).max() < 0.1
    # With pageable memory the host takes part in the copy all that time.
    pageable = replace(record, batches={**record.batches, "copy_in_issue_ns": asking})
    assert np.median(own_ms(pageable, "transfer.copy")[_HIT]) == pytest.approx(8.0, rel=0.05)


def test_a_copy_issued_while_the_device_computed_costs_nothing() -> None:
    record = _slow_copies(hit_ms=8.0)
    asking = {"copy_out_issue_ns": np.full(len(record.batches["batch_id"]), 2 * _MS)}
    nothing = np.zeros_like(record.batches["batch_id"])
    for lead, expected in ((3 * _MS, 0), (_MS // 2, 3 * _MS // 2)):
        known = {**asking, "pageable_bytes": nothing, "lead_ns": nothing + lead}
        took = issue_wait_ns(gather(replace(record, batches={**record.batches, **known})), "out")
        assert (took == expected).all()


def test_larger_copies_are_the_inputs_size() -> None:
    """Forty times the bytes need forty times as long: not a fault of the copy."""
    record = _slow_copies(hit_ms=7.8)
    size = record.batches["copy_in_bytes"].copy()
    size[record.batches["copy_in_ns"] > _MS] = 40 * _BYTES
    record = replace(record, batches={**record.batches, "copy_in_bytes": size})
    found = causes_of(record)
    assert "transfer.copy" not in found or not found["transfer.copy"].named
    assert np.median(own_ms(record, "input.size")[_HIT]) == pytest.approx(7.8, rel=0.05)


def _starved(**meta: Any) -> RunRecord:
    """The device takes longer for some batches, and ends when the host has issued the last operator."""
    record = simulate(n=900, rate=20, base=10.0, per_item=0.0, compute_faults=dict.fromkeys(_HIT, ("cpu", 14.0)))
    return _on_device(record, {}, **meta)


def test_a_device_that_waits_for_the_host_is_starved_of_launches() -> None:
    record = _starved()
    cause = causes_of(record)["dispatch.launch"]
    assert cause.named and np.median(own_ms(record, "dispatch.launch")[_HIT]) == pytest.approx(14.0, rel=0.05)
    assert "300 operators of a batch are issued one by one" in cause.evidence and cause.fixes == ("fuse.cudagraph",)


@pytest.mark.parametrize(("busy_ms", "sync", "noted"), [(2.0, 0.0, True), (8.0, 0.0, False), (2.0, 9.0, False)])
def test_a_device_that_mostly_waits_is_noted_although_all_batches_do(
    busy_ms: float, sync: float, noted: bool
) -> None:
    """No cause of slow requests, and what makes each of them slower. Where the code waits, graphs may not help."""
    profile = _profile(busy_ms=busy_ms, sync=sync, waits=6 if sync else 0)
    steady = simulate(n=900, rate=20, base=10.0, per_item=0.0)
    notes = diagnosed(_on_device(steady, {}, device_profile=profile)).notes
    waiting = [note for note in notes if "the device waits for the host" in note]
    assert bool(waiting) is noted, notes
    assert not noted or "because it issues 300 operators" in waiting[0]
    share = [int(text) for note in waiting for text in re.findall(r"(\d+) % of the time", note)]
    assert share == pytest.approx([80] * noted, abs=2)


def test_a_blocked_launching_thread_is_no_lack_of_launches() -> None:
    """It waited for a lock, where a captured graph would have waited too."""
    record = simulate(n=900, rate=20, base=10.0, per_item=0.0, compute_faults=dict.fromkeys(_HIT, ("blocked", 14.0)))
    wall = record.batches["compute_end_ns"] - record.batches["h2d_end_ns"]
    record = _on_device(record, {"issue_ns": wall})
    assert np.median(own_ms(record, "dispatch.launch")[_HIT]) == pytest.approx(0.0, abs=0.1)
    assert np.median(own_ms(record, "unexplained")[_HIT]) == pytest.approx(14.0, rel=0.05)


@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize(("kind", "cause"), [("runq", "host.contention"), ("gc", "python.gc")])
def test_only_host_delays_that_delay_the_batch_count(kind: str, cause: str, hidden: bool) -> None:
    """While the device computed queued work, the launching thread waited for a core or collected garbage."""
    record = simulate(n=900, rate=20, base=10.0, per_item=0.0, compute_faults=dict.fromkeys(_HIT, (kind, 6.0)))
    if hidden:
        usual = simulate(n=900, rate=20, base=10.0, per_item=0.0)
        runq = record.batches["compute_runq_ns"]
        events = {**record.events, "t_ns": usual.batches["h2d_end_ns"][sorted(_HIT)] + _MS} if kind == "gc" else {}
        record = replace(usual, batches={**usual.batches, "compute_runq_ns": runq}, events=events or usual.events)
    own = own_ms(_on_device(record, {}), cause)
    assert np.median(own[_HIT]) == pytest.approx(0.0 if hidden else 6.0, abs=0.3)


def test_a_probe_that_holds_the_drivers_lock_is_the_observers() -> None:
    record = _starved()
    begin = record.batches["h2d_end_ns"][_HIT]
    events = {name: np.full(len(begin), -1) for name in record.events}
    events |= {"t_ns": begin, "duration_ns": np.full(len(begin), 14 * _MS)}
    events |= {"kind": np.full(len(begin), "spike", object), "detail": np.full(len(begin), None, object)}
    record = replace(record, events=events)
    assert np.median(own_ms(record, "observer")[_HIT]) == pytest.approx(14.0, rel=0.05)
    assert np.median(own_ms(record, "dispatch.launch")[_HIT]) == pytest.approx(0.0, abs=0.1)


def test_waits_of_the_host_own_the_idle_time_that_follows_them() -> None:
    profile = _profile(sync=3.0, waits=6)
    record = _starved(device_profile=profile, device_waits=["model.py:12", "model.py:31"])
    found = causes_of(record)
    assert found["transfer.sync"].named
    assert np.median(own_ms(record, "transfer.sync")[_HIT]) == pytest.approx(0.75 * 14.0, rel=0.05)
    assert np.median(own_ms(record, "dispatch.launch")[_HIT]) == pytest.approx(0.25 * 14.0, rel=0.05)
    assert "waited for the device 6 times" in found["transfer.sync"].evidence
    assert "model.py:12, model.py:31" in found["transfer.sync"].evidence


def test_a_device_that_had_its_work_long_before_was_not_starved() -> None:
    """The host had issued everything within a millisecond: the device was busy, not waiting."""
    record = _starved()
    record.batches["lead_ns"][:] = record.batches["device_ns"] - _MS
    found = causes_of(record)
    assert "dispatch.launch" not in found or not found["dispatch.launch"].named
    assert np.median(own_ms(record, "dispatch.launch")[_HIT]) < 1.0


def test_no_idle_time_with_a_graph_without_a_profile_or_a_device() -> None:
    record = _starved()
    graph = replace(record, batches={**record.batches, "graph": np.ones_like(record.batches["batch_id"])})
    without = [
        replace(record, meta=meta)
        for meta in (replace(record.meta, device="cpu"), replace(record.meta, device_profile=()))
    ]
    for one in (graph, *without):
        assert not {"dispatch.launch", "transfer.sync"} & set(causes_of(one))


def test_a_neighbor_on_the_same_device_is_no_wait_for_the_host() -> None:
    """Batches of two workers that compute at the same time take longer, which is not due to the host."""
    record = simulate(n=900, rate=150, base=10.0, per_item=0.0, workers=2)
    alone = _on_device(record, {}, device_profile=_profile(busy_ms=6.0), worker_devices=["cuda:0", "cuda:1"])
    shared = replace(alone, meta=replace(alone.meta, worker_devices=("cuda:0", "cuda:0")))
    idle = [found for one in (alone, shared) if (found := idle_ns(gather(one))) is not None]
    begin, end = (record.batches[name] for name in ("h2d_end_ns", "compute_end_ns"))
    own = [record.batches["worker"] == worker for worker in (0, 1)]
    for k in np.flatnonzero(own[0])[:40]:
        overlap = np.clip(np.minimum(end[own[1]], end[k]) - np.maximum(begin[own[1]], begin[k]), 0, None).sum()
        assert idle[1][k] == max(idle[0][k] - overlap, 0)
    assert idle[1].sum() < 0.9 * idle[0].sum()


def test_an_undisturbed_run_names_nothing_of_the_device() -> None:
    record = simulate(n=900, rate=20, base=10.0, per_item=0.0)
    took = np.full(len(record.batches["batch_id"]), int(0.2 * _MS))
    columns = {"copy_in_ns": took, "copy_in_bytes": np.full_like(took, _BYTES)}
    found = causes_of(_on_device(record, columns))
    assert not any(
        cause.named for name, cause in found.items() if name.startswith(("transfer.", "dispatch.", "gpu."))
    )


def test_work_that_depends_on_a_feature_is_not_idle_time() -> None:
    """Twice the steps on inputs of the same size keep the device busy twice as long."""
    long = np.random.default_rng(5).random(900) < 0.3
    record = simulate(
        n=900, rate=20, base=10.0, per_item=0.0, compute_faults=dict.fromkeys(np.flatnonzero(long), ("cpu", 10.0))
    )
    traffic = replace(record.traffic, features={"steps": np.where(long, 20, 10)})
    found = _on_device(replace(record, traffic=traffic), {})
    idle = idle_ns(gather(found))
    assert idle is not None
    assert np.median(idle[long]) < 2.5 * np.median(idle[~long]), "in proportion to the work, at most"
    assert np.median(own_ms(found, "dispatch.launch")[long]) < 2.0


def test_larger_batches_are_expected_to_keep_the_device_longer() -> None:
    works = ((400, 4_000_000), (100, 2_000_000))
    profile = DeviceProfile.of([DeviceWork(elements=size, busy_ns=busy, launches=9) for size, busy in works])
    assert profile is not None
    assert profile.busy_ns(np.array([50, 100, 250, 400, 800])).tolist() == [2e6, 2e6, 3e6, 4e6, 8e6]
    assert DeviceProfile.of(()) is None
