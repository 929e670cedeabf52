"""The recorder of a live service: reused rows are empty, and the latest ended ones are intact."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latfix.profilers.probes.ring_recorder import RecordedRing, RingRecorder
from latfix.run_record.schema import PROCESS_ACCOUNT, THREAD_ACCOUNT
from latfix.stages import STAGES, Status

NAMES = ("collated_ns", "h2d_end_ns", "compute_end_ns", "d2h_end_ns")


def _begin(recorder: RingRecorder, arrival: int) -> int:
    slot = recorder.open(arrival)
    recorder.handed[slot] = arrival + 1
    return slot


def _end(recorder: RingRecorder, slot: int, lengths: list[int]) -> None:
    """Stamp the remaining stages of a request, with these ``lengths``, in its own batch."""
    points = list(accumulate([int(recorder.scheduled_ns[slot]), *lengths]))
    recorder.handed[slot], recorder.enqueued[slot], recorder.taken[slot] = points[1:4]
    recorder.batch_id[slot] = batch = recorder.new_batch()
    recorder.batch_values(batch, dict(zip(NAMES, points[4:8], strict=True)))
    recorder.request_done(slot, Status.OK, points[8])
    recorder.give_back(slot)
    recorder.batch_done(batch, points[8])


@settings(max_examples=60)
@given(st.integers(1, 5), st.integers(1, 7), st.lists(st.integers(0, 4), min_size=20, max_size=120))
def test_the_latest_rows_are_intact_for_any_overlap(inside: int, window: int, steps: list[int]) -> None:
    """With any order of ends, the rows read are exactly the last ``window`` that ended."""
    recorder = RingRecorder(inside, window)
    open_rows: list[int] = []
    ended: list[list[int]] = []
    for number, step in enumerate(steps):
        if len(open_rows) == inside or (open_rows and step == 0):
            slot = open_rows.pop(step % len(open_rows))
            lengths = [1 + number, *(k + number for k in range(2, 9))]
            _end(recorder, slot, lengths)
            ended.append(lengths)
        else:
            open_rows.append(_begin(recorder, 1_000 + number))

    rows = recorder.recent()
    read = [[int(row[f"{stage}_ns"]) for stage in STAGES] for row in rows]
    assert read == ended[-window:]
    assert (rows["latency_ns"] == [sum(lengths) for lengths in ended[-window:]]).all()
    assert len(recorder._free) == recorder.slots - len(open_rows)


def test_a_reused_row_is_empty() -> None:
    recorder = RingRecorder(1, 1)
    for number in range(3 * recorder.slots):
        slot = _begin(recorder, 100 * (number + 1))
        if number % 2:
            recorder.account("prepare", slot, tuple(range(1, 1 + len(THREAD_ACCOUNT) + len(PROCESS_ACCOUNT))))
            _end(recorder, slot, [number + 1] * 8)
            (row,) = recorder.recent()
            assert row["prepare_cpu_ns"] == 1 and row["compute_ns"] == number + 1
        else:  # shed at once: it crosses no boundary
            recorder.request_done(slot, Status.SHED, 100 * (number + 1) + 1)
            recorder.give_back(slot)
            (row,) = recorder.recent()
            assert (row["status"], row["latency_ns"], row["dispatch_ns"]) == (Status.SHED, 1, 1)
            assert row["batch_id"] == row["prepare_thread"] == -1
            assert not any(row[f"{stage}_ns"] for stage in STAGES[1:])
            assert row["prepare_cpu_ns"] == 0


def test_a_reused_batch_row_is_empty() -> None:
    recorder = RingRecorder(2, 2)
    total = len(recorder._free_batches)
    for _ in range(3 * total):
        batch = recorder.new_batch()
        assert not any(view[batch] for view in recorder.batch.values())
        for view in recorder.batch.values():
            view[batch] = 7
        recorder.batch_done(batch, 9)
    assert len(recorder._free_batches) == total


def test_memory_does_not_grow_and_forgotten_rows_are_gone() -> None:
    recorder = RingRecorder(2, 4)
    assert len(recorder.recent()) == 0
    for number in range(1000):
        _end(recorder, _begin(recorder, number + 1), [1] * 8)
    assert recorder.completed == 1000
    assert len(recorder._done) == 4 and len(recorder._done_batches) <= 4 and len(recorder.recent()) == 4
    recorder.forget()
    assert len(recorder.recent()) == 0
    _end(recorder, _begin(recorder, 9), [2] * 8)
    assert recorder.recent()["latency_ns"].tolist() == [16]


def test_a_full_ring_refuses_a_request() -> None:
    recorder = RingRecorder(1, 1)
    for _ in range(recorder.slots):
        recorder.open(1)
    with pytest.raises(IndexError):
        recorder.open(1)


def test_a_wait_in_line_is_no_lag_of_latfix() -> None:
    recorder = RecordedRing(1, 4)
    slot = recorder.open(100)
    recorder.prepare_thread[slot], recorder.prepare_start[slot] = 0, 160
    _end(recorder, slot, [50, 20, *range(1, 7)])
    (row,) = recorder.drain_requests()
    assert (row["dispatch_ns"], row["prepare_wait_ns"], row["prepare_ns"]) == (0, 60, 70)
    assert sum(int(row[f"{stage}_ns"]) for stage in STAGES) == row["latency_ns"]
