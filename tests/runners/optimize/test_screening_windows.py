"""Screening windows lie where the tail is, and their records join to one that can be compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latfix.results.comparison import compare_records
from latfix.run_record.run_record import RunRecord
from latfix.run_record.schema import BATCH_DTYPE, BATCH_TIMES, EVENT_FIELDS, REQUEST_DTYPE, SAMPLE_FIELDS
from latfix.runners.optimize.screening_windows import (
    join,
    lead_in,
    replay_s,
    screening_windows,
    settling_part,
    slowest_stretch,
    window_bounds,
)
from latfix.runners.replay.run_session import schedule_digest
from latfix.stages import Status
from latfix.traffic.schedule import Traffic
from latfix.traffic.transforms import slice_time
from tests.records import build_record, zeros

SECOND = 10**9


def traffic_at(seconds: list[float], first_id: int = 0) -> Traffic:
    n = len(seconds)
    return Traffic.plain(
        (np.array(seconds) * SECOND).round().astype(np.int64),
        ids=[f"r{first_id + k}" for k in range(n)],
        features={"length": np.arange(n) + first_id},
    )


def record_of(traffic: Traffic, latency_ms: Any, *, per_batch: int = 1, **meta: Any) -> RunRecord:
    n = len(traffic)
    rows = zeros(REQUEST_DTYPE, n)
    rows["index"] = np.arange(n)
    rows["arrival_ns"] = traffic.arrival_ns.copy()
    rows["latency_ns"] = (np.broadcast_to(latency_ms, n) * 1e6).astype(np.int64)
    rows["batch_id"] = np.arange(n) // per_batch
    count = -(-n // per_batch)
    batches = zeros(BATCH_DTYPE, count)
    batches["batch_id"] = np.arange(count)
    batches["size"] = np.bincount(rows["batch_id"])
    return build_record(
        traffic_sha256=schedule_digest(traffic),
        scheduled=n,
        workload="w",
        **meta,
        requests=rows,
        batches=batches,
        events={name: np.zeros(1, dtype=object) for name in EVENT_FIELDS},
        samples={name: np.zeros(2, dtype=object) for name in SAMPLE_FIELDS},
        traffic=traffic,
    )


def ids(windows: list[Traffic]) -> list[str]:
    return [name for window in windows for name in window.ids]


def test_both_episodes_of_slow_requests_are_in_a_window() -> None:
    traffic = traffic_at([k * 0.02 for k in range(3000)])
    slow = np.zeros(3000, dtype=bool)
    slow[600:640] = slow[2200:2240] = True
    usual = np.random.default_rng(1).gamma(9.0, 1.0, 3000)
    windows = screening_windows(traffic, record_of(traffic, np.where(slow, 300.0, usual)))
    assert len(windows) == 2
    chosen = ids(windows)
    assert {f"r{k}" for k in np.flatnonzero(slow)} <= set(chosen)
    assert len(chosen) == len(set(chosen))
    assert len(chosen) < 1000
    assert [int(name[1:]) for name in chosen] == sorted(int(name[1:]) for name in chosen)
    assert all(window.arrival_ns[0] >= 0 and window.duration_s <= 6 for window in windows)


def test_requests_that_failed_are_not_slow_ones() -> None:
    traffic = traffic_at([k * 0.02 for k in range(3000)])
    latency = np.random.default_rng(1).gamma(9.0, 1.0, 3000)
    latency[:300], latency[1000:1050], latency[2000:2050] = 900.0, 300.0, 300.0
    record = record_of(traffic, latency)
    assert "r200" in ids(screening_windows(traffic, record))
    record.requests["status"][:300] = Status.ERROR
    chosen = set(ids(screening_windows(traffic, record)))
    assert "r200" not in chosen and {"r1025", "r2025"} <= chosen


def test_short_traffic_is_replayed_whole() -> None:
    traffic = traffic_at([k * 0.02 for k in range(300)])
    assert screening_windows(traffic, record_of(traffic, 10.0)) == [traffic]


def test_windows_grow_where_requests_are_rare() -> None:
    dense, sparse = traffic_at([k * 0.01 for k in range(6000)]), traffic_at([k * 0.05 for k in range(1200)])
    short, long = (screening_windows(t, record_of(t, 10.0)) for t in (dense, sparse))
    assert max(w.duration_s for w in short) <= 3.0 < min(w.duration_s for w in long)


def test_a_gap_in_the_traffic_is_no_window() -> None:
    """All slow requests in the first seconds, then nothing for long: the second window holds what there is."""
    traffic = traffic_at([*(k * 0.02 for k in range(150)), 30.0, 60.0])
    windows = screening_windows(traffic, record_of(traffic, np.where(np.arange(152) < 150, 300.0, 10.0)))
    assert all(len(window) for window in windows)
    assert set(ids(windows)) >= {f"r{k}" for k in range(150)}


def test_a_single_burst_is_one_window() -> None:
    traffic = traffic_at([*(k * 0.02 for k in range(100)), 60.0])
    (window,) = screening_windows(traffic, record_of(traffic, 10.0))
    assert ids([window]) == [f"r{k}" for k in range(100)]


def test_the_stretch_of_a_slow_service_is_short_enough_for_some_rounds() -> None:
    traffic = traffic_at([k * 0.5 for k in range(150)])
    record = record_of(traffic, 200.0)
    lengths = [len(slowest_stretch(traffic, record, 2.0, most_s=most)) for most in (1e9, 15.0, 3.0)]
    assert lengths == pytest.approx([60, 30, 20], abs=2)


def test_repeatable_latency_chooses_windows() -> None:
    traffic = traffic_at([k * 0.1 for k in range(600)])
    once, again = (np.where((k <= np.arange(600)) & (np.arange(600) < k + 40), 300.0, 10.0) for k in (100, 400))
    record = record_of(traffic, np.maximum(once, again / 2))
    assert "r110" in ids([slowest_stretch(traffic, record, 8.0)])
    assert "r410" in ids([slowest_stretch(traffic, record, 8.0, again * 1e6)])
    assert "r410" in ids(screening_windows(traffic, record, again * 1e6))


@settings(max_examples=60)
@given(
    gaps=st.lists(st.floats(0.0, 8.0), min_size=2, max_size=60),
    latency=st.lists(st.floats(1.0, 500.0), min_size=61, max_size=61),
)
def test_windows_are_disjoint_and_hold_requests(gaps: list[float], latency: list[float]) -> None:
    traffic = traffic_at(np.cumsum([0.0, *gaps]).tolist())
    windows = screening_windows(traffic, record_of(traffic, np.array(latency[: len(traffic)])))
    chosen = ids(windows)
    assert 1 <= len(windows) <= 2
    assert all(len(window) for window in windows)
    assert len(chosen) == len(set(chosen))


def two_slices() -> tuple[Traffic, Traffic]:
    return traffic_at([0.5, 1.0, 2.0]), traffic_at([0.1, 0.2, 0.3, 0.4], first_id=3)


def test_a_joined_record_points_into_its_joined_traffic() -> None:
    one, two = two_slices()
    joined = join([record_of(one, [1.0, 2.0, 3.0], per_batch=2), record_of(two, [4.0, 5.0, 6.0, 7.0], per_batch=2)])
    rows = joined.requests
    assert rows["index"].tolist() == list(range(7))
    assert joined.traffic.ids == [f"r{k}" for k in range(7)]
    assert joined.traffic.features["length"][rows["index"]].tolist() == list(range(7))
    assert rows["latency_ns"].tolist() == [k * 10**6 for k in range(1, 8)]
    assert joined.meta.scheduled == len(joined.traffic) == 7
    assert (np.diff(rows["arrival_ns"]) > 0).all()
    assert len(joined.events["kind"]) == 2 and len(joined.samples["value"]) == 4


def test_slices_of_a_joined_record_do_not_overlap() -> None:
    """Otherwise a batch of one slice seems to run beside one of another."""
    one, two = two_slices()
    first, second = record_of(one, 1.0, per_batch=2), record_of(two, 1.0, per_batch=2)
    first.batches["finish_end_ns"][-1] = 30 * 10**9  # a backlog after the last arrival
    joined = join([first, second])
    count = len(first.batches["batch_id"])
    for name in BATCH_TIMES:
        assert joined.batches[name][count:].min() > joined.batches["finish_end_ns"][:count].max(), name
    moved = joined.requests["arrival_ns"][3] - second.requests["arrival_ns"][0]
    assert (joined.batches["close_ns"][count:] - second.batches["close_ns"] == moved).all()
    assert (joined.events["t_ns"][1:] - second.events["t_ns"] == moved).all()
    assert (joined.samples["t_ns"][2:] - second.samples["t_ns"] == moved).all()


def test_batches_of_a_joined_record_keep_their_members() -> None:
    one, two = two_slices()
    joined = join([record_of(one, 1.0, per_batch=2), record_of(two, 1.0, per_batch=2)])
    batch_ids = joined.batches["batch_id"].tolist()
    assert batch_ids == [0, 1, 2, 3]
    members = [joined.requests["index"][joined.requests["batch_id"] == batch].tolist() for batch in batch_ids]
    assert members == [[0, 1], [2], [3, 4], [5, 6]]
    assert [len(group) for group in members] == joined.batches["size"].tolist()


def test_requests_without_a_batch_and_warm_up_stay_so() -> None:
    one, two = two_slices()
    second = record_of(two, 1.0)
    second.requests["batch_id"][1] = -1
    second.requests["index"][0], second.requests["warmup"][0] = -1, 1
    joined = join([record_of(one, 1.0), second])
    assert joined.requests["batch_id"].tolist() == [0, 1, 2, 3, -1, 5, 6]
    assert joined.requests["index"].tolist() == [0, 1, 2, -1, 4, 5, 6]
    assert second.requests["index"].tolist() == [-1, 1, 2, 3], "the record itself is untouched"


def test_counters_of_all_slices_are_added() -> None:
    one, two = two_slices()
    first = record_of(one, 1.0, pool_hits=3, compilations_in_run=1, torch_threads=2)
    second = record_of(two, 1.0, pool_hits=4, pool_misses=2, torch_threads=2)
    meta = join([first, second]).meta
    assert (meta.pool_hits, meta.pool_misses, meta.compilations_in_run) == (7, 2, 1)
    assert meta.torch_threads == 2


def test_arms_pair_request_by_request_where_their_slices_are_the_same() -> None:
    one, two = two_slices()
    base = join([record_of(one, [1.0, 2.0, 3.0]), record_of(two, 4.0)])
    new = join([record_of(one, [0.5, 1.0, 1.5]), record_of(two, 2.0)])
    comparison = compare_records(base, new)
    assert comparison.paired
    assert comparison.ratio["mean"].value == pytest.approx(0.5)
    assert comparison.before.requests["ok"] == 7
    other = join([record_of(two, 2.0), record_of(one, [0.5, 1.0, 1.5])])
    assert not compare_records(base, other).paired


def test_one_record_is_itself() -> None:
    record = record_of(two_slices()[0], 1.0)
    assert join([record]) is record


def test_a_backlog_is_cut_where_it_would_take_the_budget() -> None:
    """Requests of 0.05 s come at 50 a second: a window is cut to 1.5 times its own time of work."""
    traffic = traffic_at([k * 0.02 for k in range(3000)])
    record = record_of(traffic, 100.0)
    quick, slow = (np.full(3000, took, dtype=np.int64) for took in (10**7, 5 * 10**7))
    for took, cut in ((quick, False), (slow, True)):
        record.batches["d2h_end_ns"][:] = took
        windows = [*screening_windows(traffic, record), slowest_stretch(traffic, record, 10.0)]
        for window, span in zip(windows, (3.0, 3.0, 10.0), strict=True):
            lasts = replay_s(traffic, record, window)
            begin, end = window_bounds(window)
            assert lasts == pytest.approx((1.5 if cut else 1.0) * span, rel=0.05)
            assert ((end - begin) / 1e9 < 0.7 * span) == cut
            part, each_s = settling_part(traffic, record, window, 2.0), int(took[0]) / 1e9
            assert len(part) == pytest.approx(min(2.0 / each_s, len(window)), abs=1)
    assert replay_s(traffic, record, traffic) == pytest.approx(150.0)


def test_short_traffic_far_above_capacity_is_cut_as_well() -> None:
    """Five seconds of it bring 100 s of work: as much is replayed as two of the longest windows may bring."""
    traffic = traffic_at([k * 0.01 for k in range(500)])
    record = record_of(traffic, 100.0)
    record.batches["d2h_end_ns"][:] = SECOND // 5
    (window,) = screening_windows(traffic, record)
    assert replay_s(traffic, record, window) == pytest.approx(18.0, rel=0.05)
    assert ids([window]) == ids([slowest_stretch(traffic, record, 10.0)]) == [f"r{k}" for k in range(len(window))]
    record.batches["d2h_end_ns"][:] = SECOND // 50
    assert screening_windows(traffic, record) == [traffic] and slowest_stretch(traffic, record, 10.0) is traffic


def test_a_lead_in_ends_where_the_stretch_begins() -> None:
    traffic = traffic_at([0.5 * k for k in range(120)])
    baseline = record_of(traffic, 1.0)
    baseline.batches["d2h_end_ns"] = baseline.batches["close_ns"] + SECOND // 4
    stretch = slice_time(traffic, 30.0, 40.0)
    part = lead_in(traffic, baseline, stretch, 2.0)
    assert part is not None and part.ids == [f"r{k}" for k in range(60 - len(part), 60)] and len(part) in (8, 9)
    assert part.duration_s - part.start_s <= 2.0
    assert lead_in(traffic, baseline, slice_time(traffic, 0.0, 10.0), 2.0) is None
