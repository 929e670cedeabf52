"""A worker: takes batches from the queue and runs a model instance on them, on the instance's thread."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from latfix.adapter_api import Workload
from latfix.errors import RunnerError
from latfix.profilers.probes.batch_delays import Delays
from latfix.profilers.probes.thread_counters import Account, ThreadCounters, difference
from latfix.runners.calls.buffer_pool import BufferPool
from latfix.runners.calls.call_counters import Calls
from latfix.runners.calls.model_call import USER_ERRORS, call_model, describe, model_error, raised_by, split_output
from latfix.runners.calls.tensor_tree import arrays_of, elements_and_length, map_tensors, move, shapes_of
from latfix.runners.engine.serving_thread import Job, ServingThread
from latfix.runners.gpu.accelerator import Accelerator
from latfix.runners.gpu.async_batches import Collated, Flight, Flights
from latfix.runners.gpu.device_clock import DeviceClock
from latfix.runners.gpu.device_selection import in_mode
from latfix.runners.gpu.pinned_staging import Staging
from latfix.runners.gpu.worker_streams import Lane
from latfix.runners.gpu_memory.caching_allocator import Reserved, reserve_on_stream
from latfix.runners.host.cpu_placement import limit_operator_threads
from latfix.runners.host.cpu_quota import usable_cores
from latfix.runners.model_transforms.embedding_rows import HotRows
from latfix.runners.scheduling.batch_queue import Formed, Waiting
from latfix.runners.scheduling.keep_warm import Keeper
from latfix.spans import SpanRecord, collect_spans
from latfix.stages import Status

if TYPE_CHECKING:
    import torch

    from latfix.runners.engine.engine import Engine

Collate = Callable[[list[Any]], Any]
T = TypeVar("T", "Ran", "Flight")
#: An inherited ``finish`` that takes longer was held up: many times what a thread needs to hand out an answer.
_HELD_UP_NS = 200_000


class CollateError(Exception):
    """``collate`` of the adapter or a pool failed; the text describes the error."""


@dataclass(slots=True)
class ModelInstance:
    """A loaded model and how to call it.

    :param adapter: the workload's adapter that loaded it.
    :param model: the module, with fixes applied.
    :param device: a torch device string.
    :param dtype: floating-point inputs are cast to it; ``None`` leaves them unchanged.
    :param collate: makes a batch: the adapter's, or a pool's.
    :param seen: shapes of batches that it has run.
    :param pool: the pool that ``collate`` belongs to, if any.
    :param inference: batches run in ``torch.inference_mode`` instead of ``torch.no_grad``.
    :param set_up: called in each thread that is going to call the model.
    :param calls: counters of its worker's batches.
    :param resident: the result of ``prepare`` for a small request, which the worker runs to stay warm.
    :param hot: rows of its embedding tables that are kept in the caches, if requested.
    :param accelerator: the device that it computes on; ``None`` on the CPU. Set by :meth:`place_on`.
    :param lane: its streams there.
    :param staging: pinned memory through which its batches and answers are copied, if requested.
    :param thread: the one that calls the model, in warm-up and in every engine.
    """

    adapter: Workload
    model: Any
    device: str
    dtype: torch.dtype | None
    collate: Collate
    seen: set[tuple[Any, ...]]
    pool: BufferPool | None = None
    inference: bool = False
    set_up: Callable[[], None] | None = None
    calls: Calls = field(default_factory=Calls)
    resident: Any = None
    hot: HotRows | None = None
    accelerator: Accelerator | None = None
    staging: Staging | None = None
    lane: Lane | None = None
    thread: ServingThread = field(default_factory=ServingThread)

    def place_on(self, accelerator: Accelerator | None) -> None:
        """Set the device to compute on, in streams of its own; ``None`` for the CPU."""
        self.accelerator = accelerator
        self.lane = None if accelerator is None else Lane(accelerator)

    def working(self) -> AbstractContextManager[Any]:
        """Context in which the model's work uses the streams of requests; the work is complete when it exits."""
        return contextlib.nullcontext() if self.lane is None else self.lane.working()

    def guard(self) -> AbstractContextManager[Any]:
        """Context with the gradient mode in which every batch runs, during warm-up, inspection and serving.

        Tensors made in the other mode have other dispatch keys: a compiled graph would be recompiled for them, and a
        pool's buffers could not be written to.
        """
        import torch

        if self.set_up is not None:
            self.set_up()
        return in_mode(self.device, torch.inference_mode() if self.inference else torch.no_grad())

    def on_device(self, batch: Any) -> Any:
        """A batch on the model's device and in its precision; for batches that are not recorded."""
        accelerator = self.accelerator
        if accelerator is None:
            return move(batch, self.device, self.dtype)
        return map_tensors(batch, lambda tensor, _: accelerator.upload(tensor, self.dtype))

    def first_time(self, arrays: list[Any]) -> bool:
        """True if no batch of these shapes has run here before; remembers them."""
        key = shapes_of(arrays)
        if key in self.seen:
            return False
        self.seen.add(key)
        return True


def worker_name(number: int) -> str:
    """The name of a worker's thread."""
    return f"latfix-worker-{number}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended: its status, the result of ``finish``, and the error as one line."""

    status: Status
    output: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Ran:
    """A batch that ran; ``process_ns`` and ``spent`` are the process's and the thread's counters at its end."""

    outputs: list[Any]
    end_ns: int
    process_ns: int
    spent: Account


class Worker:
    """Takes batches until the queue closes. ``number`` is its index."""

    def __init__(self, number: int, engine: Engine, instance: ModelInstance) -> None:
        self.number = number
        self._engine = engine
        self._instance = instance
        self._job: Job | None = None
        self._spans: list[SpanRecord] = []
        self._own_finish = type(instance.adapter).finish is not Workload.finish
        self._counters: ThreadCounters
        #: Its batches on a device; ``None`` on the host, and before it is started.
        self.flights: Flights | None = None
        self._delays: Delays
        self._ready, self._failure = threading.Event(), ""
        self._in_inference_mode: Callable[[], bool]
        self.keeper = Keeper(engine.settings, instance, number, engine.device_memory)
        #: Device memory that it allocated and freed before its first batch; ``None`` if none was requested.
        self.reserved: Reserved | None = None
        #: Number of threads of its operators; 0 before it has started.
        self.operator_threads = 0
        #: When it began its current step; 0 if it serves whole batches.
        self.step_ns = 0

    @property
    def native_id(self) -> int:
        """The thread's id in the kernel; 0 before it is started."""
        return self._job.native_id if self._job is not None else 0

    @property
    def ended(self) -> bool:
        """It takes no batches: it was not started, or its work is over."""
        return self._job is None or self._job.ended

    @property
    def device(self) -> str:
        return self._instance.device

    def start(self) -> None:
        """Begin on the instance's thread; returns when it is ready to take batches.

        :raises RunnerError: it could not be set up.
        """
        self._job = self._instance.thread.start(self._run, worker_name(self.number))
        self._ready.wait()
        if self._failure:
            raise RunnerError(f"worker {self.number} could not be set up: {self._failure}")

    def join(self) -> None:
        """Wait until its work is over, and read the events that its last batches left unread."""
        if self._job is not None:
            self._job.join()
        if self.flights is not None:
            self.flights.resolve()

    def _run(self) -> None:
        try:
            self._set_up()
        except USER_ERRORS as error:  # start() raises it
            self._failure = describe(error)
            return
        finally:
            self._ready.set()
        queue, turn = self._engine.door(self.number), self._engine.idle_turn
        memory = self._engine.device_memory
        free = time.perf_counter_ns()
        with self._instance.guard():
            while True:
                formed, free = self.keeper.next(queue, turn, free)
                if formed is None:
                    break
                if memory is not None:
                    memory.enter()
                free = self._serve(formed, free)
                if memory is not None:
                    memory.leave()
                if turn is not None:
                    self.keeper.learn(formed.members, self._engine.recorder.input_elements)
                self._engine.between_batches()
        self._counters.close()

    def _set_up(self) -> None:
        """Place the thread before its first operator: the framework's pool threads inherit the placement."""
        import torch

        cores = self._engine.places.worker(self.number)
        self.operator_threads = limit_operator_threads(self._engine.settings, cores)
        accelerator = self._instance.accelerator
        pooled = self.operator_threads > 1 and accelerator is None
        self._delays = Delays(self._engine.throttle, self._engine.pool if pooled else None)
        if accelerator is not None:
            clock = self._engine.clocks.setdefault(accelerator.device, DeviceClock())
            settings = self._engine.settings
            self.flights = Flights(
                self._instance,
                clock,
                self._engine.recorder,
                overlap=settings.overlap,
                # A spinning thread would take a core from the prepare threads if none is spare.
                blocking=settings.workers >= usable_cores(),
            )
            self._reserve()
        self._in_inference_mode = torch.is_inference_mode_enabled
        self._counters = ThreadCounters()
        self._engine.recorder.counters.append(self._counters)
        collect_spans(self._spans)
        with self._instance.guard():
            self.keeper.settle(self._counters)

    def _reserve(self) -> None:
        """Allocate the device memory that the settings reserve; it belongs to the stream that computes."""
        wanted, memory, lane = self._engine.settings.reserve_mb, self._engine.device_memory, self._instance.lane
        if not wanted or lane is None:
            return
        if lane.reserved is None:  # the allocator keeps it for this stream across engines
            lane.reserved = reserve_on_stream(wanted, self._instance.device, lane.compute)
        self.reserved = lane.reserved
        if memory is not None:
            memory.skip()

    def _serve(self, formed: Formed, free_ns: int) -> int:
        """Run a batch and finish its members; returns when the worker was free again."""
        live = self._living(formed)
        if not live:
            return time.perf_counter_ns()
        batch_id = self._open(live, formed.open_ns, formed.close_ns, free_ns, retried=False)
        steering = self._engine.steering
        peak = steering.peak if steering is not None else None
        if peak is not None:
            peak.begin()
        ran = self._tried(self._execute, batch_id, live)
        if isinstance(ran, str):
            return self._retry(batch_id, live, ran)
        need = peak.need_bytes() if peak is not None else 0
        end = self._finish(batch_id, live, ran)
        if steering is not None:
            steering.served(self._engine.recorder, batch_id, formed, live, free_ns, end, need)
        return end

    def _living(self, formed: Formed) -> list[Waiting]:
        """Members that are still worth serving; the others end here."""
        taken = self._engine.recorder.taken
        for member in formed.dropped:
            taken[member.slot] = max(formed.open_ns, member.enqueued_ns)
            self._end(member, Status.SHED, f"shed: {self._engine.why_dropped(member)}", formed.close_ns)
        live = []
        for member in formed.members:
            if member.expires_ns and formed.close_ns > member.expires_ns:
                taken[member.slot] = max(formed.open_ns, member.enqueued_ns)
                self._end(member, Status.TIMEOUT, "deadline passed in the queue", formed.close_ns)
            else:
                live.append(member)
        return live

    def _retry(self, batch_id: int, members: list[Waiting], failure: str) -> int:
        """Run the members of a failed batch one by one, so that only the member at fault fails.

        Call it when nothing refers to the exception any more; otherwise the batch's memory is not free for its
        members.

        :param failure: the error as text.
        """
        recorder = self._engine.recorder
        now = time.perf_counter_ns()
        stamps = dict.fromkeys(("collated_ns", "h2d_end_ns", "compute_end_ns", "d2h_end_ns"), now)
        if len(members) == 1:
            recorder.batch_values(batch_id, {name: now for name in stamps if not recorder.batch[name][batch_id]})
            self._end(members[0], Status.ERROR, failure, now)
            recorder.batch_done(batch_id, now)
            return now
        recorder.batch_values(batch_id, {**stamps, "retried": 1})
        recorder.batch_done(batch_id, now)
        self._engine.events.add("note", now, 0, batch_id=batch_id, detail={"message": failure, "retried": True})
        for member in members:
            now = self._serve_single(self._open([member], now, now, now, retried=True), member)
        return now

    def _serve_single(self, batch_id: int, member: Waiting) -> int:
        """Serve a batch of one that is not retried."""
        ran = self._tried(self._execute, batch_id, [member])
        if isinstance(ran, str):
            return self._retry(batch_id, [member], ran)
        return self._finish(batch_id, [member], ran)

    @staticmethod
    def _tried(run: Callable[..., T], *arguments: Any) -> T | str:
        """The result of ``run``, or its error as text.

        The exception must be gone before a retry: it keeps the failed batch's inputs and activations alive.
        """
        try:
            return run(*arguments)
        except CollateError as error:
            return str(error)
        except USER_ERRORS as error:
            return model_error(error)

    def _open(self, members: list[Waiting], open_ns: int, close_ns: int, free_ns: int, *, retried: bool) -> int:
        recorder = self._engine.recorder
        batch_id = recorder.new_batch()
        warm = 0
        for member in members:
            slot = member.slot
            warm |= slot < recorder.warmup
            recorder.batch_id[slot] = batch_id
            if not retried:
                recorder.taken[slot] = max(open_ns, member.enqueued_ns)
        values = {
            "worker": self.number,
            "size": len(members),
            "warmup": int(warm),
            "free_ns": free_ns,
            "open_ns": open_ns,
            "close_ns": close_ns,
            "real_elements": sum(recorder.input_elements[member.slot] for member in members),
            "retried": int(retried),
        }
        recorder.batch_values(batch_id, values)
        return batch_id

    def _execute(self, batch_id: int, members: list[Waiting]) -> Ran:
        """Run a batch and wait for its outputs."""
        if self.flights is not None:
            return self._land(self._launch(batch_id, members), members)
        collated = self._collate(batch_id, members)
        reading = self._instance.calls.begin()
        output, end_ns = self._compute(batch_id, collated.batch)
        self._instance.calls.end(reading, inference=self._in_inference_mode())
        after, process_ns = self._counters.snapshot(), time.process_time_ns()
        spent = difference(after, collated.spent)
        self._account(batch_id, spent, process_ns - collated.process_ns, collated.memory)
        return Ran(split_output(output, len(members)), end_ns, process_ns, after)

    def _compute(self, batch_id: int, batch: Any) -> tuple[Any, int]:
        """Run a batch on the host; returns the output and its time."""
        stamp, pool = self._engine.recorder.batch, self._instance.pool
        # The host has no device copies, so the copy stages have no length.
        stamp["collated_ns"][batch_id] = stamp["h2d_end_ns"][batch_id] = time.perf_counter_ns()
        output = call_model(self._instance.model, batch)
        stamp["compute_end_ns"][batch_id] = stamp["d2h_end_ns"][batch_id] = end = time.perf_counter_ns()
        return output if pool is None else pool.release(output), end

    def _collate(self, batch_id: int, members: list[Waiting]) -> Collated:
        """Make the batch's tensors and account for it."""
        recorder, counters, memory = self._engine.recorder, self._counters, self._engine.memory
        opened, opening = memory.read(), time.process_time_ns()
        start, recorder.batch["wake_runq_ns"][batch_id] = counters.wake()
        try:
            batch = self._instance.collate([member.inputs for member in members])
            arrays = arrays_of(batch)
            elements, length = elements_and_length(arrays, 1)
        except USER_ERRORS as error:
            raise CollateError(raised_by("collate", error)) from None
        if self.flights is None and self._instance.dtype is not None:
            batch = move(batch, "cpu", self._instance.dtype)
        self._delays.begin()
        middle, before = time.process_time_ns(), counters.snapshot()
        spent = difference(before, start)
        grown = memory.growth(opened, spent)
        values = {
            "padded_elements": elements,
            "padded_length": length,
            "first_shape": int(self._instance.first_time(arrays)),
        }
        recorder.batch_values(batch_id, values)
        recorder.batch_account("collate", batch_id, (*spent, middle - opening, *grown))
        return Collated(batch, before, middle, memory.latest if any(grown) else opened)

    def _account(self, batch_id: int, spent: Account, process_ns: int, memory: Account) -> None:
        """Account for the compute of a batch; ``memory`` holds the process's memory counters before it."""
        recorder = self._engine.recorder
        recorder.batch_values(batch_id, self._delays.end(spent[1]))
        # Read even without faults, so that returned memory is seen.
        grown = self._engine.memory.change(memory, self._engine.memory.read())
        recorder.batch_account("compute", batch_id, (*spent, process_ns, *grown))

    def _launch(self, batch_id: int, members: list[Waiting]) -> Flight:
        """Enqueue a batch's copies and compute in the device's streams without waiting for them."""
        assert self.flights is not None, "on the host a batch runs while its caller waits"
        collated = self._collate(batch_id, members)
        calls = self._instance.calls
        reading = calls.begin()
        flight = self.flights.launch(batch_id, collated)
        calls.end(reading, inference=self._in_inference_mode())
        flight.spent = difference(self._counters.snapshot(), collated.spent)
        flight.process_ns = time.process_time_ns() - collated.process_ns
        return flight

    def _land(self, flight: Flight, members: list[Waiting]) -> Ran:
        """Wait until a batch's outputs are on the host."""
        assert self.flights is not None, "only a device has flights"
        before, process = self._counters.snapshot(), time.process_time_ns()
        output = self.flights.land(flight)
        if not self._engine.recorder.defers or self._engine.steering is not None:
            self.flights.resolve()
        after, process_ns = self._counters.snapshot(), time.process_time_ns()
        waited = difference(after, before)
        spent = tuple(a + b for a, b in zip(flight.spent, waited, strict=True))
        self._account(flight.batch_id, spent, flight.process_ns + process_ns - process, flight.memory)
        return Ran(split_output(output, len(members)), flight.end_ns, process_ns, after)

    def _finish(self, batch_id: int, members: list[Waiting], ran: Ran) -> int:
        engine, recorder, counters = self._engine, self._engine.recorder, self._counters
        now, process_ns, before = ran.end_ns, ran.process_ns, ran.spent
        self._spans.clear()  # of collate or the model: not part of any member's finish
        for member, output in zip(members, ran.outputs, strict=True):
            slot = member.slot
            recorder.finish_start[slot] = now
            answer, error, memory = output, "", engine.memory.latest
            if self._own_finish:
                memory = engine.memory.begin()
                try:
                    answer = self._instance.adapter.finish(output, engine.request_of(slot))
                except USER_ERRORS as raised:
                    error = raised_by("finish", raised)
            # An inherited one does nothing: it is measured only if something held up the thread.
            if self._own_finish or time.perf_counter_ns() - now > _HELD_UP_NS:
                # Measured from the end of compute or of the previous member's finish: one reading serves both.
                after, process_now = counters.snapshot(), time.process_time_ns()
                spent = difference(after, before)
                account = (*spent, process_now - process_ns, *engine.memory.growth(memory, spent))
                recorder.account("finish", slot, account)
                before, process_ns = after, process_now
                if self._spans:
                    recorder.finish_span[slot] = engine.log_spans(self._spans, slot, "finish")
            now = time.perf_counter_ns()
            if error:
                engine.done(slot, Outcome(Status.ERROR, None, error), now)
            elif member.expires_ns and now > member.expires_ns:
                self._end(member, Status.TIMEOUT, "answered after its deadline", now)
            else:
                engine.done(slot, Outcome(Status.OK, answer), now)
        if engine.device_memory is not None:
            engine.device_memory.note(recorder.batch, batch_id)
        recorder.batch_done(batch_id, now)
        return now

    def _end(self, member: Waiting, status: Status, message: str, end_ns: int) -> None:
        self._engine.done(member.slot, Outcome(status, None, message), end_ns)
