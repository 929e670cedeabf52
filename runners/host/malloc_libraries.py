"""Allocators other than the C library's: where they are installed, and which one this process uses."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocator:
    """An allocator that can be preloaded.

    :param sonames: names of its library, the preferred one first.
    :param environment: variables that make it keep freed memory; without them it returns large blocks at once.
    """

    name: str
    sonames: tuple[str, ...]
    environment: Mapping[str, str]


JEMALLOC = Allocator(
    name="jemalloc",
    sonames=("libjemalloc.so.2", "libjemalloc.so"),
    # By default, blocks above 8 MiB have an arena of their own, from which freed blocks are unmapped at once.
    environment={"MALLOC_CONF": "oversize_threshold:0,dirty_decay_ms:-1,muzzy_decay_ms:-1"},
)
TCMALLOC = Allocator(
    name="tcmalloc",
    sonames=("libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libtcmalloc_minimal.so", "libtcmalloc.so"),
    environment={
        "TCMALLOC_RELEASE_RATE": "0",
        "TCMALLOC_AGGRESSIVE_DECOMMIT": "false",
        "TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES": "268435456",
        # Otherwise every large block writes a line to standard error.
        "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD": "1099511627776",
    },
)
ALLOCATORS = (JEMALLOC, TCMALLOC)

#: Where package managers put libraries that the loader does not search.
_FOLDERS = (
    "/usr/lib/{machine}-linux-gnu",
    "/usr/local/lib",
    "/usr/lib64",
    "/usr/lib",
    "/lib/{machine}-linux-gnu",
    "/opt/homebrew/lib",
)
_LOADER_CACHE = Path("/etc/ld.so.cache")


def preload_name(allocator: Allocator, folders: Sequence[Path] | None = None, cache: Path = _LOADER_CACHE) -> str:
    """What ``LD_PRELOAD`` must name; empty if the library is not installed.

    This is the bare file name if the loader finds it, which works on every machine with the library; else the path.
    """
    if not sys.platform.startswith("linux"):
        return ""
    for soname in allocator.sonames:
        if _loader_knows(soname, cache):
            return soname
    for folder in _library_folders() if folders is None else folders:
        for soname in allocator.sonames:
            if _is_library(folder / soname):
                return str(folder / soname)
    return ""


def _library_folders() -> list[Path]:
    machine = platform.machine()
    searched = [part for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    # conda puts shared libraries next to Python.
    own = [str(Path(sys.prefix) / "lib"), str(Path(sys.base_prefix) / "lib")]
    return [Path(name.format(machine=machine)) for name in (*searched, *own, *_FOLDERS)]


def _loader_knows(soname: str, cache: Path) -> bool:
    """True if the loader's cache names the library and the named file exists."""
    try:
        data = cache.read_bytes()
    except OSError:
        return False
    ending = b"/" + soname.encode()
    return any(path.endswith(ending) and _is_library(Path(os.fsdecode(path))) for path in data.split(b"\0"))


def _is_library(path: Path) -> bool:
    """True for an ELF file of this machine's word size."""
    try:
        with path.open("rb") as file:
            head = file.read(5)
    except OSError:
        return False
    return head == b"\x7fELF" + (b"\x02" if sys.maxsize > 2**32 else b"\x01")


def loaded_allocator(maps: Iterable[str] | None = None, malloc: int | None = None) -> str:
    """The allocator whose ``malloc`` this process calls: its name, or the C library's.

    A library that is mapped only because some package uses it does not count.

    :param maps: lines of ``/proc/self/maps``, this process's own by default.
    :param malloc: the function's address; by default the process-wide one.
    """
    c_library = platform.libc_ver()[0] or platform.system()
    if maps is None:
        try:
            maps = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
        except OSError:
            return c_library
    if malloc is None:
        malloc = ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value or 0
    for line in maps:
        where, _, rest = line.partition(" ")
        first, _, last = where.partition("-")
        if int(first, 16) <= malloc < int(last, 16):
            file = rest.rpartition("/")[2]
            return next((one.name for one in ALLOCATORS if file.startswith(f"lib{one.name}")), c_library)
    return c_library
