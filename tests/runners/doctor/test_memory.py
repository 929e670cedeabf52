"""Each memory setting that costs latency is found, and nothing is found on a well-configured machine."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from latfix.results.doctor_finding import Finding
from latfix.runners.doctor.memory import memory
from tests.runners.doctor.conftest import MakeSystem

_THP = "/sys/kernel/mm/transparent_hugepage"
_GIB = 1 << 20  # in kB

_CALM = {
    "/proc/meminfo": f"MemTotal:  {8 * _GIB} kB\nMemFree:  1 kB\nMemAvailable:  {6 * _GIB} kB",
    "/proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0",
    "/proc/swaps": "Filename Type Size Used Priority",
    f"{_THP}/enabled": "always [madvise] never",
    f"{_THP}/defrag": "always defer defer+madvise [madvise] never",
    "/proc/self/cgroup": "0::/service",
    "/sys/fs/cgroup/service/memory.max": "max",
}


def _found(make: MakeSystem, files: Mapping[str, str] | None = None) -> dict[str, Finding]:
    return {finding.id: finding for finding in memory(make({**_CALM, **(files or {})}))}


def test_a_calm_machine_costs_nothing(make_system: MakeSystem) -> None:
    found = _found(make_system)
    assert not [finding for finding in found.values() if finding.state in ("costs", "unknown")]
    assert found["memory.room"].found == "6,144 MiB of 8,192 MiB available"


@pytest.mark.parametrize(
    ("identity", "files", "text", "change"),
    [
        (
            "memory.room",
            {"/proc/meminfo": f"MemTotal: {8 * _GIB} kB\nMemAvailable: {_GIB // 2} kB"},
            "512 MiB of 8,192 MiB",
            "--memory",
        ),
        (
            "memory.room",
            {
                "/sys/fs/cgroup/service/memory.max": str(2 << 30),
                "/sys/fs/cgroup/service/memory.current": str(2000 << 20),
            },
            "allows 2,048 MiB, 2,000 MiB are used",
            "--memory",
        ),
        ("memory.pressure", {"/proc/pressure/memory": "some avg10=0 avg60=4.20 avg300=0 total=1"}, "4.2 %", "memory"),
        (
            "memory.swap",
            {
                "/proc/swaps": "Filename Type Size Used Priority\n/swap file 1000 2048 -2",
                "/proc/sys/vm/swappiness": "60",
            },
            "2.00 MiB in use, swappiness 60",
            "swapoff",
        ),
        ("memory.huge_pages", {f"{_THP}/enabled": "always madvise [never]"}, "never", "echo madvise"),
        (
            "memory.huge_pages",
            {f"{_THP}/enabled": "[always] madvise never", f"{_THP}/defrag": "[always] defer madvise never"},
            "always, defrag always",
            "defer+madvise",
        ),
        ("memory.zone_reclaim", {"/proc/sys/vm/zone_reclaim_mode": "1"}, "zone_reclaim_mode", "sysctl"),
    ],
)
def test_what_costs_is_found(
    make_system: MakeSystem, identity: str, files: dict[str, str], text: str, change: str
) -> None:
    found = _found(make_system, files)
    assert [finding.id for finding in found.values() if finding.state == "costs"] == [identity]
    assert text in found[identity].found
    assert change in found[identity].change
    assert found[identity].costs


def test_no_limit_of_version_1_is_none(make_system: MakeSystem) -> None:
    files = {
        "/proc/self/cgroup": "4:memory:/a",
        "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": str((1 << 63) - 4096),
        "/sys/fs/cgroup/memory/a/memory.usage_in_bytes": "1000",
    }
    assert "control group" not in _found(make_system, files)["memory.room"].found


def test_a_system_without_kernel_files_is_unknown(make_system: MakeSystem) -> None:
    states = {finding.id: finding.state for finding in memory(make_system({}))}
    assert "costs" not in states.values()
    for name in ("room", "pressure", "huge_pages"):
        assert states[f"memory.{name}"] == "unknown"
