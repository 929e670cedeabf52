"""The history of a service's allocations on its device, recorded in a replay whose timings count for nothing.

Recording costs each allocation microseconds, so that a process of its own does it. The history is what torch's
allocator keeps itself (``torch.cuda.memory._record_memory_history``), without tracebacks; it is read as plain data.
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
    """Replay the search's windows with recording on, and what comes of them through the models of the allocator.

    Beside nothing else, for what is recorded is to be what the service does that has the room of the baseline.

    :raises LatfixError: the service failed, or what it wrote cannot be read.
    """
    arm = bench.lone_arm("memory-history", base.settings, base.fixes)
    file = bench.search_folder / _SNAPSHOT
    try:
        if why_not := arm.ask("history")["why_not"]:
            return Choice(said=str(why_not))
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
    """What a recorded history speaks for.

    :param room: bytes that the process could have from its device, or from each by its number. Where the history has
        a stall, it was less: what it held then.
    :param retries: stalls by device as the allocator counted them; by default those that the history looks like.
    :param limited: the process may have a share of the device only.
    :raises InputError: the file cannot be read.
    """
    trace = read_snapshot(file)
    if retries is not None:
        trace.recorded["retries"] = retries.get(trace.device, 0)
    least = room if isinstance(room, int) else room.get(trace.device, min(room.values(), default=0))
    held = trace.recorded.get("peak_reserved", 0) if trace.recorded.get("retries") else 0
    return choose(trace, min(least, held) if held else least, known_settings(trace.setting, limited=limited))
