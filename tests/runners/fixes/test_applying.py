"""When each fix applies and when it does not, and that its change is a valid setting that a plan keeps."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from latfix.config.plan import Plan, PlannedFix, plan_text
from latfix.config.settings_tables import validate_settings
from latfix.files.toml_reader import TomlFile
from latfix.profilers.allocator_lab.compare_policies import Choice
from latfix.profilers.forecast.parameter_search import Numbers, Proposal
from latfix.results.diagnosis import CauseSummary
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes import FIXES, Context, Fix
from latfix.settings import RunnerSettings
from latfix.stages import Status

Make = Callable[..., RunRecord]
MakeContext = Callable[..., Context]

BY_ID: Mapping[str, Fix] = {fix.id: fix for fix in FIXES}
MIB = 1 << 20
LATE = [int(Status.OK)] * 9 + [int(Status.TIMEOUT)]
LENGTHS = [20, 400, 60, 150, 300, 30] * 10
#: Runs that call for a fix which the ordinary one does not call for.
CALLED_FOR: dict[str, dict[str, Any]] = {
    "quantize.fp8_dynamic": {"device": "cuda:0"},
    "quantize.fp16": {"device": "cuda:0"},
    "fuse.tensorrt": {"device": "cuda:0"},
    "batch.continuous": {"notes": [{"steps": True}]},
    "schedule.shortest_expected": {
        "members": [[length] for length in LENGTHS],
        "compute_ms": [length / 20 for length in LENGTHS],
    },
    "schedule.priority": {"priority": [0, 2], "queue_ms": [1.0, 60.0]},
    "schedule.memory_aware": {"members": [[40, 40], [50, 51], [45, 190], [60, 62]] * 20, "resident_mb": 2},
    "admit.limit": {"status": LATE},
    "admit.shed": {"status": LATE, "deadline_ms": 100.0},
    "memory.page_prefault": {"memory": {"resident_start_bytes": 0, "peak_bytes": 64 * MIB}},
    "host.parallel": {"torch_threads": 1, "compute_ms": 20.0, "gap_ms": 80.0},
    "warmup.resident": {"gap_ms": [5.0, 60.0], "open_ms": 0.0, "compute_ms": [4.0, 8.0], "members": [[50]] * 40},
    "transfer.pinned": {"device": "cuda:0"},
    "transfer.overlap": {"device": "cuda:0"},
    "fuse.cudagraph": {"device": "cuda:0"},
    "fuse.compile_autotune": {"device": "cuda:0"},
    "host.routing": {
        "members": [[50]] * 60,
        "compute_ms": [4.0, 12.0],
        "workers": 2,
        "settings": {"workers": 2},
    },
    "cache.embeddings": {"embeddings": {"tables": 1, "rows": 10**6, "bytes": 10**9}},
}
_STALLED = {
    "device": "cuda:0",
    "device_memory": {
        "total_bytes": 8 << 30,
        "left_bytes": 0,
        "reserved_start_bytes": 1 << 30,
        "reserved_end_bytes": 7 << 30,
        "reserved_peak_bytes": 7 << 30,
        "allocated_start_bytes": 1 << 30,
        "allocated_peak_bytes": 4 << 30,
        "retries": 9,
        "allocs": 40,
        "frees": 30,
        "share": 1.0,
        "backend": "native",
        "settings": {},
    },
}
CALLED_FOR |= {"memory.device_allocator": _STALLED, "memory.limit": _STALLED}
#: What their measurements on the bench found.
FOUND: dict[str, Any] = {
    "quantize.int8_excluded": {"keep": {"head": 0.2}},
    "memory.device_allocator": Choice(setting="expandable_segments:True", said="none would be left"),
    "batch.tune": Proposal(numbers=Numbers(limit=4, window_ms=5.0, workers=1, threads=0), score=0.5, looked_at=9),
}


@pytest.fixture
def calling(make_record: Make, make_context: MakeContext) -> Callable[..., Context]:
    """A context in which a fix applies, under the settings given."""

    def call(fix: Fix, *settings: RunnerSettings) -> Context:
        run = make_record(**CALLED_FOR.get(fix.id, {}))
        if not settings and fix.id == "host.routing":  # the fixture's own settings have one worker
            settings = (RunnerSettings(**run.meta["settings"]),)
        return make_context(run, *settings, found=FOUND)

    return call


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.id)
def test_a_fix_applies_changes_something_and_then_applies_no_more(
    fix: Fix, calling: Callable[..., Context], before: RunnerSettings, tmp_path: Path
) -> None:
    now = calling(fix)
    assert fix.obstacle(now) == ""
    change = fix.change(now)
    settings = before.with_overrides(change)
    assert settings != before
    # The change survives being written into a plan and read from it.
    text = plan_text(Plan(workload="w", fixes=(PlannedFix(id=fix.id, settings=change),)))
    table = tomllib.loads(text)["fix"][0]["settings"]
    read = validate_settings(table, TomlFile(tmp_path / "plan.toml", text), "fix.settings")
    assert before.with_overrides(read) == settings
    if fix.id == "batch.tune":  # the search looks once, and has what it found applied
        assert FOUND[fix.id].numbers.changes(settings) == {}
    elif fix.id != "batch.size":  # may double more than once
        assert fix.obstacle(calling(fix, settings)) != ""


@pytest.mark.parametrize("fix", [BY_ID[name] for name in (*CALLED_FOR, *FOUND)], ids=lambda fix: fix.id)
def test_what_calls_for_a_fix_is_looked_at(fix: Fix, make_context: MakeContext) -> None:
    """An ordinary run is none of those that call for them; each says why in a sentence."""
    assert fix.obstacle(make_context()) != ""


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.id)
def test_a_run_without_requests_is_no_reason_to_fail(fix: Fix, make_record: Make, make_context: MakeContext) -> None:
    empty = make_context(make_record([], pauses_ms=()))
    if not fix.obstacle(empty):
        fix.change(empty)


@pytest.mark.parametrize(
    ("fix", "settings", "run", "more", "words"),
    [
        ("warmup.shapes", {"warmup_shapes": 3}, {}, {}, "already"),
        ("batch.window", {"batch_window_ms": 0.0}, {}, {}, "no batch window"),
        ("batch.window", {"max_batch_size": 1}, {}, {}, "requests run one by one"),
        ("batch.bucket", {"max_batch_size": 1}, {}, {}, "one by one"),
        ("batch.bucket", {}, {"members": [[50, 50]] * 40}, {}, "padding"),
        ("batch.size", {"max_batch_size": 8}, {}, {}, "would not fill"),
        ("transfer.pinned", {}, {}, {}, "no device to copy to"),
        ("transfer.overlap", {}, {}, {}, "on the CPU"),
        ("transfer.overlap", {"batching": "continuous"}, {"device": "cuda:0"}, {}, "batching is continuous"),
        ("transfer.overlap", {"routing": "weighted", "workers": 2}, {"device": "cuda:0"}, {}, "routing weighs"),
        ("host.routing", {"overlap": True, "workers": 2}, {}, {}, "batches overlap"),
        (
            "transfer.overlap",
            {},
            {"device": "cuda:0", "device_waits": ["net.py:7"]},
            {},
            "waits for the device (at net.py:7)",
        ),
        ("transfer.overlap", {"memory_limit_mb": 64}, {"device": "cuda:0"}, {}, "limited by memory"),
        ("fuse.cudagraph", {}, {}, {}, "no graphs to capture"),
        ("fuse.cudagraph", {"compile": "reduce-overhead"}, {"device": "cuda:0"}, {}, "captured already"),
        ("fuse.cudagraph", {"batching": "continuous"}, {"device": "cuda:0"}, {}, "no two of them"),
        (
            "fuse.cudagraph",
            {},
            {"device": "cuda:0", "device_waits": ["model.py:31"]},
            {},
            "waits for the device at model.py:31",
        ),
        ("fuse.compile_autotune", {}, {}, {}, "one kernel to choose from"),
        ("fuse.compile_autotune", {"compile": "reduce-overhead"}, {"device": "cuda:0"}, {}, "with reduce-overhead"),
        ("quantize.int8_weight_only", {}, {"device": "cuda:0"}, {}, "CPU only"),
        ("quantize.fp16", {}, {}, {}, "on GPUs only"),
        ("quantize.fp8_dynamic", {}, {}, {}, "compute capability 8.9"),
        ("quantize.fp8_dynamic", {"precision": "bf16"}, {"device": "cuda:0"}, {}, "bf16 already"),
        ("quantize.fp16", {"backend": "onnxruntime"}, {"device": "cuda:0"}, {}, "onnxruntime runs the model"),
        ("quantize.int8_dynamic", {"precision": "bf16"}, {}, {}, "bf16"),
        ("quantize.int8_dynamic", {"compile": "dynamic"}, {}, {}, "torch.compile"),
        ("quantize.bf16", {"precision": "int8_dynamic"}, {}, {}, "int8_dynamic"),
        ("fuse.compile", {"precision": "int8_dynamic"}, {}, {}, "quantize.int8_dynamic"),
        ("memory.allocator", {}, {"faults": 250}, {}, "250 page faults"),
        ("memory.allocator", {"env": {"LD_PRELOAD": "x.so"}}, {}, {}, "another allocator"),
        ("memory.pool", {}, {}, {"default_collate": False}, "collate of its own"),
        ("gc.freeze", {}, {"pauses_ms": (0.9, 0.2)}, {}, "0.9 ms"),
        ("gc.freeze", {}, {"pauses_ms": ()}, {}, "0 collections"),
        ("host.threads", {}, {"device": "cuda:0"}, {}, "GPU"),
        ("host.threads", {}, {}, {"cores": 1}, "one core"),
        ("host.threads", {}, {"torch_threads": 1}, {}, "one thread already"),
        ("host.workers", {}, {}, {"cores": 1}, "1 core"),
        ("host.workers", {}, {"device": "cuda:0"}, {}, "GPU"),
        ("host.routing", {}, {}, {}, "one worker"),
        ("host.routing", {"workers": 2, "routing": "weighted"}, {}, {}, "already"),
        ("host.routing", {"workers": 2}, {}, {}, "record is of one worker"),
        (
            "host.routing",
            {"workers": 2},
            {"members": [[50]] * 60, "workers": 2, "settings": {"workers": 2}},
            {},
            "the 2 workers are alike",
        ),
    ],
)
def test_a_fix_says_why_it_does_not_apply(
    fix: str,
    settings: dict[str, Any],
    run: dict[str, Any],
    more: dict[str, Any],
    words: str,
    before: RunnerSettings,
    make_record: Make,
    make_context: MakeContext,
) -> None:
    now = make_context(make_record(**run), before.with_overrides(settings), **more)
    assert words in BY_ID[fix].obstacle(now)


def of_the_tail(cause: str, share: float) -> CauseSummary:
    return CauseSummary(
        cause=cause,
        tail_ms=100 * share,
        tail_share=share,
        own_ms=100 * share,
        propagated_ms=0.0,
        ci95_ms=(0.0, 0.0),
        named=False,
        evidence_class="counted",
        requests=1,
        evidence="",
        whatif_ms={},
        fixes=(),
    )


@pytest.mark.parametrize("share", [0.03, 0.02])
def test_an_allocator_is_judged_by_all_that_memory_costs_the_tail(
    share: float, make_record: Make, make_context: MakeContext
) -> None:
    causes = [of_the_tail(cause, share) for cause in ("memory.page_faults", "memory.fragmentation", "python.gc")]
    few = make_context(make_record(faults=2))
    told = BY_ID["memory.allocator"].obstacle(replace(few, diagnosis=replace(few.diagnosis, causes=tuple(causes))))
    assert ("page faults a request" in told) == (2 * share < 0.05)


def test_faults_that_other_fixes_have_ended_need_no_allocator(make_context: Any, make_record: Any) -> None:
    many = make_context(make_record(faults=5000))
    assert BY_ID["memory.allocator"].obstacle(many) == ""
    assert BY_ID["memory.allocator"].obstacle(replace(many, latest=make_record(faults=4000))) == ""
    assert "leave 2 page faults a request" in BY_ID["memory.allocator"].obstacle(
        replace(many, latest=make_record(faults=2))
    )


def test_what_this_machine_cannot_do_is_no_fix(
    monkeypatch: pytest.MonkeyPatch, make_record: Make, make_context: MakeContext
) -> None:
    monkeypatch.setattr("latfix.runners.fixes.quantize.bf16.native_bf16", lambda: False)
    monkeypatch.setattr("latfix.runners.fixes.fuse.compile.compiler_missing", lambda: "no compiler")
    monkeypatch.setattr("latfix.runners.fixes.memory.allocator.platform", SimpleNamespace(libc_ver=lambda: ("", "")))
    assert "bfloat16" in BY_ID["quantize.bf16"].obstacle(make_context())
    assert BY_ID["quantize.bf16"].obstacle(make_context(make_record(device="cuda:0"))) == ""
    assert BY_ID["fuse.compile"].obstacle(make_context()) == "no compiler"
    assert "glibc" in BY_ID["memory.allocator"].obstacle(make_context())


def test_batches_shrink_where_they_cost_more_and_grow_where_they_pay(
    make_record: Make, make_context: MakeContext
) -> None:
    dear = make_record([[50]] * 20 + [[50, 400, 50, 50]] * 20)
    dear.batches["compute_end_ns"][20:] += 100_000_000
    cheap = make_record([[50]] * 20 + [[50] * 2] * 20)
    assert BY_ID["batch.size"].change(make_context(dear)) == {"max_batch_size": 1}
    assert BY_ID["batch.size"].change(make_context(cheap)) == {"max_batch_size": 4}
    assert BY_ID["batch.size"].obstacle(make_context(dear)) == BY_ID["batch.size"].obstacle(make_context(cheap)) == ""


def test_continuous_batching_opens_places_where_requests_ran_one_by_one(
    calling: Callable[..., Context], before: RunnerSettings
) -> None:
    fix = BY_ID["batch.continuous"]
    alone = calling(fix, before.with_overrides({"max_batch_size": 1}))
    assert fix.obstacle(alone) == "" and before.max_batch_size > 1
    assert fix.change(alone) == {
        "batching": "continuous",
        "batch_window_ms": 0.0,
        "max_batch_size": before.max_batch_size,
    }
    alone.record.meta["settings"]["max_batch_size"] = 1
    assert fix.change(alone)["max_batch_size"] == 8


def test_buckets_go_by_the_feature_that_tells_the_compute_time(make_record: Make, make_context: MakeContext) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.permutation(np.arange(60) + 10)
    run = make_record([[50]] * 60, features={"noise": rng.permutation(60), "tokens": tokens})
    run.requests["compute_ns"] = tokens * 1_000_000
    assert BY_ID["batch.bucket"].change(make_context(run)) == {"batch_order": "length", "batch_key": "tokens"}
    run.requests["input_elements"] = tokens.astype(np.int64)
    assert BY_ID["batch.bucket"].change(make_context(run))["batch_key"] == ""


def test_what_changes_answers_says_so() -> None:
    """Whatever computes with other kernels, in another order or with fewer bits, or forms other batches: a model may
    read its padding."""
    assert {fix.id for fix in FIXES if fix.changes_outputs} == {
        "quantize.int8_dynamic",
        "quantize.int8_excluded",
        "quantize.int8_weight_only",
        "quantize.fp8_dynamic",
        "quantize.bf16",
        "quantize.fp16",
        "fuse.compile",
        "fuse.compile_autotune",
        "fuse.cudagraph",
        "fuse.onnxruntime",
        "fuse.openvino",
        "fuse.tensorrt",
        "fuse.channels_last",
        "fuse.attention",
        "batch.size",
        "batch.bucket",
        "batch.adaptive",
        "batch.continuous",
        "batch.tune",
    }
