"""``memory.device_allocator``: the setting of torch's CUDA allocator with the fewest stalls for the run's history.

It depends on the sizes, the order and the lifetimes of allocations. The history is recorded in a replay whose timings
are not used, and replayed through models of the allocator (:mod:`latfix.profilers.allocator_lab`). Recording adds
microseconds to each allocation, so it has its own process. Torch's allocator keeps the history
(``torch.cuda.memory._record_memory_history``), without tracebacks; it is read as plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from latfix.errors import LatfixError
from latfix.profilers.allocator_lab.compare_policies import Choice, choose
from latfix.profilers.allocator_lab.torch_caching import known_settings
from latfix.profilers.allocator_lab.torch_snapshot import read_snapshot
from latfix.profilers.gpu.alloc_conf import ALLOC_CONF, OLDER_CONF, conf_environment, merged_conf, read_conf
from latfix.profilers.gpu.device_ids import device_index
from latfix.runners.fixes.fix import Applied, Change, Context, Fix, SetUp, Verified
from latfix.runners.fixes.shared.device_memory_facts import (
    TREATS,
    by_device,
    calls,
    not_in_effect,
    room_bytes,
    trouble,
)
from latfix.runners.gpu_memory.caching_allocator import standing_conf

if TYPE_CHECKING:
    from latfix.runners.optimize.measurement import Bench
    from latfix.runners.replay.arm import Arm

_SNAPSHOT = "memory-history.pickle"


def _measure(bench: Bench, base: Arm) -> Choice:
    try:
        return _recorded_choice(bench, base)
    except LatfixError as error:
        return Choice(description=error.message)


def _recorded_choice(bench: Bench, base: Arm) -> Choice:
    """Record the search's windows, and replay their allocations through models of the allocator.

    The service has the device to itself, like the baseline.
    """
    arm = bench.lone_arm("memory-history", base.settings, base.fixes)
    file = bench.search_folder / _SNAPSHOT
    try:
        if why_not := arm.ask("history")["why_not"]:
            return Choice(description=str(why_not))
        for number, window in enumerate(bench.windows):
            folder = bench.search_folder / f"{bench.replays:03d}-{arm.label}-{number}"
            arm.replay(folder, window, bench.watch, seed=bench.seed)
        retries = arm.ask("history", file=str(file)).get("retries")
    finally:
        arm.close()
    rooms = {device_index(device) or 0: room_bytes(known) for device, known in by_device(bench.baseline).items()}
    limited = any(known.get("share", 1.0) < 1 for known in by_device(bench.baseline).values())
    stalls = None if retries is None else {int(number): int(stalled) for number, stalled in retries.items()}
    return choice_of(file, rooms, stalls, limited=limited)


def choice_of(
    file: Path,
    room: int | Mapping[int, int],
    retries: Mapping[int, int] | None = None,
    *,
    limited: bool | None = None,
) -> Choice:
    """The best setting for a recorded history.

    :param room: bytes that the process could use of its device, or of each device by number. If the history has a
        stall, the room was what it held then.
    :param retries: stalls by device as counted by the allocator; by default inferred from the history.
    :param limited: the process may only use a share of the device.
    :raises InputError: the file cannot be read.
    """
    trace = read_snapshot(file)
    if retries is not None:
        trace.recorded["retries"] = retries.get(trace.device, 0)
    least = room if isinstance(room, int) else room.get(trace.device, min(room.values(), default=0))
    held = trace.recorded.get("peak_reserved", 0) if trace.recorded.get("retries") else 0
    return choose(trace, min(least, held) if held else least, known_settings(trace.setting, limited=limited))


def _chosen(context: Context) -> Choice | None:
    found: Choice | None = context.found.get(FIX.id)
    return found


def _better_setting(context: Context) -> str:
    choice = _chosen(context)
    if choice is None:
        return "no history of allocations was recorded"
    if not choice.setting:
        return choice.description
    wanted = read_conf(choice.setting)
    if wanted.items() <= read_conf(standing_conf(context.settings)).items():
        return f"the allocator has {choice.setting} already"
    limit = wanted.get("max_split_size_mb", "")
    if limit.isdecimal() and context.settings.reserve_mb >= int(limit):
        return f"with {choice.setting} the reserved {context.settings.reserve_mb} MiB would not serve any request"
    return ""


def _sets(context: Context) -> Change:
    choice = _chosen(context)
    assert choice is not None, "a precondition ensures it"
    return {"env": conf_environment(merged_conf(standing_conf(context.settings), choice.setting))}


def _verify(applied: Applied) -> Verified:
    wanted = applied.settings.env.get(ALLOC_CONF, "")
    missing = not_in_effect(applied.record, wanted)
    now, before = applied.both(calls)
    counts = now.compared_with(before)
    if missing or not wanted:
        what = ", ".join(missing) or "any setting"
        return Verified(False, f"the allocator does not report {what}; {counts}")
    # Expandable segments are mapped page by page: more calls, but none of them waits like a stall.
    return Verified(now.fewer_stalls_than(before), f"the allocator has {wanted}; {counts}")


FIX = Fix(
    id="memory.device_allocator",
    title="the setting of torch's CUDA allocator with the fewest stalls for this service's allocations",
    treats=TREATS,
    relief=0.7,
    gentle=True,
    alone=True,
    risk="with expandable segments tensors cannot be shared with other processes; other settings hold more memory",
    needs=(trouble, _better_setting),
    sets=_sets,
    variables=(ALLOC_CONF, OLDER_CONF),
    set_up=SetUp(due=lambda context: not trouble(context), measure=_measure, shown=lambda choice: choice.description),
    verify=_verify,
)
