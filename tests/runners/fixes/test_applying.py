"""When each fix applies and when it does not, and that its change is a valid setting that a plan keeps."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from latfix.config.plan import Plan, PlannedFix, plan_text, write_plan
from latfix.config.settings_tables import validate_settings
from latfix.errors import InputError
from latfix.files.toml_reader import TomlFile
from latfix.runners.fixes import FIXES, Fix
from latfix.runners.host import apply_plan
from latfix.runners.host.malloc_libraries import JEMALLOC
from latfix.settings import Precision, RunnerSettings
from tests.runners.fixes.conftest import calling, make_context, make_record

CONV = "torch.nn.modules.conv.Conv2d"
LINEAR = "torch.nn.modules.linear.Linear"
MATH = "aten::_scaled_dot_product_attention_math"

BY_ID: Mapping[str, Fix] = {fix.id: fix for fix in FIXES}


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.id)
def test_a_fix_applies_changes_something_and_then_applies_no_more(
    fix: Fix, before: RunnerSettings, tmp_path: Path
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
        words = "operators run on" if fix.id == "host.parallel" else "already"
        assert words in fix.obstacle(calling(fix, settings))


def test_fixes_that_an_ordinary_run_does_not_need_show_why(uncalled: frozenset[str]) -> None:
    """Each gives its reason in a sentence."""
    assert [name for name in uncalled if not BY_ID[name].obstacle(make_context())] == []


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.id)
def test_a_run_without_requests_is_no_reason_to_fail(fix: Fix) -> None:
    empty = make_context(make_record([], pauses_ms=()))
    if not fix.obstacle(empty):
        fix.changes(empty)


def case(
    fix: str, words: str, settings: dict[str, Any] | None = None, run: dict[str, Any] | None = None, **more: Any
) -> tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any]]:
    """A fix that does not apply to these settings, on this run, with these words in its reason."""
    return fix, words, settings or {}, run or {}, more


@pytest.mark.parametrize(
    ("fix", "words", "settings", "run", "more"),
    [
        case("warmup.shapes", "already", {"warmup_shapes": 3}),
        case("batch.window", "no batch window", {"batch_window_ms": 0.0}),
        case("batch.window", "requests run one by one", {"max_batch_size": 1}),
        case("batch.bucket", "one by one", {"max_batch_size": 1}),
        case("batch.bucket", "padding", run={"members": [[50, 50]] * 40}),
        case("batch.size", "batching is adaptive", {"batching": "adaptive"}),
        case(
            "batch.size",
            "takes one request at a time",
            {"max_batch_size": 1},
            {"model": {"made_of": {"largest_batch": 1}}},
        ),
        case("transfer.pinned", "no device to copy to"),
        case("transfer.overlap", "on the CPU"),
        case("transfer.overlap", "batching is continuous", {"batching": "continuous"}, {"device": "cuda:0"}),
        case("transfer.overlap", "routing by weight", {"routing": "weighted", "workers": 2}, {"device": "cuda:0"}),
        case("host.routing", "batches overlap", {"overlap": True, "workers": 2}),
        case(
            "transfer.overlap",
            "waits for the device (at net.py:7)",
            run={"device": "cuda:0", "device_waits": ["net.py:7"]},
        ),
        case("transfer.overlap", "limited by memory", {"memory_limit_mb": 64}, {"device": "cuda:0"}),
        case("fuse.cudagraph", "no CUDA graphs"),
        case("fuse.cudagraph", "captured already", {"compile": "reduce-overhead"}, {"device": "cuda:0"}),
        case("fuse.cudagraph", "no two steps", {"batching": "continuous"}, {"device": "cuda:0"}),
        case("fuse.planless_attention", "on the CPU"),
        case(
            "fuse.planless_attention",
            "cuDNN ran no attention",
            run={"device": "cuda:0", "model": {"kernels": {"aten::_scaled_dot_product_efficient_attention": 12}}},
        ),
        case("fuse.compile_autotune", "one kernel to choose from"),
        case("fuse.compile_autotune", "with reduce-overhead", {"compile": "reduce-overhead"}, {"device": "cuda:0"}),
        case("quantize.int8_weight_only", "only on the CPU", run={"device": "cuda:0"}),
        case("quantize.fp16", "on GPUs only"),
        case("quantize.fp8_dynamic", "compute capability 8.9"),
        case("quantize.tf32", "compute capability 8.0"),
        case("quantize.fp8_dynamic", "bf16 already", {"precision": "bf16"}, {"device": "cuda:0"}),
        case("quantize.fp16", "onnxruntime runs the model", {"backend": "onnxruntime"}, {"device": "cuda:0"}),
        case("quantize.int8_dynamic", "bf16", {"precision": "bf16"}),
        case("quantize.int8_dynamic", "torch.compile", {"compile": "dynamic"}),
        case("quantize.bf16", "int8_dynamic", {"precision": "int8_dynamic"}),
        case("quantize.bf16", "4 of 5 layers return", run={"model": {"dtypes": {"bfloat16": 4, "float32": 1}}}),
        case(
            "dispatch.inference_mode", "run in ONNX Runtime", run={"model": {"made_of": {"runtime": "ONNX Runtime"}}}
        ),
        case("fuse.compile", "quantize.int8_dynamic", {"precision": "int8_dynamic"}),
        case("memory.allocator", "another allocator", {"env": {"LD_PRELOAD": "x.so"}}),
        case("memory.pool", "its own collate", default_collate=False),
        case("gc.freeze", "0.9 ms", run={"pauses_ms": (0.9, 0.2)}),
        case("gc.freeze", "0 collections", run={"pauses_ms": ()}),
        case("host.threads", "one core", cores=1),
        case("host.workers", "1 core", cores=1),
        case("host.routing", "one worker"),
        case("host.routing", "already", {"workers": 2, "routing": "weighted"}),
        case("host.routing", "record has one worker", {"workers": 2}),
        case(
            "host.routing",
            "the 2 workers are alike",
            {"workers": 2},
            {"members": [[50]] * 60, "workers": 2, "settings": {"workers": 2}},
        ),
        case(
            "quantize.int8_dynamic", "no nn.Linear", run={"model": {"modules": {"torch.nn.modules.conv.Conv2d": 3}}}
        ),
        case(
            "quantize.int8_dynamic",
            "take 1.2 ms in it, 1 ms without it",
            run={"model": {"modules": {LINEAR: 4}, "linear_ms": {"default": 1.0, "int8_dynamic": 1.2}}},
        ),
        case(
            "quantize.int8_weight_only",
            "3.5 ms in it, 2 ms in bf16",
            run={
                "model": {"modules": {LINEAR: 4}, "linear_ms": {"default": 8.0, "bf16": 2.0, "int8_weight_only": 3.5}}
            },
        ),
        case(
            "quantize.int8_weight_only", "many rows", run={"model": {"modules": {LINEAR: 4}, "few_row_products": 0}}
        ),
        case("quantize.int8_weight_only", "bf16 already", {"precision": "bf16"}),
        case("quantize.int8_weight_only", "compiled already", {"compile": "dynamic"}),
        case("quantize.int8_excluded", "were not measured"),
        case("quantize.int8_excluded", "no layers were found", found={"quantize.int8_excluded": {}}),
        case("quantize.int8_excluded", ": it died", found={"quantize.int8_excluded": {"reason": "it died"}}),
        case("quantize.int8_dynamic", "openvino runs the model", {"backend": "openvino"}),
        case("fuse.compile", "onnxruntime runs the model", {"backend": "onnxruntime"}),
        case("fuse.onnxruntime", "precision is bf16", {"precision": "bf16"}),
        case("fuse.onnxruntime", "compile is dynamic", {"compile": "dynamic"}),
        case("fuse.onnxruntime", "GPU", run={"device": "cuda:0"}),
        case("fuse.onnxruntime", "Python loop", run={"model": {"compile_parts": True}}),
        case("fuse.openvino", "precision is int8_dynamic", {"precision": "int8_dynamic"}),
        case("fuse.openvino", "keep_precision", {"precision": "bf16", "keep_precision": ("head",)}),
        case("fuse.openvino", "attention is math", {"attention": "math"}),
        case("fuse.openvino", "onnxruntime runs the model already", {"backend": "onnxruntime"}),
        case("fuse.tensorrt", "the model runs on the CPU"),
        case("fuse.tensorrt", "precision is int8_dynamic", {"precision": "int8_dynamic"}, {"device": "cuda:0"}),
        case(
            "fuse.tensorrt",
            "a TensorRT engine already",
            run={
                "device": "cuda:0",
                "model": {"modules": {"latfix.runners.model_files.engine_file.EngineModule": 1}},
            },
        ),
        case("fuse.channels_last", "no two-dimensional convolution", run={"model": {"modules": {LINEAR: 4}}}),
        case(
            "fuse.channels_last",
            "5 of 5 images",
            run={"model": {"modules": {CONV: 3}, "layouts": {"channels_last": 5}}},
        ),
        case("fuse.channels_last", "compiler", {"compile": "dynamic"}),
        case("fuse.attention", "no scaled_dot_product_attention ran", run={"model": {"kernels": {"aten::addmm": 3}}}),
        case("fuse.attention", "do not allow it", run={"model": {"kernels": {MATH: 3}}}),
        case("fuse.attention", "only on the CPU", run={"device": "cuda:0"}),
    ],
)
def test_a_fix_shows_why_it_does_not_apply(
    fix: str,
    words: str,
    settings: dict[str, Any],
    run: dict[str, Any],
    more: dict[str, Any],
    before: RunnerSettings,
) -> None:
    now = make_context(make_record(**run), before.with_overrides(settings), **more)
    assert words in BY_ID[fix].obstacle(now)


def test_faults_that_other_fixes_have_ended_need_no_allocator() -> None:
    many = make_context(make_record(faults=5000))
    assert BY_ID["memory.allocator"].obstacle(many) == ""
    assert BY_ID["memory.allocator"].obstacle(replace(many, latest=make_record(faults=4000))) == ""
    assert "leave 2 page faults a request" in BY_ID["memory.allocator"].obstacle(
        replace(many, latest=make_record(faults=2))
    )


def test_a_fix_that_the_machine_cannot_do_does_not_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latfix.runners.fixes.quantize.bf16.native_bf16", lambda: False)
    monkeypatch.setattr("latfix.runners.fixes.fuse.compile.compiler_missing", lambda: "no compiler")
    monkeypatch.setattr("latfix.runners.fixes.memory.allocator.platform", SimpleNamespace(libc_ver=lambda: ("", "")))
    assert "bfloat16" in BY_ID["quantize.bf16"].obstacle(make_context())
    assert BY_ID["quantize.bf16"].obstacle(make_context(make_record(device="cuda:0"))) == ""
    assert BY_ID["fuse.compile"].obstacle(make_context()) == "no compiler"
    assert "glibc" in BY_ID["memory.allocator"].obstacle(make_context())


def test_numbers_to_choose_from_are_others_than_now(before: RunnerSettings) -> None:
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


def test_continuous_batching_opens_places_where_requests_ran_one_by_one(before: RunnerSettings) -> None:
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


def test_buckets_use_the_feature_that_explains_compute() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.permutation(np.arange(60) + 10)
    run = make_record([[50]] * 60, features={"noise": rng.permutation(60), "tokens": tokens})
    run.requests["compute_ns"] = tokens * 1_000_000
    assert BY_ID["batch.bucket"].change(make_context(run)) == {"batch_order": "length", "batch_key": "tokens"}
    run.requests["input_elements"] = tokens.astype(np.int64)
    assert BY_ID["batch.bucket"].change(make_context(run))["batch_key"] == ""


def test_fixes_that_change_answers_are_marked() -> None:
    """Those that use other kernels, another order, fewer bits or other batches: a model may read its padding."""
    assert {fix.id for fix in FIXES if fix.changes_outputs} == {
        "numerics.flush_denormal",
        "quantize.int8_dynamic",
        "quantize.int8_excluded",
        "quantize.int8_weight_only",
        "quantize.fp8_dynamic",
        "quantize.tf32",
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
        "fuse.planless_attention",
        "batch.size",
        "batch.bucket",
        "batch.adaptive",
        "batch.continuous",
    }


def test_layers_that_are_about_as_fast_are_left_to_a_trial() -> None:
    times = {"default": 1.0, "bf16": 1.1, "int8_dynamic": 1.05, "int8_weight_only": 1.05}
    now = make_context(make_record(model={"modules": {LINEAR: 4}, "linear_ms": times}))
    assert BY_ID["quantize.int8_dynamic"].obstacle(now) == BY_ID["quantize.int8_weight_only"].obstacle(now) == ""


def test_code_that_waits_for_the_device_is_captured_if_it_can_be() -> None:
    waiting = make_record(device="cuda:0", device_waits=["masking_utils.py:331"])
    assert BY_ID["fuse.cudagraph"].obstacle(make_context(waiting)) == ""
    captured = make_context(waiting, RunnerSettings(cuda_graphs=True))
    assert BY_ID["transfer.overlap"].obstacle(captured) == "", "a captured batch waits for nothing"


def test_a_device_that_waits_for_launches_gains_from_fewer_not_from_faster_operators() -> None:
    work = {"span_ns": 10_000_000, "busy_ns": 3_000_000}
    profile = [{**work, "launch_ns": 6_000_000}, {**work, "launch_ns": 7_000_000}, {**work, "launch_ns": 1_000_000}]
    meta = make_record(device="cuda:0", device_profile=profile).meta
    assert BY_ID["fuse.cudagraph"].expected_compute(meta) == pytest.approx(0.4)
    other = make_record(device="cuda:0").meta
    assert BY_ID["fuse.cudagraph"].expected_compute(other) == BY_ID["fuse.cudagraph"].compute
    faster = BY_ID["quantize.tf32"]
    assert 1 - faster.expected_compute(meta) == pytest.approx(0.4 * (1 - faster.expected_compute(other)))


@pytest.mark.parametrize(
    ("fix", "device", "precisions"),
    [
        ("fuse.onnxruntime", "cpu", ("default",)),
        ("fuse.openvino", "cpu", ("default", "bf16")),
        ("fuse.tensorrt", "cuda:1", ("default", "bf16", "fp16")),
    ],
)
def test_a_backend_applies_with_its_precisions_if_it_is_installed(
    fix: str,
    device: str,
    precisions: tuple[Precision, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = make_record(device=device)
    for precision in precisions:
        assert BY_ID[fix].obstacle(make_context(run, RunnerSettings(precision=precision))) == ""
    missing = "latfix.runners.fixes.fuse.converted_model.backend_missing"
    monkeypatch.setattr(missing, lambda backend, **_: f"needs {backend}")
    assert BY_ID[fix].obstacle(make_context(run)) == f"needs {fix.partition('.')[2]}"


def test_layers_that_matter_are_added_to_those_that_are_kept_already() -> None:
    found = {"quantize.int8_excluded": {"keep": {"layers.1": 0.2, "head": 0.1}}}
    now = make_context(None, RunnerSettings(keep_precision=("head",)), found=found)
    change = BY_ID["quantize.int8_excluded"].change(now)
    assert change == {"precision": "int8_dynamic", "keep_precision": ["head", "layers.1"]}


def test_variables_that_a_plan_may_hold_are_those_of_the_fixes() -> None:
    assert {name for fix in FIXES for name in fix.environment} == apply_plan.FIX_VARIABLES


def test_a_plan_holds_fixes_of_this_version_or_an_earlier_one(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    names = [*BY_ID, "batch.tune"]
    write_plan(Plan(workload="w", fixes=tuple(PlannedFix(id=name, settings={}) for name in names)), file)
    assert [fix.id for fix in apply_plan.known_plan(tmp_path).fixes] == names
    for name, advice in (("gc.freez", "did you mean 'gc.freeze'"), ("zzz.qqq", "written by latfix 9.0); correct")):
        write_plan(Plan(workload="w", fixes=(PlannedFix(id=name, settings={}),), latfix="9.0"), file)
        with pytest.raises(InputError) as raised:
            apply_plan.with_plan(RunnerSettings(), file)
        assert f"plan.toml:10: found the fix {name!r}" in raised.value.message
        assert advice in raised.value.message


def test_a_plan_preloads_only_allocators_or_what_is_preloaded_already(monkeypatch: pytest.MonkeyPatch) -> None:
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
