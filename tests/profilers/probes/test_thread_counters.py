"""A thread's on-CPU time, run-queue delay and blocked time, checked as shares, not as times."""

from __future__ import annotations

import json
import mmap
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from latfix.profilers.probes.batch_delays import PoolDelays
from latfix.profilers.probes.thread_counters import (
    NO_ACCOUNT,
    Account,
    ProcessMemory,
    ThreadCounters,
    difference,
    median_cost_ns,
)
from latfix.run_record.schema import PROCESS_ACCOUNT, THREAD_ACCOUNT

pytestmark = pytest.mark.alone

CPU, RUNQ, VOLUNTARY, MINOR, DENORMALS = (
    THREAD_ACCOUNT.index(name) for name in ("cpu_ns", "runq_ns", "vcsw", "minflt", "denormals")
)


@pytest.fixture
def counters() -> Iterator[ThreadCounters]:
    made = ThreadCounters()
    yield made
    made.close()


def _observe(counters: ThreadCounters, work: Callable[[], object]) -> tuple[int, Account]:
    start = time.perf_counter_ns()
    before = counters.snapshot()
    work()
    spent = difference(counters.snapshot(), before)
    return time.perf_counter_ns() - start, spent


def _spin() -> None:
    end = time.thread_time_ns() + 60_000_000
    while time.thread_time_ns() < end:
        pass


def test_a_sleep_is_blocked(counters: ThreadCounters) -> None:
    wall, spent = _observe(counters, lambda: time.sleep(0.05))
    assert (spent[CPU] + spent[RUNQ]) / wall < 0.5
    assert spent[VOLUNTARY] >= 1


def test_wall_time_is_at_least_the_accounted_time(counters: ThreadCounters) -> None:
    for work in (_spin, lambda: time.sleep(0.01), lambda: sum(range(10_000))):
        wall, spent = _observe(counters, work)
        assert spent[CPU] <= wall
        assert spent[CPU] + spent[RUNQ] <= 1.05 * wall
        if work is _spin:
            assert spent[CPU] >= 60_000_000 and spent[CPU] + spent[RUNQ] >= 0.6 * wall


def test_fresh_memory_faults(counters: ThreadCounters) -> None:
    _, spent = _observe(counters, lambda: _touched_mapping(400).close())
    assert spent[MINOR] >= 400


def test_counters_cover_only_their_thread(counters: ThreadCounters) -> None:
    other = threading.Thread(target=_spin)

    def work() -> None:
        other.start()
        other.join()

    _, spent = _observe(counters, work)
    assert spent[CPU] < 40_000_000, "without the other thread's spin"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flag is of x86-64")
def test_denormal_numbers_are_seen_on_the_thread_that_computes_with_them(counters: ThreadCounters) -> None:
    tiny, usual = (np.full(1000, value, np.float32) for value in (1e-39, 1.0))
    for values, expected in ((tiny, 1), (usual, 0), (tiny, 1)):
        assert _observe(counters, partial(np.multiply, values, np.float32(0.5)))[1][DENORMALS] == expected

    def elsewhere() -> None:
        other = threading.Thread(target=lambda: tiny * np.float32(0.5))
        other.start()
        other.join()

    assert _observe(counters, elsewhere)[1][DENORMALS] == 0


def test_snapshots_never_decrease_and_are_counted(counters: ThreadCounters) -> None:
    snapshots = [counters.snapshot() for _ in range(50)]
    assert counters.reads == 50
    for earlier, later in pairwise(snapshots):
        assert all(change >= 0 for change in difference(later, earlier))
    assert len(NO_ACCOUNT) == len(snapshots[0]) == len(THREAD_ACCOUNT)


def test_wake_returns_the_run_queue_delay_since_the_last_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    delay = 100  # a variable, as an interrupted snapshot reads it again
    monkeypatch.setattr("latfix.profilers.probes.kept_files.LockHeldFile.read", lambda _: b"7 %d 9\n" % delay)
    counters = ThreadCounters()
    delay = 400
    before, waited = counters.wake()
    assert (before[RUNQ], waited) == (400, 300)
    delay = 450
    assert counters.snapshot()[RUNQ] == 450
    delay = 1_450
    assert counters.wake()[1] == 1_000, "since the end of the last unit"
    assert counters.reads == 3
    counters.close()


def test_closing_releases_the_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    made = [ThreadCounters() for _ in range(20)]
    for one in made:
        one.close()
        one.close()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert not made[0].has_run_delay
    assert made[0].snapshot()[RUNQ] == 0


def test_the_cost_of_a_snapshot_is_that_of_its_system_calls() -> None:
    counters = ThreadCounters()
    start = time.perf_counter_ns()
    for _ in range(200):
        counters.snapshot()
    mean = (time.perf_counter_ns() - start) / 200
    assert 0 < median_cost_ns(counters.snapshot, samples=200) < 10 * mean
    counters.close()


def test_pool_delays_leave_python_threads_out() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        pool = PoolDelays()
        pool.refresh()
        assert thread.native_id not in pool.read()
        assert threading.get_native_id() not in pool.read()
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    ("before", "after", "growth"),
    [({}, {}, 0), ({1: 5}, {1: 9}, 4), ({1: 5, 2: 7}, {1: 9, 2: 17}, 10), ({}, {3: 99}, 0)],
)
def test_largest_growth(before: dict[int, int], after: dict[int, int], growth: int) -> None:
    assert PoolDelays.largest_growth(before, after) == growth


MEMORY = PROCESS_ACCOUNT[1:]
#: A thread's account with page faults.
FAULTED: Account = (0, 0, 0, 0, 1000, 0)


@pytest.fixture
def memory() -> Iterator[ProcessMemory]:
    made = ProcessMemory()
    yield made
    made.close()


def _touched_mapping(pages: int) -> mmap.mmap:
    mapped = mmap.mmap(-1, pages * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapped.madvise(mmap.MADV_NOHUGEPAGE)
    for offset in range(0, len(mapped), mmap.PAGESIZE):
        mapped[offset] = 1
    return mapped


def test_a_separate_mapping_is_not_growth_of_the_heap(memory: ProcessMemory) -> None:
    before = memory.read()
    with _touched_mapping(4096) as mapped:
        grown = dict(zip(MEMORY, memory.growth(before, FAULTED), strict=True))
    assert (
        grown["mapped_bytes"] >= 0.9 * 4096 * mmap.PAGESIZE and grown["resident_bytes"] >= 0.5 * grown["mapped_bytes"]
    )
    assert grown["arena_bytes"] + grown["blocks_bytes"] < 0.1 * grown["mapped_bytes"]
    assert mapped.closed


_GROW = """
import json
from latfix.profilers.probes import heap_readers
from latfix.profilers.probes.thread_counters import ProcessMemory
heap_readers._FEW_CHUNKS = 10_000  # imports alone may leave more chunks than the limit
memory = ProcessMemory()
before = memory.read()
quick = memory.heap.quick
held = bytearray(b"x") * (64 << 20)
print(json.dumps([quick, memory.growth(before, (0, 0, 0, 0, 1000, 0))]))
"""


def test_large_blocks_are_growth_of_the_heap(memory: ProcessMemory) -> None:
    if memory.heap.reader is None:
        pytest.skip("this C library has no mallinfo2")
    # A separate process: this one's heap may be too fragmented to be read for each unit.
    done = subprocess.run([sys.executable, "-c", _GROW], capture_output=True, check=True, text=True)
    quick, values = json.loads(done.stdout)
    grown = dict(zip(MEMORY, values, strict=True))
    assert quick
    assert 0.9 <= grown["used_bytes"] / (64 << 20) <= 1.5
    assert 0.9 <= (grown["arena_bytes"] + grown["blocks_bytes"]) / (64 << 20) <= 1.5
    assert grown["free_bytes"] > 0


def test_memory_is_read_only_after_page_faults(memory: ProcessMemory) -> None:
    reads = memory.reads
    assert memory.begin() == memory.latest
    assert not any(memory.growth(memory.latest, NO_ACCOUNT))
    assert memory.reads == reads, "without faults nothing is read"
    memory.growth(memory.latest, FAULTED)
    memory.begin()
    assert memory.reads == reads + 2, "after faults, units begin with a reading"
    memory.growth(memory.latest, NO_ACCOUNT)
    assert memory.reads == reads + 3, "and end with one, which shows freed memory"
    for _ in range(1000):
        memory.growth(memory.begin(), NO_ACCOUNT)
    assert memory.reads < reads + 500, "for a limited number of units"


def test_a_reading_without_the_heap_has_no_heap_growth(memory: ProcessMemory) -> None:
    change = dict(zip(MEMORY, memory.change((100, 50, 0, 0, 0), (300, 90, 80, 10, 40)), strict=True))
    assert change["mapped_bytes"] == 200 and change["resident_bytes"] == 40
    assert [change[name] for name in MEMORY[2:]] == [0, 0, 0, 0]
    change = dict(zip(MEMORY, memory.change((100, 50, 60, 5, 30), (300, 90, 80, 10, 40)), strict=True))
    assert [change[name] for name in MEMORY[2:]] == [20, 5, 15, 30]


def test_closed_memory_reads_as_zero() -> None:
    memory = ProcessMemory()
    memory.close()
    memory.close()
    assert memory.read()[:2] == (0, 0)


def test_counters_are_read_while_holding_the_interpreter_lock() -> None:
    """With a thread that always wants the lock, a reading that released it could lose it."""
    stop = threading.Event()
    counters = ThreadCounters()

    def spin() -> None:
        while not stop.is_set():
            pass

    thread = threading.Thread(target=spin)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.2)
    thread.start()
    try:
        time.sleep(0)
        switches = counters.snapshot()[VOLUNTARY]
        for _ in range(5000):
            counters.snapshot()
        switches = counters.snapshot()[VOLUNTARY] - switches
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join()
        counters.close()
    assert switches <= 1, "at most the other thread's pending request"
