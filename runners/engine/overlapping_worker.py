"""``transfer.overlap``: the next batch is collated, copied in and enqueued while the current one computes.

A worker that waits for its batch before it takes the next leaves the device idle from the end of one to the first
operator of the other. If a full batch waits, keeping it open gains nothing: it is taken at once and enqueued behind
the current one. A batch that is not full stays open until the device is free, so that later requests can join it.
"""

from __future__ import annotations

import time

from latfix.runners.engine.worker import Worker
from latfix.runners.gpu.async_batches import Flight
from latfix.runners.scheduling.batch_queue import Formed, Waiting


class _Airborne:
    """An enqueued batch, or one whose enqueueing failed."""

    __slots__ = ("batch_id", "failure", "flight", "formed", "free_ns", "members")

    def __init__(self, formed: Formed, members: list[Waiting], batch_id: int, free_ns: int) -> None:
        self.formed, self.members, self.batch_id, self.free_ns = formed, members, batch_id, free_ns
        self.flight: Flight | None = None
        self.failure = ""  # as text: the exception would keep the batch's memory alive


class OverlappingWorker(Worker):
    """A worker on a device that keeps up to two batches in flight."""

    def _serve(self, formed: Formed, free_ns: int) -> int:
        """Serve a batch, and all batches that can be enqueued behind it."""
        memory = self._engine.device_memory
        now = self._take_off(formed, free_ns, None)
        end = time.perf_counter_ns()
        while now is not None:
            following = ahead = None
            if now.flight is not None and (ahead := self._engine.queue.take_full()) is not None:
                if memory is not None:  # counters now include both batches
                    memory.enter()
                following = self._take_off(ahead, end, now.flight)
            end = self._come_down(now)
            if memory is not None and ahead is not None:
                memory.leave()
            if following is not None:
                following.free_ns = end
                # Under steady load there may be no other opportunity for a long time.
                self._engine.between_batches()
            now = following
        return end

    def _take_off(self, formed: Formed, free_ns: int, behind: Flight | None) -> _Airborne | None:
        """Enqueue a batch; ``None`` if no member is still waiting."""
        live = self._living(formed)
        if not live:
            return None
        airborne = _Airborne(
            formed, live, self._open(live, formed.open_ns, formed.close_ns, free_ns, retried=False), free_ns
        )
        flight = self._tried(self._launch, airborne.batch_id, live)
        if isinstance(flight, str):  # reported in its turn: the batch before is still in flight
            airborne.failure = flight
            return airborne
        flight.slots = [member.slot for member in live]
        flight.behind = behind
        airborne.flight = flight
        return airborne

    def _come_down(self, airborne: _Airborne) -> int:
        """Wait for a batch and finish its members; returns when that was done."""
        members, batch_id = airborne.members, airborne.batch_id
        if airborne.flight is None:
            return self._retry(batch_id, members, airborne.failure)
        ran = self._tried(self._land, airborne.flight, members)
        if isinstance(ran, str):
            airborne.flight = None
            return self._retry(batch_id, members, ran)
        end = self._finish(batch_id, members, ran)
        steering = self._engine.steering
        if steering is not None:
            formed = airborne.formed._replace(close_ns=max(airborne.formed.close_ns, airborne.free_ns))
            steering.served(self._engine.recorder, batch_id, formed, members, airborne.free_ns, end)
        return end
