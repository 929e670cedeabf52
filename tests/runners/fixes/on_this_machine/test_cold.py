"""Fixes of first use and of pauses: shapes, idle workers, and rows of embedding tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from latfix.runners.fixes import cache_embeddings, warmup_resident, warmup_shapes
from tests.runners.fixes.on_this_machine.conftest import make_context, make_record, verified

RESIDENT, SHAPES, ROWS = warmup_resident.FIX, warmup_shapes.FIX, cache_embeddings.FIX
MIB = 1 << 20


@pytest.fixture(autouse=True)
def a_cache_of_32_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_embeddings, "last_level_cache_bytes", lambda _: 32 * MIB)
    monkeypatch.setattr(warmup_resident, "lockable_bytes", lambda: None)


def paused(slower: float, pause_ms: float = 60.0, **more: Any) -> Any:
    """Every other batch follows a pause, after which it computes ``slower`` times as long."""
    gaps = [5.0, pause_ms] * 20
    return make_record(gap_ms=gaps, compute_ms=[4.0 if gap == 5.0 else 4.0 * slower for gap in gaps], **more)


def cold_after(record: Any) -> list[float]:
    return [round(value, 2) for value in warmup_resident.cold_after_ms(record) or ()]


def test_batches_that_are_slower_after_a_pause_are_seen() -> None:
    record = paused(1.5)
    assert warmup_resident.after_pauses(record, 50.0) == pytest.approx(1.5, rel=0.01)
    assert cold_after(record) == [10.0, 1.5]
    context = make_context(record)
    assert RESIDENT.obstacle(context) == ""
    assert RESIDENT.change(context) == {"keep_warm_ms": 5.0}
    assert "every 5 ms already" in RESIDENT.obstacle(make_context(record, keep_warm_ms=5.0))


def test_the_pause_that_makes_a_worker_cold_is_found() -> None:
    gaps = [5.0, 30.0, 300.0] * 14
    slow = [8.0 if gap > 100 else 4.0 for gap in gaps]
    record = make_record(n=42, gap_ms=gaps, compute_ms=slow)
    # From 10 ms on, half of the batches are slow; from 50 ms on all of them are.
    assert cold_after(record) == [50.0, 2.0]


def test_pauses_that_cost_nothing_are_left_alone() -> None:
    found = RESIDENT.obstacle(make_context(paused(1.05)))
    assert found == "batches after a pause of 50 ms or more compute 1.05 times as long as after a shorter one"
    steady = RESIDENT.obstacle(make_context(make_record()))
    assert steady == "there are too few pauses to measure their cost; the longest was 10 ms"
    assert "the longest was 0 ms" in RESIDENT.obstacle(make_context(make_record(n=1)))


def test_larger_batches_after_pauses_are_not_cold() -> None:
    """What follows a pause is often something else; it is compared with batches of its own size."""
    record = paused(3.0)
    record.batches["padded_elements"][1::2] = 640
    assert warmup_resident.after_pauses(record, 50.0) == pytest.approx(1.0)


def test_first_batches_retries_and_warm_up_do_not_count() -> None:
    record = paused(1.5)
    record.batches["warmup"][:30] = 1
    assert warmup_resident.after_pauses(record, 50.0) is None, "ten are left"
    record = paused(1.5)
    record.batches["worker"][:] = np.arange(40)
    assert warmup_resident.after_pauses(record, 50.0) is None, "each worker's first batch follows none"


def test_memory_is_locked_where_it_was_paged_in_and_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = {"major_faults": 3, "peak_bytes": 100 * MIB}
    context = make_context(paused(1.5, memory=memory))
    assert RESIDENT.change(context) == {"keep_warm_ms": 5.0, "lock_memory": True}
    for limit in (8 * MIB, 2048 * MIB):
        # All that is mapped counts, which is several times what is resident: the process would be refused.
        monkeypatch.setattr(warmup_resident, "lockable_bytes", lambda limit=limit: limit)
        assert RESIDENT.change(context) == {"keep_warm_ms": 5.0}


def test_idle_runs_are_verified_by_their_number_and_the_cost_of_pauses() -> None:
    done = {"runs": 40, "total_ns": 80_000_000, "longest_ns": 5_000_000, "elements": 8, "delayed": 2, "failure": ""}
    setting: dict[str, Any] = {"settings": {"keep_warm_ms": 5.0}}
    before = paused(1.5)
    effective, said = verified(RESIDENT, paused(1.0, residence=done, **setting), before)
    assert effective
    assert "an input of 8 elements 40 times, 2 ms each and 5 at most; a request waited for 2 of them" in said
    assert "1.00 times as long, 1.50 without" in said
    assert not verified(RESIDENT, paused(1.5, residence=done, **setting), before)[0], "as cold as before"
    for other in ({**done, "runs": 0}, {**done, "failure": "ValueError: no"}, {}):
        assert not verified(RESIDENT, paused(1.0, residence=other, **setting), before)[0]
    assert not verified(RESIDENT, paused(1.0, residence=done), before)[0], "the setting is off"


def test_locking_that_was_refused_is_no_effect() -> None:
    done = {"runs": 4, "total_ns": 8, "longest_ns": 5, "elements": 8, "delayed": 0, "failure": ""}
    settings = {"keep_warm_ms": 5.0, "lock_memory": True}
    note = "lock_memory: RLIMIT_MEMLOCK is 8.0 MiB"

    def run(locked: int) -> Any:
        return make_record(
            residence=done,
            settings=settings,
            memory={"locked_bytes": locked * MIB},
            setup_notes=[note] * (not locked),
        )

    assert verified(RESIDENT, run(300))[0]
    effective, said = verified(RESIDENT, run(0))
    assert not effective and note in said


def test_as_many_shapes_as_traffic_brings_within_bounds() -> None:
    record = make_record()
    assert SHAPES.change(make_context(record)) == {"warmup_shapes": 8}
    record.requests["input_elements"][:] = np.arange(40) // 2
    assert SHAPES.change(make_context(record)) == {"warmup_shapes": 20}
    record.requests["input_elements"][:] = np.arange(40)
    assert SHAPES.change(make_context(record)) == {"warmup_shapes": 32}


def tables(rows: int, row_bytes: int = 256, **more: Any) -> dict[str, Any]:
    return {"tables": 2, "rows": rows, "bytes": rows * row_bytes, **more}


def test_rows_are_kept_where_tables_exceed_the_cache() -> None:
    context = make_context(make_record(embeddings=tables(1_000_000)))
    assert ROWS.obstacle(context) == ""
    assert ROWS.change(context) == {"hot_rows": 16 * MIB // 256, "keep_warm_ms": 20.0}
    assert ROWS.change(make_context(context.record, keep_warm_ms=3.0)) == {"hot_rows": 16 * MIB // 256}
    assert "7 rows are kept" in ROWS.obstacle(make_context(context.record, hot_rows=7))
    assert "onnxruntime has its own tables" in ROWS.obstacle(make_context(context.record, backend="onnxruntime"))
    gpu = make_record(embeddings=tables(1_000_000), device="cuda:0")
    assert "GPU" in ROWS.obstacle(make_context(gpu))
    small = ROWS.obstacle(make_context(make_record(embeddings=tables(10_000))))
    assert small == "the whole tables (2.4 MiB) fit into the cache (32 MiB)"
    assert "no embedding tables" in ROWS.obstacle(make_context(make_record()))
