"""Memory of a CUDA device: counters by batch, call costs, reservations, limits, histories. Skipped without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from latfix.profilers.calibration.gpu_memory_calls import CudaCalls, device_costs
from latfix.profilers.gpu.alloc_conf import ALLOC_CONF
from latfix.profilers.gpu.allocator_counters import BatchCounters, cuda_counters
from latfix.profilers.gpu.free_block_probe import free_blocks_reader
from latfix.profilers.probes.stage_recorder import StageRecorder
from latfix.runners.fixes.memory.device_allocator import choice_of
from latfix.runners.gpu_memory.allocation_history import begin_history, end_history
from latfix.runners.gpu_memory.caching_allocator import DeviceAllocator, reserve_on_stream
from tests.gpu.marks import ON_CUDA

pytestmark = ON_CUDA

_DEVICE = "cuda:0"
_MIB = 1 << 20


@pytest.fixture(autouse=True)
def _nothing_cached() -> None:
    torch.cuda.init()  # type: ignore[no-untyped-call]
    torch.cuda.empty_cache()


def _taken(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=_DEVICE)


def test_a_batch_has_the_calls_that_it_made() -> None:
    counters = BatchCounters.of(cuda_counters(_DEVICE))
    assert counters is not None
    recorder, held = StageRecorder(4), []
    for batch in range(3):
        if batch == 1:
            held.append(_taken(64 * _MIB))
        counters.note(recorder.batch, batch)
        time.sleep(0.1)
    assert [recorder.batch["device_read"][k] for k in range(3)] == [1, 1, 1]
    assert [recorder.batch["device_allocs"][k] for k in range(3)] == [0, 1, 0]
    assert recorder.batch["device_taken_bytes"][1] == 64 * _MIB
    assert recorder.batch["device_reserved_bytes"][1] >= 64 * _MIB


def test_a_reading_is_short() -> None:
    counters = BatchCounters.of(cuda_counters(_DEVICE))
    assert counters is not None
    recorder = StageRecorder(64)
    for batch in range(20):
        counters.note(recorder.batch, batch)
        time.sleep(0.05)
    assert counters.reads >= 10 and counters.cost_ns / counters.reads < 200_000


def test_call_costs_are_measured_without_changing_the_cache() -> None:
    kept = _taken(40 * _MIB)
    del kept
    before = torch.cuda.memory_reserved(_DEVICE)
    costs = device_costs(_DEVICE)
    assert torch.cuda.memory_reserved(_DEVICE) == before, "torch's cache is unchanged"
    assert costs, "libcudart was found, and the device has free memory"
    assert 1e3 < costs["device_malloc_ns"] + 20 * costs["device_malloc_mib_ns"] < 5e7  # a microsecond to fifty ms
    assert costs["device_malloc_low_ns"] <= costs["device_malloc_ns"] <= costs["device_malloc_high_ns"]
    pages = device_costs(_DEVICE, "expandable_segments:True")
    assert torch.cuda.memory_reserved(_DEVICE) == before and set(pages) == set(costs)
    assert 1e3 < pages["device_malloc_ns"] + 20 * pages["device_malloc_mib_ns"] < 5e7


def test_a_refused_call_does_not_fail_the_next_torch_call() -> None:
    calls = CudaCalls.open(_DEVICE)
    assert calls is not None
    with calls:
        assert calls.malloc(1 << 50) == 0
    assert float(torch.ones(3, device=_DEVICE).sum()) == 3


def test_the_freed_block_is_the_largest_free_one() -> None:
    read = free_blocks_reader(_DEVICE)
    assert read is not None
    held = [_taken(30 * _MIB) for _ in range(2)]
    del held[0]
    result = read()
    assert result["cuda.largest_free_block_bytes"] >= 30 * _MIB and result["cuda.free_blocks"] >= 1


def test_reserved_memory_is_used_on_its_stream_without_a_call() -> None:
    """On a separate thread, like a worker."""
    seen: dict[str, Any] = {}

    def work() -> None:
        stream = torch.cuda.Stream(_DEVICE)  # type: ignore[no-untyped-call]
        seen["reserved"] = reserve_on_stream(256, _DEVICE, stream)
        read = cuda_counters(_DEVICE)
        assert read is not None
        before = read()
        with torch.cuda.stream(stream):
            held = [_taken(size * _MIB) for size in (100, 60, 20, 5)] + [_taken(1000) for _ in range(50)]
            del held
        stream.synchronize()
        after = read()
        assert before is not None and after is not None
        seen["calls"] = after.allocs - before.allocs

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen["reserved"].note == "" and seen["reserved"].got_bytes >= 0.9 * seen["reserved"].wanted_bytes
    assert seen["calls"] == 0


def test_the_allocator_reports_its_settings_and_enforces_its_limit() -> None:
    """In a separate process: the environment is read at its start, and a limit is permanent."""
    code = (
        "import json, torch; from latfix.runners.gpu_memory.caching_allocator import DeviceAllocator; "
        "torch.cuda.init(); "
        "a = DeviceAllocator('cuda:0'); total = a.memory()[1]; a.set_share((256 << 20) / total); refused = False\n"
        "try: torch.empty(400 << 20, dtype=torch.uint8, device='cuda')\n"
        "except torch.cuda.OutOfMemoryError: refused = True\n"
        "print(json.dumps([dict(a.settings()), a.share() * total, refused, a.backend()]))"
    )
    conf = "max_split_size_mb:64,garbage_collection_threshold:0.8"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, ALLOC_CONF: conf}, capture_output=True, text=True, check=True
    )
    settings, limit, refused, backend = json.loads(done.stdout.splitlines()[-1])
    assert settings["max_split_size"] == 64 * _MIB
    assert settings["garbage_collection_threshold"] == pytest.approx(0.8)
    assert limit == pytest.approx(256 * _MIB, rel=0.01) and refused and backend == "native"


def test_a_history_is_recorded_and_read(tmp_path: Path) -> None:
    assert begin_history(_DEVICE) == ""
    held = [_taken(size * _MIB) for size in (60, 30)]
    del held
    end_history(tmp_path / "history.pickle")
    result = choice_of(tmp_path / "history.pickle", DeviceAllocator(_DEVICE).memory()[1])
    assert result.setting == "" and "no allocation stalls or fails" in result.description
