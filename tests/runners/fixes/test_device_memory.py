"""Fixes of the device's memory, end to end on a simulated device: traffic that stalls with torch's defaults, its
record, each fix on it, and the same traffic with the fix."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latfix.profilers.allocator_lab.compare_policies import Choice, choose
from latfix.profilers.allocator_lab.synthetic_trace import Traffic, generate
from latfix.profilers.allocator_lab.trace import AllocationTrace
from latfix.profilers.gpu.alloc_conf import ALLOC_CONF, OLDER_CONF, allocator_conf, merged_conf, read_conf
from latfix.profilers.gpu.allocator_counters import BatchCounters, from_nested
from latfix.profilers.probes.stage_recorder import StageRecorder
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes import FIXES, Applied, Context, Verified
from latfix.runners.fixes.memory.device_allocator import choice_of
from latfix.runners.fixes.shared.device_memory_facts import calls, facts, room_bytes, worker_growth_mib
from latfix.runners.gpu_memory.allocation_history import begin_history, end_history
from latfix.runners.gpu_memory.batch_memory import PeakMemory
from latfix.runners.gpu_memory.caching_allocator import (
    DeviceFacts,
    Reserved,
    allocator_of,
    allocators_of,
    limit_memory,
    reserve,
)
from latfix.settings import RunnerSettings
from tests.conftest import FakeCuda
from tests.runners.fixes.conftest import make_context, make_record

_MIB = 1 << 20
_TOTAL = 1280 * _MIB
_BY_ID = {fix.id: fix for fix in FIXES}
_DEVICE_FIXES = ("memory.pool", "memory.device_allocator", "memory.limit")

Play = Callable[..., RunRecord]


@pytest.fixture(scope="module")
def trace() -> AllocationTrace:
    """Fits into seven tenths of the device, and is cut into pieces."""
    return generate(2, Traffic(turns=400, capacity=1 << 30, filled=0.5, large=0.15))


@pytest.fixture
def play(trace: AllocationTrace) -> Play:
    """Serve the trace in batches of eight allocations under some settings, and record what a run records."""

    def serve(settings: RunnerSettings | None = None, total: int = _TOTAL, others: int = 0) -> RunRecord:
        settings = settings or RunnerSettings()
        device: Any = FakeCuda(total, allocator_conf(settings.env), others)
        notes = limit_memory(settings.device_memory_share, {"cuda:0": device})
        counters = BatchCounters.of(lambda: from_nested(device.stats()), device.clock)
        assert counters is not None
        reserved: Reserved | None = None
        known = DeviceFacts({"cuda:0": device})
        if settings.reserve_mb:
            reserved = reserve(settings.reserve_mb, device, device.allocate, device.refused)
            counters.skip()
        known.begin()
        batches = -(-len(trace.events) // 8)
        recorder, live = StageRecorder(batches), dict[int, Any]()
        for batch in range(batches):
            for event in trace.events[8 * batch : 8 * batch + 8]:
                if event.is_free:
                    live.pop(event.key, None)
                    continue
                try:
                    live[event.key] = device.allocate(event.size)
                except device.refused:  # that request fails
                    continue
            counters.note(recorder.batch, batch)
        record = make_record(
            [[50]] * batches,
            settings=settings,
            device="cuda:0",
            device_memory=known.end([("cuda:0", reserved)]),
            setup_notes=[*notes, *([reserved.note] if reserved is not None and reserved.note else [])],
        )
        names = [name for name in record.batches if name.startswith(("device_", "alloc_"))]
        read = {name: np.array(recorder.batch[name][:batches]) for name in names}
        return replace(record, batches={**record.batches, **read})

    return serve


def _applied(fix: str, play: Play, now: Context) -> tuple[RunnerSettings, Verified, RunRecord]:
    assert _BY_ID[fix].obstacle(now) == ""
    settings = now.settings.with_overrides(_BY_ID[fix].change(now))
    record = play(settings)
    return settings, _BY_ID[fix].verify(Applied(evidence={}, record=record, without=now.record)), record


@pytest.fixture
def stalls(play: Play) -> RunRecord:
    """The run with torch's defaults."""
    record = play()
    assert calls(record).retries >= 3
    return record


def test_memory_reserved_at_the_start_ends_the_stalls(stalls: RunRecord, play: Play) -> None:
    now = make_context(stalls, RunnerSettings())
    settings, found, record = _applied("memory.pool", play, now)
    assert 900 < settings.reserve_mb <= 1280 and not settings.buffer_pool
    assert found.effective, found.evidence
    assert calls(record).retries == 0 and calls(record).total < 0.1 * calls(stalls).total
    assert facts(record)["reserved_ahead_bytes"] >= 0.9 * settings.reserve_mb * _MIB
    assert "without it" in found.evidence and f"{calls(stalls).retries} stalls" in found.evidence
    again = make_context(stalls, settings)
    assert "reserved already" in _BY_ID["memory.pool"].obstacle(replace(again, default_collate=False)) or (
        _BY_ID["memory.pool"].change(again) == {"buffer_pool": True}
    )


def test_a_reservation_that_the_device_refuses_is_no_effect(stalls: RunRecord, play: Play) -> None:
    now = make_context(stalls, RunnerSettings())
    settings = now.settings.with_overrides(_BY_ID["memory.pool"].change(now))
    record = play(settings, others=600 * _MIB)
    found = _BY_ID["memory.pool"].verify(Applied(evidence={}, record=record, without=stalls))
    assert not found.effective and f"reserve_mb = {settings.reserve_mb}: the device refused it" in found.evidence


def test_the_history_chooses_the_setting(stalls: RunRecord, play: Play, trace: AllocationTrace) -> None:
    choice = choose(trace, room_bytes(facts(stalls)))
    assert choice.setting == "expandable_segments:True" and "none would remain" in choice.description
    now = make_context(stalls, RunnerSettings(), found={"memory.device_allocator": choice})
    settings, found, record = _applied("memory.device_allocator", play, now)
    assert found.effective and calls(record).retries == 0, found.evidence
    assert "the allocator has expandable_segments:True" in found.evidence
    again = make_context(stalls, settings, found={"memory.device_allocator": choice})
    assert "already" in _BY_ID["memory.device_allocator"].obstacle(again)


def test_the_chosen_setting_is_added_to_existing_ones(
    play: Play, trace: AllocationTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing = "roundup_power2_divisions:4"
    record = play(RunnerSettings(env={ALLOC_CONF: standing}))
    choice = choose(trace, room_bytes(facts(record)), standing)
    assert choice.setting == f"{standing},expandable_segments:True"
    monkeypatch.setenv(ALLOC_CONF, standing)
    now = make_context(record, RunnerSettings(), found={"memory.device_allocator": choice})
    both = {ALLOC_CONF: choice.setting, OLDER_CONF: choice.setting}
    assert _BY_ID["memory.device_allocator"].change(now) == {"env": both}


def test_no_setting_is_better_and_that_is_said(stalls: RunRecord) -> None:
    fix = _BY_ID["memory.device_allocator"]
    choice = Choice(
        description="torch's defaults: 3 stalls, 0 failures. None of the settings that were tried does better."
    )
    assert (
        fix.obstacle(make_context(stalls, RunnerSettings(), found={"memory.device_allocator": choice}))
        == choice.description
    )
    assert "no history" in fix.obstacle(make_context(stalls, RunnerSettings()))


def test_a_limit_frees_segments_early(stalls: RunRecord, play: Play) -> None:
    fitting = {**facts(stalls), "allocated_peak_bytes": 800 * _MIB}
    now = make_context(replace(stalls, meta=stalls.meta.updated(device_memory=fitting)), RunnerSettings())
    settings, found, record = _applied("memory.limit", play, now)
    assert settings.device_memory_share == pytest.approx(0.95, abs=0.002)
    assert read_conf(settings.env[ALLOC_CONF]) == {"garbage_collection_threshold": "0.8"}
    assert settings.env[OLDER_CONF] == settings.env[ALLOC_CONF], "one of them alone could be outdone by the other"
    assert facts(record)["share"] == settings.device_memory_share
    assert facts(record)["reserved_peak_bytes"] <= settings.device_memory_share * _TOTAL
    assert found.effective == (calls(record).retries <= 0.5 * calls(stalls).retries), found.evidence
    assert "may have 95.0 % of the device; segments are freed from 80 % of that on" in found.evidence
    assert "already" in _BY_ID["memory.limit"].obstacle(make_context(stalls, settings))


@pytest.mark.parametrize(
    ("changed", "settings", "words"),
    [
        ({"allocated_peak_bytes": 1200 * _MIB}, {}, "nothing would stay cached"),
        ({}, {"env": {ALLOC_CONF: "expandable_segments:True"}}, "cannot be freed one by one"),
        ({}, {"env": {ALLOC_CONF: "garbage_collection_threshold:0.6"}}, "is set already"),
    ],
)
def test_cases_in_which_a_limit_does_not_help(
    changed: Mapping[str, Any], settings: dict[str, Any], words: str, stalls: RunRecord
) -> None:
    record = replace(stalls, meta=stalls.meta.updated(device_memory={**facts(stalls), **changed}))
    assert words in _BY_ID["memory.limit"].obstacle(make_context(record, RunnerSettings(**settings)))


def test_a_reservation_conflicts_with_a_split_limit(stalls: RunRecord) -> None:
    split = RunnerSettings(env={ALLOC_CONF: "max_split_size_mb:128"}, buffer_pool=True)
    assert "would not serve any request" in _BY_ID["memory.pool"].obstacle(make_context(stalls, split))
    choice = Choice(setting="max_split_size_mb:128", description="")
    now = make_context(stalls, RunnerSettings(reserve_mb=900), found={"memory.device_allocator": choice})
    assert "would not serve any request" in _BY_ID["memory.device_allocator"].obstacle(now)


@pytest.mark.parametrize("fix", _DEVICE_FIXES)
def test_a_device_that_was_not_called_needs_none(fix: str, stalls: RunRecord, play: Play) -> None:
    """On a device of twice the size nothing stalls, and little of the tail is memory."""
    roomy = play(total=4 * _TOTAL)
    assert calls(roomy).retries == 0
    choice = Choice(setting="expandable_segments:True", description="")
    pooled, found = RunnerSettings(buffer_pool=True), {"memory.device_allocator": choice}
    now = make_context(roomy, pooled, found=found)
    assert "it pays with stalls" in _BY_ID[fix].obstacle(now)
    settled = make_context(
        stalls, RunnerSettings(buffer_pool=True), found={"memory.device_allocator": choice}, latest=_quiet(stalls)
    )
    assert "leave no call" in _BY_ID[fix].obstacle(settled)


def _quiet(record: RunRecord) -> RunRecord:
    names = ("alloc_retries", "device_allocs", "device_frees")
    return replace(record, batches={**record.batches, **{name: record.batches[name] * 0 for name in names}})


def test_an_allocator_that_is_not_torchs_own_is_left_alone(stalls: RunRecord) -> None:
    other = {**facts(stalls), "backend": "cudaMallocAsync"}
    now = make_context(
        replace(stalls, meta=stalls.meta.updated(device_memory=other)), RunnerSettings(buffer_pool=True)
    )
    for fix in _DEVICE_FIXES:
        assert "cudaMallocAsync" in _BY_ID[fix].obstacle(now)


def test_settings_are_read_and_joined_as_torch_reads_them() -> None:
    lists = "roundup_power2_divisions:[256:1,512:2],max_split_size_mb:64"
    assert read_conf(lists) == {"roundup_power2_divisions": "[256:1,512:2]", "max_split_size_mb": "64"}
    assert merged_conf(lists, "max_split_size_mb:128") == lists.replace("64", "128")
    assert read_conf("") == {} and merged_conf("", "a:1") == "a:1"
    assert allocator_conf({ALLOC_CONF: "a:1", OLDER_CONF: "b:2"}) == "a:1"
    assert allocator_conf({OLDER_CONF: "b:2"}) == "b:2" and allocator_conf({}) == ""
    # An empty text is a setting, too: that of the defaults.
    assert allocator_conf({ALLOC_CONF: "", OLDER_CONF: "b:2"}) == ""
    cuda = "release_lock_on_cudamalloc:True,max_split_size_mb:32"
    assert allocator_conf({ALLOC_CONF: "max_split_size_mb:64,backend:native", OLDER_CONF: cuda}) == (
        "max_split_size_mb:64,release_lock_on_cudamalloc:True"
    ), "what only CUDA has is read from the older one"


def test_on_the_host_there_is_no_device_to_limit_or_to_record() -> None:
    assert allocator_of("cpu") is None
    assert limit_memory(0.5, {}) == ["device_memory_share = 0.5: the model is not on a CUDA device"]
    assert limit_memory(0.0, {}) == []
    assert begin_history("cpu") == "the model is not on a CUDA device"
    assert DeviceFacts({}).end([("cpu", None)]) == {}


def test_a_recorded_history_is_replayed_in_the_processs_room(tmp_path: Path) -> None:
    """Sixty MiB of a segment stay split; the next request was served by freeing other segments first."""

    def entry(action: str, address: int, size: int) -> dict[str, Any]:
        return {"action": action, "addr": address * _MIB, "size": size * _MIB, "stream": 0, "time_us": 0}

    history = [
        *(entry(action, 0, 60) for action in ("segment_alloc", "alloc", "free_requested", "free_completed")),
        entry("alloc", 0, 20),
        *(entry(action, 100, 40) for action in ("segment_alloc", "alloc", "free_requested", "free_completed")),
        entry("segment_free", 100, 40),
        entry("segment_alloc", 200, 30),
        entry("alloc", 200, 30),
        *(entry(action, 300, 70) for action in ("oom",)),
    ]
    path = tmp_path / "history.pickle"
    path.write_bytes(pickle.dumps({"device_traces": [history], "segments": []}))
    found = choice_of(path, 8 << 30)
    assert found.figures["capacity_bytes"] == 100 * _MIB, "not the eight GiB that were free in the end"


@pytest.mark.parametrize(
    ("backend", "told", "note"),
    [
        ("native", {"expandable_segments", "max_split_size", "garbage_collection_threshold", ALLOC_CONF}, ""),
        ("cudaMallocAsync", set(), ""),
        ("pluggable", None, "device memory: not read, because its allocator (pluggable) does not count"),
    ],
)
def test_an_allocator_without_figures_does_not_end_a_run(
    torch_on: Any, backend: str, told: set[str] | None, note: str
) -> None:
    torch_on(FakeCuda(conf="max_split_size_mb:64"), backend=backend)
    allocator = allocator_of("cuda:0")
    assert allocator is not None and limit_memory(0.5, {"cuda:0": allocator}) == []
    known = DeviceFacts({"cuda:0": allocator})
    known.begin()
    found = known.end([("cuda:0", None)])
    assert known.note() == note
    if told is None:
        assert found == {} and allocator.share() == 1.0
        return
    assert (found["backend"], found["share"]) == (backend, 0.5)
    assert {name.replace(OLDER_CONF, ALLOC_CONF) for name in found["settings"]} == told


def test_only_torchs_own_allocator_has_a_history(torch_on: Any) -> None:
    told = torch_on(FakeCuda())
    assert begin_history("cuda:0") == ""
    assert (told.recording["context"], told.recording["stacks"]) == (None, "python"), "no stack is wanted of anything"
    torch_on(FakeCuda(), backend="cudaMallocAsync")
    assert begin_history("cuda:0") == "the device's memory is managed by cudaMallocAsync, which records no history"


@pytest.mark.parametrize(("backend", "available"), [("cudaMallocAsync", True), ("pluggable", False)])
def test_memory_of_batches_is_measured_if_the_allocator_counts(torch_on: Any, backend: str, available: bool) -> None:
    torch_on(FakeCuda(), backend=backend)
    peak = PeakMemory("cuda:0")
    peak.begin()
    assert peak.available is available and peak.need_bytes() == 0


def test_a_batchs_peak_does_not_hide_the_runs(torch_on: Any) -> None:
    """What limits batches by memory sets the peaks back at each one."""
    device = FakeCuda(4 << 30)
    torch_on(device)
    model = device.allocate(100 * _MIB)
    peak = PeakMemory("cuda:0")
    peak.begin()
    warm = device.allocate(2000 * _MIB)
    assert peak.need_bytes() == 2000 * _MIB
    del warm
    device.model._release_cached()
    known = DeviceFacts(allocators_of(["cuda:0"]))
    known.begin(peak)
    for size in (300, 900, 50):
        peak.begin()
        held = device.allocate(size * _MIB)
        assert peak.need_bytes() == size * _MIB
        del held
    peak.begin()
    found = known.end([("cuda:0", None)])
    assert found["allocated_peak_bytes"] == 1000 * _MIB, "of the second batch, not of the last or of the warm-up"
    assert found["reserved_peak_bytes"] == device.model.counters.reserved >= 1000 * _MIB
    del model


def _two(record: RunRecord, first: Mapping[str, Any], second: Mapping[str, Any]) -> RunRecord:
    """A run on two devices, with one worker on the first and two on the second."""
    known = dict(facts(record))
    both = {**known, "workers": 1, **first, "others": {"cuda:1": {**known, "workers": 2, **second}}}
    return replace(record, meta=record.meta.updated(device_memory=both))


def test_every_device_is_limited_and_reported(torch_on: Any) -> None:
    devices = [FakeCuda(), FakeCuda()]
    torch_on(*devices)
    allocators = allocators_of(["cuda:0", "cuda:1", "cuda:1"])
    assert limit_memory(0.25, allocators) == []
    assert [device.share() for device in devices] == [0.25, 0.25]
    known = DeviceFacts(allocators)
    known.begin()
    held = devices[1].allocate(200 * _MIB)
    taken = Reserved(wanted_bytes=64 * _MIB, got_bytes=60 * _MIB)
    found = known.end([("cuda:0", None), ("cuda:1", taken), ("cuda:1", taken)])
    assert (found["workers"], found["allocs"], found["wanted_bytes"]) == (1, 0, 0)
    other = found["others"]["cuda:1"]
    assert (other["workers"], other["allocs"]) == (2, 1) and other["reserved_peak_bytes"] == 200 * _MIB
    assert (other["wanted_bytes"], other["reserved_ahead_bytes"]) == (128 * _MIB, 120 * _MIB)
    del held


def test_calls_of_all_devices_count(stalls: RunRecord) -> None:
    unread = {**stalls.batches, "device_read": stalls.batches["device_read"] * 0}
    counts = {"retries": 0, "allocs": 1, "frees": 0}
    record = replace(_two(stalls, counts, {"retries": 2, "allocs": 5, "frees": 3}), batches=unread)
    found = calls(record)
    assert (found.retries, found.allocs, found.frees) == (2, 6, 3)


def test_each_devices_growth_is_divided_by_its_own_workers(stalls: RunRecord) -> None:
    def grown(mib: int) -> dict[str, int]:
        peaks = {"allocated_peak_bytes": mib * _MIB, "reserved_peak_bytes": mib * _MIB}
        return {"allocated_start_bytes": 0, "reserved_start_bytes": 0, **peaks}

    assert worker_growth_mib(_two(stalls, grown(100), grown(160))) == 100
    assert worker_growth_mib(_two(stalls, grown(100), grown(400))) == 200


def test_a_pool_must_fit_on_every_device(stalls: RunRecord) -> None:
    settings = RunnerSettings(workers=3, buffer_pool=True)
    start, wanted = facts(stalls)["reserved_start_bytes"], worker_growth_mib(_two(stalls, {}, {}))
    roomy = {"reserved_end_bytes": start, "left_bytes": 8 << 30, "total_bytes": 16 << 30}
    enough = _two(stalls, roomy, roomy)
    assert _BY_ID["memory.pool"].obstacle(make_context(enough, settings)) == ""
    tight = _two(stalls, roomy, {**roomy, "left_bytes": (wanted + 1) * _MIB})
    assert "all of them on one device" in _BY_ID["memory.pool"].obstacle(make_context(tight, settings))


@pytest.mark.parametrize("got", [1.0, 0.5])
def test_a_pool_is_verified_on_every_device(stalls: RunRecord, got: float) -> None:
    wanted = {"wanted_bytes": 1000 * _MIB}
    record = _two(
        _quiet(stalls),
        {**wanted, "reserved_ahead_bytes": 1000 * _MIB},
        {**wanted, "reserved_ahead_bytes": int(got * 1000) * _MIB},
    )
    record = replace(record, meta=record.meta.updated(settings={"reserve_mb": 1000}))
    found = _BY_ID["memory.pool"].verify(Applied(evidence={}, record=record, without=stalls))
    assert found.effective is (got == 1.0)
    assert f"{got * 1000:,.0f} MiB of 1,000 MiB were taken from each device" in found.evidence


def test_the_fullest_device_sets_the_limit_of_all(stalls: RunRecord, play: Play) -> None:
    fitting = {"allocated_peak_bytes": 400 * _MIB, "left_bytes": 0, "reserved_end_bytes": _TOTAL}
    crowded = {**fitting, "reserved_end_bytes": _TOTAL // 2, "allocated_peak_bytes": 100 * _MIB}
    now = make_context(_two(stalls, fitting, crowded), RunnerSettings())
    assert _BY_ID["memory.limit"].obstacle(now) == ""
    changed = _BY_ID["memory.limit"].change(now)
    assert changed["device_memory_share"] == 0.475
    full = make_context(_two(stalls, fitting, {**crowded, "allocated_peak_bytes": 500 * _MIB}), RunnerSettings())
    assert "nothing would stay cached" in _BY_ID["memory.limit"].obstacle(full)
    record = _quiet(play(RunnerSettings().with_overrides(changed)))
    for share, effective in ((0.475, True), (1.0, False)):
        run = _two(record, {}, {"share": share})
        found = _BY_ID["memory.limit"].verify(Applied(evidence={}, record=run, without=stalls))
        words = "47.5 % of each of 2 devices" if effective else "47.5 % of one device, and 100.0 % of another"
        assert found.effective is effective and words in found.evidence


def test_a_history_has_the_room_of_its_own_device(tmp_path: Path) -> None:
    history = [
        {"action": action, "addr": 0, "size": _MIB, "stream": 0, "time_us": 0}
        for action in ("segment_alloc", "alloc")
    ]
    path = tmp_path / "history.pickle"
    path.write_bytes(pickle.dumps({"device_traces": [[], history], "segments": []}))
    assert choice_of(path, {0: 100 * _MIB, 1: 300 * _MIB}).figures["capacity_bytes"] == 300 * _MIB
    assert choice_of(path, {0: 100 * _MIB, 2: 200 * _MIB}).figures["capacity_bytes"] == 100 * _MIB


@pytest.mark.parametrize("fix", _DEVICE_FIXES)
def test_without_stalls_only_latencies_decide(fix: str, stalls: RunRecord) -> None:
    """None of the screening's windows may hold a stall: no fewer than none is no evidence."""
    settings = {
        "reserve_mb": 64,
        "device_memory_share": 0.9,
        "env": {ALLOC_CONF: "garbage_collection_threshold:0.8"},
    }
    told = {
        "wanted_bytes": 64 * _MIB,
        "reserved_ahead_bytes": 64 * _MIB,
        "share": 0.9,
        "settings": {"garbage_collection_threshold": 0.8},
    }

    def run(record: RunRecord) -> RunRecord:
        return replace(record, meta=record.meta.updated(settings=settings, device_memory={**facts(record), **told}))

    quiet = _quiet(stalls)
    verify = _BY_ID[fix].verify
    found = verify(Applied(evidence={}, record=run(quiet), without=quiet))
    assert found.effective and "nothing stalled in these windows, so only" in found.evidence
    seen = verify(Applied(evidence={}, record=run(quiet), without=stalls))
    assert seen.effective and "nothing stalled" not in seen.evidence
    worse = verify(Applied(evidence={}, record=run(stalls), without=quiet))
    assert not worse.effective and "nothing stalled" not in worse.evidence


def test_stalls_are_those_that_the_allocator_counted(tmp_path: Path) -> None:
    """Memory that is collected, or given back between replays, is followed by a new segment as after a stall."""
    history = [
        {"action": action, "addr": address * _MIB, "size": 40 * _MIB, "stream": 0, "time_us": 0}
        for action, address in (("segment_alloc", 0), ("segment_free", 0), ("segment_alloc", 200), ("alloc", 200))
    ]
    told = {"PYTORCH_ALLOC_CONF": "garbage_collection_threshold:0.8,pinned_num_register_threads:8"}
    path = tmp_path / "history.pickle"
    path.write_bytes(pickle.dumps({"device_traces": [history], "segments": [], "allocator_settings": told}))
    assert choice_of(path, 8 << 30).figures["capacity_bytes"] == 40 * _MIB
    found = choice_of(path, 8 << 30, {0: 0})
    assert found.figures["capacity_bytes"] == 8 << 30 and "in the recording" not in found.description
    assert found.figures["policies"][0]["setting"] == ""
    assert choice_of(path, 8 << 30, {0: 2}).figures["capacity_bytes"] == 40 * _MIB
    limited = choice_of(path, 8 << 30, {0: 0}, limited=True)
    assert limited.figures["policies"][0]["setting"] == "garbage_collection_threshold:0.8"


def test_a_histories_stalls_are_counted_from_its_begin_on(
    torch_on: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    devices = FakeCuda(100 * _MIB), FakeCuda(100 * _MIB)
    torch_on(*devices)
    monkeypatch.setattr("torch.cuda.memory._dump_snapshot", lambda file: Path(file).touch())

    def stall(device: Any) -> None:
        device.model._release_cached()
        held = device.allocate(80 * _MIB)
        del held
        held = device.allocate(90 * _MIB)
        del held

    stall(devices[0])
    assert begin_history("cuda:0") == ""
    stall(devices[0])
    stall(devices[1])
    stall(devices[1])
    assert end_history(tmp_path / "history.pickle") == {0: 1, 1: 2}
