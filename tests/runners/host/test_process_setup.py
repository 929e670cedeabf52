"""Process-wide settings: environment, prefaulted and locked memory, huge pages, and refusals."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from latfix.formatting import mebibytes
from latfix.runners.host import process_setup
from latfix.runners.host.kernel_files import System
from latfix.runners.host.privileges import (
    CAP_SYS_NICE,
    available_bytes,
    has_capability,
    least_nice,
    lockable_bytes,
    status_bytes,
)
from latfix.runners.host.process_setup import (
    ProcessSetup,
    huge_page_mode,
    process_environment,
    read_tunables,
)
from latfix.settings import RunnerSettings

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of Linux only")
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc only")


@pytest.mark.parametrize(
    ("settings", "inherited", "found"),
    [
        ({}, {"PATH": "/bin", "A": "1"}, {"PATH": "/bin", "A": "1"}),
        ({"env": {"A": "2", "B": "3"}}, {"A": "1"}, {"A": "2", "B": "3"}),
        (
            {"huge_pages": "always"},
            {"THP_MEM_ALLOC_ENABLE": "0"},
            {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "THP_MEM_ALLOC_ENABLE": "1"},
        ),
        ({"huge_pages": "never"}, {}, {}),
        (
            {"env": {"LD_PRELOAD": "libjemalloc.so.2"}},
            {"LD_PRELOAD": "/opt/a.so libjemalloc.so.2"},
            {"LD_PRELOAD": "libjemalloc.so.2:/opt/a.so"},
        ),
    ],
)
def test_the_settings_own_variables_come_before_those_that_are_there(
    settings: dict[str, Any], inherited: dict[str, str], found: dict[str, str]
) -> None:
    assert process_environment(RunnerSettings(**settings), inherited) == found


def test_tunables_are_merged_one_by_one() -> None:
    inherited = {"GLIBC_TUNABLES": "glibc.malloc.check=1:glibc.malloc.arena_max=8:glibc.malloc.mmap_max=9"}
    wanted = RunnerSettings(prefault_mb=64, env={"GLIBC_TUNABLES": "glibc.malloc.mmap_max=7"})
    found = read_tunables(process_environment(wanted, inherited)["GLIBC_TUNABLES"])
    assert found["glibc.malloc.check"] == "1", "other inherited values are kept"
    assert found["glibc.malloc.arena_max"] == "1", "values that prefaulting needs override inherited ones"
    assert found["glibc.malloc.mmap_max"] == "7", "the settings' own values take precedence"
    assert found["glibc.malloc.trim_threshold"] == "8589934592"


CHILD = """
import json, os, sys
from latfix.runners.host.process_setup import ProcessSetup, memory_facts
from latfix.runners.host.privileges import status_bytes
from latfix.settings import RunnerSettings

setup = ProcessSetup(RunnerSettings(**json.loads(sys.argv[1])))
setup.before_load()
BODY
setup.before_requests()
AFTER
print(json.dumps({"kept": setup.kept_bytes, "touched": setup.prefaulted_bytes,
                  "notes": setup.notes, **memory_facts(), **locals().get("more", {})}))
"""


def run(body: str = "", after: str = "", **values: Any) -> dict[str, Any]:
    """Applies the settings in a new process and returns its output."""
    wanted = RunnerSettings(**values)
    code = CHILD.replace("BODY", body).replace("AFTER", after)
    ended = subprocess.run(
        [sys.executable, "-c", code, json.dumps(values)],
        env=process_environment(wanted),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        start_new_session=True,
    )
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


BLOCKS = """
import ctypes, resource
c = ctypes.CDLL(None)
c.malloc.restype, c.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    blocks = [c.malloc(4 << 20) for _ in range(6)]
    for block in blocks:
        ctypes.memset(block, 1, 4 << 20)
    for block in blocks:
        c.free(block)
more = {"faults": resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before}
"""


@linux
@glibc
def test_prefaulted_memory_stays_and_causes_no_later_fault() -> None:
    with_it, without = run(after=BLOCKS, prefault_mb=32), run(after=BLOCKS)
    assert with_it["notes"] == []
    assert with_it["touched"] == 32 << 20
    assert with_it["kept"] > 0.9 * with_it["touched"]
    assert without["touched"] == without["kept"] == 0
    # Three times 24 MiB: without it, each block is mapped anew.
    assert without["faults"] > 3000
    assert with_it["faults"] < 0.1 * without["faults"]


@linux
@glibc
def test_other_threads_use_what_was_prefaulted() -> None:
    in_a_thread = "import threading\ndef work():\n    global more\n" + "".join(
        f"    {line}\n" for line in BLOCKS.strip().splitlines()
    )
    found = run(after=in_a_thread + "t = threading.Thread(target=work); t.start(); t.join()", prefault_mb=32)
    assert found["faults"] < 1000


def test_more_than_the_available_memory_is_not_touched_and_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_setup, "available_bytes", lambda: 100 << 20)
    setup = ProcessSetup(RunnerSettings(prefault_mb=90))
    setup.before_requests()
    setup.before_requests()
    assert setup.prefaulted_bytes == setup.kept_bytes == 0
    assert setup.notes == ["prefault_mb: 90.0 MiB requested, 100 MiB available; nothing was touched"]


@linux
@pytest.mark.skipif(huge_page_mode() not in ("madvise", "always"), reason="the kernel gives no huge pages")
def test_huge_pages_are_made_of_what_is_there_and_of_what_comes() -> None:
    hold = "import ctypes\nc = ctypes.CDLL(None)\nc.malloc.restype = ctypes.c_void_p\n"
    hold += "blocks = [c.malloc(16 << 20)]\nctypes.memset(blocks[0], 1, 16 << 20)\n"
    later = "blocks.append(c.malloc(16 << 20))\nctypes.memset(blocks[1], 1, 16 << 20)\n"
    with_it = run(hold, later, huge_pages="always")
    never = run(hold, later, huge_pages="never")
    assert with_it["notes"] == [] and never["notes"] == []
    assert never["huge_bytes"] == 0
    assert with_it["huge_bytes"] >= 16 << 20


@linux
def test_memory_is_locked_where_it_may_be() -> None:
    found = run(lock_memory=True)
    limit = lockable_bytes()
    if limit is None:
        assert found["locked_bytes"] > 0 and found["notes"] == []
    else:
        assert found["locked_bytes"] > 0 or f"RLIMIT_MEMLOCK is {mebibytes(limit)}" in found["notes"][0]
    assert run()["locked_bytes"] == 0


@linux
def test_a_limit_that_allocations_would_run_into_is_not_locked_against(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it every later allocation would fail, including the model's."""
    monkeypatch.setattr(process_setup, "lockable_bytes", lambda: 1 << 20)
    monkeypatch.setattr(ProcessSetup, "_call", lambda *_, **__: pytest.fail("locked"))
    setup = ProcessSetup(RunnerSettings(lock_memory=True))
    setup.before_requests()
    assert "RLIMIT_MEMLOCK is 1.00 MiB" in setup.notes[0]


@linux
def test_a_refusal_of_the_system_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def __getattr__(self, name: str) -> Callable[..., int]:
            return lambda *_: -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Refusing())
    monkeypatch.setattr(process_setup, "lockable_bytes", lambda: None)
    setup = ProcessSetup(RunnerSettings(lock_memory=True, huge_pages="never"))
    setup.before_load()
    setup.before_requests()
    assert [note.partition(" was refused")[0] for note in setup.notes] == [
        "huge_pages = never: prctl",
        "lock_memory: mlockall",
    ]


@linux
@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="the kernel has no autogroups")
def test_the_group_of_a_process_that_leads_its_session_gets_the_priority() -> None:
    """A process may always lower its own priority."""
    after = "from latfix.runners.host.process_setup import autogroup_nice\nmore = {'group': autogroup_nice()}"
    found = run(after=after, nice=5)
    assert found["group"] == 5 and found["notes"] == []
    assert run(after=after)["group"] == 0


def test_the_session_of_others_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "autogroup"
    file.write_text("/autogroup-1 nice 0\n")
    monkeypatch.setattr(process_setup, "_AUTOGROUP", file)
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid() + 1)
    setup = ProcessSetup(RunnerSettings(nice=-5))
    setup.before_load()
    assert file.read_text() == "/autogroup-1 nice 0\n"
    assert "does not lead its session" in setup.notes[0]


def test_other_systems_note_that_it_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(process_setup, "lockable_bytes", lambda: None)
    setup = ProcessSetup(RunnerSettings(lock_memory=True, huge_pages="always"))
    setup.before_load()
    setup.before_requests()
    assert setup.notes == [
        "huge_pages = always: this system has no transparent huge pages",
        "lock_memory: this system has no mlockall",
    ]


def test_the_kernels_mode_is_read(tmp_path: Path) -> None:
    file = tmp_path / "sys/kernel/mm/transparent_hugepage/enabled"
    file.parent.mkdir(parents=True)
    file.write_text("always [madvise] never\n")
    assert huge_page_mode(System(tmp_path)) == "madvise"
    assert huge_page_mode(System(tmp_path / "nothing")) == ""


def test_capabilities_are_read(tmp_path: Path) -> None:
    status = tmp_path / "proc/self/status"
    status.parent.mkdir(parents=True)
    status.write_text("Name:\tx\nVmRSS:\t  12 kB\nCapEff:\t0000000000800000\n")
    assert has_capability(CAP_SYS_NICE, System(tmp_path)) and not has_capability(14, System(tmp_path))
    assert not has_capability(CAP_SYS_NICE, System(tmp_path / "nothing"))


@linux
def test_without_the_capability_the_limit_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    from latfix.runners.host import privileges as permissions

    monkeypatch.setattr(permissions, "has_capability", lambda *_: False)
    monkeypatch.setattr(permissions, "current_nice", lambda: 0)
    for soft, lowest in ((0, 0), (20, 0), (30, -10), (40, -20), (resource.RLIM_INFINITY, -20)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert least_nice() == lowest, soft
    monkeypatch.setattr(permissions, "has_capability", lambda *_: True)
    assert least_nice() == -20
    assert lockable_bytes() is None


@linux
def test_available_memory_is_less_than_all_memory() -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < available_bytes() < total
    assert 0 < status_bytes("VmRSS") <= status_bytes("VmHWM")
