"""``transfer.overlap``: the next full batch is put together and copied in while this one computes."""

from __future__ import annotations

from typing import Any

import numpy as np

from latfix.formatting import from_ns
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.model_facts import on_cpu


def _obstacle(context: Context) -> str:
    settings = context.settings
    if on_cpu(context):
        return "the model runs on the CPU: a batch is computed by whoever would prepare the next"
    if settings.overlap:
        return "batches overlap already"
    if settings.batching != "fixed":
        return f"batching is {settings.batching}: a batch that is taken ahead could not be joined any more"
    if settings.routing != "pull" and settings.workers > 1:
        return "routing weighs workers by when their batches end, which is not known of one that is taken ahead"
    if waits := list(context.record.meta.get("device_waits") or ()):
        return (
            f"the model's code waits for the device (at {waits[0]}), and with it whoever would enqueue the next batch"
        )
    return "batches are limited by memory, of which two would be needed at once" if settings.memory_limit_mb else ""


def _change(context: Context) -> dict[str, Any]:
    del context
    # From pageable memory the host waits for each copy, and nothing runs beside it.
    return {"overlap": True, "pinned_staging": True}


def _verify(applied: Applied) -> Verified:
    batches = applied.record.batches
    ahead = batches["ahead_ns"][(batches["warmup"] == 0)]
    hidden = ahead[ahead > 0]
    if not len(hidden):
        return Verified(False, f"none of {len(ahead)} batches was full when the one before it computed")
    said = f"{len(hidden)} of {len(ahead)} batches were enqueued while another computed"
    return Verified(True, f"{said}, {from_ns(np.median(hidden))} before their turn in the median")


FIX = Fix(
    id="transfer.overlap",
    title="copy the next batch in while this one computes",
    treats=("transfer.copy", "traffic.burst", "traffic.overload"),
    relief=0.2,
    risk="two batches' memory at once; a request of high priority that comes after a full batch was taken waits for "
    "that one, too",
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
