"""The batcher on a simulated clock: when a batch closes, and its members."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latfix.queueing.length_buckets import LENGTH_RATIO, LENGTH_SLACK
from latfix.runners.scheduling.batch_queue import BatchQueue, Formed


class Clock:
    """Stands still unless it is moved; ``step`` moves it at each reading."""

    def __init__(self, now: int = 0, step: int = 0) -> None:
        self.now = now
        self.step = step

    def __call__(self) -> int:
        self.now += self.step
        return self.now


def _put(queue: BatchQueue, *slots: int, rank: int = 1, at: int = 0, length: int = 0) -> None:
    for slot in slots:
        queue.put(rank=rank, slot=slot, enqueued_ns=at, length=length)


def _slots(formed: Formed | None) -> list[int]:
    assert formed is not None
    return [member.slot for member in formed.members]


def test_a_full_batch_leaves_at_once() -> None:
    queue = BatchQueue(max_batch_size=3, window_ns=10**15, clock=Clock(now=50))
    _put(queue, 0, 1, 2, 3)

    formed = queue.take(free_ns=10)

    assert _slots(formed) == [0, 1, 2]
    assert formed is not None and (formed.open_ns, formed.close_ns) == (10, 50)
    assert len(queue) == 1


def test_the_window_counts_from_the_oldest_request() -> None:
    # GIVEN the oldest was enqueued at 100 and the window is 1,000, on a clock that moves by 1 per reading
    clock = Clock(now=1_099, step=1)
    queue = BatchQueue(max_batch_size=8, window_ns=1_000, clock=clock)
    _put(queue, 0, at=100)
    _put(queue, 1, at=900)

    formed = queue.take(free_ns=0)

    assert _slots(formed) == [0, 1]
    assert formed is not None and formed.open_ns == 100
    assert formed.close_ns >= 1_100


def test_an_open_window_keeps_the_worker_waiting() -> None:
    queue = BatchQueue(max_batch_size=2, window_ns=60_000_000_000, clock=Clock(now=100))
    _put(queue, 0, at=100)
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(queue.take, 0)
        with pytest.raises(TimeoutError):
            taken.result(0.1)  # the window is open and the batch not full
        _put(queue, 1, at=100)
        assert _slots(taken.result(5)) == [0, 1]


def test_priorities_overtake_and_arrival_decides_within_one() -> None:
    queue = BatchQueue(max_batch_size=1, window_ns=0, clock=Clock())
    for slot, rank in enumerate([2, 1, 0, 1, 0, 2]):
        _put(queue, slot, rank=rank)
    assert [_slots(queue.take(0))[0] for _ in range(6)] == [2, 4, 1, 3, 0, 5]


def test_close_gives_out_what_waits_and_then_none() -> None:
    queue = BatchQueue(max_batch_size=2, window_ns=10**15, clock=Clock())
    _put(queue, 0, 1, 2)
    queue.close()

    assert _slots(queue.take(0)) == [0, 1]
    assert _slots(queue.take(0)) == [2], "a closed queue does not wait for the window"
    assert queue.take(0) is None


def test_close_wakes_every_waiting_worker() -> None:
    queue = BatchQueue(max_batch_size=2, window_ns=0)
    with ThreadPoolExecutor(4) as pool:
        results = [pool.submit(queue.take, 0) for _ in range(4)]
        queue.close()
        assert [result.result(5) for result in results] == [None] * 4


def test_two_workers_never_form_at_once() -> None:
    # GIVEN two free workers and one request whose window is open
    queue = BatchQueue(max_batch_size=3, window_ns=60_000_000_000)
    with ThreadPoolExecutor(2) as pool:
        results = [pool.submit(queue.take, 0) for _ in range(2)]
        # WHEN three requests come one by one within the window
        for slot in range(3):
            _put(queue, slot, at=time.perf_counter_ns())
            time.sleep(0.001)
        wait(results, 50, FIRST_COMPLETED)
        queue.close()
        # THEN one worker gets all of them, and the other waits for its turn
        formed = [found for result in results if (found := result.result(50)) is not None]
    assert [_slots(one) for one in formed] == [[0, 1, 2]]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 400)), min_size=1, max_size=40),
    st.integers(1, 8),
    st.booleans(),
)
def test_every_request_leaves_once(requests: list[tuple[int, int]], most: int, by_length: bool) -> None:
    queue = BatchQueue(max_batch_size=most, window_ns=0, by_length=by_length, clock=Clock())
    for slot, (rank, length) in enumerate(requests):
        queue.put(rank=rank, slot=slot, enqueued_ns=0, length=length)
    queue.close()

    batches = []
    while (formed := queue.take(0)) is not None:
        batches.append(formed.members)

    assert sorted(member.slot for batch in batches for member in batch) == list(range(len(requests)))
    assert all(1 <= len(batch) <= most for batch in batches)
    for batch in batches:
        head = batch[0]
        assert head.rank == min(member.rank for member in batch)
        if by_length:
            for member in batch[1:]:
                longer, shorter = max(member.length, head.length), min(member.length, head.length)
                assert longer <= LENGTH_RATIO * shorter or longer - shorter <= LENGTH_SLACK
    # No request of a lower class leaves before a waiting head of a higher one.
    heads = [batch[0].rank for batch in batches]
    assert heads == sorted(heads)


def test_by_length_prefers_the_nearest() -> None:
    queue = BatchQueue(max_batch_size=3, window_ns=0, by_length=True, clock=Clock())
    for slot, length in enumerate([100, 400, 140, 101, 120]):
        queue.put(rank=1, slot=slot, enqueued_ns=0, length=length)
    assert _slots(queue.take(0)) == [0, 3, 4]
    assert _slots(queue.take(0)) == [1]
