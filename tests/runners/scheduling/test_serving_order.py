"""The order in which requests leave: classes, ageing, expected work, memory; on simulated time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latfix.queueing.queue_simulator import Offered, Simulated, SimulatedQueue
from latfix.queueing.serving_order import MOST_SHARES, Backlog, Ordering, Waiting
from latfix.settings import Schedule
from tests.runners.scheduling.simulated_runs import offer

MS = 1_000_000


def _pushed(backlog: Backlog, *items: tuple[int, int, float]) -> Backlog:
    """Requests as class, time and share."""
    for slot, (rank, at, share) in enumerate(items):
        backlog.push(rank=rank, slot=slot, enqueued_ns=at, share=share)
    return backlog


def _order(backlog: Backlog) -> list[int]:
    return [backlog.pop(1)[0][0].slot for _ in range(len(backlog))]


def test_a_request_gains_a_class_each_interval() -> None:
    ageing = Ordering(ageing_ns=100)
    # A low request at 0 is overtaken by high requests before 200 and normal ones before 100.
    backlog = _pushed(Backlog(ordering=ageing), (2, 0, 1), (0, 199, 1), (0, 201, 1), (1, 99, 1), (1, 101, 1))
    assert _order(backlog) == [1, 3, 0, 2, 4]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2000)), min_size=2, max_size=30), st.integers(1, 500))
def test_after_two_intervals_no_later_request_goes_first(items: list[tuple[int, int]], ageing: int) -> None:
    backlog = _pushed(Backlog(ordering=Ordering(ageing_ns=ageing)), *((rank, at, 1) for rank, at in items))
    for first, then in itertools.combinations(_order(backlog), 2):
        (rank_first, at_first), (rank_then, at_then) = items[first], items[then]
        assert at_first <= at_then + (0 if rank_first == rank_then else 2 * ageing)


@pytest.mark.parametrize("schedule", ["shortest", "work_per_byte"])
def test_work_decides_within_a_class_and_no_request_is_passed_for_long(schedule: Schedule) -> None:
    strict = _pushed(
        Backlog(ordering=Ordering(schedule=schedule)), (1, 0, 3.0), (1, 1, 0.5), (0, 2, 9.0), (1, 3, 0.5)
    )
    assert _order(strict) == [2, 1, 3, 0]
    aged = Backlog(ordering=Ordering(schedule=schedule, ageing_ns=100))
    # The longest request counts as MOST_SHARES intervals later, regardless of its length.
    _pushed(aged, (0, 0, 50.0), (0, 399, 0.0), (0, 401, 0.0), (0, 350, 1.0))
    assert MOST_SHARES == 4.0
    assert _order(aged) == [1, 0, 2, 3]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20), st.sampled_from(["shortest", "work_per_byte"]))
def test_equal_work_leaves_in_order_of_arrival(times: list[int], schedule: Schedule) -> None:
    times = sorted(times)
    backlog = _pushed(Backlog(ordering=Ordering(schedule=schedule, ageing_ns=77)), *((1, at, 1.0) for at in times))
    assert _order(backlog) == list(range(len(times)))


def test_a_batch_stays_within_its_memory_and_the_large_one_is_next() -> None:
    backlog = Backlog(memory_limit=100)
    for slot, memory in enumerate([30, 90, 30, 30, 30, 500, 20]):
        backlog.push(rank=1, slot=slot, enqueued_ns=slot, memory=memory)
    batches = []
    while len(backlog):
        batches.append([item.slot for item in backlog.pop(8)[0]])
    # Padded to the largest: three of 30 fit, but a fourth of 20 would make 120.
    assert batches == [[0, 2, 3], [1], [4, 6], [5]]
    alike = Backlog(by_length=True, memory_limit=100)
    for slot in range(5):
        alike.push(rank=1, slot=slot, enqueued_ns=slot, length=50, memory=40)
    assert [[item.slot for item in alike.pop(8)[0]] for _ in range(2)] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("by_length", [False, True])
def test_doomed_requests_are_dropped(by_length: bool) -> None:
    backlog = Backlog(by_length=by_length)
    for slot in range(6):
        backlog.push(rank=1, slot=slot, enqueued_ns=slot, length=10)
    members, dropped = backlog.pop(2, lambda item: item.slot in (0, 2))
    assert [item.slot for item in members] == [1, 3]
    assert {item.slot for item in dropped} <= {0, 2} and dropped[0].slot == 0
    left = len(backlog)
    members, dropped = backlog.pop(8, lambda _: True)
    assert (len(members), len(dropped), len(backlog)) == (0, left, 0)


@pytest.mark.parametrize("by_length", [False, True])
def test_a_request_found_doomed_is_dropped_at_once(by_length: bool) -> None:
    """Whoever decides also counts, so the answer must not be asked for and then ignored."""
    backlog = Backlog(by_length=by_length)
    for slot in range(12):
        backlog.push(rank=1, slot=slot, enqueued_ns=slot, length=10)
    found, dropped = list[int](), list[int]()

    def doomed(item: Waiting) -> bool:
        found.extend([item.slot] if item.slot % 3 else [])
        return bool(item.slot % 3)

    while len(backlog):
        dropped += [item.slot for item in backlog.pop(2, doomed)[1]]
    assert dropped == found and sorted(found) == [1, 2, 4, 5, 7, 8, 10, 11]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.floats(0, 9), st.integers(0, 60)), max_size=30),
    st.sampled_from(["arrival", "shortest", "work_per_byte"]),
    st.sampled_from([0, 7]),
    st.booleans(),
    st.sampled_from([0, 100]),
    st.integers(1, 6),
)
def test_everybody_leaves_once(
    items: list[tuple[int, int, float, int]],
    schedule: Schedule,
    ageing: int,
    by_length: bool,
    limit: int,
    most: int,
) -> None:
    ordering = Ordering(schedule=schedule, ageing_ns=ageing)
    backlog = Backlog(ordering=ordering, by_length=by_length, memory_limit=limit)
    for slot, (rank, at, share, memory) in enumerate(items):
        backlog.push(rank=rank, slot=slot, enqueued_ns=at, length=memory, share=share, memory=memory)
    left: list[Waiting] = []
    while len(backlog):
        members, dropped = backlog.pop(most)
        assert 1 <= len(members) <= most and not dropped
        if limit and len(members) > 1:
            assert len(members) * max(item.memory for item in members) <= limit
        left += members
    assert sorted(item.slot for item in left) == list(range(len(items)))


def _served(traffic: Sequence[Offered], ordering: Ordering, each_ms: float = 10.0) -> Simulated:
    def service(members: Sequence[Offered]) -> int:
        return int(sum(one.length for one in members) * each_ms * MS)

    return SimulatedQueue(service=service, backlog=Backlog(ordering=ordering)).run(traffic)


def test_low_never_starves_under_permanent_overload_by_high() -> None:
    # GIVEN constant overload by high requests alone, and a few low ones
    traffic = offer((40, 115.0), ranks=(0.92, 0.0, 0.08), seed=3)
    ageing = Ordering(ageing_ns=500 * MS)
    strict, aged = _served(traffic, Ordering()), _served(traffic, ageing)
    # THEN without ageing low requests wait until the end; with it they wait little more than two intervals' arrivals
    # beyond their wait in order of arrival
    in_order = _served([replace(one, rank=1) for one in traffic], Ordering())
    waited_in_order = in_order.taken_ns - in_order.arrival_ns
    low = np.array([one.rank == 2 for one in traffic])
    early = np.array([one.arrival_ns < 10e9 for one in traffic])
    assert (strict.taken_ns[low & early] >= max(one.arrival_ns for one in traffic)).any()
    over = (aged.taken_ns - aged.arrival_ns)[low] - waited_in_order[low]
    assert over.max() <= 1.5 * 2 * 500 * MS
    # AND high requests keep an advantage
    waited = aged.taken_ns - aged.arrival_ns
    assert np.median(waited[[one.rank == 0 for one in traffic]]) < np.median(waited[low]) - 300 * MS


def test_shortest_first_serves_the_many_without_ruining_the_tail() -> None:
    # GIVEN one request in ten that is ten times as long, at 85 % load
    def lengths(rng: np.random.Generator, n: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.where(rng.random(n) < 0.1, 10, 1).astype(np.int64)

    traffic = offer((120, 44.0), lengths=lengths, seed=5)
    mean = float(np.mean([one.length for one in traffic]))
    traffic = [replace(one, share=one.length / mean) for one in traffic]
    in_order = _served(traffic, Ordering()).latency_ns()
    strict = _served(traffic, Ordering(schedule="shortest")).latency_ns()
    aged = _served(traffic, Ordering(schedule="shortest", ageing_ns=60 * MS)).latency_ns()
    assert strict.mean() < 0.75 * in_order.mean()
    assert aged.mean() < 0.9 * in_order.mean()
    # THEN ageing bounds the extra wait of the long ones
    assert aged.max() <= in_order.max() + MOST_SHARES * 60 * MS + 200 * MS
    assert np.percentile(aged, 99) < 1.05 * np.percentile(in_order, 99)
    assert np.percentile(strict, 99.5) > np.percentile(aged, 99.5)
