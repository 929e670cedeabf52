"""``memory.pool``: batches and answers are written into buffers that are there already.

On a CUDA device that was called for memory while requests were served: each worker takes what it is going to need of
the device before its first request, and lets it go to the allocator, which then has it at hand.
"""

from __future__ import annotations

import math
from typing import Any

from latfix.profilers.gpu.alloc_conf import read_conf
from latfix.runners.fixes.fix import Applied, Context, Fix, Verified
from latfix.runners.fixes.shared.device_memory_facts import (
    by_device,
    calls,
    no_trouble,
    room_bytes,
    worker_growth_mib,
)
from latfix.runners.fixes.shared.tail_conditions import refusals
from latfix.runners.gpu_memory.caching_allocator import standing_conf
from latfix.runners.host.privileges import mib

#: The share of what was asked for that must be there.
_THERE = 0.9


def _reserves(context: Context) -> bool:
    """Whether it is the device's memory that needs a pool."""
    return not _no_reservation(context)


def _no_reservation(context: Context) -> str:
    """Why nothing is reserved on the device, in one clause; empty where it is."""
    if context.settings.reserve_mb:
        return f"{context.settings.reserve_mb} MiB of the device are reserved already"
    if trouble := no_trouble(context):
        return trouble
    wanted = worker_growth_mib(context.record)
    if not wanted:
        return "the workers hold no more of the device than the model"
    limit = read_conf(standing_conf(context.settings)).get("max_split_size_mb", "")
    if limit.isdecimal() and wanted >= int(limit):
        return f"with max_split_size_mb:{limit} no request would be served from a block of {wanted} MiB"
    devices = by_device(context.record)
    room = min(room_bytes(known) - known["reserved_start_bytes"] for known in devices.values())
    # Workers are put on the devices in turn.
    if wanted * math.ceil(context.settings.workers / len(devices)) > room >> 20:
        there = "" if len(devices) == 1 else " on one device"
        return f"{wanted} MiB a worker would be needed, {mib(max(room, 0))} are there for all of them{there}"
    return ""


def _obstacle(context: Context) -> str:
    device = str(context.record.meta.get("device", "cpu")).startswith("cuda")
    if device and _reserves(context):
        return ""
    if context.settings.buffer_pool:
        return "batches use a pool already" + (f"; {_no_reservation(context)}" if device else "")
    if device and context.settings.reserve_mb:
        return _no_reservation(context)
    if not context.default_collate:
        return "the adapter has a collate of its own, which allocates as it likes"
    return ""


def _change(context: Context) -> dict[str, Any]:
    if _reserves(context):
        return {"reserve_mb": worker_growth_mib(context.record)}
    return {"buffer_pool": True}


def _verify(applied: Applied) -> Verified:
    settings = applied.record.meta.get("settings", {})
    if settings.get("reserve_mb", 0) != applied.without.meta.get("settings", {}).get("reserve_mb", 0):
        return _verify_reservation(applied)
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


def _verify_reservation(applied: Applied) -> Verified:
    devices = by_device(applied.record)
    names = ("reserved_ahead_bytes", "wanted_bytes")
    asked = [tuple(int(known.get(name, 0)) for name in names) for known in devices.values()]
    # The device that gave least of what it was asked for.
    got, wanted = min(asked, key=lambda each: each[0] / max(each[1], 1), default=(0, 0))
    now, before = calls(applied.record), calls(applied.without)
    said = (
        f"{mib(got)} of {mib(wanted)} were taken from {'the' if len(asked) < 2 else 'each'} device before the first "
        f"request; {now.beside(before)}"
    )
    there = wanted > 0 and got >= _THERE * wanted
    return Verified(there and now.fewer_than(before), "; ".join([said, *refusals(applied.record, "reserve_mb")]))


FIX = Fix(
    id="memory.pool",
    title="preallocated buffers for batches and answers; on a GPU, memory reserved at the start",
    treats=("memory.page_faults", "memory.allocator", "memory.fragmentation"),
    relief=0.3,
    gentle=True,
    alone=True,
    risk="the largest batch's memory is kept; small answers are copied once more; a GPU's peak from the start",
    obstacle=_obstacle,
    change=_change,
    verify=_verify,
)
