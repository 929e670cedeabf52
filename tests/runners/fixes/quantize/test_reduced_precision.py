"""Fixes that reduce the precision on a GPU: when they apply, and how kernel names show that they took effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from latfix.run_record.process_facts import DeviceWork
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes import FIXES, Context, Fix
from latfix.settings import RunnerSettings
from tests.runners.fixes.conftest import make_context, make_record, verified

BY_ID: Mapping[str, Fix] = {fix.id: fix for fix in FIXES}
BF16, FP16 = "nvjet_sm90_tst_192x8_64x8_2x1_v_bz_TNT", "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNN"
FP8, INT8 = "nvjet_qqtst_128x256_128x6_2x1_v_bz_TNT", "cutlass_80_tensorop_i16832gemm_s8_128x64_128x3_tn_align16"
TF32 = "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize32x32x64_stage3_warpsize2x1x2_tensor16x8x8"
FP32, TRITON = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8", "triton_tem_fused_addmm_0"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<{}>, std::array<char*, 3ul> >()"
AO = "torchao.quantization.Int8Tensor"


def with_meta(run: RunRecord, **meta: Any) -> RunRecord:
    return replace(run, meta=run.meta.updated(**meta))


def on_gpu(capability: Any = (9, 0), settings: RunnerSettings | None = None, **model: Any) -> Context:
    """A context of a run on a GPU, with what was seen of its model."""
    run = with_meta(make_record(device="cuda:0"), model={"capability": capability, **model})
    return make_context(run, settings or RunnerSettings())


@pytest.mark.parametrize(
    ("fix", "capability", "words"),
    [
        ("quantize.fp8_dynamic", [8, 0], "compute capability 8.0; its products need 8.9 or later"),
        ("quantize.int8_dynamic", [7, 5], "compute capability 7.5; its products need 8.0 or later"),
        ("quantize.bf16", [7, 5], "GPUs below compute capability 8.0 emulate bfloat16; quantize.fp16 is native"),
        ("quantize.fp16", [7, 5], ""),
        ("quantize.tf32", [7, 5], "compute capability 7.5; its products need 8.0 or later"),
        ("quantize.tf32", [8, 0], ""),
        ("quantize.fp8_dynamic", [8, 9], ""),
        ("quantize.int8_dynamic", [8, 0], ""),
        ("quantize.bf16", [8, 0], ""),
        ("quantize.fp8_dynamic", None, ""),
    ],
)
def test_the_gpus_capability_decides(fix: str, capability: Any, words: str) -> None:
    found = BY_ID[fix].obstacle(on_gpu(capability))
    assert words in found if words else not found


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        ({FP32: 9, TF32: 4}, ""),
        ({FP32: 3, TF32: 23}, "3 of 26 matrix kernels compute in float32"),
        ({BF16: 9}, "0 of 9 matrix kernels compute in float32"),
        ({TRITON: 9}, ""),
        ({}, ""),
    ],
)
def test_products_in_tf32_replace_those_in_float32(kernels: Mapping[str, int], words: str) -> None:
    """Convolutions may compute in TF32 already, as torch allows them to by default."""
    run = with_meta(
        make_record(device="cuda:0"), model={"capability": (9, 0)}, device_profile=(DeviceWork(kernels=kernels),)
    )
    assert BY_ID["quantize.tf32"].obstacle(make_context(run, RunnerSettings())) == words


def test_without_torchao_the_obstacle_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latfix.runners.model_transforms.precision_support.torchao_missing", lambda: "install it")
    for fix in ("quantize.int8_dynamic", "quantize.int8_excluded", "quantize.fp8_dynamic"):
        assert BY_ID[fix].obstacle(on_gpu()) == "install it"
    assert BY_ID["quantize.fp16"].obstacle(on_gpu()) == BY_ID["quantize.bf16"].obstacle(on_gpu()) == ""


def test_a_model_of_16_bits_is_not_given_other_16_bits() -> None:
    for dtypes, words in (({"bfloat16": 8, "float32": 2}, "8 of 10 layers"), ({"bfloat16": 2, "float32": 8}, "")):
        for fix in ("quantize.bf16", "quantize.fp16"):
            found = BY_ID[fix].obstacle(on_gpu(dtypes=dtypes))
            assert words in found if words else not found
    assert BY_ID["quantize.fp8_dynamic"].obstacle(on_gpu(dtypes={"bfloat16": 8})) == ""


@pytest.mark.parametrize("fix", ["quantize.int8_dynamic", "quantize.fp8_dynamic"])
def test_on_a_gpu_eight_bits_come_compiled(monkeypatch: pytest.MonkeyPatch, fix: str) -> None:
    precision = fix.removeprefix("quantize.")
    compiled = {"precision": precision, "compile": "dynamic", "warmup_shapes": 8}
    assert BY_ID[fix].change(on_gpu()) == compiled
    already = on_gpu(settings=RunnerSettings(compile="dynamic"))
    assert BY_ID[fix].obstacle(already) == "" and BY_ID[fix].change(already) == {"precision": precision}
    monkeypatch.setattr("latfix.runners.fixes.fuse.compile.compiler_missing", lambda: "no compiler")
    assert BY_ID[fix].obstacle(on_gpu()) == "on a GPU it pays only compiled: no compiler"
    assert BY_ID[fix].obstacle(already) == ""
    # On the CPU it is torch's own int8, which is not compiled.
    assert BY_ID["quantize.int8_dynamic"].change(make_context()) == {"precision": "int8_dynamic"}


def test_int8_with_excluded_layers_is_compiled_too() -> None:
    now = make_context(
        on_gpu().record,
        RunnerSettings(keep_precision=("a",)),
        found={"quantize.int8_excluded": {"keep": {"head": 0.2}}},
    )
    assert BY_ID["quantize.int8_excluded"].change(now) == {
        "precision": "int8_dynamic",
        "compile": "dynamic",
        "warmup_shapes": 8,
        "keep_precision": ["a", "head"],
    }


def test_compiling_goes_with_int8_on_a_gpu_only() -> None:
    settings = RunnerSettings(precision="int8_dynamic")
    assert BY_ID["fuse.compile"].obstacle(on_gpu(settings=settings)) == ""
    assert "quantize.int8_dynamic" in BY_ID["fuse.compile"].obstacle(make_context(None, settings))


def seen(kernels: Mapping[str, int], **more: Any) -> dict[str, Any]:
    return {"device": "cuda:0", "kernels": {"aten::mm": 99, **kernels}, **more}


@pytest.mark.parametrize(
    ("fix", "kernels", "effective", "words"),
    [
        ("quantize.bf16", {BF16: 9, FP32: 1}, True, "9 of 10 matrix kernels in a forward pass computed in bfloat16"),
        ("quantize.bf16", {BF16: 1, FP32: 9}, False, "(9 in fp32)"),
        ("quantize.bf16", {FP32: 9}, False, "0 of 9 matrix kernels"),
        ("quantize.bf16", {FP16: 9}, False, "(9 in float16)"),
        ("quantize.fp16", {FP16: 9}, True, "9 of 9 matrix kernels in a forward pass computed in float16"),
        ("quantize.fp16", {BF16: 9}, False, "0 of 9"),
        # Names without a format count neither for it nor against it.
        ("quantize.fp16", {FP16: 4, TRITON: 3}, True, "4 of 7"),
        # Where most do not, what layers answered in does.
        ("quantize.fp16", {FP16: 2, TRITON: 7}, True, "9 of 18 leaf modules"),
        ("quantize.bf16", {FP16: 2, TRITON: 7}, True, "9 of 18 leaf modules"),
        # Without a matrix kernel, the others count.
        ("quantize.bf16", {ADD.format("c10::BFloat16"): 5}, True, "5 of 5 kernels with a known format"),
        ("quantize.bf16", {ADD.format("float"): 5}, False, "0 of 5 kernels with a known format"),
        (
            "quantize.int8_dynamic",
            {INT8: 4, FP32: 20},
            True,
            "4 of 24 matrix kernels in a forward pass computed in int8",
        ),
        # It holds int8 weights, and computed in float32.
        ("quantize.int8_dynamic", {FP32: 24}, False, "0 of 24"),
        ("quantize.int8_dynamic", {INT8: 1, FP32: 24}, False, "1 of 25"),
        ("quantize.fp8_dynamic", {FP8: 4, BF16: 3}, True, "(3 in bfloat16); 4 layers have fp8 weights"),
        ("quantize.fp8_dynamic", {BF16: 7}, False, "0 of 7"),
    ],
)
def test_kernel_names_show_the_format(fix: str, kernels: dict[str, int], effective: bool, words: str) -> None:
    """Whatever the types of modules and weights say."""
    said = {"dtypes": {"bfloat16": 9, "float16": 9}, "modules": {AO: 9}, "weights": {AO: 4}}
    found = verified(fix, make_record(device="cuda:0"), **seen(kernels, **said))
    assert (found.effective, words in found.evidence) == (effective, True), found.evidence


def test_where_layers_are_kept_some_kernels_are_enough() -> None:
    run = with_meta(make_record(device="cuda:0"), settings={"keep_precision": ["head"]})
    assert verified("quantize.bf16", run, **seen({BF16: 1, FP32: 9})).effective
    assert not verified("quantize.bf16", run, **seen({FP32: 9})).effective


@pytest.mark.parametrize(
    ("evidence", "effective"),
    [
        ({"kernels": {"aten::_int_mm": 4}, "weights": {AO: 4}}, True),
        ({"kernels": {"aten::mm": 4}, "weights": {AO: 4}}, False),
        ({"kernels": {"aten::_int_mm": 4}, "weights": {"float32": 4}}, False),
        ({"weights": {AO: 4}}, False),
        ({}, False),
    ],
)
def test_without_kernels_the_operators_tell(evidence: dict[str, Any], effective: bool) -> None:
    found = verified("quantize.int8_dynamic", make_record(device="cuda:0"), device="cuda:0", **evidence)
    assert found.effective is effective and "no matrix kernel was recorded" in found.evidence


@pytest.mark.parametrize(
    ("kernels", "kept", "effective"),
    [
        ({INT8: 3, FP32: 1}, {"float32": 1}, True),
        ({FP32: 4}, {"float32": 1}, False),
        ({INT8: 3}, {}, False),
        ({INT8: 4}, {AO: 1}, False),
    ],
)
def test_on_a_gpu_weights_show_the_excluded_layers(
    kernels: dict[str, int], kept: dict[str, int], effective: bool
) -> None:
    run = with_meta(make_record(device="cuda:0"), settings={"keep_precision": ["head"]})
    found = verified("quantize.int8_excluded", run, **seen(kernels, weights={AO: 3}, kept_weights=kept))
    assert found.effective is effective, found.evidence
    assert found.evidence.endswith("kept their weights: head")


@pytest.mark.parametrize(
    ("batches", "effective", "words"),
    [
        (
            [{INT8: 4, FP32: 2}] * 8,
            True,
            "at least 4 of 6 matrix kernels in each of 8 profiled batches computed in int8",
        ),
        ([{INT8: 2, FP32: 2}, {INT8: 4}], True, "at least 2 of 4 matrix kernels in each of 2 profiled batches"),
        # A single product in each of eight batches is not half of four layers in any.
        ([{INT8: 1, FP32: 5}] * 8, False, "at least 1 of 6 matrix kernels in each of 8 profiled batches"),
        # Batches of one do not multiply in int8, even if full ones do.
        ([{FP32: 6}, {INT8: 40}], False, "at least 0 of 6 matrix kernels in each of 2 profiled batches"),
        ([{ADD: 3}, {INT8: 40}], False, "at least 0 of 0 matrix kernels in each of 2 profiled batches"),
        ([{INT8: 4}], True, "4 of 4 matrix kernels in a forward pass"),
    ],
)
def test_every_profiled_batch_must_have_multiplied_so(
    batches: list[dict[str, int]], effective: bool, words: str
) -> None:
    profiled = {"device_profile": [{"size": 1, "kernels": kernels} for kernels in batches]}
    evidence = seen({}, weights={AO: 4}, **profiled)
    found = verified("quantize.int8_dynamic", make_record(device="cuda:0"), **evidence)
    assert (found.effective, words in found.evidence) == (effective, True), found.evidence


def test_kernels_of_all_profiled_batches_are_counted() -> None:
    rows = [{"size": size, "kernels": {BF16: 4, FP32: 1}} for size in (1, 8)]
    found = verified("quantize.bf16", make_record(device="cuda:0"), **seen({}, device_profile=rows))
    assert found.effective
    assert found.evidence == "8 of 10 matrix kernels in 2 profiled batches computed in bfloat16 (2 in fp32)"
