"""Cores and the caches and nodes that they share, read from a tree like the kernel's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latfix.runners.host.cpu_topology import (
    allowed_cores,
    cores_text,
    last_level_cache_bytes,
    parse_cores,
    read_topology,
)

WriteSysfs = Callable[..., Path]


@pytest.mark.parametrize(
    ("text", "cores"), [("0-3,8", (0, 1, 2, 3, 8)), ("5", (5,)), ("", ()), ("7,1-2\n", (1, 2, 7))]
)
def test_a_kernel_list_is_read(text: str, cores: tuple[int, ...]) -> None:
    assert parse_cores(text) == cores


@given(st.sets(st.integers(0, 200)))
def test_cores_survive_being_written_and_read(cores: set[int]) -> None:
    assert set(parse_cores(cores_text(cores))) == cores


def test_two_sockets_with_two_threads_a_core(sysfs: WriteSysfs) -> None:
    root = sysfs(
        nodes={0: "0-1,4-5", 1: "2-3,6-7"},
        siblings={k: f"{k % 4},{k % 4 + 4}" for k in range(8)},
        caches={k: "0-1,4-5" if k % 4 < 2 else "2-3,6-7" for k in range(8)},
    )
    found = read_topology(range(8), root)
    assert found.physical == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert [(domain.node, domain.cores) for domain in found.domains] == [(0, (0, 1, 4, 5)), (1, (2, 3, 6, 7))]
    assert found.physical_of(found.domains[1]) == ((2, 6), (3, 7))


def test_a_node_of_several_caches_is_several_domains(sysfs: WriteSysfs) -> None:
    """As on processors whose last-level cache belongs to a few cores each."""
    root = sysfs(
        nodes={0: "0-3"}, siblings={k: str(k) for k in range(4)}, caches={0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}
    )
    assert [domain.cores for domain in read_topology(range(4), root).domains] == [(0, 1), (2, 3)]


def test_only_allowed_cores_are_there(sysfs: WriteSysfs) -> None:
    root = sysfs(
        nodes={0: "0-7"},
        siblings={k: f"{k % 4},{k % 4 + 4}" for k in range(8)},
        caches=dict.fromkeys(range(8), "0-7"),
    )
    found = read_topology([1, 5, 6], root)
    assert found.cores == (1, 5, 6)
    assert found.physical == ((1, 5), (6,))
    assert [domain.cores for domain in found.domains] == [(1, 5, 6)]


def test_without_anything_to_read_all_cores_are_alike(tmp_path: Path) -> None:
    found = read_topology([0, 1, 2], tmp_path)
    assert found.physical == ((0,), (1,), (2,))
    assert [(domain.node, domain.cores) for domain in found.domains] == [(-1, (0, 1, 2))]


def test_nonsense_in_a_file_counts_as_nothing(sysfs: WriteSysfs) -> None:
    root = sysfs(nodes={0: "zero"}, siblings={0: "x", 1: ""}, caches={0: "?", 1: "1"})
    assert read_topology([0, 1], root).physical == ((0,), (1,))


def test_the_cache_of_the_highest_level_counts(sysfs: WriteSysfs) -> None:
    assert last_level_cache_bytes(0, sysfs(nodes={}, siblings={}, caches={0: "0"}, size="32768K")) == 32 << 20
    root = sysfs(nodes={}, siblings={}, caches={3: "3"}, size="8M")
    assert last_level_cache_bytes(3, root) == 8 << 20
    assert last_level_cache_bytes(7, root) == 0, "it is not reported"


def test_this_machine_has_the_cores_that_it_has() -> None:
    found = read_topology()
    assert found.cores == allowed_cores()
    assert sorted(core for group in found.physical for core in group) == list(found.cores)
    assert sorted(core for domain in found.domains for core in domain.cores) == list(found.cores)


@pytest.fixture
def sysfs(tmp_path: Path) -> WriteSysfs:
    """Writes files like those under ``/sys/devices/system``; the caches given are of level 3."""

    def write(
        *, nodes: dict[int, str], siblings: dict[int, str], caches: dict[int, str], size: str = "32768K"
    ) -> Path:
        def put(path: str, text: str) -> None:
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n")

        for node, cores in nodes.items():
            put(f"node/node{node}/cpulist", cores)
        for core, text in siblings.items():
            put(f"cpu/cpu{core}/topology/thread_siblings_list", text)
        for core, text in caches.items():
            for index, level, shared, bytes_ in ((0, "1", str(core), "48K"), (3, "3", text, size)):
                put(f"cpu/cpu{core}/cache/index{index}/level", level)
                put(f"cpu/cpu{core}/cache/index{index}/shared_cpu_list", shared)
                put(f"cpu/cpu{core}/cache/index{index}/size", bytes_)
        return tmp_path

    return write
