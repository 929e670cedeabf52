"""Settings that a system refuses, in real processes: a note reports it, nothing fails, no fix counts as effective."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from latfix.runners.fixes.host import priority as host_priority
from latfix.runners.fixes.memory import allocator as memory_allocator
from latfix.runners.fixes.memory import huge_pages as memory_huge_pages
from latfix.runners.fixes.memory import jemalloc as memory_jemalloc
from latfix.runners.host.malloc_libraries import JEMALLOC
from latfix.runners.host.process_setup import KEEP_FREED, process_environment, tunables_text
from latfix.settings import RunnerSettings
from tests.runners.fixes.on_this_machine.conftest import make_record, verified

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of Linux only")

_ORDINARY_USER = """
import os
if os.geteuid() == 0:
    os.setuid(65534)
"""


def run(code: str, environment: Mapping[str, str] | None = None) -> Any:
    """What a process of its own makes of ``code``, which prints one line of JSON."""
    done = subprocess.run(
        [sys.executable, "-c", f"import json, os\n{code}"],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


_ALLOCATOR = "from latfix.runners.host.malloc_libraries import loaded_allocator\n"


def test_a_library_that_is_not_there_is_not_preloaded(tmp_path: Path) -> None:
    """The loader complains on standard error, and the process runs without it."""
    missing = tmp_path / "libjemalloc.so.2"
    settings = RunnerSettings(env={**JEMALLOC.environment, "LD_PRELOAD": str(missing)})
    used = run(_ALLOCATOR + "print(json.dumps(loaded_allocator()))", process_environment(settings))
    assert used != "jemalloc"
    quieter = make_record(faults=5, memory={"allocator": used})  # for another reason
    effective, said = verified(memory_jemalloc.FIX, quieter, make_record(faults=900))
    assert not effective and f"ran on {used}" in said


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_library_serves_the_process_where_it_is_preloaded_and_not_where_a_package_loads_it(tmp_path: Path) -> None:
    source, library = tmp_path / "malloc.c", tmp_path / "libjemalloc.so.2"
    source.write_text(
        "#include <stddef.h>\nextern void *__libc_malloc(size_t);\n"
        "void *malloc(size_t size) { return __libc_malloc(size); }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    code = "print(json.dumps([loaded_allocator(), 'libjemalloc' in open('/proc/self/maps').read()]))"
    assert run(_ALLOCATOR + code, {"LD_PRELOAD": str(library)}) == ["jemalloc", True]
    name, mapped = run(f"{_ALLOCATOR}import ctypes\nctypes.CDLL({str(library)!r})\n{code}")
    assert mapped and name != "jemalloc"


def test_a_forbidden_priority_is_refused_and_reported() -> None:
    notes, nice, least = run(
        f"""
from latfix.runners.host.privileges import current_nice, least_nice
from latfix.runners.host.cpu_placement import Places
from latfix.settings import RunnerSettings
import resource
resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
{_ORDINARY_USER}
places = Places(RunnerSettings(nice=-15))
places.worker(0)
print(json.dumps([places.notes, current_nice(), least_nice()]))
"""
    )
    assert notes == ["nice = -15 was refused (Permission denied)"] and least == nice
    row = {"cores": "0", "allowed": [0], "nice": nice, "migrations": 0}
    placement = {"worker": [row], "prepare": []}
    now = make_record(settings={"nice": -15}, placement=placement, setup_notes=notes)
    effective, said = verified(host_priority.FIX, now, make_record(placement=placement))
    assert not effective and said.endswith(notes[0])


def test_a_process_limited_to_one_core_stays_there() -> None:
    core = min(os.sched_getaffinity(0))
    cores, workers, notes, allowed = run(
        f"""
from latfix.runners.host.cpu_placement import Places
from latfix.runners.host.cpu_topology import read_topology
from latfix.settings import RunnerSettings
os.sched_setaffinity(0, [{core}])
places = Places(RunnerSettings(pin="workers"))
places.worker(0)
print(json.dumps([read_topology().cores, places.placement.workers, places.notes, sorted(os.sched_getaffinity(0))]))
"""
    )
    assert cores == allowed == [core] and workers == [[]]
    assert notes == ["pin = workers: 1 worker on 1 core: a worker cannot have a core to itself"]


def test_cores_that_were_taken_away_are_told() -> None:
    """As where a container's set of cores shrinks while the service runs."""
    notes, same = run(
        """
from latfix.runners.host.cpu_placement import Places
from latfix.runners.host.cpu_topology import Domain, Topology
from latfix.settings import RunnerSettings
before = os.sched_getaffinity(0)
gone = 1000
machine = Topology(cores=(0, gone), physical=((0,), (gone,)), domains=(Domain(node=0, cores=(0, gone)),))
places = Places(RunnerSettings(pin="workers"), machine)
places.worker(0)
print(json.dumps([places.notes, os.sched_getaffinity(0) == before]))
"""
    )
    assert notes == ["cores 1000 were refused (Invalid argument)"] and same


def test_huge_pages_that_are_off_for_the_process_are_none() -> None:
    """As a container's runtime may set it, in any mode of the kernel."""
    huge = run(
        """
import ctypes
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)
from latfix.runners.host.process_setup import ProcessSetup, memory_facts
from latfix.settings import RunnerSettings
heap = bytearray(64 << 20)
ProcessSetup(RunnerSettings(huge_pages="always")).before_requests()
print(json.dumps(memory_facts()["huge_bytes"]))
""",
        process_environment(RunnerSettings(huge_pages="always")),
    )
    now = make_record(memory={"huge_bytes": huge})
    assert not verified(memory_huge_pages.FIX, now, make_record(memory={"huge_bytes": 0}))[0]


def test_tunables_of_the_user_are_kept_and_those_of_the_fix_come_first() -> None:
    """The process is started with both; one that was started without is no evidence, however few its faults."""
    settings = RunnerSettings(env={"GLIBC_TUNABLES": tunables_text(KEEP_FREED)})
    theirs = {"GLIBC_TUNABLES": "glibc.malloc.perturb=0:glibc.malloc.arena_max=8"}
    seen = run("print(json.dumps(os.environ['GLIBC_TUNABLES']))", process_environment(settings, theirs))
    assert "glibc.malloc.perturb=0" in seen and "arena_max=8" not in seen
    before = make_record(faults=900)
    assert verified(memory_allocator.FIX, make_record(faults=5, environment={"GLIBC_TUNABLES": seen}), before)[0]
    assert not verified(memory_allocator.FIX, make_record(faults=5, environment=theirs), before)[0]
