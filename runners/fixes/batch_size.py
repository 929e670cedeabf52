"""``batch.size``: larger batches where they pay, single requests where they do not."""

from __future__ import annotations

from typing import Any

import numpy as np

from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.stages import Status

#: A batch pays where a request in it costs less than this share of a request alone.
_PAYS = 0.8
_LARGEST = 64


def _per_request_cost(context: Context) -> tuple[float, float] | None:
    """Median compute time per request in batches of one and in full batches, in ns; ``None`` if unseen."""
    batches = context.record.batches
    plain = (batches["warmup"] == 0) & (batches["retried"] == 0) & (batches["first_shape"] == 0)
    compute = (batches["compute_end_ns"] - batches["h2d_end_ns"]) / np.maximum(batches["size"], 1)
    alone = compute[plain & (batches["size"] == 1)]
    full = compute[plain & (batches["size"] >= max(2, context.settings.max_batch_size // 2))]
    if len(alone) < 5 or len(full) < 5:
        return None
    return float(np.median(alone)), float(np.median(full))


def _wanted(context: Context) -> int:
    current = context.settings.max_batch_size
    cost = _per_request_cost(context)
    if cost is not None:
        return min(current * 2, _LARGEST) if cost[1] < _PAYS * cost[0] else 1
    requests = context.record.requests
    waited = requests["queue_ns"][requests["status"] == Status.OK]
    backlog = len(waited) > 0 and float(np.percentile(waited, 95)) > 0
    return current if not backlog else min(max(4, current * 2), _LARGEST)


def _obstacle(context: Context) -> str:
    if _wanted(context) == context.settings.max_batch_size:
        return f"max_batch_size = {context.settings.max_batch_size} is what the batches' own cost suggests"
    return ""


def _change(context: Context) -> dict[str, Any]:
    return {"max_batch_size": _wanted(context)}


def _verify(applied: Applied) -> Verified:
    with_fix, without = applied.record.batches["size"], applied.without.batches["size"]
    if not len(with_fix) or not len(without):
        return Verified(False, "no batch ran")
    took = float(with_fix.mean()) != float(without.mean())
    return Verified(took, f"batches held {with_fix.mean():.3g} requests on average, {without.mean():.3g} without")


FIX = Fix(
    id="batch.size",
    title="batch as many requests as pays on this machine",
    treats=("batching.size", "batching.padding", "traffic.burst", "traffic.overload"),
    risk="larger batches delay their first members; smaller ones lose throughput on a GPU",
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
