"""How much memory a batch needs at most: the process's high-water mark, or the device's."""

from __future__ import annotations

import os
from pathlib import Path

from latfix.profilers.device_counters import COUNTING, allocator_backend

_STATUS = Path("/proc/self/status")
#: Written to ``clear_refs``, it sets the high-water mark of resident memory back to what is resident now.
_RESET = b"5"


class PeakMemory:
    """Peaks above what the process, or its allocator on the device, held before it served its first batch.

    What a freed tensor leaves resident counts: the process does stand at that size. Where several workers run at
    once, a peak is of all of them.

    :param device: a torch device string.
    :ivar available: it can be measured here; on the CPU this takes Linux's ``/proc``, on a device an allocator that
        counts.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._reset_fd = -1
        # A device's, too, only where its allocator counts.
        self.available = device != "cpu" and allocator_backend(device) in COUNTING
        if device == "cpu":
            try:
                self._reset_fd = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
                self.available = _resident_bytes("VmHWM") > 0
            except OSError:
                self.available = False
        self._base = self._held()

    def begin(self) -> None:
        """A batch begins: forget earlier peaks."""
        if not self.available:
            return
        if self._device != "cpu":
            import torch

            torch.cuda.reset_peak_memory_stats(self._device)
            return
        try:
            os.write(self._reset_fd, _RESET)
        except OSError:  # a kernel without it, or a sandbox that refuses
            self.available = False

    def need_bytes(self) -> int:
        """The highest since :meth:`begin`, above what was held at the start; 0 where it cannot be measured."""
        if not self.available:
            return 0
        if self._device != "cpu":
            import torch

            return max(int(torch.cuda.max_memory_allocated(self._device)) - self._base, 0)
        return max(_resident_bytes("VmHWM") - self._base, 0)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._reset_fd >= 0:
            os.close(self._reset_fd)
            self._reset_fd = -1
        self.available = False

    def _held(self) -> int:
        if not self.available:
            return 0
        if self._device != "cpu":
            import torch

            return int(torch.cuda.memory_allocated(self._device))
        return _resident_bytes("VmRSS")


def _resident_bytes(field: str) -> int:
    """A field of ``/proc/self/status`` that is told in kB, in bytes; 0 where it is not there."""
    with _STATUS.open("rb") as status:
        for line in status:
            if line.startswith(field.encode() + b":"):
                return int(line.split()[1]) * 1024
    return 0
