"""What proves that a fix took effect: a run in which it did, runs in which it did nothing, for every fix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latfix.profilers.gpu.alloc_conf import ALLOC_CONF
from latfix.runners.fixes import FIXES, Applied, Fix
from latfix.runners.host.process_setup import KEEP_FREED, tunables_text
from latfix.settings import RunnerSettings
from latfix.stages import Status
from tests.runners.fixes.conftest import calling, make_record, verified

Run = Mapping[str, Any]

MIB = 1 << 20
LINEAR = "torch.nn.modules.linear.Linear"
INT8 = "torch.ao.nn.quantized.dynamic.modules.linear.Linear"
PACKED = "latfix.runners.model_transforms.int8_linear.Int8WeightLinear"
FP8 = "torchao.quantization.Float8Tensor"
TF32_KERNEL = "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize32x32x64_stage3_warpsize2x1x2_tensor16x8x8"
FP16_KERNEL = "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNN"
FP8_KERNEL = "nvjet_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT"
FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"
MATH = "aten::_scaled_dot_product_attention_math"
EFFICIENT = "aten::_scaled_dot_product_efficient_attention"
CUDNN = "aten::_scaled_dot_product_cudnn_attention"
PLANLESS = {"environment": {"TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"}}
#: Bytes of the copies of a batch on a device, and the same from memory that is not pinned.
COPIED = {"copy_in_bytes": 9000, "copy_out_bytes": 1000}
PAGEABLE = {**COPIED, "pageable_bytes": 10_000}

ON_GPU = {"device": "cuda:0", "replacing_runs": 240, "warmup_least_runs": 3.0}
REPLACED = {"batches_run": 80, "batches_replaced": 80, "replaced_share": 0.9}
ALIKE = [[40, 42], [50], [190, 200], [60]] * 20
ONE_BY_ONE = [[200], [40]] * 40
SHED = [int(Status.OK)] * 9 + [int(Status.SHED)]


def converted(backend: str, precision: str = "FP32") -> dict[str, Any]:
    known = {"threads": 1, "cached": False, "seconds": 3.0, "deviation": 1e-6, "batches": 12}
    return {"conversions": [{"backend": f"{backend} 1.2", "precisions": {precision: 9}, **known}]}


def compiled(engines: int = 1, share: float | None = 0.9, **more: Any) -> dict[str, Any]:
    """A model that TensorRT runs, in part."""
    partition = {"engines": engines, "inside": 90, "outside": {"aten.cumsum": 10}, "share": share}
    known = {"cached": False, "seconds": 60.0, "deviation": 1e-4, "batches": 12, "profile": ["(1..8..8, 4..30..90)"]}
    one = {
        "backend": "tensorrt 2.13.0",
        "device": "a GPU (sm_90)",
        "partition": partition,
        "kept": "",
        "discarded": "",
    }
    return {"conversions": [{**one, **known, **more}]}


def on_cores(*cores: int, threads: int = 2, nice: int = 0) -> dict[str, Any]:
    """Where one worker ran."""
    text = ",".join(str(core) for core in cores)
    row = {"cores": text, "allowed": list(cores), "nice": nice, "migrations": 3, "operator_threads": threads}
    return {"placement": {"worker": [row], "prepare": []}}


def memory(faults: int, **more: Any) -> dict[str, Any]:
    return {"faults": faults, "memory": more}


def on_device(retries: int, **more: Any) -> dict[str, Any]:
    """The device's memory in a run."""
    return {
        "device": "cuda:0",
        "device_memory": {"retries": retries, "allocs": 4 * retries, "frees": retries, **more},
    }


RESERVED = {"reserve_mb": 100}
EXPANDABLE = {"env": {ALLOC_CONF: "expandable_segments:True"}}
LIMITED = {"device_memory_share": 0.8, "env": {ALLOC_CONF: "garbage_collection_threshold:0.8"}}
COLLECTING = {"garbage_collection_threshold": 0.8}
EVERYWHERE = on_cores(0, 1, 2, 3)
#: Two workers, one of which takes three times as long.
UNEVEN: dict[str, Any] = {"members": [[50]] * 80, "compute_ms": [4.0, 4.0, 4.0, 12.0], "workers": 2}
#: The fix, the run with it, the service's evidence, and the run without it where that matters.
TOOK_EFFECT: list[tuple[str, Run, Run, Run]] = [
    ("warmup.shapes", {}, {"warmup_batches": 32, "warmup_shapes": 8, "warmup_s": 0.5}, {}),
    ("batch.window", {"open_ms": 0.01}, {}, {}),
    (
        "memory.pool",
        {"settings": RESERVED, **on_device(0, wanted_bytes=100, reserved_ahead_bytes=100)},
        {},
        on_device(9),
    ),
    (
        "memory.device_allocator",
        {"settings": EXPANDABLE, **on_device(1, settings={"expandable_segments": True})},
        {},
        on_device(9),
    ),
    ("memory.limit", {"settings": LIMITED, **on_device(1, share=0.8, settings=COLLECTING)}, {}, on_device(9)),
    ("batch.bucket", {"members": ALIKE, "settings": {"batch_order": "length"}}, {}, {}),
    ("batch.size", {"members": [[40], [50]] * 40, "settings": {"max_batch_size": 1}}, {}, {}),
    ("batch.size", {"members": [[40, 40, 40], [50]] * 40, "settings": {"max_batch_size": 16}}, {}, {}),
    (
        "batch.adaptive",
        {"series": {"runner.batch_limit": [2, 4], "runner.window_ms": [10, 12]}},
        {},
        {},
    ),
    (
        "batch.continuous",
        {"settings": {"batching": "continuous"}, "gap_ms": -30.0, "compute_ms": 40.0},
        {},
        {"compute_ms": 40.0},
    ),
    (
        "schedule.shortest_expected",
        {"members": ONE_BY_ONE, "queue_ms": [15.0, 1.0], "settings": {"schedule": "shortest"}},
        {},
        {"members": ONE_BY_ONE},
    ),
    (
        "schedule.priority",
        {"members": ONE_BY_ONE, "queue_ms": [15.0, 1.0], "priority": [0, 2], "settings": {"ageing_ms": 40.0}},
        {},
        {"members": ONE_BY_ONE, "priority": [0, 2]},
    ),
    (
        "schedule.memory_aware",
        {
            "members": [[40, 45], [50]] * 40,
            "settings": {"memory_limit_mb": 2},
            "series": {"runner.bytes_per_element": [0, MIB / 100]},
        },
        {},
        {},
    ),
    (
        "admit.limit",
        {"status": SHED, "series": {"runner.concurrency_limit": [8, 12], "runner.shed_at_limit": [0, 9]}},
        {},
        {},
    ),
    (
        "admit.shed",
        {"status": SHED, "series": {"runner.refused_by_deadline": [0, 9], "runner.dropped_by_deadline": [0, 0]}},
        {},
        {},
    ),
    ("quantize.int8_dynamic", {}, {"modules": {INT8: 4, "torch.nn.modules.activation.ReLU": 2}}, {}),
    ("quantize.int8_excluded", {}, {"modules": {INT8: 4, LINEAR: 1}, "kept": {LINEAR: 1}}, {}),
    (
        "quantize.int8_weight_only",
        {},
        {"modules": {PACKED: 4}, "kernels": {"aten::_weight_int8pack_mm": 4}},
        {},
    ),
    ("quantize.bf16", {}, {"dtypes": {"bfloat16": 5, "float32": 1}}, {}),
    (
        "quantize.bf16",
        {"settings": {"precision": "bf16", "compile": "dynamic"}},
        {"dtypes": {}, "graph_dtypes": {"bfloat16": 4, "float32": 1}},
        {},
    ),
    ("quantize.tf32", {"device": "cuda:0"}, {"device": "cuda:0", "kernels": {TF32_KERNEL: 5, FP16_KERNEL: 4}}, {}),
    ("quantize.fp16", {"device": "cuda:0"}, {"device": "cuda:0", "kernels": {FP16_KERNEL: 5}}, {}),
    (
        "quantize.fp8_dynamic",
        {"device": "cuda:0"},
        {"device": "cuda:0", "kernels": {FP8_KERNEL: 5}, "weights": {FP8: 5}},
        {},
    ),
    ("fuse.compile", {}, {**REPLACED, "compilations": 3, "compile_s": 9.0, "graphs": 3}, {}),
    ("fuse.compile_autotune", {}, {**REPLACED, "compilations": 3, "compile_s": 90.0, "graphs": 3}, {}),
    # On a GPU the host's clock only sees launches: the number of graph runs counts.
    ("fuse.compile_autotune", {}, {**REPLACED, **ON_GPU, "compilations": 3, "replaced_share": 0.1}, {}),
    (
        "fuse.cudagraph",
        {"columns": {"graph": [1] * 79 + [-1]}},
        {"graphs_captured": 12, "graph_padded": 9, "capture_s": 2.0, "graph_misses": {"no graph of 9x300": 1}},
        {},
    ),
    ("transfer.pinned", {"columns": COPIED, "pool_hits": 79, "pool_misses": 1}, {}, {"columns": PAGEABLE}),
    ("transfer.overlap", {"columns": {"ahead_ns": [0, 900_000]}}, {}, {}),
    ("fuse.onnxruntime", {}, {**REPLACED, **converted("onnxruntime")}, {}),
    # Of a small model the calls around it take the most time; all of it is converted all the same.
    ("fuse.onnxruntime", {}, {**REPLACED, **converted("onnxruntime"), "replaced_share": 0.2}, {}),
    ("fuse.openvino", {}, {**REPLACED, **converted("openvino")}, {}),
    ("fuse.openvino", {"settings": {"precision": "bf16"}}, {**REPLACED, **converted("openvino", "BF16")}, {}),
    ("quantize.bf16", {}, {**REPLACED, **converted("openvino", "BF16"), "dtypes": {}}, {}),
    # On a GPU the host's clock sees the launch alone.
    ("fuse.tensorrt", {}, {**REPLACED, **compiled(), "replaced_share": 0.1}, {}),
    ("fuse.tensorrt", {}, {**REPLACED, **compiled(share=None)}, {}),
    ("fuse.channels_last", {}, {"relaid": 3, "layouts": {"channels_last": 9, "contiguous": 1}}, {}),
    ("fuse.attention", {}, {"kernels": {MATH: 2}}, {}),
    ("fuse.planless_attention", PLANLESS, {"kernels": {EFFICIENT: 12}}, {}),
    ("numerics.flush_denormal", {}, {}, {"columns": {"compute_denormals": [0, 1]}}),
    ("dispatch.inference_mode", {}, {"batches_run": 80, "batches_inference": 80}, {}),
    ("memory.allocator", {"faults": 20, "environment": {"GLIBC_TUNABLES": tunables_text(KEEP_FREED)}}, {}, {}),
    ("memory.jemalloc", memory(20, allocator="jemalloc"), {}, memory(900, allocator="glibc")),
    ("memory.tcmalloc", memory(20, allocator="tcmalloc"), {}, memory(900, allocator="glibc")),
    ("memory.huge_pages", memory(900, huge_bytes=64 * MIB), {}, memory(900, huge_bytes=6 * MIB)),
    (
        "memory.page_prefault",
        memory(20, prefaulted_bytes=64 * MIB, prefault_kept_bytes=64 * MIB),
        {},
        {},
    ),
    ("memory.pool", {"pool_hits": 70, "pool_misses": 4}, {}, {}),
    ("gc.freeze", {}, {"gc_frozen": 90_000, "gc_enabled": False}, {}),
    ("host.threads", {"settings": {"intra_op_threads": 1}, **on_cores(0, 1, threads=1)}, {}, {}),
    ("host.parallel", {"cores_busy": 3.5, **on_cores(0, 1, 2, 3, threads=4)}, {}, on_cores(0, 1, 2, 3, threads=1)),
    ("host.workers", {"workers": 2}, {}, {}),
    ("host.pin", on_cores(3), {}, EVERYWHERE),
    ("host.priority", {"settings": {"nice": -10}, **on_cores(0, nice=-10)}, {}, on_cores(0)),
    (
        "host.wait_policy",
        {"environment": {"OMP_WAIT_POLICY": "PASSIVE"}, "series": {"thread.native.cpu_ns": [0, 4e8]}},
        {},
        {"series": {"thread.native.cpu_ns": [0, 9e8]}},
    ),
    (
        "host.routing",
        {
            **UNEVEN,
            "settings": {"workers": 2, "routing": "weighted"},
            "series": {
                "runner.worker_0.weight": [1.0, 1.0],
                "runner.worker_1.weight": [1.0, 2.9],
                "runner.left_to_faster": [0, 30],
            },
            "of_worker": [0, 0, 0, 1],
        },
        {},
        {**UNEVEN, "settings": {"workers": 2}},
    ),
    ("locality.cores", on_cores(2, 3), {}, EVERYWHERE),
    (
        "warmup.resident",
        {
            "settings": {"keep_warm_ms": 5.0},
            "residence": {"runs": 9, "total_ns": 10**7, "longest_ns": 10**6, "elements": 40, "delayed": 0},
        },
        {},
        {},
    ),
    (
        "cache.embeddings",
        {
            "embeddings": {"tables": 1, "rows": 10**6, "hot_rows": 500, "hot_share": 0.8, "lookups": 9000},
            "residence": {"rows": 700},
        },
        {},
        {},
    ),
]


@pytest.mark.parametrize(("fix", "run", "evidence", "without"), TOOK_EFFECT)
def test_an_effect_is_seen(fix: str, run: Run, evidence: Run, without: Run) -> None:
    found = verified(fix, make_record(**run), make_record(**without), **evidence)
    assert found.effective, found.evidence
    assert any(character.isdigit() for character in found.evidence)


def test_every_fix_has_a_run_in_which_it_took_effect() -> None:
    """In which it did nothing each of them has one below, where all fixes are gone through."""
    assert {fix for fix, _, _, _ in TOOK_EFFECT} == {fix.id for fix in FIXES}


#: What a service shows in which the setting did nothing; a replay of the same service differs by chance.
CHANCE: dict[str, Any] = {
    "members": [[40, 200], [50], [45, 190], [60]] * 19 + [[40], [50], [45], [60]],
    "open_ms": 19.0,
    "faults": 950,
}
IDLE_SERVICE: dict[str, Any] = {
    "warmup_batches": 0,
    "warmup_s": 0.0,
    "compilations": 0,
    "graphs": 0,
    "batches_run": 80,
    "batches_replaced": 0,
    "batches_inference": 0,
    "replaced_share": 0.0,
    "conversions": [],
    "relaid": 0,
    "gc_enabled": True,
    "gc_frozen": 0,
    "torch_threads": 2,
    "modules": {LINEAR: 4},
    "dtypes": {"float32": 4},
    "kept": {},
    "kernels": {FLASH: 2},
    "layouts": {"contiguous": 4},
}
#: Process and threads in the record of a run without any change of them.
LEFT_ALONE: dict[str, Any] = {
    **EVERYWHERE,
    "environment": {},
    "memory": {"allocator": "glibc", "huge_bytes": 2 * MIB, "prefaulted_bytes": 0, "prefault_kept_bytes": 0},
    "embeddings": {"tables": 1, "rows": 10**6, "hot_rows": 0, "hot_share": 0.0, "lookups": 0},
    "residence": {"runs": 0, "rows": 0},
    "pool_hits": 0,
    "pool_misses": 0,
}


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.id)
@pytest.mark.parametrize("known", [LEFT_ALONE, {}], ids=["told", "untold"])
def test_a_setting_that_did_nothing_is_not_taken_for_effective(fix: Fix, known: Run) -> None:
    """The settings ask for it, the plan will say so, and the service is as it was."""
    run = make_record(**CHANCE, **known, settings=fix.changes(calling(fix))[0])
    found = verified(fix.id, run, make_record(**known), **IDLE_SERVICE)
    assert not found.effective, found.evidence
    assert found.evidence


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.id)
def test_a_service_without_evidence_proves_nothing(fix: Fix) -> None:
    empty = make_record([], pauses_ms=())
    assert not fix.verify(Applied(evidence={}, record=empty, without=empty)).effective


NONE_LEFT = {"runner.left_to_faster": [0.0]}
#: More ways to do nothing, or only half of it.
HALF: list[tuple[str, Run, Run]] = [
    ("batch.size", {**CHANCE, "settings": {"max_batch_size": 16}}, {}),
    ("quantize.int8_dynamic", CHANCE, {"modules": {}}),
    ("quantize.int8_excluded", CHANCE, {"modules": {INT8: 4}, "kept": {INT8: 1}}),
    ("quantize.int8_excluded", CHANCE, {"modules": {INT8: 4}, "kept": {}}),
    ("quantize.int8_excluded", CHANCE, {"kept": {LINEAR: 1}}),
    ("quantize.int8_weight_only", CHANCE, {"modules": {PACKED: 4}}),
    ("quantize.fp16", CHANCE, {"dtypes": {"bfloat16": 4}}),
    ("quantize.tf32", CHANCE, {"device": "cuda:0", "kernels": {TF32_KERNEL: 4, FP16_KERNEL: 5}}),
    ("quantize.tf32", CHANCE, {"device": "cuda:0", "kernels": {"triton_tem_fused_addmm_0": 5}}),
    ("quantize.bf16", CHANCE, {"dtypes": {}}),
    ("quantize.bf16", CHANCE, {**REPLACED, **converted("openvino"), "dtypes": {"bfloat16": 4}}),
    ("quantize.bf16", CHANCE, {"dtypes": {"bfloat16": 4}, "graph_dtypes": {"float32": 4}}),
    ("fuse.onnxruntime", {}, converted("onnxruntime")),
    ("fuse.openvino", {}, {**REPLACED, **converted("openvino", "BF16")}),  # not requested
    ("fuse.openvino", {"settings": {"precision": "bf16"}}, {**REPLACED, **converted("openvino")}),
    ("fuse.channels_last", {}, {"relaid": 3}),
    ("fuse.channels_last", {}, {"layouts": {"channels_last": 9}}),
    ("fuse.attention", {}, {"kernels": {MATH: 2, FLASH: 1}}),
    ("fuse.planless_attention", PLANLESS, {"kernels": {EFFICIENT: 11, CUDNN: 1}}),
    ("fuse.planless_attention", PLANLESS, {"kernels": {"aten::addmm": 3}}),
    ("fuse.planless_attention", {}, {"kernels": {EFFICIENT: 12}}),
    ("dispatch.inference_mode", {}, {"batches_inference": 60}),
    ("dispatch.inference_mode", {}, {"batches_run": 0}),
    ("fuse.tensorrt", {}, {**REPLACED, **compiled(engines=0, share=0.0)}),
    ("memory.pool", {"pool_hits": 3, "pool_misses": 70}, {}),
    ("fuse.cudagraph", {"columns": {"graph": [1, -1]}}, {"graphs_captured": 12, "graph_misses": {"no graph": 40}}),
    ("fuse.compile_autotune", {}, {**REPLACED, "compilations": 3, "batches_replaced": 60}),
    # On a GPU: a part of the graphs that ran at warm-up runs the model's own operators in requests.
    ("fuse.compile_autotune", {}, {**REPLACED, **ON_GPU, "compilations": 3, "replacing_runs": 150}),
    ("fuse.compile", {}, {**REPLACED, **ON_GPU, "compilations": 3, "warmup_least_runs": 0.0}),
    ("transfer.pinned", {"columns": {**COPIED, "pageable_bytes": [0, 5000]}}, {}),
    ("memory.allocator", {"faults": 510, "environment": {"GLIBC_TUNABLES": tunables_text(KEEP_FREED)}}, {}),
    ("memory.allocator", {"faults": 20, "environment": {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=0"}}, {}),
    # Preloaded with its defaults, which give everything back.
    ("memory.jemalloc", memory(880, allocator="jemalloc"), {}),
    ("memory.page_prefault", memory(20, prefaulted_bytes=64 * MIB, prefault_kept_bytes=20 * MIB), {}),
    ("memory.page_prefault", memory(800, prefaulted_bytes=64 * MIB, prefault_kept_bytes=64 * MIB), {}),
    ("cache.embeddings", {"embeddings": {"hot_rows": 500, "hot_share": 0.8}, "residence": {"rows": 499}}, {}),
    ("cache.embeddings", {"embeddings": {"hot_rows": 500, "hot_share": 0.05}, "residence": {"rows": 700}}, {}),
    ("gc.freeze", CHANCE, {"gc_enabled": True, "gc_frozen": 90_000}),
    ("gc.freeze", CHANCE, {"gc_enabled": False, "gc_frozen": 0}),
    # Weights that were all alike; and a slow worker that took what waited all the same.
    (
        "host.routing",
        {"workers": 2, "settings": {"workers": 2}, "series": {"runner.worker_1.weight": [1.0], **NONE_LEFT}},
        {},
    ),
    (
        "host.routing",
        {**UNEVEN, "settings": {"workers": 2}, "series": {"runner.worker_1.weight": [3.0], **NONE_LEFT}},
        {},
    ),
]


@pytest.mark.parametrize(("fix", "run", "evidence"), HALF)
def test_half_of_it_is_not_taken_for_effective(fix: str, run: Run, evidence: Run) -> None:
    found = verified(fix, make_record(**run), **{**IDLE_SERVICE, **evidence})
    assert not found.effective, found.evidence


def test_a_state_that_existed_before_is_no_effect() -> None:
    """Threads and workers that the service without the fix had, too, are not the fix's."""
    one = make_record(settings={"intra_op_threads": 1}, **on_cores(0, 1, threads=1))
    assert not verified("host.threads", one, one).effective
    assert not verified("host.workers", make_record(workers=2), make_record(workers=2)).effective
    assert verified("host.workers", make_record(workers=4), make_record(workers=2)).effective
    assert not verified("batch.bucket", make_record(ALIKE), make_record(ALIKE)).effective
    alone = make_record([[40], [50]] * 20)
    assert verified("batch.bucket", make_record(ALIKE), alone).effective, "before, none could be mixed"
    assert not verified("batch.bucket", alone, alone).effective, "none is shared now either"


def test_buckets_of_a_feature_are_verified_by_that_feature(before: RunnerSettings) -> None:
    """Inputs are all of one size; what differs is a feature."""
    tokens = np.array([10, 400] * 40)
    mixed = make_record([[50, 50]] * 40, features={"tokens": tokens})
    by_tokens = replace(before, batch_order="length", batch_key="tokens")
    sorted_run = make_record([[50, 50]] * 40, features={"tokens": tokens}, settings=by_tokens)
    sorted_run.requests["bucket_length"] = np.repeat(np.array([10, 400] * 20), 2)
    found = verified("batch.bucket", sorted_run, mixed)
    assert found.effective and "tokens" in found.evidence, found.evidence
    sorted_run.requests["bucket_length"] = tokens
    assert not verified("batch.bucket", sorted_run, mixed).effective
