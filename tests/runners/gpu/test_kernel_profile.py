"""Profiles of the device, from synthetic traces in the format of ``torch.profiler``."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from latfix.runners.gpu.copy_costs import copy_costs
from latfix.runners.gpu.kernel_profile import RANGE, waits_in, work_of
from tests.runners.engine.served import instance_of
from tests.runners.gpu.simulated import SimulatedAccelerator, Speeds

pytestmark = pytest.mark.alone


class Trace:
    """Calls of the host, and the device's work in order. Times in microseconds."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.now = self.free = 100.0
        self.ties = 0

    def _add(self, cat: str, name: str, ts: float, dur: float, **args: Any) -> None:
        self.events.append({"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": 1, "args": args})

    def launch(self, name: str = "kernel", *, takes: float = 10.0, host: float = 5.0) -> None:
        self.ties += 1
        self._add("cuda_runtime", "cudaLaunchKernel", self.now, host, correlation=self.ties)
        begin = max(self.free, self.now + host) + 1.0
        self._add("kernel", name, begin, takes, correlation=self.ties, stream=7)
        self.now, self.free = self.now + host, begin + takes

    def item(self) -> None:
        """``.item()``: a copy to pageable memory, and a wait for its end."""
        self.ties += 1
        begin = max(self.free, self.now + 3.0) + 1.0
        self._add("cuda_runtime", "cudaMemcpyAsync", self.now, begin + 1.5 - self.now, correlation=self.ties)
        self._add("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", begin, 1.0, correlation=self.ties, bytes=4)
        self.free, self.now = begin + 1.0, begin + 1.5
        self._add("cuda_runtime", "cudaStreamSynchronize", self.now, 2.0, correlation=self.ties + 1000)
        self.now += 2.0

    def idle(self, us: float) -> None:
        self.now += us

    def called(self) -> list[dict[str, Any]]:
        first = min(event["ts"] for event in self.events)
        mark = {"ph": "X", "cat": "user_annotation", "name": RANGE, "ts": first - 1, "dur": self.now - first + 2}
        return [*self.events, mark]


def test_a_host_that_is_ahead_leaves_no_gaps() -> None:
    trace = Trace()
    for _ in range(20):
        trace.launch(takes=50.0)
    work = work_of(trace.called(), size=4, elements=800)
    assert work is not None
    assert (work.size, work.elements, work.launches, work.waits) == (4, 800, 20, 0)
    assert work.busy_ns == 20 * 50_000 and work.launch_ns == 0 and work.sync_ns == 0
    assert work.span_ns == pytest.approx(20 * 51_000 - 1_000)
    assert work.kernels == {"kernel": 20}


def test_a_host_that_is_behind_leaves_the_device_waiting() -> None:
    trace = Trace()
    for _ in range(20):
        trace.launch(takes=2.0, host=10.0)
    work = work_of(trace.called())
    assert work is not None and work.sync_ns == 0
    # The device works for two of ten microseconds; the delay of a start also counts as launch.
    assert work.launch_ns == pytest.approx(19 * 8_000) and work.busy_ns == 20 * 2_000


def test_the_gap_after_a_read_number_counts_as_sync() -> None:
    trace = Trace()
    for _ in range(6):
        for _ in range(5):
            trace.launch(takes=40.0)
        trace.item()
        trace.idle(20.0)
    work = work_of(trace.called())
    assert work is not None and work.waits == 6
    assert work.sync_ns == pytest.approx(5 * (0.5 + 2 + 20 + 5 + 1) * 1e3, rel=0.05)
    # Only the first operator after each finds the stream empty.
    assert work.launch_ns == 0
    assert work.copies == {"DtoH (Device -> Pageable)": 24}


def test_a_copy_from_pinned_memory_is_no_wait() -> None:
    trace = Trace()
    trace.launch(takes=100.0)
    trace._add("cuda_runtime", "cudaMemcpyAsync", 106.0, 3.0, correlation=9)
    trace._add("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 207.0, 4.0, correlation=9, bytes=4096)
    trace.now = 120.0
    work = work_of(trace.called())
    assert work is not None and work.waits == 0 and work.copies == {"HtoD (Pinned -> Device)": 4096}


def test_only_work_of_the_models_call_is_counted() -> None:
    """Not the answer's copy, and no other thread's work."""
    trace = Trace()
    trace.launch()
    inside = trace.called()
    trace.now += 500.0
    trace.launch("another")
    work = work_of([*inside, *trace.events[-2:]])
    assert work is not None and work.kernels == {"kernel": 1}


def test_a_profile_without_a_device_is_empty() -> None:
    assert work_of([{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1.0, "dur": 2.0}]) is None
    assert work_of([]) is None


def test_the_line_that_waits_is_named() -> None:
    class Peeks(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total = x.sum()
            return x * 2 if float(total.item()) > 0 else x

    accelerator = SimulatedAccelerator()
    waits, quiet = (instance_of(model, accelerator.device) for model in (Peeks(), torch.nn.ReLU()))
    for instance in (waits, quiet):
        instance.place_on(accelerator)
    (place,) = waits_in(waits, torch.ones(2, 3))
    assert place.startswith("test_kernel_profile.py:")
    assert waits_in(quiet, torch.ones(2, 3)) == []


def test_the_price_of_a_copy_is_a_latency_and_a_time_for_each_byte() -> None:
    found = copy_costs(SimulatedAccelerator(speeds=Speeds(byte=2e-8)), large=1 << 20)
    assert set(found) == {"copy_in_ns", "copy_in_mib_ns", "copy_out_ns", "copy_out_mib_ns"}
    # 2e-8 seconds per byte are 21 ms per MiB; a small copy takes almost nothing.
    assert found["copy_in_mib_ns"] == pytest.approx(2e-8 * (1 << 20) * 1e9, rel=0.3)
    assert 0 < found["copy_in_ns"] < 0.3 * found["copy_in_mib_ns"]
