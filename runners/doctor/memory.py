"""Memory: how much there is, its limits, and what the kernel does to it in the background."""

from __future__ import annotations

from collections.abc import Iterator

from latfix.formatting import mebibytes
from latfix.profilers.probes.control_groups import ControlGroups
from latfix.results.doctor_finding import Finding
from latfix.runners.doctor.findings import costs, missing, note, ok, unknown
from latfix.runners.host.kernel_files import System
from latfix.runners.host.malloc_libraries import ALLOCATORS, Allocator, loaded_allocator, preload_name
from latfix.runners.host.process_setup import glibc_version

_THP = "/sys/kernel/mm/transparent_hugepage"
#: With less than this share free, a growing service is about to lose pages or to be killed.
_SCARCE = 0.1
_PRESSURE_SHARE = 0.01


def memory(system: System) -> Iterator[Finding]:
    yield _room(system)
    yield _pressure(system)
    yield _swap(system)
    yield _huge_pages(system)
    yield from _reclaim(system)
    yield _allocator()
    yield from (_preload(allocator) for allocator in ALLOCATORS)


def _room(system: System) -> Finding:
    info = system.fields("/proc/meminfo")
    total, available = info.get("MemTotal", 0) * 1024, info.get("MemAvailable", 0) * 1024
    if not total:
        return unknown("memory.room", "this system has no /proc/meminfo")
    found = f"{mebibytes(available)} of {mebibytes(total)} available"
    groups = ControlGroups(system.root)
    limit, used = groups.memory_limit(), groups.memory_used() or 0
    left, whole = available, total
    if limit is not None and limit < total:
        found += f"; the control group allows {mebibytes(limit)}, {mebibytes(used)} are used"
        left, whole = min(available, max(limit - used, 0)), limit
    if left >= _SCARCE * whole:
        return ok("memory.room", found)
    return costs(
        "memory.room",
        found,
        "allocations wait while the kernel reclaims pages, and the service may be killed",
        "stop other programs, or raise the limit: docker update --memory, resources.limits.memory",
        causes=("memory.page_faults",),
    )


def _pressure(system: System) -> Finding:
    waiting = system.pressure("/proc/pressure/memory")
    if waiting is None:
        return unknown(
            "memory.pressure", "the kernel does not report memory pressure (the boot option psi=1 turns it on)"
        )
    found = f"in {100 * waiting:.1f} % of the last minute, a thread waited for memory"
    if waiting < _PRESSURE_SHARE:
        return ok("memory.pressure", found)
    return costs(
        "memory.pressure",
        found,
        "the kernel reclaims pages and reads them back while requests wait",
        "give the service more memory, or run less next to it",
        causes=("memory.page_faults",),
    )


def _swap(system: System) -> Finding:
    lines = (system.text("/proc/swaps") or "").splitlines()[1:]
    if not lines:
        return ok("memory.swap", "no swap")
    used = sum(int(words[3]) for line in lines if len(words := line.split()) > 3 and words[3].isdigit()) * 1024
    swappiness = system.number("/proc/sys/vm/swappiness")
    return costs(
        "memory.swap",
        f"swap is on ({mebibytes(used)} in use, swappiness {'unknown' if swappiness is None else swappiness})",
        "a page of the model that was unused for a while is read back from disk in the middle of a request",
        "sudo swapoff -a, or memory.swap.max=0 for the service's control group (MemorySwapMax=0)",
        causes=("memory.page_faults", "cold.start"),
    )


def _huge_pages(system: System) -> Finding:
    mode, defrag = system.chosen(f"{_THP}/enabled"), system.chosen(f"{_THP}/defrag")
    if mode is None:
        return unknown("memory.huge_pages", "the kernel has no transparent huge pages")
    found = f"transparent huge pages: {mode}, defrag {defrag or 'unknown'}"
    if mode == "never":
        return costs(
            "memory.huge_pages",
            found,
            "large buffers take 512 times as many page faults; the fix memory.huge_pages cannot help",
            f"echo madvise | sudo tee {_THP}/enabled",
            causes=("memory.page_faults",),
        )
    if mode == "always" and defrag == "always":
        return costs(
            "memory.huge_pages",
            found,
            "a page fault may first compact memory, which takes milliseconds",
            f"echo defer+madvise | sudo tee {_THP}/defrag",
            causes=("memory.page_faults",),
        )
    return ok("memory.huge_pages", found)


def _reclaim(system: System) -> Iterator[Finding]:
    if system.number("/proc/sys/vm/zone_reclaim_mode"):
        yield costs(
            "memory.zone_reclaim",
            "zone_reclaim_mode is on: a full memory node drops cached pages before another node's memory is used",
            "an allocation stalls while pages are reclaimed, although memory is free elsewhere",
            "sudo sysctl vm.zone_reclaim_mode=0",
            causes=("memory.page_faults",),
        )


def _allocator() -> Finding:
    name = loaded_allocator()
    if name != "glibc":
        return note("memory.allocator", f"malloc is {name}'s")
    version = ".".join(map(str, glibc_version() or ()))
    return note(
        "memory.allocator",
        f"malloc is glibc's{version and f' {version}'}: by default it returns large freed blocks to the kernel at "
        "once, and the next request faults them in again (the fix memory.allocator keeps them)",
    )


def _preload(allocator: Allocator) -> Finding:
    where = preload_name(allocator)
    if where:
        return ok(f"memory.{allocator.name}", f"{allocator.name} is installed ({where})")
    package = {"jemalloc": "libjemalloc2", "tcmalloc": "libtcmalloc-minimal4"}[allocator.name]
    return missing(
        f"memory.{allocator.name}",
        f"{allocator.name} is not installed",
        f"latfix optimize cannot try memory.{allocator.name}",
        f"sudo apt-get install {package}",
    )
