"""A worker: one thread that takes batches from the queue and runs a model instance on them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from latfix.profilers.host import Account, PoolDelays, ThreadCounters, difference
from latfix.runners.adapter import (
    USER_ERRORS,
    call_model,
    describe,
    elements_and_length,
    move,
    split_output,
    tensors_of,
)
from latfix.runners.batcher import Formed, Waiting
from latfix.runners.buffers import BufferPool
from latfix.spans import SpanRecord, collect_spans
from latfix.stages import Status
from latfix.workload import Workload

if TYPE_CHECKING:
    import torch

    from latfix.runners.engine import Engine

Collate = Callable[[list[Any]], Any]


@dataclass(slots=True)
class ModelInstance:
    """A loaded model and how to call it.

    :param adapter: the workload's adapter that loaded it.
    :param model: the module, with fixes applied.
    :param device: a torch device string.
    :param dtype: floating-point inputs are cast to it; ``None`` leaves them.
    :param collate: makes a batch; the adapter's, or a pool's.
    :param seen: shapes of batches that it has run.
    :param pool: whose ``collate`` that is, where there is one.
    """

    adapter: Workload
    model: Any
    device: str
    dtype: torch.dtype | None
    collate: Collate
    seen: set[tuple[Any, ...]]
    pool: BufferPool | None = None

    def first_time(self, tensors: list[torch.Tensor]) -> bool:
        """Whether no batch of these shapes has run here before; remembers them."""
        key = tuple(tuple(tensor.shape) for tensor in tensors)
        if key in self.seen:
            return False
        self.seen.add(key)
        return True


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one request ended: its status, what ``finish`` returned, and the error's one line."""

    status: Status
    output: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class _Ran:
    """A batch that ran; ``process_ns`` and ``spent`` are the process's and the thread's counters at its end."""

    outputs: list[Any]
    end_ns: int
    process_ns: int
    spent: Account


class Worker:
    """Takes batches as long as there are any, on a thread of its own.

    :param number: index among the workers.
    """

    def __init__(self, number: int, engine: Engine, instance: ModelInstance) -> None:
        self.number = number
        self._engine = engine
        self._instance = instance
        self._thread = threading.Thread(target=self._run, name=f"latfix-worker-{number}", daemon=True)
        self._spans: list[SpanRecord] = []
        self._own_finish = type(instance.adapter).finish is not Workload.finish
        self._counters: ThreadCounters
        self._stream: Any = None
        self._batches = 0
        self._throttled = 0
        self._pool: PoolDelays | None = None

    @property
    def native_id(self) -> int:
        """The thread's id in the kernel; 0 before it is started."""
        return self._thread.native_id or 0

    @property
    def device(self) -> str:
        """The torch device that its model instance is on."""
        return self._instance.device

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread's end."""
        self._thread.join()

    def _run(self) -> None:
        import torch

        settings = self._engine.settings
        if settings.intra_op_threads:
            torch.set_num_threads(settings.intra_op_threads)
        if torch.get_num_threads() > 1 and self._instance.device == "cpu":
            self._pool = self._engine.pool
        if self._instance.device != "cpu":
            self._stream = torch.cuda.Stream(self._instance.device)  # type: ignore[no-untyped-call]
        self._counters = ThreadCounters()
        self._engine.recorder.counters.append(self._counters)
        collect_spans(self._spans)
        self._throttled = self._engine.throttle.throttled_ns()
        free = time.perf_counter_ns()
        with torch.no_grad():
            while (formed := self._engine.queue.take(free)) is not None:
                free = self._serve(formed, free)
                self._engine.between_batches()
        self._counters.close()

    def _serve(self, formed: Formed, free_ns: int) -> int:
        """Run a batch and finish its members; returns when the worker was free again."""
        live = []
        for member in formed.members:
            if member.expires_ns and formed.close_ns > member.expires_ns:
                self._engine.recorder.taken[member.slot] = max(formed.open_ns, member.enqueued_ns)
                self._end(member, Status.TIMEOUT, "deadline passed in the queue", formed.close_ns)
            else:
                live.append(member)
        if not live:
            return time.perf_counter_ns()
        batch_id = self._open(live, formed.open_ns, formed.close_ns, free_ns, retried=False)
        try:
            ran = self._execute(batch_id, live)
        except USER_ERRORS as error:
            return self._retry(batch_id, live, error)
        return self._finish(batch_id, live, ran)

    def _retry(self, batch_id: int, members: list[Waiting], error: BaseException) -> int:
        """A batch failed: run its members one by one, so that only the guilty one fails."""
        recorder = self._engine.recorder
        now = time.perf_counter_ns()
        stamps = dict.fromkeys(("collated_ns", "h2d_end_ns", "compute_end_ns", "d2h_end_ns"), now)
        if len(members) == 1:
            recorder.batch_values(batch_id, {name: now for name in stamps if not recorder.batch[name][batch_id]})
            self._end(members[0], Status.ERROR, f"the model raised {describe(error)}", now)
            recorder.batch_done(batch_id, now)
            return now
        recorder.batch_values(batch_id, {**stamps, "retried": 1})
        recorder.batch_done(batch_id, now)
        for member in members:
            single = self._open([member], now, now, now, retried=True)
            try:
                ran = self._execute(single, [member])
            except USER_ERRORS as own:
                now = self._retry(single, [member], own)
            else:
                now = self._finish(single, [member], ran)
        return now

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

    def _execute(self, batch_id: int, members: list[Waiting]) -> _Ran:
        recorder = self._engine.recorder
        counters = self._counters
        memory = self._engine.memory
        opened, opening = memory.read(), time.process_time_ns()
        start, recorder.batch["wake_runq_ns"][batch_id] = counters.wake()
        batch = self._instance.collate([member.inputs for member in members])
        tensors = tensors_of(batch)
        elements, length = elements_and_length(tensors, 1)
        if self._stream is None and self._instance.dtype is not None:
            batch = move(batch, "cpu", self._instance.dtype)
        pool = self._pool.read() if self._pool is not None else {}
        middle, before = time.process_time_ns(), counters.snapshot()
        spent = difference(before, start)
        grown = memory.growth(opened, spent)
        between = memory.latest if any(grown) else opened
        values = {
            "padded_elements": elements,
            "padded_length": length,
            "first_shape": int(self._instance.first_time(tensors)),
        }
        recorder.batch_values(batch_id, values)
        recorder.batch_account("collate", batch_id, (*spent, middle - opening, *grown))
        compute = self._compute_host if self._stream is None else self._compute_cuda
        output, end_ns = compute(batch, batch_id)
        after = counters.snapshot()
        spent = difference(after, before)
        process_ns = time.process_time_ns()
        values = {"throttled_ns": self._throttle_growth(spent)}
        if self._pool is not None:
            values["pool_runq_ns"] = PoolDelays.largest_growth(pool, self._pool.read())
            self._batches += 1
            if self._batches in (1, 2, 16, 256):  # the pool appears with the first operators that use it
                self._pool.refresh()
        recorder.batch_values(batch_id, values)
        # Read whether or not it faulted, so that memory given back is seen.
        grown = memory.change(between, memory.read())
        recorder.batch_account("compute", batch_id, (*spent, process_ns - middle, *grown))
        return _Ran(split_output(output, len(members)), end_ns, process_ns, after)

    def _throttle_growth(self, spent: Account) -> int:
        """Growth of the cgroup's throttled time, read only where run-queue delay makes it worth the read."""
        run_delay = spent[1]
        if run_delay < 1_000_000 or not self._engine.throttle.available:
            return 0
        now = self._engine.throttle.throttled_ns()
        growth, self._throttled = now - self._throttled, now
        return growth

    def _compute_host(self, batch: Any, batch_id: int) -> tuple[Any, int]:
        stamp = self._engine.recorder.batch
        # There is no device to copy to or from: the copy stages have no length.
        stamp["collated_ns"][batch_id] = stamp["h2d_end_ns"][batch_id] = time.perf_counter_ns()
        output = call_model(self._instance.model, batch)
        stamp["compute_end_ns"][batch_id] = stamp["d2h_end_ns"][batch_id] = end = time.perf_counter_ns()
        if self._instance.pool is not None:
            output = self._instance.pool.release(output)
        return output, end

    def _compute_cuda(self, batch: Any, batch_id: int) -> tuple[Any, int]:
        import torch

        stamp = self._engine.recorder.batch
        events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]  # type: ignore[no-untyped-call]
        stamp["collated_ns"][batch_id] = time.perf_counter_ns()
        with torch.cuda.stream(self._stream):
            events[0].record(self._stream)
            inputs = move(batch, self._instance.device, self._instance.dtype)
            events[1].record(self._stream)
            output = call_model(self._instance.model, inputs)
            events[2].record(self._stream)
            host = move(output, "cpu")
            events[3].record(self._stream)
            self._stream.synchronize()
        end = time.perf_counter_ns()
        # The device's timeline is anchored to the host's clock at the synchronization that ends the batch.
        compute_end = end - int(events[2].elapsed_time(events[3]) * 1e6)
        stamp["h2d_end_ns"][batch_id] = compute_end - int(events[1].elapsed_time(events[2]) * 1e6)
        stamp["compute_end_ns"][batch_id] = compute_end
        stamp["d2h_end_ns"][batch_id] = end
        return host, end

    def _finish(self, batch_id: int, members: list[Waiting], ran: _Ran) -> int:
        engine, recorder, counters = self._engine, self._engine.recorder, self._counters
        now, process_ns, before = ran.end_ns, ran.process_ns, ran.spent
        self._spans.clear()  # of collate or the model: no part of any member's finish
        for member, output in zip(members, ran.outputs, strict=True):
            slot = member.slot
            recorder.finish_start[slot] = now
            answer, error = output, ""
            if self._own_finish:
                memory = engine.memory.begin()
                try:
                    answer = self._instance.adapter.finish(output, engine.request_of(slot))
                except USER_ERRORS as raised:
                    error = f"finish raised {describe(raised)}"
                # From the end of compute or of the last member's finish on: one reading serves both.
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
        recorder.batch_done(batch_id, now)
        return now

    def _end(self, member: Waiting, status: Status, message: str, end_ns: int) -> None:
        self._engine.done(member.slot, Outcome(status, None, message), end_ns)
