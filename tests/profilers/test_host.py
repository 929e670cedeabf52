"""What a thread did: on the processor, waiting for it, or blocked. Checked as shares, never as times."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from latfix.columns import THREAD_ACCOUNT
from latfix.profilers.host import (
    NO_ACCOUNT,
    Account,
    CgroupThrottle,
    PoolDelays,
    ThreadCounters,
    difference,
    snapshot_cost_ns,
)

CPU, RUNQ, VOLUNTARY, MINOR = (THREAD_ACCOUNT.index(name) for name in ("cpu_ns", "runq_ns", "vcsw", "minflt"))


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


def test_a_spin_is_on_the_processor_or_waiting_for_it(counters: ThreadCounters) -> None:
    wall, spent = _observe(counters, _spin)
    assert 0.6 <= (spent[CPU] + spent[RUNQ]) / wall <= 1.05
    assert spent[CPU] >= 60_000_000


def test_a_sleep_is_blocked(counters: ThreadCounters) -> None:
    wall, spent = _observe(counters, lambda: time.sleep(0.05))
    assert (spent[CPU] + spent[RUNQ]) / wall < 0.5
    assert spent[VOLUNTARY] >= 1


def test_wall_is_never_less_than_what_the_thread_accounts_for(counters: ThreadCounters) -> None:
    for work in (_spin, lambda: time.sleep(0.01), lambda: sum(range(10_000))):
        wall, spent = _observe(counters, work)
        assert spent[CPU] <= wall
        assert spent[CPU] + spent[RUNQ] <= 1.05 * wall


def test_fresh_memory_faults(counters: ThreadCounters) -> None:
    import mmap

    def touch() -> None:
        with mmap.mmap(-1, 400 * mmap.PAGESIZE) as memory:
            memory.madvise(mmap.MADV_NOHUGEPAGE)
            for offset in range(0, len(memory), mmap.PAGESIZE):
                memory[offset] = 1

    _, spent = _observe(counters, touch)
    assert spent[MINOR] >= 400


def test_counters_are_of_their_thread_only(counters: ThreadCounters) -> None:
    other = threading.Thread(target=_spin)

    def work() -> None:
        other.start()
        other.join()

    _, spent = _observe(counters, work)
    assert spent[CPU] < 40_000_000, "the other thread's spin is not this one's"


def test_snapshots_never_fall_and_are_counted(counters: ThreadCounters) -> None:
    snapshots = [counters.snapshot() for _ in range(50)]
    assert counters.reads == 50
    for earlier, later in pairwise(snapshots):
        assert all(change >= 0 for change in difference(later, earlier))
    assert len(NO_ACCOUNT) == len(snapshots[0]) == len(THREAD_ACCOUNT)


def test_closing_gives_the_descriptor_back() -> None:
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
    counters.close()
    assert 0 < snapshot_cost_ns(samples=200) < 10 * mean


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


def test_throttling_reads_as_a_number_or_not_at_all() -> None:
    throttle = CgroupThrottle()
    assert throttle.throttled_ns() >= 0
    assert throttle.available or throttle.read() == {}
