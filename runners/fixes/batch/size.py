"""``batch.size``: larger batches where they pay, single requests where they do not."""

from __future__ import annotations

from latfix.runners.fixes.fix import Applied, Change, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default, need
from latfix.runners.fixes.shared.model_facts import made_of

#: Maximum size that is tried.
_LARGEST = 64


def _options(context: Context) -> list[Change]:
    current = context.settings.max_batch_size
    most = min(max(2 * current, 8), made_of(context).get("largest_batch") or _LARGEST, _LARGEST)
    sizes = {2**k for k in range(_LARGEST.bit_length())} - {current}
    return [{"max_batch_size": size} for size in sorted(sizes) if size <= most]


def _verify(applied: Applied) -> Verified:
    with_fix, without = applied.record.batches["size"], applied.without.batches["size"]
    if not len(with_fix) or not len(without):
        return Verified(False, "no batch ran")
    now, before = int(with_fix.max()), int(without.max())
    limit, was = (record.meta.settings.max_batch_size for record in (applied.record, applied.without))
    took = now <= limit < before if limit < was else now > was
    sizes = f"requests in a batch: {with_fix.mean():.3g} on average and {now} at most"
    return Verified(took, f"{sizes}, {without.mean():.3g} and {before} without")


FIX = Fix(
    id="batch.size",
    title="choose the batch size that pays on this machine",
    treats=("batching.size", "batching.padding", "traffic.burst", "traffic.overload"),
    relief=0.4,
    risk="larger batches delay their first members; smaller ones lose throughput on a GPU",
    changes_outputs=True,
    mates_only=True,
    needs=(
        at_default("batching", "batching is {}, which adapts its limit by itself"),
        need(_options, "the model file takes one request at a time"),
    ),
    options=_options,
    verify=_verify,
)
