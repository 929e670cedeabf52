"""Routing by weight with real threads: a replica that takes longer, windows, keeping warm, steps, ends and deaths."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from latfix.request import Request
from latfix.runners.engine.worker import Outcome
from latfix.runners.scheduling.replica_router import Router
from latfix.runners.scheduling.routed_queue import RoutedQueue
from latfix.stages import Status
from tests.runners.engine.served import Served
from tests.runners.scheduling.counting_model import Counter, Stepping

pytestmark = pytest.mark.alone


def sleeping(ms: float) -> Callable[[Any], Any]:
    def model(x: Any) -> Any:
        time.sleep(ms / 1000)
        return x

    return model


def _served(models: Sequence[Any], requests: Sequence[Request], **settings: Any) -> Served:
    """An engine with replicas of different speed."""
    return Served(requests, list(models), workers=len(models), **{"routing": "weighted", **settings})


def _requests(n: int) -> list[Request]:
    return [Request(id=str(k), arrival_s=0.0) for k in range(n)]


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_batch_size": 4, "batch_window_ms": 3.0}, {"keep_warm_ms": 15.0}],
    ids=["plain", "window", "warm"],
)
def test_a_replica_that_takes_longer_is_given_less(settings: dict[str, Any]) -> None:
    n = 240
    served = _served([sleeping(3), sleeping(45)], _requests(n), **settings)
    served.send(*range(n), gap_s=0.007)
    load = served.engine.load()
    _, batches = served.end()
    assert all(outcome.status == Status.OK for outcome in served.outcomes.values()) and len(served.outcomes) == n
    if not settings:
        held = batches["close_ns"] - batches["open_ns"]
        assert np.percentile(held, 90) < 3_000_000, "a wait for a better replica counts as queueing: no batch is held"
    later = batches[len(batches) // 3 :]
    assert (later["worker"] == 1).mean() < 0.08, "with pull it would have at least one in eight"
    assert load["runner.worker_0.weight"] == 1.0 and load["runner.worker_1.weight"] > 3.0
    notes = [json.loads(line)[6] for line in served.events.drain(0).splitlines()]
    slow = [note for note in notes if note.get("worker") == 1]
    assert [note["slow"] for note in slow] == [True, False] and slow[1]["weight"] > 3.0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_only_fast_worker_dies_and_the_slow_one_serves_on() -> None:
    # GIVEN a slow worker that is known to be slow
    n = 120
    served = _served([sleeping(3), sleeping(25)], _requests(n))
    served.send(*range(60), gap_s=0.005)
    assert served.engine.drain(timeout_s=20)
    assert served.engine.load()["runner.worker_1.weight"] > 2.0
    # WHEN the fast one dies while serving a batch
    answer = served.engine._on_done
    fatal = threading.Event()
    fatal.set()

    def done(slot: int, outcome: Outcome) -> None:
        assert answer is not None
        answer(slot, outcome)
        if fatal.is_set():
            raise AssertionError("its worker dies")

    served.engine._on_done = done
    served.engine.submit(60)
    until = time.monotonic() + 10
    while not served.engine.ended_threads() and time.monotonic() < until:
        time.sleep(0.01)
    dead = served.engine.ended_threads()
    assert len(dead) == 1, "one of the two took it"
    fatal.clear()
    # THEN the other one serves new requests, and the engine can end
    served.send(*range(61, n), gap_s=0.001)
    until = time.monotonic() + 20
    while len(served.outcomes) < n and time.monotonic() < until:
        time.sleep(0.01)
    assert sorted(served.outcomes) == list(range(n))
    assert served.engine.abandon(5.0)


def test_shutdown_gives_out_what_waits_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    served = _served([sleeping(2), sleeping(30)], _requests(80), max_batch_size=2, batch_window_ms=500.0)
    served.send(*range(80))
    served.engine.shutdown()
    assert len(served.outcomes) == 80
    abandoned = _served([sleeping(1), sleeping(10)], _requests(40))
    abandoned.send(*range(40))
    assert abandoned.engine.abandon(10.0)
    served.end_threads()
    abandoned.end_threads()
    assert not {*threading.enumerate()} - before


def test_one_worker_needs_no_routing() -> None:
    served = _served([sleeping(0)], _requests(4))
    assert not isinstance(served.engine.queue, RoutedQueue)
    served.send(*range(4))
    served.end()


def test_places_of_a_slow_replica_are_left_free() -> None:
    """With continuous batching, requests are routed to each place of a worker."""
    n = 150
    models = [Counter(1.0), Counter(12.0)]
    served = _served(models, _requests(n), adapter=Stepping(), batching="continuous", max_batch_size=4)
    served.send(*range(n), gap_s=0.005)
    load = served.engine.load()
    _, batches = served.end()
    assert all(served.outcomes[k].output == 5.0 * k for k in range(n))
    later = batches[n // 3 :]
    assert (later["worker"] // 4 == 1).mean() < 0.15
    assert load["runner.worker_1.weight"] > 2.0


def test_a_worker_that_dies_before_the_queue_wakes_another() -> None:
    """The check for hopeless requests may fail; the request is not lost."""
    checked = threading.Event()

    def doomed(_item: Any, _now: int) -> bool:
        if not checked.is_set():
            checked.set()
            raise AssertionError("dies")
        return False

    queue = RoutedQueue(router=Router(2), workers=2, max_batch_size=1, window_ns=0, doomed=doomed)
    got: list[Any] = []

    def work(worker: int) -> None:
        try:
            got.append(queue.door(worker).take(0))
        except AssertionError:
            queue.put(rank=0, slot=2, enqueued_ns=time.perf_counter_ns())

    with ThreadPoolExecutor(2) as pool:
        ends = pool.map(work, range(2), timeout=10)
        queue.put(rank=0, slot=1, enqueued_ns=time.perf_counter_ns())
        list(ends)
    assert [formed.members[0].slot for formed in got] == [2]
