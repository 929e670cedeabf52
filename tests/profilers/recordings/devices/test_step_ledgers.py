"""Ledgers of steps on handmade traces: every microsecond has the planted cause."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latfix.profilers.recordings.devices.kineto_json import read_trace
from latfix.profilers.recordings.devices.step_ledger import QUEUE_FULL, Ledgers, StepLedger, shortest_of_ranks
from latfix.profilers.recordings.devices.steps import find_steps
from tests.profilers.recordings.devices.hand_made import HandMade

VENDORS = pytest.mark.parametrize("vendor", ["cuda", "hip", "sycl"])


def ledger(made: HandMade, tmp_path: Path) -> StepLedger:
    path = made.write(tmp_path / "trace.json")
    trace = read_trace(path)
    return Ledgers(trace).of(find_steps(trace, "", path)[0][0])


def in_us(parts: Counter[str]) -> dict[str, float]:
    return {name: value / 1000 for name, value in parts.items() if value}


@VENDORS
def test_a_starved_device_is_the_hosts_time(vendor: str, tmp_path: Path) -> None:
    made = HandMade(vendor)
    made.step("ProfilerStep#1", 0, 100)
    made.code("model.py(3): forward", 0, 100)
    made.call("launch", 10, 15, 1)
    made.work(1, 18, 28)
    made.call("launch", 60, 65, 2)
    made.work(2, 70, 80)
    made.call("sync", 66, 82)
    result = ledger(made, tmp_path)
    assert in_us(result.causes) == {
        "host.python": 18,
        "transfer.sync": 2,
        "gpu.compute": 10,
        "dispatch.launch": 70,
    }
    assert in_us(result.stages) == {"Python": 74, "launches": 10, "waits": 16}


def test_without_kernels_starvation_is_unknown(tmp_path: Path) -> None:
    made = HandMade("cuda")
    made.step("ProfilerStep#1", 0, 100)
    made.call("launch", 10, 15, 1)
    made.call("copy", 30, 40, 2)
    made.work(2, 32, 38, name="Memcpy DtoH", cat="gpu_memcpy")
    made.call("launch", 60, 65, 3)
    causes = in_us(ledger(made, tmp_path).causes)
    assert "dispatch.launch" not in causes and sum(causes.values()) == 100


def test_without_calls_it_is_unknown_whether_the_host_waited(tmp_path: Path) -> None:
    made = HandMade()
    made.step("ProfilerStep#1", 0, 100)
    made.code("aten::mm", 0, 90, frame=False)
    made.work(1, 10, 80)
    assert in_us(ledger(made, tmp_path).causes) == {"unexplained": 100}


@VENDORS
def test_launches_held_up_by_a_full_queue_are_the_devices_time(vendor: str, tmp_path: Path) -> None:
    made = HandMade(vendor)
    made.step("step 1", 0, 915)
    for k in range(5):
        made.call("launch", 5 * k, 5 * k + 5, k)
        made.work(k, 10 + 150 * k, 160 + 150 * k)
    made.call("launch", 25, 500, 5)
    made.work(5, 760, 910)
    made.call("sync", 500, 915)
    result = ledger(made, tmp_path)
    assert in_us(result.causes) == {"gpu.compute": 900, "dispatch.launch": 10, "transfer.sync": 5}
    assert result.stages[QUEUE_FULL] == 475_000


@VENDORS
def test_a_queue_that_is_always_full_has_no_usual_launch(vendor: str, tmp_path: Path) -> None:
    made = HandMade(vendor)
    made.step("step 1", 5000, 6000)
    for k in range(100):  # each launch waits until one of the 20 kernels ahead has ended
        made.call("launch", 100 * k, 100 * k + 98, k)
        made.work(k, 100 * k + 1990, 100 * k + 2090)
    result = ledger(made, tmp_path)
    assert in_us(result.causes) == {"gpu.compute": 998, "host.python": 2}
    assert result.stages[QUEUE_FULL] == 10 * 98_000


@VENDORS
def test_a_launch_that_starts_its_kernel_late_leaves_the_device_idle(vendor: str, tmp_path: Path) -> None:
    made = HandMade(vendor)
    made.step("step 1", 0, 20_120)
    made.call("launch", 0, 5, 1)
    made.work(1, 8, 100, name="first")
    made.call("launch", 10, 20_000, 2)
    made.work(2, 20_003, 20_100, name="second")
    made.call("sync", 20_000, 20_120)
    assert in_us(ledger(made, tmp_path).causes) == {
        "cold.start": 19_990,
        "dispatch.launch": 13,
        "gpu.compute": 97,
        "transfer.sync": 20,
    }


def test_stamps_rounded_so_that_calls_overlap_change_nothing(tmp_path: Path) -> None:
    made = HandMade()
    made.step("step", 0, 1010)
    made.call("launch", 5, 10.2, 1)
    made.call("sync", 10.1, 1008)
    made.work(1, 12, 1004)
    causes = ledger(made, tmp_path).causes
    assert causes["gpu.compute"] == 992_000 and causes["host.python"] == 2_000


@VENDORS
def test_a_graph_is_one_launch_of_many_kernels(vendor: str, tmp_path: Path) -> None:
    made = HandMade(vendor)
    made.step("decode", 0, 803)
    made.call("graph", 0, 500, 1)
    for start, end in ((510, 600), (602, 700), (700, 800)):
        made.work(1, start, end)
    made.call("sync", 505, 803)
    result = ledger(made, tmp_path)
    assert in_us(result.causes) == {
        "transfer.sync": 3,
        "gpu.compute": 288,
        "gpu.gaps": 2,
        "dispatch.launch": 510,
    }


def test_a_pageable_copy_blocks_the_host(tmp_path: Path) -> None:
    made = HandMade()
    made.step("step", 0, 70)
    made.call("copy", 10, 60, 1)
    made.work(1, 20, 58, name="Memcpy HtoD (Pageable -> Device)", cat="gpu_memcpy", bytes=1000)
    made.call("sync", 61, 65)
    result = ledger(made, tmp_path)
    assert in_us(result.causes) == {
        "host.python": 6,
        "transfer.sync": 4,
        "transfer.copy": 50,
        "dispatch.launch": 10,
    }
    assert result.copied_bytes == result.pageable == 1000


def test_copies_within_a_device_are_compute_and_between_devices_collectives(tmp_path: Path) -> None:
    made = HandMade()
    made.step("step", 0, 50)
    made.call("copy", 0, 2, 1)
    made.work(1, 4, 20, name="Memcpy DtoD (Device -> Device)", cat="gpu_memcpy", bytes=10)
    made.call("copy", 2, 4, 2)
    made.work(2, 20, 48, name="Memcpy PtoP (Device -> Device)", cat="gpu_memcpy", bytes=10)
    made.call("sync", 5, 50)
    causes = in_us(ledger(made, tmp_path).causes)
    assert (causes["gpu.compute"], causes["gpu.collective"]) == (16, 28)
    assert "transfer.copy" not in causes or causes["transfer.copy"] <= 4


def test_a_device_left_idle_by_a_wait_is_attributed_to_the_wait(tmp_path: Path) -> None:
    made = HandMade()
    made.step("step", 0, 102)
    made.call("launch", 0, 5, 1)
    made.work(1, 8, 20)
    made.call("sync", 6, 22)
    made.call("launch", 40, 45, 2)
    made.work(2, 48, 100)
    made.call("sync", 46, 102)
    assert in_us(ledger(made, tmp_path).causes) == {
        "transfer.sync": 27,
        "dispatch.launch": 11,
        "gpu.compute": 64,
    }


@VENDORS
def test_allocator_calls_and_first_uses(vendor: str, tmp_path: Path) -> None:
    made = HandMade(vendor, first=1)
    made.step("step", 0, 40_000)
    made.call("malloc", 0, 770)
    made.call("launch", 1000, 36_000, 1)
    made.work(1, 36_002, 36_010)
    made.call("launch", 36_100, 36_105, 2)
    made.work(2, 36_110, 36_120)
    made.call("pinned", 36_200, 39_800)
    made.call("sync", 39_800, 39_803)
    result = in_us(ledger(made, tmp_path).causes)
    assert result["cold.start"] == 35_000
    assert result["memory.allocator"] == 770 + 3_600


def test_frames_that_wait_outside_and_the_collector(tmp_path: Path) -> None:
    made = HandMade()
    made.step("step", 0, 100)
    made.code("<built-in function sleep>", 10, 40)
    made.code("<built-in function collect>", 50, 60)
    made.code("aten::select", 70, 90, frame=False)
    assert in_us(ledger(made, tmp_path).causes) == {
        "external.dependency": 30,
        "python.gc": 10,
        "host.python": 60,
    }


def test_code_without_a_recorded_call_has_the_name_of_its_range(tmp_path: Path) -> None:
    made = HandMade()
    made.step("step", 0, 100)
    made.step("feature_store.get", 20, 60)
    made.step("parse", 25, 28)
    made.code("aten::select", 30, 40, frame=False)
    made.step("feature_store.get", 20, 60, thread=2)
    result = ledger(made, tmp_path)
    assert {name: value for (_, name), value in result.named.items()} == {
        "code of the host": 60_000,
        "code in feature_store.get": 27_000,
        "code in parse": 3_000,
        "select": 10_000,
    }
    assert result.pieces["host.python", "code in feature_store.get"] == 3


def test_work_before_the_recording_stays_unexplained(tmp_path: Path) -> None:
    made = HandMade("hip")
    made.step("step", 0, 500_000)
    made.call("copy", 100, 493_000, 1)
    made.work(1, 492_990, 492_995, name="Memcpy HtoD (Host -> Device)", cat="gpu_memcpy", bytes=60)
    result = in_us(ledger(made, tmp_path).causes)
    assert result["unexplained"] > 492_000 and result["transfer.copy"] < 100


def test_the_path_crosses_between_streams(tmp_path: Path) -> None:
    made = HandMade()
    made.step("step", 0, 204)
    made.call("launch", 0, 5, 1)
    made.work(1, 6, 100, name="a", stream=7)
    made.call("launch", 5, 10, 2)
    made.work(2, 101, 200, name="b", stream=8)
    made.call("sync", 12, 204)
    result = ledger(made, tmp_path)
    assert result.named["gpu.compute", "a"] == 94_000 and result.named["gpu.compute", "b"] == 99_000
    assert in_us(result.causes)["gpu.gaps"] == 1


def test_collectives_beyond_the_shortest_of_their_kind_wait_for_other_ranks(tmp_path: Path) -> None:
    made = HandMade()
    made.step("step", 0, 420)
    for k, (start, end) in enumerate(((10, 40), (40, 70), (70, 400))):
        made.call("launch", 2 * k, 2 * k + 2, k)
        made.work(k, start, end, name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)")
    made.call("sync", 8, 420)
    result = in_us(ledger(made, tmp_path).causes)
    assert (result["gpu.collective"], result["gpu.rank_wait"]) == (90, 300)


def test_with_all_ranks_the_last_to_arrive_does_not_wait(tmp_path: Path) -> None:
    traces = []
    for rank, length in enumerate((300, 50)):
        made = HandMade()
        made.step("step", 0, 400)
        made.call("launch", 0, 5, 1)
        made.work(1, 10, 10 + length, name="ncclKernel_AllReduce")
        traces.append(read_trace(made.write(tmp_path / f"{rank}.json")))
    floors = shortest_of_ranks(traces)
    assert floors is not None and [int(each[0]) for each in floors] == [50_000, 50_000]
    assert shortest_of_ranks(traces[:1]) is None


INTERVALS = st.lists(
    st.tuples(
        st.sampled_from(["launch", "graph", "sync", "copy", "malloc", "frame", "op", "cudaFuncGetAttributes"]),
        st.integers(0, 3000),
        st.integers(0, 800),
        st.integers(0, 1500),
        st.integers(0, 400),
        st.sampled_from([7, 8]),
        st.sampled_from([1, 2]),
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(intervals=INTERVALS, steps=st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 3000)), max_size=3))
def test_ledgers_of_any_trace_sum_exactly(
    intervals: list[tuple[str, int, int, int, int, int, int]],
    steps: list[tuple[int, int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    made = HandMade()
    made.code("main", 0, 1)
    for start, length in steps:
        made.step("step", start, start + length)
    for k, (kind, start, length, delay, runs, stream, thread) in enumerate(intervals):
        if kind in ("frame", "op"):
            made.code(kind, start, start + length, frame=kind == "frame", thread=thread)
            continue
        made.call(kind, start / 7, start / 7 + length, k, thread=thread)
        if kind in ("launch", "graph", "copy"):
            cat = "gpu_memcpy" if kind == "copy" else "kernel"
            made.work(k, start / 7 + delay, start / 7 + delay + runs, name=kind, cat=cat, stream=stream)
    path = made.write(tmp_path_factory.mktemp("trace") / "t.json")
    trace = read_trace(path)
    ledgers = Ledgers(trace)
    for step in find_steps(trace, "", path)[0]:
        result = ledgers.of(step)
        assert sum(result.causes.values()) == step.length == sum(result.stages.values())
        assert all(value >= 0 for value in result.causes.values())
