"""How busy others keep this machine: a witness of its own, apart from what a run's record says."""

from __future__ import annotations

import os
import time
from pathlib import Path


class ProcessorUse:
    """How much of the machine others use while this object lives."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._busy, self._own = busy_s(), _own_s()

    def neighbors(self) -> float | None:
        """Share of all cores since the start; ``None`` where the system does not tell."""
        busy = busy_s()
        if busy is None or self._busy is None:
            return None
        wall = max(time.monotonic() - self._began, 1e-3) * (os.cpu_count() or 1)
        return min(max((busy - self._busy - (_own_s() - self._own)) / wall, 0.0), 1.0)


def busy_s() -> float | None:
    """Seconds that all cores of this machine were busy so far."""
    try:
        fields = Path("/proc/stat").read_text().partition("\n")[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _idle, _wait, interrupts, soft = (int(field) for field in fields[:7])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """Seconds of processor time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
