"""``memory.pool``: batches and answers are written into preallocated buffers.

If a CUDA device was called for memory while requests were served, each worker instead allocates what it will need
before its first request, and frees it to the allocator, which keeps it cached.
"""

from __future__ import annotations

import math

from latfix.formatting import mebibytes
from latfix.profilers.gpu.alloc_conf import read_conf
from latfix.runners.fixes.fix import Applied, Change, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import refusals
from latfix.runners.fixes.shared.device_memory_facts import by_device, calls, room_bytes, trouble, worker_growth_mib
from latfix.runners.gpu_memory.caching_allocator import standing_conf

#: Minimum share of the requested memory that must be reserved.
_RESERVED = 0.9


def _no_reservation(context: Context) -> str:
    """Why nothing is reserved on the device, in one clause; empty if something is."""
    if context.settings.reserve_mb:
        return f"{context.settings.reserve_mb} MiB of the device are reserved already"
    if reason := trouble(context):
        return reason
    wanted = worker_growth_mib(context.record)
    if not wanted:
        return "the workers hold no device memory beyond the model"
    limit = read_conf(standing_conf(context.settings)).get("max_split_size_mb", "")
    if limit.isdecimal() and wanted >= int(limit):
        return f"with max_split_size_mb:{limit} a reserved block of {wanted} MiB would not serve any request"
    devices = by_device(context.record)
    room = min(room_bytes(known) - known["reserved_start_bytes"] for known in devices.values())
    # Workers are assigned to the devices in turn.
    if wanted * math.ceil(context.settings.workers / len(devices)) > room >> 20:
        where = "" if len(devices) == 1 else " on one device"
        return f"{wanted} MiB a worker would be needed, {mebibytes(max(room, 0))} are free for all of them{where}"
    return ""


def _needs_pool(context: Context) -> str:
    on_device = context.device.startswith("cuda")
    reason = _no_reservation(context) if on_device else ""
    if on_device and not reason:
        return ""
    if context.settings.buffer_pool:
        return "batches use a pool already" + (f"; {reason}" if reason else "")
    if on_device and context.settings.reserve_mb:
        return reason
    if not context.default_collate:
        return "the adapter has its own collate, which allocates its own buffers"
    return ""


def _sets(context: Context) -> Change:
    if not _no_reservation(context):
        return {"reserve_mb": worker_growth_mib(context.record)}
    return {"buffer_pool": True}


def _verify(applied: Applied) -> Verified:
    reserved, before = applied.both(lambda record: record.meta.settings.reserve_mb)
    if reserved != before:
        return _verify_reservation(applied)
    meta = applied.record.meta
    hits, misses = meta.pool_hits or 0, meta.pool_misses or 0
    text = f"{hits} batch tensors were written into the pool's buffers, {misses} needed a new one"
    if (answers := meta.pool_answers) is not None:
        text += (
            f"; answers {answers.hits} and {answers.misses}; {answers.held} times a buffer was still held"
            f" by the model or a caller; {answers.bytes / 2**20:.1f} MiB in total"
        )
    return Verified(hits > misses, text)


def _verify_reservation(applied: Applied) -> Verified:
    devices = by_device(applied.record)
    names = ("reserved_ahead_bytes", "wanted_bytes")
    reserved = [tuple(int(known.get(name, 0)) for name in names) for known in devices.values()]
    # The device with the smallest share of the requested memory.
    got, wanted = min(reserved, key=lambda each: each[0] / max(each[1], 1), default=(0, 0))
    now, before = applied.both(calls)
    text = (
        f"{mebibytes(got)} of {mebibytes(wanted)} were taken from {'the' if len(reserved) < 2 else 'each'} device "
        f"before the first request; {now.compared_with(before)}"
    )
    enough = wanted > 0 and got >= _RESERVED * wanted
    return Verified(enough and now.fewer_than(before), "; ".join([text, *refusals(applied.record, "reserve_mb")]))


FIX = Fix(
    id="memory.pool",
    title="preallocate buffers for batches and answers; on a GPU, reserve memory at the start",
    treats=("memory.page_faults", "memory.allocator", "memory.fragmentation"),
    relief=0.3,
    gentle=True,
    alone=True,
    risk="memory of the largest batch is kept; small answers are copied once more; a GPU's peak from the start",
    needs=(_needs_pool,),
    sets=_sets,
    verify=_verify,
)
