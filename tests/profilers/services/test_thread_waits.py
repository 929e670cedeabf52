"""Waits of the threads of another process: a real one, and a fake ``/proc``."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from latfix.profilers.evidence.outside.service_process import (
    EPOLL,
    FUTEX,
    INTERPRETER,
    LOOP_IN,
    LOOPS,
    ONE_ADDRESS,
    SLEEP,
)
from latfix.profilers.services.thread_waits import ThreadWaits

#: Three threads wait for one lock, two for work in a queue, one in epoll; two and the main thread run Python.
_SERVICE = """
import queue, select, threading, time
lock, jobs = threading.Lock(), queue.Queue()
lock.acquire()
def spin():
    while True: pass
for target, times in ((lock.acquire, 3), (jobs.get, 2), (select.epoll().poll, 1), (spin, 2)):
    for _ in range(times): threading.Thread(target=target, daemon=True).start()
print(flush=True)
spin()
"""


@pytest.fixture
def service() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", _SERVICE], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    yield process.pid
    process.kill()
    process.wait()
    process.stdout.close()


def test_waits_for_locks_work_and_the_interpreter_are_separated(service: int) -> None:
    waits = ThreadWaits(Path("/proc"), service)
    if not waits.shows_calls:
        pytest.skip("this machine does not show the system calls of another process")
    waits.look_around(f"{service}/task/{thread.name}" for thread in Path(f"/proc/{service}/task").iterdir())
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:  # until all have begun to wait
        result = waits.read()[service]
        places = sorted(count for name, count in result.items() if name.startswith(FUTEX))
        if places == [2, 3] and result.get(INTERPRETER, 0) == 2:
            break
        time.sleep(0.01)
    assert places == [2, 3], result
    # From 3.13 on, each thread that waits for a ``threading.Lock`` waits at an address of its own.
    at_one = 3 if sys.version_info < (3, 13) else 1
    assert (result[INTERPRETER], result[ONE_ADDRESS], result[EPOLL]) == (2, at_one, 1)
    waits.close()


def test_without_permission_only_the_number_of_waits_is_known(tmp_path: Path) -> None:
    for thread, where in (("7", "futex_do_wait"), ("8", "futex_wait_queue"), ("9", "do_epoll_wait"), ("10", "0")):
        (tmp_path / "7/task" / thread).mkdir(parents=True)
        (tmp_path / "7/task" / thread / "wchan").write_text(where)
    waits = ThreadWaits(tmp_path, 7)
    waits.look_around(f"7/task/{thread}" for thread in ("7", "8", "9", "10", "11"))
    assert not waits.shows_calls
    assert waits.read() == {7: {FUTEX: 2.0}}


def test_a_loop_that_waits_in_another_call_is_told_from_threads_that_sleep(tmp_path: Path) -> None:
    epoll, sleep, fsync = {"x86_64": (232, 230, 74), "aarch64": (22, 115, 82)}.get(platform.machine(), (0, 0, 0))
    if not epoll:
        pytest.skip("the numbers of this machine's system calls are not known")
    files = [tmp_path / "7/task" / thread / "syscall" for thread in ("7", "8")]

    def call(*numbers: int) -> None:
        for file, number in zip(files, numbers, strict=True):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{number} 0x3 0x0 0x0 0x0 0x0 0x0 0x7ffd0 0x7f00\n")

    call(epoll, sleep)
    waits = ThreadWaits(tmp_path, 7)
    waits.look_around(["7/task/7", "7/task/8"])
    assert waits.read() == {7: {EPOLL: 1.0, SLEEP: 1.0}}
    call(fsync, sleep)
    assert waits.read() == {7: {EPOLL: 0.0, LOOPS: 1.0, SLEEP: 1.0, f"{LOOP_IN}fsync": 1.0}}


def test_a_thread_that_always_waits_for_events_is_no_loop(tmp_path: Path) -> None:
    """Node's main thread serves; another one only waits, and does something else in one poll of 40."""
    epoll = {"x86_64": 232, "aarch64": 22}.get(platform.machine())
    if epoll is None:
        pytest.skip("the numbers of this machine's system calls are not known")
    files = [tmp_path / "7/task" / thread / "syscall" for thread in ("7", "8")]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text("running\n")
    waits = ThreadWaits(tmp_path, 7)
    for poll in range(41):
        for file, works in zip(files, (poll % 2, poll == 39), strict=True):
            file.write_text("running\n" if works else f"{epoll} 0x3 0x0 0x0 0x0 0x0 0x0 0x7ffd0 0x7f00\n")
        waits.look_around(["7/task/7", "7/task/8"])
        found = waits.read()[7]
    assert (found[EPOLL], found[LOOPS]) == (2.0, 1.0)


def test_a_sample_stands_for_many_threads(tmp_path: Path) -> None:
    """A pool of 300 threads, of which all but the first 40 wait for a lock."""
    threads = [f"7/task/{number}" for number in range(7, 307)]
    for place, thread in enumerate(threads):
        (tmp_path / thread).mkdir(parents=True)
        (tmp_path / thread / "wchan").write_text("futex_do_wait" if place >= 40 else "0")
    waits = ThreadWaits(tmp_path, 7)
    waits.look_around(threads)
    assert waits.read()[7][FUTEX] == pytest.approx(260, rel=0.05)
