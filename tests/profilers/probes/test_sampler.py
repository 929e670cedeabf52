"""The sampler's polls, and the probes' readings."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from latfix.profilers.calibration.microbenchmarks import unit_costs
from latfix.profilers.gpu.nvml import Nvml
from latfix.profilers.probes import heap_readers as allocator
from latfix.profilers.probes.control_groups import cgroup_reader
from latfix.profilers.probes.heap_readers import HostHeap
from latfix.profilers.probes.sampler import (
    Probe,
    Sampler,
    host_reader,
    pace_reader,
    pressure_reader,
    process_reader,
    thread_reader,
)
from latfix.profilers.probes.stage_recorder import EventLog, SampleLog
from latfix.run_record.schema import PACE

pytestmark = pytest.mark.alone


def _rows(log: SampleLog | EventLog) -> list[list[Any]]:
    return [json.loads(line) for line in log.drain(0).splitlines()]


def test_probes_are_polled_at_their_own_periods_and_once_at_the_end() -> None:
    samples, events = SampleLog(), EventLog()
    polled = threading.Event()
    count = 0

    def often() -> dict[str, float]:
        nonlocal count
        count += 1
        if count == 20:
            polled.set()
        return {"often": float(count)}

    probes = [Probe("often", 0.005, often), Probe("seldom", 60.0, lambda: {"seldom": 1.0})]
    with Sampler(probes, samples, events, name="test") as sampler:
        assert polled.wait(10)

    rows = _rows(samples)
    often_values = [value for _, series, value in rows if series == "often"]
    assert often_values == [float(k + 1) for k in range(count)] and count > 20
    assert sum(series == "seldom" for _, series, _ in rows) == 2, "at the start and at the end"
    assert sum(series == "poll.often_ns" for _, series, _ in rows) == count
    assert len(sampler.polls["often"]) == count
    assert not any(thread.name == "latfix-test" for thread in threading.enumerate())
    with Sampler([], samples, events, name="none"):
        assert not any(thread.name == "latfix-none" for thread in threading.enumerate()), "no probes, no thread"


def test_a_poll_that_uses_the_cpu_is_a_spike_and_one_that_sleeps_is_not() -> None:
    samples, events = SampleLog(), EventLog()

    def burn() -> dict[str, float]:
        end = time.thread_time_ns() + 3_000_000
        while time.thread_time_ns() < end:
            pass
        return {}

    def sleep() -> dict[str, float]:
        time.sleep(0.005)
        return {}

    probes = [Probe("burn", 60.0, burn), Probe("sleep", 60.0, sleep)]
    with Sampler(probes, samples, events, name="test"):
        pass

    spikes = _rows(events)
    probes_of = [row[6]["probe"] for row in spikes]
    # Both are polled at the start and at the end; a stall of the machine may make one sleep a spike.
    assert probes_of.count("burn") == 2 and probes_of.count("sleep") <= 1
    assert all(row[2] == "spike" for row in spikes)
    assert all(row[1] >= 3_000_000 for row in spikes if row[6]["probe"] == "burn")


@pytest.mark.parametrize("in_driver", [True, False])
def test_a_poll_that_sleeps_in_a_driver_is_a_spike(in_driver: bool) -> None:
    events = EventLog()

    def sleep() -> dict[str, float]:
        time.sleep(0.02)
        return {}

    with Sampler([Probe("nvml", 60.0, sleep, in_driver=in_driver)], SampleLog(), events, name="test"):
        pass
    assert len(_rows(events)) == (2 if in_driver else 0)


def test_the_pace_is_processor_time_of_the_same_work() -> None:
    read = pace_reader()
    begun = time.thread_time_ns()
    readings = [read() for _ in range(20)]
    spent = time.thread_time_ns() - begun
    assert all(set(reading) == {PACE} and reading[PACE] > 0 for reading in readings)
    assert sum(reading[PACE] for reading in readings) <= spent


def test_host_and_process_counters_grow() -> None:
    host, process = host_reader(), process_reader()
    before = host(), process()
    end = time.process_time_ns() + 50_000_000
    while time.process_time_ns() < end:
        pass
    after = host(), process()
    assert after[0]["host.cpu_busy_ns"] > before[0]["host.cpu_busy_ns"]
    assert after[0]["host.steal_ns"] >= before[0]["host.steal_ns"]
    assert after[1]["process.cpu_ns"] - before[1]["process.cpu_ns"] >= 50_000_000
    assert after[1]["process.rss_bytes"] > 1 << 20


def test_files_of_ended_threads_are_closed() -> None:
    read = thread_reader()
    first = read()
    held = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(3):
        end = threading.Event()
        thread = threading.Thread(target=end.wait, name="passer-by")
        thread.start()
        during = read()
        task = Path(f"/proc/self/task/{thread.native_id}")
        end.set()
        thread.join()
        while task.exists():  # the kernel removes it after Python's join returns
            time.sleep(0.001)
        after = read()
        assert "thread.passer-by.cpu_ns" in during and "thread.passer-by.cpu_ns" not in after
        assert during["process.threads"] == first["process.threads"] + 1 == after["process.threads"] + 1
    assert len(os.listdir("/proc/self/fd")) <= held  # noqa: PTH208


@pytest.mark.parametrize("make", [cgroup_reader, pressure_reader])
def test_available_readers_return_numbers(make: Any) -> None:
    read = make()
    if read is None:
        pytest.skip(f"{make.__name__}: this kernel has none")
    reading = read()
    assert reading and all(value >= 0 for value in reading.values())


_ALLOCATED = """
import torch
from latfix.profilers.probes.heap_readers import HostHeap

read = HostHeap().reader
if read is not None:
    before = read()
    held = [torch.zeros(16_384) for _ in range(64)]
    after = read()
    print(sum(after[name] - before[name] for name in ("malloc.used_bytes", "malloc.mmapped_bytes")))
"""


def test_the_heap_grows_with_what_is_allocated() -> None:
    # In a separate process: a fragmented heap, as in a long-running one, is read seldom.
    output = subprocess.run([sys.executable, "-c", _ALLOCATED], check=True, capture_output=True, text=True).stdout
    if not output:
        pytest.skip("this C library has no mallinfo2")
    assert float(output) >= 64 * 16_384 * 4 * 0.9


def test_a_fragmented_heap_is_read_seldom_and_not_for_each_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "_LONG_NS", 0)  # independent of the machine's speed
    heap = HostHeap()
    read = heap.reader
    if read is None:
        pytest.skip("this C library has no mallinfo2")
    blocks = [bytearray(3_000) for _ in range(40_000)]
    del blocks[::2]
    first, second = read(), read()
    assert first["malloc.free_chunks"] > 10_000
    assert second == {}, "a long reading is followed by a pause"
    assert not heap.quick


@contextlib.contextmanager
def running(*threads: threading.Thread, stop: threading.Event) -> Iterator[None]:
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()


def test_threads_are_counted_by_name_and_native_ones_together() -> None:
    read, stop = thread_reader(), threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    threads = [threading.Thread(target=spin, name="twin") for _ in range(2)]
    with running(*threads, threading.Thread(target=stop.wait, name="idle" + "x" * 100), stop=stop):
        before = read()
        end = time.process_time_ns() + 200_000_000
        while time.process_time_ns() < end:
            time.sleep(0.01)
        after = read()
    grown = {series: after[series] - before.get(series, 0.0) for series in after if series.endswith(".cpu_ns")}
    (idle,) = [series for series in grown if series.startswith("thread.idle")]
    assert len(idle) < 80
    assert max(grown, key=lambda series: grown[series]) == "thread.twin.cpu_ns"
    assert grown[idle] < 0.1 * grown["thread.twin.cpu_ns"]
    assert {series.replace("cpu_ns", "runq_ns") for series in grown} <= set(after)


def test_the_number_of_names_is_bounded() -> None:
    read, stop = thread_reader(), threading.Event()
    with running(*(threading.Thread(target=stop.wait, name=f"many-{k}") for k in range(60)), stop=stop):
        names = {series for series in read() if series.endswith(".cpu_ns")}
    assert "thread.other.cpu_ns" in names and len(names) <= 34


def test_opening_nvml_reports_the_device_or_the_reason() -> None:
    nvml, line = Nvml.open()
    assert line.startswith("NVML: ") and "\n" not in line
    if nvml is not None:
        assert nvml.read()
        nvml.close()


def test_unit_costs_lie_within_their_intervals() -> None:
    costs = unit_costs()
    for name in ("minor_fault", "unmapping_mib"):
        assert 0 <= costs[f"{name}_low_ns"] <= costs[f"{name}_ns"] <= costs[f"{name}_high_ns"] > 0, name
    # On any machine, more work takes longer.
    assert costs["unmapping_mib_ns"] > 0.02 * 256 * costs["minor_fault_ns"] > 0
    assert costs["page_bytes"] == mmap.PAGESIZE
