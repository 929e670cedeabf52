"""The device's clock on the host's: where on the host's timeline an event of the device lies, and how surely.

The two clocks are never read at the same moment. But what was enqueued at a time of the host ran later, and what the
host was told of had run before: each batch gives a lower and an upper bound of the offset between the clocks, at an
enqueueing and at a synchronization that happen anyway. The offset hardly moves, so the bounds of many batches are
taken together (Cristian, Probabilistic clock synchronization, 1989), and let go at the rate at which quartz clocks
may drift apart.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np

from latfix.runners.gpu.accelerator import Event

#: Nanoseconds in a second by which the clocks may drift apart.
_DRIFT = 20e-6
#: An event's time is a float of milliseconds: after this long from its origin, its last digit is half a microsecond.
_NEW_ORIGIN_NS = 8_000_000_000


class Offset:
    """Bounds of ``host - device`` in nanoseconds."""

    def __init__(self, drift: float = _DRIFT) -> None:
        self._drift = drift
        self._low, self._high = float("-inf"), float("inf")
        self._at = 0

    def observe(
        self, host_before: int, device_after: int, device_before: int, host_after: int, unsure_ns: float = 0.0
    ) -> None:
        """Learn from one batch.

        :param host_before: read before the work was enqueued that ended at ``device_after`` on the device's clock.
        :param device_before: on the device's clock, before the host was told of it at ``host_after``.
        :param unsure_ns: how far off the device's times may be.
        """
        slip = self._slip(host_after)
        low, high = host_before - device_after - unsure_ns, host_after - device_before + unsure_ns
        self._low, self._high = max(self._low - slip, low), min(self._high + slip, high)
        if self._low > self._high:  # the clocks drifted faster than allowed for: believe the latest
            self._low, self._high = low, high
        self._at = max(self._at, host_after)

    def at(self, host: int) -> tuple[int, int]:
        """What it may have been at a time of the host: the middle, and the nanoseconds between the bounds."""
        slip = self._slip(host, before=True)
        return round((self._low + self._high) / 2), max(round(self._high - self._low + 2 * slip), 0)

    def _slip(self, host: int, *, before: bool = False) -> float:
        """By how much the clocks may have moved since the last observation, or until it."""
        if not self._at:
            return 0.0
        return self._drift * max(self._at - host if before else host - self._at, 0)


@dataclass(frozen=True, slots=True)
class Marks:
    """Events of one batch on the device's clock.

    :param times: nanoseconds from the clock's first event; those of a batch are to each other as the device saw them.
    :param at: when the host knew of the last.
    :param unsure_ns: how far off all of them may be together, by the precision that events are told in.
    """

    times: list[int]
    at: int
    unsure_ns: int


class DeviceClock:
    """One device's clock, from the times between its events. Any thread may use it.

    :ivar observed: batches that it knows of.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._origin: Event | None = None
        self._base_ns = 0
        self._offset = Offset()
        self.observed = 0

    def observe(self, events: list[Event], host_before: int, host_after: int) -> tuple[Marks, bool]:
        """Learn from a batch.

        :param events: in order, all reached; the first was enqueued after ``host_before``, and the host knew of the
            last at ``host_after``.
        :returns: them on the device's clock, and whether the first event has become the clock's origin: then it must
            not be recorded again.
        """
        with self._lock:
            first, unsure = self._base_ns, 0
            kept = self._origin is None
            if self._origin is not None:
                # After a long pause this is a large number in single precision; what lies within a batch is not.
                elapsed_ms = self._origin.elapsed_time(events[0])
                first, unsure = (
                    first + round(elapsed_ms * 1e6),
                    round(float(np.spacing(np.float32(elapsed_ms))) * 1e6),
                )
                kept = elapsed_ms * 1e6 > _NEW_ORIGIN_NS
            if kept:
                self._origin, self._base_ns = events[0], first
            times = [first, *(first + round(events[0].elapsed_time(event) * 1e6) for event in events[1:])]
            self._offset.observe(host_before, times[0], times[-1], host_after, unsure)
            self.observed += 1
            return Marks(times, host_after, unsure), kept

    def place(self, marks: Marks) -> tuple[list[int], int]:
        """Where a batch's events lie on the host's timeline, and how far off they may be together, in nanoseconds.

        The later it is asked, the more batches the answer rests on.
        """
        with self._lock:
            shift, slack = self._offset.at(marks.at)
            return [time + shift for time in marks.times], slack + marks.unsure_ns

    @property
    def slack_ns(self) -> int:
        """How far off a time on the host's timeline may be now; 0 before the first batch."""
        with self._lock:
            return self._offset.at(time.perf_counter_ns())[1] if self.observed else 0
