"""The service under test: admission, prepare threads, queue, batcher, workers.

The same engine serves a replay, the accuracy evaluation and a user's own program. The thread that crosses a boundary
between stages reads the clock once for it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from latfix.adapter_api import Workload
from latfix.errors import RunnerError
from latfix.profilers.gpu.allocator_counters import BatchCounters, RunningBatches, cuda_counters
from latfix.profilers.probes.batch_delays import PoolDelays
from latfix.profilers.probes.control_groups import CgroupThrottle
from latfix.profilers.probes.stage_recorder import EventLog, StageRecorder
from latfix.profilers.probes.thread_counters import ProcessMemory, ThreadCounters, difference
from latfix.request import PRIORITIES, Request
from latfix.runners.calls.model_call import USER_ERRORS, SameFailure, raised_by
from latfix.runners.calls.tensor_tree import arrays_of, elements_and_length, width_of
from latfix.runners.engine.continuous_batching import SteppingWorker, Steps
from latfix.runners.engine.idle_gc import IdleCollector
from latfix.runners.engine.overlapping_worker import OverlappingWorker
from latfix.runners.engine.worker import ModelInstance, Outcome, Worker, worker_name
from latfix.runners.gpu.device_clock import DeviceClock
from latfix.runners.host.cpu_placement import Places, limit_operator_threads
from latfix.runners.scheduling.batch_queue import BatchQueue, Waiting, bucket_length
from latfix.runners.scheduling.control import Steering, ordering_of
from latfix.runners.scheduling.keep_warm import IdleTurn
from latfix.runners.scheduling.replica_router import Router, Shift
from latfix.runners.scheduling.routed_queue import Door, RoutedQueue
from latfix.settings import RunnerSettings
from latfix.spans import SpanRecord, collect_spans
from latfix.stages import Status

OnDone = Callable[[int, Outcome], None]

#: How long idle threads get to end.
_STOP_S = 5.0
#: Longer limits count as none: 31 years, which fits nanoseconds in 64 bits.
_LONGEST_MS = 1e12


class Engine:
    """Serves requests through the stages of the contract.

    :param instances: one model instance per worker, or one for all workers.
    :param recorder: receives the stamps.
    :param request_of: returns the request in a slot.
    :param collector: collects garbage between batches while the automatic collector is off.
    :param on_done: called by a worker or prepare thread once per request, after the last write to its slot.
    :param given_up: True for a slot whose caller no longer waits; its request is then dropped from the queue.
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
        given_up: Callable[[int], bool] | None = None,
    ) -> None:
        self.adapter = adapter
        self.settings = settings
        self.recorder = recorder
        self.events = events
        self.failures = SameFailure()
        self.request_of = request_of
        self.throttle = CgroupThrottle()
        self.pool = PoolDelays()
        self.memory = ProcessMemory()
        #: The caching allocator's counters by batch; ``None`` on the host. With workers on several devices, counters
        #: would include other batches, so only which worker is in a batch is tracked.
        self.device_memory: RunningBatches | None = _device_memory(instances)
        self._on_done = on_done
        self._collector = collector
        self._given_up = given_up
        self._inbox: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.steering = Steering.of(settings, instances[0].device)
        self.queue = self._make_queue()
        #: For workers that keep themselves warm; ``None`` if they do not.
        self.idle_turn = IdleTurn(lambda: self._pending) if settings.keep_warm_ms > 0 else None
        self.places = Places(settings)
        self._pending = 0
        self._pending_lock = threading.Lock()
        self.idle = threading.Event()
        self.idle.set()
        self._prepare_threads = [
            threading.Thread(target=self._prepare_loop, args=(k,), name=f"latfix-prepare-{k}", daemon=True)
            for k in range(settings.prepare_threads)
        ]
        #: By device, for the devices of the workers.
        self.clocks: dict[str, DeviceClock] = {}
        kind = _kind_of(settings, instances)
        self.workers: list[Worker] = [kind(k, self, instance) for k, instance in enumerate(instances)]
        self._steps = isinstance(instances[0].model, Steps)

    def _make_queue(self) -> BatchQueue:
        settings, steering = self.settings, self.steering
        policy: dict[str, Any] = {
            "max_batch_size": settings.max_batch_size,
            # Later requests join between two steps, so there is nothing to wait for.
            "window_ns": 0 if settings.batching == "continuous" else int(settings.batch_window_ms * 1e6),
            "by_length": settings.batch_order == "length",
            "ordering": ordering_of(settings),
            "memory_limit": settings.memory_limit_mb << 20,
            "limits": steering.limits if steering is not None else None,
            "doomed": _either(
                steering.hopeless if steering is not None and steering.deadlines else None, self._given_up
            ),
        }
        if settings.routing == "pull" or settings.workers == 1:
            return BatchQueue(**policy)
        router = Router(settings.workers, settings.places, self._note_shift)
        return RoutedQueue(router=router, workers=settings.workers, **policy)

    def door(self, worker: int) -> BatchQueue | Door:
        """The queue from which a worker takes its batches."""
        return self.queue.door(worker) if isinstance(self.queue, RoutedQueue) else self.queue

    def device_taken(self, device: str, others: float) -> None:
        """Note the current share of a device, from 0 to 1, used by other processes."""
        if isinstance(self.queue, RoutedQueue):
            for worker in self.workers:
                if worker.device == device:
                    self.queue.note_others(worker.number, others)

    def _note_shift(self, shift: Shift) -> None:
        """Log that a replica became slow or recovered."""
        lasted = max(shift.until_ns - shift.since_ns, 1) if shift.until_ns else 0
        slow = f"{shift.weight:.2g} times as long as the fastest"
        name = f"worker {shift.worker}"
        message = f"{name} took up to {slow} for {lasted / 1e9:.3g} s" if lasted else f"{name} takes {slow} now"
        detail = {"message": message, "worker": shift.worker, "weight": round(shift.weight, 3), "slow": not lasted}
        self.events.add("note", shift.since_ns, lasted, detail=detail)

    def start(self) -> None:
        """Start the threads.

        :raises RunnerError: a worker could not be set up; no thread keeps running then.
        """
        if self._steps:
            detail = {"message": "the model works in steps: batch.continuous applies", "steps": True}
            self.events.add("note", time.perf_counter_ns(), 0, detail=detail)
        for thread in self._prepare_threads:
            thread.start()
        try:
            for worker in self.workers:
                worker.start()
        except RunnerError:
            self.abandon(_STOP_S)
            raise

    @property
    def in_flight(self) -> int:
        """Requests admitted and not yet ended."""
        return self._pending

    def thread_ids(self) -> dict[str, list[int]]:
        """Native ids of the threads by role, 0 before they are started, to attribute events to threads."""
        workers = [worker.native_id for worker in self.workers]
        return {"worker": workers, "prepare": [thread.native_id or 0 for thread in self._prepare_threads]}

    def ended_threads(self) -> list[str]:
        """Names of threads that serve no more. Before :meth:`shutdown`, they died and their requests never end."""
        ended = [worker_name(worker.number) for worker in self.workers if worker.ended]
        return ended + [thread.name for thread in self._prepare_threads if not thread.is_alive()]

    def load(self) -> dict[str, float]:
        """Requests in the queue and inside the service now, and the state of the controllers."""
        steered = self.steering.series() if self.steering is not None else {}
        routed = self.queue.router.series() if isinstance(self.queue, RoutedQueue) else {}
        return {"runner.queue_depth": len(self.queue), "runner.in_flight": self._pending, **steered, **routed}

    def submit(self, slot: int, arrived_ns: int = 0, runq_ns: int = 0) -> None:
        """Admit a request, or end it at once.

        It is ``shed`` if ``max_queue`` requests are already inside, or if the admission policy refuses it.

        :param arrived_ns: when it was handed over; 0 for now.
        :param runq_ns: the part of the time since then in which the calling thread was runnable without a core.
        """
        recorder = self.recorder
        recorder.submitted[slot] = now = time.perf_counter_ns()
        recorder.handed[slot] = arrived_ns or now
        recorder.intake_runq[slot] = runq_ns
        expires = 0
        if self.steering is not None and self.steering.deadlines is not None:
            expires = self.expires_ns(slot, self.request_of(slot))
        with self._pending_lock:
            refused = ""
            if 0 < self.settings.max_queue <= self._pending:
                refused = "the queue was full"
            elif self.steering is not None:
                refused = self.steering.refusal(now, expires, self._pending)
            if not refused:
                self._pending += 1
                self.idle.clear()
        if refused:
            recorder.request_done(slot, Status.SHED, now)
            if self._on_done is not None:
                self._on_done(slot, Outcome(Status.SHED, None, f"shed: {refused}"))
            return
        self._inbox.put(slot)

    def done(self, slot: int, outcome: Outcome, end_ns: int) -> None:
        """Record the end of a request; called by the thread that ended it."""
        if self.steering is not None:
            served = outcome.status in (Status.OK, Status.TIMEOUT) and self.recorder.batch_id[slot] >= 0
            if served:
                self.steering.ended(end_ns - self.recorder.handed[slot], self._pending)
        self.recorder.request_done(slot, outcome.status, end_ns)
        if outcome.status == Status.ERROR:
            self.failures.add(outcome.error, end_ns)
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
        """Do work that would otherwise delay a request; a worker just finished a batch, or a step of one."""
        if self._collector is not None:
            self._collector.between_batches(idle=self._pending == 0)

    def expires_ns(self, slot: int, request: Request) -> int:
        """When the request's caller gives up, on the clock of the stamps; 0 for never."""
        limit_ms = request.deadline_ms if request.deadline_ms is not None else self.settings.timeout_ms
        if not limit_ms or not limit_ms < _LONGEST_MS:
            return 0
        return int(self.recorder.scheduled_ns[slot]) + int(limit_ms * 1e6)

    def why_dropped(self, item: Waiting) -> str:
        """Why a request was dropped when its turn came."""
        if self._given_up is not None and self._given_up(item.slot):
            return "its caller no longer waits"
        return "it could not have been answered by its deadline"

    def drain(self, stop: threading.Event | None = None, timeout_s: float | None = None) -> bool:
        """Wait until every admitted request ended; False if ``stop`` or the timeout ends the wait early."""
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
        self._close_files()

    def abandon(self, timeout_s: float) -> bool:
        """End the threads without serving waiting requests. True if they ended within ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        for _ in self._prepare_threads:
            self._inbox.put(None)
        self.queue.close()
        threads = len(self.workers) + len(self._prepare_threads)
        while len(self.ended_threads()) < threads:
            while len(self.queue):
                self.queue.take(0)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        self._close_files()
        return True

    def _close_files(self) -> None:
        self.memory.close()
        if self.steering is not None:
            self.steering.close()

    def _prepare_loop(self, number: int) -> None:
        counters = ThreadCounters()
        self.recorder.counters.append(counters)
        spans: list[SpanRecord] = []
        collect_spans(spans)
        limit_operator_threads(self.settings, self.places.prepare(number))
        while (slot := self._inbox.get()) is not None:
            self._prepare(slot, number, counters, spans)
        counters.close()

    def _prepare(self, slot: int, number: int, counters: ThreadCounters, spans: list[SpanRecord]) -> None:
        recorder = self.recorder
        recorder.prepare_start[slot] = start = time.perf_counter_ns()
        memory, process = self.memory.begin(), time.process_time_ns()
        before, recorder.prepare_wake[slot] = counters.wake()
        recorder.prepare_thread[slot] = number
        request = self.request_of(slot)
        if request.priority not in PRIORITIES:  # a program's own Request is not validated
            message = f"priority is {request.priority!r}; expected high, normal or low"
            self.done(slot, Outcome(Status.ERROR, None, message), start)
            return
        expires = self.expires_ns(slot, request)
        if expires and start > expires:
            self.done(slot, Outcome(Status.TIMEOUT, None, "deadline passed before prepare"), start)
            return
        failure = ""
        try:
            inputs = self.adapter.prepare(request)
            arrays = arrays_of(inputs)
            elements, length = elements_and_length(arrays, 0)
        except USER_ERRORS as error:
            failure = raised_by("prepare", error)
        spent = difference(counters.snapshot(), before)
        process = time.process_time_ns() - process
        recorder.account("prepare", slot, (*spent, process, *self.memory.growth(memory, spent)))
        if failure:
            self.log_spans(spans, slot, "prepare")
            self.done(slot, Outcome(Status.ERROR, None, failure), time.perf_counter_ns())
            return
        recorder.input_elements[slot] = elements
        recorder.input_length[slot] = length
        recorder.input_width[slot] = width_of(arrays)
        recorder.bucket_length[slot] = bucket = bucket_length(request, self.settings.batch_key, elements)
        if spans:
            recorder.prepare_span[slot] = self.log_spans(spans, slot, "prepare")
        share, bytes_needed = self.steering.place(bucket, elements) if self.steering is not None else (1.0, 0)
        recorder.enqueued[slot] = now = time.perf_counter_ns()
        self.queue.put(
            rank=PRIORITIES.index(request.priority),
            slot=slot,
            enqueued_ns=now,
            expires_ns=expires,
            length=bucket,
            inputs=inputs,
            share=share,
            memory=bytes_needed,
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


def _kind_of(settings: RunnerSettings, instances: list[ModelInstance]) -> type[Worker]:
    """The kind of worker for the settings; on the host, a batch cannot overlap with anything."""
    if settings.batching == "continuous":
        return SteppingWorker
    on_device = any(instance.accelerator is not None for instance in instances)
    return OverlappingWorker if settings.overlap and on_device else Worker


def _device_memory(instances: list[ModelInstance]) -> RunningBatches | None:
    """Counters by batch, or only which worker is in a batch; ``None`` if no device has counters."""
    read, *others = (cuda_counters(device) for device in dict.fromkeys(instance.device for instance in instances))
    if read is None:
        return None
    return RunningBatches() if others else BatchCounters.of(read) or RunningBatches()


def _either(
    doomed: Callable[[Waiting, int], bool] | None, given_up: Callable[[int], bool] | None
) -> Callable[[Waiting, int], bool] | None:
    """Combine two reasons to drop a request; ``None`` if there is neither."""
    if given_up is None:
        return doomed
    return lambda item, now_ns: given_up(item.slot) or (doomed is not None and doomed(item, now_ns))
