"""The stage recorder: stages sum to the latency for any end of a request, and segments on disk."""

from __future__ import annotations

import json
import time
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latfix.profilers.probes import stage_recorder
from latfix.profilers.probes.stage_recorder import EventLog, SampleLog, SegmentWriter, StageRecorder
from latfix.run_record.schema import BATCH_DTYPE, REQUEST_DTYPE
from latfix.stages import STAGES, Status

T0 = 1_000_000
#: Boundaries that a request crosses before it ends.
ENDS = {
    "shed": 1,
    "error in prepare": 1,
    "timeout in the queue": 3,
    "error in collate": 3,
    "error in the model": 5,
    "error in finish": 7,
    "ok": 7,
    "timeout in finish": 7,
}
STATUSES = {name: Status[name.split()[0].upper()] for name in ENDS}


def _stamp(recorder: StageRecorder, slot: int, lengths: list[int], reached: int, status: Status) -> None:
    """Cross ``reached`` boundaries of a request, each ``lengths[k]`` after the last, then end it."""
    points = list(accumulate([T0 + slot * 1000, *lengths]))
    end = points[min(reached + 1, 8)]
    recorder.scheduled_ns[slot] = points[0]
    own = {1: recorder.handed, 2: recorder.enqueued, 3: recorder.taken}
    for k, view in own.items():
        if k <= reached:
            view[slot] = points[k]
    if reached > 3 or status is Status.OK:
        batch = recorder.new_batch()
        recorder.batch_id[slot] = batch
        names = ("collated_ns", "h2d_end_ns", "compute_end_ns", "d2h_end_ns")
        for k, name in enumerate(names, start=4):
            recorder.batch_values(batch, {name: points[k] if k <= reached else end})
    recorder.request_done(slot, status, end)


@given(
    st.sampled_from(sorted(ENDS)),
    st.lists(st.integers(0, 10**10), min_size=8, max_size=8),
    st.integers(0, 3),
)
def test_stages_add_up_to_the_latency_exactly(how: str, lengths: list[int], warmup: int) -> None:
    recorder = StageRecorder(1, warmup)
    recorder.t0_ns = T0
    _stamp(recorder, warmup, lengths, ENDS[how], STATUSES[how])

    (row,) = recorder.drain_requests()

    stages = [int(row[f"{stage}_ns"]) for stage in STAGES]
    reached = ENDS[how]
    assert sum(stages) == row["latency_ns"] == sum(lengths[: reached + 1])
    assert all(stage >= 0 for stage in stages)
    assert stages[: reached + 1] == lengths[: reached + 1]
    assert not any(stages[reached + 1 :]), "a stage that was not reached has length 0"
    assert row["status"] == STATUSES[how]
    assert row["index"] == 0


def test_slots_and_indices() -> None:
    recorder = StageRecorder(2, warmup=3)
    assert [recorder.index_of(slot) for slot in range(5)] == [-1, -2, -3, 0, 1]
    for slot in range(5):
        _stamp(recorder, slot, [1] * 8, 7, Status.OK)
    rows = recorder.drain_requests()
    assert rows["index"].tolist() == [-1, -2, -3, 0, 1]
    assert rows["warmup"].tolist() == [1, 1, 1, 0, 0]


def test_rows_are_drained_once() -> None:
    recorder = StageRecorder(3)
    for slot in range(2):
        _stamp(recorder, slot, [1] * 8, 7, Status.OK)
    assert len(recorder.drain_requests()) == 2
    _stamp(recorder, 2, [1] * 8, 7, Status.OK)
    assert recorder.drain_requests()["index"].tolist() == [2]
    assert len(recorder.drain_requests()) == 0
    assert recorder.completed == 3


def test_batch_stamps_count_from_the_start_of_the_run() -> None:
    recorder = StageRecorder(1)
    recorder.t0_ns = 500
    batch = recorder.new_batch()
    stamps = [name for name in BATCH_DTYPE.names or () if name.endswith("_ns")][:7]
    assert stamps[0] == "free_ns" and stamps[-1] == "d2h_end_ns"
    recorder.batch_values(batch, {**{name: 700 + k for k, name in enumerate(stamps)}, "size": 3, "retried": 1})
    recorder.batch_account("compute", batch, (1, 2, 3, 4, 5, 6, 1, 7, 8, 9, 10, 11, 12, 13))
    recorder.batch_done(batch, 900)

    (row,) = recorder.drain_batches()

    assert [row[name] for name in stamps] == list(range(200, 207))
    assert (row["finish_end_ns"], row["size"], row["retried"]) == (400, 3, 1)
    assert row["compute_cpu_ns"] == 1 and row["compute_majflt"] == 6 and row["compute_denormals"] == 1
    assert row["process_cpu_ns"] == 7, "compute's has no prefix"
    assert row["compute_mapped_bytes"] == 8 and row["compute_free_bytes"] == 13
    assert len(recorder.drain_batches()) == 0


def test_accounts_land_in_their_columns() -> None:
    recorder = StageRecorder(1)
    recorder.account("prepare", 0, tuple(range(10, 24)))
    recorder.account("finish", 0, tuple(range(30, 44)))
    _stamp(recorder, 0, [1] * 8, 7, Status.OK)
    (row,) = recorder.drain_requests()
    names = ["cpu_ns", "runq_ns", "vcsw", "icsw", "minflt", "majflt", "denormals"]
    parts = ("mapped", "resident", "arena", "blocks", "used", "free")
    names += ["process_cpu_ns", *(f"{part}_bytes" for part in parts)]
    assert [row[f"prepare_{name}"] for name in names] == list(range(10, 24))
    assert [row[f"finish_{name}"] for name in names] == list(range(30, 44))


def test_there_is_room_for_two_batches_per_request() -> None:
    recorder = StageRecorder(8)
    for _ in range(16):
        recorder.batch_done(recorder.new_batch(), 1)
    assert len(recorder.drain_batches()) == 16


def test_events_and_samples_are_lines_from_the_start_of_the_run() -> None:
    events, samples = EventLog(), SampleLog()
    events.add("gc", 150, 7, thread=3, detail={"generation": 2})
    samples.add(160, "process.rss_bytes", 1.5)
    assert json.loads(events.drain(100)) == [50, 7, "gc", 3, -1, -1, {"generation": 2}]
    assert json.loads(samples.drain(100)) == [60, "process.rss_bytes", 1.5]
    assert events.drain(0) == samples.drain(0) == ""


def test_segments_hold_everything_after_close(tmp_path: Path) -> None:
    (tmp_path / "segments").mkdir()
    recorder, events, samples = StageRecorder(50), EventLog(), SampleLog()
    with SegmentWriter(tmp_path, recorder, events, samples) as writer:
        for slot in range(50):
            _stamp(recorder, slot, [slot] * 8, 7, Status.OK)
            recorder.batch_done(slot, 1)
            events.add("note", slot, 0, detail={"message": "two\nlines"})
            samples.add(slot, "a", slot)
            if slot % 20 == 0:
                writer.flush()
    folder = tmp_path / "segments"
    rows = np.frombuffer((folder / "requests.bin").read_bytes(), dtype=REQUEST_DTYPE)
    assert rows["index"].tolist() == list(range(50))
    assert np.array_equal(rows["latency_ns"], np.arange(50) * 8)
    assert len(np.frombuffer((folder / "batches.bin").read_bytes(), dtype=BATCH_DTYPE)) == 50
    assert len((folder / "events.jsonl").read_text().splitlines()) == 50
    assert len((folder / "samples.jsonl").read_text().splitlines()) == 50


def test_ended_requests_reach_the_disk_without_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_recorder, "FLUSH_INTERVAL_S", 0.02)
    (tmp_path / "segments").mkdir()
    recorder = StageRecorder(1)
    file = tmp_path / "segments" / "requests.bin"
    with SegmentWriter(tmp_path, recorder, EventLog(), SampleLog()) as writer:
        _stamp(recorder, 0, [1] * 8, 7, Status.OK)
        while not file.exists() or file.stat().st_size < REQUEST_DTYPE.itemsize:
            assert writer._thread.is_alive()
            time.sleep(0.01)


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_recorder, "FLUSH_INTERVAL_S", 0.02)
    (tmp_path / "segments").mkdir()
    for name in ("batches.bin", "events.jsonl", "samples.jsonl"):
        (tmp_path / "segments" / name).touch()
    (tmp_path / "segments" / "requests.bin").symlink_to("/dev/full")
    recorder = StageRecorder(1)
    writer = SegmentWriter(tmp_path, recorder, EventLog(), SampleLog())
    with writer:
        _stamp(recorder, 0, [1] * 8, 7, Status.OK)
        writer._thread.join(60.0)
        assert not writer._thread.is_alive(), "the thread ends if writing fails"
        with pytest.raises(OSError, match="No space left"):
            writer.check()
