"""The fixes, one module each, in the order in which they are tried if the diagnosis does not rank them.

The module follows from the id: ``batch.size`` is ``batch/size.py``. A family of one or two fixes has no folder:
``gc.freeze`` is ``gc_freeze.py``. Each module has one declaration, ``FIX`` (:class:`latfix.runners.fixes.fix.Fix`);
:mod:`latfix.runners.fixes.shared` holds preconditions and evidence that several of them use.
"""

from latfix.runners.fixes import (
    admit_limit,
    admit_shed,
    batch,
    cache_embeddings,
    dispatch_inference_mode,
    fuse,
    gc_freeze,
    host,
    locality_cores,
    memory,
    numerics_flush_denormal,
    quantize,
    schedule,
    transfer_overlap,
    transfer_pinned,
    warmup_resident,
    warmup_shapes,
)
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified

#: Warm-up comes first: everything after it is compared between services that are warm.
FIXES: tuple[Fix, ...] = (
    warmup_shapes.FIX,
    host.workers.FIX,
    numerics_flush_denormal.FIX,
    quantize.int8_dynamic.FIX,
    quantize.int8_excluded.FIX,
    quantize.int8_weight_only.FIX,
    transfer_pinned.FIX,
    fuse.cudagraph.FIX,
    transfer_overlap.FIX,
    quantize.fp8_dynamic.FIX,
    batch.continuous.FIX,
    batch.size.FIX,
    batch.bucket.FIX,
    batch.window.FIX,
    schedule.shortest_expected.FIX,
    schedule.priority.FIX,
    quantize.tf32.FIX,
    quantize.bf16.FIX,
    quantize.fp16.FIX,
    fuse.channels_last.FIX,
    memory.allocator.FIX,
    memory.jemalloc.FIX,
    memory.tcmalloc.FIX,
    memory.huge_pages.FIX,
    memory.page_prefault.FIX,
    gc_freeze.FIX,
    host.wait_policy.FIX,
    host.threads.FIX,
    host.parallel.FIX,
    host.routing.FIX,
    host.pin.FIX,
    host.priority.FIX,
    locality_cores.FIX,
    memory.pool.FIX,
    memory.device_allocator.FIX,
    memory.limit.FIX,
    fuse.compile.FIX,
    fuse.compile_autotune.FIX,
    fuse.tensorrt.FIX,
    fuse.openvino.FIX,
    fuse.onnxruntime.FIX,
    fuse.attention.FIX,
    dispatch_inference_mode.FIX,
    cache_embeddings.FIX,
    warmup_resident.FIX,
    schedule.memory_aware.FIX,
    batch.adaptive.FIX,
    admit_limit.FIX,
    admit_shed.FIX,
)

__all__ = ["FIXES", "Applied", "Context", "Fix", "Verified"]
