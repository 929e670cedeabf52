"""``memory.limit``: limit the device's memory, and free cached segments one by one before the limit is reached.

Without a limit the allocator takes all it can get. Once the device refuses, because a neighbor has the remainder, the
allocator waits for the device and frees all cached segments at once.
"""

from __future__ import annotations

import math

from latfix.formatting import mebibytes, percent
from latfix.profilers.gpu.alloc_conf import ALLOC_CONF, OLDER_CONF, conf_environment, merged_conf, read_conf
from latfix.runners.fixes.fix import Applied, Change, Context, Fix, Verified
from latfix.runners.fixes.shared.conditions import at_default, refusals
from latfix.runners.fixes.shared.device_memory_facts import (
    TREATS,
    by_device,
    calls,
    not_in_effect,
    room_bytes,
    trouble,
)
from latfix.runners.gpu_memory.caching_allocator import standing_conf

#: The limit, as a share of what the process could have: neighbors may grow by the remainder.
_OF_ROOM = 0.95
#: The share of the limit from which on cached segments are freed, least recently used first.
_COLLECT = "garbage_collection_threshold"
_COLLECT_FROM = "0.8"
#: Maximum memory in use, as a share of where collecting begins: above it, nothing is cached.
_IN_USE = 0.95


def _share(context: Context) -> float:
    """The limit, by the device with the least room: it is the same on all."""
    shares = [room_bytes(known) / int(known["total_bytes"]) for known in by_device(context.record).values()]
    return math.floor(1000 * _OF_ROOM * min(shares)) / 1000


def _gives_back(context: Context) -> str:
    conf = read_conf(standing_conf(context.settings))
    if _COLLECT in conf:
        return f"{_COLLECT} is set already"
    if conf.get("expandable_segments") == "True":
        return "expandable segments cannot be freed one by one"
    if not calls(context.record).retries:
        return "the device never refused memory"
    for known in by_device(context.record).values():
        begins = float(_COLLECT_FROM) * _share(context) * known["total_bytes"]
        if known["allocated_peak_bytes"] > _IN_USE * begins:
            return (
                f"{mebibytes(known['allocated_peak_bytes'])} were in use, and cached memory would be freed from "
                f"{mebibytes(int(begins))} on: nothing would stay cached"
            )
    return ""


def _sets(context: Context) -> Change:
    conf = merged_conf(standing_conf(context.settings), f"{_COLLECT}:{_COLLECT_FROM}")
    return {"device_memory_share": _share(context), "env": conf_environment(conf)}


def _verify(applied: Applied) -> Verified:
    wanted = applied.settings.device_memory_share
    shares = [float(known.get("share", 1.0)) for known in by_device(applied.record).values()] or [1.0]
    least, most = min(shares), max(shares)
    missing = not_in_effect(applied.record, f"{_COLLECT}:{_COLLECT_FROM}")
    now, before = applied.both(calls)
    text = (
        f"the process may have {100 * least:.1f} % of {_which(len(shares), least, most)}; segments are freed "
        f"{'when it is full' if missing else f'from {percent(float(_COLLECT_FROM))} of that on'}; "
        f"{now.compared_with(before)}"
    )
    limited = all(math.isclose(share, wanted, abs_tol=1e-4) for share in shares)
    in_effect = wanted > 0 and limited and not missing
    return Verified(
        in_effect and now.fewer_stalls_than(before),
        "; ".join([text, *refusals(applied.record, "device_memory_share")]),
    )


def _which(devices: int, least: float, most: float) -> str:
    if devices == 1:
        return "the device"
    if math.isclose(least, most):
        return f"each of {devices} devices"
    return f"one device, and {100 * most:.1f} % of another"


FIX = Fix(
    id="memory.limit",
    title="limit device memory, and free cached segments before the limit is reached",
    treats=TREATS,
    relief=0.4,
    gentle=True,
    alone=True,
    risk="more short calls of the device for fewer long stalls; a request that needs more than the limit fails",
    needs=(
        at_default("device_memory_share", "the process is limited to {:.3g} of the device already"),
        trouble,
        _gives_back,
    ),
    sets=_sets,
    variables=(ALLOC_CONF, OLDER_CONF),
    verify=_verify,
)
