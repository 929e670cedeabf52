"""``batch.continuous``: requests join and leave a batch between the steps of a model that works in steps.

A static batch runs until its longest answer is complete; short answers and new arrivals wait for it (Orca: Yu et al.,
OSDI 2022). A model that works in steps has five methods in addition to ``forward``:

- ``start(batch)``: called like the model; reads the inputs of new requests; returns their state;
- ``done(state)``: for each row, True if its answer is complete;
- ``step(state)``: advances all rows by one step, in place;
- ``join(state, other)``: the combined state, rows of ``other`` last;
- ``leave(state, rows)``: the outputs of these rows, as ``forward`` returns them, and the state of the others
  (``None`` if there are none).

Each request has its own row in the record's batches: a worker with room for eight counts as eight places that take
one request at a time. ``worker`` is the place, and ``size`` the average number of requests that shared its steps.
On a device, its compute lasts from its first step's begin to its last step's end there, whoever shared them; requests
that join or end together share one copy.
"""

from __future__ import annotations

import contextlib
import heapq
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from latfix.errors import RunnerError
from latfix.profilers.probes.thread_counters import NO_GROWTH, Account, difference
from latfix.runners.calls.model_call import USER_ERRORS, call_model
from latfix.runners.calls.tensor_tree import arrays_of, elements_and_length, move
from latfix.runners.engine.worker import ModelInstance, Ran, Worker
from latfix.runners.scheduling.batch_queue import Formed, Waiting
from latfix.runners.scheduling.routed_queue import Door

if TYPE_CHECKING:
    from latfix.runners.engine.engine import Engine
    from latfix.runners.gpu.async_batches import Flight


@runtime_checkable
class Steps(Protocol):
    """A model that works in steps; see the module docstring."""

    start: Any
    done: Any
    step: Any
    join: Any
    leave: Any


@dataclass(slots=True)
class _Row:
    """One request in service.

    :param place: index among the worker's places.
    :param before: the thread's counters when the request was admitted, ``process_ns`` the process's.
    :param steps: steps that it took part in; ``shared`` the number of rows in all of these steps.
    :param flight: its events on a device; ``issued_ns``: the worker's time in the model's calls before it joined.
    """

    member: Waiting
    batch_id: int
    place: int
    formed: Formed
    before: Account
    process_ns: int
    steps: int = 0
    shared: int = 0
    flight: Flight | None = None
    issued_ns: int = 0


class SteppingWorker(Worker):
    """A worker that serves in steps; a RunnerError if its model does not work in steps."""

    def __init__(self, number: int, engine: Engine, instance: ModelInstance) -> None:
        super().__init__(number, engine, instance)
        if not isinstance(instance.model, Steps):
            kind = type(instance.model).__name__
            raise RunnerError(
                f"batching = 'continuous' needs a model that works in steps (start, done, step, join, leave); "
                f"{kind} does not; use 'fixed' or 'adaptive'"
            )
        self._model = instance.model
        self._most = engine.settings.max_batch_size
        self._first_place = number * self._most
        self._places = list(range(self._most))
        self._free = [0] * self._most
        self._rows: list[_Row] = []
        self._state: Any = None
        #: Time in the calls that put work into the stream so far, and when the last one returned.
        self._issue_ns = self._issued_ns = 0
        self._door = engine.door(number)

    def _serve(self, formed: Formed, free_ns: int) -> int:
        """Serve a batch and all requests that join it, until none remains."""
        for place in self._places:  # all places: no request is in service
            self._free[place] = self._free[place] or free_ns
        self.step_ns = formed.close_ns
        with self._on_stream():
            self._admit(formed)
            self._let_go()
            while self._rows:
                self.step_ns = time.perf_counter_ns()
                self._step()
                self._let_go()
                # Under steady load there may be no other opportunity for a long time.
                self._engine.between_batches()
                room = self._most - len(self._rows)
                self.step_ns = time.perf_counter_ns()
                if room and (more := self._door.take_at_once(room)) is not None:
                    self._admit(more)
                    self._let_go()
        return time.perf_counter_ns()

    def _on_stream(self) -> AbstractContextManager[Any]:
        accelerator = self._instance.accelerator
        if accelerator is None or self.flights is None:
            return contextlib.nullcontext()
        return accelerator.using(self.flights.compute)

    def _settled_ns(self) -> int:
        if self.flights is not None:
            self.flights.compute.synchronize()
        return time.perf_counter_ns()

    def _tried_call(self, method: Callable[..., Any], *arguments: Any) -> tuple[Any, bool]:
        """A method's result; False if it failed, after which all rows must be served :meth:`_one_by_one`."""
        with contextlib.suppress(*USER_ERRORS):
            return method(*arguments), True
        return None, False

    def _issue(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method that puts work into the stream."""
        begun = time.perf_counter_ns()
        result = method(*arguments)
        self._issued_ns = time.perf_counter_ns()
        self._issue_ns += self._issued_ns - begun
        return result

    def _one_by_one(self) -> None:
        """After a failure: drop the model's state and serve each row alone."""
        rows, self._rows, self._state = self._rows, [], None
        self._alone(rows)

    def _step(self) -> None:
        if not self._tried_call(self._issue, self._model.step, self._state)[1]:
            self._one_by_one()
            return
        count = len(self._rows)
        for row in self._rows:
            row.steps += 1
            row.shared += count

    def _admit(self, formed: Formed) -> None:
        """Read the inputs of new requests and add them to those in service."""
        live = self._living(formed)
        if not live:
            return
        before, process_ns = self._counters.snapshot(), time.process_time_ns()
        rows = []
        for member in live:
            place = heapq.heappop(self._places)
            opened = max(self._free[place], member.enqueued_ns)
            batch_id = self._open([member], opened, formed.close_ns, self._free[place], retried=False)
            self._engine.recorder.batch_values(batch_id, {"worker": self._first_place + place})
            rows.append(_Row(member, batch_id, place, formed, before, process_ns))
        if self._tried_call(self._join, rows)[1]:
            self._rows += rows
        else:
            self._alone(rows)

    def _join(self, rows: list[_Row]) -> None:
        state = self._start(rows)
        self._state = state if self._state is None else self._issue(self._model.join, self._state, state)

    def _start(self, rows: list[_Row]) -> Any:
        recorder, instance = self._engine.recorder, self._instance
        batch = instance.collate([row.member.inputs for row in rows])
        arrays = arrays_of(batch)
        _, length = elements_and_length(arrays, 1)
        fresh = int(instance.first_time(arrays))
        collated = time.perf_counter_ns()
        spent = difference(self._counters.snapshot(), rows[0].before)
        process = time.process_time_ns() - rows[0].process_ns
        copied = collated
        if self.flights is not None:
            batch, flights = self.flights.copy_in(batch, [row.batch_id for row in rows])
            copied = time.perf_counter_ns()
            for row, flight in zip(rows, flights, strict=True):
                row.flight = flight
        elif instance.dtype is not None:
            batch = move(batch, instance.device, instance.dtype)
        for row in rows:
            row.issued_ns = self._issue_ns
            recorder.batch_values(
                row.batch_id,
                {
                    "collated_ns": collated,
                    "h2d_end_ns": copied,
                    "padded_elements": recorder.input_elements[row.member.slot],
                    "padded_length": length,
                    "first_shape": fresh,
                },
            )
            recorder.batch_account("collate", row.batch_id, (*spent, process, *NO_GROWTH))
            row.before, row.process_ns = self._counters.snapshot(), time.process_time_ns()
        return self._issue(call_model, self._model.start, batch)

    def _let_go(self) -> None:
        """End the requests whose answers are complete."""
        if not self._rows:
            return
        complete, succeeded = self._tried_call(self._complete)
        if not succeeded:
            self._one_by_one()
        if not succeeded or not complete:
            return
        if self.flights is not None:
            self.flights.computed(self._in_flight(complete), self._issued_ns)
        computed = self._settled_ns()
        answer, succeeded = self._tried_call(self._outputs, complete)
        if not succeeded:
            self._one_by_one()
            return
        outputs, remaining = answer
        ended = computed if self.flights is None else self._settled_ns()
        ending, ended_rows = [self._rows[k] for k in complete], set(complete)
        self._rows, self._state = [row for k, row in enumerate(self._rows) if k not in ended_rows], remaining
        after, process_ns = self._counters.snapshot(), time.process_time_ns()
        for row, output in zip(ending, outputs, strict=True):
            self._end_row(row, output, computed, ended, after, process_ns)

    def _complete(self) -> list[int]:
        """Rows whose answers are complete."""
        done = list(self._model.done(self._state))
        if len(done) != len(self._rows):
            raise ValueError(f"done() returned {len(done)} rows; expected {len(self._rows)}")
        return [k for k, complete in enumerate(done) if complete]

    def _outputs(self, rows: list[int]) -> tuple[list[Any], Any]:
        """Outputs of ``rows`` on the host, and the state without them."""
        outputs, remaining = self._model.leave(self._state, rows)
        if len(outputs) != len(rows):
            raise ValueError(f"leave() returned {len(outputs)} outputs; expected {len(rows)}")
        if self.flights is not None:
            outputs = self.flights.copy_out(outputs, self._in_flight(rows))
        return list(outputs), remaining

    def _in_flight(self, rows: Sequence[int]) -> list[Flight]:
        """The flights of some rows, on a device."""
        return [flight for k in rows if (flight := self._rows[k].flight) is not None]

    def _end_row(
        self, row: _Row, output: Any, computed_ns: int, ended_ns: int, after: Account, process_ns: int
    ) -> None:
        recorder, batch_id = self._engine.recorder, row.batch_id
        recorder.batch_values(
            batch_id,
            {
                "compute_end_ns": computed_ns,
                "d2h_end_ns": ended_ns,
                "size": max(round(row.shared / row.steps), 1) if row.steps else 1,
            },
        )
        spent = (*difference(after, row.before), process_ns - row.process_ns)
        recorder.batch_account("compute", batch_id, (*spent, *NO_GROWTH))
        if self.flights is not None and row.flight is not None:
            recorder.batch_values(batch_id, {"issue_ns": self._issue_ns - row.issued_ns})
            self.flights.landed(row.flight, ended_ns)
        ran = Ran([output], time.perf_counter_ns(), time.process_time_ns(), self._counters.snapshot())
        end = self._finish(batch_id, [row.member], ran)
        steering = self._engine.steering
        if steering is not None:
            steering.served(recorder, batch_id, row.formed, [row.member], self._free[row.place], end)
        if isinstance(self._door, Door):
            member = row.member
            shared = int(recorder.batch["size"][batch_id])
            self._door.row_ended(member.slot, end, shared=shared, length=member.length)
        self._leave(row, end)

    def _alone(self, rows: list[_Row]) -> None:
        """Serve the rows of a failed step one by one, so that only the row at fault fails."""
        recorder = self._engine.recorder
        for row in rows:
            if self.flights is not None and row.flight is not None:
                self.flights.abandon(row.flight)
            self.step_ns = now = time.perf_counter_ns()
            stamps = ("collated_ns", "h2d_end_ns", "compute_end_ns", "d2h_end_ns")
            missing = {name: now for name in stamps if not recorder.batch[name][row.batch_id]}
            recorder.batch_values(row.batch_id, {**missing, "retried": 1})
            recorder.batch_done(row.batch_id, now)
            single = self._open([row.member], now, now, now, retried=True)
            recorder.batch_values(single, {"worker": self._first_place + row.place})
            now = self._serve_single(single, row.member)
            if isinstance(self._door, Door):
                self._door.row_ended(row.member.slot, now, shared=0, length=0)
            self._leave(row, now)

    def _leave(self, row: _Row, end_ns: int) -> None:
        self._free[row.place] = end_ns
        heapq.heappush(self._places, row.place)
