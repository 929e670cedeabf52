"""The fixes, one module each, in the order in which they are tried if the diagnosis does not rank them.

The module follows from the id: ``batch.size`` is ``batch/size.py``. A family of one or two fixes has no folder:
``gc.freeze`` is ``gc_freeze.py``. Each module has one declaration, ``FIX`` (:class:`latfix.runners.fixes.fix.Fix`);
:mod:`latfix.runners.fixes.shared` holds preconditions and evidence that several of them use.
"""

from latfix.runners.fixes import (
    admit_limit,
    admit_shed,
    cache_embeddings,
    dispatch_inference_mode,
    gc_freeze,
    locality_cores,
    numerics_flush_denormal,
    transfer_overlap,
    transfer_pinned,
    warmup_resident,
    warmup_shapes,
)
from latfix.runners.fixes.batch import adaptive, bucket, continuous, size, window
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.fuse import (
    attention,
    channels_last,
    compile,
    compile_autotune,
    cudagraph,
    onnxruntime,
    openvino,
    planless_attention,
    tensorrt,
)
from latfix.runners.fixes.host import parallel, pin, routing, threads, wait_policy, workers
from latfix.runners.fixes.host import priority as host_priority
from latfix.runners.fixes.memory import (
    allocator,
    device_allocator,
    huge_pages,
    jemalloc,
    limit,
    page_prefault,
    pool,
    tcmalloc,
)
from latfix.runners.fixes.quantize import bf16, fp8_dynamic, fp16, int8_dynamic, int8_excluded, int8_weight_only, tf32
from latfix.runners.fixes.schedule import memory_aware, shortest_expected
from latfix.runners.fixes.schedule import priority as schedule_priority

#: Warm-up comes first: everything after it is compared between services that are warm.
FIXES: tuple[Fix, ...] = (
    warmup_shapes.FIX,
    workers.FIX,
    numerics_flush_denormal.FIX,
    int8_dynamic.FIX,
    int8_excluded.FIX,
    int8_weight_only.FIX,
    transfer_pinned.FIX,
    cudagraph.FIX,
    transfer_overlap.FIX,
    fp8_dynamic.FIX,
    continuous.FIX,
    size.FIX,
    bucket.FIX,
    window.FIX,
    shortest_expected.FIX,
    schedule_priority.FIX,
    tf32.FIX,
    bf16.FIX,
    fp16.FIX,
    channels_last.FIX,
    allocator.FIX,
    jemalloc.FIX,
    tcmalloc.FIX,
    huge_pages.FIX,
    page_prefault.FIX,
    gc_freeze.FIX,
    wait_policy.FIX,
    threads.FIX,
    parallel.FIX,
    routing.FIX,
    pin.FIX,
    host_priority.FIX,
    locality_cores.FIX,
    pool.FIX,
    device_allocator.FIX,
    limit.FIX,
    compile.FIX,
    compile_autotune.FIX,
    tensorrt.FIX,
    openvino.FIX,
    onnxruntime.FIX,
    attention.FIX,
    planless_attention.FIX,
    dispatch_inference_mode.FIX,
    cache_embeddings.FIX,
    warmup_resident.FIX,
    memory_aware.FIX,
    adaptive.FIX,
    admit_limit.FIX,
    admit_shed.FIX,
)

__all__ = ["FIXES", "Applied", "Context", "Fix", "Verified"]
