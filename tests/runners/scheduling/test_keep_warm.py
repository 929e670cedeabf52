"""Idle workers stay warm: they run an input of their own, never in place of a request."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from latfix.profilers.gpu.allocator_counters import RunningBatches
from latfix.profilers.probes.thread_counters import ThreadCounters
from latfix.run_record.process_facts import Residence
from latfix.runners.engine.engine import Engine
from latfix.runners.engine.worker import ModelInstance
from latfix.runners.model_transforms.embedding_rows import HotRows
from latfix.runners.scheduling.batch_queue import IDLE, BatchQueue, Formed
from latfix.runners.scheduling.keep_warm import Keeper, Resident, summed
from latfix.runners.scheduling.replica_router import Router
from latfix.runners.scheduling.routed_queue import Door, RoutedQueue
from latfix.settings import RunnerSettings
from latfix.stages import Status
from tests.runners.engine.served import Numbers, Served, requests_of

pytestmark = pytest.mark.alone

SOON_S = 0.01
NEVER_S = 60.0


def put(queue: BatchQueue, slot: int = 0) -> None:
    queue.put(rank=1, slot=slot, enqueued_ns=time.perf_counter_ns(), inputs=torch.ones(2))


def members(formed: object) -> list[int]:
    assert isinstance(formed, Formed)
    return [member.slot for member in formed.members]


@pytest.fixture(params=["pull", "weighted"])
def queue(request: pytest.FixtureRequest) -> BatchQueue:
    if request.param == "pull":
        return BatchQueue(max_batch_size=4, window_ns=0)
    return RoutedQueue(router=Router(2), workers=2, max_batch_size=4, window_ns=0)


def door(queue: BatchQueue, worker: int = 0) -> BatchQueue | Door:
    return queue.door(worker) if isinstance(queue, RoutedQueue) else queue


def test_a_worker_with_patience_comes_back_with_nothing_or_a_batch(queue: BatchQueue) -> None:
    started = time.monotonic()
    assert door(queue).take(0, SOON_S) is IDLE
    assert time.monotonic() - started >= SOON_S
    put(queue, 3)
    assert members(door(queue, 1).take(0, NEVER_S)) == [3]
    # A new request wakes it, and closing ends it.
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(door(queue).take, 0, NEVER_S)
        put(queue, 5)
        assert members(waiting.result(10)) == [5]
    put(queue, 1)
    queue.close()
    assert members(door(queue).take(0, NEVER_S)) == [1]
    assert door(queue).take(0, NEVER_S) is None


def test_a_worker_that_waits_for_its_turn_is_idle_too() -> None:
    """Only one worker waits at the queue; the other would otherwise go cold."""
    queue = BatchQueue(max_batch_size=4, window_ns=0)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(queue.take, 0, NEVER_S)
        until(queue._forming.locked)
        assert queue.take(0, SOON_S) is IDLE
        queue.close()
        assert first.result(10) is None


def test_the_smallest_input_is_kept_and_is_a_copy() -> None:
    resident = Resident(lambda _: None)
    resident.learn(torch.zeros(0))
    resident.learn("text")
    resident.once()
    assert resident.done == Residence(), "an input without elements is ignored"
    for size in (5, 3, 4):
        value = torch.full((size,), float(size))
        resident.learn({"x": value, "y": (value,)})
        value.fill_(99.0)
    assert resident.elements == 6
    assert resident.inputs["x"].tolist() == [3.0] * 3 and resident.inputs["y"][0].tolist() == [3.0] * 3


def test_runs_are_counted_and_timed() -> None:
    ran: list[Any] = []
    resident = Resident(ran.append)
    resident.learn(torch.ones(7))
    resident.once()
    resident.once()
    assert [len(batch) for batch in ran] == [1, 1]
    assert resident.done.runs == 2 and resident.done.elements == 7
    assert 0 < resident.done.longest_ns <= resident.done.total_ns


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), MemoryError()], ids=lambda e: type(e).__name__)
def test_an_input_that_fails_is_never_run_again(error: BaseException) -> None:
    calls: list[int] = []

    def fail(_: object) -> None:
        calls.append(1)
        raise error

    resident = Resident(fail)
    resident.learn(torch.ones(1))
    resident.once()
    resident.once()
    assert calls == [1]
    assert resident.done.runs == 0 and resident.done.failure.startswith(type(error).__name__)


def test_the_counters_of_all_workers_are_summed() -> None:
    first, second = Residence(2, 30, 20, 4, 1, 5), Residence(1, 50, 50, 3, failure="ValueError: no")
    assert summed([first, second]) == Residence(3, 80, 50, 4, 1, 5, failure="ValueError: no")
    assert summed([]) == Residence()


Start = Callable[..., Served]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts an engine over a model; it ends with the test."""
    started: list[Served] = []

    def begin(model: Any, sizes: list[int], **values: Any) -> Served:
        started.append(Served(requests_of(sizes), model, **{"max_batch_size": 4, **values}))
        return started[-1]

    yield begin
    for served in started:
        served.engine.shutdown()


def runs(engine: Engine) -> int:
    return summed([worker.keeper.resident.done for worker in engine.workers]).runs


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.005)


def until_more(engine: Engine) -> None:
    before = runs(engine)
    until(lambda: runs(engine) > before)


def test_idle_workers_run_the_smallest_input_seen_and_requests_are_served_as_ever(start: Start) -> None:
    shapes: list[tuple[int, ...]] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(x.shape))
        return x * 2

    served = start(model, [5, 2, 7], keep_warm_ms=5.0)
    time.sleep(0.05)
    assert runs(served.engine) == 0, "no input is known before the first request"
    for slot in range(3):
        served.send(slot, wait=True)
        until_more(served.engine)
    assert [served.outcomes[k].status for k in range(3)] == [Status.OK] * 3
    assert [served.outcomes[k].output.tolist() for k in range(3)] == [[0.0] * 5, [2.0] * 2, [4.0] * 7]
    assert (1, 2) in shapes
    assert shapes.count((1, 7)) == 1, "an input larger than the smallest is not run again"
    assert len(served.recorder.drain_batches()) == 3, "warm-keeping runs are not recorded"


def test_all_workers_stay_warm(start: Start) -> None:
    served = start(lambda x: x, [2] * 8, keep_warm_ms=4.0, workers=3)
    for worker in served.engine.workers:
        worker.keeper.resident.learn(torch.ones(1))
    until(lambda: all(worker.keeper.resident.done.runs > 1 for worker in served.engine.workers))
    served.send(0, wait=True)


def test_nothing_runs_while_a_request_is_inside(start: Start) -> None:
    """It would take a core or the interpreter lock from the request."""
    slow, ran = threading.Event(), list[int]()

    def model(x: torch.Tensor) -> torch.Tensor:
        ran.append(x.shape[1])
        if x.shape[1] == 9:
            assert slow.wait(20)
        return x

    served = start(model, [2, 9], keep_warm_ms=2.0, workers=2)
    served.send(0, wait=True)
    until(lambda: runs(served.engine) > 0)
    served.send(1)
    until(lambda: 9 in ran)
    time.sleep(0.01)  # a run that started before may end
    before = runs(served.engine)
    time.sleep(0.05)
    assert runs(served.engine) == before
    slow.set()
    assert served.engine.drain(timeout_s=20)
    until(lambda: runs(served.engine) > before)


def test_a_worker_warms_its_own_thread_before_its_first_request() -> None:
    """Pool threads and heaps are per thread, and warm-up ran on another one."""
    threads: list[int] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        threads.append(threading.get_ident())
        return x

    adapter = Numbers()
    instance = ModelInstance(adapter, model, "cpu", None, adapter.collate, set(), resident=torch.ones(3))
    for settings, expected in ((RunnerSettings(warmup_shapes=2), 1), (RunnerSettings(), 0)):
        threads.clear()
        keeper = Keeper(settings, instance, 0)
        keeper.settle(ThreadCounters())
        assert len(threads) == expected
        assert keeper.resident.done.runs == 0, "runs at the start do not count as idle runs"


def test_calls_of_the_device_while_idle_are_no_batch_s(start: Start) -> None:
    """A sampler that read the allocator then would wait for the driver while holding the interpreter lock."""
    asides: list[int] = []

    class Memory(RunningBatches):
        @contextlib.contextmanager
        def aside(self) -> Iterator[None]:
            with super().aside():
                asides.append(self._inside)
                yield

    served = start(lambda x: x, [2], keep_warm_ms=3.0)
    served.engine.workers[0].keeper._memory = Memory()
    served.send(0, wait=True)
    until(lambda: served.engine.workers[0].keeper.resident.done.runs >= 3)
    assert asides[:3] == [1, 1, 1]


def test_hot_rows_are_touched_while_idle(start: Start) -> None:
    table = torch.nn.Embedding(50, 4)
    hot = HotRows(table, 10)
    with torch.no_grad(), hot.learning():
        table(torch.tensor([3, 3, 7]))
    served = start(lambda x: x, [2], keep_warm_ms=3.0)
    served.engine.workers[0].keeper._instance.hot = hot
    served.send(0, wait=True)
    until(lambda: served.engine.workers[0].keeper.resident.done.rows >= 4)
