"""The service under test: admission, prepare threads, priority queue, batcher, workers.

The same engine serves a replay, the evaluation of accuracy and a user's own program. Each boundary between
stages is one reading of the clock, taken by the thread that crosses it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from latfix.profilers.host import CgroupThrottle, PoolDelays, ProcessMemory, ThreadCounters, difference
from latfix.profilers.recorder import EventLog, StageRecorder
from latfix.request import PRIORITIES, Request
from latfix.runners.adapter import USER_ERRORS, describe, elements_and_length, tensors_of
from latfix.runners.batcher import BatchQueue, bucket_length
from latfix.runners.collector import IdleCollector
from latfix.runners.worker import ModelInstance, Outcome, Worker
from latfix.settings import RunnerSettings
from latfix.spans import SpanRecord, collect_spans
from latfix.stages import Status
from latfix.workload import Workload

OnDone = Callable[[int, Outcome], None]


class Engine:
    """Serves requests through the stages of the contract.

    :param instances: one model instance a worker, or one for all of them.
    :param recorder: where the stamps go.
    :param request_of: the request in a slot.
    :param collector: collects garbage between batches, where the automatic collector is off.
    :param on_done: called on a worker's or prepare thread's own time, once for each request.
    """

    def __init__(
        self,
        *,
        adapter: Workload,
        instances: list[ModelInstance],
        settings: RunnerSettings,
        recorder: StageRecorder,
        events: EventLog,
        request_of: Callable[[int], Request],
        on_done: OnDone | None = None,
        collector: IdleCollector | None = None,
    ) -> None:
        self.adapter = adapter
        self.settings = settings
        self.recorder = recorder
        self.events = events
        self.request_of = request_of
        self.throttle = CgroupThrottle()
        self.pool = PoolDelays()
        self.memory = ProcessMemory()
        self._on_done = on_done
        self._collector = collector
        self._inbox: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.queue = BatchQueue(
            max_batch_size=settings.max_batch_size,
            window_ns=int(settings.batch_window_ms * 1e6),
            by_length=settings.batch_order == "length",
        )
        self._pending = 0
        self._pending_lock = threading.Lock()
        self.idle = threading.Event()
        self.idle.set()
        self._prepare_threads = [
            threading.Thread(target=self._prepare_loop, args=(k,), name=f"latfix-prepare-{k}", daemon=True)
            for k in range(settings.prepare_threads)
        ]
        self.workers = [Worker(k, self, instance) for k, instance in enumerate(instances)]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._prepare_threads:
            thread.start()
        for worker in self.workers:
            worker.start()

    @property
    def in_flight(self) -> int:
        """Requests admitted and not yet ended."""
        return self._pending

    def thread_ids(self) -> dict[str, list[int]]:
        """Native ids of the started threads by role, to tell whose pause an event was."""
        workers = [worker.native_id for worker in self.workers]
        return {"worker": workers, "prepare": [thread.native_id or 0 for thread in self._prepare_threads]}

    def load(self) -> dict[str, float]:
        """Requests in the queue and inside the service, now."""
        return {"runner.queue_depth": len(self.queue), "runner.in_flight": self._pending}

    def submit(self, slot: int) -> None:
        """Admit a request: it ends ``shed`` at once where ``max_queue`` requests are already inside."""
        recorder = self.recorder
        recorder.handed[slot] = now = time.perf_counter_ns()
        with self._pending_lock:
            full = 0 < self.settings.max_queue <= self._pending
            if not full:
                self._pending += 1
                self.idle.clear()
        if full:
            recorder.request_done(slot, Status.SHED, now)
            if self._on_done is not None:
                self._on_done(slot, Outcome(Status.SHED, None, "shed: the queue was full"))
            return
        self._inbox.put(slot)

    def done(self, slot: int, outcome: Outcome, end_ns: int) -> None:
        """A request ended; called by the thread that ended it."""
        self.recorder.request_done(slot, outcome.status, end_ns)
        if outcome.status == Status.ERROR:
            self.events.add(
                "error",
                end_ns,
                0,
                thread=threading.get_native_id(),
                request=self.recorder.index_of(slot),
                batch_id=self.recorder.batch_id[slot],
                detail={"message": outcome.error},
            )
        if self._on_done is not None:
            self._on_done(slot, outcome)
        with self._pending_lock:
            self._pending -= 1
            if self._pending == 0:
                self.idle.set()

    def between_batches(self) -> None:
        """A worker finished a batch: the moment for work that would otherwise delay a request."""
        if self._collector is not None:
            self._collector.between_batches(idle=self._pending == 0)

    def expires_ns(self, slot: int, request: Request) -> int:
        """When the request's caller gives up, on the clock of the stamps; 0 for never."""
        limit_ms = request.deadline_ms if request.deadline_ms is not None else self.settings.timeout_ms
        return int(self.recorder.scheduled_ns[slot]) + int(limit_ms * 1e6) if limit_ms else 0

    def drain(self, stop: threading.Event | None = None, timeout_s: float | None = None) -> bool:
        """Wait until every admitted request ended; ``stop`` or the timeout ends the waiting early."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.idle.wait(0.05):
            if stop is not None and stop.is_set():
                return False
            if deadline is not None and time.monotonic() > deadline:
                return False
        return True

    def shutdown(self) -> None:
        """End the threads once the queues are empty."""
        for _ in self._prepare_threads:
            self._inbox.put(None)
        for thread in self._prepare_threads:
            thread.join()
        self.queue.close()
        for worker in self.workers:
            worker.join()
        self.memory.close()

    def _prepare_loop(self, number: int) -> None:
        counters = ThreadCounters()
        self.recorder.counters.append(counters)
        spans: list[SpanRecord] = []
        collect_spans(spans)
        self._framework_threads()
        while (slot := self._inbox.get()) is not None:
            self._prepare(slot, number, counters, spans)
        counters.close()

    def _framework_threads(self) -> None:
        if self.settings.intra_op_threads:
            import torch

            torch.set_num_threads(self.settings.intra_op_threads)

    def _prepare(self, slot: int, number: int, counters: ThreadCounters, spans: list[SpanRecord]) -> None:
        recorder = self.recorder
        recorder.prepare_start[slot] = start = time.perf_counter_ns()
        memory, process = self.memory.begin(), time.process_time_ns()
        before, recorder.prepare_wake[slot] = counters.wake()
        recorder.prepare_thread[slot] = number
        request = self.request_of(slot)
        expires = self.expires_ns(slot, request)
        if expires and start > expires:
            self.done(slot, Outcome(Status.TIMEOUT, None, "deadline passed before prepare"), start)
            return
        try:
            inputs = self.adapter.prepare(request)
            elements, length = elements_and_length(tensors_of(inputs), 0)
        except USER_ERRORS as error:
            spent = difference(counters.snapshot(), before)
            process = time.process_time_ns() - process
            recorder.account("prepare", slot, (*spent, process, *self.memory.growth(memory, spent)))
            self.log_spans(spans, slot, "prepare")
            message = f"prepare raised {describe(error)}"
            self.done(slot, Outcome(Status.ERROR, None, message), time.perf_counter_ns())
            return
        spent = difference(counters.snapshot(), before)
        process = time.process_time_ns() - process
        recorder.account("prepare", slot, (*spent, process, *self.memory.growth(memory, spent)))
        recorder.input_elements[slot] = elements
        recorder.input_length[slot] = length
        recorder.bucket_length[slot] = bucket = bucket_length(request, self.settings.batch_key, elements)
        if spans:
            recorder.prepare_span[slot] = self.log_spans(spans, slot, "prepare")
        recorder.enqueued[slot] = now = time.perf_counter_ns()
        self.queue.put(
            rank=PRIORITIES.index(request.priority),
            slot=slot,
            enqueued_ns=now,
            expires_ns=expires,
            length=bucket,
            inputs=inputs,
        )

    def log_spans(self, spans: list[SpanRecord], slot: int, stage: str) -> int:
        """Log this thread's spans as events and empty the list; returns their total length."""
        total = 0
        index = self.recorder.index_of(slot)
        for span in spans:
            total += span.end_ns - span.start_ns
            self.events.add(
                "span",
                span.start_ns,
                span.end_ns - span.start_ns,
                thread=threading.get_native_id(),
                request=index,
                detail={"name": span.name, "stage": stage},
            )
        spans.clear()
        return total
