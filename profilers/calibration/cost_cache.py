"""Unit costs of this machine, kept in a cache for as long as the machine is the same and they still hold."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latfix.files.atomic_write import write_json
from latfix.formatting import finite
from latfix.profilers.calibration.microbenchmarks import MEASURES, UnitCost, flat, measure, minor_fault

#: Raised with every change of what is measured or how.
CALIBRATION_VERSION = 2
_OLDEST_S = 30 * 86_400.0
#: A quick measurement that differs from the cache by more than this factor shows another machine.
_FACTOR = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCosts:
    """What events cost here.

    :param costs: by the names of :data:`latfix.profilers.calibration.microbenchmarks.MEASURES`.
    :param cached: they are from an earlier run on this machine.
    """

    costs: Mapping[str, UnitCost]
    cached: bool

    def flat(self) -> dict[str, float]:
        """As ``calibration`` of ``run.json``: ``<name>_ns``, ``<name>_low_ns``, ``<name>_high_ns``.

        Also ``page_bytes`` and ``cached`` (0 or 1).
        """
        return flat(self.costs) | {"page_bytes": mmap.PAGESIZE, "cached": int(self.cached)}


def unit_costs(folder: Path | None = None) -> UnitCosts:
    """This machine's unit costs: from the cache where it holds them and they still hold, else measured anew.

    A cache that cannot be read or written costs a measurement, never the run.

    :param folder: where the cache lies; by default ``$XDG_CACHE_HOME/latfix`` or ``~/.cache/latfix``.
    """
    machine = fingerprint()
    folder = cache_folder() if folder is None else folder
    file = None if folder is None else folder / f"calibration-{_digest(machine)}.json"
    known = None if file is None else _read(file, machine)
    if known is not None and _holds(known):
        return UnitCosts(costs=known, cached=True)
    costs = measure()
    if file is not None:
        _write(file, machine, costs)
    return UnitCosts(costs=costs, cached=False)


def fingerprint() -> dict[str, Any]:
    """What the unit costs depend on."""
    return {
        "version": CALIBRATION_VERSION,
        "cpu": cpu_model(),
        "cores": os.cpu_count() or 1,
        "kernel": f"{platform.system()} {platform.release()}",
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "page": mmap.PAGESIZE,
        "huge_pages": _line("/sys/kernel/mm/transparent_hugepage/enabled"),
        "virtual": [_cpu_flag("hypervisor"), _line("/sys/class/dmi/id/product_name"), _line("/sys/hypervisor/type")],
    }


def cpu_model() -> str:
    """The processor's name, as the kernel or the platform gives it."""
    return _cpu_line("model name") or platform.processor() or platform.machine()


def cache_folder() -> Path | None:
    """Where latfix keeps what it may lose; ``None`` where there is no home."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # noqa: PTH117
        return Path(base) / "latfix"
    try:
        return Path.home() / ".cache" / "latfix"
    except RuntimeError:
        return None


def _cpu_line(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def _cpu_flag(flag: str) -> bool:
    return flag in _cpu_line("flags").split()


def _line(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _digest(machine: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(machine, sort_keys=True).encode()).hexdigest()[:16]


def _read(file: Path, machine: Mapping[str, Any]) -> dict[str, UnitCost] | None:
    """The cached costs; ``None`` where there are none, or not of this machine, or too old, or damaged."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.get("machine") != machine:
        return None
    age = finite(document.get("made_s"))
    costs = document.get("costs")
    if age is None or not 0 <= time.time() - age <= _OLDEST_S or not isinstance(costs, dict):
        return None
    known = {name: _cost(costs.get(name)) for name in MEASURES}
    complete = {name: cost for name, cost in known.items() if cost is not None}
    return complete if len(complete) == len(MEASURES) else None


def _cost(entry: object) -> UnitCost | None:
    if not isinstance(entry, list) or len(entry) != 3:
        return None
    numbers = [number for number in map(finite, entry) if number is not None and number >= 0]
    if len(numbers) != 3:
        return None
    return UnitCost(value=numbers[0], low=numbers[1], high=numbers[2])


def _holds(known: Mapping[str, UnitCost]) -> bool:
    """Whether one short measurement agrees with the cache."""
    now, then = minor_fault(pages=256, rounds=3).value, known["minor_fault"].value
    return then > 0 and now > 0 and 1 / _FACTOR <= now / then <= _FACTOR


def _write(file: Path, machine: Mapping[str, Any], costs: Mapping[str, UnitCost]) -> None:
    entries = {name: [cost.value, cost.low, cost.high] for name, cost in costs.items()}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"machine": machine, "made_s": time.time(), "costs": entries})
    except OSError:  # a cache is a convenience: the costs were measured, and the next run measures again
        return
