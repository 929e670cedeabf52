"""The fixes, one module each, in the order in which they are tried where the diagnosis sees no difference."""

from latfix.runners.fixes import (
    batch_bucket,
    batch_size,
    batch_window,
    fuse_compile,
    gc_freeze,
    host_threads,
    host_workers,
    memory_allocator,
    memory_pool,
    quantize_bf16,
    quantize_int8_dynamic,
    warmup_shapes,
)
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified

#: Warm-up comes first: everything after it is compared between services that are warm.
FIXES: tuple[Fix, ...] = (
    warmup_shapes.FIX,
    host_workers.FIX,
    quantize_int8_dynamic.FIX,
    batch_size.FIX,
    batch_bucket.FIX,
    batch_window.FIX,
    quantize_bf16.FIX,
    memory_allocator.FIX,
    gc_freeze.FIX,
    host_threads.FIX,
    memory_pool.FIX,
    fuse_compile.FIX,
)

__all__ = ["FIXES", "Applied", "Context", "Fix", "Verified"]
