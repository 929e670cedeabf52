"""Idle workers stay warm: they run a small input periodically, never while a request waits.

During a pause the weights leave the caches, the clock slows down and pool threads sleep. A worker without a request
for a while runs the smallest input seen, so that the next request meets a warm worker.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from latfix.profilers.gpu.allocator_counters import RunningBatches
from latfix.profilers.probes.thread_counters import ThreadCounters
from latfix.run_record.process_facts import Residence
from latfix.runners.calls.model_call import USER_ERRORS, call_model, describe
from latfix.runners.calls.tensor_tree import elements_of, map_tensors
from latfix.runners.scheduling.batch_queue import IDLE, BatchQueue, Formed, Waiting
from latfix.settings import RunnerSettings

if TYPE_CHECKING:
    from latfix.runners.engine.worker import ModelInstance
    from latfix.runners.scheduling.routed_queue import Door


@dataclass(slots=True)
class IdleTurn:
    """Lets one idle worker at a time run its warm-keeping input, and none while a request is inside.

    The other workers stay ready, and requests that are being prepared or computed are not slowed down.

    :param inside: returns the number of requests inside the service.
    """

    inside: Callable[[], int]
    _taken: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> bool:
        """Take the turn; False if it is taken or a request is inside."""
        return self.inside() == 0 and self._taken.acquire(blocking=False)

    def end(self) -> None:
        self._taken.release()


@dataclass(slots=True)
class Resident:
    """One worker's warm-keeping input, and what running it cost.

    :param run: collates and computes a batch of one, like a request.
    :param inputs: the smallest known result of ``prepare``; ``None`` before the first.
    """

    run: Callable[[Sequence[Any]], None]
    inputs: Any = None
    elements: int = 0
    done: Residence = field(default_factory=Residence)

    def learn(self, inputs: Any) -> None:
        """Keep a copy of a request's inputs if they are the smallest so far."""
        elements = elements_of(inputs)
        if elements and (self.inputs is None or elements < self.elements):
            # A copy: the adapter may overwrite what ``prepare`` returned.
            self.inputs = copy.deepcopy(map_tensors(inputs, lambda tensor, _: tensor.detach()))
            self.elements = elements

    def once(self) -> None:
        """Run the input; one that failed is not run again."""
        if self.inputs is None or self.done.failure:
            return
        started = time.perf_counter_ns()
        try:
            self.run([self.inputs])
        except USER_ERRORS as error:  # no request waits for it, so it is noted instead of raised
            self.done.failure = describe(error)
            return
        took = time.perf_counter_ns() - started
        self.done.runs += 1
        self.done.elements = self.elements
        self.done.total_ns += took
        self.done.longest_ns = max(self.done.longest_ns, took)


class Keeper:
    """Takes batches for one worker, and keeps it warm while there are none.

    :param instance: the worker's model.
    :param number: of the worker, to stagger the workers.
    :param memory: counters of the device's memory, if any.
    """

    def __init__(
        self, settings: RunnerSettings, instance: ModelInstance, number: int, memory: RunningBatches | None = None
    ) -> None:
        self._instance = instance
        self._memory = memory
        self._counters: ThreadCounters | None = None
        self.resident = Resident(self._run, instance.resident, elements_of(instance.resident))
        self._period_s = settings.keep_warm_ms / 1000
        self._settles = settings.keep_warm_ms > 0 or settings.warmup_shapes > 0
        self._patience_s = self._period_s * (1 + number / settings.workers)

    def settle(self, counters: ThreadCounters) -> None:
        """Run on the worker's thread before its first request, to create per-thread state of the framework.

        :param counters: of the thread; what it does here is not attributed to a request.
        """
        self._counters = counters
        if self._settles:
            self.resident.once()
        if (hot := self._instance.hot) is not None:
            hot.touch_all()
        # From here on, counts only what runs between requests.
        self.resident.done = Residence(failure=self.resident.done.failure)
        counters.snapshot()

    def next(self, queue: BatchQueue | Door, turn: IdleTurn | None, free_ns: int) -> tuple[Formed | None, int]:
        """The next batch (``None`` at the end), and since when the worker was free for it.

        :param turn: the engine's; ``None`` if workers are not kept warm.
        """
        if turn is None:
            return queue.take(free_ns), free_ns
        while (formed := queue.take(free_ns, self._patience_s)) is IDLE:
            self._patience_s = self._period_s
            if turn.begin():
                try:
                    self._stay_warm()
                finally:
                    turn.end()
                self.resident.done.delayed += len(queue) > 0
                free_ns = time.perf_counter_ns()
        return formed, free_ns

    def learn(self, members: Sequence[Waiting], elements: Sequence[int]) -> None:
        """Keep the smallest inputs of the traffic; ``elements`` holds the size of each request's inputs by slot."""
        for member in members:
            if self.resident.inputs is None or 0 < elements[member.slot] < self.resident.elements:
                self.resident.learn(member.inputs)

    def _stay_warm(self) -> None:
        with contextlib.nullcontext() if self._memory is None else self._memory.aside():
            self.resident.once()
        if (hot := self._instance.hot) is not None:
            self.resident.done.rows += hot.touch_some()
        if self._counters is not None:
            self._counters.snapshot()

    def _run(self, inputs: Sequence[Any]) -> None:
        """Run a batch of one like a request's, without recording it."""
        instance = self._instance
        batch = instance.collate(list(inputs))  # held until the device has read it
        with instance.working():
            call_model(instance.model, instance.on_device(batch))


def summed(parts: Sequence[Residence]) -> Residence:
    """The sum over all workers."""
    return Residence(
        runs=sum(part.runs for part in parts),
        total_ns=sum(part.total_ns for part in parts),
        longest_ns=max((part.longest_ns for part in parts), default=0),
        elements=max((part.elements for part in parts), default=0),
        delayed=sum(part.delayed for part in parts),
        rows=sum(part.rows for part in parts),
        failure=next((part.failure for part in parts if part.failure), ""),
    )
