"""Which priorities and how much locked memory this process is allowed."""

from __future__ import annotations

import os
import sys

from latfix.profilers.probes.control_groups import ControlGroups
from latfix.runners.host.kernel_files import System

#: Bits of the effective capability set (``capability.h``).
CAP_IPC_LOCK = 14
CAP_SYS_NICE = 23
_SYSTEM = System()


def has_capability(bit: int, system: System = _SYSTEM) -> bool:
    """True if the capability is in this process's effective set; ``False`` on systems without capabilities."""
    lines = (system.text("/proc/self/status") or "").splitlines()
    effective = next((line.partition(":")[2] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> bit & 1)


def status_bytes(name: str) -> int:
    """A field of ``/proc/self/status`` that is in kB, as bytes; 0 if missing."""
    return _SYSTEM.fields("/proc/self/status").get(name, 0) * 1024


def current_nice() -> int:
    """The nice value of the calling thread."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def least_nice() -> int:
    """The lowest nice value that this process may set; its current one if it may not lower it."""
    if sys.platform == "linux":
        import resource

        if has_capability(CAP_SYS_NICE):
            return -20
        # The limit ranges from 1 (nice 19) to 40 (nice -20).
        soft, _ = resource.getrlimit(resource.RLIMIT_NICE)
        lowest = -20 if soft == resource.RLIM_INFINITY else 20 - min(max(soft, 0), 40)
        return min(current_nice(), lowest)
    return -20 if os.geteuid() == 0 else current_nice()


def lockable_bytes() -> int | None:
    """Bytes that this process may lock into memory; ``None`` for no limit, 0 if unknown."""
    if sys.platform != "linux":
        return 0
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if has_capability(CAP_IPC_LOCK) or soft == resource.RLIM_INFINITY:
        return None
    return soft


def available_bytes() -> int:
    """Memory available without swapping, within the cgroup's limit; 0 if the system does not report it."""
    free = _SYSTEM.fields("/proc/meminfo").get("MemAvailable", 0) * 1024
    known = [size for size in (free or None, ControlGroups().memory_left()) if size is not None]
    return max(min(known), 1) if known else 0
