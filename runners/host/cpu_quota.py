"""How many cores this process may use at once, and the facts that identify a machine."""

from __future__ import annotations

import os
import platform
from typing import Any

from latfix.profilers.probes.control_groups import ControlGroups
from latfix.runners.host.kernel_files import System


def usable_cores(system: System | None = None) -> int:
    """Cores that this process may use at once, limited by its affinity and its control group's CPU quota.

    A container with a quota of two cores sees all cores of the machine, and is throttled if it uses them.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = ControlGroups((system or System()).root).cpu_quota()
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def cpu_model() -> str:
    """The processor's name as reported by the kernel or the platform."""
    lines = (System().text("/proc/cpuinfo") or "").splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return name or platform.processor() or platform.machine()


def machine_facts() -> dict[str, Any]:
    """Facts about the machine, for a run's record and to decide if two runs can be compared."""
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }
