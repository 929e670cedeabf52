"""``memory.pool``: batches and answers are written into buffers that are there already."""

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
    meta = applied.record.meta
    hits, misses = int(meta.get("pool_hits", 0)), int(meta.get("pool_misses", 0))
    said = f"{hits} batch tensors were written into the pool's buffers, {misses} needed a new one"
    answers = meta.get("pool_answers", {})
    if answers:
        said += (
            f"; answers {answers['hits']} and {answers['misses']}; {answers['held']} times a buffer was still held"
            f" by the model or a caller; {answers['bytes'] / 2**20:.1f} MiB in all"
        )
    return Verified(hits > misses, said)


FIX = Fix(
    id="memory.pool",
    title="preallocated buffers for batches and answers",
    treats=("memory.page_faults", "memory.allocator", "memory.fragmentation"),
    relief=0.3,
    gentle=True,
    risk="the largest batch's memory is kept; small answers are copied once more",
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
