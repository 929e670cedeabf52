"""Counters of another process, from a fake ``/proc``."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from latfix.errors import InputError
from latfix.profilers.evidence.outside.service_process import COLLECTED, STOPPED, THREAD
from latfix.profilers.probes.kept_files import KeptOpen
from latfix.profilers.services.process_watch import ProcessWatch

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class FakeMachine:
    """Writes the files that the watch reads."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def process(self, pid: int, *, minor: int = 0, major: int = 0, pages: int = 0, group: str = "/service") -> None:
        folder = self.root / "proc" / str(pid)
        (folder / "task").mkdir(parents=True, exist_ok=True)
        (folder / "comm").write_text("a service\n")
        (folder / "cgroup").write_text(f"0::{group}\n")
        (folder / "stat").write_text(stat(pid, minor, major, 0))
        (folder / "statm").write_text(f"{10 * pages} {pages} 0 0 0 0 0\n")

    def thread(
        self,
        pid: int,
        tid: int,
        *,
        ran: int = 0,
        waited: int = 0,
        switches: tuple[int, int] = (0, 0),
        disk: int = 0,
        cores: str = "f",
        children: str = "",
    ) -> Path:
        folder = self.root / "proc" / str(pid) / "task" / str(tid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "schedstat").write_text(f"{ran} {waited} 17\n")
        (folder / "children").write_text(children)
        (folder / "stat").write_text(stat(tid, 0, 0, disk))
        (folder / "status").write_text(
            f"Name:\tx\nCpus_allowed:\t{cores}\nvoluntary_ctxt_switches:\t{switches[0]}\n"
            f"nonvoluntary_ctxt_switches:\t{switches[1]}\n"
        )
        return folder

    def throttled(self, group: str, usec: int) -> None:
        folder = self.root / "sys/fs/cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.stat").write_text(f"usage_usec 5\nnr_periods 3\nnr_throttled 1\nthrottled_usec {usec}\n")


def stat(pid: int, minor: int, major: int, disk: int) -> str:
    """A line of ``stat``; the name has a parenthesis and spaces."""
    fields = [
        "S",
        "1",
        "1",
        "1",
        "0",
        "-1",
        "0",
        str(minor),
        "0",
        str(major),
        *("0" for _ in range(29)),
        str(disk),
        "0",
    ]
    return f"{pid} (a (b) c) {' '.join(fields)}\n"


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    fake = FakeMachine(tmp_path)
    fake.process(7, minor=100, major=3, pages=20)
    fake.thread(7, 7, ran=1_000, waited=10, switches=(5, 1), disk=4)
    fake.thread(7, 8, ran=500, waited=20, switches=(7, 2), children="9 ")
    fake.process(9, minor=50, major=1, pages=5)
    fake.thread(9, 9, ran=30, waited=40, switches=(1, 1), disk=1)
    fake.throttled("service", 250)
    return fake


def test_a_jvm_s_collecting_threads_stop_the_others_for_as_long_as_one_of_them_runs(machine: FakeMachine) -> None:
    for tid, name in ((20, "VM Thread"), (21, "GC Thread#0"), (22, "GC Thread#1"), (23, "G1 Conc#0")):
        (machine.thread(7, tid, ran=100) / "comm").write_text(f"{name}\n")
    watch = ProcessWatch(7, machine.root)
    collected = [watch.read_fast()[COLLECTED]]
    for ran in (100, 250, 1_000):
        for tid, share in ((21, 1.0), (22, 0.5), (23, 9.0)):
            machine.thread(7, tid, ran=int(100 + share * ran))
        collected.append(watch.read_fast()[COLLECTED])
    assert collected == [0, 100, 250, 1_000]
    watch.close()


def test_processes_beside_are_watched_too(machine: FakeMachine) -> None:
    machine.process(30)
    machine.thread(30, 30, ran=5, children="7 31 ")
    machine.process(31)
    machine.thread(31, 31, ran=2)
    watch = ProcessWatch(7, machine.root, beside=(30,))
    assert sorted(watch.processes) == [7, 9, 30, 31]
    assert watch.read_fast()["server.cpu_ns"] == 1_530 + 7
    watch.close()


def test_counters_are_sums_over_threads_and_children(machine: FakeMachine) -> None:
    watch = ProcessWatch(7, machine.root)
    assert watch.processes == (7, 9) and watch.throttling and watch.command == "a service"
    fast = watch.read_fast()
    assert (fast["server.cpu_ns"], fast["server.runq_ns"], fast["server.threads"]) == (1_530, 70, 3)
    assert fast["server.throttled_ns"] == 250_000
    slow = watch.read_slow()
    assert (slow["server.minflt"], slow["server.majflt"]) == (150, 4)
    assert (slow["server.vcsw"], slow["server.icsw"]) == (13, 4)
    assert slow["server.disk_ns"] == 5 * TICK_NS
    assert slow["server.rss_bytes"] == 25 * os.sysconf("SC_PAGE_SIZE")
    assert slow["server.processes"] == 2
    watch.close()


def test_threads_that_end_stay_in_the_sums_and_new_ones_are_found(machine: FakeMachine) -> None:
    watch = ProcessWatch(7, machine.root)
    watch.read_fast()
    before = watch.read_slow()
    shutil.rmtree(machine.root / "proc/7/task/8")
    machine.thread(7, 10, ran=2_000, waited=5, switches=(3, 0), disk=2, children="9 ")
    slow, fast = watch.read_slow(), watch.read_fast()
    assert (fast["server.cpu_ns"], fast["server.runq_ns"], fast["server.threads"]) == (3_530, 75, 3)
    assert slow["server.vcsw"] == before["server.vcsw"] + 3
    assert slow["server.disk_ns"] == before["server.disk_ns"] + 2 * TICK_NS
    watch.close()


def test_the_time_of_each_thread_that_ran_is_read_under_a_number_of_its_own(machine: FakeMachine) -> None:
    """A new thread takes the lowest number that is free; time before the first reading does not count."""
    watch = ProcessWatch(7, machine.root)
    assert not [name for name in watch.read_fast() if name.startswith(THREAD)]
    machine.thread(7, 8, ran=500 + 4_000_000, waited=20, children="9 ")
    machine.thread(9, 9, ran=30 + 900_000)
    fast = watch.read_fast()
    own = [name for name in fast if name.startswith(THREAD)]
    assert [fast[name] for name in own] == [4_000_000]
    shutil.rmtree(machine.root / "proc/7/task/8")
    machine.thread(7, 10, ran=1_000, children="9 ")
    watch.read_slow()
    watch.read_fast()
    machine.thread(7, 10, ran=3_001_000, children="9 ")
    fast = watch.read_fast()
    assert [(name, fast[name]) for name in fast if name.startswith(THREAD)] == [(own[0], 3_000_000)]
    watch.close()


def test_each_of_several_processes_that_runs_has_series_of_its_own(machine: FakeMachine) -> None:
    """The first one does not run; of the other, a thread ends."""
    machine.thread(9, 12, ran=50)
    watch = ProcessWatch(7, machine.root)
    assert not [name for name in watch.read_fast() if name.startswith("pid.")]
    machine.thread(9, 9, ran=30 + 4_000_000, waited=90, disk=1)
    fast, slow = watch.read_fast(), watch.read_slow()
    own = {name: value for name, value in {**fast, **slow}.items() if name.startswith("pid.")}
    number = next(name for name in fast if name.startswith(THREAD)).removeprefix(THREAD)
    assert own == {
        "pid.9.cpu_ns": 4_000_080,
        "pid.9.runq_ns": 90,
        "pid.9.threads": 2,
        f"pid.9.thread.{number}": 4_000_000,
        "pid.9.minflt": 50,
        "pid.9.majflt": 1,
        "pid.9.disk_ns": TICK_NS,
    }
    shutil.rmtree(machine.root / "proc/9/task/12")
    watch.look_around()
    assert watch.read_fast()["pid.9.cpu_ns"] == 4_000_080
    watch.close()


def test_threads_may_end_while_two_polls_read_at_once(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """One poll forgets a thread that the other is about to read."""
    watch = ProcessWatch(7, machine.root)
    polls: list[threading.Thread] = []
    read = KeptOpen.read

    def read_and_poll(file: KeptOpen) -> bytes:
        if not polls:
            shutil.rmtree(machine.root / "proc/7/task/8")
            polls.append(threading.Thread(target=watch.look_around))
            polls[0].start()
            polls[0].join(0.2)
        return read(file)

    monkeypatch.setattr(KeptOpen, "read", read_and_poll)
    assert watch.read_fast()["server.cpu_ns"] == 1_530
    polls[0].join()
    assert watch.read_fast()["server.cpu_ns"] == 1_530 and watch.processes == (7,)
    watch.close()


@pytest.mark.parametrize(
    ("mask", "cores"), [("1", 1), ("00000000,00000001", 1), ("ffffffff,ffffffff", os.cpu_count())]
)
def test_the_cores_on_which_it_may_run_are_no_more_than_the_machine_has(
    machine: FakeMachine, mask: str, cores: int
) -> None:
    for pid, tid in ((7, 7), (7, 8), (9, 9)):
        machine.thread(pid, tid, cores=mask)
    assert ProcessWatch(7, machine.root).read_slow()["server.cores"] == cores


def test_the_time_for_which_it_is_stopped_is_counted() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    watch = ProcessWatch(process.pid)
    try:
        assert STOPPED not in watch.read_fast()
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        first, second = watch.read_fast(), watch.read_fast()
        assert 0 < first[STOPPED] < second[STOPPED]
        process.send_signal(signal.SIGCONT)
        os.waitpid(process.pid, os.WCONTINUED)
        assert watch.read_fast()[STOPPED] == watch.read_fast()[STOPPED] == second[STOPPED]
    finally:
        process.communicate(b"\n")
        watch.close()


def test_without_a_quota_throttling_is_unknown(machine: FakeMachine) -> None:
    shutil.rmtree(machine.root / "sys")
    watch = ProcessWatch(7, machine.root)
    assert not watch.throttling and "server.throttled_ns" not in watch.read_fast()


@pytest.mark.parametrize(("pid", "found"), [(5, "no process 5"), (6, "no schedstat")])
def test_a_process_that_cannot_be_watched_is_an_input_error(machine: FakeMachine, pid: int, found: str) -> None:
    (machine.root / "proc/6/task/6").mkdir(parents=True)
    with pytest.raises(InputError, match=found):
        ProcessWatch(pid, machine.root)
