"""Control groups in both versions of the interface: memory within the limit, throttled time."""

from __future__ import annotations

from pathlib import Path

import pytest

from latfix.profilers.probes.control_groups import CgroupThrottle, ControlGroups, neighbor_reader
from latfix.runners.host import privileges as permissions

MIB = 1 << 20
V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def group(folder: Path, names: tuple[str, str, str], limit: str, used_mb: int, cached_mb: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used_mb * MIB}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cached_mb * MIB}\n")


def room(tmp_path: Path, *lines: str) -> float | None:
    (tmp_path / "proc/self").mkdir(parents=True, exist_ok=True)
    (tmp_path / "proc/self/cgroup").write_text("".join(f"{line}\n" for line in lines))
    left = ControlGroups(tmp_path).memory_left()
    return None if left is None else left / MIB


def test_the_limit_of_a_parent_group_counts(tmp_path: Path) -> None:
    group(tmp_path / "sys/fs/cgroup" / "pod", V2, str(256 * MIB), 240)
    group(tmp_path / "sys/fs/cgroup" / "pod" / "container", V2, "max", 100)
    assert room(tmp_path, "0::/pod/container") == 16
    group(tmp_path / "sys/fs/cgroup" / "pod" / "container", V2, str(110 * MIB), 100)
    assert room(tmp_path, "0::/pod/container") == 10


def test_sibling_groups_with_a_quota_are_watched(tmp_path: Path) -> None:
    pod = tmp_path / "sys/fs/cgroup" / "pod"
    for name, text in (("own", "nr_periods 9\nthrottled_usec 1\n"), ("free", "usage_usec 5\n")):
        (pod / name).mkdir(parents=True)
        (pod / name / "cpu.stat").write_text(text)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/pod/own\n")
    assert neighbor_reader(ControlGroups(tmp_path)) is None, "a group without a quota is never throttled"
    (pod / "cache").mkdir()
    stat = pod / "cache" / "cpu.stat"
    stat.write_text("nr_periods 9\nthrottled_usec 7\n")
    read = neighbor_reader(ControlGroups(tmp_path))
    assert read is not None and read() == {"neighbor.throttled_ns.cache": 7000.0}
    stat.write_text("nr_periods 9\nthrottled_usec 8\n")
    assert read() == {"neighbor.throttled_ns.cache": 8000.0}


def test_cached_files_count_as_free_memory(tmp_path: Path) -> None:
    """A container that has read its weights from disk looks full, but is not."""
    group(tmp_path / "sys/fs/cgroup", V2, str(500 * MIB), 490, cached_mb=300)
    assert room(tmp_path, "0::/") == 310


def test_the_older_interface_is_read(tmp_path: Path) -> None:
    group(tmp_path / "sys/fs/cgroup" / "memory" / "docker" / "a", V1, str(100 * MIB), 60, cached_mb=10)
    lines = ("5:cpu,cpuacct:/docker/a", "4:memory:/docker/a", "0::/")
    assert room(tmp_path, *lines) == 50
    # Within the container, the path is the host's and its own group is the mount's top.
    group(tmp_path / "sys/fs/cgroup" / "memory", V1, str(80 * MIB), 60)
    assert room(tmp_path, *lines) == 20


@pytest.mark.parametrize(
    ("limit", "line"),
    [*(("max", at) for at in ("0::/", "0::/gone", "3:cpu:/x")), ("", "0::/"), ("word", "0::/"), ("-5", "0::/")],
)
def test_without_a_limit_there_is_none(tmp_path: Path, limit: str, line: str) -> None:
    group(tmp_path / "sys/fs/cgroup", V2, limit, 10)
    assert room(tmp_path, line) is None
    assert ControlGroups(tmp_path / "nothing").memory_left() is None


def test_available_memory_is_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ControlGroups, "memory_left", lambda _: 7)
    assert permissions.available_bytes() == 7
    monkeypatch.setattr(ControlGroups, "memory_left", lambda _: 0)
    assert permissions.available_bytes() > 0, "a limit without free memory is not an unknown limit"


@pytest.mark.parametrize(
    ("line", "folder", "stat"),
    [
        ("0::/a", "a", "usage_usec 9\nnr_throttled 2\nthrottled_usec 5\n"),
        ("0::/gone", "", "throttled_usec 5\n"),
        ("4:cpu,cpuacct:/a", "cpu,cpuacct/a", "nr_throttled 2\nthrottled_time 5000\n"),
    ],
)
def test_throttled_time_of_both_versions(tmp_path: Path, line: str, folder: str, stat: str) -> None:
    where = tmp_path / "sys/fs/cgroup" / folder
    where.mkdir(parents=True)
    (where / "cpu.stat").write_text(stat)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{line}\n")
    throttle = CgroupThrottle(ControlGroups(tmp_path))
    assert throttle.available and throttle.throttled_ns() == 5000
    (where / "cpu.stat").write_text(stat.replace("5", "7"))
    assert throttle.throttled_ns() == 7000, "the file is read again"


@pytest.mark.parametrize(("periods", "throttled_ns"), [(0, 5000), (3, 2000)], ids=["of-the-pod", "its-own"])
def test_throttled_time_is_that_of_the_nearest_group_with_a_quota(
    tmp_path: Path, periods: int, throttled_ns: int
) -> None:
    pod = tmp_path / "sys/fs/cgroup" / "pod"
    (pod / "container").mkdir(parents=True)
    (pod / "cpu.stat").write_text("nr_periods 9\nthrottled_usec 5\n")
    (pod / "container" / "cpu.stat").write_text(f"nr_periods {periods}\nthrottled_usec {2 if periods else 0}\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/pod/container\n")
    assert CgroupThrottle(ControlGroups(tmp_path)).throttled_ns() == throttled_ns


def test_throttling_on_this_machine_is_a_number_or_unknown() -> None:
    throttle = CgroupThrottle()
    assert throttle.throttled_ns() >= 0
    assert throttle.available or throttle.read() == {}
