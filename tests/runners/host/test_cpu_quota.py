"""How many cores a process may use at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from latfix.runners.host.cpu_quota import usable_cores
from latfix.runners.host.kernel_files import System


@pytest.mark.parametrize(("quota", "cores"), [("max", 8), ("1600000", 8), ("250000", 2), ("50000", 1)])
def test_a_quota_below_affinity_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    group = tmp_path / "sys/fs/cgroup/pod"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text(f"{quota} 100000\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/pod\n")
    assert usable_cores(System(tmp_path)) == cores


def test_a_system_without_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3}, raising=False)
    assert usable_cores(System(tmp_path)) == 2
