"""``batch.size``: larger batches where they pay, single requests where they do not."""

from __future__ import annotations

import numpy as np

from latfix.runners.fixes.fix import Applied, Change, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default, need
from latfix.runners.fixes.shared.model_facts import made_of

#: A batch pays where a request's element in it costs less than this share of one alone.
_PAYS = 0.8
#: Batches of each kind that a cost must rest on.
_ENOUGH = 8
_LARGEST = 64


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


def _largest(context: Context) -> int:
    """Most requests in a batch: what a model file takes, else what is worth a trial."""
    return min(made_of(context).get("largest_batch") or _LARGEST, _LARGEST)


def _wanted(context: Context) -> int:
    """A first guess, by what batches cost; the forecast tries all options."""
    current, cost = context.settings.max_batch_size, _cost(context)
    if cost is not None:
        return min(current * 2, _largest(context)) if cost[1] < _PAYS * cost[0] else 1
    return 1 if current > 1 else min(4, _largest(context))


def _options(context: Context) -> list[Change]:
    current = context.settings.max_batch_size
    most = min(max(2 * current, 8), _largest(context))
    sizes = {2**k for k in range(_LARGEST.bit_length())} - {current}
    return [{"max_batch_size": size} for size in sorted(sizes) if size <= most]


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
    mates_only=True,
    needs=(
        at_default("batching", "batching is {}, which moves its limit by itself"),
        need(_options, "the model file takes one request at a time"),
    ),
    sets=lambda context: {"max_batch_size": _wanted(context)},
    options=_options,
    verify=_verify,
)
