"""Whole recordings of a device: steps, slow ones compared with quiet ones, damaged files."""

from __future__ import annotations

import gzip
import json
import math
import os
import sqlite3
from pathlib import Path

import pytest

from latfix.errors import InputError
from latfix.profilers.recordings.detect import diagnose_recording
from latfix.profilers.recordings.reader import ReadOptions
from latfix.results.diagnosis import Diagnosis
from tests.profilers.recordings.devices.hand_made import BEGIN_US, HandMade

ROOT = Path(__file__).resolve().parents[4]
REAL = Path(os.environ.get("LATFIX_RECORDINGS") or ROOT.parent / "shared" / "data" / "recordings")


def diagnosed(path: Path, **options: str) -> Diagnosis:
    return diagnose_recording(path, ReadOptions(**options))  # type: ignore[arg-type]


def cause_ms(result: Diagnosis, cause: str) -> float:
    return sum(entry.tail_ms for entry in result.causes if entry.cause == cause)


def served(made: HandMade, k: int, start: float, *, stall: float = 0.0, slower: float = 1.0, more: int = 0) -> float:
    """Add a step of three kernels and a wait. Returns its end."""
    begin, at = start, start + 2
    if stall:
        made.call("malloc", at, at + stall)
        at += stall
    ready = at
    for j in range(3 + more):
        made.call("launch", at, at + 5, 100 * k + j)
        at += 5
    runs = ready + 8
    for j in range(3 + more):
        made.work(100 * k + j, runs, runs + 100 * slower, name=f"gemm{min(j, 3)}")
        runs += 100 * slower
    made.call("sync", at, runs + 2)
    made.step(f"ProfilerStep#{k}", begin, runs + 4)
    return runs + 4


@pytest.mark.parametrize("vendor", ["cuda", "hip"])
@pytest.mark.parametrize(
    ("slow", "cause"),
    [
        ({"stall": 900.0}, "memory.allocator"),
        ({"slower": 3.0}, "gpu.slowdown"),
        ({"more": 6}, "input.size"),
    ],
)
def test_slow_steps_are_explained_by_the_part_that_grew(
    vendor: str, slow: dict[str, float], cause: str, tmp_path: Path
) -> None:
    made, at = HandMade(vendor), 0.0
    for k in range(40):
        at = served(made, k, at + 10, **(slow if k % 13 == 5 else {}))  # type: ignore[arg-type]
    result = diagnosed(made.write(tmp_path / "t.json.gz"))
    assert result.verdict == cause
    assert cause_ms(result, cause) == pytest.approx(result.excess_ms, rel=0.02)
    assert sum(entry.tail_ms for entry in result.causes) == pytest.approx(result.excess_ms, abs=1e-9)
    assert result.ledger.conservation_error_ns() == 0
    assert result.typical is not None and sum(result.typical.causes_ms.values()) == pytest.approx(
        result.typical.latency_ms
    )
    for unit in result.slowest:
        assert sum(unit.causes_ms.values()) == pytest.approx(unit.latency_ms, abs=1e-9)
        assert sum(unit.stages_ms.values()) == pytest.approx(unit.latency_ms, abs=1e-9)


def test_steps_alike_are_steady(tmp_path: Path) -> None:
    made, at = HandMade(), 0.0
    for k in range(30):
        at = served(made, k, at + 10)
    result = diagnosed(made.write(tmp_path / "t.json"))
    assert result.verdict == "steady" and not any(entry.named for entry in result.causes)


def test_stamps_beyond_the_precision_of_a_float_are_exact(tmp_path: Path) -> None:
    made = HandMade(begin_us=(1 << 53) + 1)
    made.step("step", 0, 0.003)
    made.call("sync", 0.001, 0.002)
    result = diagnosed(made.write(tmp_path / "t.json"))
    assert result.excess_ms == 3e-6 and BEGIN_US * 1000 > 1 << 53


def test_a_single_step_has_no_reference(tmp_path: Path) -> None:
    made = HandMade()
    served(made, 1, 0)
    result = diagnosed(made.write(tmp_path / "t.json"))
    assert result.is_single and math.isnan(result.reference_ms) and "without another to compare" in result.notes[0]
    document = result.to_json()
    assert document["tail"]["reference_ms"] is None and document["tail"]["percentile"] is None
    assert document["requests"]["error"] is None and document["source"]["unit"] == "step"


def test_steps_come_from_an_expression_ranges_or_calls(tmp_path: Path) -> None:
    made = HandMade()
    for k in range(4):
        made.step(f"decode {k}", 100 * k, 100 * k + 90)
        made.step("inner", 100 * k + 10, 100 * k + 20)
        made.code("aten::mm", 100 * k, 100 * k + 95, frame=False)
    path = made.write(tmp_path / "t.json")
    assert diagnosed(path).latency_ms["max"] == 0.09
    assert diagnosed(path, step="^inner$").latency_ms["max"] == 0.01
    assert diagnosed(path, step="aten::mm").latency_ms["max"] == 0.095
    with pytest.raises(InputError, match=r"--step '\^none'.*decode 0"):
        diagnosed(path, step="^none")
    plain = HandMade()
    for k in range(4):
        plain.code("Model.forward", 100 * k, 100 * k + 80)
    assert diagnosed(plain.write(tmp_path / "p.json")).requests["ok"] == 4


def test_a_range_around_all_steps_is_no_step(tmp_path: Path) -> None:
    made, at = HandMade(), 0.0
    for k in range(5):
        made.step(f"iteration {k}", at, at + 90)
        made.code("aten::mm", at, at + 80, frame=False)
        at += 100
    made.step("serve batch", 0, at)
    assert diagnosed(made.write(tmp_path / "t.json")).latency_ms["max"] == 0.09
    made.step("request 2", at, at + 50)
    assert diagnosed(made.write(tmp_path / "t.json")).latency_ms["max"] == 0.5


def test_a_folder_of_traces_is_one_recording(tmp_path: Path) -> None:
    for name in ("a.json", "b.json.gz"):
        made, at = HandMade(), 0.0
        for k in range(5):
            at = served(made, k, at + 10)
        made.write(tmp_path / name)
    result = diagnosed(tmp_path)
    assert result.requests["ok"] == 10 and result.source is not None and result.source.read["files"] == 2
    (tmp_path / "c.json.gz").write_bytes(b"damaged")
    assert "Not read, another format: c.json.gz." in diagnosed(tmp_path).notes


@pytest.mark.parametrize("late", [True, False])
def test_the_rank_that_the_others_wait_for_is_named(late: bool, tmp_path: Path) -> None:
    for rank in range(3):
        made = HandMade()
        for k in range(10):
            begin, slow = 1000.0 * k, late and k == 4
            length = 50 + (300 if slow and rank != 1 else 0)
            made.step(f"step {k}", begin, begin + 60 + 300 * slow)
            made.call("launch", begin, begin + 5, k)
            made.work(k, begin + 55 + 300 * slow - length, begin + 55 + 300 * slow, name="ncclKernel_AllReduce")
            made.call("sync", begin + 5, begin + 60 + 300 * slow)
        made.write(tmp_path / f"rank{rank}.json")
    result = diagnosed(tmp_path)
    assert any("100 % of the waiting" in note and "rank1.json" in note for note in result.notes) is late
    assert result.verdict == ("gpu.rank_wait" if late else "steady")


def test_a_wait_for_another_thread_is_not_called_outside(tmp_path: Path) -> None:
    made = HandMade()
    for k in range(10):
        made.step(f"step {k}", 1000 * k, 1000 * k + 900 * (k == 4) + 10)
        made.code("threading.py(637): wait", 1000 * k, 1000 * k + 900 * (k == 4) + 5)
    result = diagnosed(made.write(tmp_path / "t.json"))
    assert result.verdict == "external.dependency" and "waiting for another thread or" in result.sentence


def test_a_byte_order_mark_and_ends_before_begins(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(b"\xef\xbb\xbf" + whole().replace('"dur": 5', '"dur": -5', 1).encode())
    assert any(note.startswith("1 interval") and "read with length 0" in note for note in diagnosed(path).notes)


def whole() -> str:
    made = HandMade()
    served(made, 1, 0)
    return made.text()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (whole()[: len(whole()) // 2].encode(), "cut off"),
        (whole()[:-2].encode(), "cut off"),
        (gzip.compress(whole().encode())[:-20], "cut off"),
        (whole().replace('"dur": 5', '"dur": five', 1).encode(), "damaged"),
        (b'{"traceEvents": []}', "without a call"),
        (b'{"traceEvents": {"a": 1}, "deviceProperties": []}', "damaged"),
        (b'{"traceEvents": [1, 2]}', "damaged trace (event 1: 1 is no event)"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel"}]}', "damaged trace (event 1 has no 'name')"),
        (whole().replace('"ts": 17', '"ts": null, "x": 17', 1).encode(), "damaged"),
        (whole().replace('"ts": 17', '"ts": -9999', 1).encode(), "a time from -9"),
        (
            whole().replace('"ts": 17', '"ts": "soon", "x": 17', 1).encode(),
            "(event 1: the time 'soon')",
        ),
        (whole().replace('"name": "ProfilerStep#1"', '"name": null', 1).encode(), "the name None, which is no text"),
        (b'{"traceEvents": [' + b"[" * 100_000, ""),
        (2 * whole().encode(), "more after its end: several traces belong into a folder"),
    ],
)
def test_damaged_traces_are_refused_in_one_line(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        diagnosed(path)
    assert words in caught.value.message and str(path) in caught.value.message and "\n" not in caught.value.message


def export(path: Path) -> Path:
    """An export in the format of Nsight Systems, with a step of a launch, a kernel and a wait."""
    thread, process = 281476838981743, 281476838981632
    with sqlite3.connect(path) as database:
        database.execute("create table StringIds (id integer, value text)")
        names = ("cudaLaunchKernel_v7000", "cudaStreamSynchronize_v3020", "gemm(float*)")
        database.executemany("insert into StringIds values (?, ?)", enumerate(names))
        database.execute(
            "create table CUPTI_ACTIVITY_KIND_RUNTIME "
            "(start integer, end integer, globalTid integer, correlationId integer, nameId integer)"
        )
        rows = [(10_000, 15_000, thread, 901, 0), (16_000, 82_000, thread, 902, 1)]
        database.executemany("insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, ?, ?, ?)", rows)
        database.execute(
            "create table CUPTI_ACTIVITY_KIND_KERNEL (start integer, end integer, deviceId integer, "
            "streamId integer, correlationId integer, globalPid integer, demangledName integer)"
        )
        database.execute(
            "insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, 0, 7, 901, ?, 2)", (20_000, 80_000, process)
        )
        database.execute(
            "create table NVTX_EVENTS (start integer, end integer, eventType integer, globalTid integer, text text)"
        )
        database.execute("insert into NVTX_EVENTS values (0, 100000, 59, ?, 'step 1')", (thread,))
    database.close()
    return path


def test_a_trace_without_a_device_has_no_fixes_for_one(tmp_path: Path) -> None:
    ranges = [("user_annotation", f"ProfilerStep#{k}", 100 * k, 90 if k < 9 else 99) for k in range(10)]
    events = [*ranges, *(("cpu_op", "aten::addmm", begin + 5, length - 10) for _, _, begin, length in ranges)]
    document = {"traceEvents": [{"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": 1, "ts": begin, "dur": length}
                                for kind, name, begin, length in events], "schemaVersion": 1}  # fmt: skip
    (tmp_path / "x").write_text(json.dumps(document))
    result = diagnosed(tmp_path / "x")
    assert {cause.cause: cause.fixes for cause in result.causes}["host.python"] == ("fuse.compile",)
    assert result.device == ""


def test_an_export_of_nsight_systems(tmp_path: Path) -> None:
    result = diagnosed(export(tmp_path / "x"))
    assert result.source is not None and result.source.kind == "nsys"
    assert cause_ms(result, "gpu.compute") == 0.06
    assert cause_ms(result, "dispatch.launch") == 0.02
    assert cause_ms(result, "transfer.sync") == 0.002
    assert cause_ms(result, "host.python") == 0.018


def test_other_and_damaged_databases_are_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "foreign") as database:
        database.execute("create table people (name text)")
    database.close()
    with pytest.raises(InputError, match="an unknown format"):
        diagnosed(tmp_path / "foreign")
    content = export(tmp_path / "whole").read_bytes()
    (tmp_path / "cut").write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"cut"):
        diagnosed(tmp_path / "cut")
    with sqlite3.connect(export(tmp_path / "far")) as database:
        database.execute("update CUPTI_ACTIVITY_KIND_RUNTIME set start = ?", (-(2**63),))
    database.close()
    with pytest.raises(InputError, match="a time from -92"):
        diagnosed(tmp_path / "far")


def real(name: str) -> Diagnosis:
    """The diagnosis of a real recording; skips the test if it is missing."""
    path = REAL / name
    if not path.exists():
        pytest.skip(f"{path} is missing: recordings of real devices are not part of the project")
    result = diagnosed(path)
    assert not len(result.ledger.latency_ns) or result.ledger.conservation_error_ns() == 0
    return result


def test_real_first_use() -> None:
    result = real("nsys/rtx3080_first_use.sqlite")
    assert result.verdict == "cold.start" and cause_ms(result, "cold.start") > 35
    assert cause_ms(result, "memory.allocator") == pytest.approx(3.568941 + 0.769477)


def test_real_full_launch_queue() -> None:
    result = real("nsys/h100_2gpu_1s.sqlite")
    assert cause_ms(result, "dispatch.launch") < 0.01 * result.excess_ms
    assert any("queue was full" in note for note in result.notes)


def test_real_alexnet_copies_waits_allocation_and_first_use() -> None:
    result = real("kineto/a100_alexnet.json.gz")
    assert result.verdict == "cold.start"
    for cause in ("transfer.copy", "transfer.sync", "memory.allocator"):
        assert cause_ms(result, cause) > 0
    assert result.source is not None
    assert (result.source.read["copies"], result.source.read["allocator calls"]) == (16, 24 + 15 + 1)


def test_real_waits() -> None:
    assert cause_ms(real("kineto/a100_event_sync.json.gz"), "gpu.compute") == pytest.approx(0.036)


def test_real_graph_does_not_starve_the_device() -> None:
    result = real("kineto/mi300_vllm_decode_graph.json.gz")
    assert cause_ms(result, "dispatch.launch") == 0
    assert any("1 graph launch ran" in note for note in result.notes)


def test_real_step_bound_by_the_host() -> None:
    result = real("kineto/mi300_sglang_mixed.json.gz")
    assert (
        result.verdict == "host.python" and result.source is not None and result.source.read["Python frames"] > 53_000
    )


@pytest.mark.parametrize(("name", "kernels"), [("h100_qwen_prefill", 1465), ("h100_bert_small", 60)])
def test_real_traces_of_an_h100(name: str, kernels: int) -> None:
    result = real(f"kineto/{name}.json.gz")
    assert result.source is not None and result.source.read["kernels"] == kernels
    assert json.dumps(result.to_json(), allow_nan=False)
