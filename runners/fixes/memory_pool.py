"""``memory.pool``: batches are written into buffers that are there already."""

from __future__ import annotations

from typing import Any

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified


def _obstacle(context: Context) -> str:
    if context.settings.buffer_pool:
        return "batches use a pool already"
    if not context.default_collate:
        return "the adapter has a collate of its own, which allocates as it likes"
    return ""


def _change(context: Context) -> dict[str, Any]:
    del context
    return {"buffer_pool": True}


def _verify(applied: Applied) -> Verified:
    hits = int(applied.record.meta.get("pool_hits", 0))
    misses = int(applied.record.meta.get("pool_misses", 0))
    return Verified(hits > misses, f"{hits} batch tensors came from the pool, {misses} had to grow it")


FIX = Fix(
    id="memory.pool",
    title="preallocated batch buffers",
    treats=("memory.page_faults", "memory.allocator", "memory.fragmentation"),
    relief=0.3,
    gentle=True,
    risk="the largest batch's memory is kept; a model must not keep its inputs",
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
