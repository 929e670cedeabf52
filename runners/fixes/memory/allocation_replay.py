"""The history of a service's allocations on its device, recorded in a replay whose timings are not used.

Recording adds microseconds to each allocation, so it has its own process. Torch's allocator keeps the history
(``torch.cuda.memory._record_memory_history``), without tracebacks; it is read as plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from latfix.profilers.allocator_lab.compare_policies import Choice, choose
from latfix.profilers.allocator_lab.torch_caching import known_settings
from latfix.profilers.allocator_lab.torch_snapshot import read_snapshot
from latfix.profilers.gpu.device_ids import device_index
from latfix.runners.fixes.fix import Bench
from latfix.runners.fixes.shared.device_memory_facts import by_device, room_bytes
from latfix.runners.replay.arm import Arm

_SNAPSHOT = "memory-history.pickle"


def recorded_choice(bench: Bench, base: Arm) -> Choice:
    """Record the search's windows, and replay their allocations through models of the allocator.

    The service has the device to itself, like the baseline.

    :raises LatfixError: the service failed, or its recording cannot be read.
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
