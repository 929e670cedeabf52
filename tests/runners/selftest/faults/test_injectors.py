"""Each injector does what it claims, by independent counters."""

from __future__ import annotations

import ctypes
import gc
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch

from latfix.runners.selftest.faults import fault_log, injectors, memory
from latfix.runners.selftest.faults.fault_log import Done, FaultLog, Stopwatch, fastest_ns, read_faults
from latfix.runners.selftest.faults.growth import GROWTHS, Growth
from latfix.runners.selftest.faults.injectors import Injectors, cause_of, supported
from latfix.runners.selftest.service.workload import MOST_FAULTS, WIDTH, Options, Served
from latfix.spans import SpanRecord, collect_spans

pytestmark = pytest.mark.alone

glibc = pytest.mark.skipif(bool(supported("trim")), reason="needs the GNU C library")


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def _inside(done: Done) -> bool:
    return 0 <= done.ns <= done.end_ns - done.start_ns


def test_a_sleep_waits_and_uses_no_core() -> None:
    before = time.thread_time_ns()
    done = injectors.sleep(8.0)
    assert done.end_ns - done.start_ns >= 8_000_000
    assert (time.thread_time_ns() - before) < 0.5 * (done.end_ns - done.start_ns)


def test_a_declared_sleep_is_one_span() -> None:
    spans: list[SpanRecord] = []
    collect_spans(spans)
    try:
        done = injectors.declared_sleep(5.0)
    finally:
        collect_spans(None)
    assert len(spans) == 1
    assert done.start_ns <= spans[0].start_ns <= spans[0].end_ns <= done.end_ns


def test_extra_work_uses_the_requested_processor_time() -> None:
    work = injectors.ExtraWork()
    before = time.thread_time_ns()
    done = work(6.0)
    used = time.thread_time_ns() - before
    assert 6_000_000 <= used < 2 * 6_000_000
    assert _inside(done)


@pytest.fixture
def collector_put_back() -> Iterator[None]:
    """Restores the garbage collector."""
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()
    gc.collect()


@pytest.mark.usefixtures("collector_put_back")
def test_a_collection_takes_longer_on_a_larger_heap_and_is_a_full_one() -> None:
    seen: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            seen.append(info["generation"])

    small = injectors.Collections(3.0)
    objects = len(small.heap)
    large = injectors.Collections(18.0)
    assert len(large.heap) > 1.5 * objects
    gc.callbacks.append(note)
    try:
        done = large(18.0)
    finally:
        gc.callbacks.remove(note)
    assert seen == [2] and _inside(done)


def test_page_faults_are_counted_by_the_kernel_and_happen_again() -> None:
    faults = memory.PageFaults()
    faults.reserve(4.0, mappings=1)
    for _ in range(3):
        before = _faults()
        done = faults(4.0)
        wanted = 4.0e6 / faults.page_ns
        assert _faults() - before >= 0.9 * wanted
        assert _inside(done)


_GROWTH = """
import resource, threading
from latfix.runners.selftest.faults.memory import PAGE, Heap, HeapGrowth

Heap().one_arena(trim_bytes=1 << 30)
growth = HeapGrowth()
trim, given_back = growth._give_back, threading.Event()
growth._give_back = lambda held: (trim(held), given_back.set())
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    done = growth(growth._block_ns * 2 / 1e6)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, growth._SIZE * 2 // PAGE)
    assert 0 < done.ns <= done.end_ns - done.start_ns
    assert given_back.wait(10)
    given_back.clear()
"""


@glibc
def test_heap_growth_faults_its_pages_every_time() -> None:
    # In a separate process: memory that other tests freed would be used for the blocks.
    script = [sys.executable, "-c", _GROWTH]
    lines = subprocess.run(script, check=True, capture_output=True, text=True).stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        faults, pages = map(int, line.split())
        assert faults >= 0.9 * pages


_FRAGMENTS = """
import ctypes
from latfix.runners.selftest.faults.memory import Fragments, Heap

heap = Heap()
heap.one_arena(trim_bytes=4 << 20)
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
fragments = Fragments(holes_bytes=64 << 20)
free_before, arena_before = libc.mallinfo2().fordblks, libc.mallinfo2().arena
held = [heap.malloc(Fragments._SIZE) for _ in range(160)]
grown = libc.mallinfo2().arena - arena_before
for address in held:
    heap.free(address)
fragments(1.0)
print(free_before, grown, 160 * Fragments._SIZE)
"""


@glibc
def test_a_fragmented_heap_grows_although_enough_is_free() -> None:
    """In a separate process, as a fragmented heap stays fragmented."""
    done = subprocess.run([sys.executable, "-c", _FRAGMENTS], capture_output=True, text=True, check=True)
    free, grown, requested = map(int, done.stdout.split())
    assert free > 1.5 * requested and grown > 0.7 * requested


def test_retries_are_sleeps_of_one_length() -> None:
    retries = partial(injectors.retry, 80.0)
    before = time.thread_time_ns()
    waits = [retries(ms) for ms in (25.0, 45.0, 70.0)]
    assert [round(done.ns / 20_000_000 - 0.3) for done in waits] == [1, 2, 4]
    assert time.thread_time_ns() - before < 0.5 * sum(done.ns for done in waits)


@pytest.mark.skipif(bool(supported("denormals")), reason=supported("denormals"))
def test_denormals_are_slow_on_the_core_and_only_by_their_values() -> None:
    made = injectors.Denormals()
    start = time.thread_time_ns()
    done = made(20.0)
    assert 0.3 * done.ns < time.thread_time_ns() - start < 3 * done.ns
    assert _inside(done)
    assert made.times_slower > 2
    torch.set_flush_denormal(True)
    try:
        # Flushed, they are zeros, whose square roots are slow, too, on some processors.
        zeros, ones = (partial(torch.sqrt, torch.full((8192,), value)) for value in (0.0, 1.0))
        slow_zeros = fastest_ns(zeros) > 2 * fastest_ns(ones)
        assert slow_zeros or injectors.Denormals().times_slower < 0.5 * made.times_slower
    finally:
        torch.set_flush_denormal(False)


def test_a_held_lock_waits_without_a_core() -> None:
    lock = injectors.HeldLock()
    before = time.thread_time_ns()
    first, second = lock(6.0), lock(6.0)
    assert (time.thread_time_ns() - before) < 0.5 * (second.end_ns - first.start_ns)
    for done in (first, second):
        assert done.end_ns - done.start_ns >= 5_900_000


def test_waiting_for_a_core_is_not_the_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    delays = iter([1_000, 3_001_000])
    monkeypatch.setattr(fault_log, "run_delay_ns", lambda: next(delays))
    watch = Stopwatch()
    time.sleep(0.005)
    done = watch.stop()
    assert done.ns == done.end_ns - done.start_ns - 3_000_000


def test_every_strike_is_logged_with_its_request_and_cause(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    struck = Injectors({"sleep": 2.0, "work": 2.0}, FaultLog(file))
    struck.strike("prepare", "sleep", 2.0, "r000007")
    struck.strike("model", "sleep", 2.0, "r000008")
    struck.strike("model", "work", 2.0, "r000009")
    found = [(fault.cause, fault.where, fault.request) for fault in read_faults(file)]
    assert found == [
        ("external.dependency", "prepare", "r000007"),
        ("unexplained", "model", "r000008"),
        ("host.slowdown", "model", "r000009"),
    ]
    assert all(fault.ns > 0 for fault in read_faults(file))


@pytest.mark.parametrize("kind", sorted({*injectors.KINDS} - {"none", "sleep", "retry", "neighbor"}))
def test_every_kind_has_a_cause(kind: str) -> None:
    assert cause_of(kind, "model") == cause_of(kind, "prepare")


@pytest.mark.parametrize("kind", GROWTHS)
def test_growth_slows_later_requests_down(kind: str) -> None:
    growth = Growth(kind, 4.0, 24)
    before = time.thread_time_ns()
    costs = []
    for k in range(24):
        done = growth(str(k // 2))
        now = time.thread_time_ns()
        costs.append(now - before)
        before = now
        assert _inside(done)
    assert sum(costs[-6:]) > 1.3 * sum(costs[:6])
    assert growth.cause == {"shift": "drift.unknown", "scan": "drift.cache"}.get(kind, f"drift.{kind}")


def test_touching_is_outside_the_interpreter_lock() -> None:
    """While one thread touches many pages, another runs bytecode."""
    size, ran, interval = 16 << 20, threading.Event(), sys.getswitchinterval()
    buffer = ctypes.create_string_buffer(size)

    def touched() -> bool:
        for _ in range(200):
            memory.touch(ctypes.addressof(buffer), size)
            if ran.is_set():
                return True
        return False

    sys.setswitchinterval(1_000.0)  # no thread has to give the lock up
    try:
        with ThreadPoolExecutor(1) as pool:
            seen = pool.submit(touched)
            ran.set()
    finally:
        sys.setswitchinterval(interval)
    assert seen.result()


def test_beyond_the_recompile_limit_the_model_runs_uncompiled_and_longer(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    log = FaultLog(file)
    served = Served(Options(blocks=1, compiled=1, uncompiled_ms=3.0), Injectors({}, log), log)
    nothing = torch.zeros(1, MOST_FAULTS, 2, dtype=torch.int64)
    for number, length in enumerate([*range(4, 16), 4, 15]):
        served(torch.ones(1, length, WIDTH), nothing, torch.tensor([[number, 0]]))
    kinds = {fault.request: fault.kind for fault in read_faults(file)}
    assert {fault.cause for fault in read_faults(file)} == {"cold.compile"}
    # Eight versions are compiled; a known length runs in its version, any other one uncompiled.
    assert kinds == {
        **{f"r{k:06d}": "compile" for k in range(8)},
        **{f"r{k:06d}": "uncompiled" for k in (8, 9, 10, 11, 13)},
    }
    assert all(fault.ns >= 3_000_000 for fault in read_faults(file) if fault.kind == "uncompiled")
