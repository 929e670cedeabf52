"""Which cores this process may use, and which of them share a core, a last-level cache or a memory node."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Cores = tuple[int, ...]
K = TypeVar("K")
T = TypeVar("T", int, tuple[int, ...])

_SYSFS = Path("/sys/devices/system")


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Cores that share a memory node and a last-level cache.

    :param node: number of the NUMA node; -1 if the system does not report it.
    """

    node: int
    cores: Cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The cores that this process may use; empty if the system has no affinity to read or set.

    :param cores: logical cores, ascending.
    :param physical: the same cores, grouped by physical core (SMT siblings together).
    :param domains: the same cores, grouped by memory node and last-level cache.
    """

    cores: Cores
    physical: tuple[Cores, ...]
    domains: tuple[Domain, ...]

    def physical_of(self, domain: Domain) -> tuple[Cores, ...]:
        inside = set(domain.cores)
        return tuple(group for group in self.physical if group[0] in inside)


def parse_cores(text: str) -> Cores:
    """The cores of a kernel list such as ``0-3,8``; a ValueError for any other text."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cores.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(cores))


def cores_text(cores: Iterable[int]) -> str:
    """Cores as the kernel writes them: ``0-3,8``."""
    parts: list[list[int]] = []
    for core in sorted(set(cores)):
        if parts and core == parts[-1][-1] + 1:
            parts[-1].append(core)
        else:
            parts.append([core])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def allowed_cores() -> Cores:
    """Cores that this process may run on; empty if the system does not report them (macOS)."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def read_topology(allowed: Iterable[int] | None = None, sysfs: Path = _SYSFS) -> Topology:
    """The topology of the ``allowed`` cores, by default those of this process.

    What ``/sys`` does not report counts as not shared, except the memory node: all cores are then on one node.
    """
    cores = tuple(sorted(allowed_cores() if allowed is None else set(allowed)))
    siblings = {core: _core_list(sysfs / f"cpu/cpu{core}/topology/thread_siblings_list", core) for core in cores}
    nodes = _nodes(sysfs)
    caches = {core: _of_last_level(core, sysfs, "shared_cpu_list", parse_cores, ()) for core in cores}
    places = {core: (nodes.get(core, -1), caches[core]) for core in cores}
    return Topology(
        cores=cores,
        physical=tuple(_grouped(siblings).values()),
        domains=tuple(Domain(node=node, cores=group) for (node, _), group in _grouped(places).items()),
    )


def _grouped(keys: Mapping[int, K]) -> dict[K, Cores]:
    """Cores by their key, in the order of the mapping."""
    groups: dict[K, Cores] = {}
    for core, key in keys.items():
        groups[key] = (*groups.get(key, ()), core)
    return groups


def _core_list(path: Path, otherwise: int) -> Cores:
    try:
        return parse_cores(path.read_text()) or (otherwise,)
    except (OSError, ValueError):
        return (otherwise,)


def _nodes(sysfs: Path) -> dict[int, int]:
    """The memory node of each core."""
    nodes: dict[int, int] = {}
    for folder in sorted((sysfs / "node").glob("node[0-9]*")):
        try:
            nodes |= dict.fromkeys(parse_cores((folder / "cpulist").read_text()), int(folder.name[4:]))
        except (OSError, ValueError):
            continue
    return nodes


def last_level_cache_bytes(core: int = 0, sysfs: Path = _SYSFS) -> int:
    """Size of the core's highest-level cache; 0 if the system does not report it."""
    return _of_last_level(core, sysfs, "size", _size_bytes, 0)


def _size_bytes(text: str) -> int:
    units = {"K": 10, "M": 20, "G": 30}
    return int(text[:-1]) << units[text[-1]] if text[-1:] in units else int(text)


def _of_last_level(core: int, sysfs: Path, file: str, parse: Callable[[str], T], otherwise: T) -> T:
    best = (0, otherwise)
    for folder in (sysfs / f"cpu/cpu{core}/cache").glob("index[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            level, value = int((folder / "level").read_text()), parse((folder / file).read_text().strip())
            best = max(best, (level, value))
    return best[1]
