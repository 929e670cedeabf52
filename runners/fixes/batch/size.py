"""``batch.size``: larger batches where they pay, single requests where they do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from latfix.runners.fixes.fix import Applied, Change, Context, Fix, Verified
from latfix.stages import Status

#: A batch pays where a request's element in it costs less than this share of one alone.
_PAYS = 0.8
#: Batches of each kind that a cost must rest on.
_ENOUGH = 8
_LARGEST = 64
#: Share of batches that must be full before a larger limit can matter.
_OFTEN_FULL = 0.05
#: A limit must be foretold to bring p99 and the mean below this share of what they are.
_WORTH_IT = 0.97


def _cost(context: Context) -> tuple[float, float] | None:
    """Compute time for each element that a request brought, alone and in full batches; ``None`` if unseen.

    Padding counts as cost: it is computed on, and no request brought it.
    """
    batches = context.record.batches
    plain = (batches["warmup"] == 0) & (batches["retried"] == 0)
    costs = []
    for chosen in (batches["size"] == 1, batches["size"] >= max(2, context.settings.max_batch_size // 2)):
        rows = plain & chosen & (batches["real_elements"] > 0)
        if np.count_nonzero(rows) < _ENOUGH:
            return None
        compute = (batches["compute_end_ns"] - batches["h2d_end_ns"])[rows]
        costs.append(float(np.median(compute / batches["real_elements"][rows])))
    return costs[0], costs[1]


def _forecast(context: Context) -> dict[int, float]:
    """p99 or mean over what it is now, whichever is worse, by the largest batch that might be allowed.

    Empty without a forecast, and where the run had too few batches of several requests to tell what sharing costs.
    """
    forecast, serving = context.forecast, context.serving
    shared = np.count_nonzero((context.record.batches["size"] > 1) & (context.record.batches["warmup"] == 0))
    if forecast is None or serving is None or shared < _ENOUGH:
        return {}
    now = forecast.latencies(serving)
    sizes = [2**k for k in range(_LARGEST.bit_length())]
    foretold = {size: forecast.ratios(now, forecast.latencies(replace(serving, max_batch=size))) for size in sizes}
    return {size: max(ratio["p99"], ratio["mean"]) for size, ratio in foretold.items()}


def _wanted(context: Context) -> int:
    current = context.settings.max_batch_size
    if told := _forecast(context):
        best = min(told, key=lambda size: (told[size], size))
        return best if told[best] < _WORTH_IT else current
    cost = _cost(context)
    if cost is not None:
        return min(current * 2, _LARGEST) if cost[1] < _PAYS * cost[0] else 1
    requests = context.record.requests
    waited = requests["queue_ns"][requests["status"] == Status.OK]
    backlog = len(waited) > 0 and float(np.percentile(waited, 95)) > 0
    return current if not backlog else min(max(4, current * 2), _LARGEST)


def _better_limit(context: Context) -> str:
    current, wanted = context.settings.max_batch_size, _wanted(context)
    if wanted == current and (told := _forecast(context)):
        others = ", ".join(f"{size} x{ratio:.2f}" for size, ratio in told.items() if size != current)
        return f"the forecast finds no better limit than max_batch_size = {current}: {others}"
    if wanted == current:
        return f"max_batch_size = {current} is what the batches' own cost suggests"
    sizes = context.record.batches["size"]
    full = float(np.mean(sizes >= current)) if len(sizes) else 0.0
    if context.forecast is None and wanted > current > 1 and full < _OFTEN_FULL:
        return f"larger batches would not fill: {full:.1%} of them reached max_batch_size = {current}"
    return ""


def _sets(context: Context) -> Change:
    return {"max_batch_size": _wanted(context)}


def _verify(applied: Applied) -> Verified:
    with_fix, without = applied.record.batches["size"], applied.without.batches["size"]
    if not len(with_fix) or not len(without):
        return Verified(False, "no batch ran")
    now, before = int(with_fix.max()), int(without.max())
    limit, was = (record.meta.settings.max_batch_size for record in (applied.record, applied.without))
    took = now <= limit < before if limit < was else now > was
    said = f"batches held {with_fix.mean():.3g} requests on average and {now} at most"
    return Verified(took, f"{said}, {without.mean():.3g} and {before} without")


FIX = Fix(
    id="batch.size",
    title="batch as many requests as pays on this machine",
    treats=("batching.size", "batching.padding", "traffic.burst", "traffic.overload"),
    relief=0.4,
    risk="larger batches delay their first members; smaller ones lose throughput on a GPU",
    changes_outputs=True,
    needs=(_better_limit,),
    sets=_sets,
    verify=_verify,
)
