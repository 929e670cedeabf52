"""The fixes, one module each, in the order in which they are tried where the diagnosis sees no difference."""

from latfix.runners.fixes import (
    admit_limit,
    admit_shed,
    cache_embeddings,
    dispatch_inference_mode,
    gc_freeze,
    transfer_overlap,
    transfer_pinned,
    warmup_resident,
    warmup_shapes,
)
from latfix.runners.fixes.batch import adaptive as batch_adaptive
from latfix.runners.fixes.batch import bucket as batch_bucket
from latfix.runners.fixes.batch import continuous as batch_continuous
from latfix.runners.fixes.batch import size as batch_size
from latfix.runners.fixes.batch import tune as batch_tune
from latfix.runners.fixes.batch import window as batch_window
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.fuse import attention as fuse_attention
from latfix.runners.fixes.fuse import channels_last as fuse_channels_last
from latfix.runners.fixes.fuse import compile as fuse_compile
from latfix.runners.fixes.fuse import compile_autotune as fuse_compile_autotune
from latfix.runners.fixes.fuse import cudagraph as fuse_cudagraph
from latfix.runners.fixes.fuse import onnxruntime as fuse_onnxruntime
from latfix.runners.fixes.fuse import openvino as fuse_openvino
from latfix.runners.fixes.fuse import tensorrt as fuse_tensorrt
from latfix.runners.fixes.host import locality_cores
from latfix.runners.fixes.host import parallel as host_parallel
from latfix.runners.fixes.host import pin as host_pin
from latfix.runners.fixes.host import priority as host_priority
from latfix.runners.fixes.host import routing as host_routing
from latfix.runners.fixes.host import threads as host_threads
from latfix.runners.fixes.host import wait_policy as host_wait_policy
from latfix.runners.fixes.host import workers as host_workers
from latfix.runners.fixes.memory import allocator as memory_allocator
from latfix.runners.fixes.memory import device_allocator as memory_device_allocator
from latfix.runners.fixes.memory import huge_pages as memory_huge_pages
from latfix.runners.fixes.memory import limit as memory_limit
from latfix.runners.fixes.memory import memory_jemalloc, memory_tcmalloc
from latfix.runners.fixes.memory import page_prefault as memory_page_prefault
from latfix.runners.fixes.memory import pool as memory_pool
from latfix.runners.fixes.quantize import bf16 as quantize_bf16
from latfix.runners.fixes.quantize import fp8_dynamic as quantize_fp8_dynamic
from latfix.runners.fixes.quantize import fp16 as quantize_fp16
from latfix.runners.fixes.quantize import int8_dynamic as quantize_int8_dynamic
from latfix.runners.fixes.quantize import int8_excluded as quantize_int8_excluded
from latfix.runners.fixes.quantize import int8_weight_only as quantize_int8_weight_only
from latfix.runners.fixes.schedule import memory_aware as schedule_memory_aware
from latfix.runners.fixes.schedule import priority as schedule_priority
from latfix.runners.fixes.schedule import shortest_expected as schedule_shortest_expected

#: Warm-up comes first: everything after it is compared between services that are warm.
FIXES: tuple[Fix, ...] = (
    warmup_shapes.FIX,
    host_workers.FIX,
    quantize_int8_dynamic.FIX,
    quantize_int8_excluded.FIX,
    quantize_int8_weight_only.FIX,
    transfer_pinned.FIX,
    fuse_cudagraph.FIX,
    transfer_overlap.FIX,
    quantize_fp8_dynamic.FIX,
    batch_continuous.FIX,
    batch_size.FIX,
    batch_bucket.FIX,
    batch_window.FIX,
    schedule_shortest_expected.FIX,
    schedule_priority.FIX,
    quantize_bf16.FIX,
    quantize_fp16.FIX,
    fuse_channels_last.FIX,
    memory_allocator.FIX,
    memory_jemalloc.FIX,
    memory_tcmalloc.FIX,
    memory_huge_pages.FIX,
    memory_page_prefault.FIX,
    gc_freeze.FIX,
    host_wait_policy.FIX,
    host_threads.FIX,
    host_parallel.FIX,
    host_routing.FIX,
    host_pin.FIX,
    host_priority.FIX,
    locality_cores.FIX,
    memory_pool.FIX,
    memory_device_allocator.FIX,
    memory_limit.FIX,
    fuse_compile.FIX,
    fuse_compile_autotune.FIX,
    fuse_tensorrt.FIX,
    fuse_openvino.FIX,
    fuse_onnxruntime.FIX,
    fuse_attention.FIX,
    dispatch_inference_mode.FIX,
    cache_embeddings.FIX,
    warmup_resident.FIX,
    schedule_memory_aware.FIX,
    batch_adaptive.FIX,
    admit_limit.FIX,
    admit_shed.FIX,
    batch_tune.FIX,
)

__all__ = ["FIXES", "Applied", "Context", "Fix", "Verified"]
