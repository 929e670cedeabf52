"""Which services of a search are in memory at the same time: a stopped process keeps the memory that it holds.

Two services that fit stay alive, and one is stopped while the other is timed. If they do not fit, or a fix acts on
the device's memory itself, the idle one is ended. On the host a third one, the first settings', stays if it fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from latfix.formatting import mebibytes
from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.shared.device_memory_facts import by_device, calls

if TYPE_CHECKING:
    from latfix.runners.fixes import Fix
    from latfix.runners.replay.arm import Arm

#: Memory that two services may hold beyond twice that of the first: CUDA's own memory in the second process, larger
#: workspaces. A guess that was not measured on a GPU.
MARGIN_BYTES = 1 << 30
#: Reasons not to share the device, after two services did.
STALLED = "two services together ran out of the device's memory"
FAILED = "one of two services on the device failed"
_OWN_MEMORY = "it acts on the device's memory"
_NO_OTHER = "it is not compared with another service"


class DeviceRoom:
    """Which arms of one search may be loaded at the same time.

    :ivar alone: why no two services may be; empty if they may.
    """

    def __init__(self) -> None:
        self.alone = ""
        self._baseline: RunRecord | None = None
        self._standing: frozenset[str] = frozenset()
        self._crowding: dict[str, str] = {}

    def begin(self, baseline: RunRecord) -> None:
        """Assume that each service holds as much memory as the first one did, alone."""
        self._baseline, self.alone = baseline, no_room(baseline)

    @property
    def on_device(self) -> bool:
        """True if the models are on a device other than the CPU."""
        return self._baseline is not None and self._baseline.meta.device != "cpu"

    @property
    def tight(self) -> bool:
        """True if only the two services that are compared may hold memory."""
        if self._baseline is None or self.on_device or self.alone:
            return self._baseline is not None
        held, left = _on_host(self._baseline)
        return 0 < left < 2 * held

    def alone_with(self, fixes: Sequence[Fix]) -> str:
        """Why a service with additional fixes must have the device to itself; empty if it may share it."""
        if self.alone or not self.on_device:
            return self.alone
        if any(fix.alone for fix in fixes):
            return _OWN_MEMORY
        return next((self._crowding[fix.id] for fix in fixes if fix.id in self._crowding), "")

    def alone_uncompared(self) -> str:
        """Why a service that is not compared with another one is alone; empty if others may stay on the host."""
        return _NO_OTHER if self.on_device else self.alone

    def adopt(self, arm: Arm) -> None:
        """Make this arm the one that others are compared with; it may hold more memory than the first one."""
        if arm.alone in (STALLED, FAILED):
            self.alone = arm.alone
        elif not self.alone and arm.latest is not None and self._baseline is not None:
            self.alone = no_room(self._baseline, arm.latest)
        arm.alone, self._standing = "", frozenset(arm.fixes)

    def crowd(self, arm: Arm, why: str) -> None:
        """Record that an arm did not fit next to the current best.

        Its new fixes have the device to themselves from now on. If it then happens with other fixes, all services do.
        """
        arm.alone = why
        fixes = set(arm.fixes) - self._standing
        if not fixes or (self._crowding and not fixes <= self._crowding.keys()):
            self.alone = why
        self._crowding.update(dict.fromkeys(fixes, why))

    def close_others(self, arm: Arm, others: Iterable[Arm]) -> None:
        """End the processes that must not share the device with an arm's."""
        for other in others:
            if other is not arm and other.loaded and (arm.alone or other.alone):
                other.close()


def no_room(baseline: RunRecord, latest: RunRecord | None = None) -> str:
    """Why two services cannot be loaded at the same time, in one clause; empty if they can.

    On the host, what was left next to the first one must hold another one. On a device, all memory that was in use
    when the baseline ended counts as the service's own: what a backend holds outside torch's allocator is unknown,
    and a neighbor's memory is not available to a second service either.

    :param baseline: of a service that had the device to itself.
    :param latest: of the current best, which may hold more.
    """
    if baseline.meta.device == "cpu":
        held, left = _on_host(baseline, latest)
        what = f"one holds {mebibytes(held)}, {mebibytes(left)} are left next to it"
        return f"both services do not fit into memory ({what})" if 0 < left < held else ""
    devices = by_device(baseline)
    if not devices:
        return "the device memory of a service is not known"
    if calls(baseline).retries:
        return "one service alone ran out of the device's memory"
    now = {} if latest is None else by_device(latest)
    for name, known in devices.items():
        held = known["total_bytes"] - known["left_bytes"] - known["reserved_end_bytes"]
        held += max(_peak(known), _peak(now.get(name, {})))
        if 2 * held + MARGIN_BYTES > known["total_bytes"]:
            where = "the device" if len(devices) == 1 else name
            of_all = f"{mebibytes(held)} of {mebibytes(known['total_bytes'])}"
            return f"both services do not fit on {where} (one holds {of_all})"
    return ""


def _on_host(baseline: RunRecord, latest: RunRecord | None = None) -> tuple[int, int]:
    """Bytes that a service held at most, and that were left next to the first one; 0 if unknown."""
    first = baseline.meta.memory
    return max(first.peak_bytes, 0 if latest is None else latest.meta.memory.peak_bytes), first.available_bytes


def _peak(known: Mapping[str, Any]) -> int:
    return max(int(known["reserved_peak_bytes"]), int(known["reserved_end_bytes"])) if known else 0
