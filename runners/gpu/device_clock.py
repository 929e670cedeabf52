"""Maps the device's clock to the host's: the time of a device event on the host's timeline, and its uncertainty.

The two clocks are never read at the same moment. But work runs after it was enqueued, and before a synchronization
returns: each batch gives a lower and an upper bound of the offset between the clocks, from an enqueueing and a
synchronization that happen anyway. The offset hardly changes, so the bounds of many batches are intersected
(Cristian, Probabilistic clock synchronization, 1989), and widened at the rate at which quartz clocks may drift apart.
"""

from __future__ import annotations

import threading
import time

import numpy as np

from latfix.runners.gpu.accelerator import Event

#: Maximum relative drift of the clocks.
_DRIFT = 20e-6
#: An event's time is a single-precision number of milliseconds: this long after its origin, its step is half a
#: microsecond.
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
        """Tighten the bounds with one batch.

        :param host_before: read before enqueueing the work that ended at ``device_after`` on the device's clock.
        :param device_before: a time on the device's clock before ``host_after``.
        :param unsure_ns: uncertainty of the device's times.
        """
        slip = self._drift * max(host_after - self._at, 0)
        low, high = host_before - device_after - unsure_ns, host_after - device_before + unsure_ns
        self._low, self._high = max(self._low - slip, low), min(self._high + slip, high)
        if self._low > self._high:  # the clocks drifted faster than assumed: use the latest bounds
            self._low, self._high = low, high
        self._at = max(self._at, host_after)

    def at(self, host: int) -> tuple[int, int]:
        """The offset at a time of the host: the middle of the bounds, and their distance in nanoseconds."""
        slip = self._drift * max(self._at - host, 0)
        return round((self._low + self._high) / 2), max(round(self._high - self._low + 2 * slip), 0)


#: Events of one batch on the device's clock: nanoseconds from the clock's first event (differences within a batch are
#: exact), when the host learned of the last, and their common uncertainty, from the precision of event times.
Marks = tuple[list[int], int, int]


class DeviceClock:
    """One device's clock, from the times between its events. Thread-safe.

    :ivar observed: number of observed batches.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._origin: Event | None = None
        self._base_ns = 0
        self._offset = Offset()
        self.observed = 0

    def observe(self, events: list[Event], host_before: int, host_after: int) -> tuple[Marks, bool]:
        """Observe a batch.

        :param events: in order, all reached; the first was enqueued after ``host_before``, and the host learned of
            the last at ``host_after``.
        :returns: the events on the device's clock, and True if the first event has become the clock's origin and must
            not be recorded again.
        """
        with self._lock:
            first, unsure = self._base_ns, 0
            kept = self._origin is None
            if self._origin is not None:
                # After a long pause this is a large, imprecise number; times within a batch are small.
                elapsed_ms = self._origin.elapsed_time(events[0])
                first += round(elapsed_ms * 1e6)
                unsure = round(float(np.spacing(np.float32(elapsed_ms))) * 1e6)
                kept = elapsed_ms * 1e6 > _NEW_ORIGIN_NS
            if kept:
                self._origin, self._base_ns = events[0], first
            times = [first, *(first + round(events[0].elapsed_time(event) * 1e6) for event in events[1:])]
            self._offset.observe(host_before, times[0], times[-1], host_after, unsure)
            self.observed += 1
            return (times, host_after, unsure), kept

    def place(self, marks: Marks) -> tuple[list[int], int]:
        """A batch's events on the host's timeline, and their common uncertainty in nanoseconds.

        Later calls are more precise, because they use more batches.
        """
        with self._lock:
            times, at, unsure = marks
            shift, slack = self._offset.at(at)
            return [time + shift for time in times], slack + unsure

    @property
    def slack_ns(self) -> int:
        """Current uncertainty of a time on the host's timeline; 0 before the first batch."""
        with self._lock:
            return self._offset.at(time.perf_counter_ns())[1] if self.observed else 0
