"""Fixes that change the model: why they do not apply, and evidence that tells them from nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from latfix.results.diagnosis import Diagnosis
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes import Applied, Context, Fix, dispatch_inference_mode
from latfix.runners.fixes.fuse import attention as fuse_attention
from latfix.runners.fixes.fuse import channels_last as fuse_channels_last
from latfix.runners.fixes.fuse import compile as fuse_compile
from latfix.runners.fixes.fuse import onnxruntime as fuse_onnxruntime
from latfix.runners.fixes.fuse import openvino as fuse_openvino
from latfix.runners.fixes.fuse import tensorrt as fuse_tensorrt
from latfix.runners.fixes.quantize import bf16 as quantize_bf16
from latfix.runners.fixes.quantize import int8_dynamic as quantize_int8_dynamic
from latfix.runners.fixes.quantize import int8_excluded as quantize_int8_excluded
from latfix.runners.fixes.quantize import int8_weight_only as quantize_int8_weight_only
from latfix.settings import RunnerSettings
from latfix.traffic.schedule import Traffic

FIXES: tuple[Fix, ...] = tuple(
    module.FIX
    for module in (
        dispatch_inference_mode,
        fuse_attention,
        fuse_channels_last,
        fuse_compile,
        fuse_onnxruntime,
        fuse_openvino,
        quantize_bf16,
        quantize_int8_dynamic,
        quantize_int8_excluded,
        quantize_int8_weight_only,
    )
)
#: With the one that is of a GPU alone.
BY_ID = {fix.id: fix for fix in (*FIXES, fuse_tensorrt.FIX)}
BEFORE = RunnerSettings()
LINEAR = "torch.nn.modules.linear.Linear"
INT8 = "torch.ao.nn.quantized.dynamic.modules.linear.Linear"
FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
MATH = "aten::_scaled_dot_product_attention_math"


@pytest.fixture(autouse=True)
def machine_that_has_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize_bf16, "native_bf16", lambda: True)
    monkeypatch.setattr(fuse_compile, "compiler_missing", lambda: "")
    monkeypatch.setattr("latfix.runners.fixes.fuse.converted_model.backend_missing", lambda _: "")


def record(**meta: Any) -> RunRecord:
    empty = Traffic.plain(np.zeros(0, dtype=np.int64))
    known = {"device": "cpu", "settings": BEFORE.as_dict()}
    return RunRecord(
        folder=Path("run"), meta={**known, **meta}, requests={}, batches={}, events={}, samples={}, traffic=empty
    )


def context(settings: RunnerSettings = BEFORE, *, found: Mapping[str, Any] | None = None, **meta: Any) -> Context:
    return Context(
        settings=settings,
        record=record(**meta),
        diagnosis=cast(Diagnosis, None),  # none of these fixes looks at it
        default_collate=True,
        cores=2,
        found={"quantize.int8_excluded": {"keep": found}} if found is not None else {},
    )


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.id)
def test_a_fix_applies_changes_something_and_then_applies_no_more(fix: Fix) -> None:
    now = context(found={"layers.1": 0.2})
    assert fix.obstacle(now) == ""
    settings = BEFORE.with_overrides(fix.change(now))
    assert settings != BEFORE
    assert fix.obstacle(replace(now, settings=settings)) != ""


@pytest.mark.parametrize(
    ("fix", "kwargs", "words"),
    [
        ("quantize.int8_dynamic", {"model": {"modules": {"torch.nn.modules.conv.Conv2d": 3}}}, "no nn.Linear"),
        (
            "quantize.int8_dynamic",
            {"model": {"modules": {LINEAR: 4}, "linear_ms": {"default": 1.0, "int8_dynamic": 1.2}}},
            "take 1.2 ms in it, 1 ms as they are",
        ),
        (
            "quantize.int8_weight_only",
            {"model": {"modules": {LINEAR: 4}, "linear_ms": {"default": 8.0, "bf16": 2.0, "int8_weight_only": 3.5}}},
            "3.5 ms in it, 2 ms in bf16",
        ),
        ("quantize.int8_weight_only", {"model": {"modules": {LINEAR: 4}, "few_row_products": 0}}, "of many rows"),
        ("quantize.int8_weight_only", {"device": "cuda:0"}, "CPU only"),
        ("quantize.int8_weight_only", {"settings": RunnerSettings(precision="bf16")}, "bf16 already"),
        ("quantize.int8_weight_only", {"settings": RunnerSettings(compile="dynamic")}, "compiled already"),
        ("quantize.int8_excluded", {}, "was not measured"),
        ("quantize.int8_excluded", {"found": {}}, "found none whose exclusion"),
        ("quantize.int8_dynamic", {"settings": RunnerSettings(backend="openvino")}, "openvino runs the model"),
        ("quantize.bf16", {"settings": RunnerSettings(backend="onnxruntime")}, "onnxruntime runs the model"),
        ("fuse.compile", {"settings": RunnerSettings(backend="onnxruntime")}, "onnxruntime runs the model"),
        ("fuse.onnxruntime", {"settings": RunnerSettings(precision="bf16")}, "precision is bf16"),
        ("fuse.onnxruntime", {"settings": RunnerSettings(compile="dynamic")}, "compile is dynamic"),
        ("fuse.onnxruntime", {"device": "cuda:0"}, "GPU"),
        ("fuse.onnxruntime", {"model": {"compile_parts": True}}, "Python loop"),
        ("fuse.openvino", {"settings": RunnerSettings(precision="int8_dynamic")}, "precision is int8_dynamic"),
        (
            "fuse.openvino",
            {"settings": RunnerSettings(precision="bf16", keep_precision=("head",))},
            "keep_precision",
        ),
        ("fuse.openvino", {"settings": RunnerSettings(attention="math")}, "attention is math"),
        ("fuse.openvino", {"settings": RunnerSettings(backend="onnxruntime")}, "onnxruntime runs the model already"),
        ("fuse.tensorrt", {}, "the model runs on the CPU"),
        ("fuse.tensorrt", {"device": "cuda:0", "settings": RunnerSettings(backend="openvino")}, "openvino runs"),
        (
            "fuse.tensorrt",
            {"device": "cuda:0", "settings": RunnerSettings(precision="int8_dynamic")},
            "precision is int8_dynamic",
        ),
        ("fuse.tensorrt", {"device": "cuda:0", "model": {"compile_parts": True}}, "Python loop"),
        (
            "fuse.tensorrt",
            {
                "device": "cuda:0",
                "model": {"modules": {"latfix.runners.model_files.formats.engine_file.EngineModule": 1}},
            },
            "a TensorRT engine already",
        ),
        ("fuse.channels_last", {"model": {"modules": {LINEAR: 4}}}, "no two-dimensional convolution"),
        (
            "fuse.channels_last",
            {"model": {"modules": {"torch.nn.modules.conv.Conv2d": 3}, "layouts": {"channels_last": 5}}},
            "5 of 5 images",
        ),
        ("fuse.channels_last", {"settings": RunnerSettings(compile="dynamic")}, "compiler"),
        ("fuse.attention", {"model": {"kernels": {"aten::addmm": 3}}}, "no scaled_dot_product_attention ran"),
        ("fuse.attention", {"model": {"kernels": {MATH: 3}}}, "do not allow it"),
        ("fuse.attention", {"device": "cuda:0"}, "CPU only"),
    ],
)
def test_a_fix_says_why_it_does_not_apply(fix: str, kwargs: dict[str, Any], words: str) -> None:
    assert words in BY_ID[fix].obstacle(context(**kwargs))


def test_layers_that_are_about_as_fast_are_left_to_a_trial() -> None:
    times = {"default": 1.0, "bf16": 1.1, "int8_dynamic": 1.05, "int8_weight_only": 1.05}
    now = context(model={"modules": {LINEAR: 4}, "linear_ms": times})
    assert BY_ID["quantize.int8_dynamic"].obstacle(now) == BY_ID["quantize.int8_weight_only"].obstacle(now) == ""


def test_a_backend_that_is_not_installed_is_no_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "latfix.runners.fixes.fuse.converted_model.backend_missing", lambda backend: f"needs {backend}"
    )
    assert BY_ID["fuse.onnxruntime"].obstacle(context()) == "needs onnxruntime"
    assert BY_ID["fuse.openvino"].obstacle(context()) == "needs openvino"
    assert BY_ID["fuse.tensorrt"].obstacle(context(device="cuda:0")) == "needs tensorrt"


def test_tensorrt_may_be_asked_for_fewer_bits_on_a_gpu() -> None:
    for precision in ("default", "bf16", "fp16"):
        now = context(RunnerSettings(precision=precision), device="cuda:1")
        assert BY_ID["fuse.tensorrt"].obstacle(now) == ""


def test_openvino_may_be_asked_for_bfloat16() -> None:
    assert BY_ID["fuse.openvino"].obstacle(context(RunnerSettings(precision="bf16"))) == ""


def test_layers_that_matter_are_added_to_those_that_are_kept_already() -> None:
    now = context(RunnerSettings(keep_precision=("head",)), found={"layers.1": 0.2, "head": 0.1})
    change = BY_ID["quantize.int8_excluded"].change(now)
    assert change == {"precision": "int8_dynamic", "keep_precision": ["head", "layers.1"]}


RAN = {"batches_run": 200, "batches_replaced": 200, "replaced_share": 0.95}


def conversion(backend: str, **precisions: int) -> dict[str, Any]:
    return {
        "conversions": [
            {
                "backend": f"{backend} 1.2",
                "threads": 1,
                "cached": False,
                "seconds": 3.0,
                "deviation": 1e-6,
                "batches": 12,
                "precisions": precisions,
            }
        ]
    }


COMPILED = {"compilations": 3, "compile_s": 9.0, "graphs": 3, "compile_cache_hits": 2, "compile_cache_misses": 1}
TOOK_EFFECT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("quantize.int8_dynamic", {}, {"modules": {INT8: 4, LINEAR: 1}}),
    ("quantize.int8_excluded", {}, {"modules": {INT8: 4, LINEAR: 1}, "kept": {LINEAR: 1}}),
    (
        "quantize.int8_weight_only",
        {},
        {
            "modules": {"latfix.runners.model_transforms.int8_linear.Int8WeightLinear": 4},
            "kernels": {"aten::_weight_int8pack_mm": 4},
        },
    ),
    ("quantize.bf16", {}, {"dtypes": {"bfloat16": 4}}),
    ("quantize.bf16", {"compile": "dynamic"}, {"dtypes": {}, "graph_dtypes": {"bfloat16": 4}}),
    ("fuse.compile", {}, {**RAN, **COMPILED}),
    ("fuse.onnxruntime", {}, {**RAN, **conversion("onnxruntime")}),
    # Of a small model the calls around it take the most time; all of it is converted all the same.
    ("fuse.onnxruntime", {}, {**RAN, **conversion("onnxruntime"), "replaced_share": 0.2}),
    ("fuse.openvino", {}, {**RAN, **conversion("openvino", FP32=9)}),
    ("fuse.openvino", {"precision": "bf16"}, {**RAN, **conversion("openvino", BF16=9)}),
    ("fuse.channels_last", {}, {"relaid": 3, "layouts": {"channels_last": 9, "contiguous": 1}}),
    ("fuse.attention", {}, {"kernels": {MATH: 2}}),
    ("dispatch.inference_mode", {}, {"batches_run": 20, "batches_inference": 20}),
]
#: What a service shows in which the setting did nothing.
IDLE: dict[str, Any] = {
    "modules": {LINEAR: 4},
    "dtypes": {"float32": 4},
    "kept": {},
    "kernels": {FLASH: 2},
    "layouts": {"contiguous": 4},
    "relaid": 0,
    "conversions": [],
    "compilations": 0,
    "graphs": 0,
    "batches_run": 200,
    "batches_replaced": 0,
    "batches_inference": 0,
    "replaced_share": 0.0,
}
NOTHING: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    *((fix.id, fix.change(context(found={"a": 0.1})), {}) for fix in FIXES),
    ("quantize.int8_excluded", {}, {"modules": {INT8: 4}, "kept": {}}),
    ("quantize.int8_excluded", {}, {"modules": {INT8: 4}, "kept": {INT8: 1}}),
    ("quantize.int8_excluded", {}, {"kept": {LINEAR: 1}}),
    (
        "quantize.int8_weight_only",
        {},
        {"modules": {"latfix.runners.model_transforms.int8_linear.Int8WeightLinear": 4}},
    ),
    ("quantize.bf16", {"precision": "bf16", "compile": "dynamic"}, {"dtypes": {}, "graph_dtypes": {"float32": 4}}),
    ("fuse.compile", {}, {**RAN, **COMPILED, "compilations": 0}),
    ("fuse.compile", {}, {**RAN, **COMPILED, "batches_replaced": 180}),  # the others ran uncompiled, silently
    ("fuse.compile", {}, {**RAN, **COMPILED, "replaced_share": 0.3}),  # graph breaks left most of it outside
    ("fuse.compile", {}, {**COMPILED, "batches_run": 0}),
    ("fuse.onnxruntime", {}, {**RAN, **conversion("openvino")}),
    ("fuse.onnxruntime", {}, {**conversion("onnxruntime")}),
    ("fuse.openvino", {}, {**RAN, **conversion("openvino", BF16=9)}),  # nobody has asked for it
    ("fuse.openvino", {"precision": "bf16"}, {**RAN, **conversion("openvino", FP32=9)}),
    ("fuse.channels_last", {}, {"relaid": 3}),
    ("fuse.channels_last", {}, {"relaid": 0, "layouts": {"channels_last": 9}}),
    ("fuse.attention", {}, {"kernels": {MATH: 2, FLASH: 1}}),
    ("dispatch.inference_mode", {}, {"batches_inference": 150}),
    ("dispatch.inference_mode", {}, {"batches_run": 0}),
]


def verified(fix: str, settings: dict[str, Any], evidence: dict[str, Any], **meta: Any) -> tuple[bool, str]:
    run = record(settings=BEFORE.with_overrides(settings).as_dict(), **meta)
    found = BY_ID[fix].verify(Applied(evidence=evidence, record=run, without=record()))
    return found.effective, found.evidence


@pytest.mark.parametrize(("fix", "settings", "evidence"), TOOK_EFFECT)
def test_an_effect_is_seen(fix: str, settings: dict[str, Any], evidence: dict[str, Any]) -> None:
    found, said = verified(fix, settings, {**IDLE, **evidence})
    assert found, said
    assert any(character.isdigit() for character in said)


@pytest.mark.parametrize(("fix", "settings", "evidence"), NOTHING)
def test_nothing_is_not_taken_for_an_effect(fix: str, settings: dict[str, Any], evidence: dict[str, Any]) -> None:
    found, said = verified(fix, settings, {**IDLE, **evidence})
    assert not found, said


def test_a_compilation_in_a_request_is_no_effect() -> None:
    assert not verified("fuse.compile", {}, {**RAN, **COMPILED}, compilations_in_run=1)[0]


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.id)
def test_a_service_that_says_nothing_proves_nothing(fix: Fix) -> None:
    assert not fix.verify(Applied(evidence={}, record=record(), without=record())).effective


def test_what_changes_answers_says_so() -> None:
    assert [fix.id for fix in FIXES if not fix.changes_outputs] == ["dispatch.inference_mode"]
    assert not any(fix.gentle and fix.changes_outputs for fix in FIXES)
