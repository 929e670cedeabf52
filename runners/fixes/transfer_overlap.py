"""``transfer.overlap``: the next full batch is collated and copied to the device while this one computes."""

from __future__ import annotations

import numpy as np

from latfix.formatting import from_ns
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default, need, on_its_device


def _waits_for_device(context: Context) -> str:
    waits = context.record.meta.device_waits
    if not waits or context.settings.captures:  # a captured batch is enqueued at once
        return ""
    return f"the model's code waits for the device (at {waits[0]}), so the worker cannot enqueue the next batch"


def _verify(applied: Applied) -> Verified:
    batches = applied.record.batches
    ahead = batches["ahead_ns"][batches["warmup"] == 0]
    hidden = ahead[ahead > 0]
    if not len(hidden):
        return Verified(False, f"none of {len(ahead)} batches was full when the one before it computed")
    enqueued = f"{len(hidden)} of {len(ahead)} batches were enqueued while another computed"
    return Verified(True, f"{enqueued}, {from_ns(np.median(hidden))} before their turn in the median")


FIX = Fix(
    id="transfer.overlap",
    title="copy the next batch to the device while this one computes",
    treats=("transfer.copy", "traffic.burst", "traffic.overload"),
    relief=0.2,
    risk="memory of two batches at once; a request of high priority also waits for a full batch that was taken ahead",
    needs=(
        on_its_device("transfer.overlap", "the model runs on the CPU, and so does the preparation of the next batch"),
        at_default("overlap", "batches overlap already"),
        at_default("batching", "batching is {}: requests could not join a batch that is taken ahead"),
        need(
            lambda context: context.settings.routing == "pull" or context.settings.workers < 2,
            "routing by weight needs the end of each batch, which is unknown for one that is taken ahead",
        ),
        _waits_for_device,
        at_default("memory_limit_mb", "batches are limited by memory, and two at once would need more"),
    ),
    # The host waits for each copy from pageable memory, so that nothing overlaps.
    sets={"overlap": True, "pinned_staging": True},
    verify=_verify,
)
