"""How much memory a batch needs at most: the process's high-water mark, or the device's."""

from __future__ import annotations

import os

from latfix.runners.gpu_memory.caching_allocator import DeviceAllocator, allocator_of
from latfix.runners.host.privileges import status_bytes

#: Written to ``clear_refs``, it sets the high-water mark of resident memory back to what is resident now.
RESET_PEAK = b"5"


class PeakMemory:
    """Peaks above what the process, or its allocator on the device, held before it served its first batch.

    What a freed tensor leaves resident counts: the process does stand at that size. Where several workers run at
    once, a peak is of all of them.

    :param device: a torch device string.
    :ivar available: it can be measured here; on the CPU this takes Linux's ``/proc``, on a device an allocator that
        counts.
    """

    def __init__(self, device: str) -> None:
        self._allocator = allocator_of(device)
        self._in_use = self._held_most = 0
        self._reset_fd = -1
        self.available = self._allocator is not None and bool(self._allocator.stats())
        if device == "cpu":
            try:
                self._reset_fd = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
                self.available = status_bytes("VmHWM") > 0
            except OSError:
                self.available = False
        self._base = self._held()

    def begin(self) -> None:
        """A batch begins: forget earlier peaks."""
        if not self.available:
            return
        if self._allocator is not None:
            self._seen(self._allocator)
            self._allocator.reset_peaks()
            return
        try:
            os.write(self._reset_fd, RESET_PEAK)
        except OSError:  # a kernel without it, or a sandbox that refuses
            self.available = False

    def need_bytes(self) -> int:
        """The highest since :meth:`begin`, above what was held at the start; 0 where it cannot be measured."""
        if not self.available:
            return 0
        if self._allocator is not None:
            return max(self._seen(self._allocator) - self._base, 0)
        return max(status_bytes("VmHWM") - self._base, 0)

    def forget(self) -> None:
        """A run begins, from which on the highest of the device is kept over all batches."""
        self._in_use = self._held_most = 0

    def highest(self) -> tuple[int, int]:
        """Bytes of the device in use and held at most since then; the allocator's own peaks are reset meanwhile."""
        return self._in_use, self._held_most

    def close(self) -> None:
        """Give the descriptor back."""
        if self._reset_fd >= 0:
            os.close(self._reset_fd)
            self._reset_fd = -1
        self.available = False

    def _held(self) -> int:
        if not self.available:
            return 0
        if self._allocator is not None:
            return int(self._allocator.stats()["allocated_bytes"]["all"]["current"])
        return status_bytes("VmRSS")

    def _seen(self, allocator: DeviceAllocator) -> int:
        """The most bytes in use since the peaks were set back, which is kept."""
        stats = allocator.stats()
        in_use, held = (int(stats[name]["all"]["peak"]) for name in ("allocated_bytes", "reserved_bytes"))
        self._in_use, self._held_most = max(self._in_use, in_use), max(self._held_most, held)
        return in_use
