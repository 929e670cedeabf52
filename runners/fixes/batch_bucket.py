"""``batch.bucket``: batch requests of similar length, so that padding stays bounded."""

from __future__ import annotations

from typing import Any

from latfix.buckets import padding_share
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified


def _obstacle(context: Context) -> str:
    if context.settings.max_batch_size == 1:
        return "requests run one by one, so nothing is padded"
    if context.settings.batch_order == "length":
        return "batches are ordered by length already"
    if padding_share(context.record.batches) < 0.02:
        return f"only {padding_share(context.record.batches):.1%} of the batches is padding"
    return ""


def _change(context: Context) -> dict[str, Any]:
    del context
    return {"batch_order": "length"}


def _verify(applied: Applied) -> Verified:
    now, before = padding_share(applied.record.batches), padding_share(applied.without.batches)
    return Verified(now < before, f"{now:.1%} of the batches was padding, {before:.1%} without")


FIX = Fix(
    id="batch.bucket",
    title="batch requests of similar length",
    treats=("batching.padding", "batching.size"),
    relief=0.6,
    gentle=True,
    risk="smaller batches where lengths differ widely",
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
