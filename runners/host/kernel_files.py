"""The files in which a Linux kernel reports its state: ``/proc`` and ``/sys``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class System:
    """Kernel files below a root, which is ``/`` except in tests."""

    root: Path = Path("/")

    def text(self, path: str) -> str | None:
        """A file's text without surrounding space; ``None`` if it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """A file's integer; ``None`` if there is none."""
        return whole(self.text(path))

    def chosen(self, path: str) -> str | None:
        """The word in brackets of a file such as ``always [madvise] never``, or the file's only word."""
        words = (self.text(path) or "").split()
        inside = [word.strip("[]") for word in words if word.startswith("[")]
        return inside[0] if inside else words[0] if len(words) == 1 else None

    def fields(self, path: str) -> dict[str, int]:
        """Lines ``name number``, as in ``cpu.stat`` or ``/proc/meminfo``; empty if the file cannot be read."""
        values = {}
        for line in (self.text(path) or "").splitlines():
            parts = line.replace(":", " ").split()
            value = whole(parts[1]) if len(parts) > 1 else None
            if value is not None:
                values[parts[0]] = value
        return values

    def pressure(self, path: str) -> float | None:
        """Share of the last minute in which some task waited (pressure stall information)."""
        for line in (self.text(path) or "").splitlines():
            name, *pairs = line.split()
            values = dict(pair.partition("=")[::2] for pair in pairs)
            if name == "some":
                try:
                    return float(values["avg60"]) / 100
                except (KeyError, ValueError):
                    return None
        return None

    def glob(self, pattern: str) -> list[str]:
        """Matching paths in ascending order, in the form that this object's other methods accept."""
        return sorted("/" + str(path.relative_to(self.root)) for path in self.root.glob(pattern.lstrip("/")))


def whole(text: str | None) -> int | None:
    """The integer that the text holds; ``None`` if it holds none."""
    try:
        return int(text or "")
    except ValueError:
        return None
