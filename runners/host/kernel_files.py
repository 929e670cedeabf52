"""The files in which a Linux kernel tells how it is set: ``/proc``, ``/sys`` and this process's control groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Where version 1 of control groups says "no limit": the largest multiple of a page below 2^63.
_NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class System:
    """Kernel files below a root, which is ``/`` unless a test brings files of its own."""

    root: Path = Path("/")

    def text(self, path: str) -> str | None:
        """A file's text without surrounding space; ``None`` where it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """A file's whole number; ``None`` where there is none."""
        return whole(self.text(path))

    def chosen(self, path: str) -> str | None:
        """The word in brackets of a file such as ``always [madvise] never``; its only word where there is one."""
        words = (self.text(path) or "").split()
        inside = [word.strip("[]") for word in words if word.startswith("[")]
        return inside[0] if inside else words[0] if len(words) == 1 else None

    def fields(self, path: str) -> dict[str, int]:
        """Lines ``name number``, as in ``cpu.stat`` or ``/proc/meminfo``; empty where it cannot be read."""
        found = {}
        for line in (self.text(path) or "").splitlines():
            parts = line.replace(":", " ").split()
            value = whole(parts[1]) if len(parts) > 1 else None
            if value is not None:
                found[parts[0]] = value
        return found

    def pressure(self, path: str, kind: str) -> float | None:
        """Share of the last minute in which ``some`` or ``full`` tasks waited (pressure stall information)."""
        for line in (self.text(path) or "").splitlines():
            name, *pairs = line.split()
            values = dict(pair.partition("=")[::2] for pair in pairs)
            if name == kind:
                try:
                    return float(values["avg60"]) / 100
                except (KeyError, ValueError):
                    return None
        return None

    def glob(self, pattern: str) -> list[str]:
        """Paths that match, ascending, as this object's other methods take them."""
        return sorted("/" + str(path.relative_to(self.root)) for path in self.root.glob(pattern.lstrip("/")))

    def group_files(self, controller: str, name: str, name_v1: str) -> Iterator[str]:
        """Paths of one file in this process's control group and in those above it, of version 2 and 1.

        Inside a container the group's own path may not be there, only the mount's top.

        :param name: the file in version 2; ``name_v1`` in version 1.
        """
        for line in (self.text("/proc/self/cgroup") or "").splitlines():
            number, _, rest = line.partition(":")
            controllers, _, group = rest.partition(":")
            if number == "0" and not controllers:
                yield from (f"/sys/fs/cgroup{above}/{name}" for above in _upwards(group))
            elif controller in controllers.split(","):
                for mount in dict.fromkeys((controller, controllers)):
                    yield from (f"/sys/fs/cgroup/{mount}{above}/{name_v1}" for above in _upwards(group))

    def cpu_quota(self) -> float | None:
        """Cores that the tightest control group lets this process use; ``None`` for no limit."""
        found: list[float] = []
        for path in self.group_files("cpu", "cpu.max", "cpu.cfs_quota_us"):
            words = (self.text(path) or "").split()
            quota = whole(words[0]) if words else None
            period = whole(words[1]) if len(words) > 1 else self.number(path.replace("quota", "period"))
            if quota is not None and quota > 0 and period:
                found.append(quota / period)
        return min(found, default=None)

    def memory_limit(self) -> int | None:
        """Bytes that the tightest control group allows; ``None`` for no limit."""
        found = [self.number(path) for path in self.group_files("memory", "memory.max", "memory.limit_in_bytes")]
        return min((limit for limit in found if limit is not None and limit < _NO_LIMIT), default=None)

    def memory_used(self) -> int | None:
        """Bytes that this process's own control group uses; ``None`` where it does not tell."""
        found = (self.number(path) for path in self.group_files("memory", "memory.current", "memory.usage_in_bytes"))
        return next((used for used in found if used is not None), None)


def whole(text: str | None) -> int | None:
    """A text's whole number; ``None`` where it is none."""
    try:
        return int(text or "")
    except ValueError:
        return None


def _upwards(group: str) -> list[str]:
    """``/a/b`` gives ``/a/b``, ``/a`` and the top, which is empty."""
    parts = [part for part in group.split("/") if part]
    return ["".join(f"/{part}" for part in parts[:k]) for k in range(len(parts), -1, -1)]
