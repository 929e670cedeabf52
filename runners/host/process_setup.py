"""What the settings ask of the process as a whole: its environment, before it starts, and its memory, once loaded.

Allocators and thread pools read their environment before ``main``, so that a plan that names any of it needs a
process that was started with it: :func:`process_environment` makes that environment. What a process that was started
otherwise lacks, :mod:`latfix.runners.host.start_environment` says.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latfix.runners.host.kernel_files import System
from latfix.runners.host.privileges import available_bytes, lockable_bytes, mib, status_bytes
from latfix.settings import RunnerSettings

#: glibc keeps what was freed: no mapping of a block's own, no trimming, room ahead at each growth, and one heap for
#: all threads. A thread's own heap holds no more than 64 MiB, so that blocks of tens of MiB would be mapped anew each
#: time, which with these settings was measured to be ten times slower than without.
KEEP_FREED: Mapping[str, str] = {
    "glibc.malloc.mmap_max": "0",
    "glibc.malloc.trim_threshold": "8589934592",
    "glibc.malloc.top_pad": "67108864",
    "glibc.malloc.arena_max": "1",
}
_HUGE = {"glibc.malloc.hugetlb": "1"}
#: PyTorch asks for huge pages for tensors of 2 MiB and more where this is set.
_TORCH_HUGE = {"THP_MEM_ALLOC_ENABLE": "1"}
#: The same for ``mallopt``, in a process that runs already.
_MALLOPT = ((-4, 0), (-1, -1), (-2, 64 << 20), (-8, 1))

_PR_SET_THP_DISABLE = 41
_MADV_HUGEPAGE = 14
_MADV_COLLAPSE = 25
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
_HUGE_PAGE = 2 << 20
_MIB = 1 << 20
#: The share of the available memory that prefaulting may take.
_MOST_OF_AVAILABLE = 0.8
_SYSTEM = System()
_AUTOGROUP = Path("/proc/self/autogroup")


def process_environment(settings: RunnerSettings, inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a runner's process: the inherited one, the settings' own, and what they imply.

    ``GLIBC_TUNABLES`` are merged tunable by tunable and ``LD_PRELOAD`` library by library, the settings' own first.
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
    """``GLIBC_TUNABLES`` as a mapping."""
    pairs = (part.partition("=") for part in text.split(":") if "=" in part)
    return {name: value for name, _, value in pairs}


def preloaded(text: str) -> list[str]:
    """The libraries of ``LD_PRELOAD``, which colons or blanks stand between."""
    return text.replace(":", " ").split()


def tunables_text(tunables: Mapping[str, str]) -> str:
    """A mapping as ``GLIBC_TUNABLES``."""
    return ":".join(f"{name}={value}" for name, value in tunables.items())


@dataclass(slots=True)
class ProcessSetup:
    """Applies the settings to the process that it runs in, and says what came of it.

    :ivar prefaulted_bytes: touched before the first request, and …
    :ivar kept_bytes: … still resident after it was freed again.
    :ivar locked: all memory is locked, now and in future.
    :ivar notes: what was refused or not possible, one line each.
    :ivar seconds: how long it took.
    """

    settings: RunnerSettings
    prefaulted_bytes: int = 0
    kept_bytes: int = 0
    locked: bool = False
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    _settled: bool = False

    def before_load(self) -> None:
        """What must stand before the model is loaded: no huge pages, or the process's own scheduling group."""
        if self.settings.huge_pages == "never":
            self._call("prctl", _PR_SET_THP_DISABLE, 1, 0, 0, 0, what="huge_pages = never")
        if self.settings.nice:
            self._nice_of_the_group()

    def before_requests(self) -> None:
        """What is done once, when all is loaded and warm: huge pages, prefaulting, locking."""
        if self._settled:
            return
        self._settled = True
        started = time.perf_counter()
        if self.settings.huge_pages == "always":
            self._advise_huge_pages()
        if self.settings.prefault_mb:
            self._prefault(self.settings.prefault_mb * _MIB)
        if self.settings.lock_memory:
            self._lock()
        self.seconds = time.perf_counter() - started

    def _nice_of_the_group(self) -> None:
        """With autogroups, nice counts within a session only, and the session's own value against all others.

        Set where this process leads its session: a runner does, a program in somebody's shell does not.
        """
        if not _AUTOGROUP.exists():
            return
        if os.getsid(0) != os.getpid():
            self.notes.append(
                f"nice = {self.settings.nice}: this process does not lead its session, whose autogroup stays as it is"
            )
            return
        try:
            _AUTOGROUP.write_text(str(self.settings.nice))
        except OSError as error:
            self.notes.append(f"nice = {self.settings.nice}: the session's autogroup was refused ({error.strerror})")

    def _prefault(self, size: int) -> None:
        """Touch ``size`` bytes of the heap and free them: what the allocator keeps needs no page fault later."""
        available = available_bytes()
        if available and size > _MOST_OF_AVAILABLE * available:
            self.notes.append(
                f"prefault_mb: {mib(size)} asked for and {mib(available)} available; nothing was touched"
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
            self.notes.append(f"prefault_mb: the allocator had no {mib(size)}")
            return
        ctypes.memset(block, 0, size)
        c.free(block)
        self.prefaulted_bytes = size
        self.kept_bytes = max(status_bytes("VmRSS") - before, 0)

    def _advise_huge_pages(self) -> None:
        """Ask for huge pages in what is mapped already, the model's weights among it, and make them at once."""
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
            # Only a hint: the kernel before 6.1 does not know it, and makes huge pages of it by and by.
            c.madvise(start, end - start, _MADV_COLLAPSE)
        if refused:
            self.notes.append(f"huge_pages = always: {refused} mapping(s) were refused")

    def _lock(self) -> None:
        """Lock what is resident, and what will be as it is touched."""
        limit, mapped = lockable_bytes(), status_bytes("VmSize")
        if limit is not None and mapped > limit // 2:
            # Beyond the limit every later allocation fails, the model's among them.
            self.notes.append(
                f"lock_memory: RLIMIT_MEMLOCK is {mib(limit)} and {mib(mapped)} are mapped; nothing was locked"
            )
            return
        flags = _MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT
        self.locked = self._call("mlockall", flags, what="lock_memory")

    def _call(self, function: str, *arguments: int, what: str) -> bool:
        """Call a function of the C library that returns 0 where it worked; elsewhere say why not."""
        if sys.platform != "linux":
            self.notes.append(f"{what}: this system has no {function}")
            return False
        c = ctypes.CDLL(None, use_errno=True)
        if getattr(c, function)(*arguments) == 0:
            return True
        self.notes.append(f"{what}: {function} was refused ({os.strerror(ctypes.get_errno())})")
        return False


def _anonymous_mappings() -> Iterator[tuple[int, int]]:
    """Private writable mappings without a file that a huge page fits into; not the main thread's stack."""
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
    """The nice value of the session's scheduling group; ``None`` where there are no such groups."""
    with contextlib.suppress(OSError, ValueError):
        return int(_AUTOGROUP.read_text().rpartition("nice")[2])
    return None


def huge_page_mode(system: System = _SYSTEM) -> str:
    """What the kernel does about huge pages by itself: ``always``, ``madvise``, ``never``; empty for none at all."""
    return system.chosen("/sys/kernel/mm/transparent_hugepage/enabled") or ""


def glibc_version() -> tuple[int, int] | None:
    """The version of glibc; ``None`` where the C library is another."""
    name, version = platform.libc_ver()
    if name != "glibc":
        return None
    major, _, minor = version.partition(".")
    return int(major), int(minor or 0)


def memory_facts() -> dict[str, Any]:
    """Huge and locked bytes of this process, as the kernel counts them; it walks the page tables for it."""
    huge = System().fields("/proc/self/smaps_rollup").get("AnonHugePages", 0) * 1024
    return {"locked_bytes": status_bytes("VmLck"), "huge_bytes": huge, "page_bytes": mmap.PAGESIZE}
