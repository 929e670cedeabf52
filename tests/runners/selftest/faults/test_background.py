"""Phases, and background faults: a spinner, hogs, a quota."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from pathlib import Path

import pytest

from latfix.profilers.probes.control_groups import neighbor_reader
from latfix.runners.selftest.faults.background import Phases, start_spinner
from latfix.runners.selftest.faults.cpu_hogs import Hogs, cores
from latfix.runners.selftest.faults.cpu_quota import Group, Quota, ThrottledNeighbor, unavailable
from latfix.runners.selftest.faults.fault_log import FaultLog, read_faults
from latfix.runners.selftest.faults.neighbor import Neighbor

pytestmark = pytest.mark.alone


def test_phases_fit_their_periods_and_depend_on_their_seed_only() -> None:
    phases = Phases(on_s=0.3, period_s=2.0, seed=4)
    starts = list(itertools.islice(phases.starts_s(), 50))
    assert starts == list(itertools.islice(Phases.parse(phases.text()).starts_s(), 50))
    assert all(2.0 * k <= start <= 2.0 * (k + 1) - 0.3 for k, start in enumerate(starts))
    other = list(itertools.islice(Phases(on_s=0.3, period_s=2.0, seed=5).starts_s(), 50))
    assert starts != other


def _wait_for(file: Path, lines: int) -> None:
    for _ in range(1000):
        if file.exists() and file.read_text().count("\n") >= lines:
            return
        time.sleep(0.01)
    raise AssertionError(f"{file} did not reach {lines} lines")


def test_a_spinner_spins_in_its_phases_only(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    spinner = start_spinner(Phases(on_s=0.02, period_s=0.1, seed=1), FaultLog(file))
    _wait_for(file, 3)
    spinner.stop()
    faults = read_faults(file)
    assert {fault.cause for fault in faults} == {"python.gil"} and {fault.request for fault in faults} == {""}
    on = sum(fault.end_ns - fault.start_ns for fault in faults)
    assert on < 0.8 * (faults[-1].end_ns - faults[0].start_ns)


def test_hogs_are_gone_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    phases = Phases(on_s=0.02, period_s=0.1, seed=2)
    with Hogs([phases] * 2, file) as hogs:
        hogs.start()
        hogs.start()
        processes = list(hogs._processes)
        assert len(processes) == 2
        _wait_for(file, 2)
    assert all(process.poll() is not None for process in processes)
    assert {fault.cause for fault in read_faults(file)} == {"host.contention"}
    assert cores()


@pytest.mark.skipif(bool(unavailable()), reason="no control group can be made here")
def test_a_quota_is_on_in_phases_and_leaves_nothing_behind(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    before = Path("/proc/self/cgroup").read_text()
    with Quota(Phases(on_s=0.03, period_s=0.1, seed=3), 0.2, file) as quota:
        assert Path("/proc/self/cgroup").read_text() != before
        quota.start()
        assert Path("/proc/self/cgroup").read_text() == before
        group = quota._group
        _wait_for(file, 2)
    assert not group.path.exists()
    faults = read_faults(file)
    assert {fault.cause for fault in faults} == {"host.throttle"}
    # No process was in the group: nothing was throttled, as the log shows.
    assert {fault.ns for fault in faults} == {0}


@pytest.mark.skipif(bool(unavailable()), reason="no control group can be made here")
def test_calls_of_a_neighbor_wait_because_its_group_is_throttled() -> None:
    with ThrottledNeighbor() as groups:
        neighbor = Neighbor(groups.folder)
        try:
            # A sibling of this process's group, so that its throttling is visible.
            read = neighbor_reader()
            assert read is not None
            name = f"neighbor.throttled_ns.{groups.folder.name}"
            before, used = read()[name], time.thread_time_ns()
            calls = [neighbor(60.0) for _ in range(3)]
            waited = sum(done.end_ns - done.start_ns for done in calls)
            assert read()[name] > before
            assert time.thread_time_ns() - used < 0.5 * waited
            assert all(0 < done.ns <= done.end_ns - done.start_ns for done in calls)
        finally:
            neighbor.close()
    assert not groups.folder.exists()


def test_a_neighbor_that_cannot_be_made_leaves_no_group_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(name: str) -> Group:
        if name.endswith("-neighbor"):
            raise PermissionError("no further group")
        (tmp_path / name).mkdir()
        return Group(tmp_path / name, tmp_path, unified=True)

    monkeypatch.setattr(Group, "make", make)
    with pytest.raises(PermissionError):
        ThrottledNeighbor()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(bool(unavailable()), reason="no control group can be made here")
def test_a_quota_throttles_the_group(tmp_path: Path) -> None:
    group = Group.make(f"latfix-test-{tmp_path.name}")
    try:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as spinner:
            try:
                (group.path / "cgroup.procs").write_text(str(spinner.pid))
                group.limit(0.01)  # less than it gets on any machine
                until = time.monotonic() + 60
                while not group.throttled_ns() and time.monotonic() < until:
                    time.sleep(0.01)
                assert group.throttled_ns() > 0
            finally:
                spinner.kill()
    finally:
        group.remove()
    assert not group.path.exists()
