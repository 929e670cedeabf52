"""The allocator's calls in the row of each batch, on a fake device."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from latfix.profilers.gpu.allocator_counters import BatchCounters, from_nested
from tests.conftest import FakeCuda
from tests.runners.engine.served import Served, requests_of

pytestmark = pytest.mark.alone

_MIB = 1 << 20


class _Allocating(torch.nn.Module):
    """Each request allocates device memory that grows with its number; the fourth fails."""

    def __init__(self, device: Any) -> None:
        super().__init__()
        self.device = device

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        number = int(x[0, 0])
        held = self.device.allocate((20 + 20 * number) * _MIB)
        if number == 3:
            raise RuntimeError("no answer")
        del held
        return x


def _serve(device: Any, requests: int, workers: int = 1, model: torch.nn.Module | None = None) -> Any:
    """Batch rows of requests that arrive one by one, or all at once if there are several workers."""
    made = (model or _Allocating(device)).eval()
    counters = BatchCounters.of(lambda: from_nested(device.stats()))
    served = Served(requests_of([2] * requests), made, workers=workers, reserve_mb=4, start=False)
    assert served.engine.device_memory is None, "the model is on the host"
    served.engine.device_memory = counters
    served.engine.start()
    for slot in range(requests):
        served.send(slot, wait=workers == 1)
        time.sleep(0.03 if workers == 1 else 0.0)  # so that the reading is over
    _, batches = served.end()
    assert all(worker.reserved is None for worker in served.engine.workers), "there is no device to reserve on"
    return batches


def test_each_batch_has_its_own_calls() -> None:
    rows = _serve(FakeCuda(70 * _MIB), 3)
    assert rows["device_read"].tolist() == [1, 1, 1]
    assert rows["device_allocs"].tolist() == [1, 1, 1]
    # Twenty MiB, then forty more, and then sixty, for which both are released first.
    assert rows["device_taken_bytes"].tolist() == [20 * _MIB, 40 * _MIB, 60 * _MIB]
    assert rows["alloc_retries"].tolist() == [0, 0, 1] and rows["device_frees"].tolist() == [0, 0, 2]
    assert rows["device_reserved_bytes"].tolist() == [20 * _MIB, 60 * _MIB, 60 * _MIB]


def test_calls_of_a_failed_batch_are_in_the_next_reading() -> None:
    rows = _serve(FakeCuda(1 << 30), 5)
    assert rows["device_read"].tolist() == [1, 1, 1, 0, 1]
    assert rows["device_allocs"].tolist() == [1, 1, 1, 0, 2]


class _Meeting(torch.nn.Module):
    """Two at a time, so that there is always another batch in progress; the last one is alone."""

    def __init__(self) -> None:
        super().__init__()
        self.barrier = threading.Barrier(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if int(x[0, 0]) < 8:
            self.barrier.wait(timeout=20)
        return x


def test_workers_that_overlap_are_not_read() -> None:
    """Of two overlapping batches only the one that ends last is read: by then no other is in progress."""
    rows = _serve(FakeCuda(), 8, workers=2, model=_Meeting())
    assert len(rows) == 8 and rows["device_read"].sum() <= 4
