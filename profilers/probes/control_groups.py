"""A process's control groups: limits on cores and memory, and the time for which a quota stopped it.

Both versions of the interface are supported (``cgroups(7)``). Inside a container a group's own path may be missing,
so each value is read from the process's group and all groups above it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from latfix.profilers.probes.kept_files import KeptOpen

#: Version 1 reports "no limit" as a number above this.
_NO_LIMIT = 1 << 62
_CPU_STAT = "cpu.stat"
#: Prefix of the series of another group's throttled time.
NEIGHBOR_SERIES = "neighbor.throttled_ns."
_MOST_NEIGHBORS = 8


@dataclass(frozen=True, slots=True)
class ControlGroups:
    """The groups of a process.

    :param root: of the file system; tests use their own.
    :param process: its number; ``self`` for this one.
    """

    root: Path = Path("/")
    process: str = "self"

    def folders(self, controller: str) -> Iterator[tuple[Path, bool]]:
        """Folders of a controller, the process's own first, then those above; True for version 2.

        Version 1 comes first: if both are mounted, it has the controller.
        """
        lines = (self._text(self.root / "proc" / self.process / "cgroup") or "").splitlines()
        top = self.root / "sys/fs/cgroup"
        for line in sorted(lines, key=lambda line: line.startswith("0::")):
            number, _, rest = line.partition(":")
            controllers, _, group = rest.partition(":")
            if number == "0" and not controllers:
                yield from ((folder, True) for folder in _upwards(top, group))
            elif controller in controllers.split(","):
                for mount in dict.fromkeys((controller, controllers)):
                    yield from ((folder, False) for folder in _upwards(top / mount, group))

    def cpu_quota(self) -> float | None:
        """Cores that the tightest limit allows; ``None`` for no limit."""
        result: list[float] = []
        for folder, unified in self.folders("cpu"):
            if unified:
                words = (self._text(folder / "cpu.max") or "").split()
                quota, period = (_whole(word) for word in [*words, "", ""][:2])
            else:
                quota, period = self._number(folder / "cpu.cfs_quota_us"), self._number(folder / "cpu.cfs_period_us")
            if quota is not None and quota > 0 and period:
                result.append(quota / period)
        return min(result, default=None)

    def cpu_counters(self) -> dict[str, int]:
        """Counters of the nearest ``cpu.stat`` that counts periods of a quota; empty if there is none."""
        result = (counters(self._text(folder / _CPU_STAT) or "") for folder, _ in self.folders("cpu"))
        return next((stat for stat in result if stat.get("nr_periods")), {})

    def memory_limit(self) -> int | None:
        """Bytes that the tightest limit allows; ``None`` for no limit."""
        result = (self._memory(folder, unified)[0] for folder, unified in self.folders("memory"))
        return min((limit for limit in result if limit is not None), default=None)

    def memory_used(self) -> int | None:
        """Bytes that this process's own group uses; ``None`` if unknown."""
        result = (self._memory(folder, unified)[1] for folder, unified in self.folders("memory"))
        return next((used for used in result if used is not None), None)

    def memory_left(self) -> int | None:
        """Bytes that the tightest limit leaves, counting cached files as free; ``None`` without a limit."""
        left = []
        for folder, unified in self.folders("memory"):
            limit, used = self._memory(folder, unified)
            stat = self._text(folder / "memory.stat")
            if limit is not None and used is not None and stat is not None:
                cached = counters(stat).get("inactive_file" if unified else "total_inactive_file", 0)
                left.append(max(limit - max(used - cached, 0), 0))
        return min(left, default=None)

    def _memory(self, folder: Path, unified: bool) -> tuple[int | None, int | None]:
        """Limit and use of a group, in bytes."""
        names = ("memory.max", "memory.current") if unified else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, used = (self._number(folder / name) for name in names)
        return limit if limit is not None and 0 <= limit < _NO_LIMIT else None, used

    def _number(self, path: Path) -> int | None:
        return _whole(self._text(path) or "")

    @staticmethod
    def _text(path: Path) -> str | None:
        try:
            return path.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None


class CgroupThrottle:
    """Time for which a quota stopped this process's threads; keeps the file open.

    It is counted in the group with the quota only, not in those below: the nearest group with a quota is read.
    """

    def __init__(self, groups: ControlGroups | None = None) -> None:
        self._file: KeptOpen | None = None
        for folder, _ in (groups or ControlGroups()).folders("cpu"):
            with contextlib.suppress(OSError):
                file = KeptOpen(folder / _CPU_STAT)
                stat = counters(file.read().decode())
                has_quota = bool(stat.get("nr_periods"))
                if has_quota or (self._file is None and stat.keys() & {"throttled_usec", "throttled_time"}):
                    self._file = file
                if has_quota:
                    break
        self.available = self._file is not None

    def throttled_ns(self) -> int:
        """Throttled time so far, in nanoseconds; 0 if it cannot be read."""
        return throttled_ns(self.read())

    def read(self) -> dict[str, int]:
        """All counters of ``cpu.stat``; empty if it cannot be read."""
        try:
            return {} if self._file is None else counters(self._file.read().decode())
        except OSError:
            return {}


def counters(text: str) -> dict[str, int]:
    """Lines ``name number`` of a ``.stat`` file."""
    pairs = (line.partition(" ") for line in text.splitlines())
    return {name: int(value) for name, _, value in pairs if value.strip().isdigit()}


def throttled_ns(stat: Mapping[str, int]) -> int:
    """Throttled nanoseconds from the counters of ``cpu.stat``; version 2 counts microseconds."""
    return stat["throttled_usec"] * 1000 if "throttled_usec" in stat else stat.get("throttled_time", 0)


def cgroup_reader() -> Callable[[], dict[str, float]] | None:
    """A reader of this process's throttling for the sampler; ``None`` if its group does not report it."""
    throttle = CgroupThrottle()
    if not throttle.available:
        return None

    def read() -> dict[str, float]:
        stat = throttle.read()
        return {
            "cgroup.throttled_ns": throttled_ns(stat),
            "cgroup.nr_throttled": stat.get("nr_throttled", 0),
            "cgroup.cpu_ns": stat.get("usage_usec", 0) * 1000,
        }

    return read


def neighbor_reader(groups: ControlGroups | None = None) -> Callable[[], dict[str, float]] | None:
    """A reader for the sampler of the throttling of sibling groups with a quota; ``None`` if there are none.

    Services that a request waits for may run there. Inside a container, siblings are mostly hidden.
    """
    files: dict[str, KeptOpen] = {}
    for folder, _ in (groups or ControlGroups()).folders("cpu"):
        for path in sorted(folder.parent.glob(f"*/{_CPU_STAT}")):
            with contextlib.suppress(OSError):
                if path.parent != folder and len(files) < _MOST_NEIGHBORS:
                    file = KeptOpen(path)
                    if counters(file.read().decode()).get("nr_periods"):
                        files[path.parent.name] = file
        break
    if not files:
        return None

    def read() -> dict[str, float]:
        reading = {}
        for name, file in files.items():
            with contextlib.suppress(OSError):  # the group ended
                reading[f"{NEIGHBOR_SERIES}{name}"] = float(throttled_ns(counters(file.read().decode())))
        return reading

    return read


def _whole(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _upwards(top: Path, group: str) -> list[Path]:
    """``/a/b`` gives the folders ``a/b``, ``a`` and the top."""
    parts = [part for part in group.split("/") if part]
    return [top.joinpath(*parts[:k]) for k in range(len(parts), -1, -1)]
