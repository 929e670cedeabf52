"""Batches in flight on a device: copied in, computed and copied out without blocking the host in between.

Events mark begin and end of a flight's copy in, compute and copy out: six, or four if all share one stream. They are
read after the batch has landed and its requests are answered, never by waiting for them, and give the boundaries of
the stages. A request that is served in steps, together with others, is a flight of its own, in one stream.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from latfix.profilers.probes.thread_counters import Account
from latfix.runners.calls.model_call import call_model
from latfix.runners.calls.tensor_tree import map_tensors, tensors_of
from latfix.runners.gpu.accelerator import Accelerator, Event
from latfix.runners.gpu.device_clock import DeviceClock
from latfix.runners.gpu.worker_streams import READY

if TYPE_CHECKING:
    import torch

    from latfix.profilers.probes.stage_recorder import StageRecorder
    from latfix.runners.engine.worker import ModelInstance

#: If half as many batches as sets of events have landed and no thread has written the record, each
#: landing reads the oldest flights: a few microseconds, while reading all would take milliseconds.
_MOST_UNREAD = READY // 2
_READ_AT_ONCE = 2
_IN, _IN_END, _COMPUTE, _COMPUTE_END, _OUT, _OUT_END = range(6)


@dataclass(frozen=True, slots=True)
class Collated:
    """A batch before its compute, with counters: the thread's, the process's CPU time, the process's memory."""

    batch: Any
    spent: Account
    process_ns: int
    memory: Account


@dataclass(slots=True)
class Flight:
    """One batch on the device.

    :param enqueued_ns: time before its copy in was enqueued; ``issued_ns``: after the model's last operator was.
    :param held: memory that must not be reused before it has landed: staged inputs, tensors on the device.
    :param host: its outputs on the host, valid after landing.
    :param spent: the worker thread's counters while the batch was collated and enqueued; ``process_ns``: the
        process's CPU time; ``memory``: the memory counters before.
    :param end_ns: time at which the host learned that it had landed; ``compute_end_ns``: end of its compute.
    :param slots: the slots of its members.
    :param behind: the flight that was in progress when this one was enqueued.
    :param stepwise: a request that is served in steps: everything is in the stream that computes.
    """

    batch_id: int
    events: list[Event]
    enqueued_ns: int
    memory: Account
    issued_ns: int = 0
    held: list[Any] = field(default_factory=list)
    host: Any = None
    spent: Account = ()
    process_ns: int = 0
    end_ns: int = 0
    compute_end_ns: int = 0
    slots: Sequence[int] = ()
    behind: Flight | None = None
    stepwise: bool = False


class Flights:
    """Flights of one worker.

    :ivar longest_read_ns: longest time for reading one flight's events, with the interpreter's lock held.
    :param instance: the worker's model, whose streams are used.
    :param clock: the device's clock, shared by all workers on it.
    :param overlap: copies use separate streams, while another batch computes.
    :param blocking: waiting for a flight sleeps; otherwise it spins, which ends sooner.
    """

    def __init__(
        self,
        instance: ModelInstance,
        clock: DeviceClock,
        recorder: StageRecorder,
        *,
        overlap: bool,
        blocking: bool = False,
    ) -> None:
        from latfix.runners.gpu.cuda_graphs import GraphedModel

        assert instance.accelerator is not None and instance.lane is not None, "flights need a device"
        self._accelerator: Accelerator = instance.accelerator
        self._instance = instance
        self._clock = clock
        self._recorder = recorder
        self._overlap = overlap
        self._graphs = instance.model.facts if isinstance(instance.model, GraphedModel) else None
        self.compute = instance.lane.compute
        self._copy_in, self._copy_out = instance.lane.copies() if overlap else (self.compute, self.compute)
        self._events = instance.lane.events(blocking=blocking)
        self._grown = self._events.grown
        self.longest_read_ns = 0
        self._landed: deque[Flight] = deque()
        self._resolving = threading.Lock()
        recorder.resolvers.append(self.resolve)

    @property
    def events_added(self) -> int:
        """Number of sets of events that were made while requests waited."""
        return self._events.grown - self._grown

    def launch(self, batch_id: int, collated: Collated) -> Flight:
        """Enqueue a batch; returns when all of its work is in the streams.

        With pageable memory the host waits for the copies, so the streams do not run ahead.
        """
        flight = Flight(batch_id, self._events.take(), time.perf_counter_ns(), collated.memory)
        try:
            self._enqueue(flight, collated.batch)
        except BaseException:
            self.abandon(flight)
            raise
        return flight

    def _enqueue(self, flight: Flight, batch: Any) -> None:
        accelerator, events, k = self._accelerator, flight.events, flight.batch_id
        stamp = self._recorder.batch
        stamp["collated_ns"][k] = flight.enqueued_ns
        batch = self._staged(batch, k)
        flight.held.append(batch)
        with accelerator.using(self._copy_in):
            flight.enqueued_ns = time.perf_counter_ns()
            events[_IN].record(self._copy_in)
            inputs = self._uploaded(batch)
            events[_IN_END].record(self._copy_in)
            stamp["copy_in_issue_ns"][k] = time.perf_counter_ns() - flight.enqueued_ns
        flight.held.append(inputs)
        with accelerator.using(self.compute):
            if self._overlap:
                self.compute.wait_event(events[_IN_END])
                events[_COMPUTE].record(self.compute)
            replays = self._graphs.replays if self._graphs is not None else 0
            begun = time.perf_counter_ns()
            output = call_model(self._instance.model, inputs)
            flight.issued_ns = time.perf_counter_ns()
            if self._graphs is not None:
                stamp["graph"][k] = 1 if self._graphs.replays > replays else -1
            events[_COMPUTE_END].record(self.compute)
        flight.held.append(output)
        stamp["issue_ns"][k] = flight.issued_ns - begun
        with accelerator.using(self._copy_out):
            if self._overlap:
                self._copy_out.wait_event(events[_COMPUTE_END])
                events[_OUT].record(self._copy_out)
            begun = time.perf_counter_ns()
            flight.host = self._downloaded(output, k)
            events[_OUT_END].record(self._copy_out)
            stamp["copy_out_issue_ns"][k] = time.perf_counter_ns() - begun

    def copy_in(self, batch: Any, batch_ids: Sequence[int]) -> tuple[Any, list[Flight]]:
        """Copy the inputs of requests that are served in steps; returns when they are on the device.

        :returns: the inputs, and a flight for each request.
        """
        now, stamp = time.perf_counter_ns(), self._recorder.batch
        flights = [Flight(k, self._events.take(), now, (), stepwise=True) for k in batch_ids]
        try:
            for flight in flights:
                flight.events[_IN].record(self.compute)
            size, inputs = self._bytes(batch, here=False), self._uploaded(batch)
            issued = time.perf_counter_ns() - now
            for flight in flights:
                flight.events[_IN_END].record(self.compute)
                k = flight.batch_id
                stamp["copy_in_bytes"][k] = stamp["pageable_bytes"][k] = size
                stamp["copy_in_issue_ns"][k] = issued
            self.compute.synchronize()
        except BaseException:
            for flight in flights:
                self.abandon(flight)
            raise
        return inputs, flights

    def computed(self, flights: Sequence[Flight], issued_ns: int) -> None:
        """Mark the end of the compute of requests that are served in steps; the last was issued at ``issued_ns``."""
        for flight in flights:
            flight.issued_ns = issued_ns
            flight.events[_COMPUTE_END].record(self.compute)

    def copy_out(self, outputs: Sequence[Any], flights: Sequence[Flight]) -> list[Any]:
        """The outputs of requests that are served in steps, on the host."""

        def downloaded(tensor: torch.Tensor, _: Any) -> torch.Tensor:
            accelerator = self._accelerator
            return accelerator.download(tensor, None) if accelerator.is_here(tensor) else tensor

        begun, stamp = time.perf_counter_ns(), self._recorder.batch
        size = sum(self._bytes(output, here=True) for output in outputs)
        copied = [map_tensors(output, downloaded) for output in outputs]
        issued = time.perf_counter_ns() - begun
        for flight in flights:
            flight.events[_OUT_END].record(self.compute)
            k = flight.batch_id
            stamp["copy_out_bytes"][k] = size
            stamp["pageable_bytes"][k] += size
            stamp["copy_out_issue_ns"][k] = issued
        self.compute.synchronize()
        return copied

    def landed(self, flight: Flight, end_ns: int) -> None:
        """Have the events of a request that was served in steps read; its own stamps are written."""
        flight.end_ns = end_ns
        self._read_later(flight)

    def _bytes(self, batch: Any, *, here: bool) -> int:
        """Bytes of the tensors on the device, or of those that are not."""
        found = [each for each in tensors_of(batch) if self._accelerator.is_here(each) == here]
        return sum(each.numel() * each.element_size() for each in found)

    def abandon(self, flight: Flight) -> None:
        """Clean up after a failure: the memory it holds may be reused only when the device is done."""
        for stream in (self._copy_in, self.compute, self._copy_out):
            # A failed device raises again here; the first error is already being raised.
            with contextlib.suppress(RuntimeError):
                stream.synchronize()
        flight.held.clear()
        self._events.give_back(flight.events)

    def land(self, flight: Flight) -> Any:
        """Wait for a flight; returns its outputs on the host."""
        flight.events[_OUT_END].synchronize()
        flight.end_ns = time.perf_counter_ns()
        stamp, batch_id = self._recorder.batch, flight.batch_id
        # Until its events are read, the whole flight counts as compute.
        stamp["h2d_end_ns"][batch_id] = flight.enqueued_ns
        stamp["compute_end_ns"][batch_id] = stamp["d2h_end_ns"][batch_id] = flight.end_ns
        flight.held.clear()
        self._read_later(flight)
        output, flight.host = flight.host, None
        return output

    def _read_later(self, flight: Flight) -> None:
        self._landed.append(flight)
        # Not while the record is being written: a request would wait for all flights read there.
        if len(self._landed) > _MOST_UNREAD and self._resolving.acquire(blocking=False):
            try:
                self._read(_READ_AT_ONCE)
            finally:
                self._resolving.release()

    def resolve(self) -> None:
        """Read the events of all landed flights, in order of landing, and write their times into the record.

        Called by the thread that writes the record, before it reads the rows.
        """
        with self._resolving:
            self._read(len(self._landed))

    def _read(self, count: int) -> None:
        """Read the events of some flights, then place all of them with the bounds of all."""
        found = []
        for flight in [self._landed.popleft() for _ in range(count)]:
            events, started = flight.events, time.perf_counter_ns()
            # In one stream each part begins where the previous one ends.
            apart = self._overlap and not flight.stepwise
            marked = events if apart else [events[k] for k in (_IN, _IN_END, _COMPUTE_END, _OUT_END)]
            try:
                marks, kept = self._clock.observe(marked, flight.enqueued_ns, flight.end_ns)
            except RuntimeError:  # a failed device is reported by the worker; the record must still be written
                flight.behind = None  # the host's stamps remain
                continue
            self._events.give_back(events, lost=kept)
            found.append((flight, marks))
            self.longest_read_ns = max(self.longest_read_ns, time.perf_counter_ns() - started)
            if count > _READ_AT_ONCE:
                time.sleep(0)  # reading holds the interpreter's lock: let serving threads run first
        for flight, marks in found:
            times, slack = self._clock.place(marks)
            apart = self._overlap and not flight.stepwise
            self._stamp(flight, times if apart else [times[k] for k in (0, 1, 1, 2, 2, 3)], slack)

    def _stamp(self, flight: Flight, times: Sequence[int], slack: int) -> None:
        stamp, k = self._recorder.batch, flight.batch_id
        stamp["copy_in_ns"][k] = times[_IN_END] - times[_IN]
        stamp["device_ns"][k] = times[_COMPUTE_END] - times[_COMPUTE]
        stamp["copy_out_ns"][k] = times[_OUT_END] - times[_OUT]
        stamp["clock_slack_ns"][k] = slack
        stamp["lead_ns"][k] = times[_COMPUTE_END] - flight.issued_ns
        floor = flight.behind.compute_end_ns if flight.behind is not None else 0
        if floor:
            self._take_turn(flight, floor, max(times[_IN_END], flight.issued_ns))
        flight.behind = None  # otherwise every flight would keep all earlier ones alive
        collated = stamp["collated_ns"][k]
        begin = min(max(times[_COMPUTE], collated), flight.end_ns)
        end = min(max(times[_COMPUTE_END], begin), flight.end_ns)
        stamp["h2d_end_ns"][k], stamp["compute_end_ns"][k], stamp["d2h_end_ns"][k] = begin, end, flight.end_ns
        flight.compute_end_ns = end

    def _take_turn(self, flight: Flight, floor: int, ready_ns: int) -> None:
        """Shift the stages of a batch that was copied in while the previous one computed: hidden time is not counted.

        Until the device was free, its requests count as waiting in the queue.

        :param floor: when the device was free; ``ready_ns``: when all of the batch was copied in and enqueued.
        """
        stamp, k = self._recorder.batch, flight.batch_id
        floor = min(floor, flight.end_ns)
        stamp["ahead_ns"][k] = max(floor - ready_ns, 0)
        stamp["free_ns"][k] = floor
        for name in ("open_ns", "close_ns", "collated_ns"):
            stamp[name][k] = max(stamp[name][k], floor)
        taken = self._recorder.taken
        for slot in flight.slots:
            taken[slot] = max(taken[slot], floor)

    def _staged(self, batch: Any, batch_id: int) -> Any:
        """The batch's tensors, in pinned memory if there is staging. Counts bytes."""
        staging, stamp = self._instance.staging, self._recorder.batch

        def stage(tensor: torch.Tensor, path: tuple[Any, ...]) -> torch.Tensor:
            if self._accelerator.is_here(tensor):
                return tensor
            if staging is not None:
                tensor = staging.stage(tensor, path)
            size = tensor.numel() * tensor.element_size()
            stamp["copy_in_bytes"][batch_id] += size
            if staging is None and not self._accelerator.is_pinned(tensor):
                stamp["pageable_bytes"][batch_id] += size
            return tensor

        return map_tensors(batch, stage)

    def _uploaded(self, batch: Any) -> Any:
        accelerator, dtype = self._accelerator, self._instance.dtype
        return map_tensors(
            batch, lambda tensor, _: tensor if accelerator.is_here(tensor) else accelerator.upload(tensor, dtype)
        )

    def _downloaded(self, output: Any, batch_id: int) -> Any:
        """The batch's answers on the host, in pinned memory if there is staging. Counts bytes."""
        staging, stamp = self._instance.staging, self._recorder.batch

        def download(tensor: torch.Tensor, path: tuple[Any, ...]) -> torch.Tensor:
            if not self._accelerator.is_here(tensor):
                return tensor
            size = tensor.numel() * tensor.element_size()
            stamp["copy_out_bytes"][batch_id] += size
            if staging is None:
                stamp["pageable_bytes"][batch_id] += size
            return self._accelerator.download(tensor, None if staging is None else staging.landing(tensor, path))

        return map_tensors(output, download)
