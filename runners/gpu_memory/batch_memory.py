"""Peak memory of a batch: the process's high-water mark, or the device's."""

from __future__ import annotations

import contextlib
import os

from latfix.runners.gpu_memory.caching_allocator import DeviceAllocator, allocator_of
from latfix.runners.host.privileges import status_bytes

#: Written to ``clear_refs``, it resets the high-water mark of resident memory.
RESET_PEAK = b"5"


class PeakMemory:
    """Peaks above the memory that the process, or its allocator on the device, held before the first batch.

    Freed memory that stays resident counts, as it is part of the process's size. If several workers run at once, a
    peak is of all of them.

    :param device: a torch device string.
    :ivar available: measurable here; needs Linux's ``/proc`` on the CPU, and a counting allocator on a device.
    """

    def __init__(self, device: str) -> None:
        self._allocator = allocator_of(device)
        self._in_use = self._held_most = self._base = 0
        self._reset_fd = -1
        self.available = False
        if self._allocator is not None and (stats := self._allocator.stats()):
            self.available, self._base = True, int(stats["allocated_bytes"]["all"]["current"])
        if device == "cpu":
            with contextlib.suppress(OSError):
                self._reset_fd = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
                self.available, self._base = status_bytes("VmHWM") > 0, status_bytes("VmRSS")

    def begin(self) -> None:
        """Reset the peak at the start of a batch."""
        if not self.available:
            return
        if self._allocator is not None:
            self._seen(self._allocator)
            self._allocator.reset_peaks()
            return
        try:
            os.write(self._reset_fd, RESET_PEAK)
        except OSError:  # an old kernel or a sandbox
            self.available = False

    def need_bytes(self) -> int:
        """The peak since :meth:`begin` above the initial memory; 0 if it cannot be measured."""
        if not self.available:
            return 0
        peak = status_bytes("VmHWM") if self._allocator is None else self._seen(self._allocator)
        return max(peak - self._base, 0)

    def forget(self) -> None:
        """Reset the maximum over batches at the start of a run."""
        self._in_use = self._held_most = 0

    def highest(self) -> tuple[int, int]:
        """Peak bytes in use and held on the device since :meth:`forget`, over all resets of the allocator's peaks."""
        return self._in_use, self._held_most

    def close(self) -> None:
        if self._reset_fd >= 0:
            os.close(self._reset_fd)
            self._reset_fd = -1
        self.available = False

    def _seen(self, allocator: DeviceAllocator) -> int:
        """Peak bytes in use since the last reset; also updates the maximum over batches."""
        stats = allocator.stats()
        in_use, held = (int(stats[name]["all"]["peak"]) for name in ("allocated_bytes", "reserved_bytes"))
        self._in_use, self._held_most = max(self._in_use, in_use), max(self._held_most, held)
        return in_use
