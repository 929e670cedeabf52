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
from latfix.errors import InputError
from latfix.files.toml_reader import TomlFile
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes import FIXES, Context, Fix
from latfix.runners.host import apply_plan
from latfix.runners.host.malloc_libraries import JEMALLOC
from latfix.settings import Precision, RunnerSettings

Make = Callable[..., RunRecord]
MakeContext = Callable[..., Context]

CONV = "torch.nn.modules.conv.Conv2d"
LINEAR = "torch.nn.modules.linear.Linear"
MATH = "aten::_scaled_dot_product_attention_math"

BY_ID: Mapping[str, Fix] = {fix.id: fix for fix in FIXES}


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.id)
def test_a_fix_applies_changes_something_and_then_applies_no_more(
    fix: Fix, calling: Callable[..., Context], before: RunnerSettings, tmp_path: Path
) -> None:
    now = calling(fix)
    assert fix.obstacle(now) == ""
    change = fix.changes(now)[0]
    settings = before.with_overrides(change)
    assert settings != before
    # The change survives being written into a plan and read from it.
    text = plan_text(Plan(workload="w", fixes=(PlannedFix(id=fix.id, settings=change),)))
    table = tomllib.loads(text)["fix"][0]["settings"]
    read = validate_settings(table, TomlFile(tmp_path / "plan.toml", text), "fix.settings")
    assert before.with_overrides(read) == settings
    if fix.options is None:  # of a number there is always another one
        assert fix.obstacle(calling(fix, settings)) != ""


def test_what_calls_for_a_fix_is_looked_at(uncalled: frozenset[str], make_context: MakeContext) -> None:
    """An ordinary run is none of those that call for them; each says why in a sentence."""
    assert [name for name in uncalled if not BY_ID[name].obstacle(make_context())] == []


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.id)
def test_a_run_without_requests_is_no_reason_to_fail(fix: Fix, make_record: Make, make_context: MakeContext) -> None:
    empty = make_context(make_record([], pauses_ms=()))
    if not fix.obstacle(empty):
        fix.changes(empty)


@pytest.mark.parametrize(
    ("fix", "settings", "run", "more", "words"),
    [
        ("warmup.shapes", {"warmup_shapes": 3}, {}, {}, "already"),
        ("batch.window", {"batch_window_ms": 0.0}, {}, {}, "no batch window"),
        ("batch.window", {"max_batch_size": 1}, {}, {}, "requests run one by one"),
        ("batch.bucket", {"max_batch_size": 1}, {}, {}, "one by one"),
        ("batch.bucket", {}, {"members": [[50, 50]] * 40}, {}, "padding"),
        ("batch.size", {"batching": "adaptive"}, {}, {}, "batching is adaptive"),
        (
            "batch.size",
            {"max_batch_size": 1},
            {"model": {"made_of": {"largest_batch": 1}}},
            {},
            "takes one request at a time",
        ),
        ("transfer.pinned", {}, {}, {}, "no device to copy to"),
        ("transfer.overlap", {}, {}, {}, "on the CPU"),
        ("transfer.overlap", {"batching": "continuous"}, {"device": "cuda:0"}, {}, "batching is continuous"),
        ("transfer.overlap", {"routing": "weighted", "workers": 2}, {"device": "cuda:0"}, {}, "routing by weight"),
        ("host.routing", {"overlap": True, "workers": 2}, {}, {}, "batches overlap"),
        (
            "transfer.overlap",
            {},
            {"device": "cuda:0", "device_waits": ["net.py:7"]},
            {},
            "waits for the device (at net.py:7)",
        ),
        ("transfer.overlap", {"memory_limit_mb": 64}, {"device": "cuda:0"}, {}, "limited by memory"),
        ("fuse.cudagraph", {}, {}, {}, "no CUDA graphs"),
        ("fuse.cudagraph", {"compile": "reduce-overhead"}, {"device": "cuda:0"}, {}, "captured already"),
        ("fuse.cudagraph", {"batching": "continuous"}, {"device": "cuda:0"}, {}, "no two steps"),
        (
            "fuse.cudagraph",
            {},
            {"device": "cuda:0", "device_waits": ["model.py:31"]},
            {},
            "waits for the device at model.py:31",
        ),
        ("fuse.compile_autotune", {}, {}, {}, "one kernel to choose from"),
        ("fuse.compile_autotune", {"compile": "reduce-overhead"}, {"device": "cuda:0"}, {}, "with reduce-overhead"),
        ("quantize.int8_weight_only", {}, {"device": "cuda:0"}, {}, "only on the CPU"),
        ("quantize.fp16", {}, {}, {}, "on GPUs only"),
        ("quantize.fp8_dynamic", {}, {}, {}, "compute capability 8.9"),
        ("quantize.fp8_dynamic", {"precision": "bf16"}, {"device": "cuda:0"}, {}, "bf16 already"),
        ("quantize.fp16", {"backend": "onnxruntime"}, {"device": "cuda:0"}, {}, "onnxruntime runs the model"),
        ("quantize.int8_dynamic", {"precision": "bf16"}, {}, {}, "bf16"),
        ("quantize.int8_dynamic", {"compile": "dynamic"}, {}, {}, "torch.compile"),
        ("quantize.bf16", {"precision": "int8_dynamic"}, {}, {}, "int8_dynamic"),
        ("quantize.bf16", {}, {"model": {"dtypes": {"bfloat16": 4, "float32": 1}}}, {}, "4 of 5 layers return"),
        (
            "dispatch.inference_mode",
            {},
            {"model": {"made_of": {"runtime": "ONNX Runtime"}}},
            {},
            "run in ONNX Runtime",
        ),
        ("fuse.compile", {"precision": "int8_dynamic"}, {}, {}, "quantize.int8_dynamic"),
        ("memory.allocator", {"env": {"LD_PRELOAD": "x.so"}}, {}, {}, "another allocator"),
        ("memory.pool", {}, {}, {"default_collate": False}, "its own collate"),
        ("gc.freeze", {}, {"pauses_ms": (0.9, 0.2)}, {}, "0.9 ms"),
        ("gc.freeze", {}, {"pauses_ms": ()}, {}, "0 collections"),
        ("host.threads", {}, {}, {"cores": 1}, "one core"),
        ("host.workers", {}, {}, {"cores": 1}, "1 core"),
        ("host.routing", {}, {}, {}, "one worker"),
        ("host.routing", {"workers": 2, "routing": "weighted"}, {}, {}, "already"),
        ("host.routing", {"workers": 2}, {}, {}, "record has one worker"),
        (
            "host.routing",
            {"workers": 2},
            {"members": [[50]] * 60, "workers": 2, "settings": {"workers": 2}},
            {},
            "the 2 workers are alike",
        ),
        (
            "quantize.int8_dynamic",
            {},
            {"model": {"modules": {"torch.nn.modules.conv.Conv2d": 3}}},
            {},
            "no nn.Linear",
        ),
        (
            "quantize.int8_dynamic",
            {},
            {"model": {"modules": {LINEAR: 4}, "linear_ms": {"default": 1.0, "int8_dynamic": 1.2}}},
            {},
            "take 1.2 ms in it, 1 ms without it",
        ),
        (
            "quantize.int8_weight_only",
            {},
            {"model": {"modules": {LINEAR: 4}, "linear_ms": {"default": 8.0, "bf16": 2.0, "int8_weight_only": 3.5}}},
            {},
            "3.5 ms in it, 2 ms in bf16",
        ),
        (
            "quantize.int8_weight_only",
            {},
            {"model": {"modules": {LINEAR: 4}, "few_row_products": 0}},
            {},
            "many rows",
        ),
        ("quantize.int8_weight_only", {"precision": "bf16"}, {}, {}, "bf16 already"),
        ("quantize.int8_weight_only", {"compile": "dynamic"}, {}, {}, "compiled already"),
        ("quantize.int8_excluded", {}, {}, {}, "were not measured"),
        ("quantize.int8_excluded", {}, {}, {"found": {"quantize.int8_excluded": {}}}, "no layers were found"),
        ("quantize.int8_excluded", {}, {}, {"found": {"quantize.int8_excluded": {"reason": "it died"}}}, ": it died"),
        ("quantize.int8_dynamic", {"backend": "openvino"}, {}, {}, "openvino runs the model"),
        ("fuse.compile", {"backend": "onnxruntime"}, {}, {}, "onnxruntime runs the model"),
        ("fuse.onnxruntime", {"precision": "bf16"}, {}, {}, "precision is bf16"),
        ("fuse.onnxruntime", {"compile": "dynamic"}, {}, {}, "compile is dynamic"),
        ("fuse.onnxruntime", {}, {"device": "cuda:0"}, {}, "GPU"),
        ("fuse.onnxruntime", {}, {"model": {"compile_parts": True}}, {}, "Python loop"),
        ("fuse.openvino", {"precision": "int8_dynamic"}, {}, {}, "precision is int8_dynamic"),
        ("fuse.openvino", {"precision": "bf16", "keep_precision": ("head",)}, {}, {}, "keep_precision"),
        ("fuse.openvino", {"attention": "math"}, {}, {}, "attention is math"),
        ("fuse.openvino", {"backend": "onnxruntime"}, {}, {}, "onnxruntime runs the model already"),
        ("fuse.tensorrt", {}, {}, {}, "the model runs on the CPU"),
        ("fuse.tensorrt", {"precision": "int8_dynamic"}, {"device": "cuda:0"}, {}, "precision is int8_dynamic"),
        (
            "fuse.tensorrt",
            {},
            {"device": "cuda:0", "model": {"modules": {"latfix.runners.model_files.engine_file.EngineModule": 1}}},
            {},
            "a TensorRT engine already",
        ),
        ("fuse.channels_last", {}, {"model": {"modules": {LINEAR: 4}}}, {}, "no two-dimensional convolution"),
        (
            "fuse.channels_last",
            {},
            {"model": {"modules": {CONV: 3}, "layouts": {"channels_last": 5}}},
            {},
            "5 of 5 images",
        ),
        ("fuse.channels_last", {"compile": "dynamic"}, {}, {}, "compiler"),
        ("fuse.attention", {}, {"model": {"kernels": {"aten::addmm": 3}}}, {}, "no scaled_dot_product_attention ran"),
        ("fuse.attention", {}, {"model": {"kernels": {MATH: 3}}}, {}, "do not allow it"),
        ("fuse.attention", {}, {"device": "cuda:0"}, {}, "only on the CPU"),
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


def test_numbers_to_choose_from_are_others_than_now(
    before: RunnerSettings, make_record: Make, make_context: MakeContext
) -> None:
    now = make_context(None, before.with_overrides({"max_batch_size": 4, "batch_window_ms": 5.0}))
    sizes = [change["max_batch_size"] for change in BY_ID["batch.size"].changes(now)]
    windows = [change["batch_window_ms"] for change in BY_ID["batch.window"].changes(now)]
    assert (sizes, windows) == ([1, 2, 8], [0.0, 1.0, 2.0]), "doubled at most, and never open for longer"
    large = make_context(None, before.with_overrides({"max_batch_size": 64}))
    assert max(change["max_batch_size"] for change in BY_ID["batch.size"].changes(large)) == 32
    file = make_context(make_record(model={"made_of": {"largest_batch": 4}}), now.settings)
    assert [change["max_batch_size"] for change in BY_ID["batch.size"].changes(file)] == [1, 2], (
        "no more than it takes"
    )


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
    single = replace(alone.record.meta, settings=replace(before, max_batch_size=1))
    alone = replace(alone, record=replace(alone.record, meta=single))
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
        "numerics.flush_denormal",
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
    }


def test_layers_that_are_about_as_fast_are_left_to_a_trial(make_record: Make, make_context: MakeContext) -> None:
    times = {"default": 1.0, "bf16": 1.1, "int8_dynamic": 1.05, "int8_weight_only": 1.05}
    now = make_context(make_record(model={"modules": {LINEAR: 4}, "linear_ms": times}))
    assert BY_ID["quantize.int8_dynamic"].obstacle(now) == BY_ID["quantize.int8_weight_only"].obstacle(now) == ""


@pytest.mark.parametrize(
    ("fix", "device", "precisions"),
    [
        ("fuse.onnxruntime", "cpu", ("default",)),
        ("fuse.openvino", "cpu", ("default", "bf16")),
        ("fuse.tensorrt", "cuda:1", ("default", "bf16", "fp16")),
    ],
)
def test_a_backend_may_be_asked_for_its_precisions_where_it_is_installed(
    fix: str,
    device: str,
    precisions: tuple[Precision, ...],
    make_record: Make,
    make_context: MakeContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = make_record(device=device)
    for precision in precisions:
        assert BY_ID[fix].obstacle(make_context(run, RunnerSettings(precision=precision))) == ""
    missing = "latfix.runners.fixes.fuse.converted_model.backend_missing"
    monkeypatch.setattr(missing, lambda backend, **_: f"needs {backend}")
    assert BY_ID[fix].obstacle(make_context(run)) == f"needs {fix.partition('.')[2]}"


def test_layers_that_matter_are_added_to_those_that_are_kept_already(make_context: MakeContext) -> None:
    found = {"quantize.int8_excluded": {"keep": {"layers.1": 0.2, "head": 0.1}}}
    now = make_context(None, RunnerSettings(keep_precision=("head",)), found=found)
    change = BY_ID["quantize.int8_excluded"].change(now)
    assert change == {"precision": "int8_dynamic", "keep_precision": ["head", "layers.1"]}


def test_variables_that_a_plan_may_hold_are_those_of_the_fixes() -> None:
    assert {name for fix in FIXES for name in fix.environment} == apply_plan.FIX_VARIABLES


def test_a_plan_preloads_only_what_is_an_allocator_here_or_preloaded_anyhow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply_plan, "preload_name", lambda one: "libjemalloc.so.2" if one is JEMALLOC else "")
    own = RunnerSettings(env={"LD_PRELOAD": "/opt/own.so", "ANY": "1"})
    both = {"LD_PRELOAD": "libjemalloc.so.2:/opt/own.so"}
    apply_plan.check_environment({**both, "MALLOC_CONF": "x", "ANY": "1"}, own, "plan")
    for settings, variables in (
        (RunnerSettings(), both),
        (own, {"LD_PRELOAD": "/tmp/libjemalloc.so.2"}),
        (own, {"LD_PRELOAD": "libtcmalloc.so.4"}),
        (own, {"ANY": "2"}),
    ):
        with pytest.raises(InputError, match="plan: found "):
            apply_plan.check_environment(variables, settings, "plan")
