"""The allocator's counters by batch, its largest free block, and costs of device calls, on a fake device with the
model of the allocator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from latfix.profilers.calibration.gpu_memory_calls import (
    CudaCalls,
    CudaPages,
    device_costs,
    expandable,
    measure_calls,
)
from latfix.profilers.gpu.allocator_counters import (
    AllocatorCounters,
    BatchCounters,
    RunningBatches,
    cuda_counters,
    cuda_reader,
    from_nested,
)
from latfix.profilers.gpu.free_block_probe import MOST_BLOCKS, FreeBlocksReader, free_blocks_reader
from latfix.profilers.probes.stage_recorder import StageRecorder
from tests.conftest import FakeCuda

_MIB = 1 << 20


def _row(recorder: StageRecorder, batch: int) -> dict[str, int]:
    mine = [name for name in recorder.batch if name.startswith(("alloc_", "device_")) and name != "device_ns"]
    return {name: recorder.batch[name][batch] for name in mine}


def _counting(device: Any, read: Callable[[], AllocatorCounters | None] | None = None) -> BatchCounters:
    result = BatchCounters.of(read or (lambda: from_nested(device.stats())), device.clock)
    assert result is not None
    return result


def _slowly(device: Any) -> Callable[[], AllocatorCounters | None]:
    """A slow reading."""

    def read() -> AllocatorCounters | None:
        device.now += 50_000
        return from_nested(device.stats())

    return read


def _read(recorder: StageRecorder, *batches: int) -> list[int]:
    return [int(recorder.batch["device_read"][batch]) for batch in batches]


@pytest.mark.parametrize("concurrent", [False, True])
def test_driver_calls_between_batches_are_not_attributed_to_a_batch(concurrent: bool) -> None:
    """During a batch they cannot be separated from it, so that the batch keeps all its changes."""
    device = FakeCuda(100 * _MIB)
    recorder, counters = StageRecorder(2), _counting(device)
    held = []
    if concurrent:
        counters.enter()
        held.append(device.allocate(12 * _MIB))
    with counters.aside():
        held.append(device.allocate(30 * _MIB))
        assert counters.idle(lambda: True) is None, "nothing is read meanwhile"
    if not concurrent:
        counters.enter()
    counters.note(recorder.batch, 0)
    counters.leave()
    assert _row(recorder, 0)["device_allocs"] == (2 if concurrent else 0)
    assert counters.idle(lambda: True)


def test_a_batch_gets_the_changes_since_the_previous_one() -> None:
    device = FakeCuda(100 * _MIB)
    recorder = StageRecorder(4)
    model = device.allocate(12 * _MIB)
    counters = _counting(device)
    assert counters.first.reserved_bytes == 12 * _MIB
    whole = device.allocate(60 * _MIB)
    counters.note(recorder.batch, 0)
    del whole
    small = device.allocate(20 * _MIB)  # splits the segment of 60 MiB
    counters.note(recorder.batch, 1)
    with pytest.raises(device.refused):
        device.allocate(70 * _MIB)
    counters.note(recorder.batch, 2)
    reserved = {"device_reserved_bytes": 72 * _MIB, "device_allocated_bytes": 72 * _MIB}
    done = {"device_read": 1, "device_allocs": 1, "device_taken_bytes": 60 * _MIB}
    assert _row(recorder, 0) == dict.fromkeys(_row(recorder, 0), 0) | done | reserved
    assert _row(recorder, 1)["device_allocs"] == 0 and _row(recorder, 1)["device_pieces_bytes"] == 40 * _MIB
    assert _row(recorder, 2)["alloc_retries"] == 1 and counters.latest.retries == 1
    del small, model


def test_a_retry_gives_entirely_free_segments_back() -> None:
    device = FakeCuda(100 * _MIB)
    recorder, counters = StageRecorder(4), _counting(device)
    held = [device.allocate(30 * _MIB) for _ in range(3)]
    counters.note(recorder.batch, 0)
    held.clear()
    kept = device.allocate(80 * _MIB)
    counters.note(recorder.batch, 1)
    row = _row(recorder, 1)
    assert (row["alloc_retries"], row["device_allocs"], row["device_frees"]) == (1, 1, 3)
    assert (row["device_taken_bytes"], row["device_given_bytes"]) == (80 * _MIB, 90 * _MIB)
    del kept


def test_a_long_reading_is_followed_by_a_pause() -> None:
    device = FakeCuda()
    recorder, counters = StageRecorder(8), _counting(device, _slowly(device))
    counters.note(recorder.batch, 0)
    for batch, later in ((1, 1_000_000), (2, 10_000_000), (3, 2_000_000)):
        device.now += later
        block = device.allocate((20 + 20 * batch) * _MIB)
        counters.note(recorder.batch, batch)
        del block
    # Read at the first and, over 10 ms later, at the third, which also gets the second's calls.
    assert _read(recorder, 0, 1, 2, 3) == [1, 0, 1, 0]
    assert recorder.batch["device_allocs"][1] == 0 and recorder.batch["device_allocs"][2] == 2
    assert (counters.reads, counters.cost_ns) == (2, 100_000)
    assert counters.cost_ns <= 0.01 * device.now


def test_memory_reserved_ahead_is_not_attributed_to_a_batch() -> None:
    device = FakeCuda()
    recorder, counters = StageRecorder(4), _counting(device)
    ahead = device.allocate(300 * _MIB)
    counters.skip()
    counters.note(recorder.batch, 0)
    assert _row(recorder, 0)["device_allocs"] == 0 and _row(recorder, 0)["device_reserved_bytes"] == 300 * _MIB
    assert counters.first.reserved_bytes == 0
    del ahead


def test_nothing_is_read_while_another_worker_runs_a_batch() -> None:
    """It might be in a driver call with the allocator's lock, for which a reading would wait."""
    device = FakeCuda()
    recorder, counters = StageRecorder(4), _counting(device)
    counters.enter()
    counters.enter()
    counters.note(recorder.batch, 0)
    counters.leave()
    counters.note(recorder.batch, 1)
    counters.leave()
    assert _read(recorder, 0, 1) == [0, 1]


def test_a_service_on_the_host_has_no_counters() -> None:
    assert cuda_counters("cpu") is None and BatchCounters.of(None) is None
    assert cuda_reader("cpu") is None and free_blocks_reader("cpu") is None and device_costs("cpu") == {}
    assert from_nested({}) is None, "before the device's first use"
    assert BatchCounters.of(lambda: from_nested({})) is None


def _segment(*blocks: tuple[int, str]) -> dict[str, Any]:
    return {"device": 0, "blocks": [{"size": size * _MIB, "state": state} for size, state in blocks]}


@pytest.mark.parametrize(("cost_ms", "rest_s"), [(0, 5), (20, 10)])
def test_blocks_are_listed_after_a_pause_and_not_if_there_are_many(cost_ms: int, rest_s: int) -> None:
    clock, listed, count = [0], [0], [4]

    def segments() -> list[dict[str, Any]]:
        listed[0] += 1
        clock[0] += cost_ms * 1_000_000
        return [
            _segment((30, "active_allocated"), (12, "inactive"), (3, "inactive")),
            _segment((40, "active_awaiting_free")),
        ]

    reader = FreeBlocksReader(segments, lambda: count[0], lambda: clock[0])
    assert reader.poll() == {"cuda.largest_free_block_bytes": 12 * _MIB, "cuda.free_blocks": 2}
    clock[0] += rest_s * 1_000_000_000 - 100_000_000
    assert reader.poll() == {} and listed[0] == 1
    clock[0] += 200_000_000
    assert reader.poll() and listed[0] == 2
    clock[0] += 60_000_000_000
    count[0] = MOST_BLOCKS + 1
    assert reader.poll() == {} and listed[0] == 2


def test_call_costs_are_fixed_plus_by_size() -> None:
    device = FakeCuda(4 << 30)
    costs = measure_calls(device, device.clock)
    assert costs["device_malloc_ns"] == pytest.approx(device.MALLOC_NS)
    assert costs["device_malloc_mib_ns"] == pytest.approx(device.MIB_NS)
    assert costs["device_free_ns"] == pytest.approx(device.FREE_NS)
    assert costs["device_free_mib_ns"] == pytest.approx(device.MIB_NS)
    assert costs["device_malloc_low_ns"] <= costs["device_malloc_ns"] <= costs["device_malloc_high_ns"]
    assert device.memory() == (4 << 30, 4 << 30), "all of it was given back"


def test_a_device_that_is_nearly_full_or_refuses_has_no_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    malloc, device = FakeCuda.malloc, FakeCuda(4 << 30, others=3584 * _MIB)
    assert measure_calls(device, device.clock) == {} and device.now == 0, "it is left alone"
    device = FakeCuda(4 << 30)
    free = iter([1] * 5)  # then the device is full
    monkeypatch.setattr(FakeCuda, "malloc", lambda self, size: malloc(self, size) if next(free, 0) else 0)
    assert measure_calls(device, device.clock) == {} and next(free, 0) == 0


def test_expandable_segments_are_recognized() -> None:
    assert expandable("max_split_size_mb:64, expandable_segments:True")
    assert not expandable("expandable_segments:False")
    assert CudaCalls.open("cpu") is None and CudaPages.open("cpu") is None


class _Runtime:
    """A fake of CUDA's runtime for memory."""

    device = 0

    def cudaGetDevice(self, device: Any) -> int:
        device._obj.value = self.device
        return 0

    def cudaSetDevice(self, device: int) -> int:
        self.device = device
        return 0

    def cudaMemGetInfo(self, left: Any, total: Any) -> int:
        left._obj.value = total._obj.value = 8 << 30
        return 0

    def cudaDeviceSynchronize(self) -> int:
        return 0


class _Driver:
    """A fake of CUDA's driver for pages; each call takes some time.

    :param most: pages that it creates; ``places`` pages that it maps.
    """

    def __init__(self, most: int = 1_000, places: int = 1_000) -> None:
        self.now, self.most, self.places = 0, most, places
        self.created: dict[int, int] = {}
        self.mapped: dict[int, int] = {}
        self.open: list[tuple[int, int]] = []
        self.ranges: list[int] = []

    def cuMemAddressReserve(self, start: Any, size: int, *_: int) -> int:
        start._obj.value = 1 << 40
        self.ranges.append(size)
        return 0

    def cuMemAddressFree(self, start: int, size: int) -> int:
        assert start == 1 << 40
        self.ranges.remove(size)
        return 0

    def cuMemCreate(self, handle: Any, size: int, wanted: Any, _: int) -> int:
        assert (wanted._obj.location.id, wanted._obj.type) == (1, 1)
        if len(self.created) >= self.most:
            return 2
        self.now += 30_000
        handle._obj.value = 7 + len(self.created)
        self.created[handle._obj.value] = size
        return 0

    def cuMemMap(self, start: int, size: int, _: int, handle: int, __: int) -> int:
        assert self.created[handle] == size
        if len(self.mapped) >= self.places:
            return 2
        self.mapped[start] = size
        return 0

    def cuMemSetAccess(self, start: int, size: int, *_: Any) -> int:
        assert sum(self.mapped.values()) == size
        self.now += 50_000
        self.open.append((start, size))
        return 0

    def cuMemUnmap(self, start: int, _: int) -> int:
        self.now += 20_000
        return 0 if self.mapped.pop(start, 0) else 1

    def cuMemRelease(self, handle: int) -> int:
        del self.created[handle]
        return 0


def _priced(driver: _Driver, runtime: _Runtime) -> Mapping[str, Any]:
    """Costs of calls on device 1; all pages are released."""
    pages: Any = CudaPages(runtime, 1, driver)  # type: ignore[arg-type]
    with pages:
        assert runtime.device == 1
        costs = measure_calls(pages, lambda: driver.now)
        assert not (driver.created or driver.mapped)
    assert runtime.device == 0 and not driver.ranges
    return costs


def test_page_costs_are_those_of_mapping_them() -> None:
    driver = _Driver()
    costs = _priced(driver, _Runtime())
    assert set(driver.open) == {(1 << 40, 2 * _MIB), (1 << 40, 120 * _MIB)}
    # One page of 2 MiB, and six of 20 MiB.
    each_mib = 5 * 30_000 / 118
    assert costs["device_malloc_mib_ns"] == pytest.approx(each_mib)
    assert costs["device_malloc_ns"] == pytest.approx(80_000 - 2 * each_mib)
    assert costs["device_free_mib_ns"] == pytest.approx(5 * 20_000 / 118)


@pytest.mark.parametrize("driver", [_Driver(most=4), _Driver(places=4)])
def test_refused_pages_have_no_costs_and_leave_nothing_behind(driver: _Driver) -> None:
    assert _priced(driver, _Runtime()) == {}


@pytest.mark.parametrize("backend", ["cudaMallocAsync", "pluggable"])
def test_an_allocator_without_a_block_list_is_not_queried(torch_on: Any, backend: str) -> None:
    """It raises, which would end the sampler's thread and the run."""
    torch = torch_on(FakeCuda(), backend=backend)
    assert free_blocks_reader("cuda:0") is None
    read, counters = cuda_reader("cuda:0"), cuda_counters("cuda:0")
    if backend == "pluggable":
        assert read is None and counters is None and torch.asked == []
    else:
        assert read is not None and read()["cuda.reserved_bytes"] == 0
        assert BatchCounters.of(counters) is not None


def test_blocks_are_listed_between_batches() -> None:
    """A worker may be in a driver call with the lock for which the listing waits, holding the interpreter's."""
    listed: list[int] = []
    inside = RunningBatches()

    def segments() -> list[dict[str, Any]]:
        listed.append(1)
        return [_segment((1, "inactive"))]

    reader = FreeBlocksReader(segments, lambda: 4, inside=inside)
    inside.enter()
    assert reader.poll() == {} and listed == []
    inside.leave()
    assert reader.poll() and listed == [1]


def test_the_blocks_of_all_devices_count(torch_on: Any) -> None:
    """A listing always covers all devices."""
    few, many = FakeCuda(), FakeCuda(64 << 30)
    torch_on(few, many)
    free = few.allocate(30 * _MIB)
    del free
    read = free_blocks_reader("cuda:0")
    assert read is not None and read()["cuda.largest_free_block_bytes"] == 30 * _MIB
    held = [many.allocate(512) for _ in range(MOST_BLOCKS + 1)]
    again = free_blocks_reader("cuda:0")
    assert again is not None and again() == {}
    del held


def test_during_a_batch_series_come_from_the_last_reading(torch_on: Any) -> None:
    device = FakeCuda()
    torch = torch_on(device)
    recorder = StageRecorder(4)
    counters = _counting(device, cuda_counters("cuda:0"))
    read = cuda_reader("cuda:0", counters)
    assert read is not None
    counters.enter()
    held = device.allocate(30 * _MIB)
    counters.note(recorder.batch, 0)
    counters.leave()
    counters.enter()
    calls = len(torch.asked)
    assert read()["cuda.reserved_bytes"] == 30 * _MIB and len(torch.asked) == calls, "torch is not called"
    more = device.allocate(40 * _MIB)
    counters.leave()  # it failed, without a reading at its end
    counters.enter()
    assert read() == {} and len(torch.asked) == calls, "the last reading lacks that batch's changes"
    counters.leave()
    assert read()["cuda.reserved_bytes"] == 70 * _MIB
    del held, more


def test_a_reading_that_is_not_due_makes_the_last_one_stale(torch_on: Any) -> None:
    device = FakeCuda()
    torch = torch_on(device)
    recorder, counters = StageRecorder(4), _counting(device, _slowly(device))
    read = cuda_reader("cuda:0", counters)
    assert read is not None
    for batch in range(2):
        counters.enter()
        held = device.allocate(30 * (batch + 1) * _MIB)
        counters.note(recorder.batch, batch)
        counters.leave()
        del held
    assert _read(recorder, 0, 1) == [1, 0] and torch.asked == []
    assert read()["cuda.device_allocs"] == 2 and torch.asked == ["getDeviceStats"]
    device.now += 100_000_000
    counters.enter()  # its members run one by one, and only after the first is a reading due
    for batch in (2, 3):
        held = device.allocate(30 * (batch + 1) * _MIB)
        counters.note(recorder.batch, batch)
        del held
    counters.leave()
    assert _read(recorder, 2, 3) == [1, 0]
    counters.enter()
    assert read() == {}


def test_on_several_devices_nothing_is_read_during_batches(torch_on: Any) -> None:
    torch = torch_on(FakeCuda(), FakeCuda())
    inside = RunningBatches()
    read = cuda_reader("cuda:1", inside)
    assert read is not None and read()
    inside.enter()
    inside.note({}, 0)
    assert read() == {} and torch.asked == ["getDeviceStats"]
    inside.leave()
    inside.skip()
    assert read() and (inside.reads, inside.cost_ns) == (0, 0)
