"""``transfer.overlap``: the next full batch is put together and copied in while this one computes."""

from __future__ import annotations

import numpy as np

from latfix.formatting import from_ns
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default, need, on_gpu


def _waits_for_device(context: Context) -> str:
    waits = context.record.meta.device_waits
    if not waits:
        return ""
    return f"the model's code waits for the device (at {waits[0]}), and with it whoever would enqueue the next batch"


def _verify(applied: Applied) -> Verified:
    batches = applied.record.batches
    ahead = batches["ahead_ns"][batches["warmup"] == 0]
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
    needs=(
        on_gpu("the model runs on the CPU: a batch is computed by whoever would prepare the next"),
        at_default("overlap", "batches overlap already"),
        at_default("batching", "batching is {}: a batch that is taken ahead could not be joined any more"),
        need(
            lambda context: context.settings.routing == "pull" or context.settings.workers < 2,
            "routing weighs workers by when their batches end, which is not known of one that is taken ahead",
        ),
        _waits_for_device,
        at_default("memory_limit_mb", "batches are limited by memory, of which two would be needed at once"),
    ),
    # From pageable memory the host waits for each copy, and nothing runs beside it.
    sets={"overlap": True, "pinned_staging": True},
    verify=_verify,
)
