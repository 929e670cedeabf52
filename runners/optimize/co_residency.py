"""Which services of a search are on one device together: a process that is stopped keeps what it holds of its memory.

Two that fit stay alive, and one is stopped while the other is timed, as on the host. Of two that do not fit, the idle
one is ended; so it is where the device's memory itself is what a fix acts on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from latfix.run_record.run_record import RunRecord
from latfix.runners.fixes.shared.device_memory_facts import by_device, calls
from latfix.runners.host.privileges import mib

if TYPE_CHECKING:
    from latfix.runners.fixes import Fix
    from latfix.runners.replay.arm import Arm

#: What two services may hold beyond twice what the first held: CUDA's own memory in the second process, larger
#: workspaces. A guess: no GPU has been seen yet.
MARGIN_BYTES = 1 << 30
#: What was seen of two services on the device.
STALLED = "beside each other the services ran out of the device's memory"
FAILED = "beside the other service on the device one of the two failed"
_OWN_MEMORY = "it acts on the device's memory"
_NO_OTHER = "it is compared with no other"


class DeviceRoom:
    """Who may be on the device with whom, in one search; on the host, everybody with everybody.

    :ivar alone: why no two services are on the device together, whatever they are; empty where they may be.
    """

    def __init__(self) -> None:
        self.alone = ""
        self._baseline: RunRecord | None = None
        self._standing: frozenset[str] = frozenset()
        self._crowding: dict[str, str] = {}

    def begin(self, baseline: RunRecord) -> None:
        """Take what the first service held of the device, alone there, for what each of two holds."""
        self._baseline, self.alone = baseline, no_room(baseline)

    @property
    def on_device(self) -> bool:
        """Whether the models are on a device beside the host."""
        return self._baseline is not None and self._baseline.meta.device != "cpu"

    def alone_with(self, fixes: Sequence[Fix]) -> str:
        """Why a service with some fixes more must have the device to itself; empty where it need not."""
        if self.alone or not self.on_device:
            return self.alone
        if any(fix.alone for fix in fixes):
            return _OWN_MEMORY
        return next((self._crowding[fix.id] for fix in fixes if fix.id in self._crowding), "")

    def alone_at_all(self) -> str:
        """Why a service that is compared with no other has the device to itself."""
        return _NO_OTHER if self.on_device else ""

    def adopt(self, arm: Arm) -> None:
        """From now on others are compared with this arm; it may hold more of the device than the first one."""
        if arm.alone in (STALLED, FAILED):
            self.alone = arm.alone
        elif not self.alone and arm.latest is not None and self._baseline is not None:
            self.alone = no_room(self._baseline, arm.latest)
        arm.alone, self._standing = "", frozenset(arm.fixes)

    def crowd(self, arm: Arm, why: str) -> None:
        """Take note that there was no room for an arm beside the one that stands.

        That goes for its fixes from now on; and for all once it happens with others, too, for then it is not they.
        """
        arm.alone = why
        fixes = set(arm.fixes) - self._standing
        if not fixes or (self._crowding and not fixes <= self._crowding.keys()):
            self.alone = why
        self._crowding.update(dict.fromkeys(fixes, why))

    def make(self, arm: Arm, others: Iterable[Arm]) -> None:
        """End the processes that must not be on the device together with an arm's."""
        for other in others:
            if other is not arm and other.loaded and (arm.alone or other.alone):
                other.close()


def no_room(baseline: RunRecord, latest: RunRecord | None = None) -> str:
    """Why two services cannot be on the device together, in one clause; empty where they can, and on the host.

    All that was taken of the device when the baseline ended counts as the service's own: what a backend holds beside
    torch's allocator is not told, and a neighbor's share is not there for a second service either.

    :param baseline: of a service that had the device to itself.
    :param latest: of the service as it stands, where it holds more by now.
    """
    if baseline.meta.device == "cpu":
        return ""
    devices = by_device(baseline)
    if not devices:
        return "what a service holds of the device is not known"
    if calls(baseline).retries:
        return "one service alone ran out of the device's memory"
    now = {} if latest is None else by_device(latest)
    for name, known in devices.items():
        held = known["total_bytes"] - known["left_bytes"] - known["reserved_end_bytes"]
        held += max(_peak(known), _peak(now.get(name, {})))
        if 2 * held + MARGIN_BYTES > known["total_bytes"]:
            where = "the device" if len(devices) == 1 else name
            return f"both services do not fit on {where} (one holds {mib(held)} of {mib(known['total_bytes'])})"
    return ""


def _peak(known: Mapping[str, Any]) -> int:
    return max(int(known["reserved_peak_bytes"]), int(known["reserved_end_bytes"])) if known else 0
