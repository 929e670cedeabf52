"""Settings of the whole process: its environment before it starts, and its memory after the model is loaded.

Allocators and thread pools read their environment before ``main``, so such settings need a process that was started
with it; :func:`process_environment` returns that environment. :mod:`latfix.runners.host.start_environment` reports
what is missing in a process that was started without it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latfix.formatting import counted, mebibytes
from latfix.runners.host.kernel_files import System
from latfix.runners.host.privileges import available_bytes, lockable_bytes, status_bytes
from latfix.settings import RunnerSettings

#: glibc keeps freed memory: no mmap per block, no trimming, room ahead at each growth, and one heap for all threads.
#: A thread's own heap holds at most 64 MiB, so blocks of tens of MiB would be mapped anew each time; with these
#: settings that measured ten times slower than without them.
KEEP_FREED: Mapping[str, str] = {
    "glibc.malloc.mmap_max": "0",
    "glibc.malloc.trim_threshold": "8589934592",
    "glibc.malloc.top_pad": "67108864",
    "glibc.malloc.arena_max": "1",
}
_HUGE = {"glibc.malloc.hugetlb": "1"}
#: With this set, PyTorch requests huge pages for tensors of 2 MiB and more.
_TORCH_HUGE = {"THP_MEM_ALLOC_ENABLE": "1"}
#: The equivalent of ``KEEP_FREED`` for ``mallopt``, in a running process.
_MALLOPT = ((-4, 0), (-1, -1), (-2, 64 << 20), (-8, 1))

_PR_SET_THP_DISABLE = 41
_MADV_HUGEPAGE = 14
_MADV_COLLAPSE = 25
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
_HUGE_PAGE = 2 << 20
_MIB = 1 << 20
#: The maximum share of available memory for prefaulting.
_MOST_OF_AVAILABLE = 0.8
_SYSTEM = System()
_AUTOGROUP = Path("/proc/self/autogroup")


def process_environment(settings: RunnerSettings, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a runner's process: the inherited one, the settings' own, and what they imply.

    ``GLIBC_TUNABLES`` are merged per tunable and ``LD_PRELOAD`` per library, the settings' own first.
    """
    inherited = os.environ if inherited is None else inherited
    tunables = read_tunables(inherited.get("GLIBC_TUNABLES", ""))
    implied: dict[str, str] = {}
    if settings.prefault_mb:
        tunables |= KEEP_FREED
    if settings.huge_pages == "always":
        tunables |= _HUGE
        implied |= _TORCH_HUGE
    tunables |= read_tunables(settings.env.get("GLIBC_TUNABLES", ""))
    environment = {**inherited, **implied, **settings.env}
    if tunables:
        environment["GLIBC_TUNABLES"] = tunables_text(tunables)
    preloads = [source.get("LD_PRELOAD", "") for source in (settings.env, inherited)]
    libraries = dict.fromkeys(name for text in preloads for name in preloaded(text))
    if libraries:
        environment["LD_PRELOAD"] = ":".join(libraries)
    return environment


def read_tunables(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(":") if "=" in part)
    return {name: value for name, _, value in pairs}


def preloaded(text: str) -> list[str]:
    """The libraries of ``LD_PRELOAD``, separated by colons or blanks."""
    return text.replace(":", " ").split()


def tunables_text(tunables: Mapping[str, str]) -> str:
    return ":".join(f"{name}={value}" for name, value in tunables.items())


@dataclass(slots=True)
class ProcessSetup:
    """Applies process-wide settings to the current process and records the effect.

    :ivar prefaulted_bytes: touched before the first request.
    :ivar kept_bytes: of those, still resident after they were freed.
    :ivar notes: what was refused or not possible, one line each.
    """

    settings: RunnerSettings
    prefaulted_bytes: int = 0
    kept_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    _settled: bool = False

    def before_load(self) -> None:
        """Apply what must be set before the model is loaded: huge pages off, the nice value of the autogroup."""
        if self.settings.huge_pages == "never":
            self._call("prctl", _PR_SET_THP_DISABLE, 1, 0, 0, 0, what="huge_pages = never")
        if self.settings.nice:
            self._nice_of_the_group()

    def before_requests(self) -> None:
        """Apply what is done once, after loading and warm-up: huge pages, prefaulting, locking."""
        if self._settled:
            return
        self._settled = True
        if self.settings.huge_pages == "always":
            self._advise_huge_pages()
        if self.settings.prefault_mb:
            self._prefault(self.settings.prefault_mb * _MIB)
        if self.settings.lock_memory:
            self._lock()

    def _nice_of_the_group(self) -> None:
        """Set the session's autogroup: with autogroups, a thread's nice value counts only within its session.

        Only a session leader sets it. A runner is one; a program started from a shell is not.
        """
        if not _AUTOGROUP.exists():
            return
        if os.getsid(0) != os.getpid():
            self.notes.append(
                f"nice = {self.settings.nice}: this process does not lead its session, its autogroup stays unchanged"
            )
            return
        try:
            _AUTOGROUP.write_text(str(self.settings.nice))
        except OSError as error:
            self.notes.append(f"nice = {self.settings.nice}: the session's autogroup was refused ({error.strerror})")

    def _prefault(self, size: int) -> None:
        """Touch ``size`` bytes of the heap and free them, so that later allocations cause no page faults."""
        available = available_bytes()
        if available and size > _MOST_OF_AVAILABLE * available:
            self.notes.append(
                f"prefault_mb: {mebibytes(size)} requested, {mebibytes(available)} available; nothing was touched"
            )
            return
        c = ctypes.CDLL(None, use_errno=True)
        if platform.libc_ver()[0] == "glibc" and hasattr(c, "mallopt"):
            for parameter, value in _MALLOPT:
                c.mallopt(parameter, value)
        c.malloc.restype, c.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
        c.free.restype, c.free.argtypes = None, (ctypes.c_void_p,)
        before = status_bytes("VmRSS")
        block = c.malloc(size)
        if not block:
            self.notes.append(f"prefault_mb: the allocator could not provide {mebibytes(size)}")
            return
        ctypes.memset(block, 0, size)
        c.free(block)
        self.prefaulted_bytes = size
        self.kept_bytes = max(status_bytes("VmRSS") - before, 0)

    def _advise_huge_pages(self) -> None:
        """Request huge pages for what is already mapped, including the model's weights, and collapse them now."""
        if sys.platform != "linux":
            self.notes.append("huge_pages = always: this system has no transparent huge pages")
            return
        c = ctypes.CDLL(None, use_errno=True)
        c.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        refused = 0
        for start, end in _anonymous_mappings():
            if c.madvise(start, end - start, _MADV_HUGEPAGE):
                refused += 1
                continue
            # Only a hint: kernels before 6.1 do not know it and collapse pages in the background.
            c.madvise(start, end - start, _MADV_COLLAPSE)
        if refused:
            self.notes.append(f"huge_pages = always: the kernel refused {counted(refused, 'mapping')}")

    def _lock(self) -> None:
        """Lock resident memory now and later memory as it is touched."""
        limit, mapped = lockable_bytes(), status_bytes("VmSize")
        if limit is not None and mapped > limit // 2:
            # Beyond the limit every later allocation fails, including the model's.
            self.notes.append(
                f"lock_memory: RLIMIT_MEMLOCK is {mebibytes(limit)} and {mebibytes(mapped)} are mapped; "
                "nothing was locked"
            )
            return
        self._call("mlockall", _MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT, what="lock_memory")

    def _call(self, function: str, *arguments: int, what: str) -> None:
        """Call a C library function that returns 0 on success; note the reason if it fails."""
        if sys.platform != "linux":
            self.notes.append(f"{what}: this system has no {function}")
        elif getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments):
            self.notes.append(f"{what}: {function} was refused ({os.strerror(ctypes.get_errno())})")


def _anonymous_mappings() -> Iterator[tuple[int, int]]:
    """Private writable anonymous mappings that can hold a huge page; not the main thread's stack."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, rights, _, _, inode, *name = line.split(None, 5)
        if rights != "rw-p" or inode != "0" or (name and not name[0].startswith(("[heap]", "[anon:"))):
            continue
        first, last = (int(part, 16) for part in where.split("-"))
        start = -(-first // _HUGE_PAGE) * _HUGE_PAGE
        end = last // _HUGE_PAGE * _HUGE_PAGE
        if end > start:
            yield start, end


def autogroup_nice() -> int | None:
    """The nice value of the session's autogroup; ``None`` if the kernel has no autogroups."""
    with contextlib.suppress(OSError, ValueError):
        return int(_AUTOGROUP.read_text().rpartition("nice")[2])
    return None


def huge_page_mode(system: System = _SYSTEM) -> str:
    """The kernel's own huge page policy: ``always``, ``madvise`` or ``never``; empty if it has no huge pages."""
    return system.chosen("/sys/kernel/mm/transparent_hugepage/enabled") or ""


def glibc_version() -> tuple[int, int] | None:
    """The version of glibc; ``None`` for another C library."""
    name, version = platform.libc_ver()
    if name != "glibc":
        return None
    major, _, minor = version.partition(".")
    return int(major), int(minor or 0)


def memory_facts() -> dict[str, Any]:
    """Huge and locked bytes of this process. Reading them walks the page tables."""
    huge = System().fields("/proc/self/smaps_rollup").get("AnonHugePages", 0) * 1024
    return {"locked_bytes": status_bytes("VmLck"), "huge_bytes": huge, "page_bytes": mmap.PAGESIZE}
