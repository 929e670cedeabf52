"""``transfer.pinned``: batches and answers travel through pinned memory that is there already."""

from __future__ import annotations

from typing import Any

from latfix.formatting import share
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.model_facts import on_cpu

#: What may still lie in pageable memory: answers that a model hands back in another form than tensors of its own.
_MOST_PAGEABLE = 0.01


def _obstacle(context: Context) -> str:
    if on_cpu(context):
        return "the model runs on the CPU: there is no device to copy to"
    return "batches and answers are copied through pinned memory already" if context.settings.pinned_staging else ""


def _change(context: Context) -> dict[str, Any]:
    del context
    return {"pinned_staging": True}


def _verify(applied: Applied) -> Verified:
    batches, before = applied.record.batches, applied.without.batches
    meta = applied.record.meta
    total = int((batches["copy_in_bytes"] + batches["copy_out_bytes"]).sum())
    pageable, was = (int(each["pageable_bytes"].sum()) for each in (batches, before))
    whole = int((before["copy_in_bytes"] + before["copy_out_bytes"]).sum())
    said = (
        f"{share(pageable / max(total, 1))} of the bytes were copied from or to memory that is not pinned, "
        f"{share(was / max(whole, 1))} before; {int(meta.get('pool_hits', 0))} batch tensors were written into "
        f"buffers that were there, {int(meta.get('pool_misses', 0))} needed a new one"
    )
    return Verified(total > 0 and pageable <= _MOST_PAGEABLE * total < was, said)


FIX = Fix(
    id="transfer.pinned",
    title="pinned staging buffers for copies to and from the GPU",
    treats=("transfer.copy",),
    relief=0.7,
    gentle=True,
    risk="pinned memory of the largest batches is kept; a batch that the workload's own collate makes is copied once "
    "more on the host",
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
